"""A service under mixed load for an hour, and everything that goes wrong in a year.

    clients    writers that know what was acknowledged (`ledger.py`): keywords put, changed in an attribute,
               deleted by id and by filter; searchers and readers that check every answer against it, with a
               filter per query, phrases, tenants, items, ranges and pages; slow clients that never finish a
               request
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
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from rbegir.index.store import Index
from torture.ledger import WORDS, Glimpse, Ledger, text_of, version_of
from torture.limits import Limits
from torture.server import BASE, Disk, Server, base_text, item_of, make_index, shop_of

IDS = range(1_000_000, 1_000_600)  # keywords that come and go
WRITERS, SEARCHERS = 2, 2
WRITE_EVERY, SEARCH_EVERY = 0.6, 0.25  # seconds, on average, of one client
CHAOS_EVERY = (8.0, 20.0)  # seconds
DEADLINE = 45.0  # the service promises 30, and the machine has other work
ABROAD = {"accept": "application/json"}

State = tuple[int, int]  # of a keyword: the version of its text, and its price
Row = dict[str, Any]  # a keyword or hit as JSON


@dataclass
class Change:
    """A request that changes keywords, and what is known of them when it is acknowledged."""

    method: str
    body: dict[str, Any]
    after: dict[int, set[State | None]]
    counted: str  # the field of the answer that says how many keywords it changed
    least: int  # what it may say
    most: int


@dataclass
class Wish:
    """What must hold for the hits of one query."""

    test: Callable[[Row], bool] = lambda hit: True
    only: int | None = None  # the one keyword that may be found, and must be if it is there


@dataclass
class Question:
    body: dict[str, Any]
    wishes: list[Wish] = field(default_factory=list)  # of each query


class Soak:
    """One run; every coroutine adds to the same counts."""

    def __init__(self, folder: Path, limits: Limits, least: int = 0) -> None:
        self.disk = Disk(folder)
        self.server = Server(make_index(self.disk.path, tenant="shop"), folder)
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
            make = self.chance.choices((self._put, self._patch, self._delete, self._sweep), (5, 3, 3, 1))[0]
            change = make(keys)
            for key, states in change.after.items():
                for state in states:
                    self.ledger.begin(key, state)
            full = self.full
            work = client.request(change.method, "/v1/keywords", json=change.body)
            answer = await self._ask("write", work)
            if answer is not None and answer.status_code == 200:
                for key, states in change.after.items():
                    self.ledger.settle(key, states)
                said = answer.json()[change.counted]
                right = change.least <= said <= change.most
                self._hold(
                    right, f"{change.body} has {change.counted} {said}, not {change.least} to {change.most}"
                )
                self.counts["keywords acknowledged"] += len(change.after)
                self.counts[f"{change.counted} keywords"] += said
            elif answer is not None:
                self._hold(False, f"a change was refused with {answer.status_code}: {answer.text[:300]}")
            elif full:
                self.counts["writes refused while the disk was full"] += 1

    def _put(self, keys: list[int]) -> Change:
        rows: list[Row] = []
        after: dict[int, set[State | None]] = {}
        for key in keys:
            self.versions[key] += 1
            state = self.versions[key], self.versions[key] % 100
            attributes = {"price": state[1], "shop": shop_of(key), "item": item_of(key)}
            rows.append({"id": key, "text": text_of(key, state[0]), "attributes": attributes})
            after[key] = {state}
        return Change("POST", {"keywords": rows}, after, "upserted", len(keys), len(keys))

    def _patch(self, keys: list[int]) -> Change:
        """New prices for keywords that are there; if none certainly is, new keywords."""
        rows: list[Row] = []
        after: dict[int, set[State | None]] = {}
        for key in keys:
            match list(self.ledger.now(key)):
                case [(int(version), int(price))]:
                    price = (price + 7) % 100
                    rows.append({"id": key, "attributes": {"price": price}})
                    after[key] = {(version, price)}
        if not rows:
            return self._put(keys)
        return Change("PATCH", {"keywords": rows}, after, "updated", len(rows), len(rows))

    def _delete(self, keys: list[int]) -> Change:
        sure = sum(None not in self.ledger.now(key) for key in keys)
        there = sum(self.ledger.now(key) != {None} for key in keys)
        return Change("DELETE", {"ids": keys}, {key: {None} for key in keys}, "deleted", sure, there)

    def _sweep(self, keys: list[int]) -> Change:
        """Delete by filter, among keywords that only this writer changes."""
        shop, limit = shop_of(keys[0]), self.chance.randint(1, 20)
        after: dict[int, set[State | None]] = {}
        sure = 0
        for key in IDS:
            states: Any = self.ledger.now(key)
            goes = [state is not None and state[1] < limit for state in states]
            if shop_of(key) == shop and any(goes):
                after[key] = {None if gone else state for gone, state in zip(goes, states, strict=True)}
                sure += all(goes)
        where = f"id >= {IDS.start} and shop = '{shop}' and price < {limit}"
        return Change("DELETE", {"where": where}, after, "deleted", sure, len(after))

    async def _search(self, client: httpx.AsyncClient) -> None:
        while self._going():
            await self._pause(SEARCH_EVERY)
            question, last = self._question(), None
            for _ in range(self.chance.choice((2, 3)) if question.body.get("rerank") is False else 1):
                before = self.ledger.glimpses()
                answer = await self._ask("search", client.post("/v1/search", json=question.body))
                if answer is None:
                    break
                self._hold(answer.status_code == 200, f"a search was refused: {answer.text[:300]}")
                if self.full:
                    self.counts["searches answered while the disk was full"] += 1
                results = answer.json().get("results", ())
                self._check_results(question, results, before)
                if last is not None:
                    self._check_page(last, results)
                last, question.body["after"] = results, answer.json().get("cursor")

    def _question(self) -> Question:
        """A search of any kind, and what its hits must be."""
        queries = [self._text() for _ in range(self.chance.choice((1, 1, 3)))]
        body: dict[str, Any] = {"queries": queries, "k": self.chance.choice((1, 10, 50))}
        question = Question(body, [Wish() for _ in queries])
        kind = self.chance.choice(
            ("plain", "where", "where each", "must each", "range", "tenant", "item", "pages", "paper")
        )
        self.counts[f"searches: {kind}"] += 1
        if kind == "where":
            body["where"], wish = self._where()
            question.wishes = [wish] * len(queries)
        elif kind in ("where each", "must each"):
            each = [self._where() if kind == "where each" else self._must() for _ in queries]
            body[kind.split()[0]] = [given for given, _ in each]
            question.wishes = [wish for _, wish in each]
        elif kind == "range":
            body |= {"k": None, "min_score": self.chance.choice((0.0, 0.3)), "where": f"id >= {IDS.start}"}
        elif kind == "tenant":
            body["tenant"] = shop_of(self.chance.randrange(8))
        elif kind == "item":
            body["item"] = "item"
        elif kind == "pages":
            body["rerank"] = False
        elif kind == "paper":
            body["mode"] = "paper"
        return question

    def _where(self) -> tuple[str | None, Wish]:
        price, key = self.chance.randint(1, 99), self.chance.choice((*IDS, *range(len(IDS))))
        shop = shop_of(key)
        return self.chance.choice(
            (
                (None, Wish()),
                (f"price < {price}", Wish(lambda hit: bool(hit["attributes"]["price"] < price))),
                (f"shop = '{shop}'", Wish(lambda hit: bool(hit["attributes"]["shop"] == shop))),
                (f"id = {key}", Wish(only=key)),
            )
        )

    def _must(self) -> tuple[str | None, Wish]:
        key, word = self.chance.choice((*IDS, *range(len(IDS)))), self.chance.choice(WORDS)
        name = f"item {key} version" if key in IDS else f"base {key}"
        return self.chance.choice(
            ((None, Wish()), (word.upper(), Wish(lambda hit: word in hit["text"])), (name, Wish(only=key)))
        )

    def _text(self) -> str:
        key = self.chance.choice(IDS)
        return self.chance.choice(
            (
                base_text(self.chance.randrange(BASE)),
                text_of(key, self.versions[key]),
                self.chance.choice(WORDS),
            )
        )

    def _check_results(self, question: Question, results: list[Any], before: dict[int, Glimpse]) -> None:
        body = question.body
        self._hold(len(results) == len(question.wishes), f"{len(results)} results for {body}")
        for wish, result in zip(question.wishes, results, strict=False):
            hits = result["hits"]
            for hit in hits:
                self._check_row(hit["id"], hit, before.get(hit["id"]))
                self._hold(wish.test(hit), f"{hit} does not pass the filters of {body}")
                of_tenant = body.get("tenant") in (None, shop_of(hit["id"]))
                self._hold(of_tenant, f"{hit} is not of the tenant {body.get('tenant')}")
                enough = hit["code_score"] >= (body.get("min_score") or -1)
                self._hold(enough, f"{hit} does not reach the score of {body}")
            self.counts["hits checked"] += len(hits)
            self._hold(len(hits) <= (body["k"] or len(IDS)), f"too many hits for {body}")
            ids, scores = [hit["id"] for hit in hits], [hit["score"] for hit in hits]
            items = [hit["attributes"]["item"] for hit in hits] if "item" in body else ids
            self._hold(len({*ids}) == len(ids) == len({*items}), f"{ids} are not different for {body}")
            self._hold(scores == sorted(scores, reverse=True), f"the scores {scores} do not fall for {body}")
            if wish.only is not None:
                key = wish.only
                possible = self.ledger.possible(key, before[key]) if key in before else {key}
                sizes = {int(state is not None) for state in possible}
                right = {*ids} <= {key} and len(ids) in sizes
                self._hold(right, f"{body} found {ids}, possible were {sizes} hits of {key}")
                self.counts["answers checked to be complete"] += 1

    def _check_page(self, last: list[Any], results: list[Any]) -> None:
        """A page continues behind the last one: keywords that nobody changes do not come again."""
        for one, other in zip(last, results, strict=True):
            there, here = ([hit["id"] for hit in page["hits"] if hit["id"] < BASE] for page in (one, other))
            self._hold(not {*there} & {*here}, f"{here} was on the page before: {there}")
            if one["hits"] and other["hits"]:
                falls = other["hits"][0]["code_score"] <= one["hits"][-1]["code_score"]
                self._hold(falls, f"a page begins with {other['hits'][0]} after {one['hits'][-1]}")
        self.counts["pages continued"] += 1

    def _check_row(self, key: int, row: Row | None, since: Glimpse | None) -> None:
        """A keyword, or None for one that is not there; `since` is of those that come and go."""
        try:
            if since is None:
                assert row is not None
                attributes = {"price": key % 100, "shop": shop_of(key), "item": item_of(key)}
                right = 0 <= key < BASE and row["text"] == base_text(key) and row["attributes"] == attributes
                self._hold(right, f"keyword {key} is {row}")
                return
            state: State | None = None
            if row is not None:
                own = row["attributes"]["shop"], row["attributes"]["item"]
                self._hold(own == (shop_of(key), item_of(key)), f"keyword {key} is {row}")
                state = version_of(key, row["text"]), row["attributes"]["price"]
        except (ValueError, IndexError, KeyError, TypeError):
            self._hold(False, f"keyword {key} is {row}, which nobody wrote")
            return
        possible = self.ledger.possible(key, since)
        self._hold(state in possible, f"keyword {key} is at {state}, possible are {set(possible)}")

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
        self._check_row(key, answer.json() if answer.status_code == 200 else None, since)
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
                state = None if row is None else (version_of(key, row["text"]), row["price"])
                self._hold(state in self.ledger.now(key), f"on disk keyword {key} is at {state}")
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
