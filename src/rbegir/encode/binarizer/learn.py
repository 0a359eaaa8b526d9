"""Fitting: a linear decoder and the codes of a sample, improved in turns.

A code b stands for the vector A·b/‖b‖, and a query scores it by q·A·b/‖b‖: the decoder A moves to the query
side and costs nothing at search. What is minimised is the error that queries see,

    E (q·(x − x̂))² = ‖Σ_q^½ (x − x̂)‖²,

so vectors are first mapped by W = (Σ / mean eigenvalue)^p, where Σ is the covariance of the queries if there
are any, otherwise of the vectors. p = ½ is the formula; but ranks are decided among neighbours of a query,
where directions of small variance count too: p = 0.2 was best or near it on every set tried.

That error assumes that queries lie anywhere. Those that must find x lie near x, so the error along x counts
more than the same error across, except for the part that all vectors have in common, which moves every score
alike. So a code minimises

    ‖W(x − x̂)‖² + w·(x·(x − x̂) − c)²        c: the mean shortfall of codes along x; w = ALONG

which is again quadratic in the code, the Gram matrix plus one of rank one. Measured, w from 3 to 8 is best on
every set, and recall@10 rises as much as with four times the moves. For other metrics than the cosine, x is
the keyword z of `vectors.Space`, and the x beside it its own vector as a query, y. Lengths then differ, and
the shortfall grows with them: (y·(z − ẑ) − r·y·z)², r the relative shortfall, instead of one c for all.

What is coded is x − 0.7·mean. Subtracting the whole mean leaves lengths that differ, which b/‖b‖ represents
badly; subtracting nothing spends bits on what all vectors have in common. With one plane and at most 1 bit
per dimension, the whole mean and w = 2 are often better, so fitting tries them. Any centre gives the same
order, because q·(x − centre) differs from q·x by a number that depends on the query only. Then, by turns:

    codes   given A: `_core.refine`, a search over all bits together
    A       given the codes: least squares, x ≈ A·b/‖b‖ over the sample, with a ridge for small samples

A starts as a random rotation, for n < dims of the n directions of largest variance. It makes all coordinates
nearly Gaussian, which is what rounding with one step per row assumes, and the start independent of the basis
of the vectors. Learning then writes directions of large variance with several dimensions of different weight,
and those of small variance with none. Scalar quantisers, which round each dimension of a rotation, cannot.

*Rounding.* A code counts by its direction alone (the score divides by ‖b‖), so the best code of y maximises

    cos(y, b) = y·b / (‖y‖ ‖b‖)                       b ∈ {±1, ±3, … ±(2^P − 1)}^n

For one plane that is the sign. For more planes b is y/s rounded to odd integers. The best step s differs from
row to row: several are tried, spread around the one that suits a Gaussian, and each row keeps its best.

*Digits.* From about 5 bits per dimension on, learning finds worse decoders than the one that writes numbers
with digits: A = κ·[R, R/B, R/B² …], B = 2^P, R a rotation. The first part of a code is x·R/s rounded to odd
integers, each further part what the rounding before it left, times B. Finer digits are as good as random and
make up most of ‖b‖, by which the score divides. So several steps s near each other are tried, and the one
for which s·‖b‖ is nearest to κ is kept; a few moves do the rest. Fitting measures both ways on held-out rows.
With the metrics ip and l2, lengths of vectors count too, so that only the learned decoder is used there.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rbegir._native import _core, choose_isa
from rbegir.base.devices import cpu_count
from rbegir.encode.binarizer.vectors import Floats, dots, product

METRIC_POWER = 0.2
ALONG = 5.0
CENTRED = 0.7  # of the mean is taken away
SETTLED = 2  # turns before the search weighs errors along the vector: the first codes fall short by too much
SMALLEST = 1e-3  # eigenvalues are at least this part of their mean
RIDGE = 1e-3
ROUNDS = 7
# The step of a uniform quantiser with 2^P levels that suits a unit Gaussian best, in units of half a level.
GAUSSIAN_STEP = {1: 0.798, 2: 0.498, 3: 0.293, 4: 0.1676, 5: 0.0943, 6: 0.0524, 7: 0.0288, 8: 0.0157}
SPREAD = 2.0 ** np.linspace(-0.6, 0.6, 13)
HIGH_RATE, MOST_BITS = 5, 12  # bits per dimension: from how many on digits are tried, how many they write
REACH = 3.5  # the largest number that digits write, in units of the spread of the coordinates
STEPS = np.linspace(0.9, 1.1, 16)  # that are tried for each vector


class Learned(NamedTuple):
    """The tensors of a stored Binarizer that encoding needs."""

    mean: Floats  # [dims]: the centre, which is taken away from every vector
    metric: Floats  # [dims, dims] = W
    keyword: Floats  # [dims, n]: g = (x − centre)·keyword, keyword = W·A
    guess: Floats  # [dims, n]: rounding (x − centre)·guess starts the search
    gram: Floats  # [n, n] = AᵀA
    query: Floats  # [dims, n]: q' = q·query; its transpose decodes
    along: Floats  # [3]: w, c and r of the error along the vector
    steps: Floats = np.zeros(0, np.float32)  # of digits: how many, the ‖b‖ of step 1, steps; else empty


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


def terms(keywords: Floats, queries: Floats, learned: Learned) -> Terms:
    """The terms of vectors as keywords and as queries [count, dims]."""
    weight = learned.along[0]
    centred: Floats = keywords - learned.mean
    g = product(centred, learned.keyword)
    if not weight:
        return Terms(g, np.zeros_like(g))
    v = product(queries, learned.query)  # y·ẑ = v·b/‖b‖
    _, short, share = learned.along
    meant = dots(queries, centred)  # [count] y·(z − centre)
    g += (weight * (meant - meant * share - short))[:, None] * v
    v *= np.sqrt(weight)
    return Terms(g, v)


def search(form: Terms, gram: Floats, planes: int, moves: int, start: Floats) -> Floats:
    """Codes [count, n] as odd floats for the terms of vectors; `start` is improved in place."""
    h = product(start, gram)
    h += form.v * dots(form.v, start)[:, None]
    # moves for which a changed dimension stays as it is; 3 was best for n = 64, 5 to 7 for 384
    tenure = max(3, 2 + len(gram) // 128)
    g, v = (np.ascontiguousarray(array, np.float32) for array in form)
    _core.refine(g, v, gram, start, h, planes, moves, tenure, cpu_count(), 1, choose_isa())
    return start


def directions(codes: Floats) -> Floats:
    """b/‖b‖ of codes [rows, n]."""
    return np.asarray(codes / np.linalg.norm(codes, axis=1, keepdims=True))


def least_squares(x: Floats, y: Floats) -> Floats:
    """The matrix M [columns of x, columns of y] of y ≈ x·M, with a ridge."""
    products = (x.T @ x).astype(np.float64)
    products[np.diag_indices(len(products))] += max(RIDGE * np.trace(products) / len(products), 1e-30)
    return np.linalg.solve(products, (x.T @ y).astype(np.float64)).astype(np.float32)


def decoder(vectors: Floats, codes: Floats) -> Floats:
    """A [dims, n]: the least squares of x ≈ A·b/‖b‖."""
    return np.ascontiguousarray(least_squares(directions(codes), vectors).T)


def second_moment(vectors: Floats, *, around_mean: bool = True) -> Floats:
    """The second moment of vectors [rows, dims], around their own mean (their covariance) or around zero."""
    centred: Floats = vectors - vectors.mean(axis=0) if around_mean else vectors
    moment: Floats = centred.T @ centred / np.float32(len(vectors))
    return moment


def learn(
    keywords: Floats,
    queries: Floats,
    centre: Floats,
    moment: Floats,
    n: int,
    planes: int,
    rounds: int,
    seed: int,
    *,
    relative: bool,
    digits: int = 0,
    weight: float = ALONG,
    notify: Callable[[float], None] = lambda done: None,
) -> Learned:
    """A decoder for vectors as keywords and as queries [rows, dims]; `moment` weighs errors by direction.

    `relative`: the shortfall of codes is proportional to the vectors, not the same for all. `digits`: how
    many digits write a number, instead of rounds of learning, or 0. `weight`: w of errors along the vector.
    `notify` is called with the share of the rounds that is done; digits are done at once.
    """
    centred: Floats = keywords - centre
    covariance = second_moment(keywords)
    forward, back = metric(moment, METRIC_POWER)
    mapped: Floats = centred @ forward
    guess, steps = np.zeros((len(forward), n), np.float32), np.zeros(0, np.float32)

    def result(w: float) -> Learned:
        query: Floats = back @ a
        short = share = 0.0
        if w:
            reached = np.einsum("in,in->i", queries @ query, directions(codes))  # [rows] y·(ẑ − centre)
            meant = np.einsum("id,id->i", queries, centred)
            if relative:
                share = 1 - float(reached @ meant) / max(float(meant @ meant), 1e-30)
            else:
                short = float(np.mean(meant - reached))
        gram = np.ascontiguousarray(a.T @ a)
        along = np.asarray([w, short, share], np.float32)
        return Learned(centre, forward, forward @ a, guess, gram, query, along, steps)

    if digits:
        a, scaled, steps = digit_frame(mapped, n, planes, digits, seed)
        guess = forward @ scaled
        codes = in_digits(mapped @ scaled, planes, steps)
        notify(1.0)
        return result(weight)
    a = start_frame(np.asarray(forward @ covariance @ forward, np.float32), n, seed)
    codes = nearest(mapped @ a, planes).astype(np.float32)
    a = decoder(mapped, codes)
    for turn in range(rounds):
        now = result(weight if turn >= SETTLED else 0.0)
        codes = search(terms(keywords, queries, now), now.gram, planes, n // 8, codes)
        a = decoder(mapped, codes)
        notify((turn + 1) / rounds)
    guess = forward @ least_squares(mapped, directions(codes))
    return result(weight)


def digit_count(dims: int, n: int, planes: int) -> int:
    """How many digits of `planes` bits a code of n dimensions has for each number of a vector; 0: too few."""
    count = min(n // dims, MOST_BITS // planes)
    return count if count > 1 and n * planes >= HIGH_RATE * dims else 0


def digit_frame(mapped: Floats, n: int, planes: int, count: int, seed: int) -> tuple[Floats, Floats, Floats]:
    """The decoder A [dims, n] for `count` digits, what scales vectors for `in_digits` and its steps."""
    dims, size, base = mapped.shape[1], n // count, 2.0**planes
    worth = base ** -np.arange(count)  # of a digit
    turned = rotation(size, seed)[:dims]
    spread = float(np.sqrt(np.sum(mapped**2, dtype=np.float64) / (len(mapped) * size)))
    step = max(REACH * spread / ((base - 1) * worth.sum()), 1e-30)
    a, scaled = np.zeros((2, dims, n), np.float32)
    a[:, : count * size] = np.hstack([turned * one for one in worth])
    scaled[:, :size] = turned / step
    steps = np.asarray([count, 0, 1], np.float32)
    lengths = np.linalg.norm(in_digits(mapped @ scaled, planes, steps), axis=1)
    steps = np.asarray([count, lengths.mean(), *STEPS], np.float32)
    found: Floats = directions(in_digits(mapped @ scaled, planes, steps)) @ a.T
    fit = float(np.sum(found * mapped)) / max(float(np.sum(found * found)), 1e-30)
    return np.asarray(a * fit, np.float32), scaled, steps


def in_digits(y: Floats, planes: int, steps: Floats) -> Floats:
    """y [count, n], whose first columns are numbers, written with digits: a start for a search."""
    count, meant, size = int(steps[0]), steps[1], y.shape[1] // int(steps[0])
    best, least = np.ones_like(y), np.full(len(y), np.inf, np.float32)
    codes = np.ones_like(y)
    for step in steps[2:]:
        rest = y[:, :size] / step
        for first in range(0, count * size, size):
            digit = codes[:, first : first + size] = odd(rest, planes)
            rest = (rest - digit) * np.float32(2**planes)
        missed = np.abs(np.sqrt(dots(codes, codes)) * step - meant)
        better = missed < least
        best[better], least[better] = codes[better], missed[better]
    return best


def odd(y: Floats, planes: int) -> Floats:
    """y rounded to the nearest odd integers within ±(2^planes − 1), as floats; 0 becomes +1."""
    limit = float(2**planes - 1)
    rounded: Floats = np.clip(2.0 * np.floor(y * 0.5) + 1.0, -limit, limit).astype(np.float32, copy=False)
    return rounded


def rounded(y: Floats, planes: int) -> Floats:
    """y rounded with the step that suits a Gaussian of each row's spread: a start for a search."""
    spread = np.sqrt(dots(y, y) / np.float32(y.shape[1])) * np.float32(GAUSSIAN_STEP[planes])
    return odd(y / np.maximum(spread, np.float32(1e-30))[:, None], planes)


def nearest(y: Floats, planes: int) -> npt.NDArray[np.int16]:
    """The odd integers [count, n] whose direction is nearest to y [count, n], of the steps tried."""
    if planes == 1:
        return np.where(y >= 0, np.int16(1), np.int16(-1))
    steps = (GAUSSIAN_STEP[planes] * SPREAD).astype(np.float32)
    return _core.nearest(np.ascontiguousarray(y, np.float32), planes, steps, cpu_count(), choose_isa())
