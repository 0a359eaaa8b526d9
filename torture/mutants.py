"""Faults put into the index on purpose, to show that a power cut finds them.

Each is one plausible mistake in the order or presence of a sync; `powerloss.attempt` must report a loss for
every one. A harness that passes the sound index proves something only if it fails these.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from rbegir.base import disk, masks
from rbegir.index import creation, format, manifest, segment, writer

Change = Callable[..., Any]
Fault = contextlib.AbstractContextManager[Any]  # while it is entered, the index has the fault


def _skip(file: int | Path) -> None:
    """What a forgotten sync does."""


def no_file_sync() -> Fault:
    """Files are never synced."""
    return mock.patch.object(disk, "sync", _skip)


def no_directory_sync() -> Fault:
    """Directories are never synced."""
    return mock.patch.object(disk, "sync_directory", _skip)


def _no_sync_of(*kinds: str) -> Fault:
    """Files whose name begins in one of these ways are not synced."""
    finish = format.FileWriter.finish

    def hasty(self: format.FileWriter, meta: dict[str, Any]) -> format.Stamp:
        with no_file_sync() if self.path.name.startswith(kinds) else contextlib.nullcontext():
            return finish(self, meta)

    return mock.patch.object(format.FileWriter, "finish", hasty)


def no_manifest_sync() -> Fault:
    return _no_sync_of("MANIFEST")


def no_segment_sync() -> Fault:
    return _no_sync_of("segment-")


def no_deletes_sync() -> Fault:
    return _no_sync_of("deletes-")


def no_last_sync() -> Fault:
    """A file that is synced piece by piece is not synced at its end."""
    finish = format.FileWriter.finish

    def hasty(self: format.FileWriter, meta: dict[str, Any]) -> format.Stamp:
        pieces = bool(self._sums)
        with no_file_sync() if pieces else contextlib.nullcontext():
            return finish(self, meta)

    return mock.patch.object(format.FileWriter, "finish", hasty)


@contextlib.contextmanager
def rename_before_sync() -> Iterator[None]:
    """The manifest gets its name first and is synced afterwards."""
    finish = format.FileWriter.finish

    def finish_renamed(self: format.FileWriter, meta: dict[str, Any]) -> format.Stamp:
        if self.path.name != manifest.NEW:
            return finish(self, meta)
        with no_file_sync():
            stamp = finish(self, meta)
        disk.sync_directory(self.path.parent)
        disk.rename(self.path, self.path.with_name(manifest.NAME))
        disk.sync(self._descriptor)
        return stamp

    with mock.patch.object(format.FileWriter, "finish", finish_renamed), _commit(disk.sync_directory):
        yield


@contextlib.contextmanager
def _commit(other: Change) -> Iterator[None]:
    with mock.patch.object(writer, "commit", other), mock.patch.object(creation, "commit", other):
        yield


def no_sync_after_rename() -> Fault:
    """A change is acknowledged before the name of its manifest is on disk."""
    return _commit(lambda directory: disk.rename(directory / manifest.NEW, directory / manifest.NAME))


def remove_then_rename() -> Fault:
    """The old manifest goes before the new one comes."""

    def commit(directory: Path) -> None:
        with contextlib.suppress(FileNotFoundError):
            disk.unlink(directory / manifest.NAME)
        manifest.commit(directory)

    return _commit(commit)


@contextlib.contextmanager
def no_sync_before_rename() -> Iterator[None]:
    """New segments may still be nameless when the manifest that names them takes over."""

    def prepare(directory: Path, after: manifest.Manifest) -> None:
        with no_directory_sync():
            manifest.prepare(directory, after)

    with mock.patch.object(writer, "prepare", prepare), mock.patch.object(creation, "prepare", prepare):
        yield


def remove_before_commit() -> Fault:
    """What the new state does not name is removed while the old one still holds."""

    def commit(directory: Path) -> None:
        after = manifest.parse(
            format.File(directory / manifest.NEW, format.FileKind.MANIFEST).meta, directory
        )
        for path in sorted(directory.iterdir()):
            if path.suffix in (".rbs", ".rbd") and path.name not in after.files:
                disk.unlink(path)
        manifest.commit(directory)

    return _commit(commit)


def clean_without_sync() -> Fault:
    """A writer that takes over tidies up although the state it found may not be on disk."""

    def clean(self: writer.Writer, current: Any) -> None:
        self._remove_others(current.manifest.files)

    return mock.patch.object(writer.Writer, "clean", clean)


def no_compacted_sync() -> Fault:
    """The segments of a compaction get their names unsynced."""
    return _no_sync_of("unnamed-")


def no_carried_deletes() -> Fault:
    """What is deleted while an index is compacted comes back with the new segments."""

    def nothing(compaction: Any, old: Any, now: Any, count: int) -> masks.Mask:
        return masks.empty(count)

    return mock.patch.object(writer.Compaction, "_carried_over", nothing)


def numbered_before_deletes() -> Fault:
    """A compacted segment may have its number while the deletes that it needs are not on disk."""
    commit = writer._Change.commit

    def hasty(self: writer._Change, **changes: Any) -> Any:
        for old, new in self._renames:
            disk.rename(old, new)
        self._renames.clear()
        return commit(self, **changes)

    return mock.patch.object(writer._Change, "commit", hasty)


@contextlib.contextmanager
def numbered_at_once() -> Iterator[None]:
    """A compacted segment has its number from the start, and seems newer than later deletes."""

    remove, early = writer._remove, "segment-00000100.rbs"

    def write(path: Path, *arguments: Any) -> Any:
        unnamed = manifest.UNNAMED.fullmatch(path.name)
        return segment.write_segment(path.with_name(early) if unnamed else path, *arguments)

    def remove_others(paths: Iterable[Path]) -> None:
        remove(path for path in paths if path.name != early)

    with (
        mock.patch.object(writer, "write_segment", write),
        mock.patch.object(writer, "_remove", remove_others),
    ):
        yield


def build_without_sync() -> Fault:
    """A build is acknowledged before the name of its directory is on disk."""
    give = creation._give_name

    def hasty(stage: Path, path: Path) -> None:
        with no_directory_sync():
            give(stage, path)

    return mock.patch.object(creation, "_give_name", hasty)


MUTANTS = (
    no_file_sync,
    no_directory_sync,
    no_manifest_sync,
    no_segment_sync,
    no_deletes_sync,
    no_last_sync,
    rename_before_sync,
    no_sync_after_rename,
    remove_then_rename,
    no_sync_before_rename,
    remove_before_commit,
    clean_without_sync,
    no_compacted_sync,
    no_carried_deletes,
    build_without_sync,
)
SALVAGE_MUTANTS = (no_carried_deletes, numbered_before_deletes, numbered_at_once)
