"""Making a new index: it is built in a hidden sibling directory and renamed once it is complete.

    .ads.rbe.new-<pid>     being built, its LOCK held by the builder
    .ads.rbe.building      being built by a job that can be resumed (a cluster build)
    ads.rbe                complete

An interrupted build leaves nothing visible. The next build for the same path removes its leftovers, or
resumes it. Input of any length is added one segment at a time (`fill`), so memory stays bounded.

A backup is made the same way. Files never change, so files that an older backup at the same path has are
linked into the new one, and only the others are copied.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rbegir.base import disk
from rbegir.base import progress as bars
from rbegir.base.arguments import refuse_repeats
from rbegir.encode.encoder import Encoder, Savable, encode_vectors, takes_vectors, verify_encoder
from rbegir.errors import FileError, InputError, LockedError, whole_number
from rbegir.index.format import file_problem
from rbegir.index.manifest import MODEL, NAME, Manifest, commit, prepare, read_manifest
from rbegir.index.snapshot import Snapshot
from rbegir.index.writer import Progress, Writer, WriterLock
from rbegir.read.vectors import list_vectors

if TYPE_CHECKING:
    from rbegir.index.store import Index

SEGMENT_ROWS = 1 << 20  # keywords added at a time
VECTOR_BYTES = 1 << 28  # of vectors held in memory at a time
COPIED_BYTES = 1 << 20  # of a model's file, read at a time
BACKUP = "BACKUP"  # the file that marks a backup and names its generation


@contextlib.contextmanager
def staged(path: Path, *, overwrite: bool, resumable: bool = False) -> Iterator[Writer]:
    """Yield the writer of a hidden directory that is renamed to `path` when the block succeeds.

    The caller then owns the writer, which still holds the lock. If the block fails, the directory is removed,
    unless it is resumable: then it stays, and the next resumable build of `path` starts from it. If `path` is
    a link, it stays, and what it points to is replaced.
    """
    path = Path(os.path.realpath(path))
    with _free(path, overwrite=overwrite):
        pass  # refused before the work
    with disk.explained("create", path):
        path.parent.mkdir(parents=True, exist_ok=True)
        for left in path.parent.glob(f".{path.name}.new-*"):
            if left.is_symlink():
                disk.unlink(left)
                continue
            with contextlib.suppress(LockedError):  # that build is still running; others were interrupted
                WriterLock(left).release()
                disk.remove_tree(left)
        stage = path.with_name(f".{path.name}.building" if resumable else f".{path.name}.new-{os.getpid()}")
        if not (resumable and stage.is_dir()):
            disk.make_directory(stage)
        writer = Writer(stage)
        try:
            yield writer
            disk.sync_directory(stage)
            with _free(path, overwrite=overwrite):
                _give_name(stage, path)
            writer.directory = path
        except BaseException:
            writer.close()
            if stage.exists() and not resumable:
                disk.remove_tree(stage)
            raise


def make(directory: Path, manifest: Manifest, model: Encoder | None) -> None:
    """Write an empty index into an empty directory, with the model inside if it can be saved."""
    if isinstance(model, Savable):
        model.save(directory / MODEL)
        manifest = replace(manifest, has_model=True)
    prepare(directory, manifest)
    commit(directory)


def fill(
    index: Index,
    batches: Iterable[pa.RecordBatch],
    segment_rows: int = SEGMENT_ROWS,
    *,
    upsert: bool = False,
    progress: bars.Progress = None,
) -> int:
    """Add all batches, `segment_rows` keywords at a time, and return how many were added.

    A repeated id is refused; with `upsert` its last row wins, as if each row had come in its own call.
    `progress` is as for `Index.build`.
    """
    whole_number("segment_rows", segment_rows)
    added = read = finished = 0
    if hasattr(batches, "__arrow_c_stream__"):
        batches = pa.RecordBatchReader.from_stream(batches)

    def counted() -> Iterator[pa.RecordBatch]:
        nonlocal read
        for batch in batches:
            read += batch.num_rows
            yield batch

    def encoded(done: int, total: int) -> None:
        """Report rows of a table that is being added; all rows are estimated from the share that was read."""
        share = getattr(batches, "progress", None)
        report(finished + done, round(read / share) if share else None)

    with bars.reported(progress, "encoding") as report:
        for table in _tables(counted(), segment_rows):
            kept = _last_of_each_id(table) if upsert else table
            if not upsert and "id" in table.column_names:
                ids = table.column("id").combine_chunks()
                refuse_repeats(
                    ids, hint="remove all but one, or keep the last with --upsert (upsert=True in Python)"
                )
            added += _add(index, kept, upsert, encoded)
            encoded(table.num_rows, table.num_rows)  # some rows may have been left out
            finished += table.num_rows
    return added


def _add(index: Index, table: pa.Table, upsert: bool, progress: bars.Report) -> int:
    """Add the keywords of a table: texts, or vectors for an encoder of these."""
    if "vector" in table.column_names and takes_vectors(index.model):
        vectors = list_vectors(table.column("vector").combine_chunks(), "vector")
        codes = encode_vectors(index.model, vectors, progress)
        texts, ids, attributes = keywords_of(table.drop_columns("vector"), bare=True)
        return len(index.add_codes(codes, ids, attributes, texts=texts, upsert=upsert))
    if "vector" in table.column_names and "text" not in table.column_names:
        raise InputError(
            "this index encodes texts, got vectors", hint="rbegir index build VECTORS --out INDEX makes one"
        )
    texts, ids, attributes = keywords_of(table)
    add = index.upsert if upsert else index.add
    return len(add(texts, ids, attributes, progress=progress))


def backup(source: Path, path: Path, progress: Progress | None = None) -> dict[str, Any]:
    """Copy the current state of an index, which may be changed meanwhile, and return what was done.

    `path` is new, or an earlier backup, which is replaced when the new one is complete. Its files are reused
    if the state has them and they match their checksums. `progress` is called with bytes.
    """
    source, path = source.absolute(), path.absolute()
    state = Snapshot.open(source)
    manifest = state.manifest
    if Path(os.path.realpath(source)) in Path(os.path.realpath(path)).parents:
        raise InputError(f"{path} is inside the index", hint="choose a path outside of it")
    _refuse_other_index(path)
    total, done, copied = sum(file.stamp.bytes for file in state.files), 0, 0
    with staged(path, overwrite=True) as writer:
        for file in state.files:
            old, new = path / file.path.name, writer.directory / file.path.name
            if file_problem(old, file.kind, file.stamp) or not disk.link(old, new):
                file.copy(new)
                copied += 1
            done += file.stamp.bytes
            if progress is not None:
                progress(done, total)
        if manifest.has_model:
            copy_model(source / MODEL, writer.directory / MODEL, path / MODEL)
            if read_manifest(source).fingerprint != manifest.fingerprint:
                raise FileError(f"{source} was replaced during the backup", hint="back it up again")
        note = json.dumps({"source": str(source), "generation": manifest.generation})
        disk.write_new(writer.directory / BACKUP, [note.encode()])
        prepare(writer.directory, manifest)
        commit(writer.directory)
    writer.close()
    counts = {"files": len(state.files), "copied": copied, "unchanged": len(state.files) - copied}
    return {"path": str(path), "keywords": state.keywords, "generation": manifest.generation, **counts}


def _refuse_other_index(path: Path) -> None:
    """Raise if the index at `path` is not a backup, or was changed after the backup was made."""
    if not (path / NAME).exists():
        return
    try:
        generation = json.loads(disk.read_small(path / BACKUP, 1 << 16))["generation"]
    except (FileError, ValueError, TypeError, KeyError):
        generation = None
    if generation != read_manifest(path).generation:
        raise FileError(
            f"{path} is an index of its own, not a backup"
            if generation is None
            else f"{path} was changed after it was made as a backup",
            hint="choose another path; a backup never overwrites another index",
        )


def copy_model(source: Path, new: Path, old: Path | None = None) -> None:
    """Copy the directory of a model and check the copy; files that an older copy has are linked."""
    disk.make_directory(new)
    for path in model_paths(source):
        name = path.relative_to(source)
        if path.is_dir():
            disk.make_directory(new / name)
            continue
        before = (old or new) / name  # without an older copy there is no such file
        with open(disk.open_regular(path), "rb") as file:
            if not (_equal(file, before) and disk.link(before, new / name)):
                file.seek(0)
                disk.write_new(new / name, _chunks(file))
    for directory in (new, *filter(Path.is_dir, new.rglob("*"))):
        disk.sync_directory(directory)
    verify_encoder(new)


def model_paths(directory: Path) -> list[Path]:
    """The paths in the directory of a model; raises if any is not a directory or a regular file."""
    paths = sorted(disk.refuse_link(directory).rglob("*"))
    for path in paths:
        mode = path.lstat().st_mode
        if not (stat.S_ISDIR(mode) or stat.S_ISREG(mode)):
            raise FileError(
                f"{path} is a link, a pipe or a device; a model has only directories and regular files",
                hint="remove it, or put a regular file there",
            )
    return paths


def _equal(file: BinaryIO, other: Path) -> bool:
    """Whether the regular file `other` exists and has the bytes of an open file."""
    try:
        with open(disk.open_regular(other), "rb") as old:
            if os.fstat(old.fileno()).st_size != os.fstat(file.fileno()).st_size:
                return False
            return all(chunk == old.read(COPIED_BYTES) for chunk in _chunks(file))
    except (OSError, FileError):
        return False


def _chunks(file: BinaryIO) -> Iterator[bytes]:
    return iter(lambda: file.read(COPIED_BYTES), b"")


def keywords_of(
    table: pa.Table, *, bare: bool = False
) -> tuple[pa.ChunkedArray, pa.ChunkedArray | None, dict[str, Any]]:
    """The texts, ids (None if there are none) and attributes of a table; `bare`: it may lack texts."""
    texts = table.column("text") if "text" in table.column_names else None
    if texts is None and not bare:
        raise InputError(f"batches must have a column 'text', got {', '.join(table.column_names) or 'none'}")
    ids = table.column("id") if "id" in table.column_names else None
    others = [name for name in table.column_names if name not in ("text", "id")]
    return texts, ids, {name: _null_for_nan(table.column(name)) for name in others}


def _give_name(stage: Path, path: Path) -> None:
    """Rename the complete index to its path, swapping it atomically with an old one where the OS can."""
    old = stage  # what remains to be removed
    if not path.exists():
        disk.rename(stage, path)
    elif not disk.exchange(stage, path):
        old = path.with_name(f".{path.name}.new-{os.getpid()}-old")
        disk.rename(path, old)
        disk.rename(stage, path)
    disk.sync_directory(path.parent)
    if old.exists():
        disk.remove_tree(old)


@contextlib.contextmanager
def _free(path: Path, *, overwrite: bool) -> Iterator[None]:
    """Raise if `path` is taken: it is not an index, may not be overwritten, or is being written.

    While the block runs, nobody can write to an index that is about to be replaced.
    """
    if not path.exists() or (path.is_dir() and not any(path.iterdir())):
        yield
        return
    if not (path.is_dir() and (path / NAME).is_file()):
        raise FileError(f"{path} exists and is not an rbegir index", hint="choose another path")
    if not overwrite:
        raise FileError(
            f"{path} exists already", hint="choose another path, open it to add to it, or overwrite it"
        )
    with WriterLock(path):
        yield


def _last_of_each_id(table: pa.Table) -> pa.Table:
    """The table without rows whose id is repeated further down."""
    if "id" not in table.column_names or len(pc.unique(table["id"])) == table.num_rows:
        return table
    places = pa.table({"id": table["id"], "at": np.arange(table.num_rows)})
    return table.take(places.group_by("id").aggregate([("at", "max")])["at_max"].sort())


def _tables(batches: Iterable[pa.RecordBatch], rows: int) -> Iterator[pa.Table]:
    """The batches regrouped into tables of `rows` rows; the last may be shorter."""
    held: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        rows = min(rows, _most_rows(batch) or rows)
        while size + batch.num_rows >= rows:
            yield pa.Table.from_batches([*held, batch.slice(0, rows - size)])
            batch = batch.slice(rows - size)
            held, size = [], 0
        if batch.num_rows:
            held.append(batch)
            size += batch.num_rows
    if held:
        yield pa.Table.from_batches(held)


def _most_rows(batch: pa.RecordBatch) -> int | None:
    """How many rows like these may be held in memory; None: any number, since they have no vectors."""
    kind = batch.schema.field("vector").type if "vector" in batch.schema.names else None
    if kind is None or not pa.types.is_fixed_size_list(kind):
        return None
    return max(1, VECTOR_BYTES * 8 // int(kind.list_size * kind.value_type.bit_width))


def _null_for_nan(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Replace NaN by null: tables often mark missing numbers with NaN."""
    if not pa.types.is_floating(column.type):
        return column
    return pc.if_else(pc.is_nan(column), pa.scalar(None, column.type), column)
