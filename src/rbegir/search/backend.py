"""The contract of a search backend: packed keywords and integer queries in, the best k in total order out.

    search               the true best k
    search_paper         the published selection and its certificate
    search_progressive   the first planes of all keywords, then all planes of the best
    rescore              the best k among given positions
    with_planes          a backend of the same kind for codes of another number of planes

All backends return equal results, ties included. A new backend is one module with a subclass that has
`open`, `search` and `with_planes`, and one line in `registry`; it overrides the rest where it can be faster.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Self

import numpy as np
import numpy.typing as npt

from rbegir.codes import score
from rbegir.codes.layout import check_keyword_planes, unpack
from rbegir.codes.planes import check_dimension
from rbegir.search.missrate import MissCertificate
from rbegir.search.paper import BLOCK, check_settings, select_paper, thread_sizes
from rbegir.search.partition import Candidates, Partition, check_positions, check_search
from rbegir.search.progressive import (
    Progressive,
    check_candidates,
    check_planes,
    coarse,
    estimate_recall,
    recall_of,
)

__all__ = ["Backend", "Candidates", "Partition"]
Progress = Callable[[int, int], None]


class Backend(ABC):
    """Searches packed keywords of dimension n with a fixed number of planes."""

    def __init__(self, n: int, planes: int) -> None:
        check_dimension(n)
        check_keyword_planes(planes)
        self.n, self.planes = n, planes

    @classmethod
    @abstractmethod
    def open(
        cls, devices: Sequence[str], n: int, planes: int, *, threads: int | None, progress: Progress | None
    ) -> Self:
        """A backend on the named devices. `progress` is called with (keywords loaded, keywords to load)."""

    @abstractmethod
    def with_planes(self, planes: int) -> Backend:
        """A backend of the same kind for codes of another number of planes."""

    @abstractmethod
    def search(self, partitions: Sequence[Partition], values: npt.NDArray[np.int16], k: int) -> Candidates:
        """The best k of each query of int16 [queries, n], exactly."""

    def rescore(
        self,
        partitions: Sequence[Partition],
        values: npt.NDArray[np.int16],
        positions: npt.NDArray[np.int64],
        k: int,
    ) -> Candidates:
        """The best k of each query among the keywords at `positions` [queries, m]; masks are ignored."""
        parts, values, k = check_search(partitions, values, k, self.n, self.planes)
        positions = check_positions(positions, len(values), sum(part.count for part in parts))
        keys = np.zeros(positions.shape, np.int64)
        begin = 0
        for part in parts:
            for query, row in enumerate(positions):
                here = np.flatnonzero((row >= begin) & (row < begin + part.count))
                codes = unpack(part.packed, part.count, self.n, self.planes, row[here] - begin)
                keys[query, here] = score.keys(values[query : query + 1], codes)[0]
            begin += part.count
        return Candidates(keys, positions).best(k)

    def search_paper(
        self,
        partitions: Sequence[Partition],
        values: npt.NDArray[np.int16],
        k: int,
        *,
        per_thread: int = 256,
        queue: int = 1,
        block: int = BLOCK,
    ) -> tuple[Candidates, MissCertificate]:
        """The published selection (I = `per_thread`, q = `queue`, T_b = `block`) and what it may miss."""
        parts, values, k = check_search(partitions, values, k, self.n, self.planes)
        check_settings(per_thread, queue, block)
        sizes = thread_sizes(parts, per_thread, block)
        search = partial(self.search, parts)
        return select_paper(search, sizes, values, k, per_thread=per_thread, queue=queue, block=block)

    def search_progressive(
        self,
        partitions: Sequence[Partition],
        values: npt.NDArray[np.int16],
        k: int,
        *,
        planes: int = 1,
        candidates: int | None = None,
        measure: bool = False,
    ) -> Progressive:
        """Scan the first `planes` of all keywords, rescore the best `candidates` with all planes.

        The recall is measured against an exact search if `measure` is set, otherwise estimated.
        """
        parts, values, k = check_search(partitions, values, k, self.n, self.planes)
        planes, m = check_planes(planes, self.planes), check_candidates(candidates, k)
        ranked = self.with_planes(planes).search(coarse(parts, self.n, planes), values, m).positions  # [Q, m]
        result = self.rescore(parts, values, ranked, k)
        if measure:
            exact = self.search(parts, values, k)
            return Progressive(result, recall_of(result.positions, exact.positions), True)
        if planes == self.planes:
            return Progressive(result, 1.0, True)
        keywords = sum(part.count for part in parts)
        return Progressive(result, estimate_recall(result.positions, ranked, keywords), False)
