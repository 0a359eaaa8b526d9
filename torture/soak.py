"""A service under mixed load for an hour, and everything that goes wrong in a year.

    clients    writers that know what was acknowledged (`ledger.py`), searchers and readers that check every
               answer against it, slow clients that never finish a request
    chaos      first half: kill −9 and restart, a polite stop now and then. All the time: the disk is full for
               some seconds, the clock jumps by hours or years, a compaction is asked for
    calm       second half without kills, so that memory can be watched in one process

Promises: no acknowledged change is lost and nothing is there that nobody wrote (after every restart, in
every answer, and at the end in the index itself, which verifies); every request is answered, refused or
cut off within its deadline; searches go on while the disk is full; memory stays flat.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import shutil
import signal
import statistics
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from rbegir.index.store import Index
from torture.ledger import WORDS, Glimpse, Ledger, text_of, version_of
from torture.limits import Limits
from torture.server import BASE, Disk, Server, base_text, make_index

IDS = range(1_000_000, 1_000_600)  # keywords that come and go
WRITERS, SEARCHERS = 2, 2
WRITE_EVERY, SEARCH_EVERY = 0.6, 0.25  # seconds, on average, of one client
CHAOS_EVERY = (8.0, 20.0)  # seconds
DEADLINE = 45.0  # the service promises 30, and the machine has other work
ABROAD = {"accept": "application/json"}


class Soak:
    """One run; every coroutine adds to the same counts."""

    def __init__(self, folder: Path, limits: Limits, least: int = 0) -> None:
        self.disk = Disk(folder)
        self.server = Server(make_index(self.disk.path), folder)
        self.chance = random.Random(limits.seed)
        self.seconds, self.least = limits.seconds, least
        self.end = self.half = 0.0  # set when the service is up
        self.ledger = Ledger(IDS)
        self.versions = dict.fromkeys(IDS, 0)
        self.counts: Counter[str] = Counter()
        self.latency: dict[str, list[float]] = {"search": [], "get": [], "write": []}
        self.memory: list[tuple[float, int]] = []  # (seconds since the last start, bytes), calm half only
        self.losses: list[str] = []
        self.up = asyncio.Event()
        self.full = False

    async def run(self) -> None:
        self.server.start()
        await asyncio.to_thread(self.server.wait_ready)
        self.end, self.half = time.monotonic() + self.seconds, time.monotonic() + self.seconds / 2
        self.up.set()
        async with httpx.AsyncClient(base_url=self.server.url, timeout=DEADLINE, headers=ABROAD) as client:
            tasks = [asyncio.create_task(self._write(client, n)) for n in range(WRITERS)]
            tasks += [asyncio.create_task(self._search(client)) for _ in range(SEARCHERS)]
            tasks += [asyncio.create_task(work) for work in (self._get(client), self._slow(), self._watch())]
            tasks.append(asyncio.create_task(self._chaos(client)))
            await asyncio.gather(*tasks)
            await self._check_all(client, "at the end")
        status = await asyncio.to_thread(self.server.stop, signal.SIGTERM)
        self._hold(status == 0, f"a polite stop ended with {status}: {self.server.tail()}")
        self._check_index()

    def _hold(self, kept: bool, what: str) -> None:
        if not kept:
            self.losses.append(what)

    def _going(self) -> bool:
        """Until the time is up and enough was answered, or something is lost."""
        answered = min(self.counts["keywords acknowledged"], self.counts["hits checked"])
        return not self.losses and (time.monotonic() < self.end or answered < self.least)

    async def _pause(self, mean: float) -> None:
        await asyncio.sleep(min(self.chance.expovariate(1 / mean), 5 * mean))
        await self.up.wait()

    async def _ask(self, kind: str, work: Any) -> httpx.Response | None:
        """An answer with a status below 500, or None: refused, or the service is gone."""
        start = time.monotonic()
        lives = self.server.starts
        try:
            answer: httpx.Response = await work
        except httpx.TimeoutException:
            self._hold(
                lives != self.server.starts or not self.up.is_set(), f"a {kind} got no answer in {DEADLINE} s"
            )
            return None
        except httpx.HTTPError:
            self.counts[f"{kind} cut off"] += 1
            return None
        self.latency[kind].append(time.monotonic() - start)
        if answer.status_code >= 500:
            self.counts[f"{kind} refused {answer.status_code}"] += 1
            self._hold(kind == "write" or answer.status_code == 503, f"a {kind} failed: {answer.text[:300]}")
            return None
        self.counts[f"{kind} answered"] += 1
        return answer

    # ---- clients ----

    async def _write(self, client: httpx.AsyncClient, number: int) -> None:
        own = IDS[number::WRITERS]
        while self._going():
            await self._pause(WRITE_EVERY)
            keys = self.chance.sample(own, self.chance.choice((1, 1, 2, 5, 20)))
            delete = self.chance.random() < 0.3
            changes: dict[int, int | None] = {}
            for key in keys:
                self.versions[key] += 1
                changes[key] = None if delete else self.versions[key]
                self.ledger.begin(key, changes[key])
            if delete:
                work = client.request("DELETE", "/v1/keywords", json={"ids": keys})
            else:
                rows = [
                    {"id": key, "text": text_of(key, version), "attributes": {"price": version % 100}}
                    for key, version in changes.items()
                    if version is not None
                ]
                work = client.post("/v1/keywords", json={"keywords": rows})
            full = self.full
            answer = await self._ask("write", work)
            if answer is not None and answer.status_code == 200:
                for key, version in changes.items():
                    self.ledger.acknowledge(key, version)
                self.counts["keywords acknowledged"] += len(keys)
            elif answer is not None:
                self._hold(False, f"a change was refused with {answer.status_code}: {answer.text[:300]}")
            elif full:
                self.counts["writes refused while the disk was full"] += 1

    async def _search(self, client: httpx.AsyncClient) -> None:
        while self._going():
            await self._pause(SEARCH_EVERY)
            body: dict[str, Any] = {
                "queries": [self._question() for _ in range(self.chance.choice((1, 1, 3)))],
                "k": self.chance.choice((1, 10, 50)),
            }
            if self.chance.random() < 0.3:
                body["where"] = f"price < {self.chance.randint(1, 99)}"
            if self.chance.random() < 0.1:
                body["mode"] = "paper"
            before = self.ledger.glimpses()
            answer = await self._ask("search", client.post("/v1/search", json=body))
            if answer is None:
                continue
            self._hold(answer.status_code == 200, f"a search was refused: {answer.text[:300]}")
            if self.full:
                self.counts["searches answered while the disk was full"] += 1
            for result in answer.json().get("results", ()):
                self._hold(len(result["hits"]) <= body["k"], "too many hits")
                for hit in result["hits"]:
                    self._check_hit(hit, before)

    def _question(self) -> str:
        key = self.chance.choice(IDS)
        return self.chance.choice(
            (
                base_text(self.chance.randrange(BASE)),
                text_of(key, self.versions[key]),
                self.chance.choice(WORDS),
            )
        )

    def _check_hit(self, hit: dict[str, Any], before: dict[int, Glimpse]) -> None:
        key, text = hit["id"], hit["text"]
        self.counts["hits checked"] += 1
        if key in before:
            self._check_version(key, text, before[key])
        else:
            self._hold(0 <= key < BASE and text == base_text(key), f"keyword {key} says {text!r}")

    def _check_version(self, key: int, text: str | None, since: Glimpse) -> None:
        possible = self.ledger.possible(key, since)
        try:
            version = None if text is None else version_of(key, text)
        except (ValueError, IndexError):
            self._hold(False, f"keyword {key} says {text!r}, which nobody wrote")
            return
        self._hold(
            version in possible, f"keyword {key} is at version {version}, possible are {set(possible)}"
        )

    async def _get(self, client: httpx.AsyncClient) -> None:
        while self._going():
            await self._pause(0.3)
            await self._check_one(client, self.chance.choice(IDS))

    async def _check_one(self, client: httpx.AsyncClient, key: int) -> bool:
        since = self.ledger.glimpse(key)
        answer = await self._ask("get", client.get(f"/v1/keywords/{key}"))
        if answer is None:
            return False
        self._hold(answer.status_code in (200, 404), f"a look-up was refused: {answer.text[:300]}")
        self._check_version(key, answer.json()["text"] if answer.status_code == 200 else None, since)
        return True

    async def _slow(self) -> None:
        """Connections that send a byte now and then; the service must not wait for them for ever."""
        head = b"POST /v1/search HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 400\r\n\r\n" + b"x" * 100
        while self._going():
            await self._pause(5.0)
            lives = self.server.starts
            start = time.monotonic()
            with contextlib.suppress(OSError):
                reader, writer = await asyncio.open_connection("127.0.0.1", self.server.port)
                part = self.chance.randint(0, len(head))
                writer.write(head[:part])
                self.counts["slow clients"] += 1
                closed = asyncio.ensure_future(reader.read())
                while not closed.done() and self._going():
                    await asyncio.wait([closed], timeout=1.0)
                    writer.write(head[part : part + 1])
                    part = min(part + 1, len(head))
                    left = lives != self.server.starts or not self.up.is_set()
                    late = not closed.done() and time.monotonic() > start + 2 * DEADLINE
                    self._hold(left or not late, "a client that never finishes its request was kept")
                closed.cancel()
                writer.close()

    # ---- what goes wrong ----

    async def _chaos(self, client: httpx.AsyncClient) -> None:
        deck = ["kill"]
        while self._going():
            await asyncio.sleep(self.chance.uniform(*CHAOS_EVERY))
            if not deck:
                deck = ["full", "clock", "compact"]
                deck += ["kill"] * 3 + ["term"] if time.monotonic() < self.half else []
                self.chance.shuffle(deck)
            match deck.pop():
                case "full" if self.disk.own:
                    await self._fill(client)
                case "clock" if self.server.has_clock:
                    self.server.jump(
                        self.chance.choice((-86_400 * 365, -3600, 0, 3600, 86_400, 86_400 * 3650))
                    )
                    self.counts["clock jumps"] += 1
                case "compact":
                    await self._ask("write", client.post("/v1/index:compact"))
                    self.counts["compactions asked for"] += 1
                case "kill":
                    await self._restart(client, signal.SIGKILL)
                case "term":
                    await self._restart(client, signal.SIGTERM)

    async def _fill(self, client: httpx.AsyncClient) -> None:
        await asyncio.to_thread(self.disk.fill)
        self.full = True
        await asyncio.sleep(self.chance.uniform(2, 6))
        self.full = False
        self.disk.free()
        self.counts["times the disk was full"] += 1

    async def _restart(self, client: httpx.AsyncClient, how: signal.Signals) -> None:
        await asyncio.sleep(self.chance.uniform(0, 0.5))
        self.up.clear()
        status = await asyncio.to_thread(self.server.stop, how)
        self._hold(
            status == (-9 if how == signal.SIGKILL else 0), f"stopped with {status}: {self.server.tail()}"
        )
        self.counts["kills" if how == signal.SIGKILL else "polite stops"] += 1
        self.server.start()
        await asyncio.to_thread(self.server.wait_ready)
        await self._check_all(client, "after a restart")
        self.up.set()

    async def _check_all(self, client: httpx.AsyncClient, when: str) -> None:
        """Every keyword that comes and goes, one by one."""
        for key in IDS[:: 1 if when == "at the end" else 5]:
            if not await self._check_one(client, key):
                self._hold(False, f"{when} keyword {key} cannot be read: {self.server.tail()}")
                return
        self.counts["full checks"] += 1

    async def _watch(self) -> None:
        began, lives = time.monotonic(), 0
        while self._going():
            await asyncio.sleep(5)
            if self.server.starts != lives:
                began, lives = time.monotonic(), self.server.starts
            if self.up.is_set() and time.monotonic() > self.half:
                with contextlib.suppress(OSError):
                    self.memory.append((time.monotonic() - began, self.server.memory()))

    def _check_index(self) -> None:
        with Index.open(self.server.index, read_only=True) as index:
            index.verify()
            found = index.get(list(IDS))
            for key, row in zip(IDS, found, strict=True):
                version = None if row is None else version_of(key, row["text"])
                self._hold(version in self.ledger.now(key), f"on disk keyword {key} is at version {version}")
            there = sum(row is not None for row in found)
            self._hold(len(index) == BASE + there, f"{len(index)} keywords on disk, {BASE + there} expected")
            rows = index.get(list(range(BASE)))
            whole = all(row is not None and row["text"] == base_text(i) for i, row in enumerate(rows))
            self._hold(whole, "keywords that nobody changed are changed")

    def report(self) -> dict[str, Any]:
        grown = None
        if len(self.memory) >= 12:
            third = len(self.memory) // 3
            early = statistics.median(size for _, size in self.memory[third // 2 : third + third // 2])
            late = statistics.median(size for _, size in self.memory[-third:])
            grown = round(100 * (late / early - 1), 2)
        return {
            "disk_of_its_own": self.disk.own,
            "clock_of_its_own": self.server.has_clock,
            "counts": dict(sorted(self.counts.items())),
            "latency_ms": {kind: _spread(seconds) for kind, seconds in self.latency.items()},
            "memory": {
                "samples": len(self.memory),
                "most_mib": round(max((size for _, size in self.memory), default=0) / 2**20, 1),
                "grown_percent": grown,
            },
            "losses": len(self.losses),
            "first_losses": self.losses[:5],
        }


def _spread(seconds: list[float]) -> dict[str, float]:
    if not seconds:
        return {}
    at = {"p50": 0.5, "p99": 0.99, "p999": 0.999, "max": 1.0}
    found = 1000 * np.quantile(seconds, list(at.values()), method="lower")
    return dict(zip(at, found.round(1).tolist(), strict=True))


def run(limits: Limits, least: int = 0) -> dict[str, Any]:
    """For `limits.seconds`, and until `least` changes are acknowledged and hits checked."""
    folder = Path(tempfile.mkdtemp())
    soak = Soak(folder, limits, least)
    try:
        asyncio.run(soak.run())
    finally:
        soak.server.close()
        soak.disk.close()
        shutil.rmtree(folder)
    return soak.report()
