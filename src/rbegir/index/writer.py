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

*One writer at a time.* From its first change until the index is closed, a writer holds an advisory lock on
the file LOCK, which names the holder. The kernel releases the lock however the process ends, so locks never
become stale. A forked child gives up its copy of the lock, so that the lock does not outlive the writer.
Readers ignore the lock. The path of an index may come to name another one (a link is changed, a directory is
moved), so links are resolved when the lock is taken, and a change is refused unless LOCK is still the file
that the writer has locked.
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
from typing import Any

import numpy as np

from rbegir.base import disk, masks
from rbegir.base.freeing import OldFiles
from rbegir.errors import FileError, InputError, LockedError
from rbegir.index.columns import Int64s
from rbegir.index.format import Stamp, Turn
from rbegir.index.manifest import DELETES_NAME, NEW, SEGMENT_NAME, UNNAMED, commit, prepare
from rbegir.index.segment import MAX_ROWS, Entry, KeywordRows, LiveRows, Segment, write_segment
from rbegir.index.snapshot import LiveSegment, Snapshot, write_deletes

LOCK = "LOCK"
OWN = SEGMENT_NAME, DELETES_NAME, UNNAMED  # names of files that a writer makes and removes
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
        since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        note = json.dumps({"pid": self._owner, "host": socket.gethostname(), "since": since}).encode()
        with disk.explained("lock", path):
            try:
                self._descriptor = disk.open_locked(path, wait=False)
            except BlockingIOError as error:
                raise LockedError(
                    f"{directory} is being written by {_holder(path)}",
                    hint="wait until it is done, or stop it; reading is possible meanwhile",
                ) from error
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, note, 0)

    def holds(self, directory: Path) -> bool:
        """Whether this is the lock of the index that is at `directory` now."""
        try:
            return os.path.samestat(os.fstat(self._descriptor), os.stat(directory / LOCK))
        except OSError:  # nothing is there any more
            return False

    def check(self, directory: Path) -> None:
        """Refuse to write in a forked child of the process that holds the lock, or to another index."""
        if os.getpid() != self._owner:
            raise LockedError(
                f"{directory} is being written by process {self._owner}, from which this one was forked",
                hint="open the index again in this process to read it; write from one process only",
            )
        if not self.holds(directory):
            raise FileError(
                f"{directory} is no longer the index that this process has locked: it was replaced or moved",
                hint="open the index again; this change was not made",
            )

    def __enter__(self) -> WriterLock:
        return self

    def __exit__(self, *raised: object) -> None:
        self.release()

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


class Writer:
    """The one writer of a directory. A change takes the current state, writes the next one and returns it."""

    def __init__(self, directory: Path) -> None:
        self.directory = Path(os.path.realpath(directory))
        self._lock = WriterLock(self.directory)
        self._compaction: Compaction | None = None  # the one that is running
        self._rewritten_rows = 0  # it rewrites the rows below this

    def close(self) -> None:
        self._lock.release()

    def check(self, path: Path) -> None:
        """Raise unless `path` names the index that this writer has locked."""
        self._lock.check(path)

    def add(self, before: Snapshot, rows: KeywordRows, replaced: Int64s) -> Snapshot:
        """Add rows and delete the ones that they replace, in one change."""
        kept = _without(before, replaced)
        free = [one.entry.live for one in kept if one.entry.first_row >= self._rewritten_rows]
        taken = tail_to_merge(free, rows.count)
        merged = [one.rows() for one in kept[len(kept) - taken :]]
        groups = [[*merged, LiveRows(rows, None)]]
        if rows.count > MAX_ROWS:  # then no neighbour is merged
            every = np.arange(rows.count)
            parts = [every[start : start + MAX_ROWS] for start in range(0, rows.count, MAX_ROWS)]
            groups = [[LiveRows(rows, masks.from_positions(part, rows.count))] for part in parts]
        with self._change(before) as change:
            for one in kept[: len(kept) - taken]:
                change.keep(one.entry, one.unwritten)
            for group in groups:
                change.write(group)
            types = {name: str(dtype) for name, dtype in rows.types.items() if name != "text"}
            columns = {**before.manifest.columns, **types}
            next_row = rows.first_row + rows.count
            return change.commit(next_row=next_row, columns=columns, id_type=rows.id_type)

    def delete(self, before: Snapshot, positions: Int64s) -> Snapshot:
        """Delete the keywords at these positions."""
        with self._change(before) as change:
            for one in _without(before, positions):
                change.keep(one.entry, one.unwritten)
            return change.commit()

    @contextlib.contextmanager
    def compacting(self, before: Snapshot) -> Iterator[Compaction]:
        """Yield a compaction of this state, to be finished by `swap`; its temporary files are removed."""
        self._lock.check(self.directory)
        if self._compaction is not None:
            raise InputError(
                "compact was called by the progress function of a compaction", hint="call it afterwards"
            )
        self._compaction, self._rewritten_rows = Compaction(self.directory, before), before.manifest.next_row
        del before  # so that `forget` frees it
        try:
            yield self._compaction
        finally:
            self._compaction.close()
            self._compaction, self._rewritten_rows = None, 0

    def swap(self, compaction: Compaction, before: Snapshot) -> Snapshot:
        """Replace the segments that a compaction has rewritten by its new ones."""
        if self._compaction is not compaction:
            raise LockedError(
                f"{self.directory} was not compacted: a change failed meanwhile and released the lock",
                hint="compact it again; no change is lost",
            )
        with self._change(before) as change:
            return compaction.swap(change, before)

    def clean(self, current: Snapshot) -> None:
        """Remove files that the current state does not name: superseded, or left by interrupted writers."""
        disk.sync_directory(self.directory)  # so that a power cut would leave the current state
        self._remove_others(current.manifest.files)

    def _remove_others(self, files: Collection[str]) -> None:
        compacted = {path.name for path in self._compaction.temporary} if self._compaction else set()
        # segments before deletes, without which deleted keywords would look live to salvage
        for path in sorted(self.directory.iterdir(), reverse=True):
            ours = path.name == NEW or any(form.fullmatch(path.name) for form in OWN)
            if ours and path.name not in files and path.name not in compacted:
                _remove([path])

    @contextlib.contextmanager
    def _change(self, before: Snapshot) -> Iterator[_Change]:
        self._lock.check(self.directory)
        change = _Change(self.directory, before, self._lock)
        with disk.explained("write to", self.directory):
            try:
                yield change
            except BaseException:
                if self._lock.holds(self.directory):  # another index may have files of the same names
                    _remove(change.uncommitted)
                raise
            if self._lock.holds(self.directory):
                self._remove_others(change.files)


class _Change:
    """The next state while it is being written."""

    def __init__(self, directory: Path, before: Snapshot, lock: WriterLock) -> None:
        self._directory = directory
        self._lock = lock
        self._snapshot = before
        self._before = before.manifest
        self._entries: list[Entry] = []
        self._touched: dict[str, tuple[masks.Mask, int]] = {}
        self._next_file = self._before.next_file
        self._renames: list[tuple[Path, Path]] = []
        self.uncommitted: list[Path] = []  # files to remove if the change fails
        self.files: Collection[str] = ()  # of the new state

    def keep(self, entry: Entry, dead: masks.Mask | None = None) -> None:
        """Keep a segment; `dead` has all its deleted positions if the change deletes any."""
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
        """Keep a segment that has a temporary name; `commit` renames it to its number."""
        path = self._new("segment-{:08d}.rbs")
        self._renames.append((self._directory / made.file, path))
        self.keep(replace(made, file=path.name), dead)

    def commit(self, **changes: Any) -> Snapshot:
        """Make this the current state, and return it; durable on return.

        It is opened before it is committed, so that nothing is acknowledged that a reader would refuse.
        """
        deletes = dict(self._before.deletes)
        if self._touched:
            path = self._new("deletes-{:08d}.rbd")
            deletes[path.name] = write_deletes(path, self._touched)
            self._entries = [
                replace(e, deletes=path.name) if e.file in self._touched else e for e in self._entries
            ]
        if self._renames:
            disk.sync_directory(self._directory)  # deletes are on disk before their segment is numbered
        for old, new in self._renames:
            disk.rename(old, new)
        after = self._before.follow(
            segments=tuple(self._entries), deletes=deletes, next_file=self._next_file, **changes
        )
        self._snapshot.check_mapped()  # zeros read from a missing page must not become permanent
        self.uncommitted.append(self._directory / NEW)
        prepare(self._directory, after)
        try:
            opened = Snapshot(self._directory, after, self._snapshot)
        finally:  # the first question, as writing may have taken long: is it still the same index?
            self._lock.check(self._directory)
        self.uncommitted.clear()  # from here on the files may be part of the index
        commit(self._directory)
        self.files = after.files
        return opened

    def _new(self, form: str) -> Path:
        path = self._directory / form.format(self._next_file)
        self._next_file += 1
        self.uncommitted.append(path)
        return path


class Compaction:
    """New segments with the live keywords of one state, written while changes make later states."""

    def __init__(self, directory: Path, before: Snapshot) -> None:
        self._directory = directory
        self._before = before
        self.temporary: list[Path] = []  # files to remove in the end
        self._old: OldFiles | None = None
        self._groups: list[tuple[list[LiveSegment], Entry | None]] = []  # None: the one segment stays
        self._empty: set[str] = set()  # columns to drop
        self._gone: dict[tuple[str, str | None], Int64s] = {}  # what `_deleted_since` has found
        self._words: dict[Stamp, Any] = {}  # of new segments: what becomes their `known_words`

    def write(self, turn: Turn, progress: Progress | None = None) -> bool:
        """Rewrite the live keywords into as few segments as possible; False if nothing would change.

        Columns in which no live keyword has a value are left out. `turn` is that of `FileWriter`.
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
                made = None
                if not stays(group):
                    path = self._directory / f"unnamed-{os.urandom(8).hex()}.rbs"
                    self.temporary.append(path)
                    rows = [one.rows() for one in group]
                    shape, tenant = before.manifest.shape, before.manifest.tenant
                    made = write_segment(path, rows, shape, tenant, empty, turn)
                    self._find_words(path, made, [one.segment for one in group])
                self._groups.append((group, made))
                done += sum(segment.entry.live for segment in group)
                if progress is not None:
                    progress(done, total)
        before.check_mapped()  # zeros read from a missing page must not become permanent
        self._empty = empty
        rewritten = [one.entry for group, made in self._groups if made is not None for one in group]
        self._old = OldFiles(self._directory, ((entry.file, entry.stamp.bytes) for entry in rewritten))
        return True

    def close(self) -> None:
        _remove(self.temporary)
        if self._old is not None:
            self._old.close()

    def _find_words(self, path: Path, made: Entry, old: Sequence[Segment]) -> None:
        """Find the words of a new segment if searches use those of the old ones, which would otherwise wait
        for them after the swap."""
        known = next((one.known_words for one in old if one.known_words is not None), None)
        if known is not None:
            new = Segment(path, self._before.manifest.shape, made.stamp)
            new.words(known[0])
            new.file.check_mapped()
            self._words[made.stamp] = new.known_words

    def find_deleted(self, current: Snapshot) -> None:
        """Find what was deleted until now, so that little is left to find while changes wait for the swap."""
        later = {one.entry.file: one for one in current.segments}
        for group, _ in self._groups:
            for one in group:
                self._deleted_since(one, later.get(one.entry.file))

    def forget(self) -> None:
        """Give up the old segments after the swap and free them little by little, so that no change waits
        long for the disk (`rbegir.base.freeing`)."""
        assert self._old is not None
        del self._before
        while self._groups:
            group, made = self._groups.pop()
            while group:
                entry = group.pop().entry  # and let the segment go
                if made is not None:
                    self._old.free(entry.file, entry.stamp.bytes)

    def swap(self, change: _Change, current: Snapshot) -> Snapshot:
        """Replace the rewritten segments in a later state; its deletes and new segments are kept."""
        later = {one.entry.file: one for one in current.segments}
        for group, made in self._groups:
            now = [later.pop(one.entry.file, None) for one in group]
            if made is None:
                for one in filter(None, now):
                    change.keep(one.entry)
                continue
            dead = self._carried_over(group, now, made.count)
            if masks.size(dead) < made.count:
                change.number(made, dead if dead.any() else None)
        for one in later.values():
            change.keep(one.entry)
        used = {name for one in later.values() for name in one.segment.types}
        dropped, columns = self._empty - used, current.manifest.columns.items()
        after = change.commit(columns={name: kind for name, kind in columns if name not in dropped})
        for one in after.segments:
            one.segment.known_words = self._words.get(one.entry.stamp, one.segment.known_words)
        return after

    def _carried_over(
        self, old: Sequence[LiveSegment], now: Sequence[LiveSegment | None], count: int
    ) -> masks.Mask:
        """The positions, in a rewritten segment, of keywords that were live in `old` and are deleted now."""
        starts = np.cumsum([0, *(one.entry.live for one in old)])
        gone = [
            start + self._deleted_since(before, after)
            for start, before, after in zip(starts, old, now, strict=False)
        ]
        return masks.from_positions(np.concatenate(gone), count)

    def _deleted_since(self, before: LiveSegment, after: LiveSegment | None) -> Int64s:
        """The live keywords of a segment that were deleted since, counted among the live ones.

        `after` is None if the segment has no live keyword left.
        """
        if after is None:
            return np.arange(before.entry.live)
        if after.entry.deleted == before.entry.deleted:
            return np.zeros(0, np.int64)
        key = before.entry.file, after.entry.deletes
        if key not in self._gone:
            size = before.entry.count
            live = masks.complement(before.dead(), size)
            self._gone[key] = masks.ranks(live, masks.to_positions(live & after.dead(), size))
        return self._gone[key]


def _remove(paths: Iterable[Path]) -> None:
    for path in paths:
        # missing, or the disk failed: a leftover file only wastes space, and the next writer tries again
        with contextlib.suppress(OSError):
            disk.unlink(path)


def tail_to_merge(sizes: Sequence[int], new: int) -> int:
    """The number of segments at the end, of these sizes, that an add of `new` rows should merge."""
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


def _without(before: Snapshot, gone: Int64s) -> list[LiveSegment]:
    """The segments without the keywords at these positions; segments with no live keyword are dropped."""
    kept = list(before.segments)
    for number, _, at in before.by_segment(gone):
        kept[number] = kept[number].without(at)
    return [one for one in kept if one.entry.live]


def _holder(path: Path) -> str:
    """Who holds the lock, for an error message; the lock works even if the note is unreadable."""
    try:
        note = json.loads(disk.read_small(path, 4096))
        return f"process {int(note['pid'])} on {note['host']} since {note['since']}"
    except (FileError, ValueError, KeyError, TypeError):
        return "another process"
