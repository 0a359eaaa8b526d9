"""Changes to an index: each writes a few files and a new manifest, and is applied entirely or not at all.

    add      new rows → a segment · rows that they replace → a delete file · manifest
    delete   a delete file · manifest
    compact  all live rows → new segments without columns that became empty · later deletes of them → a delete
             file · manifest

The order of a change makes it safe: new files and their names are on disk before the manifest that names them
replaces the old one, and old files are removed only after the new manifest is on disk.

*Merging.* Small adds would leave thousands of small segments, so an add also merges its smaller neighbours.
Sizes fall into tiers, each eight times the one below; when the tail of the index would hold eight segments
of the new segment's tier or lower, they are written as one, up to MERGE_ROWS. A row is thus rewritten a few
times per tier, and an index of N rows has about N / MERGE_ROWS + 8·log₈(MERGE_ROWS / TIER_ROWS) segments.
Only neighbours are merged, because the rows of segments must not interleave. Deleted rows are left out
whenever their segment is rewritten; a segment with no live row is dropped.

*Compaction.* The live rows of one state are rewritten while changes go on. The new segments have temporary
names until the swap, a short change like any other: rows that were deleted since are deleted in the new
segments too, segments that were added since stay behind them, and then the new segments get their numbers.
Until the swap no add merges a segment that is being rewritten. A numbered segment is newer than all others
with its rows (`salvage.py` relies on that), so its delete file is on disk before it gets its number.

*One writer at a time.* A writer holds an advisory lock on the file LOCK, which names the holder, from its
first change until the index is closed. The kernel releases the lock however the process ends, so there are
no stale locks to break. A forked child gives up its copy of the lock, so that it does not outlive the writer.
Readers never look at it.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rbegir.base import disk, masks
from rbegir.errors import InputError, LockedError
from rbegir.index.manifest import DELETES_NAME, NEW, SEGMENT_NAME, UNNAMED, commit, prepare
from rbegir.index.segment import MAX_ROWS, Entry, KeywordRows, LiveRows, write_segment
from rbegir.index.snapshot import LiveSegment, Positions, Snapshot, write_deletes

LOCK = "LOCK"
FAN = 8
TIER_ROWS = 1024  # the lowest tier: segments up to this size
MERGE_ROWS = 1 << 22  # an add never rewrites more than this

Progress = Callable[[int, int], None]  # rows written so far, rows to write


class WriterLock:
    """The lock, held from construction until `release`. A forked child does not own it."""

    _close = staticmethod(os.close)  # module globals may be gone when the interpreter exits

    def __init__(self, directory: Path) -> None:
        path = directory / LOCK
        self._descriptor = -1
        self._owner = os.getpid()
        _held.add(self)
        with disk.explained("lock", path):
            while not self._acquired(path):  # the index was replaced in between: this was the old one's lock
                self.release()
        since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        note = json.dumps({"pid": self._owner, "host": socket.gethostname(), "since": since}).encode()
        with disk.explained("lock", path):
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, note, 0)

    def _acquired(self, path: Path) -> bool:
        """Lock the file at `path`; False if another file has its path by then."""
        self._descriptor = disk.open_lock(path)
        try:
            disk.lock(self._descriptor, wait=False)
        except BlockingIOError as error:
            holder = _holder(self._descriptor)
            self.release()
            raise LockedError(
                f"{path.parent} is being written by {holder}",
                hint="wait until it is done, or stop it; reading is possible meanwhile",
            ) from error
        return os.path.samestat(os.fstat(self._descriptor), os.stat(path))

    def check(self, directory: Path) -> None:
        """Refuse to write in a child process that inherited the lock by fork."""
        if os.getpid() != self._owner:
            raise LockedError(
                f"{directory} is being written by process {self._owner}, from which this one was forked",
                hint="open the index again in this process to read it; write from one process only",
            )

    def release(self) -> None:
        """Release the lock; also done when the object is garbage-collected."""
        if self._descriptor >= 0:
            self._close(self._descriptor)
            self._descriptor = -1

    __del__ = release


_held: weakref.WeakSet[WriterLock] = weakref.WeakSet()


def _release_inherited() -> None:
    """Close a forked child's copies of the locks; those of its parent stay."""
    for lock in list(_held):
        lock.release()


os.register_at_fork(after_in_child=_release_inherited)


class _Kept(NamedTuple):
    """A segment of the old state that the new one keeps or merges."""

    segment: LiveSegment
    dead: masks.Mask | None  # all deleted positions if the change deletes any, else None
    live: int

    def rows(self) -> LiveRows:
        if self.dead is None:
            return self.segment.rows()
        return LiveRows(self.segment.segment, masks.complement(self.dead, self.segment.entry.count))


class Writer:
    """The one writer of a directory. Every method takes the current state and writes the next one."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._lock = WriterLock(directory)
        self._compaction: Compaction | None = None  # the one that is running
        self._rewritten_rows = 0  # it rewrites the rows below this

    def close(self) -> None:
        self._lock.release()

    def add(
        self,
        before: Snapshot,
        rows: KeywordRows,
        replaced: Positions,
        columns: dict[str, str],
        id_type: str,
    ) -> None:
        """Add rows and delete the ones that they replace, in one change."""
        kept = _without(before, replaced)
        free = [k.live for k in kept if k.segment.entry.first_row >= self._rewritten_rows]
        taken = tail_to_merge(free, rows.count)
        merged = [k.rows() for k in kept[len(kept) - taken :]]
        groups = [[*merged, LiveRows(rows, None)]]
        if rows.count > MAX_ROWS:  # then no neighbour is merged
            starts = range(0, rows.count, MAX_ROWS)
            groups = [[LiveRows(rows.slice(at, min(at + MAX_ROWS, rows.count)), None)] for at in starts]
        with self._change(before) as change:
            for one in kept[: len(kept) - taken]:
                change.keep(one.segment.entry, one.dead)
            for group in groups:
                change.write(group)
            change.commit(next_row=rows.first_row + rows.count, columns=columns, id_type=id_type)

    def delete(self, before: Snapshot, places: Positions) -> None:
        """Delete the keywords at these positions."""
        with self._change(before) as change:
            for one in _without(before, places):
                change.keep(one.segment.entry, one.dead)
            change.commit()

    @contextlib.contextmanager
    def compacting(self, before: Snapshot) -> Iterator[Compaction]:
        """A compaction of this state, which leaves no temporary files behind; see `swap`."""
        self._lock.check(self.directory)
        if self._compaction is not None:
            raise InputError(
                "compact was called by the progress function of a compaction", hint="call it afterwards"
            )
        self._compaction, self._rewritten_rows = Compaction(self.directory, before), before.manifest.next_row
        try:
            yield self._compaction
        finally:
            self._compaction.clean()
            self._compaction, self._rewritten_rows = None, 0

    def swap(self, compaction: Compaction, before: Snapshot) -> None:
        """Put the segments of a compaction in the place of the ones that it has rewritten."""
        if self._compaction is not compaction:
            raise LockedError(
                f"{self.directory} was not compacted: a change failed meanwhile and released the lock",
                hint="compact it again; no change is lost",
            )
        with self._change(before) as change:
            compaction.swap(change, before)

    def clean(self, current: Snapshot) -> None:
        """Remove files that the current state does not name: superseded, or left by interrupted writers."""
        disk.sync_directory(self.directory)  # so that a power cut would leave the current state
        self._remove_others(current.manifest.files)
        _remove(path for path in self.directory.iterdir() if UNNAMED.fullmatch(path.name))

    def _remove_others(self, files: set[str]) -> None:
        # segments before deletes, without which deleted keywords would look live to salvage
        for path in sorted(self.directory.iterdir(), reverse=True):
            ours = SEGMENT_NAME.fullmatch(path.name) or DELETES_NAME.fullmatch(path.name) or path.name == NEW
            if ours and path.name not in files:
                _remove([path])

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
    """The next state while it is being written."""

    def __init__(self, directory: Path, before: Snapshot) -> None:
        self._directory = directory
        self._snapshot = before
        self._before = before.manifest
        self._entries: list[Entry] = []
        self._touched: dict[str, tuple[masks.Mask, int]] = {}
        self._next_file = self._before.next_file
        self._created: list[Path] = []
        self._renames: list[tuple[Path, Path]] = []
        self.files: set[str] = set()

    def keep(self, entry: Entry, dead: masks.Mask | None = None) -> None:
        """Keep a segment as it is, except for new deletes: all its deleted positions if there are any."""
        if dead is not None:
            self._touched[entry.file] = (dead, entry.count)
            entry = replace(entry, deleted=masks.size(dead))
        self._entries.append(entry)

    def write(self, rows: Sequence[LiveRows]) -> None:
        """Write a new segment."""
        self._entries.append(
            write_segment(self._new("segment-{:08d}.rbs"), rows, self._before.shape, self._before.tenant)
        )

    def number(self, made: Entry, dead: masks.Mask | None) -> None:
        """Keep a segment that has a temporary name; it gets its number in `commit`."""
        path = self._new("segment-{:08d}.rbs")
        self._renames.append((self._directory / made.file, path))
        self.keep(replace(made, file=path.name), dead)

    def commit(self, **changes: Any) -> None:
        """Make this the current state; durable on return."""
        deletes = dict(self._before.deletes)
        if self._touched:
            path = self._new("deletes-{:08d}.rbd")
            deletes[path.name] = write_deletes(path, self._touched)
            self._entries = [
                replace(e, deletes=path.name) if e.file in self._touched else e for e in self._entries
            ]
        if self._renames:
            disk.sync_directory(self._directory)  # a segment is numbered after its deletes are on disk
        for old, new in self._renames:
            disk.rename(old, new)
        after = self._before.follow(
            segments=tuple(self._entries), deletes=deletes, next_file=self._next_file, **changes
        )
        self._snapshot.check_mapped()  # zeros read from a missing page must not become permanent
        self._created.append(self._directory / NEW)
        prepare(self._directory, after)
        self._created.clear()  # from here on the files may be part of the index
        commit(self._directory)
        self.files = after.files

    def undo(self) -> None:
        """Remove the files of a change that failed before its commit."""
        _remove(self._created)

    def _new(self, form: str) -> Path:
        path = self._directory / form.format(self._next_file)
        self._next_file += 1
        self._created.append(path)
        return path


class Compaction:
    """New segments with the live keywords of one state, written while changes make later states."""

    def __init__(self, directory: Path, before: Snapshot) -> None:
        self._directory = directory
        self._before = before
        self._created: list[Path] = []
        self._groups: list[tuple[list[LiveSegment], Entry | None]] = []  # None: the one segment stays
        self._empty: set[str] = set()  # columns to drop

    def write(self, progress: Progress | None = None) -> bool:
        """Rewrite the live keywords into as few segments as possible; False if nothing would change.

        Columns in which no live keyword has a value are left out.
        """
        before, columns = self._before, self._before.manifest.columns
        empty = {name for name in columns if not any(one.rows().has_values(name) for one in before.segments)}
        groups: list[list[LiveSegment]] = []
        size = MAX_ROWS + 1
        for segment in before.segments:
            size += segment.entry.live
            if size > MAX_ROWS:
                groups.append([])
                size = segment.entry.live
            groups[-1].append(segment)

        def stays(group: list[LiveSegment]) -> bool:
            first = group[0]
            return len(group) == 1 and not first.entry.deleted and not empty & first.segment.types.keys()

        if not empty and all(map(stays, groups)):
            return False
        done, total = 0, before.keywords
        with disk.explained("write to", self._directory):
            for group in groups:
                self._groups.append((group, None if stays(group) else self._rewritten(group, empty)))
                done += sum(segment.entry.live for segment in group)
                if progress is not None:
                    progress(done, total)
        before.check_mapped()  # zeros read from a missing page must not become permanent
        self._empty = empty
        return True

    def _rewritten(self, group: list[LiveSegment], without: Collection[str]) -> Entry:
        path = self._directory / f"unnamed-{os.urandom(8).hex()}.rbs"
        self._created.append(path)
        manifest = self._before.manifest
        return write_segment(path, [one.rows() for one in group], manifest.shape, manifest.tenant, without)

    def swap(self, change: _Change, current: Snapshot) -> None:
        """Change a later state: the new segments, without what it has deleted, and what it has added."""
        later = {one.entry.file: one for one in current.segments}
        for group, made in self._groups:
            now = [later.pop(one.entry.file, None) for one in group]
            if made is None:
                for one in filter(None, now):
                    change.keep(one.entry)
                continue
            dead = _carried_over(group, now, made.count)
            if masks.size(dead) < made.count:
                change.number(made, dead if dead.any() else None)
        for one in later.values():
            change.keep(one.entry)
        used = {name for one in later.values() for name in one.segment.types}
        columns = current.manifest.columns.items()
        change.commit(columns={name: kind for name, kind in columns if name not in self._empty - used})

    def clean(self) -> None:
        """Remove temporary files."""
        _remove(self._created)


def _carried_over(old: Sequence[LiveSegment], now: Sequence[LiveSegment | None], count: int) -> masks.Mask:
    """The positions in a rewritten segment of keywords that were live in `old` and are deleted now.

    A segment that is None now has no live keyword any more.
    """
    gone = [np.zeros(0, np.int64)]
    start = 0  # of the old segment's keywords in the new segment
    for before, after in zip(old, now, strict=True):
        if after is None or after.entry.deleted > before.entry.deleted:
            size = before.entry.count
            live = masks.complement(before.dead(), size)
            deleted = live if after is None else live & after.dead()
            gone.append(start + masks.ranks(live, masks.to_positions(deleted, size)))
        start += before.entry.live
    return masks.from_positions(np.concatenate(gone), count)


def _remove(paths: Iterable[Path]) -> None:
    for path in paths:
        # not there, or the disk failed: a file that stays only wastes space, and the next writer tries again
        with contextlib.suppress(OSError):
            disk.unlink(path)


def tail_to_merge(sizes: Sequence[int], new: int) -> int:
    """How many of the last segments, given their sizes, an add of `new` rows should merge."""
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


def _without(before: Snapshot, gone: Positions) -> list[_Kept]:
    """The segments without the keywords at these positions; segments with no live keyword are dropped."""
    kept: list[_Kept] = []
    for number, segment in enumerate(before.segments):
        here = gone.position[gone.segment == number]
        if not here.size:
            kept.append(_Kept(segment, None, segment.entry.live))
            continue
        dead = segment.dead() | masks.from_positions(here, segment.entry.count)
        live = segment.entry.count - masks.size(dead)
        if live:
            kept.append(_Kept(segment, dead, live))
    return kept


def _holder(descriptor: int) -> str:
    """Who holds the lock, for people to read; the lock works even if the note is unreadable."""
    try:
        note = json.loads(os.pread(descriptor, 4096, 0))
        return f"process {int(note['pid'])} on {note['host']} since {note['since']}"
    except (ValueError, KeyError, TypeError):
        return "another process"
