"""Exact search on one or several GPUs.

Keywords are spread over the devices and stay there (`device`). Every device finds the best k of its own
(`card`, `proof`) on its own stream, and the host merges them in the total order. Keywords that do not fit
into the memory of all devices together are streamed through them in chunks at every search: exact, but only
as fast as the bus. A device may be named twice and then does the work of two, for tests.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from rbegir.base import masks
from rbegir.base.masks import Mask
from rbegir.codes.layout import GROUP, groups
from rbegir.errors import DeviceError, needing
from rbegir.search.backend import Backend, Progress
from rbegir.search.items import ItemHits, ItemOrder
from rbegir.search.partition import Candidates, Limits, Partition, Values, merge

with needing("searching on a GPU needs torch and triton ({} is missing)", "pip install 'rbegir[gpu]'"):
    from torch import OutOfMemoryError

    from rbegir.search.gpu import maxsim, proof
    from rbegir.search.gpu.card import SURVIVOR_BYTES, Batch, power_of_two
    from rbegir.search.gpu.device import MAX_SLAB, MaskCache, Range, Worker, find_devices, slab_bytes
    from rbegir.search.gpu.words import Slab, SlabSearch

SPLIT = 1 << 20  # partitions below this many keywords are not spread over devices
QUERIES = 1024  # per pass
SEARCH_BYTES = 1 << 32  # for the survivors of one pass
STREAM = 1 << 26  # the most keywords that are streamed at once


class ResidentRange(NamedTuple):
    """A range of a partition in a search, and which of its keywords are candidates."""

    range: Range
    base: int  # position of its first keyword
    mask: Mask | None  # of the range
    candidates: int


class GpuBackend(Backend):
    """Searches on GPUs.

    `memory` bounds the bytes of keywords on each device. `progress` is called with (keywords uploaded,
    keywords to upload).
    """

    refines = False  # all planes of a keyword lie side by side on a device and are read at once

    def __init__(
        self,
        n: int,
        planes: int,
        devices: str | Sequence[str] = "cuda",
        *,
        memory: int | None = None,
        progress: Progress | None = None,
    ) -> None:
        super().__init__(n, planes)
        self.progress, self._memory = progress, memory
        self._workers = [Worker(n, planes, device, memory) for device in find_devices(devices)]
        self._counts = MaskCache[int]()  # candidates of frozen masks
        self._plans: WeakKeyDictionary[ItemOrder, tuple[Any, maxsim.Plan]] = WeakKeyDictionary()
        self._lock = threading.Lock()

    @property
    def devices(self) -> list[str]:
        return [str(worker.device) for worker in self._workers]

    def with_planes(self, planes: int) -> GpuBackend:
        return GpuBackend(self.n, planes, self.devices, memory=self._memory, progress=self.progress)

    def _find(self, parts: list[Partition], values: Values, k: int, limits: Limits | None) -> Candidates:
        if limits is not None:
            deeper = self._deeper if np.all(limits.filters < 0) else self._by_filter
            return deeper(parts, values, k, limits)
        with self._lock:
            placed, streamed, total = self._place(parts)
            k = min(k, total)
            if not k or not len(values):
                nothing = np.zeros((len(values), k), np.int64)
                return Candidates(nothing, nothing.copy())
            step = max(1, min(QUERIES, SEARCH_BYTES // (SURVIVOR_BYTES * power_of_two(8192 + 4 * k))))
            blocks = [
                self._search(placed, streamed, values[q : q + step], k) for q in range(0, len(values), step)
            ]
        if len(blocks) == 1:  # a copy of many hits would cost the caller a millisecond
            return blocks[0]
        return Candidates(*(np.concatenate(arrays) for arrays in zip(*blocks, strict=True)))

    def _maxsim(self, parts: list[Partition], values: Values, order: ItemOrder, k: int) -> ItemHits:
        """MaxSim on the devices; on the CPU if keywords do not fit, as items cannot be streamed in chunks."""
        with self._lock:
            room = sum(worker.resident.free() + worker.resident.used for worker in self._workers)
            count = sum(part.count for part in parts)
            if count and slab_bytes(count, self.n, self.planes) <= room:
                try:
                    found = self._maxsim_on_devices(parts, values, order, k)
                except DeviceError as error:  # what is kept for items did not fit beside the keywords
                    self._plans.pop(order, None)
                    if not isinstance(error.__cause__, OutOfMemoryError):
                        raise
                    found = None
                if found is not None:
                    return found
        from rbegir.search.cpu import CpuBackend

        return CpuBackend(self.n, self.planes).maxsim(parts, values, order, k)

    def _maxsim_on_devices(
        self, parts: list[Partition], values: Values, order: ItemOrder, k: int
    ) -> ItemHits | None:
        """None if keywords do not fit."""
        placed, streamed, _ = self._place(parts)
        if streamed:
            return None
        pieces = []
        for worker, own in zip(self._workers, placed, strict=True):
            with worker.active():
                pieces.append([_piece(worker, part, worker.resident.get(part.range)) for part in own])
        return maxsim.search(order, self._plan(order, placed, pieces), self._workers, pieces, values, k)

    def _plan(
        self, order: ItemOrder, placed: list[list[ResidentRange]], pieces: list[list[SlabSearch]]
    ) -> maxsim.Plan:
        """Where the keywords of items are; kept while their slabs stay where they are."""
        placement = [[(part.range.key, part.base) for part in own] for own in placed]
        known = self._plans.get(order)
        if known is None or known[0] != placement:
            known = self._plans[order] = placement, maxsim.plan(order, pieces, self._workers)
        return known[1]

    def _place(self, parts: list[Partition]) -> tuple[list[list[ResidentRange]], list[ResidentRange], int]:
        """Make partitions resident → (ranges of each worker, ranges to stream, number of candidates)."""
        placed: list[list[ResidentRange]] = [[] for _ in self._workers]
        missing: list[ResidentRange] = []
        base = 0
        for partition in parts:
            ranges = [
                (worker, r)
                for worker, own in enumerate(self._workers)
                for r in own.resident.ranges_of(partition.packed)
            ]
            if ranges and sum(r.end - r.begin for _, r in ranges) == partition.count:  # they are disjoint
                for worker, r in ranges:
                    placed[worker].append(self._part(r, base, partition.mask))
            elif partition.count:
                missing += [self._part(r, base, partition.mask) for r in self._ranges(partition)]
            base += partition.count
        total = sum(part.candidates for part in (*missing, *(each for own in placed for each in own)))
        streamed: list[ResidentRange] = []
        new, uploaded = sum(part.range.end - part.range.begin for part in missing), 0
        for part in missing:
            chosen = self._roomiest(placed, part.range.end - part.range.begin)
            if chosen is None:
                streamed.append(part)
            else:
                with self._workers[chosen].active():
                    self._workers[chosen].resident.add(part.range, self._uploading(uploaded, new))
                uploaded += part.range.end - part.range.begin
                placed[chosen].append(part)
        if streamed:
            self._make_way(placed, streamed)
            if max(worker.resident.fits(STREAM) for worker in self._workers) < GROUP:
                raise DeviceError(
                    f"{base:,} keywords of {self.planes * self.n // 8} bytes do not fit into the memory of "
                    f"{', '.join(self.devices)}, not even {GROUP} at a time",
                    hint="use more devices, free memory on them, or use device='cpu'",
                )
        return placed, streamed, total

    def _part(self, wanted: Range, base: int, mask: Mask | None) -> ResidentRange:
        """A range of a partition that begins at position `base`, with the range's part of the mask."""
        if mask is None:
            return ResidentRange(wanted, base + wanted.begin, None, wanted.end - wanted.begin)
        own = mask[wanted.begin // GROUP : groups(wanted.end)]
        return ResidentRange(wanted, base + wanted.begin, own, self._counts.get(own, masks.size))

    def _uploading(self, before: int, total: int) -> Progress | None:
        """A progress callback for one range that reports the progress of all uploads of a search."""
        report = self.progress
        return None if report is None else lambda done, _: report(before + done, total)

    def _ranges(self, partition: Partition) -> list[Range]:
        """Cut a new partition into ranges for the devices."""
        pieces = -(-partition.count // MAX_SLAB)
        if partition.count >= SPLIT:
            pieces = max(pieces, len(self._workers))
        step = -(-groups(partition.count) // pieces) * GROUP
        return [
            Range(partition.packed, partition.count, start, min(partition.count, start + step))
            for start in range(0, partition.count, step)
        ]

    def _roomiest(self, placed: list[list[ResidentRange]], count: int) -> int | None:
        """The least loaded worker of this search that has room for `count` more keywords, if any."""
        loads = [sum(part.range.end - part.range.begin for part in own) for own in placed]
        for worker in sorted(range(len(loads)), key=loads.__getitem__):
            resident = self._workers[worker].resident
            resident.evict({part.range.key for part in placed[worker]}, count)
            if resident.fits(count) == count:
                return worker
        return None

    def _make_way(self, placed: list[list[ResidentRange]], streamed: list[ResidentRange]) -> None:
        """Free room for streaming on one worker: the last ranges placed there are streamed as well."""
        wanted = min(STREAM, max(part.range.end - part.range.begin for part in streamed))
        chosen = max(range(len(placed)), key=lambda worker: self._workers[worker].resident.fits(STREAM))
        resident = self._workers[chosen].resident
        while placed[chosen] and resident.fits(wanted) < wanted:
            part = placed[chosen].pop()
            resident.drop(part.range)
            streamed.append(part)

    def _search(
        self, placed: list[list[ResidentRange]], streamed: list[ResidentRange], values: Values, k: int
    ) -> Candidates:
        """The best k of all devices; all of them have begun before the first one is waited for."""
        started, results = [], []
        for worker, parts in zip(self._workers, placed, strict=True):
            wanted = [part for part in parts if part.candidates]
            if wanted:
                with worker.active():
                    pieces = [_piece(worker, part, worker.resident.get(part.range)) for part in wanted]
                    started.append((worker, worker.replays.begin(pieces, Batch(values, worker.device), k)))
        for worker, pending in started:
            with worker.active():
                results.append(Candidates(*pending.result()))
        for part in streamed:
            results += self._stream(part, values, k)
        return merge(results, k)

    def _stream(self, part: ResidentRange, values: Values, k: int) -> Iterator[Candidates]:
        """Search a range that no device holds, chunk by chunk, on the device with the most room."""
        whole = part.range
        worker = max(self._workers, key=lambda own: own.resident.fits(STREAM))
        step = min(STREAM, worker.resident.fits(STREAM)) // GROUP * GROUP
        for start in range(whole.begin, whole.end, step):
            chunk = whole._replace(begin=start, end=min(whole.end, start + step))
            first = (start - whole.begin) // GROUP
            mask = None if part.mask is None else part.mask[first : first + groups(chunk.end - start)]
            candidates = chunk.end - start if mask is None else masks.size(mask)
            piece = ResidentRange(chunk, part.base + start - whole.begin, mask, candidates)
            if not candidates:
                continue
            with worker.active():
                on_device = _piece(worker, piece, worker.resident.upload(chunk))
                batch = Batch(values, worker.device)
                yield Candidates(*proof.begin(worker.card, [on_device], batch, k).result())


def _piece(worker: Worker, part: ResidentRange, slab: Slab) -> SlabSearch:
    mask = None if part.mask is None else worker.resident.mask(part.mask)
    return SlabSearch(slab, part.base, mask, part.candidates)
