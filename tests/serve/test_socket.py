"""Over a real socket: deadlines, clients that leave, overload, slow and enormous senders."""

from __future__ import annotations

import contextlib
import itertools
import json
import shutil
import socket
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

import rbegir
from tests.serve.conftest import PATIENT, get, listening, post
from tests.serve.test_batcher import Gated
from tests.serve.test_committer import Gated as GatedWrites
from tests.serve.test_requests import problem

BODY = {"queries": ["red hat"], "k": 3}


def wait_until(true: Any) -> None:
    """Wait for an event, however busy the machine is; the time limit of a test ends a wait in vain."""
    while not true():
        time.sleep(0.005)


def connect(address: str) -> socket.socket:
    host, port = address.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=PATIENT)


def request_bytes(body: bytes, *headers: str) -> bytes:
    lines = ["POST /v1/search HTTP/1.1", "Host: localhost", "Content-Type: application/json", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


def send_until_closed(client: socket.socket, pieces: Iterable[bytes], pause_s: float) -> bool:
    """Send one piece after the other; whether the server has closed the connection before the last."""
    try:
        for piece in pieces:
            client.sendall(piece)
            time.sleep(pause_s)
    except OSError:
        return True
    return False


@contextlib.contextmanager
def held(index_path: Path, **settings: Any) -> Iterator[tuple[Gated, str]]:
    """A service whose scans wait until its gate is set, and its address."""
    engine = Gated(rbegir.Index.open(index_path))
    engine.gate.set()  # for the search that it warms up with
    with listening(engine, **{"timeout_s": PATIENT, **settings}) as address:
        assert engine.started.acquire(timeout=PATIENT)
        engine.scans.clear()
        engine.gate.clear()
        try:
            yield engine, address
        finally:
            engine.gate.set()


def metric(address: str, name: str) -> float:
    page = get(f"{address}/metrics").text
    return float(next(line for line in page.splitlines() if line.startswith(f"{name} ")).split()[1])


def test_a_deadline_is_kept_while_waiting(index_path: Path) -> None:
    with held(index_path) as (gated, address), ThreadPoolExecutor() as pool:
        first = pool.submit(post, f"{address}/v1/search", json=BODY)
        assert gated.started.acquire(timeout=PATIENT)
        late = post(f"{address}/v1/search", json=BODY, headers={"X-Timeout-Ms": "50"})
        found = problem(late, 504, "deadline")
        assert found["detail"] == "the request was not answered within 50 ms"
        assert metric(address, "rbegir_queue_depth") == 0  # it has left the queue
        gated.gate.set()
        assert first.result().status_code == 200


def test_the_service_has_a_longest_deadline(index_path: Path) -> None:
    with held(index_path, timeout_s=0.05) as (gated, address):
        late = post(f"{address}/v1/search", json=BODY, headers={"X-Timeout-Ms": "60000"})
        problem(late, 504, "deadline")
        gated.gate.set()


def test_a_client_that_leaves_cancels_its_work(index_path: Path) -> None:
    with held(index_path) as (gated, address), ThreadPoolExecutor() as pool:
        first = pool.submit(post, f"{address}/v1/search", json=BODY)
        assert gated.started.acquire(timeout=PATIENT)
        content = json.dumps({"queries": ["hat"] * 7}).encode()
        with connect(address) as client:
            client.sendall(request_bytes(content, f"Content-Length: {len(content)}"))
            wait_until(lambda: metric(address, "rbegir_queue_depth") == 7)
        wait_until(lambda: metric(address, "rbegir_queue_depth") == 0)
        gated.gate.set()
        assert first.result().status_code == 200
    assert gated.scans == [(1, 3)]


def test_a_change_whose_client_has_left_is_not_made(index_path: Path) -> None:
    engine = GatedWrites(rbegir.Index.open(index_path))
    engine.gate.set()  # for becoming the writer
    with listening(engine) as address, ThreadPoolExecutor() as pool:
        wait_until(lambda: engine.started.acquire(blocking=False))
        engine.gate.clear()
        keywords = [{"keywords": [{"id": key, "text": "new"}]} for key in (1001, 1002)]
        first = pool.submit(post, f"{address}/v1/keywords", json=keywords[0])
        assert engine.started.acquire(timeout=PATIENT)
        content = json.dumps(keywords[1]).encode()
        with connect(address) as client:
            request = request_bytes(content, f"Content-Length: {len(content)}")
            client.sendall(request.replace(b"/v1/search", b"/v1/keywords"))
            wait_until(lambda: metric(address, "rbegir_write_queue_depth") == 1)
        wait_until(lambda: metric(address, "rbegir_write_queue_depth") == 0)
        engine.gate.set()
        assert first.result().json() == {"upserted": 1}
        assert get(f"{address}/v1/keywords/1001").status_code == 200
        assert get(f"{address}/v1/keywords/1002").status_code == 404


def test_overload_is_refused_at_once(index_path: Path) -> None:
    with held(index_path, max_waiting=2) as (gated, address), ThreadPoolExecutor() as pool:
        first = pool.submit(post, f"{address}/v1/search", json=BODY)
        assert gated.started.acquire(timeout=PATIENT)
        waiting = [pool.submit(post, f"{address}/v1/search", json=BODY) for _ in range(2)]
        wait_until(lambda: metric(address, "rbegir_queue_depth") == 2)
        answer = post(f"{address}/v1/search", json=BODY)
        problem(answer, 503, "overloaded")
        assert int(answer.headers["retry-after"]) >= 1
        assert get(f"{address}/readyz").status_code == 200
        gated.gate.set()
        assert [task.result().status_code for task in (first, *waiting)] == [200] * 3


@pytest.fixture(scope="module")
def services(stored: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Services: one with little time for headers, one for bodies, one with little room."""
    limits = {
        "hurried headers": {"header_timeout_s": 0.2},
        "hurried bodies": {"body_timeout_s": 0.2},
        "small": {"header_timeout_s": PATIENT, "body_timeout_s": PATIENT, "max_body_bytes": 100_000},
    }
    with contextlib.ExitStack() as stack:
        addresses = {}
        for name, own in limits.items():
            path = shutil.copytree(stored, tmp_path_factory.mktemp("limited") / "shop.rbe")
            addresses[name] = stack.enter_context(listening(rbegir.Index.open(path), **own))
        yield addresses


class TestSlowAndLarge:
    """It closes or refuses, and goes on."""

    @pytest.fixture
    def headers(self, services: dict[str, str]) -> Iterator[str]:
        yield from self._going_on(services["hurried headers"])

    @pytest.fixture
    def bodies(self, services: dict[str, str]) -> Iterator[str]:
        yield from self._going_on(services["hurried bodies"])

    @pytest.fixture
    def address(self, services: dict[str, str]) -> Iterator[str]:
        yield from self._going_on(services["small"])

    def _going_on(self, address: str) -> Iterator[str]:
        """The address; after a test the service answers, if need be until a request is sent in time."""
        yield address
        wait_until(lambda: _answers(address))

    @pytest.mark.parametrize("sent", [b"", b"POST /v1/sea", b"POST /v1/search HTTP/1.1\r\nHost: localh"])
    def test_headers_that_do_not_come(self, headers: str, sent: bytes) -> None:
        with connect(headers) as client:
            client.sendall(sent)
            assert read(client, 100) == 0  # closed

    def test_headers_that_come_byte_by_byte(self, headers: str) -> None:
        with connect(headers) as client:
            lines = (b"X-%d: 1\r\n" % number for number in range(10_000))
            assert send_until_closed(client, itertools.chain([b"GET /healthz HTTP/1.1\r\n"], lines), 0.02)

    def test_the_second_request_of_a_connection_has_no_more_time(self, headers: str) -> None:
        answered = False
        while not answered:  # it is not where this machine takes longer than the limit to ask
            with connect(headers) as client, contextlib.suppress(OSError):
                client.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
                answered = client.recv(1000).startswith(b"HTTP/1.1 200")
                client.sendall(b"GET /hea")
                assert read(client, 1000) == 0

    def test_endless_headers(self, address: str) -> None:
        with connect(address) as client:
            client.sendall(b"GET /healthz HTTP/1.1\r\n")
            lines = (b"X-%d: %b\r\n" % (number, b"a" * 1000) for number in range(10_000))
            assert send_until_closed(client, lines, 0)

    def test_a_body_that_does_not_come(self, bodies: str) -> None:
        with connect(bodies) as client:
            client.sendall(request_bytes(b'{"queries"', "Content-Length: 1000"))
            answer = client.recv(10_000)
        assert answer.startswith(b"HTTP/1.1 408")
        assert b"the body was not complete after 0.2 s" in answer

    def test_an_enormous_body_without_a_length(self, address: str) -> None:
        sent = 0
        with connect(address) as client:
            client.sendall(request_bytes(b"", "Transfer-Encoding: chunked"))
            reader = ThreadPoolExecutor(1).submit(client.recv, 10_000)
            while not reader.done() and sent < 10**9:
                try:
                    client.sendall(b"10000\r\n" + b"a" * 0x10000 + b"\r\n")
                except OSError:
                    break
                sent += 0x10000
            assert reader.result(PATIENT).startswith(b"HTTP/1.1 413")
        assert sent < 50 << 20

    def test_an_enormous_length(self, address: str) -> None:
        with connect(address) as client:
            client.sendall(request_bytes(b"{", f"Content-Length: {10**12}"))
            assert client.recv(10_000).startswith(b"HTTP/1.1 413")

    def test_what_is_not_http(self, address: str) -> None:
        with connect(address) as client:
            client.sendall(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 hello\r\n\r\n")
            assert client.recv(10_000).startswith(b"HTTP/1.1 400")


def test_a_reader_that_stops_is_dropped_and_a_slow_one_is_not(index_path: Path) -> None:
    """An answer of many megabytes, more than the buffers of the sockets hold."""
    body = json.dumps({"queries": ["hat"] * 500, "k": 200}).encode()
    request = request_bytes(body, f"Content-Length: {len(body)}")
    timeout, paused = 1, 1.0
    while paused > timeout / 2:  # this machine itself did not let the slow reader read for so long
        with listening(rbegir.Index.open(index_path), send_timeout_s=timeout) as address:
            with connect(address) as stopped, connect(address) as slow:
                for client in (stopped, slow):
                    client.sendall(request)
                head = slow.recv(1 << 16, socket.MSG_PEEK).partition(b"\r\n\r\n")[0]
                size = int(head.partition(b"content-length: ")[2].split()[0])
                whole = len(head) + 4 + size
                began, pauses = time.monotonic(), [0.0]
                received = read(slow, whole, piece=1 << 16, pause_s=timeout / 50, pauses=pauses)
                paused = max(pauses)
                if paused <= timeout / 2:
                    assert received == whole
                    assert time.monotonic() - began > 2 * timeout
                name = stopped.getsockname()
                wait_until(lambda name=name: name not in clients(address))
                assert read(stopped, whole) < size
            assert post(f"{address}/v1/search", json=BODY).status_code == 200
        timeout *= 4


def clients(address: str) -> set[Any]:
    """The clients whose connections a service in this process has not closed."""
    port = int(address.rpartition(":")[2])
    found = psutil.Process().net_connections("tcp")
    return {tuple(one.raddr) for one in found if one.laddr.port == port and one.raddr}


def read(
    client: socket.socket,
    size: int,
    *,
    piece: int = 1 << 20,
    pause_s: float = 0.0,
    pauses: list[float] | None = None,
) -> int:
    """Read up to `size` bytes, with a pause after each piece. Returns how many came before the end.

    `pauses` is given the seconds from each piece to the next, except for the wait for the server.
    """
    received = 0
    with contextlib.suppress(ConnectionResetError):
        while received < size and (found := client.recv(piece)):
            began = time.monotonic()
            received += len(found)
            time.sleep(pause_s)
            if pauses is not None:
                pauses.append(time.monotonic() - began)
    return received


def test_connections_beyond_the_limit_are_turned_away(index_path: Path) -> None:
    with listening(rbegir.Index.open(index_path), max_connections=2) as address:
        held = [connect(address) for _ in range(2)]
        with connect(address) as third:
            answer = third.recv(10_000)
        assert answer.startswith(b"HTTP/1.1 503")
        assert b"Retry-After: 1\r\n" in answer
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["type"] == "urn:rbegir:problem:overloaded"
        for client in held:
            client.close()
        wait_until(lambda: _answers(address))


def _answers(address: str) -> bool:
    try:
        return get(f"{address}/healthz").status_code == 200
    except httpx.HTTPError:
        return False


def test_concurrent_searches_and_changes_agree(index_path: Path) -> None:
    """Many clients write and read back at once: each sees its own write in the next search."""
    failures: list[str] = []

    def client(number: int, address: str) -> None:
        with httpx.Client(base_url=address, timeout=PATIENT) as http:
            for turn in range(5):
                key, text = 1000 + number, f"client {number} turn {turn}"
                http.post("/v1/keywords", json={"keywords": [{"id": key, "text": text}]}).raise_for_status()
                body = {"queries": [text], "k": 5, "where": f"id = {key}"}
                (result,) = http.post("/v1/search", json=body).raise_for_status().json()["results"]
                if [hit["text"] for hit in result["hits"]] != [text]:
                    failures.append(f"{number}.{turn}: {result}")

    with listening(rbegir.Index.open(index_path)) as address:
        threads = [threading.Thread(target=client, args=[number, address]) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failures
