"""Errors as RFC 9457 problem documents: type, title, status, detail, hint.

`type` is a URN that a program can compare, `detail` says what was wrong with this request and `hint` the way
out. What an error of the disk says (paths, checksums) is for the log of the operator, not for a client, and
no client ever sees a trace.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from rbegir.errors import (
    BusyError,
    ClusterError,
    DeadlineError,
    DeviceError,
    FileError,
    FilterError,
    FullError,
    InputError,
    LockedError,
    MismatchError,
    RbegirError,
    TextError,
)
from rbegir.wire.problems import KINDS, URN

MEDIA_TYPE = "application/problem+json"


class Problem(Exception):
    """Raised anywhere while a request is handled; becomes its answer."""

    def __init__(
        self,
        kind: str,
        detail: str,
        *,
        hint: str = "",
        headers: Mapping[str, str] | None = None,
        **extra: Any,
    ) -> None:
        super().__init__(detail)
        self.kind = kind
        self.status, self.title, _ = KINDS[kind]
        self.detail = detail
        self.hint = hint
        self.headers = dict(headers or {})
        self.extra = extra

    def document(self) -> bytes:
        """The body of the answer."""
        said = {
            "type": URN + self.kind,
            "title": self.title,
            "status": self.status,
            "detail": self.detail,
            "hint": self.hint,
            **self.extra,
        }
        return json.dumps(said, ensure_ascii=False).encode("utf-8", "replace")

    def response(self) -> Response:
        return Response(self.document(), self.status, headers=self.headers, media_type=MEDIA_TYPE)


def overloaded(what: str, retry_after_s: float) -> Problem:
    """503 with the time after which trying again makes sense."""
    return Problem(
        "overloaded",
        f"{what}; nothing was done",
        hint="try again after the time in Retry-After, or send fewer requests at once",
        headers={"Retry-After": str(max(1, round(retry_after_s)))},
    )


def from_error(error: BaseException) -> Problem:
    """What a client is told about an error of the library."""
    if isinstance(error, Problem):
        return error
    kinds: list[tuple[type[RbegirError], str]] = [
        (TextError, "invalid-text"),
        (FilterError, "invalid-filter"),
        (InputError, "invalid"),
        (MismatchError, "mismatch"),
    ]
    for cls, kind in kinds:
        if isinstance(error, cls):
            return Problem(kind, error.message, hint=error.hint)
    if isinstance(error, BusyError):
        return overloaded("the shards of the cluster have no room for another query", 1.0)
    hidden: list[tuple[type[RbegirError], str, str]] = [
        (LockedError, "locked", "another process holds the index, so it cannot be changed from here"),
        (FullError, "full", "there is no room left on the disk of the service; nothing was changed"),
        (FileError, "storage", "the index could not be read or written on disk"),
        (DeviceError, "device", "the device that searches has failed"),
        (DeadlineError, "deadline", "some shards of the cluster did not answer in time"),
        (ClusterError, "not-ready", "part of the cluster cannot answer now"),
    ]
    for cls, kind, detail in hidden:
        if isinstance(error, cls):
            hint = error.hint if kind == "full" else "the log of the service says more"
            return Problem(kind, detail, hint=hint)
    return Problem("internal", "something unexpected went wrong", hint="the log of the service says more")
