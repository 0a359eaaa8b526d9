"""Where an index lies, one state of it (a view), and which shard searches which of its segments.

*Location.* How a process gets at the files of an index:

    a path, file://…            read in place: every node must see the same directory (one machine, NFS)
    any other URI               s3://, gs://, hdfs:// … as pyarrow.fs knows them, or a FileSystem object: each
                                process copies the files that it needs, and only those, to a local directory

A copy is checked against its own checksums and the stamp in the manifest, and renamed into place. Files are
immutable and a stamp means one content, so the processes of a node share the directory without locks.

*View.* A segment belongs to one shard. Segments of the previous state stay with their shards, so that nothing
is read, or uploaded to a GPU, twice; new ones go, the largest first, to the shard with the fewest keywords.
A keyword is known by its place in the whole index,

    place = keywords in the segments before its own (deleted ones included) + its position in the segment

and the order of places is the order of rows: merging by (score, place) is merging by (score, row).
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import fs

from rbegir.base import disk
from rbegir.errors import CorruptError, FileError, InputError
from rbegir.index.format import File, FileKind, Stamp
from rbegir.index.manifest import MODEL, NAME, Manifest, read_manifest
from rbegir.index.segment import Entry

Places = npt.NDArray[np.int64]
CHUNK = 1 << 22  # bytes copied at a time
READ_ONLY_HINT = "change it where its file system is mounted, then call refresh"


@dataclass(frozen=True)
class Location:
    """An index directory; `filesystem` is None where plain paths lead to it."""

    root: str  # an absolute path, or a path inside the file system
    name: str  # what people call it
    filesystem: Any = None

    @classmethod
    def of(cls, where: str | Path, filesystem: Any = None) -> Location:
        """A path, a URI, or a path inside a given pyarrow FileSystem."""
        if filesystem is not None:
            if not isinstance(filesystem, fs.FileSystem):
                raise InputError(
                    f"filesystem must be a pyarrow.fs.FileSystem, got {type(filesystem).__name__}",
                    hint="wrap an fsspec one: pyarrow.fs.PyFileSystem(pyarrow.fs.FSSpecHandler(f))",
                )
            return cls(str(where), f"{filesystem.type_name}:{where}", filesystem)
        text = str(where)
        parts = urlsplit(text)
        if "://" not in text:
            path = str(Path(where).absolute())
            return cls(path, path)
        if parts.scheme == "file":
            path = str(Path(unquote(parts.path)).absolute())
            return cls(path, path)
        try:
            found, root = fs.FileSystem.from_uri(text)
        except (pa.ArrowException, OSError, ImportError, ValueError) as error:
            raise InputError(
                f"{text} cannot be opened as a file system: {str(error).splitlines()[0]}",
                hint="use a path, file://, s3://, gs://, hdfs:// or pass filesystem=",
            ) from error
        return cls(root, text, found)

    @property
    def is_local(self) -> bool:
        return self.filesystem is None

    @property
    def path(self) -> Path:
        """The directory on this machine: the index itself, or the copies."""
        if self.is_local:
            return Path(self.root)
        return cache_directory() / hashlib.blake2b(self.name.encode(), digest_size=10).hexdigest()

    def manifest(self) -> Manifest:
        """The current state of the index."""
        if self.is_local:
            return read_manifest(Path(self.root))
        with tempfile.TemporaryDirectory() as folder:
            try:
                self._copy(NAME, Path(folder) / NAME)
            except FileNotFoundError as error:
                raise FileError(
                    f"{self.name} is not an rbegir index: it has no MANIFEST", hint="check the address"
                ) from error
            return read_manifest(Path(folder))

    def fetch(self, files: Mapping[str, tuple[FileKind, Stamp]]) -> Path:
        """The directory in which these files can be read, after copying what is missing."""
        if not self.is_local:
            self.path.mkdir(parents=True, exist_ok=True)
            for name, (kind, stamp) in files.items():
                if not _is_there(self.path / name, kind, stamp):
                    self._fetch(name, kind, stamp)
        return self.path

    def model(self) -> Path:
        """The directory of the stored model, as one that can be opened here."""
        if self.is_local:
            return Path(self.root) / MODEL
        target = self.path / MODEL
        for name in self._list(MODEL):
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            with disk.staged(target / name) as staged:  # the model checks its own bytes when they are used
                self._copy(f"{MODEL}/{name}", staged)
        return target

    def _fetch(self, name: str, kind: FileKind, stamp: Stamp) -> None:
        with disk.staged(self.path / name) as staged:
            self._copy(name, staged)
            problems = [error.message for error in File(staged, kind, stamp).damage()]
            if problems:
                raise CorruptError(
                    f"the copy of {self.name}/{name} is damaged: {problems[0]}",
                    hint="check the original with `rbegir index verify`",
                )

    def _copy(self, name: str, target: Path) -> None:
        try:
            with (
                self.filesystem.open_input_stream(f"{self.root}/{name}") as source,
                target.open("wb") as copy,
            ):
                while chunk := source.read(CHUNK):
                    copy.write(chunk)
        except FileNotFoundError:
            raise
        except (OSError, pa.ArrowException) as error:
            raise FileError(
                f"cannot copy {name} from {self.name}: {str(error).splitlines()[0]}",
                hint="check access to it, and the room in the cache directory (RBEGIR_CACHE)",
            ) from error

    def _list(self, folder: str) -> list[str]:
        prefix = f"{self.root}/{folder}"
        found = self.filesystem.get_file_info(fs.FileSelector(prefix, recursive=True))
        return [info.path[len(prefix) + 1 :] for info in found if info.is_file]


def cache_directory() -> Path:
    """Where copies are kept: RBEGIR_CACHE, or the user's cache."""
    chosen = os.environ.get("RBEGIR_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(chosen) if chosen else Path(base) / "rbegir"


def _is_there(path: Path, kind: FileKind, stamp: Stamp) -> bool:
    try:
        return File(path, kind).stamp == stamp
    except (FileNotFoundError, FileError):
        return False


@dataclass(frozen=True)
class Assignment:
    """What one shard has to search in one view; travels to the shard once."""

    view: str
    location: Location
    manifest: Manifest  # with the shard's own segments only
    numbers: tuple[int, ...]  # of those segments in the whole index
    starts: tuple[int, ...]  # places at which they begin

    @property
    def files(self) -> dict[str, tuple[FileKind, Stamp]]:
        """The files that it needs."""
        used = {entry.deletes for entry in self.manifest.segments}
        deletes = {n: (FileKind.DELETES, stamp) for n, stamp in self.manifest.deletes.items() if n in used}
        return {entry.file: (FileKind.SEGMENT, entry.stamp) for entry in self.manifest.segments} | deletes


@dataclass(frozen=True)
class View:
    """A state of an index, spread over shards."""

    location: Location
    manifest: Manifest
    owners: tuple[int, ...]  # the shard of each segment
    shards: int

    @classmethod
    def of(cls, location: Location, manifest: Manifest, shards: int, before: View | None = None) -> View:
        known: dict[tuple[str, Stamp], int] = {}
        if before is not None and before.location == location and before.shards == shards:
            entries = zip(before.manifest.segments, before.owners, strict=True)
            known = {(entry.file, entry.stamp): owner for entry, owner in entries}
        return cls(location, manifest, assign(manifest.segments, shards, known), shards)

    @cached_property
    def id(self) -> str:
        """A name for this state and this assignment: equal names mean equal results."""
        content = repr((self.location.name, self.manifest, self.owners, self.shards))
        return f"{self.manifest.generation}-{hashlib.blake2b(content.encode(), digest_size=12).hexdigest()}"

    @cached_property
    def starts(self) -> Places:
        """[segments] the place at which each begins."""
        counts = [entry.count for entry in self.manifest.segments]
        return np.cumsum([0, *counts], dtype=np.int64)[:-1]

    @cached_property
    def used(self) -> tuple[int, ...]:
        """The shards that have segments."""
        return tuple(sorted(set(self.owners)))

    @cached_property
    def keywords_of(self) -> tuple[int, ...]:
        """How many keywords each shard has."""
        counts = [0] * self.shards
        for entry, owner in zip(self.manifest.segments, self.owners, strict=True):
            counts[owner] += entry.live
        return tuple(counts)

    @cached_property
    def keywords(self) -> int:
        return sum(self.keywords_of)

    def share(self, shard: int) -> Assignment:
        numbers = tuple(number for number, owner in enumerate(self.owners) if owner == shard)
        own = replace(self.manifest, segments=tuple(self.manifest.segments[number] for number in numbers))
        return Assignment(self.id, self.location, own, numbers, tuple(int(self.starts[n]) for n in numbers))


def assign(segments: tuple[Entry, ...], shards: int, known: dict[tuple[str, Stamp], int]) -> tuple[int, ...]:
    """The shard of each segment."""
    owners = [known.get((entry.file, entry.stamp), -1) for entry in segments]
    load = [0] * shards
    for entry, owner in zip(segments, owners, strict=True):
        if owner >= 0:
            load[owner] += entry.count
    new = [number for number, owner in enumerate(owners) if owner < 0]
    for number in sorted(new, key=lambda number: (-segments[number].count, number)):
        owners[number] = min(range(shards), key=lambda shard: (load[shard], shard))
        load[owners[number]] += segments[number].count
    return tuple(owners)
