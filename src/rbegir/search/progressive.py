"""Progressive search: scan the first planes of all keywords, rescore the best with all planes.

Planes are stored one after the other, so the first t of P planes are a prefix of the buffer and scanning them
reads t/P of the bytes. The `candidates` best by this coarse score are scored with all planes, and the best k
of them are the result. It is not exact: a keyword that the coarse score ranks below all candidates is missed.

The recall is either measured against the exact search, or estimated from the result alone. The estimate: let
a_i of the final hits have a coarse rank in the octave
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
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rbegir.base.checks import whole_number
from rbegir.codes.layout import packed_bytes
from rbegir.search.partition import Candidates, Partition


class Progressive(NamedTuple):
    """The result of a progressive search and its recall."""

    candidates: Candidates
    recall: float
    measured: bool  # False: the recall is the estimate described above


def check_candidates(candidates: int | None, k: int) -> int:
    """The number of candidates to rescore, at least k; by default 20 k, and at least 1000."""
    return max(20 * k, 1000) if candidates is None else whole_number("candidates", candidates, k)


def coarse(partitions: Sequence[Partition], n: int, planes: int) -> list[Partition]:
    """Partitions of the first planes of the same keywords; nothing is copied."""
    return [part._replace(packed=part.packed[: packed_bytes(part.count, n, planes)]) for part in partitions]


def recall_of(found: npt.NDArray[np.int64], exact: npt.NDArray[np.int64]) -> float:
    """The share of the exact positions [queries, k] that are among the found ones [queries, k]."""
    if exact.size == 0:
        return 1.0
    hits = sum(len(np.intersect1d(a, b)) for a, b in zip(found, exact, strict=True))
    return hits / exact.size


def estimate_recall(
    found: npt.NDArray[np.int64], coarse_order: npt.NDArray[np.int64], keywords: int
) -> float:
    """The recall of final positions [queries, k] chosen from coarse ones [queries, m], as estimated above."""
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


def check_planes(planes: int, all_planes: int) -> int:
    """The number of planes to scan first: from 1 to all of them."""
    return whole_number("planes", planes, 1, all_planes)
