"""Micro-batching: searches that arrive during a scan are scored together by the next one.

A scan reads every keyword, and the kernels score a batch for little more than one query, so waiting requests
should share a scan. Nothing waits on purpose: an idle service starts at once with what it has, and a busy one
takes all that has gathered meanwhile, up to `max_batch` queries.

Requests may share a scan if all or none of them are reranked, and if they differ in k only
(`SearchRequest.share_key`). A scan is made with the largest k of its requests and each is given its own first
k, which is the same result, because hits have one total order. So that ten hits do not wait for ten thousand,
only requests with k in the same power of four share.

Fair: groups that cannot share a scan take turns. Inside a group the places of a scan are dealt out evenly
among the waiting requests, the oldest first, so that a request of a thousand queries is spread over several
scans and one of a single query is in the next.

Bounded: beyond `max_waiting` queries `submit` refuses. A request that is cancelled leaves the queue.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Hashable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from rbegir.codes.planes import Codes
from rbegir.errors import RbegirError
from rbegir.index.query import watching
from rbegir.search.hits import Hits
from rbegir.search.request import SearchRequest, k_group
from rbegir.serve.monitor import Metrics
from rbegir.serve.served import ServedIndex
from rbegir.serve.settings import Settings
from rbegir.wire.problems import overloaded

Values = npt.NDArray[np.int16]
Job = TypeVar("Job", bound=Any)  # has a `future`
Share = TypeVar("Share")


class BatchLoop(Generic[Job, Share]):
    """A queue of jobs, and a loop that takes one batch after the other from it to a thread.

    A subclass keeps the jobs: it lists them (`_queued`), takes the next batch out (`_take`) and does it
    (`_work`).
    """

    def __init__(self, thread: str) -> None:
        self.waiting = 0  # queries or keywords that are in no batch yet
        self._arrival = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, thread)
        self._loop: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._loop = asyncio.create_task(self._run(), name=type(self).__name__)

    async def stop(self) -> None:
        """Stop after the batch that is running. What still waits is cancelled: it was never acknowledged."""
        if self._loop is not None:
            self._loop.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._loop
        for job in self._queued():
            job.future.cancel()
        await asyncio.to_thread(self._thread.shutdown)

    async def _run(self) -> None:
        while True:
            if not any(True for _ in self._queued()):
                self._arrival.clear()
                await self._arrival.wait()
            await self._work(self._take())

    async def _in_thread(self, work: Callable[[list[Share]], list[Any]], batch: list[Share]) -> list[Any]:
        """One outcome per share of the batch; an exception is the outcome of all of them."""
        loop = asyncio.get_running_loop()
        try:
            return await asyncio.shield(loop.run_in_executor(self._thread, work, batch))
        except Exception as error:  # the loop must go on for the others
            return [error] * len(batch)

    def _queued(self) -> Iterable[Job]:
        raise NotImplementedError

    def _take(self) -> list[Share]:
        raise NotImplementedError

    async def _work(self, batch: list[Share]) -> None:
        raise NotImplementedError


@dataclass(frozen=True)
class Search:
    """One request: its options, and texts or vectors to encode, or the values [queries, n] of codes."""

    request: SearchRequest
    texts: list[str] | None = None
    vectors: npt.NDArray[np.float64] | None = None  # [queries, dims]
    values: Values | None = None

    @property
    def queries(self) -> Any:
        """The one that is given."""
        return next(given for given in (self.texts, self.vectors, self.values) if given is not None)

    @property
    def count(self) -> int:
        return len(self.queries)


@dataclass(frozen=True)
class BatchSlice:
    """Consecutive queries of a request, answered by one scan."""

    hits: Hits
    values: Values  # [queries, n]


@dataclass(eq=False)
class QueuedSearch:
    """A request in the queue, and what scans have found for it so far."""

    search: Search
    group: Hashable
    future: asyncio.Future[list[BatchSlice]]
    arrived: float
    taken: int = 0  # queries given to scans so far
    done: list[BatchSlice] = field(default_factory=list)


@dataclass(frozen=True)
class _Share:
    """The part of a request that is in a batch."""

    job: QueuedSearch
    start: int
    count: int

    def queries(self) -> Any:
        return self.job.search.queries[self.start : self.start + self.count]


class Batcher(BatchLoop[QueuedSearch, _Share]):
    """The queue of searches and the one loop that empties it."""

    def __init__(self, index: ServedIndex, metrics: Metrics, settings: Settings) -> None:
        super().__init__("rbegir-scan")
        self._index = index
        self._metrics = metrics
        self._settings = settings
        self._groups: dict[Hashable, dict[QueuedSearch, None]] = {}  # in turn; jobs by arrival
        self._query_seconds = 0.001  # of late; for Retry-After

    def submit(self, search: Search) -> QueuedSearch:
        """Queue a request; its `future` will hold the hits, in slices. Always `forget` it in the end."""
        if self.waiting and self.waiting + search.count > self._settings.max_waiting:
            raise overloaded(f"{self.waiting} queries are waiting", self.waiting * self._query_seconds)
        group = (search.request.share_key(), self._reranks(search), k_group(search.request.k))
        job = QueuedSearch(search, group, asyncio.get_running_loop().create_future(), time.perf_counter())
        self._groups.setdefault(job.group, {})[job] = None
        self.waiting += search.count
        self._arrival.set()
        return job

    def _reranks(self, search: Search) -> bool:
        """Whether the hits of a request are reranked, for which the index needs its texts."""
        able = search.texts is not None and search.request.may_rerank
        return able and getattr(self._index.model, "reranker", None) is not None

    def forget(self, job: QueuedSearch) -> None:
        """Take what is left of a request out of the queue."""
        jobs = self._groups.get(job.group)
        if jobs is not None and job in jobs:
            del jobs[job]
            self.waiting -= job.search.count - job.taken
            if not jobs:
                del self._groups[job.group]

    def _queued(self) -> Iterable[QueuedSearch]:
        return (job for jobs in self._groups.values() for job in jobs)

    async def _work(self, batch: list[_Share]) -> None:
        began = time.perf_counter()
        for share in batch:
            if not share.start:
                self._metrics.search_stage["queue"].observe(began - share.job.arrived)
        outcomes = await self._in_thread(self._scan, batch)
        queries = sum(share.count for share in batch)
        self._query_seconds += ((time.perf_counter() - began) / queries - self._query_seconds) / 8
        for share, outcome in zip(batch, outcomes, strict=True):
            self._deliver(share.job, outcome)

    def _take(self) -> list[_Share]:
        """The next batch: of the group whose turn it is, places dealt out evenly, the oldest first."""
        group = next(iter(self._groups))
        jobs = self._groups.pop(group)
        wanted = [job.search.count - job.taken for job in jobs]
        batch: list[_Share] = []
        for job, count in zip(list(jobs), deal(wanted, self._settings.max_batch), strict=True):
            if not count:
                break
            batch.append(_Share(job, job.taken, count))
            job.taken += count
            if job.taken == job.search.count:
                del jobs[job]
        self.waiting -= sum(share.count for share in batch)
        if jobs:
            self._groups[group] = jobs  # at the end: the other groups come first
        return batch

    def _deliver(self, job: QueuedSearch, outcome: BatchSlice | BaseException) -> None:
        if job.future.done():
            return
        if isinstance(outcome, BaseException):
            job.future.set_exception(outcome)
            return
        job.done.append(outcome)
        if sum(len(slice_.values) for slice_ in job.done) == job.search.count:
            job.future.set_result(job.done)

    # ---- in the thread ----

    def _scan(self, batch: list[_Share]) -> list[BatchSlice | BaseException]:
        """One outcome per share. A batch is repeated if the index got another model after it was encoded."""
        if all(share.job.search.values is not None for share in batch):
            return self._outcomes(batch)
        while True:
            model = self._index.model
            outcomes = self._outcomes(batch)
            if self._index.model is model:
                return outcomes

    def _outcomes(self, batch: list[_Share]) -> list[BatchSlice | BaseException]:
        """One outcome per share; whatever goes wrong is the outcome of those whom it concerns."""
        outcomes: list[BatchSlice | BaseException] = []
        began = time.perf_counter()
        encoded = self._values(batch)
        if any(share.job.search.values is None for share in batch):
            self._metrics.search_stage["encode"].observe(time.perf_counter() - began)
        good = [number for number, values in enumerate(encoded) if not isinstance(values, BaseException)]
        if not good:
            return [error for error in encoded if isinstance(error, BaseException)]
        joined = np.concatenate([encoded[number] for number in good])  # [queries, n]
        requests = [batch[number].job.search.request for number in good]
        k = max(request.k for request in requests)
        try:
            with watching(self._stopwatch()):
                if self._reranks(batch[good[0]].job.search):
                    texts = [text for number in good for text in batch[number].queries()]
                    hits = self._index.search(texts, k, **requests[0].options())
                else:
                    hits = self._index.search_codes(joined, k, **requests[0].options())
        except Exception as error:  # the outcome of every request in the batch
            return [values if isinstance(values, BaseException) else error for values in encoded]
        self._metrics.batch_queries.observe(len(joined))
        start = 0
        for share, values in zip(batch, encoded, strict=True):
            if isinstance(values, BaseException):
                outcomes.append(values)
            else:
                outcomes.append(BatchSlice(cut(hits, start, len(values), share.job.search.request.k), values))
                start += len(values)
        return outcomes

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
        """The values of each share; texts, or vectors, are encoded together."""
        found: dict[int, Values | BaseException] = {}
        to_encode: list[int] = []
        for number, share in enumerate(batch):
            if share.job.search.values is None:
                to_encode.append(number)
            else:
                found[number] = share.queries()
        found.update(self._encode(batch, to_encode))
        return [found[number] for number in range(len(batch))]

    def _encode(self, batch: list[_Share], numbers: list[int]) -> dict[int, Values | BaseException]:
        """Encode the queries of these shares; if one is refused, halves are tried, so that it fails alone."""
        if not numbers:
            return {}
        try:
            parts = [batch[number].queries() for number in numbers]
            is_text = isinstance(parts[0], list)
            queries: Any = [text for part in parts for text in part] if is_text else np.concatenate(parts)
            codes: Codes = self._index.model.encode_queries(queries)
        except (RbegirError, ValueError) as error:  # NumPy refuses to join vectors of different lengths
            if len(numbers) == 1:
                return {numbers[0]: self._refusal(batch[numbers[0]], error)}
            half = len(numbers) // 2
            return {**self._encode(batch, numbers[:half]), **self._encode(batch, numbers[half:])}
        except Exception as error:
            return dict.fromkeys(numbers, error)
        values = codes.values()  # [queries, n]
        ends = np.cumsum([batch[number].count for number in numbers])
        return dict(zip(numbers, np.split(values, ends[:-1]), strict=True))

    def _refusal(self, share: _Share, error: Exception) -> Exception:
        """The error in terms of the whole request, whose positions count from its first query."""
        if share.start:
            try:
                self._index.model.encode_queries(share.job.search.queries)
            except RbegirError as whole:
                return whole
        return error


def cut(hits: Hits, start: int, count: int, k: int) -> Hits:
    """The first k hits of the queries start … start + count: what one request of a batch asked for."""
    rows = slice(start, start + count)
    return replace(
        hits,
        ids=hits.ids[rows, :k],
        scores=hits.scores[rows, :k],
        code_scores=hits.code_scores[rows, :k],
        keys=hits.keys[rows, :k],
        rows=hits.rows[rows, :k],
        texts=None if hits.texts is None else hits.texts[rows, :k],
        attributes=None if hits.attributes is None else [found[:k] for found in hits.attributes[rows]],
    )


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
