"""Files mapped into memory, and what happens when they shrink.

A mapped file costs nothing to open and is shared by all its readers. But if somebody cuts it short, or the
disk fails to give a page, the system answers the next access with SIGBUS, which ends the process. Looking
at the length before each search would only make that rarer. Here the signal is caught
(`_native/mapping.cpp`): the missing pages read as zeros, `broken` becomes true, and whoever read asks
before it hands anything on:

    search, get           before the answer is returned
    merge and compaction  before the new state replaces the old one

Crash reporters take the signal for themselves when they are switched on, so `arm` asks for it again before
anything is read.
"""

from __future__ import annotations

import mmap
import os
import stat
from pathlib import Path

from rbegir._native._core import arm, broken, guard, unguard
from rbegir.errors import CorruptError, FileError

__all__ = ["Mapping", "arm", "map_file"]


class Mapping(mmap.mmap):
    """The bytes of a file. They stay readable as long as anything refers to them."""

    _slot = -1
    _unguard = staticmethod(unguard)  # the module's own name is gone when an interpreter ends

    def protect(self) -> None:
        """From now on a page that cannot be read is zeros and a flag instead of the end of the process."""
        self._slot = guard(self)

    @property
    def broken(self) -> bool:
        """Whether a page that somebody read was not there."""
        return broken(self._slot)

    def __del__(self) -> None:
        self._unguard(self._slot)


def map_file(path: Path, most: int | None = None) -> Mapping:
    """Map a regular file, or its first bytes, for reading. The index trusts nobody to have put something else
    in its place."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise FileError(f"{path} is not a regular file", hint="check the path; nothing was changed")
        size = status.st_size if most is None else min(status.st_size, most)
        if size == 0:
            raise CorruptError(
                f"{path} is damaged: it is empty",
                hint="restore the file from a copy; `rbegir index verify` lists all damage",
            )
        mapped = Mapping(descriptor, size, access=mmap.ACCESS_READ)
        mapped.protect()
        return mapped
    finally:
        os.close(descriptor)
