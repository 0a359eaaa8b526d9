"""Every change that rbegir makes to an index on disk goes through these few calls.

They are the whole fsync discipline in one place, and the one place that tests count, fail and kill:

    create → write … → sync                      a new file: its bytes are on disk
    sync_directory                               and so is its name
    a new file → rename → sync_directory         a file is replaced: the old one or the new one, never less
    exchange → sync_directory                    the same for a directory

An immutable file is written under its final name, because nothing refers to it before the manifest that names
it is renamed into place; a crash in between leaves an orphan that the next writer removes.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from rbegir.errors import FileError, FullError

Buffer = bytes | bytearray | memoryview


def create(path: Path) -> int:
    """A file descriptor of a new, empty file; the name must be free."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)


def write(descriptor: int, data: Buffer) -> None:
    """All of the data, however many system calls that takes."""
    rest = memoryview(data)
    while rest.nbytes:
        rest = rest[os.write(descriptor, rest) :]


def sync(descriptor: int) -> None:
    """The file's bytes are on stable storage when this returns."""
    os.fsync(descriptor)


def sync_directory(path: Path) -> None:
    """The names in a directory are on stable storage when this returns."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def rename(old: Path, new: Path) -> None:
    """Give a file or directory its new name at one stroke, replacing a file that had it."""
    os.rename(old, new)


def exchange(one: Path, other: Path) -> bool:
    """Swap the names of two directories at one stroke; False where the system cannot (only Linux can)."""
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "renameat2"):
        return False
    here, swap = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    if libc.renameat2(here, os.fsencode(one), here, os.fsencode(other), swap) == 0:
        return True
    code = ctypes.get_errno()
    if code in (errno.ENOSYS, errno.EINVAL):
        return False
    raise OSError(code, os.strerror(code), str(other))


def unlink(path: Path) -> None:
    """Remove a file; processes that have mapped it keep their bytes."""
    os.unlink(path)


def make_directory(path: Path) -> None:
    os.mkdir(path)


def remove_tree(path: Path) -> None:
    shutil.rmtree(path)


@contextlib.contextmanager
def explained(doing: str, path: Path) -> Iterator[None]:
    """Turn what the system says about a file into a FileError that says what to do."""
    try:
        yield
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise FullError(
                f"cannot {doing} {path}: {reason}",
                hint="free some space and try again; what was acknowledged before is still there",
            ) from error
        hints = {
            errno.EFBIG: "raise the limit on the size of files; what was acknowledged before is still there",
            errno.EACCES: "check the owner and permissions of the directory",
            errno.EPERM: "check the owner and permissions of the directory",
            errno.EROFS: "the file system is mounted read-only; copy the index to change it",
            errno.EMFILE: "raise the limit on open files (ulimit -n)",
            errno.ENOENT: "check the path",
        }
        raise FileError(f"cannot {doing} {path}: {reason}", hint=hints.get(error.errno or 0, "")) from error
