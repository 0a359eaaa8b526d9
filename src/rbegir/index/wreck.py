"""Reading damaged files: which blocks are intact, and what can be read from them.

A block is intact if it matches its entry in the table of checksums. Neither the header is needed, nor the
footer, whose numbers follow from the length of the file, nor the checksum of the table. Nothing can be read
if the directory is lost, which says where everything is, or the end of the file, which holds the table.

    length of the file − 36  =  t + 4·⌈t / 4096⌉        gives t, where the table begins
    the directory            =  the JSON that ends at t and begins at the last possible multiple of 64
"""

import json
from pathlib import Path

import numpy as np
import numpy.typing as npt

from rbegir._native._core import crc32c, crc32c_blocks
from rbegir.base import masks
from rbegir.codes import layout
from rbegir.codes.planes import Codes
from rbegir.index.columns import Int64s
from rbegir.index.format import (
    ALIGN,
    BLOCK,
    FOOTER,
    HEADER,
    File,
    FileKind,
    Section,
    Stamp,
    directory_limit,
    map_file,
)
from rbegir.index.segment import Segment

_START = b'{"meta": '


class Wreck(File):
    """A file of which some blocks are intact; raises CorruptError if nothing of it can be read."""

    def __init__(self, path: Path, kind: FileKind, stamp: Stamp | None = None) -> None:
        self.path, self.kind = path, kind
        self._map = map_file(path, None if stamp is None else stamp.bytes)  # ignore what was appended
        size = len(self._map)
        if stamp is not None and size != stamp.bytes:
            raise self._corrupt(f"it has {size} bytes where {stamp.bytes} were written")
        end = _table_start(size)
        if end is None:
            raise self._corrupt("it has the length of no file of an index")
        self._end = end
        self.blocks = -(-end // BLOCK)
        self._table = np.frombuffer(self._map, "<u4", self.blocks, end)
        sums = crc32c_blocks(self._body(), BLOCK, np.arange(self.blocks, dtype=np.int64))
        self.intact = np.asarray(sums == self._table, np.bool_)  # [blocks]
        self._checked = self.intact.copy()  # intact blocks need no second check
        self.meta, self._sections = self._find_directory(stamp)

    @property
    def sections(self) -> list[str]:
        return list(self._sections)

    def covered(self, section: Section, starts: Int64s, stops: Int64s) -> npt.NDArray[np.bool_]:
        """Which byte ranges [starts, stops) of a section are in intact blocks; empty ranges are."""
        bad = np.concatenate(([0], np.cumsum(~self.intact)))  # [blocks + 1]: bad blocks before each
        first = np.clip((section.offset + starts) // BLOCK, 0, self.blocks)
        last = np.clip((section.offset + stops - 1) // BLOCK + 1, 0, self.blocks)
        return np.asarray((bad[last] <= bad[first]) | (stops <= starts), np.bool_)

    def _find_directory(self, stamp: Stamp | None) -> tuple[dict[str, object], dict[str, tuple[int, int]]]:
        """Find the directory by the footer if that is valid, else by searching for its JSON."""
        raw = self._map[-FOOTER.size :]
        start, _, _, directory_sum, _, check = FOOTER.unpack(raw)
        self.stamp = Stamp(len(self._map), check)
        if check == crc32c(raw[:-4]):
            if stamp is not None and stamp != self.stamp:
                raise self._corrupt("it is in order, but it is not the file that the manifest names")
            known = HEADER.size <= start <= self._end <= start + directory_limit(self.kind)
            if known and crc32c(memoryview(self._map)[start : self._end]) == directory_sum:
                return self._read_directory(start, self._end)
        else:
            start = self._end // ALIGN * ALIGN
            lowest = max(HEADER.size, self._end - directory_limit(self.kind))
            while start >= lowest and not self._is_json(start):
                start -= ALIGN
            if start >= lowest and self.intact[start // BLOCK :].all():
                return self._read_directory(start, self._end)
        raise self._corrupt("its directory, which says where everything lies, is lost")

    def _is_json(self, start: int) -> bool:
        if self._map[start : start + len(_START)] != _START:
            return False
        try:
            json.loads(self._map[start : self._end])
        except (ValueError, RecursionError):
            return False
        return True


class WreckedSegment(Segment):
    """A segment of which some keywords can be read."""

    opener = Wreck
    file: Wreck

    def codes(self, positions: Int64s) -> Codes:
        packed = self._codes.unchecked(np.uint8, self._codes.bytes)
        return layout.unpack(packed, self.count, *self.shape, positions)

    def survivors(self) -> npt.NDArray[np.bool_]:
        """[count]: whether every byte of a keyword (code, row, id, text, attributes) is intact."""
        at = np.arange(self.count)
        whole = np.ones(self.count, np.bool_)
        group_bytes = layout.GROUP * self.shape.n // 8
        for plane in range(self.shape.planes):
            start = (plane * layout.groups(self.count) + at // layout.GROUP) * group_bytes
            whole &= self.file.covered(self._codes, start, start + group_bytes)
        whole &= self.known_rows()
        for column in self._columns.values():
            readable = np.ones(self.count, np.bool_)
            for section, starts, stops in column.spans(at):  # offsets that are damaged point nowhere
                starts, stops = np.where(readable, starts, 0), np.where(readable, stops, 0)
                readable &= self.file.covered(section, starts, stops)
            whole &= readable
        return whole

    def known_rows(self) -> npt.NDArray[np.bool_]:
        """[count]: whether the row of a keyword is known."""
        if self._row_section is None:
            return np.ones(self.count, np.bool_)
        at = np.arange(self.count)
        return self.file.covered(self._row_section, 8 * at, 8 * (at + 1))

    def unchecked_rows(self) -> npt.NDArray[np.int64]:
        """[count]: all rows, including those that are not known."""
        if self._row_section is None:
            return self.first_row + np.arange(self.count)
        return self._row_section.unchecked("<i8", self.count).astype(np.int64)


def known_deletes(file: Wreck, name: str, count: int) -> tuple[masks.Mask, int]:
    """The readable deleted positions of a segment, and how many bytes could not be read."""
    section = file.section(name)
    as_bits = section.bytes == 8 * -(-count // 64)  # a list is always shorter, see snapshot.py
    width = 8 if as_bits else 4
    size = section.bytes // width
    at = np.arange(size)
    intact = file.covered(section, width * at, width * (at + 1))
    if as_bits:
        words = section.unchecked("<u8", size).astype(np.uint64)
        mask = np.where(intact, words, np.uint64(0))
        mask &= masks.complement(masks.empty(count), count)
    else:
        positions = section.unchecked("<u4", size).astype(np.int64)[intact]
        mask = masks.from_positions(positions[positions < count], count)
    return mask, width * int(np.count_nonzero(~intact))


def _table_start(size: int) -> int | None:
    """Where the table begins in a file of this length; None if no file has this length."""
    body = size - FOOTER.size
    for blocks in range(max(body // (BLOCK + 4), 0), body // (BLOCK + 4) + 2):
        end = body - 4 * blocks
        if end >= HEADER.size and -(-end // BLOCK) == blocks:
            return end
    return None
