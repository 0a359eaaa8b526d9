"""Micro-batching: what arrives while one scan runs is scored together in the next one.

A scan reads every keyword, and the kernels score a batch for little more than one query, so waiting requests
should share a scan. Nothing waits on purpose: an idle service starts at once with what it has, and a busy one
takes all that has gathered meanwhile, up to `max_batch` queries.

Requests may share a scan if they have the same filter and mode; a scan is made with the largest k of its
requests and each is given its own first k, which is the same result, because hits have one total order. So
that ten hits do not wait for ten thousand, only requests with k in the same power of four are put together.
A search by fewer planes reports a recall that is pooled over its batch, so each request has its own.

Fair: groups that cannot share a scan take turns. Inside a group the places of a scan are dealt out evenly
among the waiting requests, the oldest first, so that a request of a thousand queries is spread over several
scans and one of a single query is in the next.

Bounded: beyond `max_waiting` queries `submit` refuses. A request that is cancelled leaves the queue.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from rbegir.codes.planes import Codes
from rbegir.errors import InputError, RbegirError
from rbegir.index.query import Filters, SearchOptions, watching
from rbegir.search.hits import Hits
from rbegir.serve.engine import Engine
from rbegir.serve.metrics import Metrics
from rbegir.serve.problems import overloaded

Values = npt.NDArray[np.int16]


@dataclass(frozen=True)
class Search:
    """What one request asks: texts, or values [queries, n] of codes made elsewhere."""

    texts: list[str] | None
    values: Values | None
    k: int
    where: str | None = None
    allow: tuple[int | str, ...] | None = None
    deny: tuple[int | str, ...] | None = None
    mode: str = "exact"
    planes: int | None = None

    @property
    def count(self) -> int:
        return len(self.texts if self.texts is not None else self.values)  # type: ignore[arg-type]

    def options(self) -> SearchOptions:
        return {
            "where": self.where,
            "allow": self.allow,
            "deny": self.deny,
            "mode": self.mode,
            "planes": self.planes,
        }

    def filters(self) -> Filters:
        """Which keywords may be found."""
        return {"where": self.where, "allow": self.allow, "deny": self.deny}


@dataclass(frozen=True)
class Piece:
    """Consecutive queries of a request, answered by one scan: its rows start … start + count."""

    hits: Hits
    values: Values  # [queries of the scan, n]
    start: int
    count: int
    k: int


@dataclass(eq=False)
class Job:
    search: Search
    group: Hashable
    future: asyncio.Future[list[Piece]]
    arrived: float
    taken: int = 0  # queries given to scans so far
    pieces: list[Piece] = field(default_factory=list)


@dataclass(frozen=True)
class _Share:
    """The part of a request that is in a batch."""

    job: Job
    start: int
    count: int

    def values(self) -> Values:
        given = self.job.search.values
        assert given is not None
        return given[self.start : self.start + self.count]

    def texts(self) -> list[str]:
        given = self.job.search.texts
        assert given is not None
        return given[self.start : self.start + self.count]


class Batcher:
    """The queue of searches and the one loop that empties it."""

    def __init__(self, engine: Engine, metrics: Metrics, *, max_batch: int, max_waiting: int) -> None:
        self._engine = engine
        self._metrics = metrics
        self._max_batch = max_batch
        self._max_waiting = max_waiting
        self._groups: dict[Hashable, dict[Job, None]] = {}  # in turn; jobs by arrival
        self._waiting = 0  # queries
        self._arrival = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, "rbegir-scan")
        self._loop: asyncio.Task[None] | None = None
        self._query_seconds = 0.001  # of late; for Retry-After

    @property
    def waiting(self) -> int:
        """Queries that are not in a scan yet."""
        return self._waiting

    def start(self) -> None:
        self._loop = asyncio.create_task(self._run(), name="rbegir-batcher")

    async def stop(self) -> None:
        """Stop after the scan that is running. What still waits is cancelled."""
        if self._loop is not None:
            self._loop.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._loop
        for jobs in self._groups.values():
            for job in jobs:
                job.future.cancel()
        await asyncio.to_thread(self._thread.shutdown)

    def submit(self, search: Search) -> Job:
        """Queue a request; its `future` will hold the hits, in pieces. Always `forget` it in the end."""
        if self._waiting and self._waiting + search.count > self._max_waiting:
            raise overloaded(f"{self._waiting} queries are waiting", self._waiting * self._query_seconds)
        job = Job(
            search, self._group(search), asyncio.get_running_loop().create_future(), time.perf_counter()
        )
        self._groups.setdefault(job.group, {})[job] = None
        self._waiting += search.count
        self._arrival.set()
        return job

    def _group(self, search: Search) -> Hashable:
        if search.planes is not None:
            return object()
        size = search.k if search.mode == "paper" else (search.k - 1).bit_length() + 1 >> 1
        return search.mode, *search.filters().values(), size

    def forget(self, job: Job) -> None:
        """Take what is left of a request out of the queue."""
        jobs = self._groups.get(job.group)
        if jobs is not None and job in jobs:
            del jobs[job]
            self._waiting -= job.search.count - job.taken
            if not jobs:
                del self._groups[job.group]

    async def _run(self) -> None:
        while True:
            if not self._groups:
                self._arrival.clear()
                await self._arrival.wait()
            batch = self._take()
            began = time.perf_counter()
            for share in batch:
                if not share.start:
                    self._metrics.search_stage["queue"].observe(began - share.job.arrived)
            answers = await self._answers(batch)
            queries = sum(share.count for share in batch)
            self._query_seconds += ((time.perf_counter() - began) / queries - self._query_seconds) / 8
            for share, answer in zip(batch, answers, strict=True):
                self._deliver(share.job, answer)

    async def _answers(self, batch: list[_Share]) -> list[Piece | BaseException]:
        loop = asyncio.get_running_loop()
        try:
            return await asyncio.shield(loop.run_in_executor(self._thread, self._answer, batch))
        except Exception as error:  # the loop must go on for the others
            return [error] * len(batch)

    def _take(self) -> list[_Share]:
        """The next batch: of the group whose turn it is, places dealt out evenly, the oldest first."""
        group = next(iter(self._groups))
        jobs = self._groups.pop(group)
        wanted = [job.search.count - job.taken for job in jobs]
        batch: list[_Share] = []
        for job, count in zip(list(jobs), deal(wanted, self._max_batch), strict=True):
            if not count:
                break
            batch.append(_Share(job, job.taken, count))
            job.taken += count
            if job.taken == job.search.count:
                del jobs[job]
        self._waiting -= sum(share.count for share in batch)
        if jobs:
            self._groups[group] = jobs  # at the end: the other groups come first
        return batch

    def _deliver(self, job: Job, answer: Piece | BaseException) -> None:
        if job.future.done():
            return
        if isinstance(answer, BaseException):
            job.future.set_exception(answer)
            return
        job.pieces.append(answer)
        if sum(piece.count for piece in job.pieces) == job.search.count:
            job.future.set_result(job.pieces)

    # ---- in the thread ----

    def _answer(self, batch: list[_Share]) -> list[Piece | BaseException]:
        """One answer a share; whatever goes wrong is the answer of those whom it concerns."""
        answers: list[Piece | BaseException] = [InputError("not answered")] * len(batch)
        began = time.perf_counter()
        values: list[Values] = []
        good: list[int] = []
        for number, encoded in enumerate(self._values(batch)):
            if isinstance(encoded, BaseException):
                answers[number] = encoded
            else:
                good.append(number)
                values.append(encoded)
        if any(share.job.search.texts is not None for share in batch):
            self._metrics.search_stage["encode"].observe(time.perf_counter() - began)
        if not good:
            return answers
        joined = np.concatenate(values)  # [queries, n]
        k = max(batch[number].job.search.k for number in good)
        try:
            with watching(self._stopwatch()):
                hits = self._engine.search_codes(joined, k, **batch[good[0]].job.search.options())
        except Exception as error:  # the answer of every request in the batch
            for number in good:
                answers[number] = error
            return answers
        self._metrics.batch_queries.observe(len(joined))
        start = 0
        for number, part in zip(good, values, strict=True):
            answers[number] = Piece(hits, joined, start, len(part), batch[number].job.search.k)
            start += len(part)
        return answers

    def _stopwatch(self) -> Callable[[str], None]:
        """Observes the time between the stages of one search."""
        last = time.perf_counter()

        def lap(stage: str) -> None:
            nonlocal last
            now = time.perf_counter()
            self._metrics.search_stage[stage].observe(now - last)
            last = now

        return lap

    def _values(self, batch: list[_Share]) -> list[Values | BaseException]:
        """The values of each share; texts are encoded together."""
        found: dict[int, Values | BaseException] = {}
        texts: list[int] = []
        for number, share in enumerate(batch):
            if share.job.search.texts is None:
                found[number] = share.values()
            else:
                texts.append(number)
        found.update(self._encode(batch, texts))
        return [found[number] for number in range(len(batch))]

    def _encode(self, batch: list[_Share], numbers: list[int]) -> dict[int, Values | BaseException]:
        """Encode the texts of these shares; if one is refused, halves are tried, so that it fails alone."""
        if not numbers:
            return {}
        try:
            texts = [text for number in numbers for text in batch[number].texts()]
            codes: Codes = self._engine.model.encode_queries(texts)
        except RbegirError as error:
            if len(numbers) == 1:
                return {numbers[0]: self._refusal(batch[numbers[0]], error)}
            half = len(numbers) // 2
            return {**self._encode(batch, numbers[:half]), **self._encode(batch, numbers[half:])}
        except Exception as error:
            return dict.fromkeys(numbers, error)
        values = codes.values()  # [queries, n]
        ends = np.cumsum([batch[number].count for number in numbers])
        return dict(zip(numbers, np.split(values, ends[:-1]), strict=True))

    def _refusal(self, share: _Share, error: RbegirError) -> RbegirError:
        """The error in terms of the whole request, whose positions count from its first text."""
        if share.start:
            try:
                self._engine.model.encode_queries(share.job.search.texts or [])
            except RbegirError as whole:
                return whole
        return error


def deal(wanted: list[int], places: int) -> list[int]:
    """Places dealt out evenly: whoever gets fewer than wanted gets at most one fewer than anyone else.

    What does not divide evenly goes to the oldest, who come first.
    """
    given = [0] * len(wanted)
    hungry = list(range(len(wanted)))
    while places and hungry:
        even = max(1, places // len(hungry))
        for number in hungry[:places]:  # fewer places than hungry ones: one for each of the oldest
            more = min(wanted[number] - given[number], even)
            given[number] += more
            places -= more
        hungry = [number for number in hungry if given[number] < wanted[number]]
    return given
