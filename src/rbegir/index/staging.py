"""A new index comes into being at one stroke: made in a hidden sibling directory and renamed at the end.

    .ads.rbe.new-<pid>     being made, its LOCK held by the maker
    .ads.rbe.building      the same by a maker that can go on where it was stopped
    ads.rbe                complete

A maker that is stopped half-way leaves nothing visible; the next one for the same path removes what is left,
or goes on with it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from rbegir.base import disk
from rbegir.errors import FileError, LockedError
from rbegir.index import manifest
from rbegir.index.lock import WriterLock
from rbegir.index.writer import Writer


@contextlib.contextmanager
def staged(path: Path, *, overwrite: bool, resumable: bool = False) -> Iterator[Writer]:
    """The writer of a directory to make an index in. When the block ends well the directory gets its name,
    and the writer, still holding the lock, belongs to the caller; otherwise both are gone. A resumable one
    may hold what an earlier maker has left, and stays for the next if the block fails."""
    _check_free(path, overwrite=overwrite)
    with disk.explained("create", path):
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_stale(path)
        stage = path.with_name(f".{path.name}.building" if resumable else f".{path.name}.new-{os.getpid()}")
        if not (resumable and stage.is_dir()):
            disk.make_directory(stage)
        writer = Writer(stage)
        try:
            yield writer
            disk.sync_directory(stage)
            _check_free(path, overwrite=overwrite)
            _give_name(stage, path)
            writer.directory = path
        except BaseException:
            writer.close()
            if stage.exists() and not resumable:
                disk.remove_tree(stage)
            raise


def _give_name(stage: Path, path: Path) -> None:
    """The complete index takes its place, at one stroke even if another is there (where the system can)."""
    old = stage  # what is there afterwards
    if not path.exists():
        disk.rename(stage, path)
    elif not disk.exchange(stage, path):
        old = path.with_name(f".{path.name}.new-{os.getpid()}-old")
        disk.rename(path, old)
        disk.rename(stage, path)
    disk.sync_directory(path.parent)
    if old.exists():
        disk.remove_tree(old)


def _check_free(path: Path, *, overwrite: bool) -> None:
    if not path.exists() or (path.is_dir() and not any(path.iterdir())):
        return
    if not (path.is_dir() and (path / manifest.NAME).is_file()):
        raise FileError(f"{path} exists and is not an rbegir index", hint="choose another path")
    if not overwrite:
        raise FileError(
            f"{path} exists already", hint="choose another path, open it to add to it, or overwrite it"
        )
    WriterLock(path).release()


def _remove_stale(path: Path) -> None:
    """What makers that were stopped have left; a maker that is still at work holds its lock."""
    for left in path.parent.glob(f".{path.name}.new-*"):
        with contextlib.suppress(LockedError):
            WriterLock(left).release()
            disk.remove_tree(left)
