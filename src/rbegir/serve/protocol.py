"""Slow, greedy and many clients, at the socket: what uvicorn leaves open.

uvicorn closes connections that idle after a response, but waits forever for the first byte and for the end of
the headers. Its fast parser takes headers of any length, also behind a chunked body, and parses pipelined
requests far ahead of their responses. This layer around its protocol limits

    headers       in time and in size
    trailers      and whatever else a chunked body has besides its content, likewise
    pipelines     at most MAX_PIPELINED requests are parsed ahead, and no more is read until they are answered
    responses     a client that does not read its response is dropped (`Unsent`)
    connections   in number

The body has limits of its own (`body.py`).

uvicorn also writes the head and the body of a response separately. Each write is a system call that wakes up
the client, which took a quarter of the interpreter's time with a hundred small responses in a batch.
`Coalescing` joins what is written in one turn of the event loop.

It relies on two attributes of uvicorn's protocol: `cycle`, which is set when the headers of a request are
complete, and `pipeline`, the requests that were parsed ahead.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from rbegir.wire.problems import Problem

HEADER_BYTES = 64 << 10
MAX_PIPELINED = 16  # requests of a connection that are parsed while an earlier one is being answered
PIECE = 8 << 10  # bytes parsed at a time; a piece may hold a few hundred requests
LEAST_READ = 256 << 10  # bytes of a response that a client must read in `send_timeout_s`
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
    """A transport that writes once per turn of the loop; in everything else it is the one that it wraps.

    While it is `held`, requests to resume reading are ignored.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop, unsent: Unsent) -> None:
        self._transport = transport
        self._unsent = unsent
        self._pieces: list[bytes] = []
        self._written = 0
        self.loop = loop
        self.held = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if not self._pieces:
            self.loop.call_soon(self._flush)
        self._pieces.append(data)

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def get_write_buffer_size(self) -> int:
        return self._transport.get_write_buffer_size() + sum(map(len, self._pieces))

    def resume_reading(self) -> None:
        if not self.held:
            self._transport.resume_reading()

    def taken(self) -> int:
        """Bytes that have left for the client."""
        return self._written - self._transport.get_write_buffer_size()

    def _flush(self) -> None:
        if self._pieces:
            data = b"".join(self._pieces)
            self._pieces = []
            self._written += len(data)
            self._transport.write(data)
            if self._transport.get_write_buffer_size():
                self._unsent.watch(self)


class Unsent:
    """Responses that clients have yet to read.

    A client that reads less than LEAST_READ in `seconds` is dropped. If all of them together hold more than
    `most` bytes, the one that has been reading for the longest time is.
    """

    def __init__(self, seconds: float, most: int) -> None:
        self._seconds, self._most = seconds, most
        self._clients: dict[Coalescing, int] = {}  # bytes taken when last looked at; the oldest first

    def watch(self, client: Coalescing) -> None:
        """Look after a client that has not taken all that was written."""
        if client not in self._clients:
            self._look_later(client)
        while sum(one.get_write_buffer_size() for one in self._clients) > self._most:
            self._drop(next(iter(self._clients)))

    def _look_later(self, client: Coalescing) -> None:
        self._clients[client] = client.taken()
        client.loop.call_later(self._seconds, self._look, client)

    def _look(self, client: Coalescing) -> None:
        before = self._clients.get(client)
        if before is None:
            return
        if not client.get_write_buffer_size():
            del self._clients[client]
        elif client.taken() - before < LEAST_READ:
            self._drop(client)
        else:
            self._look_later(client)

    def _drop(self, client: Coalescing) -> None:
        del self._clients[client]
        client.abort()


def bounded_protocol(header_timeout_s: float, max_connections: int, unsent: Unsent) -> type[Any]:
    """A protocol class for uvicorn with the limits above."""

    class BoundedProtocol(HttpToolsProtocol):
        transport: Any  # a Coalescing
        _timer: asyncio.TimerHandle | None = None
        _unread = b""  # received, and not parsed while too many requests wait
        _body = 0  # bytes of the body of the last request
        _pending = 0  # other bytes since its headers were complete
        _last: Any = None  # the request whose headers were complete last

        def connection_made(self, transport: Any) -> None:
            wrapped: Any = Coalescing(transport, self.loop, unsent)
            super().connection_made(wrapped)
            if len(self.connections) > max_connections:
                transport.write(BUSY % (len(BUSY_BODY), BUSY_BODY))
                transport.close()
                return
            self._arm()

        def connection_lost(self, error: Exception | None) -> None:
            self._disarm()
            super().connection_lost(error)

        def data_received(self, data: bytes) -> None:
            """Parse piece by piece, and stop when enough requests wait."""
            self._unread, data, at = b"", self._unread + data, 0
            while at < len(data) and len(self.pipeline) < MAX_PIPELINED and not self.transport.is_closing():
                self._parse(data[at : at + PIECE])
                at += PIECE
            self._unread = data[at:]
            self.transport.held = bool(self._unread)
            if self._unread:
                self.flow.pause_reading()

        def _parse(self, data: bytes) -> None:
            before = self._body
            super().data_received(data)
            if self.transport.is_closing():
                return
            cycle = self.cycle
            headers = cycle is None or cycle.response_complete  # are being received, and not a body
            if cycle is not self._last:  # new headers are complete
                self._last = cycle
                self._body = self._pending = 0
                self._disarm()
            else:
                self._pending += len(data) - (self._body - before)
                if self._pending > HEADER_BYTES + (0 if headers else self._body):
                    self.transport.close()
                elif headers:
                    self._arm()

        def on_body(self, body: bytes) -> None:
            self._body += len(body)
            super().on_body(body)

        def on_header(self, name: bytes, value: bytes) -> None:
            if "method" not in self.scope:  # otherwise it is a trailer, which is not used
                super().on_header(name, value)

        def on_response_complete(self) -> None:
            super().on_response_complete()
            self._pending = 0
            if self._unread and not self.transport.is_closing():
                self.data_received(b"")
                if not self._unread:
                    self.flow.resume_reading()
                    self.transport.resume_reading()  # a request to do so may have been ignored while held

        def timeout_keep_alive_handler(self) -> None:
            """Close an idle connection; one whose client is still reading is not idle."""
            if not self.transport.get_write_buffer_size():
                super().timeout_keep_alive_handler()
                return
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
