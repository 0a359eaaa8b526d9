"""Progressive precision: scan coarse codes, refine the best candidates with all planes.

Planes are stored apart, so the first t of P planes are a prefix of the buffer and scanning them reads t/P
of the bytes. The `candidates` best by the coarse score are scored with all planes, and the best k of them
are the result. Not exact: a keyword that the coarse score ranks below all candidates is missed.

The recall that is reported is measured against the exact search when `measure` is set, and otherwise
estimated from the result alone. The estimate: let a_i of the final hits have a coarse rank in the octave
(m / 2^(i+1), m / 2^i] of the m candidates. From octave to octave their number changes by r_i = a_i / a_(i+1),
and r itself falls by about the same factor r₀ / r₁ each time. Continued to octaves beyond m this gives the
number B of missed keywords that would reach the last hit, and k / (k + B) as recall. Octaves are pooled over
the queries of a batch. On random codes of two planes it is within 0.15 of the truth for m ≥ 10 k and within
0.05 for m ≥ 50 k, mostly on the low side; one query of few hits says little.

Recall with planes=1 on 2·10⁶ random codes of two planes, k = 100: 0.78 with 10 k candidates, 0.88 with 20 k,
0.97 with 50 k, 0.99 with 100 k. Trained codes put more into the base vector and do better.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rbegir.codes.layout import packed_bytes
from rbegir.errors import InputError
from rbegir.search.backend import Backend, Candidates, Partition, check_search


class Progressive(NamedTuple):
    """The result of a progressive search and its recall."""

    candidates: Candidates
    recall: float
    measured: bool  # False: the recall is the estimate described above


def check_candidates(candidates: int | None, k: int) -> int:
    """How many are refined; None: twenty times k, and at least 1000."""
    if candidates is None:
        return max(20 * k, 1000)
    if isinstance(candidates, bool) or not isinstance(candidates, (int, np.integer)) or candidates < k:
        raise InputError(f"candidates must be an integer of at least k = {k}, got {candidates!r}")
    return int(candidates)


def coarse(partitions: Sequence[Partition], n: int, planes: int) -> list[Partition]:
    """The same keywords with their first planes only; nothing is copied."""
    return [part._replace(packed=part.packed[: packed_bytes(part.count, n, planes)]) for part in partitions]


def recall_of(found: npt.NDArray[np.int64], exact: npt.NDArray[np.int64]) -> float:
    """The share of exact positions [queries, k] that were found [queries, k]."""
    if exact.size == 0:
        return 1.0
    hits = sum(len(np.intersect1d(a, b)) for a, b in zip(found, exact, strict=True))
    return hits / exact.size


def estimate_recall(
    found: npt.NDArray[np.int64], coarse_order: npt.NDArray[np.int64], keywords: int
) -> float:
    """The estimate of the module docstring from final [queries, k] and coarse [queries, m] positions."""
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


class Refining(ABC):
    """Progressive search, for backends that can also score chosen keywords."""

    n: int
    planes: int

    @abstractmethod
    def search(self, partitions: Sequence[Partition], values: npt.NDArray[np.int16], k: int) -> Candidates:
        """The best k of each query, exactly."""

    @abstractmethod
    def rescore(
        self,
        partitions: Sequence[Partition],
        values: npt.NDArray[np.int16],
        positions: npt.NDArray[np.int64],
        k: int,
    ) -> Candidates:
        """The best k among the keywords at `positions` [queries, m]; masks do not matter."""

    @abstractmethod
    def with_planes(self, planes: int) -> Backend:
        """A backend for codes of another number of planes."""

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
        """Scan the first planes, refine the best `candidates` with all of them, as told above."""
        parts, values, k = check_search(partitions, values, k, self.n, self.planes)
        planes = check_planes(planes, self.planes)
        m = check_candidates(candidates, k)
        first = self.with_planes(planes).search(coarse(parts, self.n, planes), values, m)
        ranked = first.positions  # [queries, m]
        result = self.rescore(parts, values, ranked, k)
        if measure:
            exact = self.search(parts, values, k)
            return Progressive(result, recall_of(result.positions, exact.positions), True)
        if planes == self.planes:
            return Progressive(result, 1.0, True)
        keywords = sum(part.count for part in parts)
        return Progressive(result, estimate_recall(result.positions, ranked, keywords), False)


def check_planes(planes: int, all_planes: int) -> int:
    """The number of planes to scan first."""
    if isinstance(planes, bool) or not isinstance(planes, (int, np.integer)) or not 1 <= planes <= all_planes:
        raise InputError(f"planes must be from 1 to {all_planes}, got {planes!r}")
    return int(planes)
