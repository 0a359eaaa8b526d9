"""The whole content of an index as a stream: JSON lines, or Arrow IPC.

The batches belong to one state of the index, whatever is changed while they are sent. Reading and encoding
happen in a thread, one batch at a time, and only when the client has taken the one before. A client that
takes nothing until the deadline is dropped.
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pyarrow as pa
from pydantic_core import to_json


def lines(batches: Iterator[pa.RecordBatch]) -> Iterator[bytes]:
    """{"id", "text", "attributes"} per line."""
    for batch in batches:
        yield b"".join(to_bytes(keyword_body(row)) + b"\n" for row in batch.to_pylist())


def arrow(batches: Iterator[pa.RecordBatch]) -> Iterator[bytes]:
    """An Arrow IPC stream with the columns id, text and the attributes."""
    sink = _Sink()
    first = next(batches)  # there is always one, if only for its schema
    with pa.ipc.new_stream(pa.PythonFile(sink, "w"), first.schema) as writer:
        writer.write_batch(first)
        yield sink.taken()
        for batch in batches:
            writer.write_batch(batch)
            yield sink.taken()
    yield sink.taken()


class _Sink(io.RawIOBase):
    """A file whose bytes can be taken away as they come."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._bytes += memoryview(data)
        return len(data)

    def taken(self) -> bytes:
        taken, self._bytes = bytes(self._bytes), bytearray()
        return taken


def to_bytes(value: Any) -> bytes:
    """JSON; dates and times in ISO 8601. pydantic's Rust core is four times as fast as the json module."""
    return to_json(value, fallback=str)


def keyword_body(found: dict[str, Any]) -> dict[str, Any]:
    """A stored keyword as the API shows it."""
    attributes = {name: value for name, value in found.items() if name not in ("id", "text")}
    return {"id": found["id"], "text": found["text"], "attributes": attributes}


async def within(chunks: Iterator[bytes], clock: asyncio.Timeout, seconds: float) -> AsyncIterator[bytes]:
    """The chunks, made in a thread; the deadline begins anew with each."""
    loop = asyncio.get_running_loop()
    while True:
        clock.reschedule(loop.time() + seconds)
        chunk = await asyncio.to_thread(next, chunks, None)
        if chunk is None:
            return
        yield chunk
