"""The fastest server there could be: it replays one answer, whatever it is asked.

    python -m rbegir.lab.bench.load_stub ANSWER

listens on a free port of the loopback, prints the port, and answers every request with the bytes of the file
ANSWER as JSON. What the load generator reaches against it is the generator's own limit.
"""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path

LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)


class Replay(asyncio.Protocol):
    """Counts requests as they arrive and answers each."""

    def __init__(self, answer: bytes) -> None:
        self._answer = answer
        self._buffer = bytearray()
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while (head := self._buffer.find(b"\r\n\r\n")) >= 0:
            length = LENGTH.search(self._buffer, 0, head)
            end = head + 4 + (int(length[1]) if length else 0)
            if len(self._buffer) < end:
                return
            del self._buffer[:end]
            self._transport.write(self._answer)


async def main() -> None:
    body = Path(sys.argv[1]).read_bytes()
    head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    answer = head.encode() + body
    server = await asyncio.get_running_loop().create_server(lambda: Replay(answer), "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
