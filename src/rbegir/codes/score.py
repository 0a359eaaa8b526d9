"""The score, in plain NumPy: the specification that every backend must equal, ties included.

A query is a vector of integers q (|q_d| ≤ 255: the odd integers of up to eight planes, or any 8-bit integer
query), a keyword a vector of odd integers k of one to four planes. Their similarity is the cosine

    cos = q·k / (‖q‖ ‖k‖)

and ‖q‖ is the same for all keywords, so keywords are ordered by q·k / ‖k‖: exactly, without rounding. As x ↦
sign(x)·x² is monotone, that is the order of the rationals sign(q·k)·(q·k)² / ‖k‖². With a = (q·k)² and
b = ‖k‖², two different such fractions differ by at least 1/(b·b') ≥ 1/230400² > 2⁻³⁶ (n ≤ 1024, four planes:
b ≤ 1024·15²), so the fixed-point number

    key = sign(q·k) · ⌊2³⁶ · a / b⌋                                        # int64

is equal exactly when the fractions are equal, and ordered as they are. By Cauchy–Schwarz a/b ≤ ‖q‖² ≤
1024·255² < 2²⁶, so it fits. Hits are ordered by (key descending, row ascending) everywhere; the float that
people see is derived from the key in one place, so it is the same number on every device: the cosine of the
codes (`cosines`), or what an encoder with a method `key_scores` makes of it (`encoder.key_scores`).

The norm needs no storage: ‖k‖² = Σ_d k_d² is a function of the popcounts of XORs of the planes. For two
planes k_d ∈ {±1, ±3} and ‖k‖² = 9n − 8·popcount(p₀ XOR p₁).
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from rbegir.codes.planes import Codes

KeyScores = Callable[[npt.NDArray[np.int64]], npt.NDArray[np.float64]]  # order keys [Q, k] → scores [Q, k]
FRACTION_BITS = 36
QUERY_LIMIT = 255
KEY_LIMIT = 1 << 62  # keys lie between −KEY_LIMIT and KEY_LIMIT


def dot(queries: npt.NDArray[np.int16], keywords: npt.NDArray[np.int16]) -> npt.NDArray[np.int64]:
    """q·k of integer vectors [Q, n] and [K, n] → [Q, K]. float64 products are exact: all sums are < 2⁵³."""
    product: npt.NDArray[np.float64] = queries.astype(np.float64) @ keywords.astype(np.float64).T
    return product.astype(np.int64)


def norm_squared(values: npt.NDArray[np.int16]) -> npt.NDArray[np.int64]:
    """‖v‖² of integer vectors [count, n] → [count]."""
    wide = values.astype(np.int64)
    squares: npt.NDArray[np.int64] = (wide * wide).sum(axis=1)
    return squares


def order_key(dots: npt.NDArray[np.int64], norms: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The exact, integer order key of dot products [..., K] with keywords of squared norms [K]."""
    whole, rest = np.divmod(dots * dots, norms)
    key = (whole << FRACTION_BITS) + (rest << FRACTION_BITS) // norms
    return np.where(dots < 0, -key, key)


def keys(queries: npt.NDArray[np.int16], keywords: Codes) -> npt.NDArray[np.int64]:
    """Order keys of every (query, keyword) pair [Q, K]. Queries are integer vectors [Q, n]."""
    values = keywords.values()
    return order_key(dot(queries, values), norm_squared(values))


def cosine(
    order_keys: npt.NDArray[np.int64], query_norms_squared: npt.NDArray[np.int64]
) -> npt.NDArray[np.float64]:
    """The cosine that an order key stands for, [Q, k] with ‖q‖² [Q]; 0 for the zero query."""
    scale = np.maximum(query_norms_squared, 1).astype(np.float64)[:, None] * 2.0**FRACTION_BITS
    magnitude = np.sqrt(np.abs(order_keys).astype(np.float64) / scale)
    return np.where(order_keys < 0, -magnitude, magnitude)


def cosines(values: npt.NDArray[np.int16]) -> KeyScores:
    """A function from order keys [Q, k] to cosines, for queries with these integers [Q, n]."""
    norms = norm_squared(values)
    return lambda order_keys: cosine(order_keys, norms)


def least_keys(
    min_score: float | npt.NDArray[np.float64], scores: KeyScores, queries: int
) -> npt.NDArray[np.int64]:
    """The least order key [Q] whose score is at least `min_score`.

    Found by bisection, because a score never falls as the key rises: every step of `cosine` is monotone,
    rounding included. So a keyword reaches this key exactly when the score that people see reaches
    `min_score`.
    """
    low = np.full(queries, -KEY_LIMIT)
    high = np.full(queries, KEY_LIMIT)  # no keyword reaches it
    while np.any(low < high):
        middle = (low + high) >> 1
        enough = scores(middle[:, None])[:, 0] >= min_score
        low, high = np.where(enough, low, middle + 1), np.where(enough, middle, high)
    return low
