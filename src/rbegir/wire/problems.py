"""Errors between a service and its clients: RFC 9457 problem documents, written and read.

    error of the library ─ from_error ─ Problem ─ document ─ bytes ─ raise_problem ─ the same error again

`type` is a URN that a program can compare, `detail` says what was wrong with this request and `hint` the way
out. A client raises the class that the index itself would have raised, so that a program can move from a
directory to a service and keep its `except` clauses. What an error of the disk says (paths, checksums) is for
the log of the operator, not for a client, and no client ever sees a trace.
"""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple, NoReturn

from rbegir import errors

URN = "urn:rbegir:problem:"
MEDIA_TYPE = "application/problem+json"
LOG = "see the log of the service"
MAX_MESSAGE = 500  # characters of a message that came from elsewhere


class ProblemKind(NamedTuple):
    """A kind of problem: the response of the service, and the error that a client raises for it."""

    status: int
    title: str
    error: type[errors.RbegirError]


KINDS = {
    "malformed": ProblemKind(400, "The body is not valid JSON", errors.InputError),
    "bad-host": ProblemKind(400, "The Host header is not one of this service", errors.ServiceError),
    "bad-header": ProblemKind(400, "A header cannot be understood", errors.ServiceError),
    "unauthorized": ProblemKind(401, "A token is needed", errors.AccessError),
    "forbidden": ProblemKind(403, "The token does not allow this", errors.AccessError),
    "bad-origin": ProblemKind(403, "The request comes from another web origin", errors.AccessError),
    "read-only": ProblemKind(403, "This service is read-only", errors.AccessError),
    "not-found": ProblemKind(404, "There is no such thing", errors.ServiceError),
    "method-not-allowed": ProblemKind(405, "The method is not allowed here", errors.ServiceError),
    "body-timeout": ProblemKind(408, "The body took too long to arrive", errors.ServiceError),
    "too-large": ProblemKind(413, "The body is too large", errors.InputError),
    "unsupported-media-type": ProblemKind(415, "The body must be JSON", errors.ServiceError),
    "invalid": ProblemKind(422, "The request is not valid", errors.InputError),
    "invalid-text": ProblemKind(422, "A text has nothing to encode", errors.TextError),
    "invalid-filter": ProblemKind(422, "The filter cannot be understood", errors.FilterError),
    "mismatch": ProblemKind(422, "The request does not fit the index", errors.MismatchError),
    "too-many-requests": ProblemKind(429, "The client has too many requests under way", errors.BusyError),
    "internal": ProblemKind(500, "The service failed", errors.ServiceError),
    "storage": ProblemKind(500, "The index cannot be read or written", errors.FileError),
    "device": ProblemKind(500, "The device failed", errors.DeviceError),
    "not-supported": ProblemKind(501, "This index cannot do that", errors.ServiceError),
    "overloaded": ProblemKind(503, "The service is busy", errors.BusyError),
    "not-ready": ProblemKind(503, "The service is not ready", errors.BusyError),
    "locked": ProblemKind(503, "Another process is writing to the index", errors.LockedError),
    "deadline": ProblemKind(504, "The deadline has passed", errors.ServiceError),
    "full": ProblemKind(507, "There is no room on the disk", errors.FullError),
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
    """503, with the time to wait before trying again."""
    return Problem(
        "overloaded",
        f"{what}; nothing was done",
        hint="try again after the time in Retry-After, or send fewer requests at once",
        headers={"Retry-After": str(max(1, round(retry_after_s)))},
    )


def from_error(error: BaseException) -> Problem:
    """An error of the library as a client sees it."""
    if isinstance(error, Problem):
        return error
    if isinstance(error, errors.BusyError):
        return overloaded("the shards of the cluster have no room for another query", 1.0)
    told: list[tuple[type[errors.RbegirError], str, str]] = [  # with a detail: the message is for the log
        (errors.TextError, "invalid-text", ""),
        (errors.FilterError, "invalid-filter", ""),
        (errors.InputError, "invalid", ""),
        (errors.MismatchError, "mismatch", ""),
        (errors.LockedError, "locked", "another process holds the index, so it cannot be changed from here"),
        (errors.FullError, "full", "there is no room left on the disk of the service; nothing was changed"),
        (errors.FileError, "storage", "the index could not be read or written on disk"),
        (errors.DeviceError, "device", "the device that searches has failed"),
        (errors.DeadlineError, "deadline", "some shards of the cluster did not answer in time"),
        (errors.ClusterError, "not-ready", "part of the cluster cannot answer now"),
    ]
    for cls, kind, detail in told:
        if isinstance(error, cls):
            hint = LOG if detail and kind != "full" else error.hint
            return Problem(kind, detail or error.message, hint=hint)
    return Problem("internal", "something unexpected went wrong", hint=LOG)


BY_STATUS: dict[int, type[errors.RbegirError]] = {
    401: errors.AccessError,
    403: errors.AccessError,
    429: errors.BusyError,
    503: errors.BusyError,
}  # of proxies


def kind_of(body: bytes) -> str:
    """The last part of the type of a problem, such as `not-found`; empty if the body is not a problem."""
    kind = _document(body).get("type")
    return kind.removeprefix(URN) if isinstance(kind, str) and kind.startswith(URN) else ""


def raise_problem(status: int, body: bytes) -> NoReturn:
    """Raise the error that a response reports: the class that the index itself would have raised."""
    said, kind = _document(body), KINDS.get(kind_of(body))
    cls = BY_STATUS.get(status, errors.ServiceError) if kind is None else kind.error
    words = (said.get(name) for name in ("detail", "title", "hint"))
    detail, title, hint = (word[:MAX_MESSAGE] if isinstance(word, str) else "" for word in words)
    if detail or title:
        raise cls(detail or title, hint=hint)
    raise cls(
        f"the service answered {status} without a reason",
        hint="check the token" if cls is errors.AccessError else "is this the address of an rbegir service?",
    )


def _document(body: bytes) -> dict[str, Any]:
    try:
        said = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return said if isinstance(said, dict) else {}
