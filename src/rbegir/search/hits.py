"""Hits: the public result of a search.

Every array is [queries, k], whatever the size of the batch. All queries of a search share the same
candidates, so every row is full; k is smaller than asked for when fewer keywords pass the filter. Hits are
ordered by (order key descending, row ascending), reranked ones by (score descending, row ascending), and
`merge` keeps that order, so several indexes together give what one would.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rbegir.base.checks import whole_number
from rbegir.errors import InputError, MismatchError, needing
from rbegir.search.partition import best

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

    from rbegir.search.missrate import MissCertificate


class Hit(NamedTuple):
    """One hit of one query, as iteration gives it."""

    id: int | str
    score: float
    text: str | None
    attributes: Mapping[str, Any] | None
    code_score: float | None = None  # cosine of the codes, which the score is if hits are not reranked


@dataclass(frozen=True, eq=False)
class Hits:
    """The best keywords of each query, best first."""

    ids: npt.NDArray[Any]  # [queries, k] int64, or str as objects
    scores: npt.NDArray[np.float64]  # [queries, k] what orders the hits: cosine, or the reranker's score
    keys: npt.NDArray[np.int64]  # [queries, k] exact order key
    rows: npt.NDArray[np.int64]  # [queries, k] the number a keyword got when it was added
    texts: npt.NDArray[np.object_] | None = None  # [queries, k] str, or None where there is no text
    attributes: list[list[dict[str, Any]]] | None = None  # [queries][k]
    certificate: MissCertificate | None = None  # of mode="paper"
    recall: float | None = None  # of a progressive search, where it was measured
    code_scores: npt.NDArray[np.float64] = None  # type: ignore[assignment]  # [queries, k] cosine; never None
    reranked: bool = False
    searched: float = 1.0  # share of the keywords; less only where a cluster was allowed partial answers

    def __post_init__(self) -> None:
        shape = self.ids.shape
        if len(shape) != 2:
            raise InputError(f"ids must have shape [queries, k], got {list(shape)}")
        if self.code_scores is None:
            object.__setattr__(self, "code_scores", self.scores)
        for name in ("scores", "code_scores", "keys", "rows", "texts"):
            array = getattr(self, name)
            if array is not None and array.shape != shape:
                raise InputError(f"{name} must have the shape of ids {list(shape)}, got {list(array.shape)}")
        if self.attributes is not None and (
            len(self.attributes) != shape[0] or any(len(row) != shape[1] for row in self.attributes)
        ):
            raise InputError(f"attributes must be {shape[0]} lists of {shape[1]} dictionaries")

    def __len__(self) -> int:
        """The number of queries."""
        return int(self.ids.shape[0])

    @property
    def k(self) -> int:
        """Hits per query."""
        return int(self.ids.shape[1])

    def __getitem__(self, query: int) -> list[Hit]:
        """The hits of one query."""
        texts = [None] * self.k if self.texts is None else self.texts[query].tolist()
        attributes = [None] * self.k if self.attributes is None else self.attributes[query]
        return [
            Hit(*hit)
            for hit in zip(
                self.ids[query].tolist(),
                self.scores[query].tolist(),
                texts,
                attributes,
                self.code_scores[query].tolist(),
                strict=True,
            )
        ]

    def __iter__(self) -> Iterator[list[Hit]]:
        return (self[query] for query in range(len(self)))

    def __repr__(self) -> str:
        return f"Hits({len(self)} queries × {self.k})"

    def _columns(self) -> dict[str, Any]:
        queries, k = self.ids.shape
        columns: dict[str, Any] = {
            "query": np.repeat(np.arange(queries), k),
            "rank": np.tile(np.arange(1, k + 1), queries),
            "id": self.ids.reshape(-1),
            "score": self.scores.reshape(-1),
        }
        if self.reranked:
            columns["code_score"] = self.code_scores.reshape(-1)
        if self.texts is not None:
            columns["text"] = self.texts.reshape(-1)
        if self.attributes is not None:
            flat = [attributes for row in self.attributes for attributes in row]
            names = dict.fromkeys(name for attributes in flat for name in attributes)
            for name in names:
                # an attribute with the name of one of our columns gets a prefix
                columns[f"attribute_{name}" if name in columns else name] = [a.get(name) for a in flat]
        return columns

    def to_arrow(self) -> pa.Table:
        """One row per hit: query (its number), rank (from 1), id, score, and text and attributes if any."""
        import pyarrow as pa

        return pa.table({name: pa.array(column) for name, column in self._columns().items()})

    def to_pandas(self) -> pd.DataFrame:
        """The table of `to_arrow` as a DataFrame."""
        with needing("to_pandas needs pandas", "pip install pandas, or use to_arrow()"):
            import pandas as pd
        return pd.DataFrame(self._columns())


def merge(parts: Sequence[Hits], k: int) -> Hits:
    """The best k of several results of the same queries, in the total order."""
    if not parts:
        raise InputError("nothing to merge: parts is empty")
    whole_number("k", k)
    queries = {len(part) for part in parts}
    if len(queries) > 1:
        raise MismatchError(f"results of different numbers of queries cannot be merged: {sorted(queries)}")
    keys = np.concatenate([part.keys for part in parts], axis=1)  # [queries, Σ k]
    rows = np.concatenate([part.rows for part in parts], axis=1)
    reranked = any(part.reranked for part in parts)
    if reranked:
        scores = np.concatenate([part.scores for part in parts], axis=1)
        order = np.lexsort((rows, -scores), axis=1)[:, :k]
    else:
        order = best(keys, rows, k)

    def pick(arrays: list[npt.NDArray[Any]]) -> npt.NDArray[Any]:
        return np.take_along_axis(np.concatenate(arrays, axis=1), order, axis=1)

    with_texts = all(part.texts is not None for part in parts)
    attributes = None
    if all(part.attributes is not None for part in parts):
        joined = [
            [a for part in parts if part.attributes is not None for a in part.attributes[query]]
            for query in range(len(parts[0]))
        ]
        attributes = [[row[i] for i in picks] for row, picks in zip(joined, order.tolist(), strict=True)]
    return Hits(
        ids=pick([part.ids for part in parts]),
        scores=pick([part.scores for part in parts]),
        code_scores=pick([part.code_scores for part in parts]),
        reranked=reranked,
        keys=pick([part.keys for part in parts]),
        rows=pick([part.rows for part in parts]),
        texts=pick([part.texts for part in parts if part.texts is not None]) if with_texts else None,
        attributes=attributes,
    )
