"""The manifest: the file that names the segments and deletes of one state. Replacing it is the commit.

    X.rbe/
      MANIFEST               which files make up the index now; replaced by rename
      segment-<number>.rbs   immutable, see segment.py
      deletes-<number>.rbd   immutable, see snapshot.py
      unnamed-<random>.rbs   a segment of a compaction that is running, or was interrupted, see writer.py
      model/                 the model that encodes texts, if one was given
      LOCK                   who is writing, see writer.py

The rename is the commit: before it a change does not exist; after it (and the fsync of the directory) the
change is visible and durable. File numbers are never reused, so a name always refers to the same bytes.
Segments are ordered by row and their rows do not overlap, so the order of positions is the order of rows.

A manifest is validated before it is used: names must have the exact form above (no path can leave the
directory), counts must fit, rows must ascend. It is data, never code.

The shape of the codes and the fingerprint also decide which encoder belongs to the index.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from rbegir.base import disk
from rbegir.base.arguments import RESERVED, can_name, check_name, type_named
from rbegir.codes.planes import MAX_KEYWORD_PLANES, MAX_PLANES, check_dimension
from rbegir.encode.encoder import Encoder, check_encoder, load_encoder, takes_vectors
from rbegir.errors import CorruptError, FileError, InputError, MismatchError, whole_number
from rbegir.index.format import File, FileKind, FileWriter, Stamp
from rbegir.index.segment import MAX_ROWS, CodeShape, Entry

NAME = "MANIFEST"
NEW = "MANIFEST.new"
MODEL = "model"
SEGMENT_NAME = re.compile(r"segment-[0-9]{8,18}\.rbs")
DELETES_NAME = re.compile(r"deletes-[0-9]{8,18}\.rbd")
UNNAMED = re.compile(r"unnamed-[0-9a-f]{16}\.rbs")
ID_TYPES = ("int64", "string")


@dataclass(frozen=True)
class Manifest:
    """One state of an index."""

    n: int
    keyword_planes: int
    query_planes: int  # 0: any
    fingerprint: str  # of the model; empty without one
    has_model: bool = False
    generation: int = 0
    id_type: str | None = None  # None until the first add decides
    next_row: int = 0
    next_file: int = 0
    columns: Mapping[str, str] = field(default_factory=dict)  # attribute → type
    tenant: str | None = None  # the attribute that names the tenant of a keyword; None: there are no tenants
    segments: tuple[Entry, ...] = ()
    deletes: Mapping[str, Stamp] = field(default_factory=dict)

    @property
    def shape(self) -> CodeShape:
        return CodeShape(self.n, self.keyword_planes)

    @property
    def files(self) -> dict[str, tuple[FileKind, Stamp]]:
        """The files that make up this state: its segments and the deletes that they use."""
        used = {entry.deletes for entry in self.segments}
        deletes = {name: (FileKind.DELETES, stamp) for name, stamp in self.deletes.items() if name in used}
        return {entry.file: (FileKind.SEGMENT, entry.stamp) for entry in self.segments} | deletes

    def facts(self) -> dict[str, Any]:
        """Size, shape and columns, as `Index.info` reports them."""
        return {
            "keywords": sum(entry.live for entry in self.segments),
            "bytes_per_keyword": self.n * self.keyword_planes // 8,
            "n": self.n,
            "keyword_planes": self.keyword_planes,
            "query_planes": self.query_planes,
            "deleted": sum(entry.deleted for entry in self.segments),
            "segments": len(self.segments),
            "disk_bytes": sum(stamp.bytes for _, stamp in self.files.values()),
            "id_type": self.id_type or "int64",
            "attributes": dict(self.columns),
            "has_model": self.has_model,
            "fingerprint": self.fingerprint,
            "generation": self.generation,
            "next_row": self.next_row,
            **({} if self.tenant is None else {"tenant": self.tenant}),
        }

    def follow(self, **changes: Any) -> Manifest:
        """The next state; delete files that no segment refers to are dropped."""
        after = replace(self, generation=self.generation + 1, **changes)
        used = {entry.deletes for entry in after.segments}
        return replace(after, deletes={name: stamp for name, stamp in after.deletes.items() if name in used})


# ---- read and replace ----


def prepare(directory: Path, manifest: Manifest) -> None:
    """Write the next manifest beside the current one; it and all new file names are durable on return."""
    with contextlib.suppress(FileNotFoundError):  # there is one if an earlier change failed at its last step
        disk.unlink(directory / NEW)
    meta = {**manifest.__dict__, "segments": [tuple(vars(entry).values()) for entry in manifest.segments]}
    if manifest.tenant is None:
        del meta["tenant"]
    parse(meta, directory / NEW)  # refuse a manifest that could not be read again
    with FileWriter(directory / NEW, FileKind.MANIFEST) as writer:
        writer.finish(meta)
    disk.sync_directory(directory)


def commit(directory: Path) -> None:
    """Make the prepared manifest the current one: the moment at which a change takes effect."""
    disk.rename(directory / NEW, directory / NAME)
    disk.sync_directory(directory)


def read_manifest(directory: Path) -> Manifest:
    """Read and validate the current state."""
    path = directory / NAME
    try:
        file = File(path, FileKind.MANIFEST)
    except (FileNotFoundError, NotADirectoryError) as error:
        reason = "it has no MANIFEST" if directory.is_dir() else "there is no such directory"
        if directory.is_file():
            reason = "it is a file, and an index is a directory"
        raise FileError(
            f"{directory} is not an rbegir index: {reason}",
            hint="create one with `rbegir index build` or rbegir.Index.create",
        ) from error
    except OSError as error:
        raise FileError(f"cannot read {path}: {(error.strerror or str(error)).lower()}") from error
    return parse(file.meta, path)


def parse(meta: dict[str, Any], path: Path) -> Manifest:
    """Validate the metadata of a manifest file and return its state."""
    try:
        return _parse(meta)
    except (_WrongError, AttributeError, TypeError, KeyError, ValueError) as error:
        raise CorruptError(
            f"{path} is damaged: {error if isinstance(error, _WrongError) else 'it cannot be understood'}",
            hint="restore the index from a copy",
        ) from error


class _WrongError(Exception):
    """A manifest has an impossible value."""


def _require(possible: object, what: str) -> None:
    if not possible:
        raise _WrongError(what)


def _number(value: Any, low: int, high: int, what: str) -> int:
    _require(type(value) is int and low <= value <= high, f"{what} cannot be {value!r}")
    return int(value)


def _stamp(value: Any) -> Stamp:
    size, check = value
    return Stamp(_number(size, 1, 2**62, "a file size"), _number(check, 0, 2**32 - 1, "a checksum"))


def _file_name(value: Any, form: re.Pattern[str]) -> str:
    named = isinstance(value, str) and form.fullmatch(value)
    _require(named, f"{value!r} is not the name of a file of an index")
    return str(value)


def _parse(meta: dict[str, Any]) -> Manifest:
    unknown = sorted(meta.keys() - {field.name for field in fields(Manifest)})
    _require(not unknown, f"it has {len(unknown)} unknown entries, such as {''.join(unknown[:1])[:40]!r}")
    try:
        check_dimension(meta["n"])
    except InputError as error:
        raise _WrongError(error.message) from error
    deletes = {_file_name(key, DELETES_NAME): _stamp(value) for key, value in meta["deletes"].items()}
    next_row = _number(meta["next_row"], 0, 2**62, "next_row")
    entries: list[Entry] = []
    row = 0
    for file, stamp, count, first, last, where, deleted in meta["segments"]:
        _number(count, 1, MAX_ROWS, "a count of keywords")
        _number(first, row, next_row, "a first row")
        _number(last, first + count - 1, next_row - 1, "a last row")
        _number(deleted, 0 if where is None else 1, 0 if where is None else count, "a count of deletes")
        _require(where is None or where in deletes, f"{where!r} is not among its files")
        row = last + 1
        name = _file_name(file, SEGMENT_NAME)
        entries.append(Entry(name, _stamp(stamp), count, first, last, where, deleted))
    _require(len({entry.file for entry in entries}) == len(entries), "a segment is named twice")
    columns, tenant = meta["columns"], meta.get("tenant")
    for column, dtype in columns.items():
        known = type_named(dtype) is not None and column not in RESERVED
        _require(known, f"there cannot be a column {column!r} of the type {dtype!r}")
    names_them = isinstance(tenant, str) and can_name(columns.get(tenant, "string"))
    _require(tenant is None or names_them, f"{tenant!r} cannot be the column of the tenants")
    typed = meta["id_type"] in (None, *ID_TYPES) and isinstance(meta["fingerprint"], str)
    _require(typed, "its id type or fingerprint cannot be understood")
    _require(type(meta["has_model"]) is bool, "has_model must be true or false")
    _number(meta["keyword_planes"], 1, MAX_KEYWORD_PLANES, "keyword_planes")
    _number(meta["query_planes"], 0, MAX_PLANES, "query_planes")
    _number(meta["generation"], 0, 2**62, "generation")
    _number(meta["next_file"], 0, 2**59, "next_file")
    checked: dict[str, Any] = {"columns": dict(columns), "segments": tuple(entries), "deletes": deletes}
    return Manifest(**{**meta, **checked})


# ---- which encoder belongs to an index ----


def first_manifest(
    model: Encoder | None,
    n: int | None = None,
    keyword_planes: int | None = None,
    query_planes: int | None = None,
    id_type: str | None = None,
    tenant: str | None = None,
) -> Manifest:
    """The manifest of an empty index for the codes of a model, or for codes of the given shape."""
    if tenant is not None:
        check_name(tenant)
    if id_type is not None and id_type not in ID_TYPES:
        raise InputError(f"id_type must be one of {', '.join(ID_TYPES)}, got {id_type!r}")
    fingerprint = ""
    if model is not None:
        check_encoder(model)
        for name, given in (("n", n), ("keyword_planes", keyword_planes), ("query_planes", query_planes)):
            if given is not None and given != getattr(model, name):
                raise MismatchError(f"{name} is {given}, the model has {getattr(model, name)}")
        n, keyword_planes, query_planes = model.n, model.keyword_planes, model.query_planes
        fingerprint = model.fingerprint
    if n is None or keyword_planes is None:
        raise InputError("an index needs a model, or n and keyword_planes", hint="Index.create(path, model)")
    check_dimension(n)
    query_planes = query_planes or 0
    if keyword_planes == 0 and model is not None:
        raise MismatchError(
            "a model with float keywords has no codes to store", hint="use a preset with planes"
        )
    keyword_planes = whole_number("keyword_planes", keyword_planes, 1, MAX_KEYWORD_PLANES)
    query_planes = whole_number("query_planes", query_planes, 0, MAX_PLANES)
    return Manifest(int(n), keyword_planes, query_planes, fingerprint, id_type=id_type, tenant=tenant)


def check_match(model: Encoder, manifest: Manifest) -> None:
    """Raise unless the model is an encoder whose queries can be compared with the codes of the index."""
    check_encoder(model)
    reads = manifest.fingerprint in getattr(model, "reads", ())  # a later model, trained on these codes
    for name in ("n",) if reads else ("n", "keyword_planes", "fingerprint"):
        ours, theirs = getattr(manifest, name), getattr(model, name)
        if ours != theirs:
            raise MismatchError(
                f"the model does not belong to this index: its {name} is {theirs!r}, the index has {ours!r}",
                hint="use the model that the index was built with, or build a new index",
            )


def check_adds(model: Encoder, manifest: Manifest) -> None:
    """Raise if texts cannot be added with this model: it takes vectors, or makes different keyword codes."""
    if takes_vectors(model):
        raise InputError(
            "a Binarizer encodes vectors, not texts",
            hint="give vectors; Index.add_codes(binarizer.encode_keywords(vectors), texts=…) adds texts too",
        )
    if manifest.fingerprint not in getattr(model, "same_keywords", (model.fingerprint,)):
        raise MismatchError(
            "the model searches this index, but its keywords get codes of another generation",
            hint="add to an index of the model's own, and search both with rbegir.Generations",
        )


def load_stored(directory: Path, manifest: Manifest) -> Encoder:
    """Load the encoder stored inside an index."""
    if not manifest.has_model:
        raise FileError(
            f"no model is stored in {directory.parent}, so texts cannot be encoded",
            hint="open it with Index.open(path, model=…), or use add_codes and search_codes",
        )
    if not directory.is_dir():
        raise FileError(
            f"the model of {directory.parent} is gone: there is no {directory}",
            hint="copy the model that the index was built with there",
        )
    model = load_encoder(disk.refuse_link(directory))
    check_match(model, manifest)
    return model
