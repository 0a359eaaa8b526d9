"""Fitting: a linear decoder and the codes of a sample, improved in turns, in the metric that ranks feel.

A code b stands for the vector A·b/‖b‖, and a query scores it by q·A·b/‖b‖: the decoder A moves to the query
side and costs nothing at search. What is minimised is the error that queries see,

    E (q·(x − x̂))² = ‖Σ_q^½ (x − x̂)‖²,

so vectors are first mapped by W = (Σ / mean eigenvalue)^p, Σ the covariance of queries if there are any and
of the vectors themselves else. p = ½ is the formula; but Σ is an average over all keywords while ranks are
decided among the neighbours of a query, where directions of small variance count too: p = 0.2 was best or
near it on every set tried.

That error takes queries to lie anywhere. Those that x must be found by lie near x itself, q = s·x + a rest:
the error along x counts more than the same error across, except for the part that all vectors have in common,
which moves every score alike. So a code minimises

    ‖W(x − x̂)‖² + w·(x·(x − x̂) − c)²        c: what codes fall short by along x, on average; w = ALONG

which is again quadratic in the code, the Gram matrix plus one of rank one. w from s and the dimension by the
formula would be 50 and more; measured, 3 to 8 are best on every set (the formula does not know that errors
across then grow), and the recall of the top 10 rises by as much as four times the moves give. A decoder
that is also fitted to the second term was no better than least squares.

What is coded is x − 0.7·mean. Taking the whole mean away leaves lengths that differ, which b/‖b‖ is bad at;
taking none away leaves all unit vectors of one length, and bits are spent on what all have in common. Any
centre gives the same order: q·(x − centre) differs from q·x by what belongs to the query. Then, by turns:

    codes   given A: `_core.refine`, a search over all bits together (not one rounding a dimension)
    A       given the codes: least squares, x ≈ A·b/‖b‖ over the sample, with a ridge for small samples

The start needs no training: centre, then a random rotation that spreads directions over all bits.

    y = Aᵀ (x − μ)            A [dims, n], A Aᵀ = I for n ≥ dims: a tight frame, lengths and angles kept
    q' = Aᵀ q                 so that q'·y = q·(x − μ), which orders keywords as q·x does

For n < dims, A is the basis of the n directions of largest variance, rotated: what it leaves out is what
matters least. A rotation makes all coordinates alike, near to Gaussian, which is what rounding with one
step per row assumes; without it a few coordinates would hold most of the variance and the bits of the others
would be spent on nothing. It also makes the start independent of the basis that vectors come in. A leaves
orthogonality at once where the spectrum of the data decays: directions of large variance are then written by
several dimensions of different weight, those of small variance by none. That, and the search, is what scalar
quantisers, with one rounding for each dimension of a rotation, cannot do.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rbegir._native import _core
from rbegir._native.isa import choose_isa
from rbegir.base.devices import cpu_count
from rbegir.encode.binarizer.rounding import nearest
from rbegir.encode.binarizer.vectors import Floats, dots, product

METRIC_POWER = 0.2
ALONG = 5.0
CENTRED = 0.7  # of the mean is taken away
SETTLED = 2  # turns before the search weighs errors along the vector: the first codes fall short by too much
SMALLEST = 1e-3  # eigenvalues below this part of their mean are taken for it
RIDGE = 1e-3
ROUNDS = 7


class Learned(NamedTuple):
    """What encoding needs: the tensors of a stored Binarizer."""

    mean: Floats  # [dims]: the centre, which is taken away from every vector
    metric: Floats  # [dims, dims] = W
    keyword: Floats  # [dims, n]: g = (x − centre)·keyword, keyword = W·A
    guess: Floats  # [dims, n]: rounding (x − centre)·guess starts the search
    gram: Floats  # [n, n] = AᵀA
    query: Floats  # [dims, n]: q' = q·query; its transpose decodes
    along: Floats  # [2]: w and c of the error along the vector


class Terms(NamedTuple):
    """The quadratic form that a code of each vector minimises: b(G + vvᵀ)b/‖b‖² − 2·g·b/‖b‖ + a constant."""

    g: Floats  # [count, n]
    v: Floats  # [count, n]


def rotation(size: int, seed: int) -> Floats:
    """A random orthogonal matrix [size, size], uniform over all of them."""
    gaussian = np.random.default_rng(seed).standard_normal((size, size))
    q, r = np.linalg.qr(gaussian)
    return np.asarray(q * np.sign(np.diagonal(r)), np.float32)


def start_frame(covariance: Floats, n: int, seed: int) -> Floats:
    """The decoder A [dims, n] before any training."""
    dims = len(covariance)
    if n >= dims:
        return rotation(n, seed)[:dims]
    _, directions = np.linalg.eigh(covariance.astype(np.float64))  # ascending
    return np.asarray(directions[:, ::-1][:, :n] @ rotation(n, seed), np.float32)


def metric(covariance: Floats, power: float) -> tuple[Floats, Floats]:
    """W and its inverse [dims, dims] for a covariance."""
    values, directions = np.linalg.eigh(covariance.astype(np.float64))
    mean = max(float(values.mean()), 1e-30)
    values = np.maximum(values / mean, SMALLEST)
    forward, back = ((directions * values**exponent) @ directions.T for exponent in (power, -power))
    return forward.astype(np.float32), back.astype(np.float32)


def terms(vectors: Floats, learned: Learned) -> Terms:
    """The terms of unit vectors [count, dims]."""
    weight, short = learned.along
    centred: Floats = vectors - learned.mean
    g = product(centred, learned.keyword)
    if not weight:
        return Terms(g, np.zeros_like(g))
    v = product(vectors, learned.query)  # x·x̂ = v·b/‖b‖
    target = dots(vectors, centred) - short
    g += (weight * target)[:, None] * v
    v *= np.sqrt(weight)
    return Terms(g, v)


def constants(vectors: Floats, learned: Learned) -> tuple[Floats, Floats]:
    """‖W(x − centre)‖² [count], and with the other term of the form what no code changes [count]."""
    weight, short = learned.along
    centred: Floats = vectors - learned.mean
    mapped: Floats = centred @ learned.metric
    across: Floats = np.einsum("id,id->i", mapped, mapped)
    target: Floats = np.einsum("id,id->i", vectors, centred) - short
    return across, across + weight * target**2


def search(form: Terms, gram: Floats, planes: int, moves: int, start: Floats) -> Floats:
    """Codes [count, n] as odd floats for the terms of vectors; `start` is improved in place."""
    h = product(start, gram)
    h += form.v * dots(form.v, start)[:, None]
    tenure = max(
        3, 2 + len(gram) // 128
    )  # moves that a dimension rests; 3 was best for n = 64, 5 to 7 for 384
    _core.refine(
        np.ascontiguousarray(form.g, np.float32),
        np.ascontiguousarray(form.v, np.float32),
        gram,
        start,
        h,
        planes,
        moves,
        tenure,
        cpu_count(),
        1,
        choose_isa(),
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


def shortfall(vectors: Floats, centre: Floats, codes: Floats, query: Floats) -> float:
    """The mean of x·(x − x̂) over unit vectors [rows, dims] and their codes [rows, n]."""
    unit = codes / np.linalg.norm(codes, axis=1, keepdims=True)
    meant = np.einsum("id,id->i", vectors, vectors - centre)
    return float(np.mean(meant - np.einsum("in,in->i", vectors @ query, unit)))


def second_moment(vectors: Floats) -> Floats:
    """The covariance of vectors [rows, dims] around their own mean."""
    centred = vectors - vectors.mean(axis=0)
    moment: Floats = centred.T @ centred / np.float32(len(vectors))
    return moment


def learn(
    vectors: Floats, centre: Floats, queries: Floats | None, n: int, planes: int, rounds: int, seed: int
) -> Learned:
    """A decoder for unit vectors [rows, dims]; `queries` is the covariance of queries, if it is known."""
    centred: Floats = vectors - centre
    covariance = second_moment(vectors)
    forward, back = metric(covariance if queries is None else queries, METRIC_POWER)
    mapped: Floats = centred @ forward
    a = start_frame(np.asarray(forward @ covariance @ forward, np.float32), n, seed)
    codes: Floats = nearest(mapped @ a, planes).astype(np.float32)
    guess = np.zeros((len(forward), n), np.float32)

    def result(weight: float) -> Learned:
        query: Floats = back @ a
        short = shortfall(vectors, centre, codes, query) if weight else 0.0
        gram = np.ascontiguousarray(a.T @ a)
        along = np.asarray([weight, short], np.float32)
        return Learned(centre, forward, forward @ a, guess, gram, query, along)

    a = decoder(mapped, codes)
    for turn in range(rounds):
        now = result(ALONG if turn >= SETTLED else 0.0)
        codes = search(terms(vectors, now), now.gram, planes, n // 8, codes)
        a = decoder(mapped, codes)
    guess = forward @ regression(mapped, codes)
    return result(ALONG)
