"""The use of httpx that both clients share: settings, bounded bodies, and which failures are retried.

httpx limits the time of each read, so a server that sends a byte now and then could hold a caller forever.
Here time and size are checked whenever a part of the body arrives, after decompression.

Idempotent calls (search, get, info, count, upsert, update, delete) may be repeated. `add` (which refuses
existing ids, so its own repetition too) and `compact` (which takes long) are not.

| what happened                                   | repeatable call | add, compact |
|-------------------------------------------------|-----------------|--------------|
| no connection was made: nothing was sent        | again           | again        |
| 503, 429: the service, or the client, is busy   | again           | raised       |
| the connection broke before the whole response  | again           | raised       |
| the time of the call was up                     | raised          | raised       |
| any other response                              | raised          | raised       |

The wait before attempt i is drawn from 0 … BACKOFF · 2^i seconds, so that clients refused together do not
come back together, and is never shorter than the service's Retry-After. A wait beyond MOST is not made.
"""

from __future__ import annotations

import contextlib
import random
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar
from urllib.parse import quote, urlsplit

from rbegir.errors import InputError, ServiceError, needing, whole_number
from rbegir.wire.search import JSON, named_path

if TYPE_CHECKING:
    import httpx

    from rbegir.client.calls import Call

MAX_RESPONSE_BYTES = 1 << 30
BACKOFF = 0.1
MOST = 10.0
BUSY = (429, 503)
T = TypeVar("T")


class Connection:
    """The settings of a client; what `Client` and `AsyncClient` have in common."""

    _kind: ClassVar[str]  # which of httpx's clients sends

    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        index: str | None = None,
        timeout_s: float = 30.0,
        retries: int = 4,
        transport: Any = None,
    ) -> None:
        try:
            parts = urlsplit(url) if isinstance(url, str) and not re.search(r"\s", url) else urlsplit("")
            wrong = parts.scheme not in ("http", "https") or not parts.hostname or parts.port == 0
        except ValueError:  # brackets or a port that cannot be
            wrong = True
        if wrong:
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
        if index is not None and not (isinstance(index, str) and index):
            raise InputError(f"index must be the name of an index of the service, got {index!r}")
        self._index = index
        self._url, self._timeout_s, self._retries = url, timeout_s, whole_number("retries", retries, 0)
        with needing("a client of a search service needs httpx", "pip install 'rbegir[client]'"):
            import httpx
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        # Redirects are not followed: nothing of the service redirects, and a token belongs to one address.
        self._http: Any = getattr(httpx, self._kind)(
            base_url=url, headers=headers, follow_redirects=False, transport=transport
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._url!r})"

    def _exchange(self, call: Call[T]) -> HttpExchange[T]:
        if self._index is not None:
            call = replace(call, path=named_path(call.path, quote(self._index, safe="")) or call.path)
        return HttpExchange(
            call, self._timeout_s if call.timeout_s is None else call.timeout_s, self._retries
        )


class HttpExchange(Generic[T]):
    """A call and its attempts. The clients send, read and wait; everything else is decided here."""

    response: httpx.Response

    def __init__(self, call: Call[T], timeout_s: float, retries: int) -> None:
        self._call, self._timeout_s, self._retries = call, timeout_s, retries
        self._made = 0  # attempts after the first
        content = call.content()
        headers = {
            "Accept": call.accept,
            "X-Timeout-Ms": str(max(1, round(timeout_s * 1000))),  # the service gives up when we do
            **({} if content is None else {"Content-Type": JSON}),
        }
        self._request: dict[str, Any] = {
            "method": call.method,
            "url": call.path,
            "content": content,
            "headers": headers,
            "timeout": timeout_s,
        }

    @contextlib.contextmanager
    def attempt(self) -> Iterator[dict[str, Any]]:
        """Around an attempt, which sets `response`: the arguments of httpx's `stream`.

        Afterwards `wait` is the time before the next attempt, None if there is a result.
        """
        import httpx

        self._parts: list[bytes] = []
        self._size = 0
        self._until = time.monotonic() + self._timeout_s
        try:
            yield self._request
        except httpx.RequestError as error:
            self.wait: float | None = self.wait_after_failure(error)
        else:
            self.wait = self.wait_after_response(self.response)

    def take(self, part: bytes) -> None:
        """Add a part of the body; an error where the response has become too long or too slow."""
        self._parts.append(part)
        self._size += len(part)
        if self._size > MAX_RESPONSE_BYTES:
            raise ServiceError(
                f"the response has more than {MAX_RESPONSE_BYTES} bytes", hint="ask for fewer hits at once"
            )
        if time.monotonic() > self._until:
            raise self._timed_out()

    def result(self) -> T:
        media = self.response.headers.get("content-type", "")
        return self._call.result(self.response.status_code, media, b"".join(self._parts))

    def wait_after_response(self, response: httpx.Response) -> float | None:
        """How long to wait before the next attempt; None: this response counts."""
        if response.status_code not in BUSY or not self._call.repeatable:
            return None
        return self._wait(retry_after(response.headers.get("retry-after")))

    def wait_after_failure(self, error: httpx.RequestError) -> float:
        """How long to wait after a failed attempt, or the error of this package that it means."""
        import httpx

        call, wait = self._call, None
        if isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout)):
            wait = self._wait()
            reason = f"no connection ({error})" if str(error) else "no connection"
            hint = "is it running, and is the address right?"
        elif isinstance(error, httpx.TimeoutException):
            raise self._timed_out() from error
        elif isinstance(error, httpx.DecodingError):
            raise ServiceError(f"the response to {call.method} {call.path} cannot be decompressed") from error
        else:
            reason, hint = "the connection broke", "check whether it was done before trying again"
            if call.repeatable:
                wait, hint = self._wait(), "try again"
        if wait is None:
            tried = f" (tried {self._made + 1} times)" if self._made else ""
            raise ServiceError(
                f"{call.method} {call.path} got no response from the service: {reason}{tried}", hint=hint
            ) from error
        return wait

    def _wait(self, least: float = 0.0) -> float | None:
        if self._made >= self._retries or least > MOST:
            return None
        wait = max(least, random.uniform(0.0, min(MOST, BACKOFF * 2**self._made)))
        self._made += 1
        return wait

    def _timed_out(self) -> ServiceError:
        return ServiceError(
            f"the service did not answer within {self._timeout_s:g} s",
            hint="ask for less at once, or raise timeout_s",
        )


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
