"""The one file format: named sections of bytes, a JSON directory, and a checksum over every byte.

Segments, delete lists and the manifest are all files of this form; `kind` tells them apart.

    offset 0    header     magic "\\x89RBEGIR\\n" · version u16 · kind u16 · block bytes u32 · their CRC u32
           64   sections   one after the other, each at a multiple of 64, gaps filled with zeros
           d    directory  JSON: {"meta": {...}, "sections": {name: [offset, bytes]}}
           t    table      u32 CRC of every block [4096·b, 4096·(b + 1)) of [0, t); the last may be short
           −36  footer     d u64 · t u64 · file bytes u64 · CRC of directory u32 · CRC of table u32 ·
                           CRC of these 32 bytes u32

All numbers are little-endian, all CRCs are CRC-32C. The first 20 bytes keep this form in every version.

When is what checked?

    open          header, footer, directory: a few kilobytes whatever the size of the file
    first touch   a block, before a value in it is used: the codes of a segment before the first search reads
                  them, texts, ids and attributes block by block as hits need them
    verify        everything

so a flipped bit is an error that names file and block, and never a silently different answer. A file also
has a stamp (its length, and the CRC of its footer, which depends on all other CRCs); the manifest holds the
stamps of the files that it names, so a file from another time or index is noticed too.

Files are written once, front to back, and never changed: readers map them and share them freely. The footer
is at the end because a stream of unknown length can then be written in one pass. There is one file per
segment rather than one per column, so that a small add costs one fsync and a segment exists entirely or not.

A mapped file that shrinks is caught by the guard of `rbegir.base.mapping`: `check_mapped` is called before
anything that was read is returned or committed.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from enum import IntEnum
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rbegir._native._core import crc32c, crc32c_blocks
from rbegir.base import disk
from rbegir.base.mapping import Mapping
from rbegir.errors import CorruptError, FileError, InputError, VersionError

VERSION = 1
MAGIC = b"\x89RBEGIR\n"
BLOCK = 4096
ALIGN = 64
HEADER = struct.Struct("<8sHHII")
FOOTER = struct.Struct("<QQQIII")
BUFFER = 256 * BLOCK  # bytes collected before a write
SYNC_BYTES = 2 * BUFFER  # bytes written before a sync: few enough that a change beside it waits only shortly
DIRECTORY_LIMIT = 1 << 28  # a directory is read whole, so its size is bounded
# 256 columns take at most 0.6 MB; the rest is enough for 68,000 segments of at most 236 bytes, which hold
# 3·10¹⁰ keywords even if every segment is just too large to be merged
MANIFEST_LIMIT = 1 << 24

_RESTORE = "restore the file from a copy; `rbegir index verify` lists all damage"


class FileKind(IntEnum):
    MANIFEST = 1
    SEGMENT = 2
    DELETES = 3


class Stamp(NamedTuple):
    """Identifies a written file by its length and footer."""

    bytes: int
    check: int  # CRC-32C of the footer


def directory_limit(kind: FileKind) -> int:
    """How many bytes the directory of a file may have."""
    return min(DIRECTORY_LIMIT, MANIFEST_LIMIT) if kind is FileKind.MANIFEST else DIRECTORY_LIMIT


def map_file(path: Path, most: int | None = None) -> Mapping:
    """Map a file, or its first `most` bytes, for reading; links and special files are refused."""
    descriptor = disk.open_regular(path)
    try:
        whole = os.fstat(descriptor).st_size
        size = whole if most is None else min(whole, most)
        if size == 0:
            raise CorruptError(f"{path} is damaged: it is empty", hint=_RESTORE)
        mapped = Mapping(descriptor, size, access=mmap.ACCESS_READ)
        mapped.protect()
        return mapped
    finally:
        os.close(descriptor)


Turn = Callable[[], AbstractContextManager[object]]


class FileWriter:
    """Writes one file front to back; `finish` makes it durable. Nothing refers to an unfinished file.

    A long file is copied and synced piece by piece, so that a change in another thread never waits long: for
    the interpreter, or because the file system writes the whole file when the change syncs its own. `turn`
    is entered for each sync: a change waits for one piece at most, and none of its own syncs waits for this
    file.
    """

    def __init__(self, path: Path, kind: FileKind, turn: Turn = nullcontext) -> None:
        self.path, self.kind, self._turn = path, kind, turn
        self._pending = bytearray()
        self._size = 0  # bytes appended so far, including pending ones
        self._unsynced = 0  # bytes written since the last sync
        self._sums: list[npt.NDArray[np.uint32]] = []
        self._sections: dict[str, list[int]] = {}
        self._descriptor = disk.create(path)
        start = HEADER.pack(MAGIC, VERSION, kind, BLOCK, 0)[:-4]
        self._append(start + struct.pack("<I", crc32c(start)))

    def __enter__(self) -> FileWriter:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)

    def begin(self, name: str) -> None:
        """Start a section; it holds everything written until the next `begin`."""
        assert name not in self._sections, name
        self._append(bytes(-self._size % ALIGN))
        self._sections[name] = [self._size, 0]
        self._open = self._sections[name]

    def write(self, data: disk.Buffer | npt.NDArray[Any]) -> None:
        flat = np.frombuffer(data, np.uint8) if len(data) else np.zeros(0, np.uint8)
        self._open[1] += flat.size
        self._append(flat.data)

    def section(self, name: str, data: disk.Buffer | npt.NDArray[Any]) -> None:
        """Write a whole section at once."""
        self.begin(name)
        self.write(data)

    def finish(self, meta: dict[str, Any]) -> Stamp:
        """Write directory, table and footer; on return the bytes are durable, but not the file's name."""
        self._append(bytes(-self._size % ALIGN))
        directory = json.dumps({"meta": meta, "sections": self._sections}).encode()
        most = directory_limit(self.kind)
        if len(directory) > most:
            raise InputError(
                f"{self.path.name} would need a directory of {len(directory)} bytes, "
                f"at most {most} can be read again",
                hint="use fewer columns, with shorter names, or compact the index",
            )
        start = self._size
        self._append(directory)
        end = self._size
        self._flush(everything=True)
        table = np.concatenate(self._sums).astype("<u4").tobytes()
        total = end + len(table) + FOOTER.size
        head = FOOTER.pack(start, end, total, crc32c(directory), crc32c(table), 0)[:-4]
        check = crc32c(head)
        disk.write(self._descriptor, table + head + struct.pack("<I", check))
        with self._turn():
            disk.sync(self._descriptor)
        return Stamp(total, check)

    def _append(self, data: disk.Buffer) -> None:
        self._size += len(data)
        for start in range(0, len(data), BUFFER):
            self._pending += data[start : start + BUFFER]
            if len(self._pending) >= BUFFER:
                self._flush(everything=False)

    def _flush(self, *, everything: bool) -> None:
        ready = len(self._pending) if everything else len(self._pending) // BLOCK * BLOCK
        if not ready:
            return
        data = bytes(memoryview(self._pending)[:ready])
        self._sums.append(crc32c_blocks(data, BLOCK, np.arange(-(-ready // BLOCK), dtype=np.int64)))
        disk.write(self._descriptor, data)
        del self._pending[:ready]
        self._unsynced += ready
        if self._unsynced >= SYNC_BYTES and not everything:  # `finish` syncs the rest
            with self._turn():
                disk.sync(self._descriptor)
            self._unsynced = 0


class File:
    """A mapped file: its metadata are read at once, its sections on demand."""

    def __init__(self, path: Path, kind: FileKind, stamp: Stamp | None = None) -> None:
        self.path, self.kind = path, kind
        self._map = map_file(path)
        size = len(self._map)
        self._read_header()
        start, end, total, directory_sum, self._table_sum, check = FOOTER.unpack(self._map[-FOOTER.size :])
        if check != crc32c(self._map[-FOOTER.size : -4]) or total != size:
            raise self._corrupt("the footer does not match its checksum, or the length is wrong")
        self.stamp = Stamp(size, check)
        if stamp is not None and stamp != self.stamp:
            raise CorruptError(
                f"{path} is not the file that the manifest names: expected {stamp.bytes} bytes with check "
                f"{stamp.check:08x}, found {size} with {check:08x}",
                hint=_RESTORE,
            )
        self.blocks = -(-end // BLOCK)
        table_bytes = 4 * self.blocks
        if not HEADER.size <= start <= end or end + table_bytes + FOOTER.size != size:
            raise self._corrupt("the footer points outside the file")
        most = directory_limit(kind)
        if end - start > most:
            raise self._corrupt(f"its directory has {end - start} bytes, at most {most} are allowed")
        if crc32c(memoryview(self._map)[start:end]) != directory_sum:
            raise self._corrupt("the directory does not match its checksum")
        self._end = end
        self.meta, self._sections = self._read_directory(start, end)
        self._checked: npt.NDArray[np.bool_] | None = None  # [blocks], made at the first touch
        self._table: npt.NDArray[np.uint32] | None = None  # [blocks]

    def section(self, name: str) -> Section:
        """A section by name; nothing of it is read or checked yet."""
        if name not in self._sections:
            raise self._corrupt(f"section {name!r} is missing")
        return Section(self, name, *self._sections[name])

    def check_mapped(self) -> None:
        """Raise if a page read since the file was opened was missing and so read as zeros."""
        if self._map.broken:
            raise self._corrupt("it was truncated while it was being read, or the disk cannot read it")

    def check(self, blocks: npt.NDArray[np.int64]) -> None:
        """Raise unless these blocks match their checksums; each block is checked only once."""
        checked, table = self._checking()
        todo = blocks[~checked[blocks]]
        if not todo.size:
            return
        todo = np.unique(todo)
        bad = np.flatnonzero(crc32c_blocks(self._body(), BLOCK, todo) != table[todo])
        if bad.size:
            raise self._bad_block(int(todo[bad[0]]))
        checked[todo] = True

    def damage(self) -> Iterator[CorruptError]:
        """Check every block, including those checked before, and yield an error for each bad one."""
        try:
            _, table = self._checking()
        except CorruptError as error:
            yield error
            return
        for first in range(0, self.blocks, BUFFER):
            blocks = np.arange(first, min(first + BUFFER, self.blocks), dtype=np.int64)
            bad = np.flatnonzero(crc32c_blocks(self._body(), BLOCK, blocks) != table[blocks])
            for block in blocks[bad]:
                yield self._bad_block(int(block))

    def copy(self, path: Path) -> None:
        """Write every byte, checked, to a new file, also if this one was removed; durable on return."""
        for error in self.damage():
            raise error
        whole = memoryview(self._map)
        disk.write_new(path, (whole[start : start + BUFFER] for start in range(0, len(whole), BUFFER)))
        self.check_mapped()

    def _checking(self) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.uint32]]:
        if self._checked is None or self._table is None:
            table = memoryview(self._map)[self._end : -FOOTER.size]
            if crc32c(table) != self._table_sum:
                raise self._corrupt("the table of checksums does not match its own checksum")
            self._table = np.frombuffer(table, "<u4")
            self._checked = np.zeros(self.blocks, np.bool_)
        return self._checked, self._table

    def _body(self) -> memoryview:
        return memoryview(self._map)[: self._end]

    def _read_header(self) -> None:
        if len(self._map) < HEADER.size + FOOTER.size or self._map[: len(MAGIC)] != MAGIC:
            raise FileError(
                f"{self.path} is not a file of an rbegir index", hint="check the path; nothing was changed"
            )
        _, version, found, block, check = HEADER.unpack(self._map[: HEADER.size])
        if check != crc32c(self._map[: HEADER.size - 4]):
            raise self._corrupt("the header does not match its checksum")
        if version != VERSION:
            raise VersionError(
                f"{self.path} has format version {version}, this rbegir reads version {VERSION}",
                hint="use the version of rbegir that wrote it, or build the index again",
            )
        if found != self.kind or block != BLOCK:
            raise self._corrupt(f"expected a {self.kind.name.lower()} file, found kind {found}")

    def _read_directory(self, start: int, end: int) -> tuple[dict[str, Any], dict[str, tuple[int, int]]]:
        try:
            directory = json.loads(self._map[start:end])
            meta, sections = directory.pop("meta"), directory.pop("sections")
            spans = {name: (offset, size) for name, (offset, size) in sections.items()}
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise self._corrupt("the directory cannot be understood") from error
        for name, (offset, size) in spans.items():
            if type(offset) is not int or type(size) is not int or offset % ALIGN or size < 0:
                raise self._corrupt(f"section {name!r} has an impossible offset or size")
            if not HEADER.size <= offset <= offset + size <= start:
                raise self._corrupt(f"section {name!r} lies outside the file")
        if directory or (spans and self.kind is FileKind.MANIFEST):
            raise self._corrupt("the directory has unknown entries")
        if not isinstance(meta, dict):
            raise self._corrupt("the directory cannot be understood")
        return meta, spans

    def _bad_block(self, block: int) -> CorruptError:
        end = min((block + 1) * BLOCK, self._end)
        return self._corrupt(
            f"block {block} (bytes {block * BLOCK} to {end - 1}) does not match its checksum"
        )

    def _corrupt(self, what: str) -> CorruptError:
        return CorruptError(f"{self.path} is damaged: {what}", hint=_RESTORE)


def file_problem(path: Path, kind: FileKind, stamp: Stamp) -> str:
    """The problem with a file, after checking every byte of it, or an empty text."""
    try:
        return next((error.message for error in File(path, kind, stamp).damage()), "")
    except FileNotFoundError:
        return "it is missing"
    except OSError as error:
        return error.strerror or str(error)
    except FileError as error:
        return error.message


class Section:
    """A byte range of a file. `view` checks all of it; `touch` checks only what is about to be read."""

    def __init__(self, file: File, name: str, offset: int, size: int) -> None:
        self.file = file
        self.name = name
        self.offset = offset
        self.bytes = size
        self._whole = size == 0

    def view(self, dtype: npt.DTypeLike, count: int) -> npt.NDArray[Any]:
        """The whole section, checked, as an array of the given length."""
        if not self._whole:
            first, last = self.offset // BLOCK, (self.offset + self.bytes - 1) // BLOCK
            for start in range(first, last + 1, BUFFER):
                self.file.check(np.arange(start, min(start + BUFFER, last + 1), dtype=np.int64))
            self._whole = True
        return self.unchecked(dtype, count)

    def unchecked(self, dtype: npt.DTypeLike, count: int) -> npt.NDArray[Any]:
        """The whole section, unchecked, as an array: `touch` what is read first."""
        if self.bytes != count * np.dtype(dtype).itemsize:
            raise self.corrupt(f"has {self.bytes} bytes, which is not {count} values")
        return np.frombuffer(self.file._map, dtype, count, self.offset)

    def touch(self, starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]) -> None:
        """Check the blocks under the byte ranges [starts, ends) of the section; they must lie inside it."""
        if self._whole:
            return
        used = starts < ends  # an empty range has no byte to check
        if not used.all():
            starts, ends = starts[used], ends[used]
        if not starts.size:
            return
        first = (self.offset + starts) // BLOCK  # [ranges]
        last = (self.offset + ends - 1) // BLOCK
        if starts.size == 1:
            return self.file.check(np.arange(first[0], min(last[0] + 1, self.file.blocks)))
        spans = last - first + 1
        if int(spans.max()) == 1:
            blocks = first
        else:  # every block of every range: first, first + 1, … last
            before = np.cumsum(spans) - spans
            blocks = np.repeat(first - before, spans) + np.arange(int(spans.sum()))
        self.file.check(blocks[blocks < self.file.blocks])

    def corrupt(self, what: str) -> CorruptError:
        return CorruptError(f"{self.file.path} is damaged: section {self.name!r} {what}", hint=_RESTORE)
