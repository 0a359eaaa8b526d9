"""Files mapped into memory, and what happens when they shrink.

A mapped file costs nothing to open and is shared by all its readers. But if somebody cuts it short, or the
disk fails to give a page, the system answers the next access with SIGBUS, which ends the process. Looking
at the length before each search would only make that rarer. Here the signal is caught
(`_native/mapping.cpp`): the missing pages read as zeros, `broken` becomes true, and whoever read asks
before it hands anything on:

    search, get           before the answer is returned
    encode                before the codes are returned
    merge and compaction  before the new state replaces the old one

Crash reporters take the signal for themselves when they are switched on, so `arm` asks for it again before
anything is read.
"""

from __future__ import annotations

import mmap

from rbegir._native._core import arm, broken, guard, unguard

__all__ = ["Mapping", "arm"]


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
