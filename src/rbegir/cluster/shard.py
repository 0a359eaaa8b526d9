"""The process that searches some segments of an index: a Ray actor.

It keeps the VIEWS most recently used views (states of an index) open; a question about another view opens it
first, from the shared files, sharing the segments that are already open. So nothing has to be restored after
a restart, and nobody has to tell a shard that the index has changed.

Calls are answered by an event loop. Scans go through one `ScanQueue`; everything else (opening,
looking up texts of hits) runs in a few threads of its own, so that a long scan does not hold up the last step
of another question. No exception leaves the process: a failure is an answer too, and says whose fault it is.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

import rbegir
from rbegir.base import masks
from rbegir.base.devices import cpu_count
from rbegir.cluster.messages import (
    About,
    Coded,
    Columns,
    Failure,
    Found,
    FoundWords,
    Ready,
    Records,
    Scan,
    SegmentShares,
    ThreadCounts,
    pack,
    unpack,
)
from rbegir.cluster.session import import_ray
from rbegir.cluster.view import Assignment, Places
from rbegir.codes.layout import LAYOUT_VERSION
from rbegir.encode.reranker import Spelling
from rbegir.errors import BusyError, DeadlineError, FileError, RbegirError
from rbegir.index.format import VERSION
from rbegir.index.query import candidates
from rbegir.index.snapshot import Positions, Snapshot
from rbegir.search.backend import coarse, open_backend
from rbegir.search.paper import BLOCK, thread_of
from rbegir.search.partition import Values
from rbegir.search.request import SearchRequest
from rbegir.search.rerank import WordHits, find_by_words

VIEWS = 4  # kept open
READERS = 4  # threads for everything but scans
BATCH = 256  # queries per pass over the codes
QUEUE = 1024  # queries that may wait
T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Loaded:
    """An assignment whose files are open, and what can be read from them."""

    share: Assignment
    snapshot: Snapshot
    starts: Places  # [segments]

    def places(self, place: Positions) -> Places:
        return self.starts[place.segment] + place.position

    def place(self, places: Places) -> Positions:
        """The inverse of `places`; they must be in this assignment."""
        part = np.searchsorted(self.starts, places, "right") - 1
        return Positions(part, places - self.starts[part])

    def columns(self, places: Places, names: Sequence[str]) -> Columns:
        """What is stored of keywords of this share."""
        place, snapshot = self.place(places), self.snapshot
        columns = {name: snapshot.column(name, place) for name in names}
        return Columns(self.share.view, snapshot.rows(place), snapshot.ids(place), columns)

    def ready(self) -> Ready:
        """Check the codes, so that the first question is as fast as the next."""
        for part in self.snapshot.segments:
            part.segment.packed()
            _ = part.live
        return Ready(self.share.view, self.snapshot.keywords)

    def segment_shares(self, request: SearchRequest) -> SegmentShares:
        """Which segments have candidates."""
        pairs = zip(*candidates(self.snapshot, request), strict=True)
        return SegmentShares(
            self.share.view, {self.share.numbers[number]: p.mask is None for number, p in pairs}
        )

    def thread_counts(self, request: SearchRequest, offsets: dict[int, int]) -> ThreadCounts:
        """Candidates per thread; segment `number` begins at position `offsets[number]` of the search."""
        parts = []
        for number, (_, count, mask) in zip(*candidates(self.snapshot, request), strict=True):
            offset = offsets[self.share.numbers[number]]
            here = np.arange(count) if mask is None else masks.to_positions(mask, count)
            first = offset // (BLOCK * request.per_thread) * BLOCK
            counts = np.bincount(thread_of(offset + here, request.per_thread) - first)
            parts.append((first, counts.astype(np.uint32)))
        return ThreadCounts(self.share.view, parts)

    def records(self, ids: pa.Array) -> Records:
        """Keywords by id."""
        place, snapshot = self.snapshot.find(ids), self.snapshot
        names = ["text", *snapshot.manifest.columns]
        columns = {name: snapshot.column(name, place) for name in names}
        given = ids.to_pylist()
        return Records(
            self.share.view,
            [
                None if part < 0 else {"id": given[i], **{name: columns[name][i] for name in names}}
                for i, part in enumerate(place.segment)
            ],
        )

    def by_words(
        self, weights: tuple[Any, Any, float], queries: list[str], values: Values, request: SearchRequest
    ) -> FoundWords:
        """The best k by lexical score among the keywords that pass the filters."""
        numbers, partitions = candidates(self.snapshot, request)
        shape = (len(queries), request.k)
        if not partitions:
            none = WordHits(np.full(shape, -1), np.zeros(shape, np.float32), np.zeros(shape, np.int64))
            return FoundWords(self.share.view, *none)
        spelling = Spelling(*weights)
        lexical = [self.snapshot.segments[number].segment.words(spelling) for number in numbers]
        backend = open_backend("cpu", *self.share.manifest.shape)
        found = find_by_words(backend, partitions, lexical, values, queries, request.k, threads=cpu_count())
        places = self.places(self.snapshot.locate(numbers, np.maximum(found.positions, 0).ravel()))
        self.snapshot.check_mapped()
        places = np.where(found.positions < 0, -1, places.reshape(shape))
        return FoundWords(self.share.view, places, found.scores, found.keys)

    def codes(self, ids: pa.Array) -> Coded:
        """Codes of keywords by id."""
        place = self.snapshot.find(ids)
        found = np.flatnonzero(place.segment >= 0)
        here = self.snapshot.codes(Positions(place.segment[found], place.position[found]))
        return Coded(self.share.view, found, here.planes)


class Shard:
    """Answers questions about its share of any view. Made by `pool`."""

    def __init__(self, device: str, threads: int, queue: int) -> None:
        self._device, self._threads = device, threads
        self._views: dict[str, Loaded] = {}  # in the order of opening
        self._used: dict[str, float] = {}  # view → when it was last asked about
        self._opening = threading.Lock()
        self._backends: dict[tuple[int, int], Any] = {}
        self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="rbegir-read")
        self._scans = ScanQueue(self._scan, queue=queue)

    async def about(self) -> About:
        """Who this is; an error if the device is not what was promised."""

        def look() -> About:
            error = None
            try:
                self._backend(64, 1)
            except RbegirError as found:
                error = found
            return About(self._node, os.getpid(), rbegir.__version__, LAYOUT_VERSION, VERSION, error)

        return await self._thread(look)

    async def scan(self, view: str, refs: list[Any], packed: Any) -> Any:
        """The best k of each query in this share; `packed` is a Scan."""
        scan: Scan = unpack(packed)
        try:
            loaded = await self._loaded(view, refs)
            found = await asyncio.wrap_future(self._scans.put(view, loaded, scan))
            if scan.names is not None:
                names, places = scan.names, found.places.ravel()
                found = replace(found, columns=await self._thread(lambda: loaded.columns(places, names)))
            return pack(found)
        except (OSError, RbegirError) as error:
            return pack(self._failure(view, error))

    async def read(self, view: str, refs: list[Any], method: str, *arguments: Any) -> Any:
        """The answer of a method of `Loaded`, packed; it runs in a thread."""
        try:
            loaded = await self._loaded(view, refs)
            return await self._thread(lambda: pack(getattr(loaded, method)(*arguments)))
        except (OSError, RbegirError) as error:
            return pack(self._failure(view, error))

    @property
    def _node(self) -> str:
        return f"{socket.gethostname()} ({import_ray().util.get_node_ip_address()})"

    async def _thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._readers, work)

    def _failure(self, view: str, error: Exception) -> Failure:
        if isinstance(error, BusyError):
            return Failure(view, "busy", error, self._node)
        if isinstance(error, DeadlineError):
            return Failure(view, "late", error, self._node)
        if isinstance(error, FileNotFoundError):
            message = f"{self._node} does not see {error.filename or error}"
            return Failure(view, "gone", FileError(message), self._node)
        if not isinstance(error, RbegirError):
            error = FileError(f"{self._node}: {error}")
        return Failure(view, "error", error, self._node)

    async def _loaded(self, view: str, refs: list[Any]) -> Loaded:
        """The share of a view, opened if it is not."""
        loaded = self._views.get(view)
        if loaded is None:
            share: Assignment = await refs[0]
            loaded = await self._thread(lambda: self._open(share))
        self._used[view] = time.monotonic()
        return loaded

    def _open(self, share: Assignment) -> Loaded:
        """Open an assignment; the least recently used view is closed."""
        with self._opening:
            loaded = self._views.get(share.view)
            if loaded is None:
                others = [v for v in self._views.values() if v.share.location == share.location]
                directory = share.location.fetch(share.files)
                snapshot = Snapshot(directory, share.manifest, others[-1].snapshot if others else None)
                loaded = Loaded(share, snapshot, np.asarray(share.starts, np.int64))
                while len(self._views) >= VIEWS:
                    oldest = min(self._views, key=lambda view: self._used.get(view, 0.0))
                    self._views.pop(oldest)
                    self._used.pop(oldest, None)
                self._views[share.view] = loaded
            return loaded

    def _backend(self, n: int, planes: int) -> Any:
        if (n, planes) not in self._backends:
            self._backends[n, planes] = open_backend(self._device, n, planes, self._threads)
        return self._backends[n, planes]

    def _scan(self, loaded: Loaded, scan: Scan) -> Found:
        view, manifest = loaded.share.view, loaded.share.manifest
        numbers, partitions = candidates(loaded.snapshot, scan.request)
        counted = sum(partition.count for partition in partitions)
        nothing = np.zeros((len(scan.values), 0), np.int64)
        if not partitions:
            return Found(view, nothing, nothing, None if scan.planes is None else nothing)

        def places(positions: Places) -> Places:
            return loaded.places(loaded.snapshot.locate(numbers, positions.ravel())).reshape(positions.shape)

        if scan.planes is None:
            keys, positions = self._backend(*manifest.shape).search(partitions, scan.values, scan.request.k)
            return Found(view, keys, places(positions), None, counted)
        # on a GPU all planes cost what the first one does, so whoever asks for these wants them on the CPU
        backend = open_backend("cpu", *manifest.shape, self._threads)
        first = backend.with_planes(scan.planes)
        keys, positions = first.search(
            coarse(partitions, manifest.n, scan.planes), scan.values, scan.request.k
        )
        full = backend.keys_at(partitions, scan.values, positions)
        return Found(view, keys, places(positions), full, counted)


@dataclass(eq=False)
class Waiting:
    """A question in the queue."""

    view: str
    state: Any  # what the scan needs to know of the view
    scan: Scan
    until: float  # monotonic
    done: Future[Found] = field(default_factory=Future)


class ScanQueue:
    """Runs `work(state, scan) → Found` for questions in groups, in a thread of its own.

    One scan runs at a time, with all threads of the shard. What arrives meanwhile waits, and the next scan
    takes as many of the waiting questions as can share it (same view, same filter), up to BATCH queries: a
    pass for 64 queries costs a few times that of one, so the more clients there are, the less each one costs.
    An idle shard starts at once.

    The queue is bounded. A question that finds it full is refused at once rather than answered late, and one
    whose client has stopped waiting is dropped before work is spent on it.
    """

    def __init__(self, work: Callable[[Any, Scan], Found], *, batch: int = BATCH, queue: int = QUEUE) -> None:
        self._work, self._batch, self._limit = work, batch, queue
        self._waiting: list[Waiting] = []
        self._lock = threading.Lock()
        self._thread = ThreadPoolExecutor(1, "rbegir-scan")

    def put(self, view: str, state: Any, scan: Scan) -> Future[Found]:
        """The future answer; BusyError if the queue is full."""
        item = Waiting(view, state, scan, time.monotonic() + scan.seconds)
        with self._lock:
            queries = sum(len(other.scan.values) for other in self._waiting)
            if queries and queries + len(scan.values) > self._limit:
                raise BusyError(
                    f"the queue of a shard is full: {queries} queries are waiting, at most {self._limit} may",
                    hint="ask again a little later, or add shards or replicas",
                )
            self._waiting.append(item)
        self._thread.submit(self._run)  # finds nothing if an earlier turn took the question
        return item.done

    def close(self) -> None:
        """End the thread after what waits is done."""
        self._thread.shutdown()

    def _run(self) -> None:
        group = self._next()
        if not group:
            return
        try:
            found = self._work(group[0].state, join([item.scan for item in group]))
        except BaseException as error:  # whoever waits must hear of it, whatever it is
            for item in group:
                item.done.set_exception(error)
            return
        start = 0
        for item in group:
            rows = slice(start, start + len(item.scan.values))
            item.done.set_result(cut(found, rows, item.scan.request.k))
            start = rows.stop

    def _next(self) -> list[Waiting]:
        """The oldest question that is still wanted and all that go with it; nothing if none is."""
        with self._lock:
            now = time.monotonic()
            for item in self._waiting:
                if item.until <= now:
                    item.done.set_exception(DeadlineError("the client's deadline passed in the queue"))
            wanted = [item for item in self._waiting if item.until > now]
            group: list[Waiting] = []
            size = 0
            for item in wanted:
                together = item.view == wanted[0].view and item.scan.group == wanted[0].scan.group
                if not group or (together and size + len(item.scan.values) <= self._batch):
                    group.append(item)
                    size += len(item.scan.values)
            self._waiting = [item for item in wanted if item not in group]
            return group


def join(scans: list[Scan]) -> Scan:
    """One scan for all queries, deep enough for the deepest."""
    if len(scans) == 1:
        return scans[0]
    values = np.concatenate([scan.values for scan in scans])
    first, k = scans[0], max(scan.request.k for scan in scans)
    return Scan(values, replace(first.request, k=k), first.planes)


def cut(found: Found, rows: slice, k: int) -> Found:
    """The answer to some of the queries; the best k begin every longer list."""
    full = None if found.full is None else found.full[rows, :k]
    return Found(found.view, found.keys[rows, :k], found.places[rows, :k], full, found.counted)
