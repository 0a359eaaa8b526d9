"""Freeing large files that were removed, a little at a time.

When the last user of a removed file lets it go, the system frees all of it at once: its pages in memory and
its blocks, of which the disk may have to be told (the mount option `discard`). Syncs wait for that: where it
was measured, the three of a change took 107 ms beside 1 GB that was freed at once, and less than 8 ms beside
the same file truncated from its end, in steps of 8 MB with pauses.

Readers that still have the file mapped must not lose it, and they take no locks. But the kernel knows them:
`disk.truncate_unused` refuses a file that is open or mapped anywhere else. Such a file is left alone, and its
last user frees it at once. So is every file outside of the common local file systems of Linux.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable
from pathlib import Path

from rbegir.base import disk

LARGE = 32 << 20  # bytes; smaller files are freed at once
STEP = 8 << 20
PER_SECOND = 1 << 30  # bytes
MOST = 128  # files open for this; the largest ones
PATIENCE = 2.0  # seconds to wait in all for searches that still use the files
PAUSE = 0.01


class OldFiles:
    """Files of a directory that are about to be removed; large ones are open, for `free` to truncate."""

    def __init__(self, directory: Path, files: Iterable[tuple[str, int]]) -> None:
        self._open: dict[str, int] = {}
        self._patience = PATIENCE
        large = sorted((-size, name) for name, size in files if size > LARGE)[:MOST]
        try:
            if large and disk.tells_users(directory):
                for _, name in large:
                    with contextlib.suppress(FileNotFoundError):
                        self._open[name] = disk.open_writable(directory / name)
        except OSError:  # perhaps too many files are open
            self.close()

    def free(self, name: str, size: int) -> None:
        """Free a file that was removed, with pauses; only let it go if others still use it."""
        descriptor = self._open.pop(name, -1)
        if descriptor < 0 or not self._truncated(descriptor, size):
            time.sleep(size / PER_SECOND)

    def _truncated(self, descriptor: int, size: int) -> bool:
        try:
            for rest in range((size - 1) // STEP * STEP, -1, -STEP):
                while not disk.truncate_unused(descriptor, rest):
                    if self._patience <= 0:
                        return False
                    time.sleep(PAUSE)
                    self._patience -= PAUSE
                time.sleep(STEP / PER_SECOND)
        except OSError:  # the rest is freed at once
            return False
        finally:
            os.close(descriptor)
        return True

    def close(self) -> None:
        while self._open:
            os.close(self._open.popitem()[1])
