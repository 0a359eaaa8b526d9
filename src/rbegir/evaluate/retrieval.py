"""Recall over a corpus: is the right keyword among the first k of all of them?

The protocol, whatever the model:

- the corpus is a set of texts: of equal ones the first counts;
- a query is right for the keywords that the pairs give it, found in the corpus by their exact text; keywords
  that are not there are counted, and a query with none of its keywords there is left out;
- the search is exhaustive and exact, ordered by (score descending, position in the corpus ascending);
- recall@k of a query is the share of its keywords among its first k (R@k of ir-measures: with one keyword per
  query, whether it was found), and recall@k is the mean over queries.

*Two ways.* `TopK` keeps the best k of a stream of scores, arrays or tensors of a GPU; it needs NumPy alone.
`ranks`, in torch on any device, only counts how many keywords come before the right one. For a query with the
target at position p, of score s_p,

    rank = #{j : s_j > s_p} + #{j < p : s_j = s_p}

which is one matrix product and one comparison per block, while selecting the best k costs several times the
product. The tie rule costs nothing outside of the target's own block: in an earlier block ≥ counts, which is
> against the next smaller float; in a later block plain > counts.

Codes are small odd multiples of a power of two: their products are exact in float32, and in TF32 as well
(at most 8 significant bits per factor). Float keywords are normalised first and multiplied in full float32.
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
RANK_QUERIES = 2048  # ranked at once
RANK_SCORES = 1 << 29  # at a time on a GPU: 2 GB
RANK_SCORES_CPU = 1 << 24

Positions = npt.NDArray[np.int64]
Scores: TypeAlias = Union[npt.NDArray[np.float32], "Tensor"]  # of queries and keywords


class TopK:
    """The best k of a stream of scores, for many queries at once; of equal scores the earlier one wins."""

    def __init__(self, queries: int, k: int) -> None:
        self.k = k
        self._scores = np.full((queries, k), -np.inf, dtype=np.float32)
        self.positions = np.full((queries, k), -1, dtype=np.int64)  # best first

    def push(self, rows: slice, scores: Scores, start: int) -> None:
        """Take the scores [queries of the slice, block] of the keywords from position `start` on.

        It takes no more columns at once than it has seen before: then about k scores per query pass the
        threshold, and sorting those is cheap. Selecting the best of a whole block costs 20 times as much.
        """
        column = 0
        while column < scores.shape[1]:
            width = max(start + column, 8 * self.k)
            self._merge(rows, scores[:, column : column + width], start + column)
            column += width

    def _merge(self, rows: slice, scores: Scores, start: int) -> None:
        count = len(scores)
        new_query, new_column, new_value = _above(scores, self._scores[rows, -1:])
        if not len(new_query):
            return
        query = np.concatenate([np.repeat(np.arange(count), self.k), new_query])
        value = np.concatenate([self._scores[rows].ravel(), new_value])
        position = np.concatenate([self.positions[rows].ravel(), new_column + start])
        order = np.lexsort((position, -value, query))
        first = np.searchsorted(query[order], np.arange(count))  # each query has at least its k old entries
        chosen = order[first[:, None] + np.arange(self.k)]  # [queries, k]
        self._scores[rows], self.positions[rows] = value[chosen], position[chosen]


def _above(scores: Scores, bar: npt.NDArray[np.float32]) -> tuple[npt.NDArray[Any], ...]:
    """Rows, columns and values of the scores above the bar [rows, 1], not of those that equal it: of equal
    scores the earlier one stays. A tensor is compared where it is, and only what passes leaves its device."""
    if isinstance(scores, np.ndarray):
        keep = scores > bar
        return (*np.nonzero(keep), scores[keep])
    above = scores > scores.new_tensor(bar)
    return tuple(found.cpu().numpy() for found in (*above.nonzero(as_tuple=True), scores[above]))


def search_blocks(
    queries: int,
    count: int,
    k: int,
    scores_of: Callable[[int, int], Callable[[slice], Scores]],
    progress: Callable[[float], None],
) -> Positions:
    """The best k of `count` keywords for each query, block by block of both, blocks of queries in parallel.

    scores_of(start, end) prepares a block of keywords; what it returns scores a slice of the queries with it.
    """
    top = TopK(queries, min(k, count))
    blocks = [slice(first, min(first + QUERY_BLOCK, queries)) for first in range(0, queries, QUERY_BLOCK)]
    with ThreadPoolExecutor(cpu_count(), "rbegir-eval") as pool:
        for start in range(0, count, BLOCK):
            end = min(start + BLOCK, count)
            score = scores_of(start, end)
            for _ in pool.map(lambda rows: top.push(rows, score(rows), start), blocks):  # noqa: B023
                pass  # raises what a thread raised
            progress(end / count)
    return top.positions


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
        self.queries, self.query = distinct(pairs["query"].filter(pa.array(found)))
        self.keyword = np.asarray(keyword.drop_null())  # [pairs found] position in the corpus

    def recall(self, positions: Positions, cutoffs: Sequence[int]) -> dict[int, npt.NDArray[np.float64]]:
        """Recall of each query at each cutoff, from the positions [queries, k] found for it."""
        wanted = np.zeros(len(self.queries))
        found = {k: np.zeros(len(self.queries)) for k in cutoffs}
        for query, keyword in set(zip(self.query.tolist(), self.keyword.tolist(), strict=True)):
            wanted[query] += 1
            place = np.flatnonzero(positions[query] == keyword)
            for k in cutoffs:
                found[k][query] += len(place) > 0 and place[0] < k
        return {k: hits / wanted for k, hits in found.items()}


def ranks(
    queries: Tensor, keywords: Tensor, query: Tensor, target: Tensor, *, exact: bool, cosine: bool = True
) -> Tensor:
    """How many keywords come before each target: int64 [targets].

    queries [Q, n], keywords [K, n] float32 of any length; target i is keyword `target[i]`, wanted by query
    `query[i]` (int64 [targets] both). `exact`: both sides are codes. `cosine=False`: by inner product.
    """
    import torch

    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if exact else "highest")
    try:
        with torch.no_grad():
            return _ranks(queries, keywords, query, target, exact, cosine)
    finally:
        torch.set_float32_matmul_precision(before)


def _ranks(
    queries: Tensor, keywords: Tensor, query: Tensor, target: Tensor, exact: bool, cosine: bool
) -> Tensor:
    import torch

    device, count = queries.device, len(keywords)
    inverse = torch.ones(count, device=device)  # [K] what a score is multiplied with
    if cosine:
        inverse = 1 / torch.linalg.vector_norm(keywords, dim=1).clamp(min=1e-12)
    if cosine and not exact:
        keywords, inverse = keywords * inverse[:, None], torch.ones_like(inverse)
    width = max(1, (RANK_SCORES_CPU if device.type == "cpu" else RANK_SCORES) // RANK_QUERIES)
    rank = torch.zeros(len(target), dtype=torch.int64, device=device)
    for low in range(0, len(target), RANK_QUERIES):
        asked = queries[query[low : low + RANK_QUERIES]]  # [block, n]
        place = target[low : low + RANK_QUERIES]  # [block]

        def scores(start: int, asked: Tensor = asked) -> Tensor:
            end = min(start + width, count)
            return (asked @ keywords[start:end].T).mul_(inverse[start:end])  # [block, width]

        # the target's score comes from the product of its own block, so that it equals itself to the bit
        right = torch.empty(len(place), device=device)
        for start in sorted({position // width * width for position in place.tolist()}):
            rows = ((place >= start) & (place < start + width)).nonzero()[:, 0]
            right[rows] = scores(start)[rows, place[rows] - start]
        below = torch.nextafter(right, torch.full_like(right, -torch.inf))
        for start in range(0, count, width):
            s = scores(start)
            bar = torch.where(place >= start + width, below, right)
            better = (s > bar[:, None]).sum(dim=1)  # [block]
            rows = ((place >= start) & (place < start + width)).nonzero()[:, 0]
            if len(rows):
                earlier = torch.arange(start, start + s.shape[1], device=device) < place[rows, None]
                better[rows] += ((s[rows] == right[rows, None]) & earlier).sum(dim=1)
            rank[low : low + RANK_QUERIES] += better
    return rank


def recalls(
    rank: Tensor, query: Tensor, queries: int, cutoffs: Sequence[int]
) -> dict[int, npt.NDArray[np.float64]]:
    """Recall of each query at each cutoff: the share of its targets with a rank below it.  {k: [queries]}"""
    import torch

    wanted = torch.bincount(query, minlength=queries).double()
    return {
        k: (torch.bincount(query, weights=(rank < k).double(), minlength=queries) / wanted).cpu().numpy()
        for k in cutoffs
    }
