"""The input and output of a backend: partitions, candidates, and their total order.

The total order is (order key descending, position ascending), with the exact integer keys of `codes.score`.
Positions count the keywords of all partitions in their order, masked ones included, so that the order of
positions is the order of rows. Results in this order can be merged: the best of several parts together are
the best of the whole.

Without `Limits` all queries have the same candidates and equally many hits. With them a query may have fewer
hits than another; NO_KEY and position −1 fill its row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from rbegir.base.masks import Mask, both
from rbegir.codes.score import KeyScores
from rbegir.errors import InputError

Values = npt.NDArray[np.int16]  # of integer queries
Int64s = npt.NDArray[np.int64]
NO_KEY = -(2**63) + 1  # where a query has no further hit; can be negated
SORT_ALL = 2  # up to this many times k candidates are simply sorted


class Partition(NamedTuple):
    """Packed keywords (`codes.layout`) and which of them are candidates."""

    packed: npt.NDArray[np.uint8]  # [packed_bytes]
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody needs here
    mask: Mask | None = None  # of the candidates; None: all
    filters: tuple[Mask | None, ...] = ()  # what each filter passes (`Limits.filters`); None: all

    def under(self, number: int) -> Partition:
        """The partition whose candidates also pass a filter; −1: none."""
        mask = self.mask if number < 0 else both(self.mask, self.filters[number])
        return self._replace(mask=mask, filters=())


class Limits(NamedTuple):
    """Limits on the hits of each query, besides the candidates of the partitions."""

    floors: Int64s  # [queries] the least order key
    keys: Int64s  # [queries] of the hit behind which hits come in the total order …
    positions: Int64s  # [queries] … and its position
    filters: Int64s  # [queries] the number of the filter that they must pass; −1: none

    @classmethod
    def none(cls, queries: int) -> Limits:
        """No limits for this many queries."""
        bounds = np.iinfo(np.int64)
        return cls(*(np.full(queries, value) for value in (bounds.min, bounds.max, -1, -1)))

    def of(self, queries: Int64s) -> Limits:
        """The limits of some of the queries."""
        return Limits(*(array[queries] for array in self))

    def from_start(self) -> Limits:
        """The limits without the hit behind which hits come."""
        start = Limits.none(len(self.keys))
        return self._replace(keys=start.keys, positions=start.positions)

    @property
    def bounds_keys(self) -> bool:
        """Whether any query is limited by more than a filter."""
        bounds = np.iinfo(np.int64)
        return bool(np.any(self.floors > bounds.min) or np.any(self.keys < bounds.max))

    def passes(self, keys: Int64s, positions: Int64s) -> npt.NDArray[np.bool_]:
        """Whether hits [queries, m] lie between the floor and the hit before."""
        before, at = self.keys[:, None], self.positions[:, None]
        behind = (keys < before) | ((keys == before) & (positions > at))
        within: npt.NDArray[np.bool_] = behind & (keys >= self.floors[:, None]) & (positions >= 0)
        return within


class Candidates(NamedTuple):
    """The best keywords of each query, in the total order; as many columns as the most hits of a query."""

    keys: Int64s  # [queries, k]
    positions: Int64s  # [queries, k]

    @classmethod
    def none(cls, queries: int) -> Candidates:
        """No candidates for this many queries."""
        return cls(np.zeros((queries, 0), np.int64), np.zeros((queries, 0), np.int64))

    @classmethod
    def spread(cls, queries: int, parts: Sequence[tuple[Int64s, Candidates]]) -> Candidates:
        """The candidates of all queries, from parts: (which queries, their candidates)."""
        shape = (queries, max((part.keys.shape[1] for _, part in parts), default=0))
        whole = cls(np.full(shape, NO_KEY), np.full(shape, -1))
        for which, part in parts:
            whole.keys[which, : part.keys.shape[1]] = part.keys
            whole.positions[which, : part.keys.shape[1]] = part.positions
        return whole

    @property
    def counts(self) -> Int64s:
        """Hits of each query."""
        counts: Int64s = (self.positions >= 0).sum(axis=1)
        return counts

    def best(self, k: int) -> Candidates:
        """The first k in the total order."""
        return self._take(best(self.keys, self.positions, k))

    def only(self, passes: npt.NDArray[np.bool_], k: int) -> Candidates:
        """The first k of those that pass [queries, m]."""
        kept = Candidates(np.where(passes, self.keys, NO_KEY), np.where(passes, self.positions, -1))
        return kept._take(np.argsort(~passes, axis=1, kind="stable")[:, :k])

    def _take(self, columns: Int64s) -> Candidates:
        most = int(np.take_along_axis(self.positions >= 0, columns, 1).sum(axis=1).max(initial=0))
        columns = columns[:, :most]
        return Candidates(
            np.take_along_axis(self.keys, columns, 1), np.take_along_axis(self.positions, columns, 1)
        )


Search: TypeAlias = Callable[[Values, int, Limits | None], Candidates]  # for given partitions


class Pairs(NamedTuple):
    """Queries, the keywords that they found, and scores; those of a query are in the total order."""

    query: Int64s  # [pairs] number of the query in its batch
    scores: npt.NDArray[np.float64]  # [pairs]
    positions: Int64s  # [pairs]

    def only(self, kept: npt.NDArray[np.bool_]) -> Pairs:
        return Pairs(self.query[kept], self.scores[kept], self.positions[kept])


def all_pairs(
    search: Search,
    values: Values,
    scores: Callable[[Values], KeyScores],
    limits: Limits,
    room: int,
    least: int = 1,
) -> Iterator[Pairs]:
    """All pairs that the limits allow, in runs of whole queries, with about `room` pairs in memory at a time.

    Each query is searched with a growing k, at first at least `least`, until it has fewer hits. If there are
    too many pairs, the two halves of the queries are searched one after the other.
    """
    found: list[Pairs] = []
    left, k, held = np.arange(len(values)), max(least, room // max(1, len(values))), 0
    while left.size:
        if held + left.size * k > room and len(values) > 1:
            for half in np.array_split(np.arange(len(values)), 2):
                for pairs in all_pairs(search, values[half], scores, limits.of(half), room, least):
                    yield pairs._replace(query=half[pairs.query])
            return
        best = search(values[left], k, limits.of(left))
        full = best.counts == k  # there may be more
        hits = (best.positions >= 0) & ~full[:, None]
        of_hits = scores(values[left])(best.keys)[hits]
        found.append(Pairs(left[np.nonzero(hits)[0]], of_hits, best.positions[hits]))
        held += found[-1].query.size
        left, k = left[full], 4 * k
    if len(found) == 1:  # in order already
        yield found[0]
        return
    query, of_pairs, positions = (np.concatenate(column) for column in zip(*found, strict=True))
    order = np.argsort(query, kind="stable")
    yield Pairs(query[order], of_pairs[order], positions[order])


def best(keys: Int64s, positions: Int64s, k: int) -> Int64s:
    """Columns [queries, ≤ k] of the best of [queries, candidates], in the total order."""
    if keys.shape[1] <= SORT_ALL * k:
        return np.lexsort((positions, -keys), axis=1)[:, :k]
    # far more candidates than wanted: sort only those that reach the k-th key
    least = np.partition(keys, -k, axis=1)[:, -k]  # [queries]
    order = np.empty((len(keys), k), np.int64)
    for query in range(len(keys)):
        kept = np.flatnonzero(keys[query] >= least[query])
        order[query] = kept[np.lexsort((positions[query, kept], -keys[query, kept]))[:k]]
    return order


def merge(results: Sequence[Candidates], k: int) -> Candidates:
    """The best k of several results of the same queries; each result is in the total order."""
    if not results:
        raise InputError("nothing to merge: there are no results")
    if len(results) == 1 and results[0].keys.shape[1] <= k:
        return results[0]
    keys = np.concatenate([result.keys for result in results], axis=1)  # [queries, all]
    positions = np.concatenate([result.positions for result in results], axis=1)
    return Candidates(keys, positions).best(k)


def recall_of(found: Int64s, exact: Int64s) -> float:
    """The share of the exact positions [queries, k] that are among the found ones [queries, k]."""
    if exact.size == 0:
        return 1.0
    hits = sum(len(np.intersect1d(a, b)) for a, b in zip(found, exact, strict=True))
    return hits / exact.size
