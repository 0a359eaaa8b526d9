"""The process that searches some segments of an index: a Ray actor.

It keeps the VIEWS most recently used views (states of an index) open. A question about another view first
opens it from the shared files, sharing the segments that are already open. So nothing has to be restored
after a restart, and a shard need not be notified that the index has changed.

Calls are answered by an event loop. Scans go through one `ScanQueue`; everything else (opening, looking up
texts of hits) runs in threads of its own, so that a long scan does not delay the last step of another
question. No exception leaves the process: a failure is an answer too.

Every answer is [the view that it is about, the packed result or Failure]. Ray takes 0.3 ms to serialise a few
small arrays, for each shard again, which is more than the scan of a small shard. It has a fast path for
numbers, texts, bytes and lists, so `pack` turns questions and answers into these:

    an array             ["array", dtype, shape, bytes]
    an array of objects  ["objects", shape, its values]
    a message            ["message", name of its class, its fields]
    a tuple, a dict      ["tuple", values], ["dict", keys, values]

Anything else (filters of pyarrow, errors) is left to Ray.
"""

import asyncio
import os
import socket
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

import rbegir
from rbegir.base import masks
from rbegir.base.devices import cpu_count
from rbegir.cluster.session import import_ray
from rbegir.cluster.view import Assignment, Places
from rbegir.codes.layout import LAYOUT_VERSION
from rbegir.encode.reranker import Spelling
from rbegir.errors import BusyError, ClusterError, DeadlineError, FileError, RbegirError
from rbegir.index.format import VERSION
from rbegir.index.query import limits_of, scope
from rbegir.index.snapshot import Snapshot
from rbegir.index.tenant import within
from rbegir.search.backend import coarse, on_cpu, open_backend
from rbegir.search.paper import BLOCK, thread_of
from rbegir.search.partition import Partition, Values
from rbegir.search.request import SearchRequest, Tenant
from rbegir.search.rerank import find_by_words

VIEWS = 4  # kept open
READERS = 4  # threads for everything but scans
BATCH = 256  # queries per pass over the codes
QUEUE = 1024  # queries that may wait
T = TypeVar("T")
Keys = npt.NDArray[np.int64]
Columns = tuple[npt.NDArray[np.int64], npt.NDArray[Any], dict[str, npt.NDArray[np.object_]]]
"""What is stored of some keywords, in the order in which they were asked for: rows, ids, other columns."""


@dataclass(frozen=True)
class Scan:
    """A question: the best k of each query among the keywords that pass the filters of `request`."""

    values: npt.NDArray[np.int16]  # [Q, n]
    request: SearchRequest  # k and the filters; the other options concern the client alone
    planes: int | None = None  # rank by this many planes, and also return the key of all planes
    seconds: float = 60.0  # how long the client waits for the answer
    # columns to send along with what is found; None: not even rows and ids
    names: tuple[str, ...] | None = None
    floors: Keys | None = None  # [Q] the least order keys, of a request with a least score

    @cached_property
    def group(self) -> Any:
        """Scans of one group can share a pass over the codes."""
        coarse = None if self.planes is None else (self.planes, self.request.filter_key())
        return self.request.share_key(), coarse


@dataclass(frozen=True)
class Found:
    """The best of one shard, in total order."""

    keys: Keys  # [Q, m]
    places: Places  # [Q, m]
    full: Keys | None = None  # [Q, m] keys of all planes, where `keys` are of the first ones
    counted: int = 0  # keywords of the segments that have candidates, whether they pass or not
    columns: Columns | None = None  # of the places one after the other, if the question asked for them


class GoneError(ClusterError):
    """A shard does not find a file of the view: the index has moved on, or the node does not see it."""


@dataclass(frozen=True)
class Failure:
    """Why there is no result: with a BusyError another replica may have room, with a DeadlineError the
    client's time was up before the work began. With any other the question may be wrong, or this node."""

    error: RbegirError
    node: str


@dataclass(frozen=True)
class About:
    """A shard process in words, and whether it can do what it was made for."""

    node: str
    pid: int
    rbegir: str
    layout: int
    format: int
    error: RbegirError | None = None


MESSAGES: dict[str, type[Any]] = {kind.__name__: kind for kind in (SearchRequest, Scan, Found, Failure)}


def pack(value: Any) -> Any:
    """A message in plain values."""
    if value is None or type(value) in (bool, int, float, str, bytes):
        return value
    if isinstance(value, np.ndarray):
        if value.dtype == object:
            return ["objects", list(value.shape), [pack(one) for one in value.ravel()]]
        return ["array", value.dtype.str, list(value.shape), value.tobytes()]
    if isinstance(value, np.generic):
        return value.item()
    if type(value) in (tuple, list):
        return [type(value).__name__, [pack(one) for one in value]]
    if type(value) is dict:
        return ["dict", [pack(key) for key in value], [pack(one) for one in value.values()]]
    if type(value).__name__ in MESSAGES:
        return ["message", type(value).__name__, [pack(getattr(value, f.name)) for f in fields(value)]]
    return value


def unpack(plain: Any) -> Any:
    """The message again. Arrays are read-only."""
    if type(plain) is not list:
        return plain
    match plain:
        case ["array", dtype, shape, data]:
            return np.ndarray(shape, dtype, data)
        case ["objects", shape, values]:
            array = np.empty(len(values), object)
            for i, one in enumerate(values):
                array[i] = unpack(one)
            return array.reshape(shape)
        case ["tuple", values]:
            return tuple(unpack(one) for one in values)
        case ["list", values]:
            return [unpack(one) for one in values]
        case ["dict", keys, values]:
            return {unpack(key): unpack(value) for key, value in zip(keys, values, strict=True)}
        case ["message", name, values]:
            return MESSAGES[name](*(unpack(one) for one in values))
    raise TypeError(f"not a packed message: {plain!r}")


@dataclass(frozen=True, eq=False)
class Loaded:
    """An assignment whose files are open, and what can be read from them."""

    share: Assignment
    snapshot: Snapshot
    starts: Places  # [segments]

    def positions(self, places: Places) -> Places:
        """The positions in the snapshot of places in the whole index, which must be in this assignment."""
        part = np.searchsorted(self.starts, places, "right") - 1
        return self.snapshot.starts[part] + places - self.starts[part]

    def columns(self, places: Places, names: Sequence[str]) -> Columns:
        """The stored columns of keywords of this share."""
        at, snapshot = self.positions(places), self.snapshot
        return snapshot.rows(at), snapshot.ids(at), {name: snapshot.column(name, at) for name in names}

    def ready(self, weights: tuple[Any, Any, float] | None = None) -> int:
        """Check the codes, so that the first question is as fast as the next; returns how many they are.

        If hits will be reranked, `weights` are those of the words, which are read from all texts.
        """
        spelling = None if weights is None else Spelling(*weights)
        for part in self.snapshot.segments:
            part.segment.packed()
            _ = part.live
            if spelling is not None:
                part.segment.words(spelling)
        return self.snapshot.keywords

    def whole_segments(self, request: SearchRequest) -> dict[int, bool]:
        """For segments with candidates, by number in the whole index: whether all keywords are candidates."""
        pairs = zip(*self._candidates(request), strict=True)
        return {number: partition.mask is None for number, partition in pairs}

    def _candidates(self, request: SearchRequest) -> tuple[list[int], list[Partition]]:
        """The segments with candidates, by number in the whole index, and their partitions."""
        searched, partitions, _ = scope(self.snapshot, request, 0)
        numbers = dict(zip(self.starts.tolist(), self.share.numbers, strict=True))
        return [numbers[one.start] for one in searched.segments], partitions

    def thread_counts(
        self, request: SearchRequest, offsets: dict[int, int]
    ) -> list[tuple[int, npt.NDArray[np.uint32]]]:
        """Candidates per thread of the published search: for each segment its first thread, and the counts
        from that on. Segment `number` begins at position `offsets[number]` of the search."""
        parts = []
        for number, (_, count, mask, _) in zip(*self._candidates(request), strict=True):
            offset = offsets[number]
            here = np.arange(count) if mask is None else masks.to_positions(mask, count)
            first = offset // (BLOCK * request.per_thread) * BLOCK
            counts = np.bincount(thread_of(offset + here, request.per_thread) - first)
            parts.append((first, counts.astype(np.uint32)))
        return parts

    def count(self, where: Any, tenant: Tenant) -> int:
        """How many keywords of this share pass a filter."""
        return within(self.snapshot, tenant).count(where)

    def records(self, ids: pa.Array) -> list[dict[str, Any] | None]:
        """Keywords by id; None for ids that this shard does not have."""
        return self.snapshot.records(ids)

    def by_words(
        self, weights: tuple[Any, Any, float], queries: list[str], values: Values, request: SearchRequest
    ) -> tuple[Places, npt.NDArray[np.float32], Keys]:
        """The best k by lexical score among the keywords that pass the filters, as `search.rerank.WordHits`
        has them, with places as positions."""
        snapshot = within(self.snapshot, request.tenant)
        searched, partitions, filters = scope(snapshot, request, len(queries))
        limit = request.depth
        shape = (len(queries), limit)
        if not partitions:
            return np.full(shape, -1), np.zeros(shape, np.float32), np.zeros(shape, np.int64)
        spelling = Spelling(*weights)
        lexical = [one.segment.words(spelling) for one in searched.segments]
        backend = open_backend("cpu", *self.share.manifest.shape)
        found = find_by_words(
            backend, partitions, lexical, values, queries, limit, filters, threads=cpu_count()
        )
        places = searched.original(found.positions.ravel()).reshape(shape)
        snapshot.check_mapped()
        return places, found.scores, found.keys

    def codes_at(self, places: Places) -> npt.NDArray[np.uint64]:
        """The planes [planes, places, words] of the codes of keywords of this share."""
        return self.snapshot.codes(self.positions(places)).planes

    def codes(self, ids: pa.Array) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint64]]:
        """The ids among these that this shard has, and the planes [planes, found, words] of their codes."""
        positions = self.snapshot.find(ids)
        found = np.flatnonzero(positions >= 0)
        return found, self.snapshot.codes(positions[found]).planes


def opened(share: Assignment, device: str, before: Snapshot | None = None) -> Loaded:
    """An assignment with its files open; segments that `before` has open are shared with it."""
    snapshot = Snapshot(share.location.fetch(share.manifest.files), share.manifest, before)
    snapshot.accelerated = not on_cpu(device)
    for one, start in zip(snapshot.segments, share.starts, strict=True):
        one.start = start
    return Loaded(share, snapshot, np.asarray(share.starts, np.int64))


class Shard:
    """Answers questions about its share of any view. Made by `pool`."""

    def __init__(self, device: str, threads: int, queue: int) -> None:
        self._device, self._threads = device, threads
        self._views: dict[str, Loaded] = {}  # the most recently used last
        self._opening = asyncio.Lock()
        self._backends: dict[tuple[int, int, str], Any] = {}
        self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="rbegir-read")
        self._scans = ScanQueue(self._scan, queue=queue)

    async def about(self) -> About:
        """This process; with an error if the device cannot be used."""

        def look() -> About:
            error = None
            try:
                self._backend(64, 1, self._device)
            except RbegirError as found:
                error = found
            return About(self._node, os.getpid(), rbegir.__version__, LAYOUT_VERSION, VERSION, error)

        return await self._thread(look)

    async def scan(self, view: str, refs: list[Any], packed: Any) -> list[Any]:
        """The best k of each query in this share; `packed` is a Scan."""
        scan: Scan = unpack(packed)
        try:
            loaded = await self._loaded(view, refs)
            found = await self._scans.put(view, loaded, scan)
            if scan.names is not None:
                names, places = scan.names, found.places[found.places >= 0]
                found = replace(found, columns=await self._thread(lambda: loaded.columns(places, names)))
            return [view, pack(found)]
        except (OSError, RbegirError) as error:
            return [view, pack(self._failure(error))]

    async def read(self, view: str, refs: list[Any], method: str, *arguments: Any) -> list[Any]:
        """The result of a method of `Loaded`, which runs in a thread."""
        try:
            loaded = await self._loaded(view, refs)
            return [view, await self._thread(lambda: pack(getattr(loaded, method)(*arguments)))]
        except (OSError, RbegirError) as error:
            return [view, pack(self._failure(error))]

    @property
    def _node(self) -> str:
        return f"{socket.gethostname()} ({import_ray().util.get_node_ip_address()})"

    async def _thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._readers, work)

    def _failure(self, error: Exception) -> Failure:
        if isinstance(error, FileNotFoundError):
            error = GoneError(f"{self._node} does not see {error.filename or error}")
        elif not isinstance(error, RbegirError):
            error = FileError(f"{self._node}: {error}")
        return Failure(error, self._node)

    async def _loaded(self, view: str, refs: list[Any]) -> Loaded:
        """The share of a view, opened if it is not; the least recently used view is closed."""
        if view not in self._views:
            share: Assignment = await refs[0]
            async with self._opening:
                if view not in self._views:
                    others = [v.snapshot for v in self._views.values() if v.share.location == share.location]
                    self._views[view] = await self._thread(lambda: opened(share, self._device, *others[-1:]))
                    if len(self._views) > VIEWS:
                        del self._views[next(iter(self._views))]
        loaded = self._views[view] = self._views.pop(view)
        return loaded

    def _backend(self, n: int, planes: int, device: str) -> Any:
        if (n, planes, device) not in self._backends:
            self._backends[n, planes, device] = open_backend(device, n, planes, self._threads)
        return self._backends[n, planes, device]

    def _scan(self, loaded: Loaded, scan: Scan) -> Found:
        manifest, snapshot = loaded.share.manifest, within(loaded.snapshot, scan.request.tenant)
        found_in, partitions, _ = searched = scope(snapshot, scan.request, len(scan.values))
        counted = sum(partition.count for partition in partitions)
        nothing = np.zeros((len(scan.values), 0), np.int64)
        if not partitions:
            return Found(nothing, nothing, None if scan.planes is None else nothing)

        def places(positions: Places) -> Places:
            return found_in.original(positions.ravel()).reshape(positions.shape)

        limits = limits_of(searched, scan.request, scan.floors)
        if scan.planes is None:
            backend = self._backend(*manifest.shape, "cpu" if snapshot.gathered else self._device)
            keys, positions = backend.search(partitions, scan.values, scan.request.k, limits)
            return Found(keys, places(positions), None, counted)
        # on a GPU all planes cost what the first one does, so a search by planes runs on the CPU
        backend = open_backend("cpu", *manifest.shape, self._threads)
        first = backend.with_planes(scan.planes)
        keys, positions = first.search(
            coarse(partitions, manifest.n, scan.planes), scan.values, scan.request.k, limits
        )
        full = backend.keys_at(partitions, scan.values, np.maximum(positions, 0))
        return Found(keys, places(positions), full, counted)


@dataclass(eq=False)
class Waiting:
    """A question in the queue."""

    view: str
    state: Any  # what the scan needs to know of the view
    scan: Scan
    until: float  # monotonic
    done: asyncio.Future[Found]


class ScanQueue:
    """Runs `work(state, scan) → Found` for questions in groups, in a thread.

    One scan runs at a time, with all threads of the shard. What arrives meanwhile waits, and the next scan
    takes as many of the waiting questions as can share it (same view), up to BATCH queries: a pass for 64
    queries costs a few times that of one, so the more clients there are, the less each one costs. An idle
    shard starts at once.

    The queue is bounded. A question that finds it full is refused at once rather than answered late, and one
    whose client has stopped waiting is dropped before work is spent on it.
    """

    def __init__(self, work: Callable[[Any, Scan], Found], *, batch: int = BATCH, queue: int = QUEUE) -> None:
        self._work, self._batch, self._limit = work, batch, queue
        self._waiting: list[Waiting] = []
        self._scanning = asyncio.Lock()  # given in the order of arrival

    async def put(self, view: str, state: Any, scan: Scan) -> Found:
        """The answer; BusyError if the queue is full, DeadlineError if its client has stopped waiting."""
        queries = sum(len(other.scan.values) for other in self._waiting)
        if queries and queries + len(scan.values) > self._limit:
            raise BusyError(
                f"the queue of a shard is full: {queries} queries are waiting, at most {self._limit} may",
                hint="ask again a little later, or add shards or replicas",
            )
        done: asyncio.Future[Found] = asyncio.get_running_loop().create_future()
        self._waiting.append(Waiting(view, state, scan, time.monotonic() + scan.seconds, done))
        async with self._scanning:
            if not done.done():  # no earlier scan took it along
                await self._scan_next()
        return done.result()

    async def _scan_next(self) -> None:
        group = self._next()
        if not group:
            return
        try:
            found = await asyncio.to_thread(self._work, group[0].state, join([item.scan for item in group]))
        except BaseException as error:  # those who wait must get it, whatever it is
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
    counts = [len(scan.values) for scan in scans]
    request = SearchRequest.joined([scan.request for scan in scans], counts)
    floors = [scan.floors for scan in scans if scan.floors is not None]  # of all of them, or of none
    return Scan(values, request, scans[0].planes, floors=np.concatenate(floors) if floors else None)


def cut(found: Found, rows: slice, k: int | None) -> Found:
    """The answer to some of the queries; the best k begin every longer list."""
    most = int((found.places[rows] >= 0).sum(axis=1).max(initial=0))
    columns = slice(most if k is None else min(k, most))
    full = None if found.full is None else found.full[rows, columns]
    return Found(found.keys[rows, columns], found.places[rows, columns], full, found.counted)
