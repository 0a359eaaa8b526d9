"""The contract of a search backend: packed keywords and integer queries in, the best k in total order out.

    search               the true best k, or all that a query's limits allow
    search_paper         the published selection and its certificate
    search_progressive   the first planes of all keywords, then all planes of the best
    rescore, keys_at     the best k among given positions, or their order keys
    maxsim               the best k items by late interaction (`search.items`)
    with_planes          a backend of the same kind for codes of another number of planes

All backends return equal results, ties included. A new backend is one module with a subclass that has
`_find`, `_maxsim` and `with_planes`, and a line in `open_backend`; it overrides the rest where it can be
faster.

A progressive search of the first t of P planes reads t/P of the bytes. It is not exact: a keyword that the
coarse score ranks below all `candidates` is missed. Recall with planes=1 on 2·10⁶ random codes of two planes,
k = 100: 0.78 with 10 k candidates, 0.88 with 20 k, 0.97 with 50 k, 0.99 with 100 k. Trained codes do better.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import ClassVar, NamedTuple

import numpy as np

from rbegir.base.devices import names_of, split_name
from rbegir.codes import score
from rbegir.codes.layout import check_keyword_planes, packed_bytes, unpack
from rbegir.codes.planes import check_dimension
from rbegir.errors import InputError, whole_number
from rbegir.search.items import ItemHits, ItemOrder
from rbegir.search.missrate import MissCertificate
from rbegir.search.paper import select_paper, thread_sizes
from rbegir.search.partition import (
    Candidates,
    Int64s,
    Limits,
    Partition,
    Values,
    recall_of,
)

__all__ = ["Backend", "Candidates", "Partition"]
Progress = Callable[[int, int], None]
FIRST, DEEPER = 4096, 8  # hits that are looked for if their number is not known, and how it grows


class Progressive(NamedTuple):
    """The result of a progressive search and its recall, measured or estimated (`estimate_recall`)."""

    candidates: Candidates
    recall: float


class Backend(ABC):
    """Searches packed keywords of dimension n with a fixed number of planes."""

    refines: ClassVar[bool] = True  # a progressive search saves time; else it is the exact search

    def __init__(self, n: int, planes: int) -> None:
        check_dimension(n)
        check_keyword_planes(planes)
        self.n, self.planes = n, planes

    @abstractmethod
    def with_planes(self, planes: int) -> Backend:
        """A backend of the same kind for codes of another number of planes."""

    def search(
        self, partitions: Sequence[Partition], values: Values, k: int | None, limits: Limits | None = None
    ) -> Candidates:
        """The best k of each query of int16 [queries, n], exactly; k None: all that its limits allow."""
        parts, width = list(partitions), FIRST if k is None else k
        found = self._find(parts, values, width, limits)
        keywords = sum(part.count for part in parts)
        while k is None and width < keywords and (full := np.flatnonzero(found.counts == width)).size:
            width *= DEEPER
            more = self._find(parts, values[full], width, None if limits is None else limits.of(full))
            found = Candidates.spread(len(values), [(np.arange(len(values)), found), (full, more)])
        return found

    @abstractmethod
    def _find(self, parts: list[Partition], values: Values, k: int, limits: Limits | None) -> Candidates:
        """`search` for a given k."""

    def _by_filter(self, parts: list[Partition], values: Values, k: int, limits: Limits) -> Candidates:
        """`_find` with one search for each filter."""
        found = []
        for number in np.unique(limits.filters).tolist():
            these = np.flatnonzero(limits.filters == number)
            own = limits.of(these)._replace(filters=np.full(len(these), -1))
            masked = [part.under(number) for part in parts]
            found.append((these, self._find(masked, values[these], k, own if own.bounds_keys else None)))
        return Candidates.spread(len(values), found)

    def _deeper(self, parts: list[Partition], values: Values, k: int, limits: Limits) -> Candidates:
        """`_find` within bounds of the keys, from unlimited searches that go deeper until enough pass."""
        found, open_queries, width = [], np.arange(len(values)), k
        while open_queries.size:
            asked = limits.of(open_queries)
            deep = self._find(parts, values[open_queries], width, None)  # [open, ≤ width]
            passes = asked.passes(*deep)
            done = np.count_nonzero(passes, axis=1) >= k
            if deep.keys.shape[1] < width:
                done[:] = True
            else:
                done |= deep.keys[:, -1] < asked.floors
            chosen = np.flatnonzero(done)
            deep = Candidates(deep.keys[chosen], deep.positions[chosen])
            found.append((open_queries[chosen], deep.only(passes[chosen], k)))
            open_queries, width = open_queries[~done], width * DEEPER
        return Candidates.spread(len(values), found)

    def keys_at(self, partitions: Sequence[Partition], values: Values, positions: Int64s) -> Int64s:
        """The order keys [queries, m] of the keywords at `positions` [queries, m]; masks are ignored."""
        ranked = self.rescore(partitions, values, positions, positions.shape[1])
        keys = np.empty_like(positions)
        by_position = np.take_along_axis(ranked.keys, np.argsort(ranked.positions, axis=1), axis=1)
        np.put_along_axis(keys, np.argsort(positions, axis=1), by_position, axis=1)
        return keys

    def rescore(
        self, partitions: Sequence[Partition], values: Values, positions: Int64s, k: int
    ) -> Candidates:
        """The best k of each query among the keywords at `positions` [queries, m]; masks are ignored."""
        keys = np.zeros(positions.shape, np.int64)
        begin = 0
        for part in partitions:
            for query, row in enumerate(positions):
                here = np.flatnonzero((row >= begin) & (row < begin + part.count))
                codes = unpack(part.packed, part.count, self.n, self.planes, row[here] - begin)
                keys[query, here] = score.keys(values[query : query + 1], codes)[0]
            begin += part.count
        return Candidates(keys, positions).best(k)

    def maxsim(self, partitions: Sequence[Partition], values: Values, order: ItemOrder, k: int) -> ItemHits:
        """The best k items for one query of several vectors, int16 [vectors, n]."""
        return self._maxsim(list(partitions), values, order, k)

    @abstractmethod
    def _maxsim(self, parts: list[Partition], values: Values, order: ItemOrder, k: int) -> ItemHits:
        """`maxsim` of a device."""

    def search_paper(
        self,
        partitions: Sequence[Partition],
        values: Values,
        k: int,
        *,
        per_thread: int = 256,
        queue: int = 1,
    ) -> tuple[Candidates, MissCertificate]:
        """The published selection (I = `per_thread`, q = `queue`) and what it may miss."""
        sizes = thread_sizes(partitions, per_thread)
        return select_paper(partial(self.search, partitions), sizes, values, k, per_thread, queue)

    def search_progressive(
        self,
        partitions: Sequence[Partition],
        values: Values,
        k: int,
        *,
        planes: int = 1,
        candidates: int | None = None,
        measure: bool = False,
    ) -> Progressive:
        """Scan the first `planes`, rescore the best `candidates`; recall is estimated unless `measure`."""
        parts = list(partitions)
        planes, m = check_planes(planes, self.planes), check_candidates(candidates, k)
        if not self.refines:
            return Progressive(self.search(parts, values, k), 1.0)
        ranked = self.with_planes(planes).search(coarse(parts, self.n, planes), values, m).positions  # [Q, m]
        result = self.rescore(parts, values, ranked, k)
        if measure:
            exact = self.search(parts, values, k)
            return Progressive(result, recall_of(result.positions, exact.positions))
        if planes == self.planes:
            return Progressive(result, 1.0)
        keywords = sum(part.count for part in parts)
        return Progressive(result, estimate_recall(result.positions, ranked, keywords))


def check_planes(planes: int, all_planes: int) -> int:
    """The number of planes to scan first: from 1 to all of them."""
    return whole_number("planes", planes, 1, all_planes)


def check_candidates(candidates: int | None, k: int) -> int:
    """The number of candidates to rescore, at least k; by default 20 k, and at least 1000."""
    return max(20 * k, 1000) if candidates is None else whole_number("candidates", candidates, k)


def coarse(partitions: Sequence[Partition], n: int, planes: int) -> list[Partition]:
    """Partitions of the first planes of the same keywords; nothing is copied."""
    return [part._replace(packed=part.packed[: packed_bytes(part.count, n, planes)]) for part in partitions]


def estimate_recall(found: Int64s, coarse_order: Int64s, keywords: int) -> float:
    """The recall of final positions [queries, k] chosen from coarse ones [queries, m], estimated.

    Let a_i of the final hits have a coarse rank in the octave (m / 2^(i+1), m / 2^i] of the m candidates.
    From octave to octave their number changes by r_i = a_i / a_(i+1), and r itself falls by about the same
    factor r₀ / r₁ each time. Continued to octaves beyond m this gives the number B of missed keywords that
    would reach the last hit, and k / (k + B) as recall. Octaves are pooled over the queries of a batch. On
    random codes of two planes it is within 0.15 of the truth for m ≥ 10 k and within 0.05 for m ≥ 50 k,
    mostly on the low side; one query of few hits says little.
    """
    m = coarse_order.shape[1]
    if found.size == 0 or m >= keywords:
        return 1.0
    octaves = np.zeros(3)  # a₀, a₁, a₂
    for final, ranked in zip(found, coarse_order, strict=True):
        ranks = np.flatnonzero(np.isin(ranked, final)) + 1
        octaves += [np.count_nonzero((ranks > m / 2 ** (i + 1)) & (ranks <= m / 2**i)) for i in range(3)]
    last, *before = np.maximum(octaves, 0.5).tolist()  # an empty octave counts as half a hit
    ratio = last / before[0]
    fall = min(ratio / (before[0] / before[1]), 0.9)
    beyond = 0.0
    for _ in range(math.ceil(math.log2(keywords / m))):
        ratio *= fall
        last *= ratio
        beyond += last
    return float(found.size / (found.size + beyond))


def on_cpu(device: str) -> bool:
    """Whether a device is searched with the native scan, whose progressive search saves time."""
    return device != "interpreter" and split_name(device)[0] == "cpu"


def open_backend(
    device: str | Sequence[str],
    n: int,
    planes: int,
    threads: int | None = None,
    progress: Progress | None = None,
) -> Backend:
    """The backend for codes of `planes` planes and dimension n on one device, or on a list of devices.

    "interpreter" runs the GPU kernels on the CPU, slowly, under Triton's interpreter: for tests and for
    debugging where there is no GPU. It needs TRITON_INTERPRET=1 in the environment.
    `threads` bounds the CPU threads of a search. `progress` is called with (keywords loaded, keywords to
    load) while keywords are copied to a GPU.
    """
    names = names_of(device)
    native = [on_cpu(name) for name in names]
    if not any(native):
        from rbegir.search.gpu.backend import GpuBackend

        return GpuBackend(n, planes, names, progress=progress)
    if not all(native):
        raise InputError("device 'cpu' cannot be mixed with others", hint="name GPUs only, or 'cpu' alone")
    if len(names) > 1:
        raise InputError("device 'cpu' must stand alone", hint="bound its threads with threads=")
    from rbegir.search.cpu import CpuBackend

    return CpuBackend(n, planes, threads=threads)
