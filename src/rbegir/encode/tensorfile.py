"""A file of tensors in the safetensors layout, mapped into memory and never copied.

    8 bytes      length of the header, little-endian
    header       JSON: name → {"dtype": "F32", "shape": […], "data_offsets": [first, last]}, and optionally
                 "__metadata__": string → string; padded with spaces, so that the data start at a
                 multiple of 64
    data         the tensors end to end without gaps; offsets count from here

The layout is so simple that reading and writing it here costs less than a dependency, and reading can be
strict: every number in the header is checked against the size of the file before it is used. A model has
only F32 tensors. These files and those of the `safetensors` package are interchangeable.
"""

from __future__ import annotations

import json
import math
import mmap
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rbegir.base import mapping
from rbegir.errors import CorruptError, FileError

ALIGNMENT = 64
MAX_HEADER = 1 << 24
REPAIR = "copy the model again, or train it anew"

Array = npt.NDArray[np.float32]


class Span(NamedTuple):
    """The shape of a tensor and its byte range in the file."""

    shape: tuple[int, ...]
    start: int
    stop: int


def header(shapes: Mapping[str, tuple[int, ...]], metadata: Mapping[str, str]) -> bytes:
    """Everything before the data: the length and the header, for tensors in the order of `shapes`."""
    entries: dict[str, object] = {"__metadata__": dict(metadata)}
    end = 0
    for name, shape in shapes.items():
        start, end = end, end + 4 * math.prod(shape)
        entries[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % ALIGNMENT)
    return len(text).to_bytes(8, "little") + text


class TensorFile:
    """A mapped file of tensors; `spans` lists them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                status = os.fstat(file.fileno())
                self.size, self.inode = status.st_size, (status.st_dev, status.st_ino)
                if self.size < 8:
                    raise self.corrupt(f"has only {self.size} bytes")
                self.data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
                self._guarded = mapping.Mapping(file.fileno(), 0, access=mmap.ACCESS_READ)
                self._guarded.protect()
        except OSError as error:
            raise FileError(f"cannot read {path}: {error.strerror}") from error
        self.data_start = 8 + int.from_bytes(self.data[:8], "little")
        if self.data_start > min(self.size, MAX_HEADER):
            raise self.corrupt(f"names a header of {self.data_start - 8} bytes")
        self.metadata, self.spans = self._parse()

    def corrupt(self, what: str) -> CorruptError:
        return CorruptError(f"{self.path} {what}", hint=REPAIR)

    def array(self, name: str, *, guarded: bool = False) -> Array:
        """A tensor as a read-only view of the mapped file.

        If the file is cut short, reading a view ends the process, unless it is `guarded`: then the missing
        pages read as zeros, and the reader calls `check_intact` before it uses what it read.
        """
        span = self.spans[name]
        count = (span.stop - span.start) // 4
        if count == 0:
            return np.zeros(span.shape, dtype=np.float32)
        source = self._guarded if guarded else self.data
        flat = np.frombuffer(source, dtype="<f4", count=count, offset=span.start)
        return flat.reshape(span.shape)

    def check_intact(self) -> None:
        """Refuse what was read from guarded views if a page of them was missing."""
        if self._guarded.broken:
            raise self.corrupt("was truncated while it was being read, or the disk cannot read it")

    def _parse(self) -> tuple[dict[str, str], dict[str, Span]]:
        try:
            text = self.data[8 : self.data_start].decode()
            entries = json.loads(text, object_pairs_hook=_unique)
        except (ValueError, RecursionError) as error:
            raise self.corrupt("has a header that is not JSON") from error
        if not isinstance(entries, dict):
            raise self.corrupt("has a header that is no JSON object")
        metadata = entries.pop("__metadata__", {})
        if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
            raise self.corrupt("has metadata that are not strings")
        spans = {name: self._span(name, entry) for name, entry in entries.items()}
        end = self.data_start
        for name, span in sorted(spans.items(), key=lambda item: item[1][1:]):
            if span.start != end:
                raise self.corrupt(f"has a gap or an overlap before tensor {name!r}")
            end = span.stop
        if end != self.size:
            raise self.corrupt(f"should have {end} bytes, but has {self.size}")
        return metadata, spans

    def _span(self, name: str, entry: Any) -> Span:
        if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
            raise self.corrupt(f"describes tensor {name!r} wrongly")
        shape, offsets = entry["shape"], entry["data_offsets"]
        if entry["dtype"] != "F32":
            raise self.corrupt(f"holds tensor {name!r} as {entry['dtype']!r}; a model has only F32")
        if not _naturals(shape) or not _naturals(offsets) or len(offsets) != 2:
            raise self.corrupt(f"describes tensor {name!r} wrongly")
        start, stop = (self.data_start + offset for offset in offsets)
        if stop > self.size:
            raise self.corrupt(f"was cut: it has {self.size} bytes, and tensor {name!r} ends at byte {stop}")
        if start > stop or stop - start != 4 * math.prod(shape) or start % 4:
            raise self.corrupt(f"places tensor {name!r} {shape} at bytes {offsets}, which cannot be")
        return Span(tuple(shape), start, stop)


def _naturals(values: object) -> bool:
    return isinstance(values, list) and all(type(value) is int and value >= 0 for value in values)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) != len(pairs):
        raise ValueError("a name occurs twice")
    return dict(pairs)
