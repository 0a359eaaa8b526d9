"""Changes to an index: each is a few new files and one new manifest, and is there wholly or not at all.

    add      new rows → a segment · rows they replace → a delete file · manifest
    delete   a delete file · manifest
    compact  all live rows → new segments · manifest

Small adds would leave thousands of small segments, so an add also takes in its smaller neighbours: sizes are
put in tiers (each eight times the one below), and when the tail of the index would hold eight segments of the
same tier or lower they are written as one, up to MERGE_ROWS. Every row is thus rewritten a few times a tier,
and an index of N rows has about N / MERGE_ROWS + 8·log₈(MERGE_ROWS / TIER_ROWS) segments. Neighbours only:
the rows of segments must not interleave.

Rows that were deleted are left out whenever their segment is rewritten; a segment with nothing left is
dropped.

The order of a change is what makes it safe: new files and their names are on disk before the manifest that
names them replaces the old one, and the old files go only after that is on disk too.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from rbegir.base import disk, masks
from rbegir.index.deletes import write_deletes
from rbegir.index.lock import WriterLock
from rbegir.index.manifest import DELETES_NAME, NEW, SEGMENT_NAME, Entry, commit, prepare
from rbegir.index.rows import Rows
from rbegir.index.segment import MAX_ROWS, Source, write_segment
from rbegir.index.snapshot import Part, Place, Snapshot

FAN = 8
TIER_ROWS = 1024  # the lowest tier: segments up to this size
MERGE_ROWS = 1 << 22  # an add never rewrites more than this

Progress = Callable[[int, int], None]  # rows written so far, rows to write


class _Kept(NamedTuple):
    """A part of the old state on its way into the new one."""

    part: Part
    dead: masks.Mask | None  # all deleted positions, where the change deletes any; None: as before
    live: int

    def source(self) -> Source:
        if self.dead is None:
            return self.part.source()
        return Source(self.part.segment, masks.complement(self.dead, self.part.entry.count))


class Writer:
    """The one writer of a directory. Every method takes the current state and leaves the next one on disk."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._lock = WriterLock(directory)

    def close(self) -> None:
        self._lock.release()

    def add(
        self, before: Snapshot, rows: Rows, replaced: Place, columns: dict[str, str], id_type: str
    ) -> None:
        """Add rows and delete the ones that they replace, in one step."""
        kept = _without(before, replaced)
        taken = tail_to_merge([k.live for k in kept], rows.count)
        merged = [k.source() for k in kept[len(kept) - taken :]]
        groups = [[*merged, Source(rows, None)]]
        if rows.count > MAX_ROWS:  # then nothing was taken
            starts = range(0, rows.count, MAX_ROWS)
            groups = [[Source(rows.slice(at, min(at + MAX_ROWS, rows.count)), None)] for at in starts]
        with self._change(before) as change:
            change.keep(kept[: len(kept) - taken])
            for group in groups:
                change.write(group)
            change.commit(next_row=rows.first_row + rows.count, columns=columns, id_type=id_type)

    def delete(self, before: Snapshot, place: Place) -> None:
        """Delete the keywords at these places."""
        with self._change(before) as change:
            change.keep(_without(before, place))
            change.commit()

    def compact(self, before: Snapshot, progress: Progress | None = None) -> bool:
        """Rewrite into as few segments as possible, without what is deleted. False: nothing to gain."""
        groups: list[list[Part]] = []
        size = MAX_ROWS + 1
        for part in before.parts:
            size += part.entry.live
            if size > MAX_ROWS:
                groups.append([])
                size = part.entry.live
            groups[-1].append(part)
        if all(len(group) == 1 and not group[0].entry.deleted for group in groups):
            return False
        done, total = 0, before.keywords
        with self._change(before) as change:
            for group in groups:
                if len(group) == 1 and not group[0].entry.deleted:
                    change.keep([_Kept(group[0], None, group[0].entry.live)])
                else:
                    change.write([part.source() for part in group])
                done += sum(part.entry.live for part in group)
                if progress is not None:
                    progress(done, total)
            change.commit()
        return True

    def clean(self, current: Snapshot) -> None:
        """Remove what the current state does not name: left by writers that were stopped, or superseded."""
        disk.sync_directory(self.directory)  # the current state must be the one that a power cut would leave
        self._remove_others(current.manifest.files)

    def _remove_others(self, files: set[str]) -> None:
        for path in sorted(self.directory.iterdir()):
            ours = SEGMENT_NAME.fullmatch(path.name) or DELETES_NAME.fullmatch(path.name) or path.name == NEW
            if ours and path.name not in files:
                # one that stays wastes space and harms nothing; the next writer tries again
                with contextlib.suppress(OSError):
                    disk.unlink(path)

    @contextlib.contextmanager
    def _change(self, before: Snapshot) -> Iterator[_Change]:
        self._lock.check(self.directory)
        change = _Change(self.directory, before)
        with disk.explained("write to", self.directory):
            try:
                yield change
            except BaseException:
                change.undo()
                raise
            self._remove_others(change.files)


class _Change:
    """The next state in the making."""

    def __init__(self, directory: Path, before: Snapshot) -> None:
        self._directory = directory
        self._snapshot = before
        self._before = before.manifest
        self._entries: list[Entry] = []
        self._touched: dict[str, tuple[masks.Mask, int]] = {}
        self._next_file = self._before.next_file
        self._created: list[Path] = []
        self.files: set[str] = set()

    def keep(self, parts: Sequence[_Kept]) -> None:
        """Parts that stay as they are, but for deletes."""
        for part, dead, live in parts:
            entry = part.entry
            if dead is not None:
                self._touched[entry.file] = (dead, entry.count)
                entry = replace(entry, deleted=entry.count - live)
            self._entries.append(entry)

    def write(self, sources: Sequence[Source]) -> None:
        """A new segment made of these sources."""
        path = self._new("segment-{:08d}.rbs")
        made = write_segment(path, sources, self._before.shape)
        self._entries.append(Entry(path.name, made.stamp, made.count, made.first_row, made.last_row, None, 0))

    def commit(self, **changes: Any) -> None:
        """Make it the current state; durable when this returns."""
        deletes = dict(self._before.deletes)
        if self._touched:
            path = self._new("deletes-{:08d}.rbd")
            deletes[path.name] = write_deletes(path, self._touched)
            self._entries = [
                replace(e, deletes=path.name) if e.file in self._touched else e for e in self._entries
            ]
        after = self._before.follow(
            segments=tuple(self._entries), deletes=deletes, next_file=self._next_file, **changes
        )
        self._snapshot.check_mapped()  # what was copied from it would be good for ever after
        self._created.append(self._directory / NEW)
        prepare(self._directory, after)
        self._created.clear()  # from here on they may be part of the index
        commit(self._directory)
        self.files = after.files

    def undo(self) -> None:
        """Remove the files of a change that failed before it was made."""
        for path in self._created:
            # not created yet, or the disk is gone: the next writer removes it
            with contextlib.suppress(OSError):
                disk.unlink(path)

    def _new(self, form: str) -> Path:
        path = self._directory / form.format(self._next_file)
        self._next_file += 1
        self._created.append(path)
        return path


def tail_to_merge(sizes: Sequence[int], new: int) -> int:
    """How many of the last segments, by their sizes, an add of `new` rows should take in."""
    taken, total = 0, new
    while True:
        more = 0
        for size in reversed(sizes[: len(sizes) - taken]):
            if _tier(size) > _tier(total):
                break
            more += 1
        grown = total + sum(sizes[len(sizes) - taken - more : len(sizes) - taken])
        if more < FAN - 1 or grown > MERGE_ROWS:
            return taken
        taken, total = taken + more, grown


def _tier(size: int) -> int:
    tier = 0
    while size > TIER_ROWS * FAN**tier:
        tier += 1
    return tier


def _without(before: Snapshot, gone: Place) -> list[_Kept]:
    """The parts less the keywords at these places; parts with nothing left are dropped."""
    kept: list[_Kept] = []
    for number, part in enumerate(before.parts):
        here = gone.position[gone.part == number]
        if not here.size:
            kept.append(_Kept(part, None, part.entry.live))
            continue
        dead = part.dead() | masks.from_positions(here, part.entry.count)
        live = part.entry.count - masks.size(dead)
        if live:
            kept.append(_Kept(part, dead, live))
    return kept
