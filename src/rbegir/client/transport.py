"""What both clients need of httpx: settings, bounded bodies, and which failures are tried again.

httpx limits the time of each read, so a server that sends a byte now and then could hold a caller forever;
here the clock and the size are looked at whenever a part of the body arrives, after decompression.

Idempotent calls (search, get, info, upsert, delete) may be repeated. `add` (it refuses ids that are there, so
it would trip over itself) and `compact` (long) are not.

| what happened                                   | repeatable call | add, compact |
|-------------------------------------------------|-----------------|--------------|
| no connection was made: nothing was sent        | again           | again        |
| 503: the service was busy                       | again           | raised       |
| the connection broke before the whole response  | again           | raised       |
| the time of the call was up                     | raised          | raised       |
| any other response                              | raised          | raised       |

The wait before attempt i is drawn from 0 … BACKOFF · 2^i seconds, so that clients refused together do not
come back together, and is never shorter than the service's Retry-After. A wait beyond MOST is not made.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar
from urllib.parse import urlsplit

from rbegir.base.checks import whole_number
from rbegir.errors import InputError, ServiceError, needing
from rbegir.wire.search import JSON

if TYPE_CHECKING:
    import httpx

    from rbegir.client.calls import Call

MAX_RESPONSE_BYTES = 1 << 30
BACKOFF = 0.1
MOST = 10.0
BUSY = 503
T = TypeVar("T")


class Connection:
    """The settings of a client; what `Client` and `AsyncClient` have in common."""

    _kind: ClassVar[str]  # which of httpx's clients sends

    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        timeout_s: float = 30.0,
        retries: int = 4,
        transport: Any = None,
    ) -> None:
        parts = urlsplit(url) if isinstance(url, str) else None
        if parts is None or parts.scheme not in ("http", "https") or not parts.hostname:
            raise InputError(
                f"url must be the address of a service, such as http://127.0.0.1:8080, got {url!r}"
            )
        if parts.query or parts.fragment or parts.username:
            raise InputError(
                "url must hold nothing but scheme, host, port and path", hint="give a token as token="
            )
        if token is not None and not (
            isinstance(token, str) and token and token.isascii() and token.isprintable()
        ):
            raise InputError("token must be a text of printable ASCII characters")
        if isinstance(timeout_s, bool) or not isinstance(timeout_s, (int, float)) or not 0 < timeout_s < 1e6:
            raise InputError(f"timeout_s must be a positive number of seconds, got {timeout_s!r}")
        self._url, self._timeout_s, self._retries = url, timeout_s, whole_number("retries", retries, 0)
        with needing("a client of a search service needs httpx", "pip install 'rbegir[client]'"):
            import httpx
        self._failure = httpx.RequestError
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        # Redirects are not followed: nothing of the service redirects, and a token belongs to one address.
        self._http: Any = getattr(httpx, self._kind)(
            base_url=url, headers=headers, follow_redirects=False, transport=transport
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._url!r})"

    def _exchange(self, call: Call[T]) -> HttpExchange[T]:
        timeout_s = self._timeout_s if call.timeout_s is None else call.timeout_s
        return HttpExchange(call, timeout_s, Attempts(call.repeatable, self._retries))


class HttpExchange(Generic[T]):
    """A call and its attempts. The clients send, read and wait; everything else is decided here."""

    def __init__(self, call: Call[T], timeout_s: float, attempts: Attempts) -> None:
        self.call, self.timeout_s, self._attempts = call, timeout_s, attempts
        content = call.content()
        headers = {
            "Accept": call.accept,
            "X-Timeout-Ms": str(max(1, round(timeout_s * 1000))),  # the service gives up when we do
            **({} if content is None else {"Content-Type": JSON}),
        }
        self.request: dict[str, Any] = {
            "method": call.method,
            "url": call.path,
            "content": content,
            "headers": headers,
            "timeout": timeout_s,
        }

    def wait_after_response(self, response: httpx.Response) -> float | None:
        """How long to wait before the next attempt; None: this response counts."""
        return self._attempts.after_response(response.status_code, response.headers.get("retry-after"))

    def wait_after_failure(self, error: httpx.RequestError) -> float:
        """How long to wait after a failed attempt, or the error of this package that it means."""
        import httpx

        call, attempts = self.call, self._attempts
        if isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout)):
            wait = attempts.after_no_connection()
            reason = f"no connection ({error})" if str(error) else "no connection"
            hint = "is it running, and is the address right?"
        elif isinstance(error, httpx.TimeoutException):
            raise timed_out(self.timeout_s) from error
        elif isinstance(error, httpx.DecodingError):
            raise ServiceError(f"the answer to {call.method} {call.path} cannot be decompressed") from error
        else:
            wait = attempts.after_break()
            reason = "the connection broke"
            hint = "try again" if call.repeatable else "look whether it was done before trying again"
        if wait is None:
            tried = f" (tried {attempts.made + 1} times)" if attempts.made else ""
            raise ServiceError(
                f"{call.method} {call.path} got no answer from the service: {reason}{tried}", hint=hint
            ) from error
        return wait

    def result(self, response: httpx.Response, body: BoundedBody) -> T:
        return self.call.result(response.status_code, response.headers.get("content-type", ""), body.bytes())


class BoundedBody:
    """Collects the body of a response, within a time and a size."""

    def __init__(self, timeout_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._until = clock() + timeout_s
        self._timeout_s = timeout_s
        self._parts: list[bytes] = []
        self._size = 0

    def take(self, part: bytes) -> None:
        """Add a part; an error where the response has become too long or too slow."""
        self._parts.append(part)
        self._size += len(part)
        if self._size > MAX_RESPONSE_BYTES:
            raise ServiceError(
                f"the answer has more than {MAX_RESPONSE_BYTES} bytes", hint="ask for fewer hits at once"
            )
        if self._clock() > self._until:
            raise timed_out(self._timeout_s)

    def bytes(self) -> bytes:
        return b"".join(self._parts)


def timed_out(timeout_s: float) -> ServiceError:
    return ServiceError(
        f"the service did not answer within {timeout_s:g} s", hint="ask for less at once, or raise timeout_s"
    )


@dataclass
class Attempts:
    """The attempts of one call. Each method says how long to wait before the next, or None: no next."""

    repeatable: bool
    retries: int
    draw: Callable[[float, float], float] = random.uniform
    made: int = 0

    def after_no_connection(self) -> float | None:
        return self._wait(0.0)

    def after_break(self) -> float | None:
        return self._wait(0.0) if self.repeatable else None

    def after_response(self, status: int, header: str | None) -> float | None:
        return self._wait(retry_after(header)) if status == BUSY and self.repeatable else None

    def _wait(self, least: float) -> float | None:
        if self.made >= self.retries or least > MOST:
            return None
        wait = max(least, self.draw(0.0, min(MOST, BACKOFF * 2**self.made)))
        self.made += 1
        return wait


def retry_after(header: str | None) -> float:
    """Seconds of a Retry-After header, given as a number or as a date; 0 for none and for nonsense."""
    if not header:
        return 0.0
    if header.strip().isdecimal():
        return float(header)
    try:
        moment = parsedate_to_datetime(header)
    except ValueError:
        return 0.0
    if moment.tzinfo is None:
        return 0.0
    return max(0.0, (moment - datetime.now(UTC)).total_seconds())
