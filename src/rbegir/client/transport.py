"""What both clients need of httpx: how it is set up, what its errors mean, a body read within bounds.

httpx limits the time of each read, so a server that sends a byte now and then could hold a caller for ever;
here the clock of the attempt is looked at whenever a part of the body arrives. The same goes for size: bytes
are counted as they come, after decompression.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from rbegir.base.checks import whole_number
from rbegir.errors import InputError, MissingExtraError, ServiceError

if TYPE_CHECKING:
    import httpx

    from rbegir.client.calls import Call
    from rbegir.client.retry import Attempts

MAX_ANSWER_BYTES = 1 << 30


def load_httpx() -> Any:
    """The module, or an error that says how to get it."""
    try:
        import httpx
    except ModuleNotFoundError:
        raise MissingExtraError(
            "a client of a search service needs httpx", hint="pip install 'rbegir[client]'"
        ) from None
    return httpx


def check_settings(url: str, token: str | None, timeout_s: float, retries: int) -> None:
    """Refuse what cannot work before anything is sent."""
    parts = urlsplit(url) if isinstance(url, str) else None
    if parts is None or parts.scheme not in ("http", "https") or not parts.hostname:
        raise InputError(f"url must be the address of a service, such as http://127.0.0.1:8080, got {url!r}")
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
    whole_number("retries", retries, 0)


def settings(url: str, token: str | None, timeout_s: float) -> dict[str, Any]:
    """Arguments of httpx.Client and httpx.AsyncClient."""
    headers = {"X-Timeout-Ms": str(max(1, round(timeout_s * 1000)))}  # the service gives up when we do
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    # Redirects are not followed: nothing of the service redirects, and a token belongs to one address.
    return {"base_url": url, "headers": headers, "timeout": timeout_s, "follow_redirects": False}


class Bounded:
    """Collects the body of an answer, within a time and a size."""

    def __init__(self, timeout_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._until = clock() + timeout_s
        self._timeout_s = timeout_s
        self._parts: list[bytes] = []
        self._size = 0

    def take(self, part: bytes) -> None:
        """Add a part; an error where the answer has become too long or too slow."""
        self._parts.append(part)
        self._size += len(part)
        if self._size > MAX_ANSWER_BYTES:
            raise ServiceError(
                f"the answer has more than {MAX_ANSWER_BYTES} bytes", hint="ask for fewer hits at once"
            )
        if self._clock() > self._until:
            raise timed_out(self._timeout_s)

    def body(self) -> bytes:
        return b"".join(self._parts)


def timed_out(timeout_s: float) -> ServiceError:
    return ServiceError(
        f"the service did not answer within {timeout_s:g} s", hint="ask for less at once, or raise timeout_s"
    )


def wait_after(error: httpx.RequestError, call: Call[Any], attempts: Attempts, timeout_s: float) -> float:
    """How long to wait after a failed attempt, or the error of this package that it means."""
    import httpx

    if isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout)):
        wait = attempts.after_no_connection()
        reason = f"no connection ({error})" if str(error) else "no connection"
        hint = "is it running, and is the address right?"
    elif isinstance(error, httpx.TimeoutException):
        raise timed_out(timeout_s) from error
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
