"""Small searches as CUDA graphs: a dozen launches and two copies become one launch.

Launching a dozen kernels from Python takes about 0.2 ms: little beside a scan of 10⁹ keywords, but five
times the work of a search of 10⁶. So the whole sequence is captured as a graph when the same kind of search
comes for the second time (the first compiles the kernels). A graph begins with a copy from its own pinned
buffer, into which the host writes the queries, and ends with a copy of the answer into another.

A graph refers to keywords by address, so it is kept with weak references to its slabs and used only while
these are alive. Searches with masks are not captured, because masks come and go.
"""

import weakref
from collections import OrderedDict
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from rbegir.search.gpu import proof
from rbegir.search.gpu.card import Batch, Card
from rbegir.search.gpu.proof import Pending
from rbegir.search.gpu.words import Slab, SlabSearch

LIMIT = 1 << 21  # slots of survivors: about 130 MB with what sorting needs
KEPT = 16
SLABS = 16  # per search; with more, looking them up costs more than a graph saves
Kind = tuple[object, ...]


class _Captured(NamedTuple):
    graph: torch.cuda.CUDAGraph
    queries: npt.NDArray[np.int16]  # the pinned buffer that the graph reads
    started: Pending  # without pieces
    slabs: list[weakref.ref[Slab]]


class Replays:
    """The captured searches of one device. The result of a search must be taken before the next begins."""

    def __init__(self, card: Card) -> None:
        self.card = card
        self._seen: OrderedDict[Kind, _Captured | None] = OrderedDict()  # None: seen once
        self._off = False  # a driver that cannot capture

    def clear(self) -> None:
        """Drop all graphs, as after a fault."""
        self._seen.clear()

    def begin(self, pieces: list[SlabSearch], batch: Batch, k: int) -> Pending:
        """Enqueue an exact search."""
        unfit = len(pieces) > SLABS or any(piece.mask is not None for piece in pieces)
        if self._off or unfit or batch.device.type != "cuda":
            return proof.begin(self.card, pieces, batch, k)
        kind: Kind = (
            k, batch.queries, batch.planes, batch.mixed, batch.wide, self.card.method(batch),
            *((id(piece.slab), piece.base) for piece in pieces),
        )  # fmt: skip
        if kind not in self._seen:
            return self._first(kind, pieces, batch, k)
        found = self._seen[kind]
        if found is None:
            try:
                found = self._seen[kind] = self._capture(pieces, batch, k)
            except RuntimeError:  # continue without graphs; a device that is lost fails below, too
                self._off = True
                self._seen.clear()
                return proof.begin(self.card, pieces, batch, k)
        elif any(there() is not piece.slab for there, piece in zip(found.slabs, pieces, strict=True)):
            return self._first(kind, pieces, batch, k)
        self._seen.move_to_end(kind)
        np.copyto(found.queries, batch.host)
        found.graph.replay()
        return replace(found.started, batch=batch, pieces=pieces)

    def _first(self, kind: Kind, pieces: list[SlabSearch], batch: Batch, k: int) -> Pending:
        """Search without a graph, which compiles the kernels, and remember the kind if it is small."""
        started = proof.begin(self.card, pieces, batch, k)
        self._seen.pop(kind, None)
        if started.found.positions.numel() <= LIMIT:
            self._seen[kind] = None
            while len(self._seen) > KEPT:
                self._seen.popitem(last=False)
        return started

    def _capture(self, pieces: list[SlabSearch], batch: Batch, k: int) -> _Captured:
        own = Batch(batch.host, batch.device, pinned=True)
        graph = torch.cuda.CUDAGraph()
        current = torch.cuda.current_stream(batch.device)
        side = torch.cuda.Stream(batch.device)  # type: ignore[no-untyped-call]
        side.wait_stream(current)
        with torch.cuda.stream(side):
            graph.capture_begin(capture_error_mode="thread_local")  # other devices' threads go on
            try:
                started = proof.begin(self.card, pieces, own, k)
                answer = torch.empty(started.answer.shape, dtype=torch.int64, pin_memory=True)
                answer.copy_(started.answer, non_blocking=True)
            finally:
                graph.capture_end()
        current.wait_stream(side)
        kept = replace(started, pieces=[], answer=answer)
        return _Captured(graph, own.source.numpy(), kept, [weakref.ref(p.slab) for p in pieces])
