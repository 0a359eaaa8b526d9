"""Recall over a corpus: is the right keyword among the first k of all of them?

The protocol, whatever the model:

- the corpus is a set of texts: of equal ones the first counts;
- a query is right for the keywords that the pairs give it, found in the corpus by their exact text; keywords
  that are not there are counted, and a query with none of its keywords there is left out;
- the search is exhaustive and exact, ordered by (score descending, position in the corpus ascending);
- recall@k of a query is the share of its keywords among its first k (ir-measures' R@k: with one keyword a
  query, whether it was found), and recall@k is the mean over queries.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rbegir.errors import InputError

CUTOFFS = (1, 10, 100)
BLOCK = 16_384  # keywords scored at once
QUERY_BLOCK = 1024

Positions = npt.NDArray[np.int64]


class TopK:
    """The best k of a stream of scores, for many queries at once; of equal scores the earlier one wins."""

    def __init__(self, queries: int, k: int) -> None:
        self.k = k
        self._scores = np.full((queries, k), -np.inf, dtype=np.float32)
        self._positions = np.full((queries, k), -1, dtype=np.int64)

    def push(self, rows: slice, scores: npt.NDArray[np.float32], start: int) -> None:
        """Take the scores [queries of the slice, block] of the keywords from position `start` on.

        No more columns at once than were seen before: then about k a query pass the threshold, so sorting
        what passes is cheap, where selecting the best of a whole block was measured to cost 20 times as much.
        """
        column = 0
        while column < scores.shape[1]:
            width = max(start + column, 8 * self.k)
            self._merge(rows, scores[:, column : column + width], start + column)
            column += width

    def _merge(self, rows: slice, scores: npt.NDArray[np.float32], start: int) -> None:
        keep = scores > self._scores[rows, -1:]  # not ≥: of equal scores the earlier one stays
        count = len(scores)
        new_query, new_column = np.nonzero(keep)
        if not len(new_query):
            return
        query = np.concatenate([np.repeat(np.arange(count), self.k), new_query])
        value = np.concatenate([self._scores[rows].ravel(), scores[keep]])
        position = np.concatenate([self._positions[rows].ravel(), new_column + start])
        order = np.lexsort((position, -value, query))
        first = np.searchsorted(query[order], np.arange(count))  # each query has at least its k old entries
        chosen = order[first[:, None] + np.arange(self.k)]  # [queries, k]
        self._scores[rows], self._positions[rows] = value[chosen], position[chosen]

    def positions(self) -> Positions:
        """Positions [queries, k], best first."""
        return self._positions


def search_dense(
    queries: npt.NDArray[np.float32],
    keywords: Callable[[int, int], npt.NDArray[np.float32]],
    count: int,
    k: int,
    progress: Callable[[float], None],
) -> Positions:
    """The best k of `count` keywords by dot product; keywords(start, end) makes a block of them on demand."""
    top = TopK(len(queries), min(k, count))
    for start in range(0, count, BLOCK):
        end = min(start + BLOCK, count)
        block = keywords(start, end)  # [block, n]
        for first in range(0, len(queries), QUERY_BLOCK):
            rows = slice(first, min(first + QUERY_BLOCK, len(queries)))
            top.push(rows, queries[rows] @ block.T, start)
        progress(end / count)
    return top.positions()


class Targets:
    """Which positions of the corpus are right for which query."""

    def __init__(self, pairs: pa.Table, corpus: pa.StringArray) -> None:
        wanted = pairs["keyword"].cast(corpus.type).combine_chunks()
        keyword = pc.index_in(wanted, value_set=corpus)  # [pairs], null where there is none
        found = np.asarray(keyword.is_valid())
        self.pairs = len(found)
        self.missing = int((~found).sum())
        if not found.any():
            raise InputError(
                "none of the keywords of the pairs is in the corpus",
                hint="the corpus must hold the same texts as the keyword column",
            )
        kept = pairs["query"].filter(pa.array(found)).combine_chunks().dictionary_encode()
        self.queries: pa.StringArray = kept.dictionary
        self._query = np.asarray(kept.indices)
        self._keyword = np.asarray(keyword.drop_null())

    def recall(self, positions: Positions, cutoffs: Sequence[int]) -> dict[int, npt.NDArray[np.float64]]:
        """Recall of each query at each cutoff, from the positions [queries, k] found for it."""
        import ir_measures

        qrels: dict[str, dict[str, int]] = {}
        for query, keyword in zip(self._query.tolist(), self._keyword.tolist(), strict=True):
            qrels.setdefault(str(query), {})[str(keyword)] = 1
        # minus the rank as the score: ir-measures must not break our ties its own way
        run = {
            str(query): {str(position): -float(rank) for rank, position in enumerate(row)}
            for query, row in enumerate(positions.tolist())
        }
        wanted = {ir_measures.R @ k: k for k in cutoffs}
        out = {k: np.zeros(len(self.queries)) for k in cutoffs}
        for found in ir_measures.iter_calc(list(wanted), qrels, run):
            out[wanted[found.measure]][int(found.query_id)] = found.value
        return out
