"""Much sent for little: bodies that break in many places, pipelines, trailers, readers that do not read.

Limits are on the CPU time and the memory of this process, not on the clock.
"""

from __future__ import annotations

import contextlib
import gc
import json
import resource
import select
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

import rbegir
from rbegir.serve import protocol
from rbegir.serve.body import LARGE, Bodies
from rbegir.wire.problems import Problem
from tests.serve.conftest import PATIENT, Local, get, listening, post
from tests.serve.test_requests import JSON, problem
from tests.serve.test_socket import clients, connect, read, request_bytes, wait_until
from torture.frontdoor import MIB, SEARCHES, UPSERTS, columns

CPU_SECONDS = 1.5  # a fraction of what each of these took
MEMORY = 150 * MIB


@contextlib.contextmanager
def bounded(seconds: float = CPU_SECONDS, memory: int = MEMORY) -> Iterator[None]:
    """What happens inside takes little CPU time and little memory of this process at its peak."""
    gc.collect()
    process, peak, stop = psutil.Process(), [0], threading.Event()
    before = process.memory_info().rss

    def watch() -> None:
        while not stop.wait(0.01):
            peak[0] = max(peak[0], process.memory_info().rss)

    watcher = threading.Thread(target=watch)
    watcher.start()
    used = resource.getrusage(resource.RUSAGE_SELF)
    try:
        yield
    finally:
        now = resource.getrusage(resource.RUSAGE_SELF)
        stop.set()
        watcher.join()
    assert now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime < seconds
    assert peak[0] - before < memory


@pytest.mark.parametrize("name", [*SEARCHES, *UPSERTS])
def test_a_body_that_is_wrong_in_a_million_places(shared: Local, name: str) -> None:
    path = "/v1/search" if name in SEARCHES else "/v1/keywords"
    body = {**SEARCHES, **UPSERTS}[name]()
    with bounded(memory=400 * MIB):
        answer = shared.client.post(path, content=body, headers=JSON)
        found = problem(answer, 422, "invalid")
    assert len(found.get("errors", [])) <= 20
    assert len(answer.content) < 20_000


def test_a_search_has_a_smaller_body_than_a_change(shared: Local) -> None:
    assert shared.client.get("/v1/index").json()["limits"]["max_search_bytes"] == 8 * MIB
    body = b'{"queries":["' + b"a" * (9 * MIB) + b'"]}'
    problem(shared.client.post("/v1/search", content=body, headers=JSON), 413, "too-large")
    problem(shared.client.post("/v1/keywords", content=body, headers=JSON), 422, "invalid")


def test_many_columns_in_one_change_leave_none(shared: Local) -> None:
    answer = shared.client.post("/v1/keywords", content=columns(), headers=JSON)
    assert "at most 256 are allowed" in problem(answer, 422, "invalid")["detail"]
    assert set(shared.index.info()["attributes"]) == {"price", "lang"}


def test_the_openapi_document_is_made_once(
    local: Callable[..., Local], monkeypatch: pytest.MonkeyPatch
) -> None:
    service = local()
    first = service.client.get("/openapi.json").json()
    monkeypatch.setattr("rbegir.serve.app.document", lambda *_: pytest.fail("it was made again"))
    assert service.client.get("/openapi.json").json() == first
    monkeypatch.undo()
    service.client.request("DELETE", "/v1/keywords", json={"ids": list(range(200))})
    assert service.client.get("/openapi.json").json() != first  # ids may be of either type again


# ---- at the socket ----


@pytest.fixture(scope="module")
def address(stored: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    path = shutil.copytree(stored, tmp_path_factory.mktemp("flooded") / "shop.rbe")
    with listening(rbegir.Index.open(path), send_timeout_s=1, max_unsent_bytes=16 * MIB) as address:
        yield address
        assert get(f"{address}/healthz").status_code == 200


def sent(client: socket.socket, data: bytes) -> int:
    """How many bytes the other side takes within a moment, before it waits or closes."""
    client.settimeout(0.5)
    total = 0
    with contextlib.suppress(OSError):
        while total < len(data):
            total += client.send(data[total : total + MIB])
    client.settimeout(PATIENT)
    return total


def test_a_pipeline_waits_in_the_socket(address: str) -> None:
    """30 MB of requests on one connection, whose responses nobody reads."""
    request = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with bounded(seconds=60, memory=40 * MIB), connect(address) as client:
        assert sent(client, request * (30 * MIB // len(request))) < 20 * MIB
        assert get(f"{address}/healthz").status_code == 200


def test_a_pipeline_is_answered_in_order(index_path: Path) -> None:
    """More requests than are parsed ahead, read while they are sent, with bodies among them."""
    body = b'{"queries":["hat"],"k":1}'
    search = request_bytes(body, f"Content-Length: {len(body)}")
    health = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    count = 40 * protocol.MAX_PIPELINED
    with (
        listening(rbegir.Index.open(index_path), send_timeout_s=PATIENT) as address,
        connect(address) as client,
    ):
        writer = threading.Thread(target=client.sendall, args=[(health + search) * count])
        writer.start()
        received = b""
        while received.count(b"HTTP/1.1 200") < 2 * count or not received.endswith(b"}"):
            piece = client.recv(1 << 16)
            assert piece, "closed"
            received += piece
        writer.join()
    kinds = [part[:9] == b'{"status"' for part in received.split(b"\r\n\r\n")[1:]]
    assert kinds == [True, False] * count


def test_trailers_count_as_body(address: str) -> None:
    head = request_bytes(b"", "Transfer-Encoding: chunked")
    trailer = b"X-Trailer: " + b"a" * 1000 + b"\r\n"
    for tail in (trailer * 60_000, b"X-Trailer: " + b"a" * (60 * MIB)):
        with bounded(seconds=10, memory=40 * MIB), connect(address) as client:
            client.sendall(head + b"2\r\n{}\r\n0\r\n")
            assert sent(client, tail) < 20 * MIB
            assert read(client, 1 << 16) == 0  # closed


def test_a_few_trailers_are_no_headers(address: str) -> None:
    body = b'{"queries":["hat"],"k":1}'
    head = request_bytes(b"", "Transfer-Encoding: chunked")
    with connect(address) as client:
        client.sendall(head + b"%x\r\n%b\r\n0\r\nX-Timeout-Ms: nonsense\r\n\r\n" % (len(body), body))
        assert client.recv(1 << 16).startswith(b"HTTP/1.1 200")


def test_tiny_chunks_are_a_body(address: str) -> None:
    body = b'{"queries":["hat"],"k":1}'
    chunks = b"".join(b"1\r\n%b\r\n" % body[at : at + 1] for at in range(len(body)))
    with connect(address) as client:
        client.sendall(request_bytes(b"", "Transfer-Encoding: chunked") + chunks + b"0\r\n\r\n")
        assert client.recv(1 << 16).startswith(b"HTTP/1.1 200")


def test_responses_that_nobody_reads_are_bounded(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Together they hold at most `max_unsent_bytes`, and each for a moment only."""
    held: list[int] = []
    original = protocol.Unsent.watch

    def watch(self: protocol.Unsent, client: protocol.Coalescing) -> None:
        original(self, client)
        held.append(sum(one.get_write_buffer_size() for one in self._clients))

    monkeypatch.setattr(protocol.Unsent, "watch", watch)
    body = json.dumps({"queries": ["hat"] * 800, "k": 100}).encode()
    request = request_bytes(body, f"Content-Length: {len(body)}")
    with contextlib.ExitStack() as opened:
        for _ in range(6):
            client = opened.enter_context(connect(address))
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
            client.sendall(request)
            assert client.recv(1) == b"H"  # of 7 MB, and no more
        wait_until(lambda: not clients(address))  # the server has closed its ends
    assert MIB < max(held) <= 16 * MIB
    assert get(f"{address}/healthz").status_code == 200


def test_unfinished_bodies_share_a_budget(index_path: Path) -> None:
    """Connections that send most of a body and withhold the rest; small requests are answered meanwhile."""
    size, body = 8 * MIB, b'{"queries":["hat"],"k":1}'
    unfinished = request_bytes(b" " * (size - 100), f"Content-Length: {size}")
    limits = {"max_received_bytes": 20 * MIB, "body_timeout_s": PATIENT}
    with (
        listening(rbegir.Index.open(index_path), **limits) as address,
        contextlib.ExitStack() as opened,
    ):
        with bounded(seconds=10, memory=60 * MIB):
            many = [opened.enter_context(connect(address)) for _ in range(20)]
            for client in many:
                with contextlib.suppress(OSError):  # it was refused before the last byte
                    client.sendall(unfinished)
            wait_until(lambda: sum(map(is_answered, many)) == 18)  # two of 8 MB fit
        said = next(client for client in many if is_answered(client)).recv(1 << 16)
        assert said.startswith(b"HTTP/1.1 503")
        assert b"retry-after: 1" in said.lower()
        assert b"too many large bodies are being received; nothing was done" in said
        assert post(f"{address}/v1/search", content=body, headers=JSON).status_code == 200
        large = body + b" " * (6 * MIB)
        problem(post(f"{address}/v1/search", content=large, headers=JSON), 503, "overloaded")
        for client in many:
            client.close()
        wait_until(lambda: post(f"{address}/v1/search", content=large, headers=JSON).status_code == 200)


def is_answered(client: socket.socket) -> bool:
    """Whether a response has begun."""
    return bool(select.select([client], [], [], 0)[0])


def test_the_budget_of_bodies_is_shared_fairly() -> None:
    bodies = Bodies(10 * LARGE)
    with bodies.receiving("greedy") as greedy, bodies.receiving("modest") as modest:
        greedy(11 * LARGE)
        for refused, size in ((greedy, 11 * LARGE + 1), (modest, 6 * LARGE + 1)):
            with pytest.raises(Problem, match="too many large bodies"):
                refused(size)
        modest(6 * LARGE)  # half of the budget, and what is not counted
        with bodies.receiving("greedy") as small:
            small(LARGE)
    assert not bodies._held
