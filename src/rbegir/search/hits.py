"""Hits: the public result of a search.

Every array is [queries, k], whatever the size of the batch, where k is the largest number of hits of a query.
`counts` says how many each query has. The places behind its last hit hold row −1, score NaN, text None and id
−1 (None if ids are texts); `hits[i]`, iteration and tables show hits only. Hits are ordered by (order key
descending, row ascending), reranked ones by (score descending, row ascending), and `merge` keeps that order.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from html import escape
from itertools import repeat
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rbegir.errors import InputError, MismatchError, needing, whole_number
from rbegir.search.partition import NO_KEY, Candidates, Int64s, best

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

    from rbegir.search.missrate import MissCertificate

SHOWN = 100  # rows of a table in a notebook
ARRAYS = ("ids", "scores", "code_scores", "keys", "rows", "texts", "why")  # of Hits, each [queries, k]
START = 2**63 - 1  # above every order key
PREFIX = "attribute_"  # see `attribute_column`


class Cursor(NamedTuple):
    """Where a page of hits ended: the last hit of each query in the total order.

    As text it is the two arrays as little-endian 64-bit integers in URL-safe base64. The key and the row of a
    keyword never change, so pages neither overlap nor leave out one that was there all the time.
    """

    keys: npt.NDArray[np.int64]  # [queries] order keys; START: nothing was found yet
    rows: npt.NDArray[np.int64]  # [queries]

    @classmethod
    def start(cls, queries: int) -> Cursor:
        """Before the first hit of every query."""
        return cls(np.full(queries, START), np.full(queries, -1))

    @classmethod
    def read(cls, text: Any, queries: int | None = None) -> Cursor:
        """A cursor from its text; it must be one of so many queries, if that is given."""
        try:
            raw = base64.b64decode(text.encode(), b"-_", validate=True)
            keys, rows = np.frombuffer(raw, "<i8").reshape(2, -1).astype(np.int64)
        except (AttributeError, ValueError, binascii.Error) as error:
            raise InputError(
                f"after must be the cursor of a result, got {str(text)[:40]!r}",
                hint="pass hits.cursor as it is",
            ) from error
        if queries is not None and len(keys) != queries:
            raise InputError(
                f"after is a cursor of {len(keys)} queries, got {queries}",
                hint="pass the cursor of a page of the same queries",
            )
        return cls(keys, rows)

    def text(self) -> str:
        return base64.urlsafe_b64encode(np.array(self, "<i8").tobytes()).decode()

    @classmethod
    def join(cls, cursors: Sequence[Cursor]) -> Cursor:
        """One cursor for the queries of several."""
        return cls(*(np.concatenate(arrays) for arrays in zip(*cursors, strict=True)))


@dataclass(frozen=True)
class Why:
    """Why a reranked hit is where it is, in measures that people understand."""

    meaning: float  # cosine of the float vectors that the model encodes from both texts
    spelling: float  # 1 − edit distance of the first 128 letters, over those of the longer text
    words: float  # share of the query's words, rare ones weighing more, that the keyword has, typos allowed
    code_rank: int | None  # by code alone; None: behind the candidates by code, found by its words

    def __str__(self) -> str:
        named = ("meaning", self.meaning), ("spelling", self.spelling), ("words", self.words)
        measures = " · ".join(f"{name} {value:.2f}".replace(" 0.", " .") for name, value in named)
        return f"{measures} · " + (
            "found by words" if self.code_rank is None else f"code rank {self.code_rank}"
        )


class Hit(NamedTuple):
    """One hit of one query, as iteration gives it."""

    id: int | str
    score: float
    text: str | None
    attributes: Mapping[str, Any] | None
    code_score: float | None = None  # cosine of the codes, which the score is if hits are not reranked
    why: Why | None = None  # of a reranked hit, where it was asked for


class _Attributes:
    """The attributes of hits: lists of dictionaries, made of columns when they are first asked for.

    The columns are Arrow arrays with a value per hit, which `Hits.to_arrow` uses as they are.
    """

    def __get__(self, hits: Hits | None, owner: object = None) -> list[list[dict[str, Any]]] | None:
        if hits is None:
            return None  # the default of the field
        held = vars(hits)
        if held["attributes"] is None and held["columns"]:
            columns = [column.to_pylist() for column in held["columns"].values()]
            each = list(map(dict, map(zip, repeat(tuple(held["columns"])), zip(*columns, strict=True))))
            ends = np.cumsum(hits.counts).tolist()
            ranges = zip(ends, hits.counts.tolist(), strict=True)
            held["attributes"] = [each[end - size : end] for end, size in ranges]
        found: list[list[dict[str, Any]]] | None = held["attributes"]
        return found

    def __set__(self, hits: Hits, given: list[list[dict[str, Any]]] | Mapping[str, pa.Array] | None) -> None:
        flat = isinstance(given, dict)
        vars(hits).update(attributes=None if flat else given, columns=given if flat else None)


@dataclass(frozen=True, eq=False)
class Hits:
    """The best keywords of each query, best first."""

    ids: npt.NDArray[Any]  # [queries, k] int64, or str as objects
    scores: npt.NDArray[np.float64]  # [queries, k] what orders the hits: cosine, or the reranker's score
    keys: npt.NDArray[np.int64]  # [queries, k] exact order key
    rows: npt.NDArray[np.int64]  # [queries, k] the number a keyword got when it was added
    texts: npt.NDArray[np.object_] | None = None  # [queries, k] str, or None where there is no text
    attributes: _Attributes = _Attributes()  # [queries][k] dictionaries, or None
    certificate: MissCertificate | None = None  # of mode="paper"
    recall: float | None = None  # of a search with `planes`: estimated, or measured if asked for
    code_scores: npt.NDArray[np.float64] = None  # type: ignore[assignment]  # [queries, k] cosine; never None
    reranked: bool = False
    why: npt.NDArray[np.object_] | None = None  # [queries, k] Why of reranked hits, where it was asked for
    searched: float = 1.0  # share of the keywords; less only where a cluster was allowed partial answers
    after: str | None = None  # the cursor behind which these hits come

    def __post_init__(self) -> None:
        shape = self.ids.shape
        if len(shape) != 2:
            raise InputError(f"ids must have shape [queries, k], got {list(shape)}")
        if self.code_scores is None:
            object.__setattr__(self, "code_scores", self.scores)
        for name in ARRAYS:
            array = getattr(self, name)
            if array is not None and array.shape != shape:
                raise InputError(f"{name} must have the shape of ids {list(shape)}, got {list(array.shape)}")
        given = vars(self)["attributes"]
        if given is not None and [len(row) for row in given] != self.counts.tolist():
            raise InputError(f"attributes must be {shape[0]} lists of as many dictionaries as there are hits")

    @classmethod
    def of(
        cls,
        found: Candidates,
        code_scores: npt.NDArray[np.float64],
        rows: Int64s,
        ids: npt.NDArray[Any],
        columns: dict[str, pa.Array],
        *,
        texts: npt.NDArray[np.object_] | None,
        scores: npt.NDArray[np.float64] | None = None,
        **others: Any,
    ) -> Hits:
        """The hits that a search found; rows, ids, attributes by column and texts are those of its hits
        one after the other. `scores` are those of a reranker."""
        real = found.positions >= 0  # [queries, k]

        def spread(flat: npt.NDArray[Any], empty: Any) -> npt.NDArray[Any]:
            whole = np.full(real.shape, empty, flat.dtype)
            whole[real] = flat
            return whole

        code_scores = np.where(real, code_scores, np.nan)
        return cls(
            ids=spread(ids, None if ids.dtype == object else -1),
            scores=code_scores if scores is None else scores,
            code_scores=code_scores,
            reranked=scores is not None,
            keys=found.keys,
            rows=spread(rows, -1),
            texts=None if texts is None else spread(texts, None),
            attributes=columns or None,
            **others,
        )

    def __len__(self) -> int:
        """The number of queries."""
        return int(self.ids.shape[0])

    @property
    def k(self) -> int:
        """The largest number of hits of a query."""
        return int(self.ids.shape[1])

    @cached_property
    def counts(self) -> Int64s:
        """Hits of each query [queries]."""
        counts: Int64s = (self.rows >= 0).sum(axis=1)
        return counts

    @property
    def cursor(self) -> str:
        """Where these hits end: with `after=hits.cursor` the same search continues behind them."""
        if self.reranked or self.certificate is not None or self.recall is not None:
            raise InputError(
                "these hits have no cursor: pages follow the exact order of the codes",
                hint="search with rerank=False, and without mode='paper' and planes",
            )
        end = Cursor.start(len(self)) if self.after is None else Cursor.read(self.after)
        for query, count in enumerate(self.counts.tolist()):
            if count:
                end.keys[query] = self.keys[query, count - 1]
                end.rows[query] = self.rows[query, count - 1]
        return end.text()

    def __getitem__(self, query: int) -> list[Hit]:
        """The hits of one query."""
        return [Hit._make(hit) for hit in hit_fields(self, query)]

    def __iter__(self) -> Iterator[list[Hit]]:
        return (self[query] for query in range(len(self)))

    def __repr__(self) -> str:
        return f"Hits({len(self)} queries × {self.k})"

    def _repr_html_(self) -> str:
        """A table for notebooks, of the first SHOWN hits."""
        columns = {name: _listed(column[:SHOWN]) for name, column in self._columns().items()}
        lines = [f"<p>{escape(repr(self))}</p>", "<table>"]
        for tag, row in [("th", columns), *(("td", row) for row in zip(*columns.values(), strict=True))]:
            cells = [f"{value:.4f}" if isinstance(value, float) else value for value in row]
            lines.append(
                "".join(f"<{tag}>{escape(str(cell))}</{tag}>" for cell in cells).join(("<tr>", "</tr>"))
            )
        return "\n".join([*lines, "</table>"])

    @property
    def places(self) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
        """The query and the rank, from 0, of every hit: an index into the arrays."""
        query, rank = np.nonzero(self.rows >= 0)
        return query, rank

    def _columns(self) -> dict[str, Any]:
        places = self.places
        columns: dict[str, Any] = {
            "query": places[0],
            "rank": places[1] + 1,
            "id": self.ids[places],
            "score": self.scores[places],
        }
        if self.reranked:
            columns["code_score"] = self.code_scores[places]
        if self.texts is not None:
            columns["text"] = self.texts[places]
        if self.why is not None:
            columns["why"] = [str(why) for why in self.why[places]]
        flat = vars(self)["columns"]
        if flat is None and self.attributes is not None:
            each = [attributes for row in self.attributes for attributes in row]
            names = dict.fromkeys(name for attributes in each for name in attributes)
            flat = {name: [attributes.get(name) for attributes in each] for name in names}
        own = tuple(columns)
        return columns | {attribute_column(name, own): column for name, column in (flat or {}).items()}

    def to_arrow(self) -> pa.Table:
        """One row per hit: query (its number), rank (from 1), id, score, and what else hits have."""
        import pyarrow as pa

        kinds = {"text": pa.string(), "why": pa.string()} | (
            {"id": pa.string()} if self.ids.dtype == object else {}
        )  # also where there are no hits
        return pa.table({name: pa.array(c, kinds.get(name)) for name, c in self._columns().items()})

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """The table of `to_arrow` for all that reads Arrow streams, such as polars and DuckDB."""
        return self.to_arrow().__arrow_c_stream__(requested_schema)

    def to_pandas(self) -> pd.DataFrame:
        """The table of `to_arrow` as a DataFrame."""
        with needing("to_pandas needs pandas", "pip install pandas, or use to_arrow()"):
            import pandas as pd
        return pd.DataFrame({name: _listed(column) for name, column in self._columns().items()})


def _listed(column: Any) -> Any:
    """A column of Arrow as a list; others as they are."""
    return column.to_pylist() if hasattr(column, "to_pylist") else column


def attribute_column(name: str, own: Container[str]) -> str:
    """The column of an attribute in a table whose other columns are `own`.

    An attribute that is called like one of these gets a prefix. So does one that is called like one of these
    with the prefix, once or more, so that different attributes have different columns.
    """
    bare = name
    while bare.startswith(PREFIX):
        bare = bare.removeprefix(PREFIX)
    return f"{PREFIX}{name}" if bare in own else name


def hit_fields(hits: Hits, query: int) -> Iterator[tuple[Any, ...]]:
    """The fields of each `Hit` of one query, for callers that have no use for the objects."""
    count = int(hits.counts[query])

    def row(array: npt.NDArray[Any] | None) -> list[Any]:
        return [None] * count if array is None else array[query, :count].tolist()

    attributes = [None] * count if hits.attributes is None else hits.attributes[query]
    rows = row(hits.ids), row(hits.scores), row(hits.texts), attributes
    return zip(*rows, row(hits.code_scores), row(hits.why), strict=True)


def merge(parts: Sequence[Hits], k: int | None) -> Hits:
    """The best k of several results of the same queries, in the total order; k None: all."""
    if not parts:
        raise InputError("nothing to merge: parts is empty")
    k = max(1, sum(part.k for part in parts)) if k is None else whole_number("k", k)
    queries = {len(part) for part in parts}
    if len(queries) > 1:
        raise MismatchError(f"results of different numbers of queries cannot be merged: {sorted(queries)}")
    keys = np.concatenate([part.keys for part in parts], axis=1)  # [queries, Σ k]
    rows = np.concatenate([part.rows for part in parts], axis=1)
    reranked = any(part.reranked for part in parts)
    if reranked:
        scores = np.concatenate([part.scores for part in parts], axis=1)
        order = np.lexsort((rows, -scores), axis=1)[:, :k]  # NaN comes last
    else:
        order = best(keys, rows, k)
    order = order[:, : int(np.take_along_axis(rows >= 0, order, 1).sum(axis=1).max(initial=0))]

    def pick(name: str) -> Any:
        """The arrays of the parts as one; None if one of them lacks it."""
        arrays = [getattr(part, name) for part in parts]
        if any(array is None for array in arrays):
            return None
        return np.take_along_axis(np.concatenate(arrays, axis=1), order, axis=1)

    attributes: list[list[dict[str, Any]]] | None = None
    if all(part.attributes is not None for part in parts):
        attributes = []
        for query, picks in enumerate(order.tolist()):
            each: list[Any] = []
            for part in parts:
                own = part.attributes[query] if part.attributes else []
                each += [*own, *[None] * (part.k - len(own))]
            attributes.append([each[i] for i in picks if each[i] is not None])
    return Hits(
        **{name: pick(name) for name in ARRAYS},
        reranked=reranked,
        attributes=attributes,
        searched=min(part.searched for part in parts),
        after=parts[0].after,
    )


def keep(hits: Hits, kept: npt.NDArray[np.bool_], k: int | None) -> Hits:
    """The first k of the hits that are kept [queries, k]."""
    kept = kept & (hits.rows >= 0)
    kept &= np.cumsum(kept, axis=1) <= (hits.k if k is None else k)
    order = np.argsort(~kept, axis=1, kind="stable")[:, : int(kept.sum(axis=1).max(initial=0))]
    gone = ~np.take_along_axis(kept, order, axis=1)
    arrays: dict[str, Any] = {}
    for name in ARRAYS:
        if (array := getattr(hits, name)) is not None:
            arrays[name] = np.take_along_axis(array, order, axis=1)
            empty = {"O": None, "f": np.nan, "i": NO_KEY if name == "keys" else -1}
            arrays[name][gone] = empty[array.dtype.kind]
    attributes = hits.attributes and [
        [one for one, stays in zip(found, row, strict=False) if stays]
        for found, row in zip(hits.attributes, kept, strict=True)
    ]
    return replace(hits, **arrays, attributes=attributes)


def cut(hits: Hits, start: int, count: int, k: int | None) -> Hits:
    """The first k hits of the queries start … start + count, as a search for them alone finds them."""
    rows = slice(start, start + count)
    columns = slice(min(int(hits.counts[rows].max(initial=0)), hits.k if k is None else k))
    before = None if hits.after is None else Cursor.read(hits.after)
    arrays: dict[str, Any] = {name: getattr(hits, name) for name in ARRAYS}
    arrays = {name: None if array is None else array[rows, columns] for name, array in arrays.items()}
    return replace(
        hits,
        **arrays,
        attributes=None if hits.attributes is None else [found[columns] for found in hits.attributes[rows]],
        after=None if before is None else Cursor(before.keys[rows], before.rows[rows]).text(),
    )
