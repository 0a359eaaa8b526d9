"""What is intact of a damaged index, in a new one.

    report = Index.salvage("ads.rbe", "saved.rbe")          rbegir index verify ads.rbe --salvage saved.rbe

A keyword comes back when every byte of it (code, row, id, text, attributes) lies in a block that matches its
checksum (`wreck.py`); rows, ids and order stay. Nothing is guessed, and the damaged index is only read.

    damaged                 consequence
    a block of a segment    its keywords are lost, and listed by row
    directory, cut, gone    all keywords of that segment are lost
    deletes                 what is readable is honoured; of the rest the report says how many keywords may be
                            back from the dead. Of two keywords with one id the newer is kept
    MANIFEST                rebuilt from the segments and deletes that are there (`rebuild.py`)
    model                   the new index has none: open it with model=…
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rbegir.base import disk, masks
from rbegir.encode.encoder import load_encoder
from rbegir.errors import CorruptError, FileError
from rbegir.index.columns import int64_array
from rbegir.index.format import Kind
from rbegir.index.manifest import MODEL, NAME, Entry, Manifest, commit, parse, prepare, read_manifest
from rbegir.index.rebuild import Claim, rebuilt
from rbegir.index.segment import Source, write_segment
from rbegir.index.staging import staged
from rbegir.index.verify import model_damage
from rbegir.index.wreck import Wreck, WreckedSegment, known_deletes

Flags = npt.NDArray[np.bool_]


@dataclass
class LostKeywords:
    """What is gone of one segment."""

    file: str
    keywords: int
    rows: list[list[int]]  # [first, last] of each run; the bounds where the rows themselves are lost
    reason: str


@dataclass
class LostDeletes:
    """Deletes of one segment that can no longer be read."""

    file: str
    segment: str
    unknown: int | None  # keywords that may be back although they were deleted; None: nobody knows
    reason: str


@dataclass
class Report:
    """What was saved and what was not."""

    out: str
    keywords: int = 0  # in the new index
    lost: int = 0
    replaced: int = 0  # older keywords left out because a newer one has their id
    manifest: str = "intact"  # or: rebuilt
    model: str = "none"  # or: intact, lost
    segments: list[LostKeywords] = field(default_factory=list)
    deletes: list[LostDeletes] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass
class _Piece:
    """What is left of a segment."""

    segment: WreckedSegment
    kept: Flags  # [count]: alive and readable


def salvage(path: Path, out: Path, *, overwrite: bool = False) -> Report:
    """Copy what is intact of the index in `path` to a new one in `out`."""
    if out.absolute() == path.absolute():
        raise FileError(f"{out} is the damaged index itself", hint="salvage into another directory")
    report = Report(str(out))
    manifest, claims = _state(path, report)
    pieces = [piece for claim in claims if (piece := _open(path, manifest, claim, report)) is not None]
    if report.deletes or report.manifest != "intact":
        report.replaced = _keep_newest(pieces)
    if manifest.has_model:
        report.model = "lost" if list(model_damage(path / MODEL)) else "intact"
    if report.model == "intact" and report.manifest == "rebuilt":
        model = load_encoder(path / MODEL)
        manifest = replace(manifest, query_planes=model.query_planes, fingerprint=model.fingerprint)
    with staged(out.absolute(), overwrite=overwrite) as writer:
        entries = _write(writer.directory, manifest, pieces)
        if report.model == "intact":
            _copy(path / MODEL, writer.directory / MODEL)
        after = manifest.follow(
            segments=tuple(entries),
            deletes={},
            has_model=report.model == "intact",
            next_file=len(entries),
        )
        prepare(writer.directory, after)
        commit(writer.directory)
    writer.close()
    report.keywords = sum(entry.count for entry in entries)
    report.lost = sum(part.keywords for part in report.segments)
    return report


def _state(path: Path, report: Report) -> tuple[Manifest, list[Claim]]:
    """The manifest as it is, as far as it can be read, or as it must have been."""
    try:
        manifest = read_manifest(path)
    except FileError as error:
        if not path.is_dir():
            raise
        try:
            manifest = parse(Wreck(path / NAME, Kind.MANIFEST).meta, path / NAME)
        except (FileError, OSError):
            report.manifest = "rebuilt"
            return rebuilt(path, error)
    return manifest, [Claim.of(entry, manifest) for entry in manifest.segments]


def _open(path: Path, manifest: Manifest, claim: Claim, report: Report) -> _Piece | None:
    """What is left of a segment; what is not goes into the report."""
    try:
        segment = WreckedSegment(path / claim.file, manifest.shape, claim.stamp)
        if (segment.count, segment.first_row, segment.last_row) != claim.span:
            raise CorruptError(
                f"{segment.path} is damaged: it is not the segment that the manifest describes"
            )
    except (FileError, OSError) as error:
        reason = error.message if isinstance(error, FileError) else f"{path / claim.file} is missing"
        count, first, last = claim.span
        report.segments.append(LostKeywords(claim.file, count - claim.deleted, [[first, last]], reason))
        return None
    live = ~masks.to_bools(_dead(path, claim, report), segment.count)
    whole = segment.survivors()
    lost = np.flatnonzero(live & ~whole)
    if lost.size:
        bad = np.flatnonzero(~segment.file.intact).tolist()
        more = f" and {len(bad) - 10} more" if len(bad) > 10 else ""
        reason = f"{segment.path} is damaged: checksums of blocks {', '.join(map(str, bad[:10]))}{more}"
        report.segments.append(LostKeywords(claim.file, int(lost.size), _runs(segment, lost), reason))
    return _Piece(segment, live & whole)


def _dead(path: Path, claim: Claim, report: Report) -> masks.Mask:
    """The positions of a segment that are known to be deleted."""
    count = claim.span[0]
    if claim.deletes is None:
        return masks.empty(count)
    try:
        file = Wreck(path / claim.deletes, Kind.DELETES, claim.deletes_stamp)
        mask, unread = known_deletes(file, claim.file, count)
    except (FileError, OSError) as error:
        reason = error.message if isinstance(error, FileError) else f"{path / claim.deletes} is missing"
        report.deletes.append(LostDeletes(claim.deletes, claim.file, claim.deleted or None, reason))
        return masks.empty(count)
    unknown = claim.deleted - masks.size(mask) if claim.deleted else None
    if unread and unknown != 0:
        reason = f"{file.path} is damaged: {unread} bytes about {claim.file} are in blocks that do not match"
        report.deletes.append(LostDeletes(claim.deletes, claim.file, unknown, reason))
    return mask


def _runs(segment: WreckedSegment, lost: npt.NDArray[np.int64]) -> list[list[int]]:
    """The rows of lost positions as runs; where a row is itself lost, what its neighbours leave for it."""
    rows, known = segment.unchecked_rows(), segment.known_rows()
    at = np.arange(segment.count)
    before = np.maximum.accumulate(np.where(known, at, -1))  # the last known one up to here
    # the next known one
    after = segment.count - 1 - np.maximum.accumulate(np.where(known[::-1], at, -1))[::-1]
    low = np.where(before < 0, segment.first_row, rows[before] + (before != at))
    high = np.where(after >= segment.count, segment.last_row, rows[np.minimum(after, at[-1])] - (after != at))
    breaks = np.flatnonzero(np.diff(lost) > 1)
    firsts, lasts = lost[np.concatenate(([0], breaks + 1))], lost[np.concatenate((breaks, [lost.size - 1]))]
    return [[int(low[a]), int(high[b])] for a, b in zip(firsts, lasts, strict=True)]


def _keep_newest(pieces: list[_Piece]) -> int:
    """Where deletes are lost an id may be there twice: only its newest keyword stays. How many went."""
    gone = 0
    seen: list[pa.Array] = []
    for piece in reversed(pieces):
        at = np.flatnonzero(piece.kept)
        ids = piece.segment.ids(at)
        if seen and at.size:
            older = pc.is_in(ids, value_set=pa.concat_arrays(seen)).to_numpy(zero_copy_only=False)
            piece.kept[at[older]] = False
            gone += int(np.count_nonzero(older))
            ids = ids.take(int64_array(np.flatnonzero(~older)))
        seen.append(ids)
    return gone


def _copy(old: Path, new: Path) -> None:
    """A directory of files as it is; durable when this returns, but for its own name."""
    disk.make_directory(new)
    for path in sorted(old.iterdir()):
        if path.is_dir():
            _copy(path, new / path.name)
            continue
        descriptor = disk.create(new / path.name)
        try:
            disk.write(descriptor, path.read_bytes())
            disk.sync(descriptor)
        finally:
            os.close(descriptor)
    disk.sync_directory(new)


def _write(directory: Path, manifest: Manifest, pieces: list[_Piece]) -> list[Entry]:
    entries: list[Entry] = []
    for piece in pieces:
        if piece.kept.any():
            path = directory / f"segment-{len(entries):08d}.rbs"
            made = write_segment(path, [Source(piece.segment, masks.from_bools(piece.kept))], manifest.shape)
            entries.append(Entry(path.name, made.stamp, made.count, made.first_row, made.last_row, None, 0))
    return entries
