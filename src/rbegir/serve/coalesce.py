"""One packet an answer: what is written in one turn of the event loop is sent together.

uvicorn writes the head and the body of an answer separately, and each is a system call that wakes the client
up; with a hundred small answers in a batch that was a quarter of the interpreter's time. This stands between
it and the socket, keeps what is written, and sends it as one piece when the present turn of the loop is over.
"""

from __future__ import annotations

import asyncio
from typing import Any


class Coalescing:
    """A transport that writes once a turn; in everything else it is the one that it wraps."""

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
