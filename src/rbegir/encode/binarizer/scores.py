"""The score of a code as an estimate of what it stands for: the cosine, product or distance of the vectors.

A code b stands for ẑ = centre + A·b/‖b‖ (y and z: see `vectors`), so a query y of unit length meets it with

    y·ẑ = y·centre + ‖Aᵀy‖ · cos(Aᵀy, b)

The scan computes that cosine with the integers of the query's code in place of Aᵀy. The other numbers follow
from the same integers: `recover` turns them back into y, up to its length, which is 1. So a score needs only
the code of the query, and is the same for an index, over HTTP and in a cluster. It is

    cosine   y·ẑ
    ip       s · y·ẑ, the product with the query at unit length: the length is not in its code
    l2       −‖q − x‖², from y·ẑ and ‖d‖, which follows from y, taking ‖c‖ to be ‖d‖ where κ > 0

ẑ is not z, so this is too low for neighbours, and most of all for the vector itself. A monotone, piecewise
linear map, `knots`, corrects that; it is measured on held-out vectors, as is the remaining error. The order
of hits does not change. Rejected: a map of the scan's cosine, the same for all queries. On descriptors of
patches the error of the ten best hits was .048 instead of .018.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rbegir.codes.score import KeyScores, cosine, norm_squared
from rbegir.encode.binarizer.vectors import Floats, Space, lengths, product

Doubles = npt.NDArray[np.float64]
Keys = npt.NDArray[np.int64]
TOP = 10
GROUPS, DEEP = 16, 4 * TOP  # of keywords that are left out in turn, and how many hits are then known
KNOTS, PER_KNOT, RANKS = 16, 40, 32
SLOPES = 0.1, 10.0  # of the outer pieces of the map: where no estimate was seen, they are nearly right
FAR = 1e6  # where the outer pieces of the map end, in spreads of the estimates
NORMAL = 1.96  # standard deviations that 95 % of a normal distribution lie within
LIMITS = {"cosine": (-1.0, 1.0), "ip": (-np.inf, np.inf), "l2": (-np.inf, 0.0)}


class Scoring(NamedTuple):
    """How order keys become scores: tensors of a stored Binarizer."""

    recover: Floats  # [n, dims]: y, up to its length, from the integers of its code
    knots: Floats  # [2, knots]: estimates and the scores that they stand for
    measured: Floats  # [7]: error and recall, each with its interval, and among how many; NaN: unknown

    def of(
        self, values: npt.NDArray[np.int16], centre: Floats, space: Space, *, bounded: bool = True
    ) -> KeyScores:
        """Scores of order keys of queries with the integers `values` [Q, n], `bounded`: within LIMITS."""
        norms = norm_squared(values)
        asked = product(values.astype(np.float32), self.recover)  # [Q, dims], sums in one order everywhere
        length = np.maximum(lengths(asked), np.float32(1e-30)).astype(np.float64)
        offset = product(asked, centre[:, None])[:, 0] / length
        slope = np.where(asked.any(axis=1), np.sqrt(norms) / length, 0.0)
        if space.metric == "l2":
            bend, last = float(space.bend), asked[:, -1] / length
            across = np.sqrt(np.maximum(1 - last**2, 0))  # across : last = ‖d‖ : 1 − κ‖d‖²
            root = np.sqrt(last**2 + 4 * bend * across**2)
            square = (2 * across / np.maximum(last + root, 1e-3)) ** 2  # ‖d‖²
            factor = (1 + bend * square) * float(space.scale) ** 2
            grown = 2 * factor * np.sqrt(square + (1 - bend * square) ** 2)
            offset, slope = grown * offset - factor * square, grown * slope
        else:
            offset, slope = offset * space.scale, slope * space.scale
        low, high = LIMITS[space.metric] if bounded else (-np.inf, np.inf)
        inputs, outputs = self.knots.astype(np.float64)
        width = np.diff(inputs)  # 0 where many estimates are equal
        rises = np.divide(np.diff(outputs), width, out=np.zeros_like(width), where=width > 0)
        most = np.append(outputs[1:-1], np.inf)

        def scores(order_keys: Keys) -> Doubles:
            met = offset[:, None] + slope[:, None] * cosine(order_keys, norms)
            piece = np.clip(np.searchsorted(inputs, met, "right") - 1, 0, len(rises) - 1)
            score = outputs[piece] + rises[piece] * (met - inputs[piece])
            score = np.minimum(score, most[piece])  # rounding: a score never falls as a key rises
            return np.asarray(np.clip(score, low, high))

        return scores


def uncalibrated(query: Floats, asked: Floats, values: npt.NDArray[np.int16]) -> Scoring:
    """The scoring of codes with the decoder A = `query` [dims, n] by y·ẑ itself.

    `recover` is the best linear estimate of y from Aᵀy with the noise of rounding, as measured on queries
    [rows, dims] and the integers [rows, n] of their codes. The inverse of A would amplify that noise.
    """
    a, y = query.astype(np.float64), asked.astype(np.float64)
    met = y @ a  # [rows, n]
    scale = np.linalg.norm(met, axis=1) / np.sqrt(norm_squared(values))
    noise = np.mean((met - values * scale[:, None]) ** 2)
    moment = y.T @ y / len(y)
    moment[np.diag_indices(len(moment))] += 1e-6 * np.trace(moment) / len(moment) + 1e-30
    spread = a.T @ moment @ a
    spread[np.diag_indices(len(spread))] += noise + 1e-9 * np.trace(spread) / len(spread) + 1e-30
    recover = np.linalg.solve(spread, a.T @ moment)  # [n, dims]
    same = np.asarray([[0, 1], [0, 1]], np.float32)  # a score is its estimate
    return Scoring(recover.astype(np.float32), same, np.full(7, np.nan, np.float32))


def calibrated(
    plain: Scoring, estimate: Doubles, truth: Doubles, order: Keys, own: npt.NDArray[np.bool_]
) -> Scoring:
    """A scoring whose map, error and recall are measured on held-out queries and keywords.

    estimate    [Q, K] scores by `plain`
    truth       [Q, K] scores of the vectors
    order       [Q, K] order keys
    own         [Q, K] whether query and keyword are the same vector
    """
    ranks = np.unique(np.geomspace(1, order.shape[1], RANKS).astype(int)) - 1
    ranked = np.argsort(-order, axis=1, kind="stable")
    seen = [np.take_along_axis(array, ranked[:, ranks], axis=1) for array in (estimate, truth)]
    halves = [[array[start::2].ravel() for array in seen] for start in (0, 1)]
    hits = np.argsort(np.where(own, np.iinfo(np.int64).min, order), axis=1)[:, ::-1][:, :DEEP]
    best = np.argsort(np.where(own, -np.inf, truth), axis=1)[:, ::-1][:, :DEEP]
    squares = np.empty(hits.shape)
    for start, half in enumerate(reversed(halves)):  # the map of one half of the queries, tested on the other
        read, meant = (np.take_along_axis(a[start::2], hits[start::2], axis=1) for a in (estimate, truth))
        squares[start::2] = (np.interp(read, *knots(*half)) - meant) ** 2

    def of_queries(group: int) -> tuple[Doubles, Doubles]:
        """Squared error and recall [Q] if a group of keywords, drawn at random, were not there."""
        left = [np.argsort(rows % GROUPS == group, axis=1, kind="stable")[:, :TOP] for rows in (hits, best)]
        ten, true = (
            np.take_along_axis(rows, at, axis=1) for rows, at in zip((hits, best), left, strict=True)
        )
        found = (ten[:, :, None] == true[:, None, :]).any(axis=2)  # [Q, 10]
        return np.take_along_axis(squares, left[0], axis=1).mean(axis=1), found.mean(axis=1)

    drawn = zip(
        *(of_queries(group) for group in (GROUPS, *range(GROUPS))), strict=True
    )  # GROUPS: all are there
    error, recall = (interval(whole, np.mean(parts, axis=1)) for whole, *parts in drawn)
    error, recall = np.sqrt(np.maximum(error, 0)), np.clip(recall, 0, 1)
    measured = np.concatenate([error, recall, [order.shape[1]]])
    both = (np.concatenate(pair) for pair in zip(*halves, strict=True))
    return plain._replace(knots=knots(*both), measured=measured.astype(np.float32))


def knots(estimate: Doubles, truth: Doubles) -> Floats:
    """The monotone map [2, knots] from estimates [pairs] to the mean of the truths that have them."""
    order = np.argsort(estimate, kind="stable")
    groups = np.array_split(order, int(np.clip(len(order) // PER_KNOT, 1, KNOTS)))
    inputs, outputs = (np.asarray([array[group].mean() for group in groups]) for array in (estimate, truth))
    outputs = np.maximum.accumulate(outputs)
    spread = max(float(np.std(estimate)), 1e-30)
    slope = np.clip(np.mean((estimate - estimate.mean()) * truth) / spread**2, *SLOPES)
    low, high = inputs[0] - FAR * spread, inputs[-1] + FAR * spread
    before, after = outputs[0] + slope * (low - inputs[0]), outputs[-1] + slope * (high - inputs[-1])
    return np.asarray([[low, *inputs, high], [before, *outputs, after]]).astype(np.float32)


def interval(draws: Doubles, without: Doubles) -> Doubles:
    """The mean of what queries give, and the ends of its 95 % interval.

    The variance has two parts: that of the queries, whose `draws` [Q] are independent, and that of the
    keywords, by the jackknife: `without` [groups] are the means without each group of them.
    """
    mean, groups = float(np.mean(draws)), len(without)
    variance = np.var(draws, ddof=1) / len(draws) + (groups - 1) * np.var(without)
    half = NORMAL * float(np.sqrt(variance))
    return np.asarray([mean, mean - half, mean + half])
