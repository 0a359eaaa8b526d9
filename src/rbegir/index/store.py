"""The index: keywords with codes, ids, texts and attributes, on disk, searched exhaustively and exactly.

    index = Index.create("ads.rbe", model)
    index.add(["cheap flights", "red shoes"], attributes={"price": [10, 20]})
    index.search("flight", k=10, where="price < 15").texts

Guarantees:

- `add`, `upsert`, `delete` and `compact` are atomic and durable when they return, and searchable at once.
- Many readers, one writer. The first change takes the lock and keeps it until `close`. Readers never lock.
  They see the state at the time they opened the index or last called `refresh`. Many threads may share one
  Index.
- Every byte is checked before it is used: metadata when the index is opened, the codes of a segment before
  its first search, the rest when hits read it (`format.py`). Damage raises CorruptError and never changes a
  result.
- Hits are the true top k of the live keywords that pass the filter, ordered by (score, row), ties included.
- Texts are encoded by the model of the state that is searched or changed. If another process replaces the
  index, the new model is loaded with the new state, or the call fails.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rbegir.base.arguments import (
    as_batch,
    check_attributes,
    check_deletion,
    check_ids,
    check_tenants,
    check_texts,
    fitting,
)
from rbegir.base.devices import prompt_threads
from rbegir.base.disk import explained
from rbegir.base.mapping import arm
from rbegir.base.progress import Progress, Report, reported
from rbegir.codes.planes import Codes
from rbegir.encode.encoder import (
    Encoder,
    encode_keywords,
    encode_vectors,
    expected,
    load_scorer,
    stored_name,
    takes_vectors,
)
from rbegir.errors import CorruptError, FileError, InputError, LockedError, MismatchError, whole_number
from rbegir.index.columns import Int64s
from rbegir.index.creation import SEGMENT_ROWS, backup, fill, make, staged
from rbegir.index.join import Join, groups
from rbegir.index.manifest import (
    MODEL,
    check_adds,
    check_match,
    first_manifest,
    load_stored,
    read_manifest,
)
from rbegir.index.maxsim import maxsim
from rbegir.index.query import Searcher, encode_queries, encoded, is_code, query_texts
from rbegir.index.segment import KeywordRows
from rbegir.index.snapshot import Snapshot, damage
from rbegir.index.tenant import within
from rbegir.index.writer import Writer
from rbegir.search.hits import Hits
from rbegir.search.request import (
    Filters,
    SearchOptions,
    Tenant,
    Where,
    filter_request,
    local_request,
    with_options,
)

EXPORT_ROWS = 1 << 14  # keywords per exported batch
TURN_SECONDS = 0.1  # that a compaction waits for the end of a change
SWITCH_SECONDS = 0.0005  # of `prompt_threads` in a compaction: changes leave the interpreter for each sync

Ids = npt.NDArray[Any]  # int64, or str objects
Vectors = npt.NDArray[Any]  # float [count, dims]


class Index:
    """A directory of keywords, from `create`, `open` or `build`. A context manager closes it."""

    def __init__(
        self,
        path: Path,
        *,
        device: str | Sequence[str],
        threads: int | None,
        model: Encoder | None,
        read_only: bool = False,
        writer: Writer | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        self._name, self._path = str(path), path.absolute()  # the process may change its directory
        self._snapshot = Snapshot.open(path)
        manifest = self._snapshot.manifest
        self._searcher = Searcher(device, manifest.n, manifest.keyword_planes, threads, progress)
        self._snapshot.accelerated = self._searcher.accelerated
        self._given = self._model = model  # `_model` becomes the stored one when it is loaded
        self._stored = list[bytes]()  # the name of the stored one
        self._scorer: tuple[str, Encoder | None] = ("", None)  # a fingerprint and its scorer
        if model is not None:
            check_match(model, manifest)
        self._read_only = read_only
        self._writer = writer
        self._mutex = threading.RLock()  # held by changes, and by a compaction while it syncs
        self._next = threading.Lock()  # held by the change or piece of a compaction that waits for the mutex
        self._compacting = threading.RLock()  # held by a compaction, which takes the mutex only to swap
        self._loading = threading.Lock()  # held while the model loads; searches do not take the mutex
        self._switching = threading.Lock()  # held while `_snapshot` and `_model` change together
        self._closed = False

    @classmethod
    def create(
        cls,
        path: str | Path,
        model: Encoder | None = None,
        *,
        n: int | None = None,
        keyword_planes: int | None = None,
        query_planes: int | None = None,
        id_type: str | None = None,
        tenant: str | None = None,
        overwrite: bool = False,
        device: str | Sequence[str] = "cpu",
        threads: int | None = None,
    ) -> Index:
        """Create an empty index for the codes of a model, which is stored inside, or for a given shape.

        `id_type` is "int64" or "string"; without it the first `add` decides. `tenant` names the attribute
        that holds the tenant of each keyword, a string or an integer (`search(…, tenant=…)`).
        """
        path = Path(path).absolute()
        manifest = first_manifest(model, n, keyword_planes, query_planes, id_type, tenant)
        Searcher(device, manifest.n, manifest.keyword_planes, threads)  # refuses a bad device early
        with staged(path, overwrite=overwrite) as writer:
            make(writer.directory, manifest, model)
        return cls(path, device=device, threads=threads, model=model, writer=writer)

    @classmethod
    def open(
        cls,
        path: str | Path,
        device: str | Sequence[str] = "cpu",
        *,
        model: Encoder | None = None,
        read_only: bool = False,
        threads: int | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> Index:
        """Open an index in its current state. `model` replaces the stored model and must match it.

        An index at a URL (`https://`, `s3://`, `gs://` …) is copied to the cache and opened read-only.
        `progress` is called with (keywords uploaded, total) while a search uploads keywords to GPUs.
        """
        if "://" in str(path):
            from rbegir.index.location import Location

            with Location.of(path).copied() as copy:
                return cls.open(copy, device, model=model, read_only=True, threads=threads, progress=progress)
        return cls(
            Path(path), device=device, threads=threads, model=model, read_only=read_only, progress=progress
        )

    @classmethod
    def build(
        cls,
        path: str | Path,
        model: Encoder,
        batches: Iterable[pa.RecordBatch],
        *,
        tenant: str | None = None,
        overwrite: bool = False,
        upsert: bool = False,
        device: str | Sequence[str] = "cpu",
        threads: int | None = None,
        segment_rows: int = SEGMENT_ROWS,
        progress: Progress = None,
    ) -> Index:
        """Build an index from a stream of batches with `text`, optional `id`, and attribute columns.

        A Binarizer encodes a column `vector`, of lists of one length; texts beside it are stored. `batches`
        may also be anything that offers an Arrow stream, such as a table or a DataFrame of polars.
        A repeated id is refused; with `upsert` its last row wins. `tenant` is as for `create`. Memory is
        bounded by `segment_rows`. The index appears at its path when it is complete; if the build fails or
        is stopped, nothing is left behind. `progress` is called with (keywords encoded, all), the latter
        estimated from the share of the file that was read, None if unknown; False for none. By default a bar
        is shown in a terminal.
        """
        path = Path(path).absolute()
        manifest = first_manifest(model, tenant=tenant)
        with staged(path, overwrite=overwrite) as writer:
            make(writer.directory, manifest, model)
            hidden = cls(writer.directory, device=device, threads=threads, model=model, writer=writer)
            fill(hidden, batches, segment_rows, upsert=upsert, progress=progress)
        return cls(path, device=device, threads=threads, model=model, writer=writer)

    def __enter__(self) -> Index:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def __len__(self) -> int:
        return self._state().keywords

    def __repr__(self) -> str:
        return f"Index({str(self._path)!r}, {self._snapshot.keywords} keywords)"

    def close(self) -> None:
        """Wait for a running compaction and release the lock; the index cannot be used afterwards."""
        with self._compacting, self._mutex:
            self._drop_writer()
            self._closed = True

    def refresh(self) -> None:
        """Switch to the latest committed state, and to its model if the index was replaced."""
        with self._mutex:
            self._reopen(self._state())

    @property
    def path(self) -> Path:
        return self._path

    @property
    def snapshot(self) -> Snapshot:
        """The current state, for reading keywords in bulk. A snapshot never changes."""
        return self._state()

    @property
    def model(self) -> Encoder:
        """The encoder; a stored one is loaded on first use."""
        return self._encoding()[1]

    # ---- change ----

    def add(
        self,
        texts: Sequence[str] | Vectors,
        ids: Any = None,
        attributes: Any = None,
        *,
        progress: Progress = None,
    ) -> Ids:
        """Add keywords and return their ids (by default the rows 0, 1, 2 …). An existing id is refused.

        An index made with a Binarizer takes float vectors [count, dims] instead of texts. `progress` is
        called with (keywords encoded, all), False for none; by default a bar is shown in a terminal.
        """
        with reported(progress, "encoding") as report:
            return self._add(*self._keywords(texts, report), ids, attributes, upsert=False, report=report)

    def upsert(
        self,
        texts: Sequence[str] | Vectors,
        ids: Any,
        attributes: Any = None,
        *,
        progress: Progress = None,
    ) -> Ids:
        """Add keywords, atomically replacing those with the same ids."""
        with reported(progress, "encoding") as report:
            return self._add(*self._keywords(texts, report), ids, attributes, upsert=True, report=report)

    def add_codes(
        self,
        codes: Codes,
        ids: Any = None,
        attributes: Any = None,
        *,
        texts: Any = None,
        upsert: bool = False,
        fingerprint: str | None = None,
    ) -> Ids:
        """Add keywords by codes made elsewhere, optionally with texts, of which some may be None.

        If the index has a model, codes made by another model are refused. The codes of a Binarizer name it;
        for other models pass their `fingerprint`.
        """
        manifest = self._state().manifest
        if not isinstance(codes, Codes):
            raise InputError(f"codes must be rbegir.Codes, got {type(codes).__name__}")
        if (codes.n, codes.plane_count) != manifest.shape:
            raise MismatchError(
                f"codes have n = {codes.n} and {codes.plane_count} planes, "
                f"the index holds n = {manifest.n} and {manifest.keyword_planes} planes"
            )
        given = None if texts is None else check_texts(texts, missing=True)
        if given is not None and len(given) != len(codes):
            raise InputError(f"texts has {len(given)} values for {len(codes)} codes")
        made_by = fingerprint
        if made_by is None:  # an index without a model takes codes of any model
            made_by = manifest.fingerprint and (codes.made_by or manifest.fingerprint)
        return self._add(given, (codes, made_by), ids, attributes, upsert=upsert)

    def update(self, ids: Any, attributes: Any) -> int:
        """Change attributes of keywords, all of which must exist, and return how many were changed.

        Texts, codes and other attributes stay, and nothing is encoded. None clears a value, one that a
        record does not name stays, and a new name adds a column. As with `upsert`, a keyword gets a new row,
        so it comes last among equal scores.
        """
        given = check_ids(ids, unique=True)
        with fitting(f"{len(given)} keywords at once", "update fewer at a time"), self._writing() as writer:
            before = self._snapshot
            manifest, positions = before.manifest, before.find(given)
            _refuse_missing(given, positions)
            new = check_attributes(attributes, len(given), manifest.columns)
            if not len(given) or not new:
                return 0
            old = {name: before.array(name, positions) for name in before.types() if name != "id"}
            for name in new.keys() & manifest.columns.keys() if isinstance(attributes, Sequence) else ():
                named = pa.array([name in record for record in attributes])
                new[name] = pc.if_else(named, new[name], old[name])
            kept = {name: column for name, column in old.items() if column.null_count < len(given)}
            columns = {**kept, **new}
            check_tenants(columns, manifest.tenant)
            rows = KeywordRows(before.codes(positions), manifest.next_row, given, columns)
            self._snapshot = writer.add(before, rows, positions)
        return len(given)

    def delete(self, ids: Any = None, *, where: Where = None, tenant: Tenant = None) -> int:
        """Delete keywords by id, or all that pass a filter, and return how many; unknown ids are ignored.

        With `tenant`, only keywords of that tenant are deleted; without ids and filter, all of them.
        """
        check_deletion(ids, where, tenant)
        wanted = None if ids is None else pc.unique(check_ids(ids))
        with self._writing() as writer:
            state = self._snapshot
            own = within(state, tenant)
            positions = own.original(own.select(where) if wanted is None else own.find(wanted))
            found = int(np.count_nonzero(positions >= 0))
            if found:
                self._snapshot = writer.delete(state, positions)
        return found

    def compact(self, progress: Progress = None) -> None:
        """Rewrite the index into a few large segments without deleted keywords. Rows and ids stay.

        Other threads can search and change the index meanwhile; a second compaction waits for the first.
        """
        with self._compacting, prompt_threads(SWITCH_SECONDS), contextlib.ExitStack() as stack:
            with self._writing() as writer:
                compaction = stack.enter_context(writer.compacting(self._snapshot))
            if compaction.write(self._turn, stack.enter_context(reported(progress, "compacting"))):
                compaction.find_deleted(self._snapshot)
                with self._writing() as writer:
                    self._snapshot = writer.swap(compaction, self._snapshot)
                compaction.forget()

    # ---- search and read ----

    @with_options
    def search(
        self,
        queries: str | Sequence[str] | npt.NDArray[Any],
        k: int | None = 10,
        **options: Unpack[SearchOptions],
    ) -> Hits:
        """The best k keywords for a text, or for each text of a list.

        An index made with a Binarizer is searched with a float vector, or with several: [queries, dims].
        """
        request = local_request(k, options)
        self._state()
        state, model = self._encoding()
        with _room_for(queries):
            codes, texts, reranker = encoded(model, queries, request)
            return self._searcher.search(state, codes, request, texts, reranker, model)

    @with_options
    def search_codes(
        self, codes: Codes | npt.NDArray[Any], k: int | None = 10, **options: Unpack[SearchOptions]
    ) -> Hits:
        """The best k keywords for each query code, or integer vector: int8 or int16 [queries, n], ±255.

        To search with stored keywords, use `neighbors` or `join`: a Binarizer encodes queries differently.
        """
        request = local_request(k, options)
        with _room_for(codes):
            state, scorer = self._scoring()
            return self._searcher.search(state, codes, request, scorer=scorer)

    def maxsim(self, queries: Any, k: int = 10, *, item: str, **filters: Unpack[Filters]) -> pa.Table:
        """The best k items for a query of several vectors: late interaction, exhaustive and exact.

        The score of an item is the sum, over the vectors of the query, of the best cosine among the codes of
        its keywords. A query is what `search` takes as a batch: texts, vectors [vectors, dims], codes or
        integers; a list of such batches is several queries. `item` names the attribute that says to which
        item a keyword belongs. One row per item: query (its number), rank (from 1), item, score, and id, that
        of its first keyword that passes. Scores have the same bits on every device.
        """
        request = filter_request("maxsim", whole_number("k", k), filters, item=item)
        queries = as_batch(queries)
        several = isinstance(queries, (list, tuple)) and query_texts(queries) is None
        state, batches = self._state(), list(queries) if several else [queries]
        for number, batch in enumerate(batches):
            if not isinstance(batch, str) and hasattr(batch, "__len__") and not len(batch):
                raise InputError(
                    f"query {number} has no vectors",
                    hint="give every query at least one text, vector or code",
                )
        if not all(is_code(batch) for batch in batches):
            state, model = self._encoding()
            batches = [batch if is_code(batch) else encode_queries(model, batch) for batch in batches]
        return maxsim(state, batches, request, self._searcher)

    def neighbors(
        self,
        k: int | None = None,
        min_score: float | None = None,
        *,
        texts: bool = False,
        where: Where = None,
        tenant: Tenant = None,
        progress: Progress = None,
    ) -> pa.Table:
        """For each keyword, the exact best k other keywords, those that reach `min_score`, or both.

        One row per pair: id, neighbor_id, rank (from 1) and the score that a search would give; with `texts`
        also text and neighbor_text. A keyword is never its own neighbor. With `where` and `tenant`, both are
        keywords that pass. `progress` is called with (keywords searched, all), False for none; by default a
        bar is shown in a terminal.
        """
        return self._joined(progress, None, k, min_score, texts=texts, where=where, tenant=tenant)

    def join(
        self,
        other: Index,
        k: int | None = None,
        min_score: float | None = None,
        *,
        texts: bool = False,
        where: Where = None,
        tenant: Tenant = None,
        progress: Progress = None,
    ) -> pa.Table:
        """Search this index with every stored keyword of `other`; the columns are those of `neighbors`.

        `id` is the id of a keyword of `other`, `neighbor_id` that of a keyword of this index that passes
        `where`. With `tenant`, both are keywords of that tenant.
        """
        if not isinstance(other, Index):
            raise InputError(f"other must be an rbegir.Index, got {type(other).__name__}")
        return self._joined(progress, other, k, min_score, texts=texts, where=where, tenant=tenant)

    def joining(
        self,
        other: Index | None,
        k: int | None,
        min_score: float | None,
        *,
        texts: bool,
        where: Where = None,
        tenant: Tenant = None,
    ) -> Join:
        """A join that the caller runs in parts; the index is joined with itself if `other` is None."""
        state, scorer = self._scoring(tenant)
        queries = state if other is None else within(other.snapshot, tenant)
        return Join(state, queries, scorer, k, min_score, other is not None, texts, where, tenant)

    def duplicates(self, min_score: float, *, tenant: Tenant = None, progress: Progress = None) -> pa.Table:
        """Groups of keywords that are linked by scores of at least `min_score`: group, id and text.

        Groups are connected components: two members may score less if others connect them. Groups are
        numbered by their first keywords; keywords without a duplicate are left out.
        """
        with fitting("the groups of an index", "raise min_score"), reported(progress, "comparing") as report:
            state, scorer = self._scoring(tenant)
            return groups(state, scorer, self._searcher.backend(state), min_score, report)

    def scan(
        self,
        queries: Any,
        min_score: float,
        *,
        rows: int = EXPORT_ROWS,
        **filters: Unpack[Filters],
    ) -> Iterator[pa.RecordBatch]:
        """Stream all hits whose code score is at least `min_score`: query by query, best first.

        Batches have at most `rows` hits, and the columns query (its number), score, id, text and the
        attributes. Queries are texts, vectors or codes, as for `search` and `search_codes`.
        """
        request = filter_request("scan", None, filters, min_score=min_score)
        self._state()
        scorer: Encoder | None
        if is_code(queries):
            (state, scorer), codes = self._scoring(), queries
        else:
            state, model = self._encoding()
            scorer, codes = model, encode_queries(model, queries)
        return self._searcher.scan(state, codes, request, whole_number("rows", rows), scorer)

    def get(self, ids: Any) -> list[dict[str, Any] | None]:
        """The keywords with these ids: id, text and attributes; None for an unknown id."""
        return self._state().records(check_ids(ids))

    def codes(self, ids: Any) -> Codes:
        """The codes of the keywords with these ids, all of which must exist."""
        state, wanted = self._state(), check_ids(ids)
        positions = state.find(wanted)
        _refuse_missing(wanted, positions)
        return state.codes(positions)

    def coarse_rows(
        self,
        queries: Codes | npt.NDArray[Any],
        k: int,
        *,
        planes: int,
        **filters: Unpack[Filters],
    ) -> npt.NDArray[np.int64]:
        """The rows [queries, k] of the best keywords, scored by their first planes only."""
        request = filter_request("coarse_rows", k, filters)
        return self._searcher.coarse_rows(self._state(), queries, request, planes)

    def batches(
        self, rows: int = EXPORT_ROWS, *, where: Where = None, tenant: Tenant = None
    ) -> Iterator[pa.RecordBatch]:
        """The keywords that pass, ordered by row: batches of id, text and attributes, at least one."""
        return within(self._state(), tenant).batches(rows, where)

    def rows(self, where: Where = None, *, tenant: Tenant = None) -> Iterator[dict[str, Any]]:
        """The keywords that pass, ordered by row, each as a dict of id, text and attributes."""
        for batch in self.batches(where=where, tenant=tenant):
            yield from batch.to_pylist()

    def count(self, where: Where = None, *, tenant: Tenant = None) -> int:
        """How many keywords pass a filter."""
        return within(self._state(), tenant).count(where)

    def info(self) -> dict[str, Any]:
        """The size, shape and columns of the index, and the expected accuracy if a Binarizer measured it."""
        facts = {"path": self._name, **self._state().manifest.facts()}
        with contextlib.suppress(FileError, MismatchError):  # damaged or replaced: searches say so
            if (measured := expected(self._scoring()[1])) is not None:
                facts["expected"] = measured
        return facts

    def verify(self, progress: Progress = None) -> None:
        """Check every byte on disk; raises a CorruptError that names the damaged files and blocks."""
        with reported(progress, "verifying") as report:
            found = [error.message for error in damage(self._path, report)]
        if found:
            more = f" (and {len(found) - 5} more)" if len(found) > 5 else ""
            raise CorruptError(
                "; ".join(found[:5]) + more,
                hint="restore the damaged files from a copy, or save the rest with Index.salvage(path, out)",
            )

    def backup(self, path: str | Path, progress: Progress = None) -> dict[str, Any]:
        """Copy the current state to a new index at `path`, or bring an earlier backup there up to date.

        Files that the backup has already are checked and not copied again.
        """
        self._state()
        with reported(progress, "copying") as report:
            return backup(self._path, Path(path), report)

    @staticmethod
    def salvage(path: str | Path, out: str | Path, *, overwrite: bool = False) -> dict[str, Any]:
        """Copy what is intact of a damaged index to a new one; returns what was saved and what was lost."""
        from rbegir.index.salvage import salvage

        return salvage(Path(path), Path(out), overwrite=overwrite)

    # ---- internal ----

    def _state(self) -> Snapshot:
        if self._closed:
            raise InputError(f"the index {self._path} has been closed", hint="open it again with Index.open")
        arm()
        return self._snapshot

    def _joined(self, progress: Progress, *asked: Any, **filters: Any) -> pa.Table:
        join = self.joining(*asked, **filters)
        room = fitting("the pairs of a join", "write them to a file with `rbegir join`")
        with room, reported(progress, "joining") as report:
            return join.table(self._searcher.backend(join.keywords), report)

    def _encoding(self) -> tuple[Snapshot, Encoder]:
        """The current state and its encoder, which belong together even during a `refresh`."""
        with self._loading:
            if self._model is None:
                self._stored = stored_name(self._path / MODEL)
                self._model = load_stored(self._path / MODEL, self._snapshot.manifest)
            return self._snapshot, self._model

    def _keywords(self, given: Any, report: Report) -> tuple[pa.Array | None, tuple[Codes, str] | None]:
        """Keywords in the form that `_add` takes: texts, or the codes of vectors and their fingerprint."""
        vectors = as_batch(given)
        if getattr(vectors, "ndim", 0) == 2:
            state, model = self._encoding()
            if takes_vectors(model):
                return None, (encode_vectors(model, vectors, report), state.manifest.fingerprint)
        return check_texts(given), None

    def _scoring(self, tenant: Tenant = None) -> tuple[Snapshot, Encoder | None]:
        """The current state, or a tenant's part of it, and the encoder that scores its hits.

        Of a stored model only a Binarizer is loaded. This does not wait for a model that another thread
        loads, so two threads may load the same Binarizer.
        """
        self._state()
        with self._switching:
            state, model, scorer = self._snapshot, self._model, self._scorer
        name = state.manifest.fingerprint
        if model is None and state.manifest.has_model and scorer[0] != name:
            scorer = name, load_scorer(self._path / MODEL)
            if read_manifest(self._path).fingerprint != name:
                raise MismatchError(
                    f"{self._path} was replaced by an index of another model, whose scores would be wrong",
                    hint="call refresh, or open the index again",
                )
            self._scorer = scorer
        if model is None and scorer[0] == name:
            model = scorer[1]
        return within(state, tenant), model

    def _encoded(self, texts: pa.Array, report: Report | None) -> tuple[Codes, str]:
        """The codes of texts, and the fingerprint of the state for which they were made."""
        state, model = self._encoding()
        check_adds(model, state.manifest)
        return encode_keywords(model, texts, report), state.manifest.fingerprint

    def _reopen(self, before: Snapshot) -> None:
        """Switch to the state on disk and to its model: both change, or neither.

        A writer stays with the index that it has locked, even if a link has come to name another one.
        """
        directory = self._path if self._writer is None else self._writer.directory
        state = Snapshot.open(directory, before)
        old, new = before.manifest, state.manifest
        if new.shape != old.shape:
            raise MismatchError(
                f"{self._path} was replaced by an index of n = {new.n} and {new.keyword_planes} planes, "
                f"it had n = {old.n} and {old.keyword_planes}",
                hint="open it again with Index.open",
            )
        with self._loading:
            model, stored = self._model, self._stored
            if self._given is not None and new.fingerprint != old.fingerprint:
                check_match(self._given, new)
            elif self._given is None and model is not None:
                stored = stored_name(directory / MODEL)
                if (new.fingerprint, stored) != (old.fingerprint, self._stored):
                    model = load_stored(directory / MODEL, new)
            with self._switching:
                self._model, self._stored, self._snapshot = model, stored, state

    @contextlib.contextmanager
    def _writing(self) -> Iterator[Writer]:
        """Yield the writer. After a disk failure it is dropped, and the next change reads the state again."""
        with contextlib.ExitStack() as held:
            with self._next:
                held.enter_context(self._mutex)
            state = self._state()
            if self._read_only:
                raise FileError(
                    f"{self._path} was opened read-only", hint="open it without read_only to change it"
                )
            if self._writer is None:
                self._first_change(state)
            assert self._writer is not None
            try:
                self._writer.check(self._path)
                yield self._writer
            except (InputError, LockedError, MismatchError):
                raise
            except BaseException:
                self._drop_writer()
                with contextlib.suppress(FileError, MismatchError):  # the first failure is reported
                    self._reopen(self._snapshot)
                raise

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        """Hold off changes; go on beside one that takes longer than TURN_SECONDS.

        A change that waits comes before the next piece, and a piece that waits before the next change.
        """
        taken = False
        try:
            with self._next:
                taken = self._mutex.acquire(timeout=TURN_SECONDS)
            yield
        finally:
            if taken:
                self._mutex.release()

    def _first_change(self, state: Snapshot) -> None:
        """Take the lock, read the latest state, and remove the leftovers of interrupted writers."""
        self._writer = Writer(self._path)
        try:
            self._reopen(state)
            with explained("write to", self._path):
                self._writer.clean(self._snapshot)
        except BaseException:
            self._drop_writer()
            raise

    def _drop_writer(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _add(
        self,
        texts: pa.Array | None,
        given_codes: tuple[Codes, str] | None,
        ids: Any,
        attributes: Any,
        *,
        upsert: bool,
        report: Report | None = None,
    ) -> Ids:
        """Add keywords by texts, or by codes with the fingerprint of the model that made them."""
        count = len(given_codes[0]) if given_codes is not None else 0 if texts is None else len(texts)
        given = None if ids is None else check_ids(ids, unique=True)
        if given is not None and len(given) != count:
            raise InputError(f"ids has {len(given)} values for {count} keywords")
        if given is None and upsert:
            raise InputError("upsert needs ids", hint="without ids use add")
        self._state()
        with fitting(f"{count} keywords at once", "add fewer at a time; nothing was changed"):
            encoded = given_codes or (self._encoded(texts, report) if count else None)
            with self._writing() as writer:
                before = self._snapshot
                manifest = before.manifest
                if encoded is not None and encoded[1] != manifest.fingerprint:
                    if given_codes is not None:
                        raise MismatchError(
                            f"the codes were made for an index with the fingerprint {encoded[1]!r}, "
                            f"{self._path} has {manifest.fingerprint!r}",
                            hint="make them with the model of this index, Index.model",
                        )
                    # the index was replaced while its texts were encoded; progress must not call back here
                    encoded = self._encoded(texts, None)
                strings = manifest.id_type == "string"
                if strings and given is None:
                    raise InputError(
                        "ids must be given: the ids of this index are strings",
                        hint="pass ids=, or name their column with --id-column",
                    )
                columns = check_attributes(attributes, count, manifest.columns)
                if encoded is None or not count:
                    return np.zeros(0, object if strings else np.int64)
                check_tenants(columns, manifest.tenant)
                if texts is not None:
                    columns = {"text": texts, **columns}
                rows = KeywordRows(encoded[0], manifest.next_row, given, columns)
                all_ids = rows.ids(np.arange(count))
                replaced = self._replaced(before, rows, all_ids, upsert=upsert)
                self._snapshot = writer.add(before, rows, replaced)
            ids_out: Ids = all_ids.to_numpy(zero_copy_only=False)
            return ids_out

    @staticmethod
    def _replaced(before: Snapshot, rows: KeywordRows, ids: pa.Array, *, upsert: bool) -> Int64s:
        """The live keywords with these ids; without `upsert` there must be none."""
        if not rows.has_ids and not any(one.segment.has_ids for one in before.segments):
            return np.zeros(0, np.int64)  # rows never repeat
        positions = before.find(ids)
        there = np.flatnonzero(positions >= 0)
        if there.size and not upsert:
            raise InputError(
                f"id {ids[int(there[0])].as_py()!r} is in the index already ({there.size} such ids)",
                hint="use upsert to replace keywords" if rows.has_ids else "give ids, as was done before",
            )
        return positions


def _room_for(queries: Any) -> contextlib.AbstractContextManager[None]:
    count = len(queries) if hasattr(queries, "__len__") and not isinstance(queries, str) else 1
    return fitting(f"a search of {count} queries", "ask for fewer at a time, or for a smaller k")


def _refuse_missing(ids: pa.Array, positions: Int64s) -> None:
    missing = np.flatnonzero(positions < 0)
    if missing.size:
        more = f" ({missing.size} such ids)" if missing.size > 1 else ""
        raise InputError(
            f"id {ids[int(missing[0])].as_py()!r} is not in the index{more}",
            hint="leave them out, or add these keywords first",
        )
