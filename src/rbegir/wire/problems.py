"""Errors between a service and its clients: RFC 9457 problem documents, written and read.

    error of the library ─ from_error ─ Problem ─ document ─ bytes ─ raise_problem ─ the same error again

`type` is a URN that a program can compare, `detail` says what was wrong with this request and `hint` the way
out. A client raises the class that the index itself would have raised, so that a program can move from a
directory to a service and keep its `except` clauses. What an error of the disk says (paths, checksums) is for
the log of the operator, not for a client, and no client ever sees a trace.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple, NoReturn

from rbegir.errors import (
    AccessError,
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
    ServiceError,
    TextError,
)

URN = "urn:rbegir:problem:"
MEDIA_TYPE = "application/problem+json"
MAX_MESSAGE = 500  # characters of a message that came from elsewhere


class ProblemKind(NamedTuple):
    """What the service says about a kind of problem, and the error that a client raises for it."""

    status: int
    title: str
    error: type[RbegirError]


KINDS = {
    "malformed": ProblemKind(400, "The body is not valid JSON", InputError),
    "bad-host": ProblemKind(400, "The Host header is not one of this service", ServiceError),
    "bad-header": ProblemKind(400, "A header cannot be understood", ServiceError),
    "unauthorized": ProblemKind(401, "A token is needed", AccessError),
    "forbidden": ProblemKind(403, "The token does not allow this", AccessError),
    "bad-origin": ProblemKind(403, "The request comes from another web origin", AccessError),
    "read-only": ProblemKind(403, "This service is read-only", AccessError),
    "not-found": ProblemKind(404, "There is no such thing", ServiceError),
    "method-not-allowed": ProblemKind(405, "The method is not allowed here", ServiceError),
    "body-timeout": ProblemKind(408, "The body took too long to arrive", ServiceError),
    "too-large": ProblemKind(413, "The body is too large", InputError),
    "unsupported-media-type": ProblemKind(415, "The body must be JSON", ServiceError),
    "invalid": ProblemKind(422, "The request is not valid", InputError),
    "invalid-text": ProblemKind(422, "A text has nothing to encode", TextError),
    "invalid-filter": ProblemKind(422, "The filter cannot be understood", FilterError),
    "mismatch": ProblemKind(422, "The request does not fit the index", MismatchError),
    "internal": ProblemKind(500, "The service failed", ServiceError),
    "storage": ProblemKind(500, "The index cannot be read or written", FileError),
    "device": ProblemKind(500, "The device failed", DeviceError),
    "not-supported": ProblemKind(501, "This index cannot do that", ServiceError),
    "overloaded": ProblemKind(503, "The service is busy", BusyError),
    "not-ready": ProblemKind(503, "The service is not ready", BusyError),
    "locked": ProblemKind(503, "Another process is writing to the index", LockedError),
    "deadline": ProblemKind(504, "The deadline has passed", ServiceError),
    "full": ProblemKind(507, "There is no room on the disk", FullError),
}


class Problem(Exception):
    """Raised anywhere while a request is handled; becomes its response."""

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
        """The body of the response."""
        said = {
            "type": URN + self.kind,
            "title": self.title,
            "status": self.status,
            "detail": self.detail,
            "hint": self.hint,
            **self.extra,
        }
        return json.dumps(said, ensure_ascii=False).encode("utf-8", "replace")


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
    hidden: list[tuple[type[RbegirError], str, str]] = [  # whose messages are for the log
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


# ---- read by a client ----

BY_STATUS: dict[int, type[RbegirError]] = {401: AccessError, 403: AccessError, 503: BusyError}  # of proxies


def kind_of(body: bytes) -> str:
    """The last part of the type of a problem, such as `not-found`; empty where the body is no problem."""
    kind = _document(body).get("type")
    return kind.removeprefix(URN) if isinstance(kind, str) and kind.startswith(URN) else ""


def raise_problem(status: int, body: bytes) -> NoReturn:
    """Raise the error that a response reports: the class that the index itself would have raised."""
    said, kind = _document(body), KINDS.get(kind_of(body))
    cls = BY_STATUS.get(status, ServiceError) if kind is None else kind.error
    words = (said.get(name) for name in ("detail", "title", "hint"))
    detail, title, hint = (word[:MAX_MESSAGE] if isinstance(word, str) else "" for word in words)
    if detail or title:
        raise cls(detail or title, hint=hint)
    raise cls(
        f"the service answered {status} and no reason",
        hint="check the token" if cls is AccessError else "is the address that of a rbegir service?",
    )


def _document(body: bytes) -> dict[str, Any]:
    try:
        said = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return said if isinstance(said, dict) else {}
