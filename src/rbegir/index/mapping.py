"""The files of an index, mapped under the guard of `rbegir.base.mapping`."""

from __future__ import annotations

import mmap
import os
import stat
from pathlib import Path

from rbegir.base.mapping import Mapping
from rbegir.errors import CorruptError, FileError


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
