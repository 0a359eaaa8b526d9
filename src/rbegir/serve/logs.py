"""Structured logs: one JSON object per line on stderr.

A line names the request, the route, the status and the time, never a query text unless the operator asked
for it. A failure that a client only hears of as "storage" or "internal" is told here in full.
"""

from __future__ import annotations

import contextlib
import sys
import time
import traceback
from typing import Any, TextIO

from pydantic_core import to_json

from rbegir.errors import RbegirError


class RequestLog:
    """Writes lines to a stream. Lines of requests can be switched off."""

    def __init__(self, stream: TextIO | None = None, *, access: bool = True, queries: bool = False) -> None:
        self._stream = stream or sys.stderr
        self._second, self._stamp = -1.0, ""
        self.access = access
        self.queries = queries

    def event(self, event: str, **fields: Any) -> None:
        """Write a line; fields that are not plain become texts."""
        second, rest = divmod(time.time(), 1)
        if second != self._second:  # a busy service writes a thousand lines in one
            self._second, self._stamp = second, time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
        stamp = f"{self._stamp}.{int(rest * 1000):03d}Z"
        line = to_json({"time": stamp, "event": event, **fields}, fallback=str)
        with contextlib.suppress(OSError, ValueError):  # whoever read the log is gone; the service goes on
            self._stream.write(line.decode() + "\n")
            self._stream.flush()

    def error(self, event: str, error: BaseException, **fields: Any) -> None:
        """A failure: one sentence if it is one of ours, the trace if it is a bug."""
        if isinstance(error, RbegirError):
            told = {"error": type(error).__name__, "detail": error.message, "hint": error.hint}
        else:
            trace = "".join(traceback.format_exception(error))
            told = {"error": type(error).__name__, "detail": str(error), "trace": trace}
        self.event(event, **fields, **told)
