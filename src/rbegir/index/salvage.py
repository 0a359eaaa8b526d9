"""Salvage: copy what is undamaged of a broken index into a new one.

    report = Index.salvage("ads.rbe", "saved.rbe")          rbegir index verify ads.rbe --salvage saved.rbe

A keyword is saved if all its bytes (code, row, id, text, attributes) are in blocks that match their checksums
(`wreck.py`). Rows, ids and order stay. Nothing is guessed, and the damaged index is only read.

    damaged                        consequence
    a block of a segment           its keywords are lost, and listed by row
    a segment's directory, a       all keywords of that segment are lost
    truncated or missing segment
    deletes                        readable deletes are applied; the report says how many deleted keywords
                                   may have come back. Of two keywords with one id, the newer is kept
    MANIFEST                       rebuilt from the segments and deletes that exist
    model                          the new index has none: open it with model=…

*Rebuilding the manifest.* A segment states its own rows, columns and shape; a delete file names its segments.
File numbers only grow, so of two segments with common rows the newer is a merge of the older, and of two
delete files about a segment the newer is more complete. Whether the newest files belong to an acknowledged
change, and how many keywords were deleted, cannot be known.
"""

import contextlib
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rbegir.base import masks
from rbegir.codes.planes import check_dimension
from rbegir.encode.encoder import load_encoder, verify_encoder
from rbegir.errors import CorruptError, FileError, RbegirError
from rbegir.index.columns import Int64s, int64_array
from rbegir.index.creation import copy_model, model_paths, staged
from rbegir.index.format import FileKind
from rbegir.index.manifest import (
    DELETES_NAME,
    MODEL,
    NAME,
    SEGMENT_NAME,
    Manifest,
    commit,
    parse,
    prepare,
    read_manifest,
)
from rbegir.index.segment import CodeShape, Entry, LiveRows, write_segment
from rbegir.index.wreck import Wreck, WreckedSegment, known_deletes

Lost = dict[str, Any]  # an entry of the report


def salvage(path: Path, out: Path, *, overwrite: bool = False) -> dict[str, Any]:
    """Copy what is intact of the index at `path` to a new index at `out`, and report what was lost.

    keywords   in the new index
    replaced   older keywords left out because a newer one has their id
    manifest   intact or rebuilt
    model      intact, lost or none
    segments   lost keywords by segment; rows: [first, last] of each run, bounds if their rows are lost too
    deletes    deletes that cannot be read; unknown: how many keywords may have come back, None: not known
    """
    if os.path.realpath(out) == os.path.realpath(path):
        raise FileError(f"{out} is the damaged index itself", hint="salvage into another directory")
    manifest, rebuilt = _state(path)
    segments: list[Lost] = []
    deletes: list[Lost] = []
    opened = [_open(path, manifest, entry, segments, deletes) for entry in manifest.segments]
    remains = [rows for rows in opened if rows is not None]
    found = sum(rows.count for rows in remains)
    if deletes or rebuilt:
        remains = _newest(remains)
    has_model = manifest.has_model
    if has_model:
        try:
            verify_encoder(path / MODEL)
            model_paths(path / MODEL)  # refuses what cannot be copied
        except FileError:
            has_model = False
    if has_model and rebuilt:
        model = load_encoder(path / MODEL)
        manifest = replace(manifest, query_planes=model.query_planes, fingerprint=model.fingerprint)
    with staged(out.absolute(), overwrite=overwrite) as writer:
        entries: list[Entry] = []
        for rows in remains:
            if rows.count:
                segment = writer.directory / f"segment-{len(entries):08d}.rbs"
                entries.append(write_segment(segment, [rows], manifest.shape, manifest.tenant))
        if has_model:
            copy_model(path / MODEL, writer.directory / MODEL)
        after = manifest.follow(
            segments=tuple(entries), deletes={}, has_model=has_model, next_file=len(entries)
        )
        prepare(writer.directory, after)
        commit(writer.directory)
    writer.close()
    saved = sum(entry.count for entry in entries)
    return {
        "out": str(out),
        "keywords": saved,
        "lost": sum(segment["keywords"] for segment in segments),
        "replaced": found - saved,
        "manifest": "rebuilt" if rebuilt else "intact",
        "model": "intact" if has_model else "lost" if manifest.has_model else "none",
        "segments": segments,
        "deletes": deletes,
    }


def _state(path: Path) -> tuple[Manifest, bool]:
    """The manifest if its content can be read, else one rebuilt from the other files; and which of both."""
    try:
        return read_manifest(path), False
    except FileError as error:
        if not path.is_dir():
            raise
        try:
            return parse(Wreck(path / NAME, FileKind.MANIFEST).meta, path / NAME), False
        except (FileError, OSError):
            return _rebuilt(path, error), True


def _open(
    path: Path, manifest: Manifest, entry: Entry, segments: list[Lost], deletes: list[Lost]
) -> LiveRows | None:
    """The live, readable keywords of a segment; what is lost is added to the lists of the report."""
    try:
        segment = WreckedSegment(path / entry.file, manifest.shape, entry.stamp)
        segment.check_span(entry)
    except (FileError, OSError) as error:
        reason, rows = _reason(error, path / entry.file), [[entry.first_row, entry.last_row]]
        segments.append({"file": entry.file, "keywords": entry.live, "rows": rows, "reason": reason})
        return None
    live = ~masks.to_bools(_dead(path, manifest, entry, deletes), segment.count)
    whole = segment.survivors()
    lost = np.flatnonzero(live & ~whole)
    if lost.size:
        bad = np.flatnonzero(~segment.file.intact).tolist()
        more = f" and {len(bad) - 10} more" if len(bad) > 10 else ""
        reason = f"{segment.path} is damaged: checksums of blocks {', '.join(map(str, bad[:10]))}{more}"
        rows = _runs(segment, lost)
        segments.append({"file": entry.file, "keywords": int(lost.size), "rows": rows, "reason": reason})
    return LiveRows(segment, masks.from_bools(live & whole))


def _dead(path: Path, manifest: Manifest, entry: Entry, deletes: list[Lost]) -> masks.Mask:
    """The positions of a segment that are known to be deleted."""
    mask, reason = masks.empty(entry.count), ""
    if entry.deletes is None:
        return mask
    try:
        file = Wreck(path / entry.deletes, FileKind.DELETES, manifest.deletes.get(entry.deletes))
        mask, unread = known_deletes(file, entry.file, entry.count)
        if unread:
            blocks = f"{unread} bytes about {entry.file} are in blocks that do not match"
            reason = f"{file.path} is damaged: {blocks}"
    except (FileError, OSError) as error:
        reason = _reason(error, path / entry.deletes)
    unknown = entry.deleted - masks.size(mask) if entry.deleted else None
    if reason and unknown != 0:
        lost = {"file": entry.deletes, "segment": entry.file, "unknown": unknown, "reason": reason}
        deletes.append(lost)
    return mask


def _reason(error: FileError | OSError, path: Path) -> str:
    return error.message if isinstance(error, FileError) else f"{path} is missing"


def _runs(segment: WreckedSegment, lost: Int64s) -> list[list[int]]:
    """The rows of lost positions, as runs; an unknown row is bounded by its known neighbours."""
    rows, known = segment.unchecked_rows(), segment.known_rows()
    at = np.arange(segment.count)
    before = np.maximum.accumulate(np.where(known, at, -1))  # the last known position up to here
    # the next known position
    after = segment.count - 1 - np.maximum.accumulate(np.where(known[::-1], at, -1))[::-1]
    low = np.where(before < 0, segment.first_row, rows[before] + (before != at))
    high = np.where(after >= segment.count, segment.last_row, rows[np.minimum(after, at[-1])] - (after != at))
    breaks = np.flatnonzero(np.diff(lost) > 1)
    firsts, lasts = lost[np.concatenate(([0], breaks + 1))], lost[np.concatenate((breaks, [lost.size - 1]))]
    return [[int(low[a]), int(high[b])] for a, b in zip(firsts, lasts, strict=True)]


def _newest(remains: list[LiveRows]) -> list[LiveRows]:
    """Only the newest keyword of each id, since lost deletes may bring back older ones."""
    kept: list[LiveRows] = []
    seen: list[pa.Array] = []
    for rows in reversed(remains):
        at = np.concatenate(list(rows.spans()))
        ids = rows.table.ids(at)
        if seen and at.size:
            new = np.flatnonzero(~np.asarray(pc.is_in(ids, value_set=pa.concat_arrays(seen))))
            at, ids = at[new], ids.take(int64_array(new))
        kept.append(LiveRows(rows.table, masks.from_positions(at, rows.table.count)))
        seen.append(ids)
    return kept[::-1]


def _rebuilt(path: Path, reason: FileError) -> Manifest:
    """A state rebuilt from the newest readable segments whose rows do not overlap.

    The number of deleted keywords of each segment is unknown and given as 0.
    """
    segments: list[WreckedSegment] = []
    for file in reversed(_numbered(path, SEGMENT_NAME)):
        segment = _segment(file)
        if segment is not None and not any(
            segment.first_row <= newer.last_row and newer.first_row <= segment.last_row for newer in segments
        ):
            segments.append(segment)
    segments.sort(key=lambda segment: segment.first_row)
    if len({(segment.shape, segment.id_type, segment.tenant) for segment in segments}) != 1:
        raise CorruptError(
            f"nothing can be salvaged from {path}: the manifest is lost, and no segment says what it held",
            hint="restore the index from a copy",
        ) from reason
    deletes: dict[str, str] = {}  # the newest delete file of each segment
    for file in _numbered(path, DELETES_NAME):
        with contextlib.suppress(FileError, OSError):  # then its segments are not known
            deletes.update(dict.fromkeys(Wreck(file, FileKind.DELETES).sections, file.name))
    return Manifest(
        n=segments[0].shape.n,
        keyword_planes=segments[0].shape.planes,
        query_planes=0,
        fingerprint="",
        has_model=(path / MODEL).is_dir(),
        id_type=segments[0].id_type,
        next_row=segments[-1].last_row + 1,
        tenant=segments[0].tenant,
        columns={name: str(t) for one in segments for name, t in one.types.items() if name != "text"},
        segments=tuple(
            Entry(one.path.name, one.file.stamp, *one.span, deletes.get(one.path.name)) for one in segments
        ),
    )


def _segment(file: Path) -> WreckedSegment | None:
    """Open a segment with the shape that it states; None if it cannot be read at all."""
    try:
        meta = Wreck(file, FileKind.SEGMENT).meta
        check_dimension(meta["n"])
        return WreckedSegment(file, CodeShape(meta["n"], meta["planes"]))
    except (RbegirError, OSError, KeyError):
        return None


def _numbered(path: Path, form: re.Pattern[str]) -> list[Path]:
    """The files whose names match a pattern, ordered by number."""
    files = [file for file in path.iterdir() if form.fullmatch(file.name)]
    return sorted(files, key=lambda file: int(file.name.split("-")[1].split(".")[0]))
