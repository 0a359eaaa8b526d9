"""One writer at a time: an advisory lock on the file LOCK, which says who holds it.

The kernel drops the lock when its holder ends, however it ends, so there are no stale locks to break. Readers
never look at it. A writer takes it with its first change and keeps it until the index is closed.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import time
from pathlib import Path

from rbegir.base import disk
from rbegir.errors import LockedError

NAME = "LOCK"


class WriterLock:
    """The lock, held from construction until `release`. It does not pass to a forked child."""

    _close = staticmethod(os.close)  # the module's own name is gone when an interpreter ends

    def __init__(self, directory: Path) -> None:
        path = directory / NAME
        self._descriptor = -1
        with disk.explained("lock", path):
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = _holder(self._descriptor)
            self.release()
            raise LockedError(
                f"{directory} is being written by {holder}",
                hint="wait until it is done, or stop it; reading is possible meanwhile",
            ) from error
        self._owner = os.getpid()
        since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        note = json.dumps({"pid": self._owner, "host": socket.gethostname(), "since": since}).encode()
        with disk.explained("lock", path):
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, note, 0)

    def check(self, directory: Path) -> None:
        """Refuse to write in a child process that inherited the lock by fork."""
        if os.getpid() != self._owner:
            raise LockedError(
                f"{directory} is being written by process {self._owner}, from which this one was forked",
                hint="open the index again in this process to read it; write from one process only",
            )

    def release(self) -> None:
        """Give it back; also done when the lock is forgotten."""
        if self._descriptor >= 0:
            self._close(self._descriptor)
            self._descriptor = -1

    __del__ = release


def _holder(descriptor: int) -> str:
    """Who holds the lock, in words. The note is for people: the lock holds even if it is unreadable."""
    try:
        note = json.loads(os.pread(descriptor, 4096, 0))
        return f"process {int(note['pid'])} on {note['host']} since {note['since']}"
    except (ValueError, KeyError, TypeError):
        return "another process"
