"""Durable files: every change that must survive a crash or a power cut goes through these calls.

They hold the whole fsync discipline, and tests count, fail and kill exactly these calls:

    create → write … → sync → sync_directory      a new file: its bytes and its name are on disk
    a new file → replace                          a file is replaced: the old one or the new one, never less
    exchange → sync_directory                     a directory is replaced likewise

An immutable file of an index is written under its final name, because nothing refers to it before the
manifest that names it is renamed into place. A crash in between leaves an orphan, which the next writer
removes.
"""

import contextlib
import ctypes
import errno
import fcntl
import os
import shutil
import signal
import stat
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from rbegir.errors import FileError, FullError

Buffer = bytes | bytearray | memoryview

# ext4 (ext2, ext3), XFS, Btrfs and memory: all their users are processes of this system
LOCAL = {0xEF53, 0x58465342, 0x9123683E, 0x01021994}


def create(path: Path) -> int:
    """Create an empty file and return its descriptor; the path must not exist."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)


def open_regular(path: Path) -> int:
    """Open a regular file for reading; links, pipes and devices are refused."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise FileError(f"{path} is not a regular file", hint="check the path; nothing was changed")


def read_small(path: Path, most: int) -> bytes:
    """Read a regular file of at most `most` bytes; a larger one is refused unread."""
    with explained("read", path), open(open_regular(path), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise FileError(f"{path} has {size} bytes, expected at most {most}", hint="check the path")
        return file.read(most)


def open_locked(path: Path, *, wait: bool) -> int:
    """Open a file for writing, creating it if necessary, and lock it until it is closed.

    Without `wait`, raise BlockingIOError if another process has locked it.
    """
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        with contextlib.ExitStack() as failed:
            failed.callback(os.close, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
            with contextlib.suppress(FileNotFoundError):  # renamed or removed by the previous holder
                if os.path.samestat(os.fstat(descriptor), os.stat(path)):
                    failed.pop_all()
                    return descriptor


def refuse_link(directory: Path) -> Path:
    """Return a directory of an index unchanged, or raise if it is a symbolic link."""
    if directory.is_symlink():
        raise FileError(f"{directory} is a link, which is not followed", hint="copy the directory there")
    return directory


def write(descriptor: int, data: Buffer) -> None:
    """Write all of the data, in as many system calls as it takes."""
    rest = memoryview(data)
    while rest.nbytes:
        rest = rest[os.write(descriptor, rest) :]


def sync(descriptor: int) -> None:
    """Put the bytes of an open file on stable storage."""
    os.fsync(descriptor)


def write_new(path: Path, parts: Iterable[Buffer]) -> None:
    """Write a new file and put its bytes on stable storage."""
    descriptor = create(path)
    try:
        for part in parts:
            write(descriptor, part)
        sync(descriptor)
    finally:
        os.close(descriptor)


def write_file(path: Path, *parts: Buffer) -> None:
    """Write a file, truncating an existing one, and put its bytes on stable storage."""
    with path.open("wb") as file:
        for part in parts:
            file.write(part)
        file.flush()
        os.fsync(file.fileno())


def sync_directory(path: Path) -> None:
    """Put the names in a directory on stable storage."""
    _sync(path, os.O_RDONLY | os.O_DIRECTORY)


def _sync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def rename(old: Path, new: Path) -> None:
    """Rename a file or directory atomically, replacing a file that had the new name."""
    os.rename(old, new)


def link(old: Path, new: Path) -> bool:
    """Give a file a second name; False if the file system does not support that."""
    try:
        os.link(old, new)
    except OSError as error:
        if error.errno in (errno.EPERM, errno.EXDEV, errno.EMLINK, errno.EOPNOTSUPP):
            return False
        raise
    return True


def replace(new: Path, path: Path) -> None:
    """Rename a new file, or a directory of synced files, to `path`: its bytes and its name are durable."""
    _sync(new, os.O_RDONLY)
    rename(new, path)
    sync_directory(path.parent)


@contextlib.contextmanager
def staged(path: Path) -> Iterator[Path]:
    """Yield a hidden sibling for a new file or directory, renamed to `path` when the block succeeds."""
    stage = path.with_name(f".{path.name}.new-{os.getpid()}-{os.urandom(4).hex()}")
    try:
        yield stage
        replace(stage, path)
    finally:
        if stage.is_dir():
            remove_tree(stage)
        else:
            stage.unlink(missing_ok=True)


def exchange(one: Path, other: Path) -> bool:
    """Swap the names of two directories atomically; False if the system cannot (only Linux can)."""
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
    """Remove a file; processes that have mapped it can still read it."""
    os.unlink(path)


def tells_users(directory: Path) -> bool:
    """Whether `truncate_unused` can work on files of a directory: those of local file systems of Linux."""
    if sys.platform != "linux":
        return False
    kind = (ctypes.c_long * 64)()  # a struct statfs and more; its first field says what file system it is
    return ctypes.CDLL(None).statfs(os.fsencode(directory), kind) == 0 and kind[0] in LOCAL


def open_writable(path: Path) -> int:
    """Open a file for `truncate_unused`; links are refused."""
    return os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)


def truncate_unused(descriptor: int, size: int) -> bool:
    """Truncate a removed file; False if it is open or mapped anywhere else, this process included.

    The kernel grants a write lease only on a file that is not open otherwise; a mapping counts as open. Until
    the lease is given up, nobody can open the file: an `open_regular` that found the name just before it was
    removed raises BlockingIOError, or comes later and finds a file without its end, which is refused.
    """
    if sys.platform != "linux" or os.fstat(descriptor).st_nlink:
        return False
    try:  # the signal for such an `open_regular` is one that is ignored; by default it would end the process
        fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    except OSError:
        return False
    try:
        os.ftruncate(descriptor, size)
    finally:
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    return True


def make_directory(path: Path) -> None:
    """Create a directory; its parent must exist."""
    os.mkdir(path)


def remove_tree(path: Path) -> None:
    """Remove a directory and its contents."""
    shutil.rmtree(path)


@contextlib.contextmanager
def explained(doing: str, path: Path) -> Iterator[None]:
    """Turn an OSError into a FileError that says what failed and how to fix it."""
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
            errno.EROFS: "the file system is mounted read-only: write elsewhere, "
            "or serve an index there with --read-only",
            errno.EMFILE: "raise the limit on open files (ulimit -n)",
            errno.ENOENT: "check the path",
        }
        raise FileError(f"cannot {doing} {path}: {reason}", hint=hints.get(error.errno or 0, "")) from error
