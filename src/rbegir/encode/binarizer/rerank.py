"""Ordering hits again by a float copy of the vectors, for those who keep one.

Codes need no such copy. Where one exists anyway, memory-mapped or in a database, reading the vectors of a
few hits a query turns the order of codes into the order of the vectors:

    hits = index.search_codes(binarizer.encode_queries(queries), k=50)
    rows, cosines = rerank(queries, hits.rows, vectors, k=10)
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from rbegir.encode.binarizer.vectors import Floats, as_rows, unit
from rbegir.errors import InputError


def rerank(
    queries: Any, rows: npt.NDArray[np.int64], vectors: Any, k: int = 10
) -> tuple[npt.NDArray[np.int64], Floats]:
    """The best k of `rows` [Q, candidates] by cosine with queries [Q, dims]: rows and cosines [Q, k].

    Only the rows named are read. Equal cosines are ordered by row.
    """
    stored = as_rows(vectors, "vectors")
    asked = unit(as_rows(queries, "queries", stored.shape[1]), "queries")
    rows = np.asarray(rows)
    if rows.ndim != 2 or len(rows) != len(asked) or not np.issubdtype(rows.dtype, np.integer):
        raise InputError(
            f"rows must be integers [{len(asked)}, candidates], got {rows.dtype} {list(rows.shape)}"
        )
    if not 1 <= k <= rows.shape[1]:
        raise InputError(f"k must be from 1 to the {rows.shape[1]} candidates, got {k}")
    if rows.min(initial=0) < 0 or rows.max(initial=0) >= len(stored):
        raise InputError(f"rows must be from 0 to {len(stored) - 1}, got {rows.min()} to {rows.max()}")
    best, cosines = np.empty((len(asked), k), np.int64), np.empty((len(asked), k), np.float32)
    for i, (query, at) in enumerate(zip(asked, rows, strict=True)):
        score = unit(stored[at], "vectors") @ query  # [candidates]
        order = np.lexsort((at, -score))[:k]
        best[i], cosines[i] = at[order], score[order]
    return best, cosines
