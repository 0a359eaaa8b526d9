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
    InputError,
    LockedError,
    MismatchError,
    RbegirError,
    TextError,
)

MEDIA_TYPE = "application/problem+json"
URN = "urn:rbegir:problem:"

TITLES = {
    "malformed": (400, "The body is not valid JSON"),
    "bad-host": (400, "The Host header is not one of this service"),
    "bad-header": (400, "A header cannot be understood"),
    "unauthorized": (401, "A token is needed"),
    "forbidden": (403, "The token does not allow this"),
    "read-only": (403, "This service is read-only"),
    "not-found": (404, "There is no such thing"),
    "method-not-allowed": (405, "The method is not allowed here"),
    "body-timeout": (408, "The body took too long to arrive"),
    "too-large": (413, "The body is too large"),
    "unsupported-media-type": (415, "The body must be JSON"),
    "invalid": (422, "The request is not valid"),
    "invalid-text": (422, "A text has nothing to encode"),
    "invalid-filter": (422, "The filter cannot be understood"),
    "mismatch": (422, "The request does not fit the index"),
    "internal": (500, "The service failed"),
    "storage": (500, "The index cannot be read or written"),
    "device": (500, "The device failed"),
    "not-supported": (501, "This index cannot do that"),
    "overloaded": (503, "The service is busy"),
    "not-ready": (503, "The service is not ready"),
    "locked": (503, "Another process is writing to the index"),
    "deadline": (504, "The deadline has passed"),
}


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
        self.status, self.title = TITLES[kind]
        self.detail = detail
        self.hint = hint
        self.headers = dict(headers or {})
        self.extra = extra

    def response(self) -> Response:
        body = {
            "type": URN + self.kind,
            "title": self.title,
            "status": self.status,
            "detail": self.detail,
            "hint": self.hint,
            **self.extra,
        }
        return Response(
            json.dumps(body, ensure_ascii=False).encode("utf-8", "replace"),
            self.status,
            headers=self.headers,
            media_type=MEDIA_TYPE,
        )


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
        (FileError, "storage", "the index could not be read or written on disk"),
        (DeviceError, "device", "the device that searches has failed"),
        (DeadlineError, "deadline", "some shards of the cluster did not answer in time"),
        (ClusterError, "not-ready", "part of the cluster cannot answer now"),
    ]
    for cls, kind, detail in hidden:
        if isinstance(error, cls):
            return Problem(kind, detail, hint="the log of the service says more")
    return Problem("internal", "something unexpected went wrong", hint="the log of the service says more")
