"""MaxSim: what a backend is given and returns, and the order in which matches are added up.

    score(query, item) = Σ over vectors q of the query of  max over keywords k of the item of  cos(q, k)

The maxima are taken of q·k · 1/‖k‖, an exact integer times a float64. They are multiplied by 1/‖q‖ and added
as in `_native/maxsim_simd.hpp`: within blocks of 32 vectors by halves, then block after block. So every
backend returns the same bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rbegir.search.partition import Int64s, Values

BLOCK = 32  # vectors that are added by halves
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class ItemOrder:
    """The keywords of each item. A backend may keep what it derives from this as long as it lives.

    Keywords that no item has, such as deleted ones, are not there; positions of no partition do not count.
    """

    positions: Int64s  # [keywords] item after item, counted through all partitions
    starts: Int64s  # [items + 1] where each item starts


class ItemHits(NamedTuple):
    """The best items of a query, in falling order of scores; of equals the first item comes first."""

    items: Int64s  # [hits]
    scores: Floats  # [hits]
    firsts: Int64s  # [hits] the position of the first candidate of each item


def best_items(items: Int64s, scores: Floats, firsts: Int64s, k: int) -> ItemHits:
    """The best k of some items, given in ascending order; `firsts` is −1 for an item without candidates."""
    scores = np.where(firsts < 0, -np.inf, scores)
    k = min(k, int(np.sum(firsts >= 0)))
    if not k:
        return ItemHits(np.zeros(0, np.int64), np.zeros(0), np.zeros(0, np.int64))
    kept = np.flatnonzero(scores >= np.partition(scores, -k)[-k])
    best = kept[np.argsort(-scores[kept], kind="stable")][:k]
    return ItemHits(items[best], scores[best], firsts[best])


def inverse_norms(values: Values) -> Floats:
    """1/‖q‖ of each vector; 0 for a zero vector."""
    norms = np.sqrt((values.astype(np.float64) ** 2).sum(axis=1))
    inverse: Floats = np.divide(1, norms, out=np.zeros_like(norms), where=norms > 0)
    return inverse


def add_up(matches: Floats, values: Values) -> Floats:
    """Scores [items] from the maxima of q·k / ‖k‖ [items, vectors]."""
    inverse, scores = inverse_norms(values), np.zeros(len(matches))
    for start in range(0, len(values), BLOCK):
        own = matches[:, start : start + BLOCK] * inverse[start : start + BLOCK]
        block = np.zeros((len(matches), BLOCK))
        block[:, : own.shape[1]] = own
        while block.shape[1] > 1:
            half = block.shape[1] // 2
            block = block[:, :half] + block[:, half:]
        scores += block[:, 0]
    return scores
