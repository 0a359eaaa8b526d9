"""Slow and many clients, at the socket: what uvicorn leaves open.

uvicorn closes connections that idle after a response, but waits forever for the first byte and for the end of
the headers, and its fast parser takes headers of any length. This layer around its protocol closes a
connection whose headers are not complete in time or in size, and turns connections away beyond a number.
The body has limits of its own (`body.py`).

uvicorn also writes the head and the body of a response separately, and each is a system call that wakes the
client up; with a hundred small responses in a batch that was a quarter of the interpreter's time.
`Coalescing` stands between it and the socket and sends what was written in one turn of the event loop as one.

It is made for the parser that is installed: httptools if it is there, h11 otherwise. It relies on `cycle`,
which both uvicorn protocols set when the headers of a request are complete.
"""

from __future__ import annotations

import asyncio
from typing import Any

from rbegir.wire.problems import Problem

HEADER_BYTES = 64 << 10
BUSY = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/problem+json\r\nRetry-After: 1\r\n"
    b"Connection: close\r\nContent-Length: %d\r\n\r\n%b"
)
BUSY_BODY = Problem(
    "overloaded",
    "too many connections are open; nothing was done",
    hint="try again after the time in Retry-After, or use fewer connections",
).document()


class Coalescing:
    """A transport that writes once per turn of the loop; in everything else it is the one that it wraps."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._pieces: list[bytes] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if not self._pieces:
            self._loop.call_soon(self._flush)
        self._pieces.append(data)

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def get_write_buffer_size(self) -> int:
        return self._transport.get_write_buffer_size() + sum(map(len, self._pieces))

    def _flush(self) -> None:
        if self._pieces:
            pieces, self._pieces = self._pieces, []
            self._transport.write(b"".join(pieces))


def fastest_protocol() -> type[Any]:
    """uvicorn's protocol on the fastest parser that is installed."""
    try:
        from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
    except ImportError:
        from uvicorn.protocols.http.h11_impl import H11Protocol

        return H11Protocol
    return HttpToolsProtocol


def bounded_protocol(
    header_timeout_s: float, max_connections: int, base: type[Any] | None = None
) -> type[Any]:
    """A protocol class for uvicorn with limits on headers and connections."""

    class BoundedProtocol(base or fastest_protocol()):  # type: ignore[misc]
        _timer: asyncio.TimerHandle | None = None
        _left = 0  # bytes of a response that the client had not taken when last looked at
        _pending = 0  # bytes since the last complete headers
        _last: Any = None  # the request whose headers were complete last

        def connection_made(self, transport: asyncio.Transport) -> None:
            super().connection_made(Coalescing(transport, self.loop))
            if len(self.connections) > max_connections:
                transport.write(BUSY % (len(BUSY_BODY), BUSY_BODY))
                transport.close()
                return
            self._arm()

        def connection_lost(self, error: Exception | None) -> None:
            self._disarm()
            super().connection_lost(error)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self.transport.is_closing():
                return
            cycle = self.cycle
            if cycle is not self._last:  # new headers are complete
                self._last = cycle
                self._pending = 0
                self._disarm()
            elif cycle is None or cycle.response_complete:
                self._pending += len(data)
                if self._pending > HEADER_BYTES:
                    self.transport.close()
                else:
                    self._arm()

        def timeout_keep_alive_handler(self) -> None:
            """After a response: a slow reader may go on, a stopped one is dropped, an idle one closed."""
            left = self.transport.get_write_buffer_size()
            if not left:
                super().timeout_keep_alive_handler()
            elif left == self._left:
                self.transport.abort()
            else:
                self._left = left
                self.timeout_keep_alive_task = self.loop.call_later(
                    self.timeout_keep_alive, self.timeout_keep_alive_handler
                )

        def _arm(self) -> None:
            if self._timer is None:
                self._timer = self.loop.call_later(header_timeout_s, self.transport.close)

        def _disarm(self) -> None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

    return BoundedProtocol
