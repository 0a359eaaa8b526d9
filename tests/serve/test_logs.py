"""The log never stands in the way."""

from __future__ import annotations

import io
import os

from rbegir.serve.monitor import RequestLog


def test_a_reader_that_is_gone_does_not_stop_the_service() -> None:
    """A process that cannot write `draining` must still drain."""
    read, write = os.pipe()
    os.close(read)
    with io.TextIOWrapper(io.FileIO(write, "w"), write_through=True) as stream:
        RequestLog(stream).event("draining")
    RequestLog(stream).event("after the stream was closed")
