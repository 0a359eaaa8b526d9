"""Micro-batching: searches that arrive during a scan are scored together by the next one.

A scan reads every keyword, and the kernels score a batch for little more than one query, so waiting requests
should share a scan. There is no deliberate delay: an idle service starts at once with what it has, and a busy
one takes all that has arrived in the meantime, up to `max_batch` queries.

Requests may share a scan if all or none of them are reranked, and if they differ in k and in their filters
only (`SearchRequest.share_key`). The scan uses the largest k, and each request gets its own first k, which is
the same result, because hits have one total order. So that ten hits do not wait for ten thousand, only
requests with k in the same power of four share. Filters of one scan may have as many slow tests as those of a
request. A request whose filter is refused fails alone.

A scan evaluates no filter with slow tests, and spends at most FILTER_S on others. A request whose filter is
not known in time fails with LateError: the caller has it evaluated by `FilterQueue` and submits the request
again. `FilterQueue` evaluates beside the scans, one block of keywords at a time for each client in turn, so
that nobody waits for the slow filter of another client. With a cluster, the shards evaluate filters during
the scan.

Fair: clients take turns to choose the next scan. The places of a scan are divided evenly among the clients
that wait for one of its kind, and those of a client among its requests, the oldest first. So a thousand
queries of one client are spread over several scans, and a single query of another client is in the next one.

Bounded: beyond `max_waiting` queries, `submit` refuses a client that has its share of the queue already.
Others are admitted up to their share, so n clients hold at most 1 + 1/2 + … + 1/n times as many. A request
that is cancelled leaves the queue.
"""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from rbegir.base.masks import Mask
from rbegir.codes.planes import Codes
from rbegir.errors import InputError, MismatchError, RbegirError
from rbegir.index.query import Caller, bind, calling, different_filters, evaluation, together
from rbegir.index.store import Index
from rbegir.index.tenant import within
from rbegir.search.hits import Hits, cut
from rbegir.search.request import SearchRequest, k_group
from rbegir.serve.monitor import IndexMetrics
from rbegir.serve.served import ServedIndex
from rbegir.serve.settings import Settings
from rbegir.wire.problems import overloaded

Values = npt.NDArray[np.int16]
Outcome = tuple[Hits, int]  # what a scan found for a share, and the bytes of its texts and attributes
Job = TypeVar("Job", bound=Any)  # has a `future`, a `client`, and how much of it is `left` in the queue
Share = TypeVar("Share")
T = TypeVar("T")
REFUSALS = (InputError, MismatchError)  # errors of a request, and not of the service
FILTER_S = 0.1  # CPU time for the filters of one scan
MASK_BYTES = 256 << 20  # beyond this, `FilterQueue` finishes the oldest request before it begins another


class BatchLoop(Generic[Job, Share]):
    """A queue of jobs, and a loop that takes one batch after the other from it to a thread.

    A subclass adds jobs, takes the next batch out (`_take`) and does it (`_work`).
    """

    def __init__(self, thread: str) -> None:
        self.waiting = 0  # queries or keywords that are in no batch yet
        self._jobs: dict[Job, None] = {}  # in turn
        self._arrival = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, thread)
        self._loop: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._loop = asyncio.create_task(self._run(), name=type(self).__name__)

    async def stop(self) -> None:
        """Stop after the batch that is running. What still waits is cancelled: it was never acknowledged."""
        await cancelled(self._loop)
        for job in self._jobs:
            job.future.cancel()
        await asyncio.to_thread(self._thread.shutdown)

    def _admits(self, size: int, client: Hashable, most: int) -> bool:
        """Whether a client may queue `size` more: there is room, or it stays within its share of a queue that
        others have filled. The clients that wait have equal shares."""
        if not self.waiting or self.waiting + size <= most:
            return True
        held = Counter({client: size})
        for job in self._jobs:
            held[job.client] += job.left
        return held[client] <= most // len(held)

    def _queue(self, job: Job) -> None:
        self._jobs[job] = None
        self.waiting += job.left
        self._arrival.set()

    def forget(self, job: Job) -> None:
        """Take what is left of a job out of the queue."""
        if job in self._jobs:
            del self._jobs[job]
            self.waiting -= job.left

    async def _run(self) -> None:
        while True:
            if not self._jobs:
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

    def _take(self) -> list[Share]:
        raise NotImplementedError

    async def _work(self, batch: list[Share]) -> None:
        raise NotImplementedError


async def cancelled(task: asyncio.Task[None] | None) -> None:
    """Cancel a task and wait until it has ended."""
    if task is not None:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def settle(future: asyncio.Future[T], outcome: T | BaseException) -> None:
    """Set the outcome of a future, unless it was cancelled."""
    if future.done():
        return
    if isinstance(outcome, BaseException):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)


def by_halves(
    work: Callable[[list[Share]], list[Any]],
    shares: list[Share],
    refusals: tuple[type[Exception], ...] = REFUSALS,
) -> list[Any]:
    """The outcomes of `work`, one per share. If it refuses them, halves are tried, so that a bad share fails
    alone. Any other error is the outcome of all of them."""
    if not shares:
        return []
    try:
        return work(shares)
    except refusals as error:
        if len(shares) == 1:
            return [error]
        half = len(shares) // 2
        return by_halves(work, shares[:half], refusals) + by_halves(work, shares[half:], refusals)
    except Exception as error:
        return [error] * len(shares)


class LateError(Exception):
    """A filter was not ready when its request was scanned; see `FilterQueue`."""


@dataclass(eq=False)
class _Evaluation:
    """The filters of a request in the queue, and the masks of what passes them."""

    steps: Iterator[Mask | None]
    left: int  # queries
    client: Hashable
    future: asyncio.Future[None]
    masks: dict[int, Mask] = field(default_factory=dict)  # by identity


class FilterQueue(BatchLoop[_Evaluation, _Evaluation]):
    """Evaluates filters block by block; clients take turns, each with its oldest request."""

    def __init__(self, index: ServedIndex, settings: Settings) -> None:
        super().__init__("rbegir-filter")
        self._index = index
        self._settings = settings
        self._kept: dict[_Evaluation, None] = {}  # whose masks are in use, the oldest first

    def submit(self, request: SearchRequest, queries: int, client: Hashable = None) -> _Evaluation:
        """Queue the filters of a request. From when its `future` is done until it is forgotten, searches need
        not evaluate them."""
        if not self._admits(queries, client, self._settings.max_waiting):
            raise overloaded(f"filters of {self.waiting} queries are waiting", 1)
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        job = _Evaluation(self._steps(request, queries), queries, client, future)
        self._kept[job] = None
        self._queue(job)
        return job

    def forget(self, job: _Evaluation) -> None:
        """Give up a request, and its masks unless the caller holds them."""
        del self._kept[job]
        super().forget(job)

    def _take(self) -> list[_Evaluation]:
        full = sum(mask.nbytes for job in self._kept for mask in job.masks.values()) > MASK_BYTES
        return [next(job for job in (self._kept if full else self._jobs) if job in self._jobs)]

    async def _work(self, batch: list[_Evaluation]) -> None:
        (job,), (outcome,) = batch, await self._in_thread(self._step, batch)
        if outcome is not False:
            super().forget(job)
            settle(job.future, outcome if isinstance(outcome, BaseException) else None)
        for own in [own for own in self._jobs if own.client == job.client]:
            del self._jobs[own]
            self._jobs[own] = None  # at the end: the other clients come first

    def _step(self, batch: list[_Evaluation]) -> list[bool]:
        """In the thread: evaluate one block. True if that was the last."""
        (job,) = batch
        for mask in job.steps:
            if mask is None:
                return [False]
            job.masks[id(mask)] = mask
        return [True]

    def _steps(self, request: SearchRequest, queries: int) -> Iterator[Mask | None]:
        """The steps of all filters of a request, then those of what changes have added meanwhile."""
        for _ in range(2):
            if isinstance(self._index, Index):  # the shards of a cluster evaluate filters themselves
                state = within(self._index.snapshot, request.tenant)
                different = different_filters(request, queries)
                bound = bind(state, different)
                yield from together(state, bound)
                for (filters, _), each in zip(different, bound, strict=True):
                    yield from evaluation(state, filters, each)


@dataclass(frozen=True)
class Search:
    """One request: its options, and texts or vectors to encode, or the values [queries, n] of codes."""

    request: SearchRequest
    texts: list[str] | None = None
    vectors: npt.NDArray[np.float64] | None = None  # [queries, dims]
    values: Values | None = None
    slow_tests: int = 0  # in its filters; 0 if these have been evaluated

    @cached_property
    def queries(self) -> Any:
        """The one that is given."""
        return next(given for given in (self.texts, self.vectors, self.values) if given is not None)

    @cached_property
    def count(self) -> int:
        return len(self.queries)


@dataclass(eq=False)
class QueuedSearch:
    """A request in the queue, and what scans have found for it so far."""

    search: Search
    group: Hashable
    future: asyncio.Future[list[Hits]]
    arrived: float
    client: Hashable = None
    taken: int = 0  # queries given to scans so far
    done: list[Hits] = field(default_factory=list)
    bytes: int = 0  # of the texts and attributes of those hits

    @property
    def left(self) -> int:
        """Queries that are in no scan yet."""
        return self.search.count - self.taken


@dataclass(frozen=True)
class _Share:
    """The part of a request that is in a batch."""

    job: QueuedSearch
    start: int
    count: int

    @property
    def request(self) -> SearchRequest:
        return self.job.search.request.part(self.start, self.count)

    def queries(self) -> Any:
        return self.job.search.queries[self.start : self.start + self.count]


class Batcher(BatchLoop[QueuedSearch, _Share]):
    """The queue of searches and the one loop that empties it."""

    def __init__(self, index: ServedIndex, metrics: IndexMetrics, settings: Settings) -> None:
        super().__init__("rbegir-scan")
        self._index = index
        self._metrics = metrics
        self._settings = settings
        self._turns: dict[Hashable, None] = {}  # the clients that wait, in turn
        self._query_seconds = 0.001  # a moving average, for Retry-After

    def submit(self, search: Search, client: Hashable = None) -> QueuedSearch:
        """Queue a request; its `future` will hold its hits, one part per scan. Always `forget` it."""
        if not self._admits(search.count, client, self._settings.max_waiting):
            raise overloaded(f"{self.waiting} queries are waiting", self.waiting * self._query_seconds)
        group = (search.request.share_key(), self._reranks(search), k_group(search.request.depth))
        future: asyncio.Future[list[Hits]] = asyncio.get_running_loop().create_future()
        job = QueuedSearch(search, group, future, time.perf_counter(), client)
        self._turns.setdefault(client)
        self._queue(job)
        return job

    def _reranks(self, search: Search) -> bool:
        """Whether the hits of a request are reranked, for which the index needs its texts or vectors."""
        if search.values is not None or not search.request.may_rerank:
            return False
        able = search.texts is not None and getattr(self._index.model, "reranker", None) is not None
        return bool(search.request.rerank) or able

    def candidates(self, search: Search) -> int:
        """How many candidates by code all queries of a request have reranked, given or by default."""
        if not self._reranks(search):
            return 0
        request = search.request
        return search.count * (request.pool if search.texts is not None else request.vector_pool)

    async def _work(self, batch: list[_Share]) -> None:
        began = time.perf_counter()
        for share in batch:
            if not share.start:
                self._metrics.search_stage["queue"].observe(began - share.job.arrived)
        outcomes = await self._in_thread(self._scan, batch)
        queries = sum(share.count for share in batch)
        self._query_seconds += ((time.perf_counter() - began) / queries - self._query_seconds) / 8
        for share, outcome in zip(batch, outcomes, strict=True):
            job = share.job
            if isinstance(outcome, BaseException):
                settle(job.future, outcome)
                continue
            hits, size = outcome
            job.done.append(hits)
            job.bytes += size
            if job.bytes > self._settings.max_hit_bytes:
                settle(job.future, self._too_heavy())
            if sum(map(len, job.done)) == job.search.count:
                settle(job.future, job.done)

    def _take(self) -> list[_Share]:
        """The next batch: a group of the client whose turn it is, places dealt out evenly among clients."""
        clients = {job.client for job in self._jobs}
        of_client: dict[Hashable, list[QueuedSearch]] = {c: [] for c in self._turns if c in clients}
        chooser = next(iter(of_client))
        group = next(job.group for job in self._jobs if job.client == chooser)
        for job in self._jobs:
            if job.group == group:
                of_client[job.client].append(job)
        wanted = [sum(job.left for job in own) for own in of_client.values()]
        batch: list[_Share] = []
        slow = 0
        for own, places in zip(of_client.values(), deal(wanted, self._settings.max_batch), strict=True):
            for job, count in zip(own, deal([job.left for job in own], places), strict=True):
                more = job.search.slow_tests
                if count and (not more or not slow or slow + more <= self._settings.max_slow_tests):
                    batch.append(_Share(job, job.taken, count))
                    slow += more
                    job.taken += count
                del self._jobs[job]
                if job.left:
                    self._jobs[job] = None  # at the end: other groups come first
        self.waiting -= sum(share.count for share in batch)
        served = {share.job.client for share in batch}
        clients = {job.client for job in self._jobs}
        order = sorted(of_client, key=served.__contains__)  # those that got places go to the end
        self._turns = {client: None for client in order if client in clients}
        return batch

    # ---- in the thread ----

    def _scan(self, batch: list[_Share]) -> list[Outcome | BaseException]:
        """One outcome per share. A batch is repeated if the index got another model after it was encoded."""
        if all(share.job.search.values is not None for share in batch):
            return self._outcomes(batch)
        while True:
            model = self._index.model
            outcomes = self._outcomes(batch)
            if self._index.model is model:
                return outcomes

    def _outcomes(self, batch: list[_Share]) -> list[Outcome | BaseException]:
        """One outcome per share; whatever goes wrong is the outcome of the shares that it concerns."""
        began = time.perf_counter()
        to_encode = [share for share in batch if share.job.search.values is None]
        made = iter(by_halves(self._encode, to_encode, (RbegirError, ValueError)))
        encoded = [
            share.queries() if share.job.search.values is not None else self._explained(share, next(made))
            for share in batch
        ]
        if to_encode:
            self._metrics.search_stage["encode"].observe(time.perf_counter() - began)
        pairs = zip(batch, encoded, strict=True)
        good = [(share, values) for share, values in pairs if not isinstance(values, BaseException)]
        found = iter(by_halves(self._search, good))
        return [values if isinstance(values, BaseException) else next(found) for values in encoded]

    def _search(self, shares: list[tuple[_Share, Values]]) -> list[Outcome | BaseException]:
        """The hits of each share, whose values are given, from one scan; or that its filter was late."""
        values = np.concatenate([own for _, own in shares])  # [queries, n]
        counts = [share.count for share, _ in shares]
        requests = [share.request for share, _ in shares]
        request = SearchRequest.joined(requests, counts)
        jobs = [share.job for share, _ in shares for _ in range(share.count)]  # of each query
        sizes = np.zeros(len(values), np.int64)  # [queries] bytes

        def weigh(found: npt.NDArray[np.int64]) -> None:
            sizes[:] = found
            if found.sum() > self._settings.max_hit_bytes:
                raise self._too_heavy()

        late: set[QueuedSearch] = set()
        ends: list[float] = []

        def awaited(query: int) -> bool:
            now, job = time.thread_time(), jobs[query]
            ends.append(now + FILTER_S)
            if now > ends[0] or job.search.slow_tests:
                late.add(job)
            return job not in late and not job.future.done()

        with calling(Caller(self._stopwatch(), weigh, awaited)):
            if self._reranks(shares[0][0].job.search):
                queries = joined([share for share, _ in shares])
                hits = self._index.search(queries, request.k, **request.options())
            else:
                hits = self._index.search_codes(values, request.k, **request.options())
        self._metrics.batch_queries.observe(len(values))
        starts = np.cumsum([0, *counts]).tolist()
        return [
            LateError()
            if share.job in late
            else (cut(hits, start, share.count, part.k), int(sizes[start : start + share.count].sum()))
            for start, (share, _), part in zip(starts, shares, requests, strict=False)
        ]

    def _too_heavy(self) -> InputError:
        return InputError(
            f"the texts and attributes of the hits have more than {self._settings.max_hit_bytes} bytes",
            hint="lower k, send fewer queries, or leave out texts and attributes",
        )

    def _stopwatch(self) -> Callable[[str], None]:
        """Observes the time between the stages of one search."""
        last = time.perf_counter()

        def lap(stage: str) -> None:
            nonlocal last
            now = time.perf_counter()
            self._metrics.search_stage[stage].observe(now - last)
            last = now

        return lap

    def _encode(self, shares: list[_Share]) -> list[Values]:
        """The values of each share, whose texts or vectors are encoded together."""
        codes: Codes = self._index.model.encode_queries(joined(shares))
        ends = np.cumsum([share.count for share in shares])
        return np.split(codes.values(), ends[:-1])

    def _explained(self, share: _Share, outcome: Values | Exception) -> Values | Exception:
        """A refusal in terms of the whole request, whose positions count from its first query."""
        if share.start and isinstance(outcome, (RbegirError, ValueError)):
            try:
                self._index.model.encode_queries(share.job.search.queries)
            except RbegirError as whole:
                return whole
        return outcome


def joined(shares: list[_Share]) -> Any:
    """The texts, or the vectors, of all shares."""
    parts = [share.queries() for share in shares]
    if isinstance(parts[0], list):
        return [text for part in parts for text in part]
    return np.concatenate(parts)  # raises ValueError for vectors of different lengths


def deal(wanted: list[int], places: int) -> list[int]:
    """Divide places evenly: one that gets fewer than it wants gets at most one fewer than any other.

    The rest of the division goes to the oldest, which come first.
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
