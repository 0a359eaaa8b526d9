"""Mapped files, and what happens when they shrink.

A mapped file costs nothing to open and is shared by all its readers. But if it is truncated, or the disk
cannot read a page, the next access raises SIGBUS, which would end the process. Checking the length before
each search would only make that rarer. Here the signal is caught (`_native/mapping.cpp`): missing pages read
as zeros, `Mapping.broken` becomes true, and every reader checks it before it returns or commits what it read.
What is lost of the last page reads as zeros without a signal, so `broken` also compares lengths.

    search, get           before hits are returned
    encode                before codes are returned
    merge and compaction  before the new state replaces the old one

Crash reporters take over the signal when they are enabled, so `arm` claims it again before each read.
"""

import mmap

from rbegir._native._core import arm, broken, guard, unguard

__all__ = ["Mapping", "arm"]


class Mapping(mmap.mmap):
    """The mapped bytes of a file. They stay readable as long as anything refers to them."""

    _slot = -1
    _unguard = staticmethod(unguard)  # module globals may be gone when the interpreter exits

    def protect(self) -> None:
        """From now on, an unreadable page reads as zeros and sets `broken` instead of ending the process."""
        self._slot = guard(self)

    @property
    def broken(self) -> bool:
        """Whether a page that was read was missing, or the file is shorter than what is mapped of it."""
        return broken(self._slot) or self.size() < len(self)

    def __del__(self) -> None:
        self._unguard(self._slot)
