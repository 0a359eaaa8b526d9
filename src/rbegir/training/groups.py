"""Sample groups: for each clicked pair of a batch, the keywords that its query is compared with.

The paper's unit of training is a group S of one positive and several negatives, the negatives taken from the
other pairs of the batch (cross sampling). Two ways to choose them:

- in batch (default): every other keyword of the batch is a negative. One matrix product gives all of them.
- a fixed number (paper: 10), drawn at random from those.

A batch holds the same keyword more than once, and the same query with more than one keyword. Neither may
turn a true positive into a negative, so

- a group is made of *distinct* keywords: column j of the scores is the j-th distinct keyword of the batch,
  and `target[i]` is the column of pair i. A duplicate has no column of its own, nothing has to be masked,
  and its tower runs once;
- for a query that occurs with several keywords, (`known_rows`, `known_columns`) lists the other positives:
  they are excluded from its group.

Identity is that of the text: `query` and `keyword` are integers, equal where the texts are equal.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int32]
Numbers = npt.NDArray[np.integer[Any]]


class Groups(NamedTuple):
    """The groups of a batch of pairs."""

    first: Ints  # [distinct keywords] the first pair that holds each, ascending
    target: Ints  # [pairs] column of the positive
    known_rows: Ints  # [known] pairs …
    known_columns: Ints  # [known] … and columns of further positives of their query
    negatives: Ints  # [pairs, count] columns of drawn negatives; [pairs, 0] for in-batch negatives


def group(
    query: Numbers, keyword: Numbers, *, negatives: int = 0, rng: np.random.Generator | None = None
) -> Groups:
    """Groups of the pairs (query[i], keyword[i]); `negatives` = 0 means all other keywords of the batch."""
    _, index, inverse = np.unique(keyword, return_index=True, return_inverse=True)
    order = np.argsort(index)  # distinct keywords in order of first occurrence
    column = np.empty(len(order), dtype=np.int32)
    column[order] = np.arange(len(order), dtype=np.int32)
    target = column[inverse]
    known_rows, known_columns = _other_positives(query, target)
    if negatives:
        assert rng is not None
        drawn = _draw(len(order), target, known_rows, known_columns, negatives, rng)
    else:
        drawn = np.zeros((len(target), 0), dtype=np.int32)
    return Groups(index[order].astype(np.int32), target, known_rows, known_columns, drawn)


def _other_positives(query: Numbers, target: Ints) -> tuple[Ints, Ints]:
    """(rows, columns) of keywords that occur with the same query in another pair of the batch."""
    _, inverse, counts = np.unique(query, return_inverse=True, return_counts=True)
    rows = np.flatnonzero(counts[inverse] > 1)
    rows = rows[np.argsort(inverse[rows], kind="stable")]  # pairs of one query side by side
    sizes = counts[inverse[rows]]  # [rows] size of the query's run
    starts = np.zeros(len(rows), dtype=np.int64)  # where the run of each row begins in `rows`
    heads = np.flatnonzero(np.diff(inverse[rows], prepend=-1))
    starts[heads] = heads
    np.maximum.accumulate(starts, out=starts)
    left = np.repeat(np.arange(len(rows)), sizes)  # every pair of places within a run
    step = np.arange(len(left)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    columns = target[rows[starts[left] + step]]
    other = columns != target[rows[left]]
    width = len(target)
    flat = np.unique(rows[left][other] * width + columns[other])  # each (row, column) once
    return (flat // width).astype(np.int32), (flat % width).astype(np.int32)


def _draw(
    columns: int, target: Ints, known_rows: Ints, known_columns: Ints, count: int, rng: np.random.Generator
) -> Ints:
    """`count` columns a pair, drawn with replacement, none of them a positive of the pair's query.

    A draw that hits a positive moves on to the next column until it hits none. Where every keyword of the
    batch is a positive of the query there is nothing to draw: the group is then copies of the pair's own
    keyword, whose loss has no gradient.
    """
    drawn = rng.integers(0, columns, size=(len(target), count), dtype=np.int32)
    taken = np.sort(
        np.concatenate(
            [
                np.arange(len(target), dtype=np.int64) * columns + target,
                known_rows.astype(np.int64) * columns + known_columns,
            ]
        )
    )
    base = np.arange(len(target), dtype=np.int64)[:, None] * columns
    hit = np.zeros(drawn.shape, dtype=np.bool_)
    for _ in range(columns):
        key = base + drawn
        place = np.minimum(np.searchsorted(taken, key), len(taken) - 1)
        hit = taken[place] == key  # [pairs, count]
        if not hit.any():
            break
        drawn = np.where(hit, (drawn + 1) % columns, drawn)
    else:
        drawn = np.where(hit, target[:, None], drawn)
    return drawn.astype(np.int32)
