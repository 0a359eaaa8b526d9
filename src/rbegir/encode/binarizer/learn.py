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

For other metrics than the cosine, x is the keyword z of `vectors.Space` and the x beside it its own vector as
a query, y. Lengths then differ, and what codes fall short by grows with them: (y·(z − ẑ) − r·y·z)², r the
share that codes fall short by, instead of one c for all.

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

*Rounding.* A code counts by its direction alone (the score divides by ‖b‖), so the best code of y maximises

    cos(y, b) = y·b / (‖y‖ ‖b‖)                       b ∈ {±1, ±3, … ±(2^P − 1)}^n

For one plane that is the sign. For more planes b is the rounding of y/s to odd integers for some step s,
and which s is best differs from row to row: several are tried, spread around the one that suits a Gaussian,
and each row keeps its best. Rejected: one step for all rows, which is what scalar quantisers do; rows with
long tails lose by it.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rbegir._native import _core
from rbegir._native.isa import choose_isa
from rbegir.base.devices import cpu_count
from rbegir.codes.planes import Codes
from rbegir.encode.binarizer.vectors import Floats, dots, product

METRIC_POWER = 0.2
ALONG = 5.0
CENTRED = 0.7  # of the mean is taken away
SETTLED = 2  # turns before the search weighs errors along the vector: the first codes fall short by too much
SMALLEST = 1e-3  # eigenvalues below this part of their mean are taken for it
RIDGE = 1e-3
ROUNDS = 7
# The step of a uniform quantiser with 2^P levels that suits a unit Gaussian best, in units of half a level.
GAUSSIAN_STEP = {1: 0.798, 2: 0.498, 3: 0.293, 4: 0.1676, 5: 0.0943, 6: 0.0524, 7: 0.0288, 8: 0.0157}
SPREAD = 2.0 ** np.linspace(-0.6, 0.6, 13)


class Learned(NamedTuple):
    """What encoding needs: the tensors of a stored Binarizer."""

    mean: Floats  # [dims]: the centre, which is taken away from every vector
    metric: Floats  # [dims, dims] = W
    keyword: Floats  # [dims, n]: g = (x − centre)·keyword, keyword = W·A
    guess: Floats  # [dims, n]: rounding (x − centre)·guess starts the search
    gram: Floats  # [n, n] = AᵀA
    query: Floats  # [dims, n]: q' = q·query; its transpose decodes
    along: Floats  # [3]: w, c and r of the error along the vector


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
    g += (weight * _target(dots(queries, centred), learned))[:, None] * v
    v *= np.sqrt(weight)
    return Terms(g, v)


def constants(keywords: Floats, queries: Floats, learned: Learned) -> tuple[Floats, Floats]:
    """‖W(z − centre)‖² [count], and with the other term of the form what no code changes [count]."""
    centred: Floats = keywords - learned.mean
    mapped: Floats = centred @ learned.metric
    across: Floats = np.einsum("id,id->i", mapped, mapped)
    target = _target(np.einsum("id,id->i", queries, centred), learned)
    return across, across + learned.along[0] * target**2


def _target(meant: Floats, learned: Learned) -> Floats:
    """What codes are to reach along their vectors, of y·(z − centre) [count]."""
    _, short, share = learned.along
    return np.asarray(meant - meant * share - short)


def search(form: Terms, gram: Floats, planes: int, moves: int, start: Floats) -> Floats:
    """Codes [count, n] as odd floats for the terms of vectors; `start` is improved in place."""
    h = product(start, gram)
    h += form.v * dots(form.v, start)[:, None]
    # moves that a dimension rests; 3 was best for n = 64, 5 to 7 for 384
    tenure = max(3, 2 + len(gram) // 128)
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


def shortfall(meant: Floats, reached: Floats) -> tuple[float, float]:
    """What y·(ẑ − centre) [rows] falls short of y·(z − centre) [rows] by on average, and as a share."""
    share = 1 - float(reached @ meant) / max(float(meant @ meant), 1e-30)
    return float(np.mean(meant - reached)), share


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
    notify: Callable[[float], None] | None = None,
) -> Learned:
    """A decoder for vectors as keywords and as queries [rows, dims]; `moment` weighs errors by direction.

    `relative`: codes fall short of vectors by a share of them, not by the same for all. `notify` is called
    with the share of the rounds that is done.
    """
    centred: Floats = keywords - centre
    covariance = second_moment(keywords)
    forward, back = metric(moment, METRIC_POWER)
    mapped: Floats = centred @ forward
    a = start_frame(np.asarray(forward @ covariance @ forward, np.float32), n, seed)
    codes: Floats = nearest(mapped @ a, planes).astype(np.float32)
    guess = np.zeros((len(forward), n), np.float32)

    def result(weight: float) -> Learned:
        query: Floats = back @ a
        short = share = 0.0
        if weight:
            reached = np.einsum("in,in->i", queries @ query, directions(codes))
            short, share = shortfall(np.einsum("id,id->i", queries, centred), reached)
            short, share = (0.0, share) if relative else (short, 0.0)
        gram = np.ascontiguousarray(a.T @ a)
        along = np.asarray([weight, short, share], np.float32)
        return Learned(centre, forward, forward @ a, guess, gram, query, along)

    a = decoder(mapped, codes)
    for turn in range(rounds):
        now = result(ALONG if turn >= SETTLED else 0.0)
        codes = search(terms(keywords, queries, now), now.gram, planes, n // 8, codes)
        a = decoder(mapped, codes)
        if notify is not None:
            notify((turn + 1) / rounds)
    guess = forward @ least_squares(mapped, directions(codes))
    return result(ALONG)


def odd(y: Floats, planes: int) -> Floats:
    """y rounded to the nearest odd integers within ±(2^planes − 1), as floats; 0 becomes +1."""
    limit = float(2**planes - 1)
    rounded: Floats = np.clip(2.0 * np.floor(y * 0.5) + 1.0, -limit, limit).astype(np.float32, copy=False)
    return rounded


def rounded(y: Floats, planes: int) -> Floats:
    """y rounded with the step that suits a Gaussian of each row's spread: a start for a search."""
    spread = np.sqrt(dots(y, y) / np.float32(y.shape[1])) * np.float32(GAUSSIAN_STEP[planes])
    return odd(y / np.maximum(spread, np.float32(1e-30))[:, None], planes)


def packed(values: npt.NDArray[Any], planes: int) -> Codes:
    """Odd numbers [count, n], known to be within the limits, as codes; plane 0 is the highest bit."""
    bits = ((values.astype(np.int8) + np.int8(2**planes - 1)) >> 1).view(np.uint8)  # [count, n] in 0 .. limit
    signs = np.stack([(bits >> (planes - 1 - plane)) & 1 for plane in range(planes)])  # [planes, count, n]
    return Codes.from_signs(signs.view(np.bool_))


def nearest(y: Floats, planes: int) -> npt.NDArray[np.int16]:
    """The odd integers [count, n] whose direction is nearest to y [count, n], of the steps tried."""
    if planes == 1:
        return np.where(y >= 0, np.int16(1), np.int16(-1))
    steps = (GAUSSIAN_STEP[planes] * SPREAD).astype(np.float32)
    return _core.nearest(np.ascontiguousarray(y, np.float32), planes, steps, cpu_count(), choose_isa())
