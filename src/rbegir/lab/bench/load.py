"""A load generator that checks every response: closed-loop clients over raw sockets and a ledger of writes.

Each client is one connection that sends its next request after the response to the last one. Every response
is checked: status, number of hits, and whether it shows a keyword that must not be there. The generator's own
limit is measured against a server that only replays a response (`python -m rbegir.lab.bench.load FILE`).

A client owns the ids it writes, so it knows their state after every acknowledged write:

    lost       an id for which a read does not show the last acknowledged change
    phantom    a keyword in a response that nobody had sent, or that was deleted before the search was sent
"""

import asyncio
import json
import random
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rbegir.errors import RbegirError

FIRST_ID = 10**12  # ids from here on are written by the load; those of the index are smaller
IDS_PER_CLIENT = 10**8
OWN_IDS = re.compile(rb'"id":(1\d{12})\b')
LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
READ_AFTER = 0.25  # share of the writes that are read back at once


@dataclass
class Ledger:
    """The writes of the load, and the responses that contradict them."""

    first_sent: dict[int, float] = field(default_factory=dict)
    gone: dict[int, float] = field(default_factory=dict)  # when the deletion of an id was acknowledged
    expected: dict[int, str | None] = field(default_factory=dict)  # by the last acknowledged change
    in_doubt: set[int] = field(default_factory=set)  # ids with a change that was sent and not acknowledged
    lost: list[str] = field(default_factory=list)
    phantoms: list[str] = field(default_factory=list)
    acknowledged: int = 0
    reads: int = 0
    searched_ids: int = 0  # own ids that came up in searches and were checked

    def sent(self, key: int, text: str | None, now: float) -> None:
        if text is not None:
            self.first_sent.setdefault(key, now)
            self.gone.pop(key, None)
        self.in_doubt.add(key)

    def acknowledge(self, key: int, text: str | None, now: float) -> None:
        self.acknowledged += 1
        self.in_doubt.discard(key)
        self.expected[key] = text
        if text is None:
            self.gone[key] = now

    def found(self, keys: Sequence[int], asked: float) -> None:
        """A search that was sent at `asked` shows these keywords."""
        self.searched_ids += len(keys)
        for key in keys:
            if key not in self.first_sent:
                self.phantoms.append(f"{key} was never sent")
            elif self.gone.get(key, asked) < asked:
                self.phantoms.append(f"{key} was deleted before the search")

    def read(self, key: int, text: str | None) -> None:
        """A read returned this text, or None: there is no such id."""
        self.reads += 1
        if key in self.in_doubt:
            return
        wanted = self.expected.get(key)
        if text != wanted:
            (self.lost if wanted is not None else self.phantoms).append(
                f"{key}: {text!r} instead of {wanted!r}"
            )


@dataclass
class Tally:
    """The responses of one round of load."""

    search_ms: list[float] = field(default_factory=list)
    write_ms: list[float] = field(default_factory=list)
    read_ms: list[float] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    answer: bytes = b""  # body of the last search


class Messages(asyncio.Protocol):
    """One connection that receives whole HTTP messages, on either side."""

    def __init__(
        self, received: Callable[[bytes, int], None], lost: Callable[[], None] = lambda: None
    ) -> None:
        """`received` gets every message and the offset of its body; `lost` is called on disconnection."""
        self._buffer = bytearray()
        self._received, self._lost = received, lost
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        self._lost()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while (head := self._buffer.find(b"\r\n\r\n")) >= 0:
            length = LENGTH.search(self._buffer, 0, head)
            end = head + 4 + (int(length[1]) if length else 0)
            if len(self._buffer) < end:
                return
            message = bytes(self._buffer[:end])
            del self._buffer[:end]
            self._received(message, head + 4)


def responses(answered: Callable[[int, bytes], None], lost: Callable[[], None]) -> Messages:
    """The connection of a client: passes on the status and body of every response."""
    return Messages(lambda message, body: answered(int(message[9:12]), message[body:]), lost)


def prepared(method: str, path: str, body: bytes = b"") -> bytes:
    """The bytes of a request."""
    head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: application/json\r\n"
    if body:
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    return head.encode() + b"\r\n" + body


@dataclass(frozen=True)
class Mix:
    """The requests: prepared searches for k hits, and a share of writes of such texts."""

    searches: Sequence[bytes]
    texts: Sequence[str]
    k: int
    writes: float


class LoadClient:
    """A closed loop over one connection."""

    def __init__(
        self,
        number: int,
        mix: Mix,
        ledger: Ledger,
        tally: Tally,
        until: float,
        seed: int,
        done: asyncio.Event,
    ) -> None:
        self._mix, self._ledger, self._tally, self._until, self._done = mix, ledger, tally, until, done
        self._random = random.Random(seed * 1000 + number)
        self._first = FIRST_ID + number * IDS_PER_CLIENT
        self._own = [key for key in ledger.expected if self._first <= key < self._first + IDS_PER_CLIENT]
        self._fresh = self._first + len(
            [k for k in ledger.first_sent if 0 <= k - self._first < IDS_PER_CLIENT]
        )
        self._then: Callable[[int, bytes], None]
        self._sent = 0.0
        self._read_next: int | None = None
        self.wire = responses(self._answered, self._lost)

    def _lost(self) -> None:
        if not self._done.is_set():
            self._tally.errors["connection lost"] += 1
            self._done.set()

    def _send(self, request: bytes, then: Callable[[int, bytes], None]) -> None:
        self._then = then
        self._sent = time.perf_counter()
        self.wire.transport.write(request)

    def _answered(self, status: int, body: bytes) -> None:
        self._then(status, body)
        if time.perf_counter() >= self._until:
            self._done.set()
        elif self._read_next is None:
            self.send_next()
        else:
            key, self._read_next = self._read_next, None
            self._send(prepared("GET", f"/v1/keywords/{key}"), lambda s, b: self._read(key, s, b))

    def send_next(self) -> None:
        """Send a search, or a write of an id of this client."""
        if self._random.random() >= self._mix.writes:
            self._send(self._random.choice(self._mix.searches), self._search)
            return
        kind = self._random.random()
        text: str | None = f"{self._random.choice(self._mix.texts)} {self._random.randrange(10**9)}"
        if kind < 0.6 or not self._own:
            key = self._fresh
            self._fresh += 1
            self._own.append(key)
        else:
            key = self._random.choice(self._own)
            text = text if kind < 0.8 else None
        self._ledger.sent(key, text, time.perf_counter())
        if text is None:
            request = prepared("DELETE", "/v1/keywords", json.dumps({"ids": [key]}).encode())
        else:
            keyword = {"id": key, "text": text}
            request = prepared("POST", "/v1/keywords", json.dumps({"keywords": [keyword]}).encode())
        self._send(request, lambda status, body: self._written(key, text, status))

    def _search(self, status: int, body: bytes) -> None:
        now = time.perf_counter()
        hits = body.count(b'"score":')
        if status != 200 or hits != self._mix.k or not body.startswith(b'{"results":[{"query":'):
            self._tally.errors[f"search: {status}, {hits} hits"] += 1
            return
        self._tally.search_ms.append((now - self._sent) * 1e3)
        self._tally.answer = body
        self._ledger.found([int(key) for key in OWN_IDS.findall(body)], self._sent)

    def _written(self, key: int, text: str | None, status: int) -> None:
        now = time.perf_counter()
        if status != 200:
            self._tally.errors[f"write: {status}"] += 1
            return
        self._tally.write_ms.append((now - self._sent) * 1e3)
        self._ledger.acknowledge(key, text, now)
        if self._random.random() < READ_AFTER:
            self._read_next = key

    def _read(self, key: int, status: int, body: bytes) -> None:
        self._tally.read_ms.append((time.perf_counter() - self._sent) * 1e3)
        if status not in (200, 404):
            self._tally.errors[f"read: {status}"] += 1
            return
        self._ledger.read(key, json.loads(body)["text"] if status == 200 else None)


async def drive(port: int, mix: Mix, ledger: Ledger, *, clients: int, seconds: float, seed: int) -> Tally:
    """Load the service on this port of the loopback interface for `seconds`."""
    loop = asyncio.get_running_loop()
    tally = Tally()
    began = time.perf_counter()
    done = [asyncio.Event() for _ in range(clients)]
    loops = [
        LoadClient(number, mix, ledger, tally, began + seconds, seed, done[number])
        for number in range(clients)
    ]
    for client in loops:
        await loop.create_connection(lambda client=client: client.wire, "127.0.0.1", port)  # type: ignore[misc]
    for client in loops:
        client.send_next()
    await asyncio.gather(*(event.wait() for event in done))
    tally.seconds = time.perf_counter() - began
    for client in loops:
        client.wire.transport.close()
    return tally


async def read_back(port: int, ledger: Ledger, connections: int = 8) -> None:
    """Read every id that was written."""
    keys = sorted(ledger.expected)
    await asyncio.gather(*(_read_all(port, ledger, keys[start::connections]) for start in range(connections)))


async def _read_all(port: int, ledger: Ledger, keys: Sequence[int]) -> None:
    answers: asyncio.Queue[tuple[int, bytes]] = asyncio.Queue()
    wire = responses(lambda *answer: answers.put_nowait(answer), lambda: answers.put_nowait((0, b"")))
    await asyncio.get_running_loop().create_connection(lambda: wire, "127.0.0.1", port)
    for key in keys:
        wire.transport.write(prepared("GET", f"/v1/keywords/{key}"))
        status, body = await answers.get()
        if status not in (200, 404):
            raise RbegirError(f"reading {key} back gave status {status}")
        ledger.read(key, json.loads(body)["text"] if status == 200 else None)
    wire.transport.close()


async def replay() -> None:
    """The fastest possible server: every response has the file named on the command line as its body."""
    body = Path(sys.argv[1]).read_bytes()
    head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    answer = head.encode() + body

    def connection() -> Messages:
        made = Messages(lambda message, body: made.transport.write(answer))
        return made

    server = await asyncio.get_running_loop().create_server(connection, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(replay())
