"""Several generations of codes, each encoded by another model, searched as one index.

    both = rbegir.Generations(["ads.rbe", "ads-2.rbe"], model)       # oldest first
    both.search("cheap flights", k=10)                                # Hits, as from one index
    both.add(texts); both.delete(ids)                                 # new keywords go to the newest
    both.migrate(100_000)                                             # re-encode some of the oldest

The queries of the newest model search the codes of all generations (`rbegir.upgrade`). The keywords are the
live keywords of all generations; if an id lives in several, the newest one counts. Their order is that of one
index, ties included:

    (order key descending, global row ascending)     global row = generation · 2⁴⁰ + row

Order keys are comparable between generations: they are ⌊2³⁶ (q·k)² / ‖k‖²⌋ with the sign of q·k, q is the
same integer vector everywhere, and scaling k changes nothing, so generations may differ in keyword planes.

*An id in two generations* occurs while a keyword is moved: it is added to the newer index before it is
deleted from the older one, so that a crash in between loses nothing. Search looks up the ids of older hits in
the newer indexes and repeats the search without those found there, until there are none.

*Default ids* continue the count of the rows that all generations have given out, so they never repeat.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Unpack

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rbegir.base.arguments import (
    as_batch,
    check_attributes,
    check_deletion,
    check_ids,
    check_texts,
    named_values,
)
from rbegir.codes.planes import Codes
from rbegir.encode.encoder import Encoder
from rbegir.errors import InputError, MismatchError, whole_number
from rbegir.index.creation import keywords_of
from rbegir.index.query import encode_queries
from rbegir.index.store import Ids, Index, Vectors
from rbegir.index.tenant import within
from rbegir.search.hits import Cursor, Hits, keep, merge
from rbegir.search.items import first_of_items, item_numbers
from rbegir.search.request import (
    SearchOptions,
    SearchRequest,
    Tenant,
    Where,
    local_request,
    with_options,
)

ROWS = 1 << 40  # of a generation, as counted by global rows, which no change of an older one moves


class Generations:
    """Indexes of several generations, oldest first, and the model whose queries search them all."""

    def __init__(
        self,
        indexes: Sequence[str | os.PathLike[str]],
        model: Encoder | None = None,
        *,
        device: str | Sequence[str] = "cpu",
        read_only: bool = False,
        threads: int | None = None,
    ) -> None:
        """Open the indexes; the default model is the one stored in the newest index."""
        if isinstance(indexes, (str, os.PathLike)) or not indexes:
            raise InputError("indexes must be a list of paths, oldest first", hint="Generations([old, new])")
        with contextlib.ExitStack() as opened:
            if model is None:
                with Index.open(os.fspath(indexes[-1]), read_only=True) as newest:
                    model = newest.model
            self.model: Encoder = model
            self.indexes = [
                opened.enter_context(
                    Index.open(os.fspath(path), device, model=model, read_only=read_only, threads=threads)
                )
                for path in indexes
            ]
            kinds = {index.info()["id_type"] for index in _used(self.indexes)}
            if len(kinds) > 1:
                raise MismatchError(
                    f"the generations have ids of different types: {', '.join(sorted(kinds))}"
                )
            self._open = opened.pop_all()

    def __enter__(self) -> Generations:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all indexes."""
        self._open.close()

    def refresh(self) -> None:
        """Switch to the latest committed state of every index."""
        for index in self.indexes:
            index.refresh()

    def __len__(self) -> int:
        """Live keywords; a keyword that is being moved is counted twice."""
        return sum(len(index) for index in self.indexes)

    def __repr__(self) -> str:
        return f"Generations({len(self.indexes)} indexes, {len(self)} keywords)"

    def info(self) -> dict[str, Any]:
        """The totals of all indexes, and the info of each, oldest first."""
        each = [index.info() for index in self.indexes]
        totals = {
            key: sum(one[key] for one in each) for key in ("keywords", "deleted", "segments", "disk_bytes")
        }
        shared = ("n", "keyword_planes", "query_planes", "id_type", "attributes", "tenant", "fingerprint")
        newest = {key: value for key, value in each[-1].items() if key in shared}
        return {**totals, **newest, "next_row": self._next_row(), "generations": each}

    @with_options
    def search(
        self,
        queries: str | Sequence[str] | npt.NDArray[Any],
        k: int | None = 10,
        **options: Unpack[SearchOptions],
    ) -> Hits:
        """The best k keywords of all generations for each text, or vector."""
        return self.search_codes(encode_queries(self.model, queries), k, **options)

    @with_options
    def search_codes(
        self, codes: Codes | npt.NDArray[Any], k: int | None = 10, **options: Unpack[SearchOptions]
    ) -> Hits:
        """The exact best k keywords of all generations for each code."""
        request = local_request(k, options)
        if request.mode != "exact" or request.planes is not None or request.rerank:
            raise InputError(
                "generations are searched exactly, without mode='paper', planes and rerank=True",
                hint="search the indexes one by one for those",
            )
        if request.item is not None and request.after is not None:
            raise InputError("generations have no pages of items", hint="ask for more items with k")
        parts = []
        for number, index in enumerate(self._lent()):
            if not len(index) and len(self):
                continue
            asked: SearchOptions = {**options, "attributes": request.attributes or request.item is not None}
            if request.after is not None:
                cursor = Cursor.read(request.after)
                asked["after"] = cursor._replace(rows=np.clip(cursor.rows - number * ROWS, -1, ROWS)).text()
            hits = self._visible(number, index, codes, k, asked)
            rows = np.where(hits.rows < 0, -1, hits.rows + number * ROWS)
            parts.append(replace(hits, rows=rows, after=request.after))
        if request.item is None:
            return merge(parts, k)
        found = merge(parts, None)
        column = [attributes.get(request.item) for row in found.attributes or [] for attributes in row]
        items = np.full(found.rows.shape, -1)
        items[found.places] = item_numbers(pa.array(column))
        found = keep(found, first_of_items(items), request.k)
        return found if request.attributes else replace(found, attributes=None)

    def get(self, ids: Any) -> list[dict[str, Any] | None]:
        """The keywords with these ids, each from the newest generation that has it."""
        wanted = check_ids(ids)
        found: list[dict[str, Any] | None] = [None] * len(wanted)
        for index in _used(self._lent()):
            found = [new or old for new, old in zip(index.get(wanted), found, strict=True)]
        return found

    def add(self, texts: Sequence[str] | Vectors, ids: Any = None, attributes: Any = None) -> Ids:
        """Add keywords to the newest generation; an id that exists in any generation is refused."""
        texts = as_batch(texts)
        texts = texts if getattr(texts, "ndim", 0) == 2 else check_texts(texts)
        if ids is None and self.info()["id_type"] == "int64":
            start = self._next_row()
            ids = np.arange(start, start + len(texts))
        elif ids is None:
            raise InputError("ids must be given: the ids of this index are strings")
        there = [found["id"] for found in self.get(ids) if found is not None]
        if there:
            raise InputError(
                f"id {there[0]!r} is in the index already ({len(there)} such ids)",
                hint="use upsert to replace keywords",
            )
        return self.indexes[-1].add(texts, ids, attributes)

    def upsert(self, texts: Sequence[str] | Vectors, ids: Any, attributes: Any = None) -> Ids:
        """Add keywords to the newest generation, replacing those with the same ids in all generations."""
        made = self.indexes[-1].upsert(texts, ids, attributes)
        for index in _used(self.indexes[:-1]):
            index.delete(ids)
        return made

    def update(self, ids: Any, attributes: Any) -> int:
        """Change attributes of keywords, all of which must exist, and return how many were changed.

        Each stays in its generation, where it comes last among equal scores.
        """
        given = check_ids(ids, unique=True)
        left, parts = np.arange(len(given)), []
        for index in reversed(_used(self.indexes)):  # the newest generation that has an id counts
            there = index.snapshot.find(given.take(left)) >= 0
            parts.append((index, left[there]))
            left = left[~there]
        if left.size:
            raise InputError(f"id {given[int(left[0])].as_py()!r} is not in the index")
        columns = check_attributes(attributes, len(given), self.info()["attributes"])
        values = named_values(attributes, columns, len(given))
        for index, rows in parts:
            index.update(given.take(rows), [values[row] for row in rows])
        return len(given) if columns else 0

    def delete(self, ids: Any = None, *, where: Where = None, tenant: Tenant = None) -> int:
        """Delete keywords by id, or all that pass a filter, from all generations, and return how many.

        With `tenant`, only keywords of that tenant are deleted; without ids and filter, all of them.
        """
        check_deletion(ids, where, tenant)
        wanted = None if ids is None else check_ids(ids)
        gone: dict[Any, None] = {}
        newer: list[Index] = []
        for index in reversed(_used(self._lent())):
            state = within(index.snapshot, tenant)
            positions = state.select(where) if wanted is None else state.find(wanted)
            found = state.ids(positions[positions >= 0])
            for other in newer:  # what a newer generation replaces is deleted only with it
                found = found[other.snapshot.find(check_ids(found)) < 0] if len(found) else found
            gone |= dict.fromkeys(found.tolist())
            newer.append(index)
        for index in _used(self.indexes):
            index.delete(list(gone))
        return len(gone)

    def count(self, where: Where = None, *, tenant: Tenant = None) -> int:
        """How many keywords pass a filter; a keyword that is being moved is counted twice."""
        return sum(index.count(where, tenant=tenant) for index in _used(self._lent()))

    def compact(self) -> None:
        """Compact every index."""
        for index in self.indexes:
            index.compact()

    def migrate(self, count: int) -> int:
        """Move up to `count` keywords of the oldest non-empty generation to the newest one.

        They are re-encoded from their stored texts and keep their ids and attributes. Returns how many moved;
        0 when none is left. Keywords stored without a text cannot be re-encoded and stay.
        """
        left = whole_number("count", count)
        for index in self.indexes[:-1]:
            found: list[pa.RecordBatch] = []
            for batch in index.batches(where="text is not null"):
                found.append(batch.slice(0, left))
                left -= found[-1].num_rows
                if not left:
                    break
            table = pa.Table.from_batches(found).select(["id", "text", *index.snapshot.manifest.columns])
            if table.num_rows:
                texts, ids, attributes = keywords_of(table)
                self.upsert(texts, ids, attributes)
                return int(table.num_rows)
        return 0

    def _lent(self) -> list[Index]:
        """The indexes; a column that one of them lacks is null there, as it would be in one index."""
        states = [index.snapshot for index in self.indexes]
        columns = {name: dtype for state in states for name, dtype in state.manifest.columns.items()}
        for state in states:
            state.lent = columns
        return self.indexes

    def _visible(
        self,
        number: int,
        index: Index,
        codes: Codes | npt.NDArray[Any],
        k: int | None,
        options: SearchOptions,
    ) -> Hits:
        """The best k keywords of one generation that no newer generation replaces."""
        newer = [other for other in self.indexes[number + 1 :] if len(other)]
        hidden: list[Any] = []
        given = SearchRequest(deny=options.get("deny")).deny
        while True:
            asked: SearchOptions = {**options}
            if hidden and isinstance(given, list):
                asked["deny"] = [hidden if one is None else one.to_pylist() + hidden for one in given]
            elif hidden:
                asked["deny"] = hidden if given is None else given.to_pylist() + hidden
            hits = index.search_codes(codes, k, **asked)
            ids = list(dict.fromkeys(hits.ids[hits.places].tolist()))
            replaced = {
                found["id"] for other in newer if ids for found in other.get(ids) if found is not None
            }
            if not replaced:
                return hits
            hidden += replaced

    def _next_row(self) -> int:
        return sum(int(index.info()["next_row"]) for index in self.indexes)


def _used(indexes: Sequence[Index]) -> list[Index]:
    """The indexes to which a keyword was ever added; the others have no ids and no columns yet."""
    return [index for index in indexes if index.info()["next_row"]]
