"""The load benchmark of the service: its books are right, it finds a server that lies, and it runs."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from rbegir.errors import InputError
from rbegir.lab.bench.load import FIRST_ID, Ledger, Mix, drive, prepared, receive
from rbegir.lab.bench.serve import run
from tests.service import make_model


def test_the_ledger_knows_what_cannot_be() -> None:
    ledger = Ledger()
    ledger.found([1], asked=0.0)
    assert ledger.phantoms == ["1 was never sent"]
    ledger = Ledger()
    ledger.sent(1, "a", 1.0)
    ledger.found([1], asked=0.5)  # answered after it was sent: it may show up
    ledger.read(1, None)  # not acknowledged yet: anything goes
    ledger.acknowledge(1, "a", 2.0)
    ledger.read(1, "a")
    ledger.sent(1, None, 3.0)
    ledger.acknowledge(1, None, 4.0)
    ledger.read(1, None)
    ledger.found([1], asked=3.5)  # sent before the deletion was acknowledged
    assert (ledger.lost, ledger.phantoms, ledger.acknowledged, ledger.searched_ids) == ([], [], 2, 2)
    ledger.found([1], asked=4.5)
    ledger.read(1, "a")
    assert ledger.phantoms == ["1 was deleted before the search", "1: 'a' instead of None"]
    ledger.sent(1, "b", 5.0)
    ledger.found([1], asked=4.9)
    ledger.acknowledge(1, "b", 6.0)
    ledger.read(1, "a")
    ledger.read(1, None)
    assert ledger.lost == ["1: 'a' instead of 'b'", "1: None instead of 'b'"]
    assert len(ledger.phantoms) == 2


@pytest.mark.parametrize("piece", [1, 2, 7, 1000])
def test_answers_are_put_together_from_pieces(piece: int) -> None:
    stream = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\nX: y\r\n\r\nhello"
    empty = b"HTTP/1.1 503 No\r\nX: y\r\nContent-Length: 0\r\n\r\n"

    async def in_pieces() -> list[tuple[bytes, bytes]]:
        reader = asyncio.StreamReader()

        async def feed() -> None:
            sent = stream + empty + stream
            for start in range(0, len(sent), piece):
                reader.feed_data(sent[start : start + piece])
                await asyncio.sleep(0)

        feeding = asyncio.create_task(feed())
        got = [await receive(reader) for _ in range(3)]
        await feeding
        return got

    got = [(int(head[9:12]), body) for head, body in asyncio.run(in_pieces())]
    assert got == [(200, b"hello"), (503, b""), (200, b"hello")]


class _Liar(asyncio.Protocol):
    """Acknowledges everything, keeps nothing, and shows a keyword that nobody sent."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        hit = {"id": FIRST_ID + 7 * 10**8 + 3, "score": 1.0}
        body = json.dumps({"results": [{"query": "a", "hits": [hit]}]}, separators=(",", ":")).encode()
        status = b"404 No" if data.startswith(b"GET") else b"200 OK"
        head = b"HTTP/1.1 " + status + b"\r\nContent-Length: " + str(len(body)).encode() + b"\r\n\r\n"
        self.transport.write(head + body)  # type: ignore[attr-defined]


def test_a_server_that_lies_is_found_out() -> None:
    async def against_liar(k: int, seconds: float = 0.1) -> tuple[Ledger, dict[str, int]]:
        server = await asyncio.get_running_loop().create_server(_Liar, "127.0.0.1", 0)
        ledger = Ledger()
        search = prepared("POST", "/v1/search", b"{}")
        mix = Mix([search], ["some text"], k, writes=0.5)
        port = server.sockets[0].getsockname()[1]
        tally = await drive(port, mix, ledger, clients=2, seconds=seconds, seed=1)
        server.close()
        found = ledger.lost and (ledger.phantoms or tally.errors)
        return (ledger, dict(tally.errors)) if found else await against_liar(k, 4 * seconds)

    ledger, errors = asyncio.run(against_liar(1))
    assert ledger.lost
    assert all(re.fullmatch(r"\d{13}: None instead of 'some text \d+'", one) for one in ledger.lost)
    assert set(ledger.phantoms) == {f"{FIRST_ID + 7 * 10**8 + 3} was never sent"}
    assert not errors
    assert [*asyncio.run(against_liar(2))[1]] == ["search: 200, 1 hits"]


def test_a_small_run(tmp_path: Path) -> None:
    """The whole of it over few keywords, through the command line."""
    model = make_model(tmp_path / "model")
    words = ["--keywords", "300", "-k", "5", "--clients", "4", "--seconds", "1", "--rounds", "1"]
    done = subprocess.run(
        [sys.executable, "-m", "rbegir", "bench", "serve", *words, "--model", str(model), "--json"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["errors"] == result["integrity"]["lost"] == result["integrity"]["phantom"] == 0
    assert result["integrity"]["acknowledged_writes"] > 0
    assert result["integrity"]["reads"] >= 3 * result["integrity"]["acknowledged_writes"] / 4
    assert [cell["setting"] for cell in result["cells"]] == ["batched", "unbatched"]
    assert result["unbatched"]["queries_a_scan"]["median"] == 1.0
    assert result["ratio"]["median"] > 0
    assert result["generator"]["searches_per_s"] > 0
    assert result["peers"] == {}


def test_settings_are_checked() -> None:
    with pytest.raises(InputError, match="keywords must be a whole number of at least 100, got 10"):
        run(keywords=10)
    with pytest.raises(InputError, match="rounds must be a whole number of at least 1, got 0"):
        run(rounds=0)
    for options in ({"writes": 1.0}, {"writes": -0.1}, {"seconds": 0.0}, {"writes": float("nan")}):
        with pytest.raises(InputError, match="writes must be a share below 1, seconds more than 0, got"):
            run(keywords=100, **options)  # type: ignore[arg-type]
