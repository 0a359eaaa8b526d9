"""Changes to an index: each writes a few files and a new manifest, and is applied entirely or not at all.

    add      new rows → a segment · rows that they replace → a delete file · manifest
    delete   a delete file · manifest
    compact  all live rows → new segments without columns that became empty · manifest

The order of a change makes it safe: new files and their names are on disk before the manifest that names them
replaces the old one, and old files are removed only after the new manifest is on disk.

*Merging.* Small adds would leave thousands of small segments, so an add also merges its smaller neighbours.
Sizes fall into tiers, each eight times the one below; when the tail of the index would hold eight segments
of the new segment's tier or lower, they are written as one, up to MERGE_ROWS. A row is thus rewritten a few
times per tier, and an index of N rows has about N / MERGE_ROWS + 8·log₈(MERGE_ROWS / TIER_ROWS) segments.
Only neighbours are merged, because the rows of segments must not interleave. Deleted rows are left out
whenever their segment is rewritten; a segment with no live row is dropped.

*One writer at a time.* A writer holds an advisory lock on the file LOCK, which names the holder, from its
first change until the index is closed. The kernel releases the lock however the process ends, so there are
no stale locks to break. A forked child gives up its copy of the lock, so that it does not outlive the writer.
Readers never look at it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import time
import weakref
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from rbegir.base import disk, masks
from rbegir.errors import LockedError
from rbegir.index.manifest import DELETES_NAME, NEW, SEGMENT_NAME, commit, prepare
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
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
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
        taken = tail_to_merge([k.live for k in kept], rows.count)
        merged = [k.rows() for k in kept[len(kept) - taken :]]
        groups = [[*merged, LiveRows(rows, None)]]
        if rows.count > MAX_ROWS:  # then no neighbour is merged
            starts = range(0, rows.count, MAX_ROWS)
            groups = [[LiveRows(rows.slice(at, min(at + MAX_ROWS, rows.count)), None)] for at in starts]
        with self._change(before) as change:
            change.keep(kept[: len(kept) - taken])
            for group in groups:
                change.write(group)
            change.commit(next_row=rows.first_row + rows.count, columns=columns, id_type=id_type)

    def delete(self, before: Snapshot, places: Positions) -> None:
        """Delete the keywords at these positions."""
        with self._change(before) as change:
            change.keep(_without(before, places))
            change.commit()

    def compact(self, before: Snapshot, progress: Progress | None = None) -> bool:
        """Rewrite the live keywords into as few segments as possible; False if nothing would change.

        Columns in which no live keyword has a value are dropped.
        """
        columns = before.manifest.columns
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
        with self._change(before) as change:
            for group in groups:
                if stays(group):
                    change.keep([_Kept(group[0], None, group[0].entry.live)])
                else:
                    change.write([segment.rows() for segment in group], empty)
                done += sum(segment.entry.live for segment in group)
                if progress is not None:
                    progress(done, total)
            change.commit(columns={name: kind for name, kind in columns.items() if name not in empty})
        return True

    def clean(self, current: Snapshot) -> None:
        """Remove files that the current state does not name: superseded, or left by interrupted writers."""
        disk.sync_directory(self.directory)  # so that a power cut would leave the current state
        self._remove_others(current.manifest.files)

    def _remove_others(self, files: set[str]) -> None:
        for path in sorted(self.directory.iterdir()):
            ours = SEGMENT_NAME.fullmatch(path.name) or DELETES_NAME.fullmatch(path.name) or path.name == NEW
            if ours and path.name not in files:
                # a file that stays only wastes space; the next writer tries again
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
    """The next state while it is being written."""

    def __init__(self, directory: Path, before: Snapshot) -> None:
        self._directory = directory
        self._snapshot = before
        self._before = before.manifest
        self._entries: list[Entry] = []
        self._touched: dict[str, tuple[masks.Mask, int]] = {}
        self._next_file = self._before.next_file
        self._created: list[Path] = []
        self.files: set[str] = set()

    def keep(self, segments: Sequence[_Kept]) -> None:
        """Keep segments as they are, except for new deletes."""
        for segment, dead, live in segments:
            entry = segment.entry
            if dead is not None:
                self._touched[entry.file] = (dead, entry.count)
                entry = replace(entry, deleted=entry.count - live)
            self._entries.append(entry)

    def write(self, rows: Sequence[LiveRows], without: Collection[str] = ()) -> None:
        """Write a new segment, without some columns."""
        path = self._new("segment-{:08d}.rbs")
        self._entries.append(write_segment(path, rows, self._before.shape, without))

    def commit(self, **changes: Any) -> None:
        """Make this the current state; durable on return."""
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
        self._snapshot.check_mapped()  # zeros read from a missing page must not become permanent
        self._created.append(self._directory / NEW)
        prepare(self._directory, after)
        self._created.clear()  # from here on the files may be part of the index
        commit(self._directory)
        self.files = after.files

    def undo(self) -> None:
        """Remove the files of a change that failed before its commit."""
        for path in self._created:
            # not created yet, or the disk failed: the next writer removes it
            with contextlib.suppress(OSError):
                disk.unlink(path)

    def _new(self, form: str) -> Path:
        path = self._directory / form.format(self._next_file)
        self._next_file += 1
        self._created.append(path)
        return path


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
