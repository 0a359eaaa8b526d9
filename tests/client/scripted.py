"""A server that says what it is told to, well-formed or not, and remembers what it was asked."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa

Turn = bytes | Callable[[socket.socket], None]  # what is sent before the connection is closed


def answer(status: str, body: bytes = b"", media: str = "application/json", **headers: str) -> bytes:
    """A whole HTTP answer."""
    lines = [f"HTTP/1.1 {status}", f"Content-Type: {media}", f"Content-Length: {len(body)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "Connection: close", "", ""]).encode() + body


def arrow(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    raw: bytes = sink.getvalue().to_pybytes()
    return answer("200 OK", raw, "application/vnd.apache.arrow.stream")


def hits_table(queries: int = 1, k: int = 2, **columns: list[object]) -> pa.Table:
    """A good answer to a search; columns may be replaced by bad ones."""
    count = queries * k
    good: dict[str, list[object]] = {
        "query": [q for q in range(queries) for _ in range(k)],
        "rank": [*range(1, k + 1)] * queries,
        "id": [*range(count)],
        "score": [1 - i / 100 for i in range(count)],
        "key": [100 - i for i in range(count)],
        "row": [*range(count)],
        "text": [f"text {i}" for i in range(count)],
    }
    return pa.table({**good, **columns})


class Scripted:
    """Takes one turn a connection; the last one is repeated."""

    def __init__(self, turns: Sequence[Turn]) -> None:
        self._turns = list(turns)
        self.asked: list[bytes] = []  # the request lines
        self._came = threading.Condition()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return  # closed: the test is over
            threading.Thread(target=self._talk, args=(connection,), daemon=True).start()

    def _talk(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):  # clients may leave at any time
            line = _request(connection)
            if not line:
                return  # it left before it asked
            with self._came:
                self.asked.append(line)
                turn = self._turns[min(len(self.asked), len(self._turns)) - 1]
                self._came.notify_all()
            if callable(turn):
                turn(connection)
            else:
                connection.sendall(turn)

    def wait_asked(self, count: int) -> None:
        """Until so many requests have come."""
        with self._came:
            self._came.wait_for(lambda: len(self.asked) >= count)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()


def _request(connection: socket.socket) -> bytes:
    """Read a request to its end; returns its first line."""
    raw = b""
    while b"\r\n\r\n" not in raw:
        raw += connection.recv(65536) or b"\r\n\r\n"
    head, _, body = raw.partition(b"\r\n\r\n")
    length = next(
        (
            int(v)
            for n, _, v in (h.partition(b":") for h in head.split(b"\r\n"))
            if n.lower() == b"content-length"
        ),
        0,
    )
    while len(body) < length and (more := connection.recv(65536)):
        body += more
    return head.split(b"\r\n")[0]


@contextlib.contextmanager
def scripted(*turns: Turn) -> Iterator[Scripted]:
    server = Scripted(turns)
    try:
        yield server
    finally:
        server.close()
