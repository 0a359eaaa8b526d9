"""Fitting: a linear decoder and the codes of a sample, improved in turns, in the metric that ranks feel.

A code b stands for the vector A·b/‖b‖, and a query scores it by q·A·b/‖b‖: the decoder A moves to the query
side and costs nothing at search. What is minimised is the error that queries see,

    E (q·(x − x̂))² = ‖Σ_q^½ (x − x̂)‖²,

so vectors are first mapped by W = (Σ / mean eigenvalue)^p, Σ the covariance of queries if there are any and
of the vectors themselves else. p = ½ is the formula; but Σ is an average over all keywords while ranks are
decided among the neighbours of a query, where directions of small variance count too: p = 0.2 was best or
near it on every set tried. Then, by turns:

    codes   given A: `_core.refine`, a search over all bits together (not one rounding a dimension)
    A       given the codes: least squares, x ≈ A·b/‖b‖ over the sample, with a ridge for small samples

The start is the random frame of `frame.py`, whose rotation makes it independent of the basis that vectors
come in. A leaves orthogonality at once where the spectrum of the data decays: directions of large variance
are then written by several dimensions of different weight, those of small variance by none. That, and the
search, is what scalar quantisers, with one rounding for each dimension of a rotation, cannot do.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rbegir._native import _core
from rbegir.binarizer import frame
from rbegir.binarizer.rounding import nearest
from rbegir.binarizer.vectors import Floats
from rbegir.search.cpu import usable_cpus

METRIC_POWER = 0.2
SMALLEST = 1e-3  # eigenvalues below this part of their mean are taken for it
RIDGE = 1e-3
ROUNDS = 7


class Learned(NamedTuple):
    """What encoding needs."""

    metric: Floats  # [dims, dims] = W
    keyword: Floats  # [dims, n]: g = (x − μ)·keyword, keyword = W·A
    guess: Floats  # [dims, n]: rounding (x − μ)·guess starts the search
    gram: Floats  # [n, n] = AᵀA
    query: Floats  # [dims, n]: q' = q·query; its transpose decodes


def metric(covariance: Floats, power: float) -> tuple[Floats, Floats]:
    """W and its inverse [dims, dims] for a covariance."""
    values, directions = np.linalg.eigh(covariance.astype(np.float64))
    mean = max(float(values.mean()), 1e-30)
    values = np.maximum(values / mean, SMALLEST)
    forward, back = ((directions * values**exponent) @ directions.T for exponent in (power, -power))
    return forward.astype(np.float32), back.astype(np.float32)


def tenure(n: int) -> int:
    """Moves that a dimension rests after it moved: 3 was best for n = 64 and 128, 5 to 7 for 384."""
    return max(3, 2 + n // 128)


def search(g: Floats, gram: Floats, planes: int, moves: int, start: Floats) -> Floats:
    """Codes [count, n] as odd floats for g = Aᵀx [count, n]; `start` is improved in place."""
    h: Floats = start @ gram
    _core.refine(
        np.ascontiguousarray(g, np.float32),
        gram,
        start,
        h,
        planes,
        moves,
        tenure(len(gram)),
        usable_cpus(),
        1,
    )
    return start


def decoder(vectors: Floats, codes: Floats, ridge: float = RIDGE) -> Floats:
    """A [dims, n]: the least squares of x ≈ A·b/‖b‖."""
    unit = codes / np.linalg.norm(codes, axis=1, keepdims=True)  # [rows, n]
    n = unit.shape[1]
    products = (unit.T @ unit).astype(np.float64)
    products[np.diag_indices(n)] += ridge * np.trace(products) / n
    solved: Floats = np.linalg.solve(products, (unit.T @ vectors).astype(np.float64)).T.astype(np.float32)
    return np.ascontiguousarray(solved)


def regression(vectors: Floats, codes: Floats) -> Floats:
    """[dims, n]: the least squares of b/‖b‖ ≈ x·guess."""
    unit = codes / np.linalg.norm(codes, axis=1, keepdims=True)  # [rows, n]
    dims = vectors.shape[1]
    products = (vectors.T @ vectors).astype(np.float64)
    products[np.diag_indices(dims)] += max(RIDGE * np.trace(products) / dims, 1e-30)
    return np.linalg.solve(products, (vectors.T @ unit).astype(np.float64)).astype(np.float32)


def learn(
    centred: Floats, covariance: Floats, queries: Floats | None, n: int, planes: int, rounds: int, seed: int
) -> Learned:
    """A decoder for centred vectors [rows, dims]; `queries` is the covariance of queries, if it is known."""
    forward, back = metric(covariance if queries is None else queries, METRIC_POWER)
    vectors: Floats = centred @ forward
    a = frame.start(np.asarray(forward @ covariance @ forward, np.float32), n, seed)
    projected: Floats = vectors @ a
    codes: Floats = nearest(projected, planes).astype(np.float32)
    a = decoder(vectors, codes)
    for _ in range(rounds):
        projected = vectors @ a
        codes = search(projected, np.ascontiguousarray(a.T @ a), planes, n // 8, codes)
        a = decoder(vectors, codes)
    guess = regression(vectors, codes)
    return Learned(forward, forward @ a, forward @ guess, np.ascontiguousarray(a.T @ a), back @ a)
