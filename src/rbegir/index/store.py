"""The index: keywords with codes, ids, texts and attributes, on disk, searched exhaustively and exactly.

    index = Index.create("ads.rbe", model)
    index.add(["cheap flights", "red shoes"], attributes={"price": [10, 20]})
    index.search("flight", k=10, where="price < 15").texts

What is promised:

- `add`, `upsert`, `delete` and `compact` are durable when they return, wholly there or not at all whatever
  happens, and searchable at once.
- Many readers, one writer. The first change takes the lock and keeps it until `close`; readers never lock,
  see the state of when they opened or last called `refresh`, and may be many threads on one Index.
- Every byte read has been checked: what opening needs at open, the codes of a segment before its first
  search, the rest when hits touch it (`format.py`). Damage is a CorruptError, never another answer.
- Hits are the true top k of the live keywords that pass the filter, ordered by (score, row), ties included.
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

from rbegir.base.arguments import check_attributes, check_ids, check_texts, fitting, refuse_repeats
from rbegir.base.disk import explained
from rbegir.codes.planes import Codes
from rbegir.encode.encoder import (
    Encoder,
    check_adds,
    check_encoder,
    check_match,
    load_stored,
)
from rbegir.errors import CorruptError, FileError, InputError, LockedError, MismatchError
from rbegir.index.creation import first_manifest, make
from rbegir.index.manifest import MODEL, Manifest
from rbegir.index.mapping import arm
from rbegir.index.query import Searcher, encode_queries
from rbegir.index.rows import Rows
from rbegir.index.snapshot import Place, Snapshot
from rbegir.index.staging import staged
from rbegir.index.verify import damage
from rbegir.index.writer import Progress, Writer
from rbegir.search.hits import Hits
from rbegir.search.request import Filters, SearchOptions, SearchRequest, refuse_deadline

ENCODE_ROWS = 1 << 16  # texts encoded at a time
EXPORT_ROWS = 1 << 14  # keywords of an exported batch

Ids = npt.NDArray[Any]  # int64, or str objects


class Index:
    """A directory of keywords. Made by `create` or `open`; a context manager that closes itself."""

    def __init__(
        self,
        path: Path,
        *,
        device: str | Sequence[str],
        threads: int | None,
        model: Encoder | None,
        read_only: bool,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        self._path = path
        self._snapshot = Snapshot.open(path)
        manifest = self._snapshot.manifest
        self._searcher = Searcher(device, manifest.n, manifest.keyword_planes, threads, progress)
        self._model = model
        if model is not None:
            check_encoder(model)
            check_match(model, manifest)
        self._read_only = read_only
        self._writer: Writer | None = None
        self._mutex = threading.RLock()  # of changes
        self._loading = threading.Lock()  # of the model; searches do not wait for changes
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
        overwrite: bool = False,
        device: str | Sequence[str] = "cpu",
        threads: int | None = None,
    ) -> Index:
        """A new, empty index for the codes of a model (which is stored with it), or of a given shape.

        `id_type` is "int64" or "string"; without it the first `add` decides.
        """
        path = Path(path).absolute()
        manifest = first_manifest(model, n, keyword_planes, query_planes, id_type)
        Searcher(device, manifest.n, manifest.keyword_planes, threads)
        with staged(path, overwrite=overwrite) as writer:
            make(writer.directory, manifest, model)
        index = cls(path, device=device, threads=threads, model=model, read_only=False)
        index._writer = writer
        return index

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
        """An index as it is now. `model` replaces the stored one; its fingerprint must be the same.

        `progress` is called with (keywords uploaded, of how many) while a search uploads keywords to GPUs.
        """
        return cls(
            Path(path),
            device=device,
            threads=threads,
            model=model,
            read_only=read_only,
            progress=progress,
        )

    @classmethod
    def build(
        cls,
        path: str | Path,
        model: Encoder,
        batches: Iterable[pa.RecordBatch],
        *,
        overwrite: bool = False,
        upsert: bool = False,
        device: str | Sequence[str] = "cpu",
        threads: int | None = None,
        segment_rows: int = 1 << 20,
    ) -> Index:
        """A new index from a stream of batches with `text`, optional `id`, and attribute columns.

        An id that comes twice is refused, or with `upsert` its last row counts.

        Memory is bounded by `segment_rows`. The index appears under its path when all of it is there; if the
        build fails or is stopped, nothing does.
        """
        from rbegir.index.build import fill

        path = Path(path).absolute()
        manifest = first_manifest(model, None, None, None, None)
        with staged(path, overwrite=overwrite) as writer:
            make(writer.directory, manifest, model)
            inner = cls(writer.directory, device=device, threads=threads, model=model, read_only=False)
            inner._writer = writer
            fill(inner, batches, segment_rows, upsert=upsert)
        index = cls(path, device=device, threads=threads, model=model, read_only=False)
        index._writer = writer
        return index

    def __enter__(self) -> Index:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def __len__(self) -> int:
        return self._state().keywords

    def __repr__(self) -> str:
        return f"Index({str(self._path)!r}, {self._snapshot.keywords} keywords)"

    def close(self) -> None:
        """Give the lock back and refuse further use."""
        with self._mutex:
            self._drop_writer()
            self._closed = True

    def refresh(self) -> None:
        """See what writers have done since the index was opened or last refreshed."""
        with self._mutex:
            self._snapshot = Snapshot.open(self._path, self._state())

    @property
    def path(self) -> Path:
        return self._path

    @property
    def snapshot(self) -> Snapshot:
        """The state that is searched now, for reading keywords in bulk. It never changes."""
        return self._state()

    @property
    def model(self) -> Encoder:
        """The model that encodes texts; loaded from the index at the first use."""
        with self._loading:
            if self._model is None:
                self._model = load_stored(self._path / MODEL, self._snapshot.manifest)
            return self._model

    # ---- change ----

    def add(self, texts: Sequence[str], ids: Any = None, attributes: Any = None) -> Ids:
        """Add keywords; returns their ids (by default the rows 0, 1, 2 …). An id that is there is refused."""
        return self._add(check_texts(texts), None, ids, attributes, upsert=False)

    def upsert(self, texts: Sequence[str], ids: Any, attributes: Any = None) -> Ids:
        """Add keywords, replacing those with the same ids: old out and new in, in one step."""
        return self._add(check_texts(texts), None, ids, attributes, upsert=True)

    def add_codes(
        self,
        codes: Codes,
        ids: Any = None,
        attributes: Any = None,
        *,
        texts: Any = None,
        upsert: bool = False,
    ) -> Ids:
        """Add keywords by codes made elsewhere; texts may be given along and are None otherwise."""
        manifest = self._state().manifest
        if not isinstance(codes, Codes):
            raise InputError(f"codes must be rbegir.Codes, got {type(codes).__name__}")
        if (codes.n, codes.plane_count) != manifest.shape:
            raise MismatchError(
                f"codes have n = {codes.n} and {codes.plane_count} planes, "
                f"the index holds n = {manifest.n} and {manifest.keyword_planes} planes"
            )
        given = None if texts is None else check_texts(texts)
        if given is not None and len(given) != len(codes):
            raise InputError(f"texts has {len(given)} values for {len(codes)} codes")
        return self._add(given, codes, ids, attributes, upsert=upsert)

    def delete(self, ids: Any) -> int:
        """Delete keywords by id; ids that are not there are ignored. Returns how many were deleted."""
        wanted = pc.unique(check_ids(ids))
        with self._writing() as writer:
            place = self._snapshot.find(wanted)
            found = int(np.count_nonzero(place.part >= 0))
            if found:
                writer.delete(self._snapshot, place)
                self._snapshot = Snapshot.open(self._path, self._snapshot)
        return found

    def compact(self, progress: Progress | None = None) -> None:
        """Rewrite the index into few large segments without what was deleted. Rows and ids stay."""
        with self._writing() as writer:
            if writer.compact(self._snapshot, progress):
                self._snapshot = Snapshot.open(self._path, self._snapshot)

    # ---- ask ----

    def search(
        self, queries: str | Sequence[str] | npt.NDArray[Any], k: int = 10, **options: Unpack[SearchOptions]
    ) -> Hits:
        """The best k keywords for a text or for each of a list of texts; `SearchRequest` lists the options.

        An index made with a Binarizer is searched with float vectors [queries, dims].
        """
        request = SearchRequest(k, **options)
        refuse_deadline(request)
        with _room_for(queries):
            return self._searcher.search(self._state(), encode_queries(self.model, queries), request)

    def search_codes(
        self, codes: Codes | npt.NDArray[Any], k: int = 10, **options: Unpack[SearchOptions]
    ) -> Hits:
        """The best k keywords for each code, or for each integer vector (int8 or int16 [queries, n], ±255).

        `SearchRequest` lists the options.
        """
        request = SearchRequest(k, **options)
        refuse_deadline(request)
        with _room_for(codes):
            return self._searcher.search(self._state(), codes, request)

    def get(self, ids: Any) -> list[dict[str, Any] | None]:
        """The keywords with these ids: id, text and attributes; None where there is none."""
        state, wanted = self._state(), check_ids(ids)
        place = state.find(wanted)
        names = ["text", *state.manifest.columns]
        columns = {name: state.column(name, place) for name in names}
        state.check_mapped()
        return [
            None if part < 0 else {"id": given, **{name: columns[name][i] for name in names}}
            for i, (given, part) in enumerate(zip(wanted.to_pylist(), place.part, strict=True))
        ]

    def codes(self, ids: Any) -> Codes:
        """The codes of the keywords with these ids, all of which must be there."""
        state, wanted = self._state(), check_ids(ids)
        place = state.find(wanted)
        missing = np.flatnonzero(place.part < 0)
        if missing.size:
            raise InputError(f"id {wanted[int(missing[0])].as_py()!r} is not in the index")
        return state.codes(place)

    def coarse_rows(
        self,
        queries: Codes | npt.NDArray[Any],
        k: int,
        *,
        planes: int,
        **filters: Unpack[Filters],
    ) -> npt.NDArray[np.int64]:
        """The rows [queries, k] of the best keywords by their first planes alone: what the others add."""
        return self._searcher.coarse_rows(self._state(), queries, SearchRequest(k, **filters), planes)

    def batches(self, rows: int = EXPORT_ROWS) -> Iterator[pa.RecordBatch]:
        """All keywords of the present state in order of rows: id, text, attributes; at least one batch."""
        return self._state().batches(rows)

    def info(self) -> dict[str, Any]:
        """What the index is: size, shape, columns."""
        return {"path": str(self._path), **self._state().manifest.facts()}

    def verify(self) -> None:
        """Check every byte on disk; a CorruptError names the files and blocks that are damaged."""
        found = [error.message for error in damage(self._path)]
        if found:
            more = f" (and {len(found) - 5} more)" if len(found) > 5 else ""
            raise CorruptError(
                "; ".join(found[:5]) + more,
                hint="restore the damaged files from a copy, or save the rest with Index.salvage(path, out)",
            )

    @staticmethod
    def salvage(path: str | Path, out: str | Path, *, overwrite: bool = False) -> dict[str, Any]:
        """Copy what is intact of a damaged index to a new one; what was saved and lost, by file and row."""
        from rbegir.index.salvage import salvage

        return salvage(Path(path), Path(out), overwrite=overwrite).to_dict()

    # ---- inside ----

    def _state(self) -> Snapshot:
        if self._closed:
            raise InputError(f"the index {self._path} has been closed", hint="open it again with Index.open")
        arm()
        return self._snapshot

    @contextlib.contextmanager
    def _writing(self) -> Iterator[Writer]:
        """The writer. After a failure on disk it is given up: the next change starts from what is there."""
        with self._mutex:
            state = self._state()
            if self._read_only:
                raise FileError(
                    f"{self._path} was opened read-only", hint="open it without read_only to change it"
                )
            if self._writer is None:
                self._writer = self._first_change(state)
            try:
                yield self._writer
            except (InputError, LockedError, MismatchError):
                raise
            except BaseException:
                self._drop_writer()
                with contextlib.suppress(FileError):  # the first failure says more; the next change reads it
                    self._snapshot = Snapshot.open(self._path, self._snapshot)
                raise

    def _first_change(self, state: Snapshot) -> Writer:
        """Become the writer: take the lock, read the latest state, remove what stopped writers have left."""
        writer = Writer(self._path)
        try:
            self._snapshot = Snapshot.open(self._path, state)
            with explained("write to", self._path):
                writer.clean(self._snapshot)
        except BaseException:
            writer.close()
            raise
        return writer

    def _drop_writer(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _add(
        self, texts: pa.Array | None, codes: Codes | None, ids: Any, attributes: Any, *, upsert: bool
    ) -> Ids:
        count = len(texts) if texts is not None else len(codes) if codes is not None else 0
        given = None if ids is None else check_ids(ids)
        if given is not None:
            if len(given) != count:
                raise InputError(f"ids has {len(given)} values for {count} keywords")
            refuse_repeats(given)
        elif upsert:
            raise InputError("upsert needs ids", hint="without ids use add")
        with fitting(f"{count} keywords at once", "add fewer at a time; nothing was changed"):
            if codes is None:
                assert texts is not None
                codes = self._encode(texts) if count else None
            with self._writing() as writer:
                before = self._snapshot
                manifest = before.manifest
                id_type = _id_type(manifest, given)
                columns = check_attributes(attributes, count, manifest.columns)
                if codes is None or not count:
                    return np.zeros(0, object if id_type == "string" else np.int64)
                types = {**manifest.columns, **{name: str(column.type) for name, column in columns.items()}}
                if texts is not None:
                    columns = {"text": texts, **columns}
                rows = Rows(codes, manifest.next_row, given, columns)
                all_ids = rows.ids(np.arange(count))
                replaced = self._replaced(before, rows, all_ids, upsert=upsert)
                writer.add(before, rows, replaced, types, id_type)
                self._snapshot = Snapshot.open(self._path, before)
            ids_out: Ids = all_ids.to_numpy(zero_copy_only=False)
            return ids_out

    def _encode(self, texts: pa.Array) -> Codes:
        check_adds(self.model, self._state().manifest)
        parts = range(0, len(texts), ENCODE_ROWS)
        return Codes.concat(
            [self.model.encode_keywords(texts[at : at + ENCODE_ROWS].to_pylist()) for at in parts]
        )

    @staticmethod
    def _replaced(before: Snapshot, rows: Rows, ids: pa.Array, *, upsert: bool) -> Place:
        """The live keywords that have one of these ids; without upsert there must be none."""
        if not rows.has_ids and not any(part.segment.has_ids for part in before.parts):
            return Place(np.zeros(0, np.int64), np.zeros(0, np.int64))  # rows never repeat
        place = before.find(ids)
        there = np.flatnonzero(place.part >= 0)
        if there.size and not upsert:
            raise InputError(
                f"id {ids[int(there[0])].as_py()!r} is in the index already ({there.size} such ids)",
                hint="use upsert to replace keywords" if rows.has_ids else "give ids, as was done before",
            )
        return place


def _room_for(queries: Any) -> contextlib.AbstractContextManager[None]:
    count = len(queries) if hasattr(queries, "__len__") and not isinstance(queries, str) else 1
    return fitting(f"a search of {count} queries", "ask for fewer at a time, or for a smaller k")


def _id_type(manifest: Manifest, given: pa.Array | None) -> str:
    """The type of ids of the index after an add with these ids (None: the rows)."""
    came = "int64" if given is None else str(given.type)
    known = manifest.id_type
    if known == "string" and given is None:
        raise InputError(
            "ids must be given: the ids of this index are strings",
            hint="pass ids=, or name their column with --id-column",
        )
    if known is not None and came != known:
        raise MismatchError(f"ids are {came}, the ids of this index are {known}")
    return came
