"""A load generator that checks every response: closed-loop clients and a ledger of writes.

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
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

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


async def receive(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """The head and the body of the next HTTP message."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = LENGTH.search(head)
    return head, await reader.readexactly(int(length[1]) if length else 0)


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


class LoadConnection:
    """One connection to the service, which checks every response and keeps the books."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, ledger: Ledger, tally: Tally
    ) -> None:
        self._reader, self.writer, self._ledger, self._tally = reader, writer, ledger, tally

    @classmethod
    async def open(cls, port: int, ledger: Ledger, tally: Tally) -> Self:
        return cls(*await asyncio.open_connection("127.0.0.1", port), ledger, tally)

    async def _ask(self, request: bytes) -> tuple[int, bytes, float, float]:
        """Status and body of a response, when the request was sent, and when the response was there."""
        sent = time.perf_counter()
        self.writer.write(request)
        head, body = await receive(self._reader)
        return int(head[9:12]), body, sent, time.perf_counter()

    async def search(self, request: bytes, k: int) -> None:
        status, body, sent, now = await self._ask(request)
        hits = body.count(b'"score":')
        if status != 200 or hits != k or not body.startswith(b'{"results":[{"query":'):
            self._tally.errors[f"search: {status}, {hits} hits"] += 1
            return
        self._tally.search_ms.append((now - sent) * 1e3)
        self._tally.answer = body
        self._ledger.found([int(key) for key in OWN_IDS.findall(body)], sent)

    async def write(self, key: int, text: str | None) -> bool:
        """Upsert a keyword, or delete it if there is no text; whether it was acknowledged."""
        if text is None:
            request = prepared("DELETE", "/v1/keywords", json.dumps({"ids": [key]}).encode())
        else:
            keyword = {"id": key, "text": text}
            request = prepared("POST", "/v1/keywords", json.dumps({"keywords": [keyword]}).encode())
        self._ledger.sent(key, text, time.perf_counter())
        status, _, sent, now = await self._ask(request)
        if status != 200:
            self._tally.errors[f"write: {status}"] += 1
            return False
        self._tally.write_ms.append((now - sent) * 1e3)
        self._ledger.acknowledge(key, text, now)
        return True

    async def read(self, key: int) -> None:
        status, body, sent, now = await self._ask(prepared("GET", f"/v1/keywords/{key}"))
        self._tally.read_ms.append((now - sent) * 1e3)
        if status not in (200, 404):
            self._tally.errors[f"read: {status}"] += 1
            return
        self._ledger.read(key, json.loads(body)["text"] if status == 200 else None)


async def _loop(
    wire: LoadConnection, number: int, mix: Mix, ledger: Ledger, tally: Tally, until: float, seed: int
) -> None:
    """One client: searches, and writes of ids of its own, one after the other."""
    chance = random.Random(seed * 1000 + number)
    mine = range(FIRST_ID + number * IDS_PER_CLIENT, FIRST_ID + (number + 1) * IDS_PER_CLIENT)
    own = [key for key in ledger.expected if key in mine]
    fresh = mine.start + sum(key in mine for key in ledger.first_sent)
    try:
        while time.perf_counter() < until:
            if chance.random() >= mix.writes:
                await wire.search(chance.choice(mix.searches), mix.k)
                continue
            kind = chance.random()
            text: str | None = f"{chance.choice(mix.texts)} {chance.randrange(10**9)}"
            if kind < 0.6 or not own:
                key = fresh
                fresh += 1
                own.append(key)
            else:
                key = chance.choice(own)
                text = text if kind < 0.8 else None
            if await wire.write(key, text) and chance.random() < READ_AFTER:
                await wire.read(key)
    except (OSError, asyncio.IncompleteReadError):
        tally.errors["connection lost"] += 1


async def drive(port: int, mix: Mix, ledger: Ledger, *, clients: int, seconds: float, seed: int) -> Tally:
    """Load the service on this port of the loopback interface for `seconds`."""
    tally = Tally()
    began = time.perf_counter()
    wires = [await LoadConnection.open(port, ledger, tally) for _ in range(clients)]
    loops = (
        _loop(wire, number, mix, ledger, tally, began + seconds, seed) for number, wire in enumerate(wires)
    )
    await asyncio.gather(*loops)
    tally.seconds = time.perf_counter() - began
    for wire in wires:
        wire.writer.close()
    return tally


async def read_back(port: int, ledger: Ledger, connections: int = 8) -> None:
    """Read every id that was written."""
    keys, tally = sorted(ledger.expected), Tally()

    async def read_some(start: int) -> None:
        wire = await LoadConnection.open(port, ledger, tally)
        for key in keys[start::connections]:
            await wire.read(key)
        wire.writer.close()

    await asyncio.gather(*(read_some(start) for start in range(connections)))
    if tally.errors:
        raise RbegirError(f"reading back what was written failed: {dict(tally.errors)}")


async def replay() -> None:
    """The fastest possible server: every response has the file named on the command line as its body."""
    body = Path(sys.argv[1]).read_bytes()
    head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            while await receive(reader):
                writer.write(head.encode() + body)

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(replay())
