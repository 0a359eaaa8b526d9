"""The state of an index whose manifest is lost, from the files that are there.

A segment says its own rows, columns and shape; a delete file names the segments it is about. Numbers of files
only grow, so of two segments with common rows the newer is a merge of the older, and of two delete files
about a segment the newer knows more. What cannot be known: whether the newest files belong to a change that
was acknowledged, how many keywords were deleted, and which rows were given out after the last segment.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from rbegir.codes.planes import check_dimension
from rbegir.errors import CorruptError, FileError, RbegirError
from rbegir.index.format import Kind, Stamp
from rbegir.index.manifest import DELETES_NAME, MODEL, SEGMENT_NAME, Entry, Manifest
from rbegir.index.segment import Shape
from rbegir.index.wreck import Wreck, WreckedSegment


class Claim(NamedTuple):
    """What is said about a segment, by the manifest or by itself."""

    file: str
    stamp: Stamp | None
    span: tuple[int, int, int]  # count, first row, last row
    deletes: str | None
    deletes_stamp: Stamp | None
    deleted: int  # 0 where nobody knows

    @classmethod
    def of(cls, entry: Entry, manifest: Manifest) -> Claim:
        stamp = None if entry.deletes is None else manifest.deletes[entry.deletes]
        return cls(entry.file, entry.stamp, entry.span, entry.deletes, stamp, entry.deleted)


def rebuilt(path: Path, reason: FileError) -> tuple[Manifest, list[Claim]]:
    """A state made of the newest segments that can be read; their rows do not overlap."""
    parts: list[WreckedSegment] = []
    for file in reversed(_numbered(path, SEGMENT_NAME)):
        segment = _segment(file)
        if segment is not None and not any(_overlap(segment, newer) for newer in parts):
            parts.append(segment)
    parts.sort(key=lambda segment: segment.first_row)
    if len({(segment.shape, segment.id_type) for segment in parts}) != 1:
        raise CorruptError(
            f"nothing can be salvaged from {path}: the manifest is lost, and no segment says what it held",
            hint="restore the index from a copy",
        ) from reason
    manifest = Manifest(
        n=parts[0].shape.n,
        keyword_planes=parts[0].shape.planes,
        query_planes=0,
        fingerprint="",
        has_model=(path / MODEL).is_dir(),
        id_type=parts[0].id_type,
        next_row=parts[-1].last_row + 1,
        columns={name: str(t) for part in parts for name, t in part.types.items() if name != "text"},
    )
    deletes = _deletes(path)
    claims = [
        Claim(
            part.path.name,
            None,
            (part.count, part.first_row, part.last_row),
            deletes.get(part.path.name),
            None,
            0,
        )
        for part in parts
    ]
    return manifest, claims


def _segment(file: Path) -> WreckedSegment | None:
    """A segment with the shape that it claims; None if it cannot be read at all."""
    try:
        meta = Wreck(file, Kind.SEGMENT).meta
        check_dimension(meta["n"])
        return WreckedSegment(file, Shape(meta["n"], meta["planes"]))
    except (RbegirError, OSError, KeyError):
        return None


def _overlap(one: WreckedSegment, other: WreckedSegment) -> bool:
    return one.first_row <= other.last_row and other.first_row <= one.last_row


def _deletes(path: Path) -> dict[str, str]:
    """For each segment the newest file with deletes of it."""
    newest: dict[str, str] = {}
    for file in _numbered(path, DELETES_NAME):
        try:
            newest.update(dict.fromkeys(Wreck(file, Kind.DELETES).sections, file.name))
        except (FileError, OSError):
            continue  # it does not say what it is about
    return newest


def _numbered(path: Path, form: re.Pattern[str]) -> list[Path]:
    """The files whose names have a form, in the order of their numbers."""
    files = [file for file in path.iterdir() if form.fullmatch(file.name)]
    return sorted(files, key=lambda file: int(file.name.split("-")[1].split(".")[0]))
