"""Recall over a corpus: is the right keyword among the first k of all of them?

The protocol, whatever the model:

- the corpus is a set of texts: of equal ones the first counts;
- a query is right for the keywords that the pairs give it, found in the corpus by their exact text; keywords
  that are not there are counted, and a query with none of its keywords there is left out;
- the search is exhaustive and exact, ordered by (score descending, position in the corpus ascending);
- recall@k of a query is the share of its keywords among its first k (R@k of ir-measures: with one keyword per
  query, whether it was found), and recall@k is the mean over queries.

`search_blocks` keeps the best k of a stream of scores, arrays or tensors of a GPU; it needs NumPy alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeAlias, Union

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rbegir.base.devices import cpu_count
from rbegir.errors import InputError
from rbegir.evaluate.groups import distinct

if TYPE_CHECKING:
    from torch import Tensor

CUTOFFS = (1, 10, 100)
BLOCK = 16_384  # keywords scored at once
QUERY_BLOCK = 1024
NO_RANK = np.iinfo(np.int64).max  # of a keyword that was not found

Positions = npt.NDArray[np.int64]
Scores: TypeAlias = Union[npt.NDArray[np.float32], "Tensor"]  # of queries and keywords


def search_blocks(
    queries: int,
    count: int,
    k: int,
    scores_of: Callable[[int, int], Callable[[slice], Scores]],
    progress: Callable[[float], None],
) -> Positions:
    """The best k of `count` keywords for each query, block by block of both, blocks of queries in parallel.

    scores_of(start, end) prepares a block of keywords; what it returns scores a slice of the queries with it.
    The first blocks of keywords are small, none larger than all before it: then about k scores per query
    are above the lowest of the best so far, and sorting those is cheap. Selecting the best of a whole block
    costs 20 times as much.
    """
    k = min(k, count)
    best = np.full((queries, k), -np.inf, dtype=np.float32)
    positions = np.full((queries, k), -1, dtype=np.int64)  # best first

    def merge(rows: slice, scores: Scores, start: int) -> None:
        """Take the scores [queries of the slice, block] of the keywords from position `start` on."""
        new_query, new_column, new_value = _above(scores, best[rows, -1:])
        query = np.concatenate([np.repeat(np.arange(len(scores)), k), new_query])
        value = np.concatenate([best[rows].ravel(), new_value])
        position = np.concatenate([positions[rows].ravel(), new_column + start])
        order = np.lexsort((position, -value, query))
        first = np.searchsorted(
            query[order], np.arange(len(scores))
        )  # each query has at least its k old ones
        chosen = order[first[:, None] + np.arange(k)]  # [queries, k]
        best[rows], positions[rows] = value[chosen], position[chosen]

    blocks = [slice(first, min(first + QUERY_BLOCK, queries)) for first in range(0, queries, QUERY_BLOCK)]
    start = 0
    with ThreadPoolExecutor(cpu_count(), "rbegir-eval") as pool:
        while start < count:
            end = min(start + min(BLOCK, max(start, 8 * k)), count)
            score = scores_of(start, end)
            for _ in pool.map(lambda rows: merge(rows, score(rows), start), blocks):  # noqa: B023
                pass  # raises what a thread raised
            progress(end / count)
            start = end
    return positions


def _above(scores: Scores, bar: npt.NDArray[np.float32]) -> tuple[npt.NDArray[Any], ...]:
    """Rows, columns and values of the scores above the bar [rows, 1], not of those that equal it: of equal
    scores the earlier one stays. A tensor is compared where it is, and only what passes leaves its device."""
    if isinstance(scores, np.ndarray):
        keep = scores > bar
        return (*np.nonzero(keep), scores[keep])
    above = scores > scores.new_tensor(bar)
    return tuple(found.cpu().numpy() for found in (*above.nonzero(as_tuple=True), scores[above]))


class Targets:
    """The right positions in the corpus for each query."""

    def __init__(self, pairs: pa.Table, corpus: pa.StringArray) -> None:
        wanted = pairs["keyword"].cast(corpus.type).combine_chunks()
        keyword = pc.index_in(wanted, value_set=corpus)  # [pairs], null where there is none
        found = np.asarray(keyword.is_valid())
        self.missing = int((~found).sum())
        if not found.any():
            raise InputError(
                "none of the keywords of the pairs is in the corpus",
                hint="the corpus must hold the same texts as the keyword column",
            )
        self.queries, query = distinct(pairs["query"].filter(pa.array(found)))
        right = np.column_stack([query, np.asarray(keyword.drop_null())])
        self.query, self.keyword = np.unique(right, axis=0).T  # [targets] each: a query, a right position

    def recall(self, positions: Positions, cutoffs: Sequence[int]) -> dict[int, npt.NDArray[np.float64]]:
        """Recall of each query at each cutoff, from the positions [queries, k] found for it."""
        hit = positions[self.query] == self.keyword[:, None]  # [targets, k]
        return self.recall_of_ranks(np.where(hit.any(axis=1), hit.argmax(axis=1), NO_RANK), cutoffs)

    def recall_of_ranks(
        self, rank: npt.NDArray[np.int64], cutoffs: Sequence[int]
    ) -> dict[int, npt.NDArray[np.float64]]:
        """Recall of each query at each cutoff: the share of its targets with a rank [targets] below it."""
        wanted = np.bincount(self.query)
        return {k: np.bincount(self.query, weights=rank < k) / wanted for k in cutoffs}
