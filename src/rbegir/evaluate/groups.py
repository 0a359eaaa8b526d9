"""Sample groups: one positive pair and a fixed number of random negatives, the unit of log loss and AUC.

Negatives are made by cross sampling, as in the paper: the keyword of another pair, drawn at random from the
pairs themselves (so popular keywords are drawn more often). A keyword that is known to be right for the same
query is never drawn. The draw depends on the seed and on the rows alone, so two models are compared on
exactly the same groups.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rbegir.errors import InputError, whole_number

NEGATIVES = 10  # of the paper
_ROUNDS = 50  # of drawing again before the few remaining conflicts are settled one by one
_BLOCK = 16_384  # groups whose vectors are gathered at once


@dataclass(frozen=True)
class SampleGroups:
    """Groups over distinct texts: `keyword[:, 0]` is the positive of `query`, the other columns negatives."""

    queries: pa.StringArray  # [Q] distinct
    keywords: pa.StringArray  # [K] distinct
    query: npt.NDArray[np.int64]  # [G] into queries
    keyword: npt.NDArray[np.int64]  # [G, 1 + negatives] into keywords

    def __len__(self) -> int:
        return len(self.query)

    def scores(
        self, query_vectors: npt.NDArray[np.float32], keyword_vectors: npt.NDArray[np.float32]
    ) -> npt.NDArray[np.float32]:
        """Cosines [G, 1 + negatives] from embeddings [Q, n] and [K, n] of the distinct texts."""
        left, right = unit(query_vectors), unit(keyword_vectors)
        out = np.empty(self.keyword.shape, dtype=np.float32)
        for start in range(0, len(self), _BLOCK):
            rows = slice(start, start + _BLOCK)
            gathered = right[self.keyword[rows]]  # [block, 1 + negatives, n]
            out[rows] = np.einsum("gn,gjn->gj", left[self.query[rows]], gathered)
        return out


def unit(vectors: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Rows scaled to length 1; a zero row stays zero."""
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    return (vectors / np.where(norms > 0, norms, 1)).astype(np.float32)


def distinct(column: pa.ChunkedArray | pa.Array) -> tuple[pa.StringArray, npt.NDArray[np.int64]]:
    """The distinct texts of a column by first occurrence, and for each row its position among them."""
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    encoded = array.dictionary_encode()
    return encoded.dictionary, np.asarray(encoded.indices).astype(np.int64)


def sample_groups(pairs: pa.Table, *, negatives: int = NEGATIVES, seed: int = 0) -> SampleGroups:
    """Groups from the distinct pairs of a table with the columns query and keyword."""
    whole_number("negatives", negatives, 1)
    queries, query = distinct(pairs["query"])
    keywords, keyword = distinct(pairs["keyword"])
    count = len(keywords)
    if count < 2:
        raise InputError(
            "the pairs hold one keyword only, so there is no negative to compare it with",
            hint="evaluate on pairs with at least two different keywords",
        )
    codes, first = np.unique(query * count + keyword, return_index=True)  # known positives, ascending
    rows = np.sort(first)
    query, keyword = query[rows], keyword[rows]

    generator = np.random.default_rng(seed)
    drawn = keyword[generator.integers(0, len(rows), (len(rows), negatives))]  # [G, negatives]
    for _ in range(_ROUNDS):
        at = np.nonzero(contains(codes, query[:, None] * count + drawn))
        if not len(at[0]):
            break
        drawn[at] = keyword[generator.integers(0, len(rows), len(at[0]))]
    conflicts = contains(codes, query[:, None] * count + drawn)  # [G, negatives]
    for row in np.flatnonzero(conflicts.any(axis=1)):  # nearly every keyword is right for the query
        low, high = np.searchsorted(codes, [query[row] * count, (query[row] + 1) * count])
        allowed = np.setdiff1d(np.arange(count), codes[low:high] - query[row] * count, assume_unique=True)
        if not len(allowed):
            raise InputError(
                f"the query {queries[int(query[row])].as_py()!r} is paired with every keyword, "
                "so it has no negative",
                hint="leave it out, or give more pairs",
            )
        drawn[row, conflicts[row]] = generator.choice(allowed, int(conflicts[row].sum()))
    return SampleGroups(queries, keywords, query, np.column_stack([keyword, drawn]))


def contains(ascending: npt.NDArray[np.int64], wanted: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Which of the wanted numbers are in a sorted array, which is not empty."""
    at = np.searchsorted(ascending, wanted)
    return np.equal(ascending[np.minimum(at, len(ascending) - 1)], wanted)
