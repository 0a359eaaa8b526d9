"""The kinds of problem that a search service reports, known to it and to its clients.

A problem travels as an RFC 9457 document whose `type` is URN + the name of its kind. The service writes the
status and the title, a client raises the error: the class that the index itself would have raised where there
is one, so that a program can move from a directory to a service and keep its `except` clauses.
"""

from __future__ import annotations

from typing import NamedTuple

from rbegir.errors import (
    AccessError,
    BusyError,
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


class Kind(NamedTuple):
    """What the service says, and what a client raises."""

    status: int
    title: str
    error: type[RbegirError]


KINDS = {
    "malformed": Kind(400, "The body is not valid JSON", InputError),
    "bad-host": Kind(400, "The Host header is not one of this service", ServiceError),
    "bad-header": Kind(400, "A header cannot be understood", ServiceError),
    "unauthorized": Kind(401, "A token is needed", AccessError),
    "forbidden": Kind(403, "The token does not allow this", AccessError),
    "read-only": Kind(403, "This service is read-only", AccessError),
    "not-found": Kind(404, "There is no such thing", ServiceError),
    "method-not-allowed": Kind(405, "The method is not allowed here", ServiceError),
    "body-timeout": Kind(408, "The body took too long to arrive", ServiceError),
    "too-large": Kind(413, "The body is too large", InputError),
    "unsupported-media-type": Kind(415, "The body must be JSON", ServiceError),
    "invalid": Kind(422, "The request is not valid", InputError),
    "invalid-text": Kind(422, "A text has nothing to encode", TextError),
    "invalid-filter": Kind(422, "The filter cannot be understood", FilterError),
    "mismatch": Kind(422, "The request does not fit the index", MismatchError),
    "internal": Kind(500, "The service failed", ServiceError),
    "storage": Kind(500, "The index cannot be read or written", FileError),
    "device": Kind(500, "The device failed", DeviceError),
    "not-supported": Kind(501, "This index cannot do that", ServiceError),
    "overloaded": Kind(503, "The service is busy", BusyError),
    "not-ready": Kind(503, "The service is not ready", BusyError),
    "locked": Kind(503, "Another process is writing to the index", LockedError),
    "deadline": Kind(504, "The deadline has passed", ServiceError),
    "full": Kind(507, "There is no room on the disk", FullError),
}
