"""The front door: one request or one file that tries to cost a service more than it is worth.

A real service on loopback is attacked, one attack per try, while it is asked for its health:

    bodies       wrong in a million places, or with thousands of columns
    pipelines    megabytes of requests whose responses nobody reads
    trailers     megabytes behind a chunked body
    readers      many large responses, not read
    unfinished   many large bodies whose end is withheld
    filters      filters of many slow tests, with a deadline that they miss
    patience     the same from clients that wait for the end
    models       an index is replaced by one of another model while it is open
    files        a stored model with links, pipes, sparse files and wild JSON
    encoders     the same for a sentence encoder, and with foreign classes (`encoders.py`)

A try is lost if the health check had to wait for more than HEALTH_CPU seconds of the service's own CPU time
(so that a busy machine is not counted), or a search beside slow filters for more than SEARCH_CPU; if the
service holds more than PEAK_MEMORY bytes more than at the start during an attack, more than MEMORY after it,
or more than UNFINISHED_MEMORY while bodies are withheld; if an acknowledged keyword is gone or a search finds
another one, or if an error is not ours.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import socket
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any

import httpx

from rbegir.encode.clsm import checkpoint
from rbegir.encode.clsm.model import Model
from rbegir.encode.clsm.presets import ModelConfig, random_tensors
from rbegir.errors import RbegirError
from rbegir.index.store import Index
from rbegir.lab.bench.serve import cpu_seconds
from rbegir.serve.settings import Settings
from torture.encoders import hostile_encoder, make_encoder
from torture.limits import Limits
from torture.server import Server, make_index

MIB = 1 << 20
SIZE = 7 * MIB  # of a body
HEALTH_CPU = 0.25  # seconds
MEMORY = 300 * MIB
# what all clients together may have in requests and unread responses, and room for the work on one of them:
# 80,000 hits and their response, which take 250 MB on a quiet machine
PEAK_MEMORY = Settings.max_received_bytes + Settings.max_unsent_bytes + 256 * MIB
SETTLE_S = 120.0  # at most
JSON = {"content-type": "application/json"}
READERS = 40
UNFINISHED, UNFINISHED_MEMORY = 60, 200 * MIB  # bodies of SIZE bytes, which would be 420 MB
BOMBS, PATIENT = 8, 6  # requests at once
SEARCH_CPU = 0.25  # seconds: less than one of their filters takes
KINDS = [
    *("body", "pipeline", "trailers", "readers", "unfinished", "filters", "patience"),
    *("models", "files", "encoders"),
]

# ---- bodies ----


def many(piece: bytes) -> bytes:
    """A piece as often as it fits, between commas."""
    return b",".join([piece] * (SIZE // (len(piece) + 1)))


def fields(value: bytes) -> bytes:
    """As many fields with this value as fit."""
    return b",".join(b'"%07x":%b' % (number, value) for number in range(SIZE // (11 + len(value))))


def keyword(members: bytes) -> bytes:
    return b'{"keywords":[{"id":1,"text":"a",' + members + b"}]}"


def columns() -> bytes:
    rows = [{"id": i, "text": "a", "attributes": {f"c{i}-{j}": 1 for j in range(200)}} for i in range(1000)]
    return json.dumps({"keywords": rows}).encode()


SEARCHES: dict[str, Callable[[], bytes]] = {
    "wrong ids": lambda: b'{"queries":["a"],"allow":[' + many(b"1.5") + b"]}",
    "many ids": lambda: b'{"queries":["a"],"deny":[' + many(b"1") + b"]}",
    "empty codes": lambda: b'{"codes":[' + many(b"[]") + b"]}",
    "a long code": lambda: b'{"codes":[[' + many(b"1") + b"]]}",
    "a wrong code": lambda: b'{"codes":[[' + many(b'"z"') + b"]]}",
    "wrong vectors": lambda: b'{"vectors":[' + many(b'""') + b"]}",
    "a wrong vector": lambda: b'{"vectors":[[' + many(b'""') + b"]]}",
    "wrong queries": lambda: b'{"queries":[' + many(b"1") + b"]}",
    "unknown fields": lambda: b'{"queries":["a"],' + fields(b"1") + b"}",
}
UPSERTS: dict[str, Callable[[], bytes]] = {
    "wrong keywords": lambda: b'{"keywords":[' + many(b"1") + b"]}",
    "empty keywords": lambda: b'{"keywords":[' + many(b"{}") + b"]}",
    "unknown members": lambda: keyword(fields(b"1")),
    "many attributes": lambda: keyword(b'"attributes":{' + fields(b"1") + b"}"),
    "wrong attributes": lambda: keyword(b'"attributes":{' + fields(b"[]") + b"}"),
    "many columns": columns,
}


# ---- attacks on a service ----


class Attacks:
    """What is done to a service. Each attack returns when its last byte is sent or refused."""

    def __init__(self, server: Server, chance: random.Random) -> None:
        self.server = server
        self.chance = chance

    def body(self) -> None:
        name = self.chance.choice([*SEARCHES, *UPSERTS])
        path, make = ("search", SEARCHES[name]) if name in SEARCHES else ("keywords", UPSERTS[name])
        answer = httpx.post(f"{self.server.url}/v1/{path}", content=make(), headers=JSON, timeout=120)
        assert answer.status_code in (413, 422), f"{name}: {answer.status_code}"

    def pipeline(self) -> None:
        request = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"
        self._send(request * (30 * MIB // len(request)))

    def trailers(self) -> None:
        head = b"POST /v1/search HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        trailer = b"X-Trailer: " + b"a" * self.chance.choice([10, 1000, 60 * MIB]) + b"\r\n"
        chunked = b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n"
        self._send(head + chunked + trailer * (30 * MIB // len(trailer) + 1))

    def readers(self) -> None:
        body = json.dumps({"queries": ["base"] * 800, "k": 100}).encode()
        head = b"POST /v1/search HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        with contextlib.ExitStack() as opened:
            for _ in range(READERS):
                client = opened.enter_context(self._connect())
                client.sendall(head + b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
                assert client.recv(1) == b"H"  # and no more

    def unfinished(self) -> None:
        head = b"POST /v1/search HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        request = head + b"Content-Length: %d\r\n\r\n" % SIZE + b" " * (SIZE - 1)
        before = self.server.memory()
        with contextlib.ExitStack() as opened:
            for _ in range(UNFINISHED):
                client = opened.enter_context(self._connect())
                with contextlib.suppress(OSError):  # refused
                    client.sendall(request)
            growth = self.server.memory() - before
            assert growth < UNFINISHED_MEMORY, f"unfinished bodies hold {growth >> 20} MB"

    def filters(self) -> None:
        bombs = self._bombs()
        assert self._ask([next(bombs) for _ in range(18)], 1000) == 422
        pairs = [[next(bombs), next(bombs)] for _ in range(BOMBS)]
        with ThreadPoolExecutor(BOMBS) as threads:
            statuses = list(threads.map(self._ask, pairs, [100] * BOMBS))
        assert set(statuses) <= {200, 504}, f"filters: {statuses}"
        waited = self._wait_of_a_search()
        assert waited <= SEARCH_CPU, f"a search waited for {waited:.2f} s of CPU time"

    def patience(self) -> None:
        bombs = self._bombs()
        pairs = [[next(bombs), next(bombs)] for _ in range(PATIENT)]
        addresses = [f"127.0.0.{2 + number}" for number in range(PATIENT)]
        with ThreadPoolExecutor(PATIENT) as threads:
            waiting = [
                threads.submit(self._ask, pair, 30_000, address)
                for pair, address in zip(pairs, addresses, strict=True)
            ]
            waits = [self._wait_of_a_search()]
            while not all(one.done() for one in waiting):
                waits.append(self._wait_of_a_search())
            statuses = [one.result() for one in waiting]
        assert set(statuses) <= {200, 504}, f"patience: {statuses}"
        assert max(waits) <= SEARCH_CPU, f"a search waited for {max(waits):.2f} s of CPU time"

    def _bombs(self) -> Iterator[str]:
        """Different filters of 100 slow tests."""
        salt = self.chance.randrange(10**6)  # so that no filter is known already
        for number in count():
            yield " and ".join(f"not contains(text,'{salt}x{number}x{test}')" for test in range(100))

    def _ask(self, wheres: list[str | None], milliseconds: int, address: str = "127.0.0.1") -> int:
        """The status of a search by a client of this address."""
        body = {"queries": ["base"] * len(wheres), "k": 1, "where": wheres}
        headers = {"X-Timeout-Ms": str(milliseconds)}
        transport = httpx.HTTPTransport(local_address=address)
        with httpx.Client(base_url=self.server.url, transport=transport, timeout=120) as client:
            return client.post("/v1/search", json=body, headers=headers).status_code

    def _wait_of_a_search(self) -> float:
        """The seconds of CPU time that the service spends until a plain search is answered."""
        assert self.server.process is not None
        before = cpu_seconds(self.server.process.pid)
        assert self._ask([None], 30_000) == 200
        return cpu_seconds(self.server.process.pid) - before

    def _connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.server.port), timeout=600)

    def _send(self, data: bytes) -> None:
        with self._connect() as client, contextlib.suppress(OSError):
            client.settimeout(1)
            for start in range(0, len(data), MIB):
                client.sendall(data[start : start + MIB])


class Witness:
    """A client that writes, reads back, and asks for the health while others attack."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._http = httpx.Client(base_url=server.url, timeout=120)
        self._written: dict[int, str] = {}
        self.close = self._http.close
        self.slowest = 0.0  # CPU seconds of the service during one health check

    def cpu(self) -> float:
        assert self._server.process is not None
        return cpu_seconds(self._server.process.pid)

    def health(self) -> None:
        before = self.cpu()
        assert self._http.get("/healthz").status_code == 200
        waited = self.cpu() - before
        self.slowest = max(self.slowest, waited)
        assert waited <= HEALTH_CPU, f"a health check waited for {waited:.2f} s of CPU time"

    def write(self, key: int) -> None:
        text = f"written {key} {'abcdefgh'[key % 8] * 4}"
        body = {"keywords": [{"id": key, "text": text, "attributes": {"price": key % 100}}]}
        assert self._http.post("/v1/keywords", json=body).json() == {"upserted": 1}
        self._written[key] = text

    def check(self) -> None:
        """Everything that was acknowledged is there, and a search finds it."""
        for key, text in self._written.items():
            found = self._http.get(f"/v1/keywords/{key}").json()
            assert found.get("text") == text, f"keyword {key} is {found}"
        key, text = max(self._written.items())
        body = {"queries": [text], "k": 3, "where": f"id = {key}"}
        (result,) = self._http.post("/v1/search", json=body).json()["results"]
        assert [hit["text"] for hit in result["hits"]] == [text], f"a search for {text!r} found {result}"


def attacked(attack: Callable[[], None], witness: Witness, server: Server, before: int) -> int:
    """Run an attack in a thread, with health checks all the while. Returns the most bytes that the service
    held meanwhile beyond those before."""
    failed: list[BaseException] = []
    most = 0

    def work() -> None:
        try:
            attack()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    while thread.is_alive():
        try:
            witness.health()
            most = max(most, server.memory() - before)
            assert most < PEAK_MEMORY, f"it holds {most >> 20} MB more than at the start during the attack"
        except AssertionError as error:
            failed.append(error)  # the attack is finished first, so that it does not meet the next one
        time.sleep(0.01)
    thread.join()
    if failed:
        raise failed[0]
    return most


def settled(server: Server, before: int) -> int:
    """How many bytes the service has grown, once it has had time to free what an attack took."""
    end = time.monotonic() + SETTLE_S
    while server.memory() - before >= MEMORY // 2 and time.monotonic() < end:
        time.sleep(0.1)
    return server.memory() - before


# ---- attacks on files ----


def make_model(path: Path, seed: int) -> Model:
    """A small model whose sides are equal, so that a text finds itself."""
    config = ModelConfig(n=64, conv=32, hash_buckets=16, share_towers=True)
    tensors = random_tensors(config, seed)
    tensors |= {name: tensors.get(name.replace("query", "keyword"), tensors[name]) for name in tensors}
    checkpoint.write(path, config, tensors)
    return Model.load(path, threads=1)


def replaced_model(folder: Path, chance: random.Random) -> None:
    """A reader and a late writer of an index that is replaced by one with another model."""
    texts = [f"keyword number {i}" for i in range(30)]
    models = [make_model(folder / f"model{turn}", chance.randrange(10**6)) for turn in range(2)]
    path = folder / "replaced.rbe"
    for model in models:
        with Index.create(path, model, overwrite=True, threads=1) as index:
            index.add(texts)
        if model is models[0]:
            reader, writer = Index.open(path, read_only=True, threads=1), Index.open(path, threads=1)
            _ = reader.model, writer.model
    reader.refresh()
    _as_if_opened_now(reader, models[1], texts)
    writer.add(["a late keyword"])
    _as_if_opened_now(writer, models[1], [*texts, "a late keyword"])
    stored = writer.codes([len(texts)]).planes.tolist()
    assert stored == models[1].encode_keywords(["a late keyword"]).planes.tolist(), "stored by the old model"
    writer.close()


def _as_if_opened_now(index: Index, model: Model, texts: list[str]) -> None:
    """An index that was open all the while finds what a new one finds with the new model."""
    found = index.search(texts, k=3).keys
    wanted = Index.open(index.path, read_only=True, threads=1).search_codes(model.encode_queries(texts), k=3)
    other = int((found != wanted.keys).any(axis=1).sum())
    assert not other, f"{other} of {len(texts)} queries find other keywords"


def hostile_model(folder: Path, chance: random.Random) -> None:
    """A stored model with one hostile file: it is refused with our error, or gives the right codes."""
    path = folder / "hostile.rbe"
    model = make_model(folder / "model", 1)
    wanted = model.encode_queries(["red shoes"]).planes.tolist()
    Index.create(path, model).close()
    victim = path / "model" / chance.choice(["config.json", "model.safetensors"])
    raw = victim.read_bytes()
    harm = chance.choice(["fifo", "endless", "sparse", "link", "folder", "bytes", "directory"])
    victim.unlink()
    if harm == "fifo":
        os.mkfifo(victim)
    elif harm in ("endless", "link"):
        victim.symlink_to("/dev/zero" if harm == "endless" else folder / "model" / victim.name)
    elif harm == "sparse":
        with victim.open("wb") as file:
            file.truncate(8 << 30)
    elif harm == "directory":
        victim.mkdir()
    else:
        at = chance.randrange(len(raw))
        victim.write_bytes(raw[:at] + chance.randbytes(chance.randrange(1, 9)) + raw[at:])
    if harm == "folder":
        victim.write_bytes(raw)
        (path / "model").rename(path / "moved")
        (path / "model").symlink_to(path / "moved")
    with contextlib.suppress(RbegirError):
        assert Index.open(path).model.encode_queries(["red shoes"]).planes.tolist() == wanted


def run(limits: Limits) -> dict[str, Any]:
    """Attack until the limits are reached."""
    chance = random.Random(limits.seed)
    losses: list[str] = []
    tries: Counter[str] = Counter()
    end = time.monotonic() + limits.seconds
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="frontdoor")))
        sound = make_encoder(folder / "encoder")
        server = stack.enter_context(contextlib.closing(Server(make_index(folder), folder)))
        server.has_clock = False
        server.start()
        server.wait_ready()
        attacks, witness = Attacks(server, chance), stack.enter_context(contextlib.closing(Witness(server)))
        witness.write(10**6)
        witness.check()
        before, most, peak = server.memory(), 0, 0
        while sum(tries.values()) < limits.points and time.monotonic() < end:
            kind = KINDS[sum(tries.values()) % len(KINDS)]
            own = folder / "own"
            own.mkdir()
            try:
                if kind in ("models", "files"):
                    (replaced_model if kind == "models" else hostile_model)(own, chance)
                elif kind == "encoders":
                    hostile_encoder(sound, own / "encoder", chance)
                else:
                    peak = max(peak, attacked(getattr(attacks, kind), witness, server, before))
                    witness.write(10**6 + sum(tries.values()) + 1)
                    witness.check()
                    growth = settled(server, before)
                    most = max(most, growth)
                    assert growth < MEMORY, f"it holds {growth >> 20} MB more than at the start"
            except Exception as error:
                losses.append(f"{kind}: {type(error).__name__}: {error}"[:300])
            tries[kind] += 1
            shutil.rmtree(own)
        server.stop(signal.SIGTERM)
    return {
        "losses": len(losses),
        "first_losses": losses[:10],
        "tries": dict(tries),
        "slowest_health_cpu_s": round(witness.slowest, 3),
        "memory_growth_mb": most >> 20,
        "memory_peak_mb": peak >> 20,
    }
