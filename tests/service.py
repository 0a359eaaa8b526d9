"""A real `rbegir serve` process over a small real index, for tests that talk to it."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import rbegir
from rbegir.lab.bench.serve import random_model

TEXTS = (
    "running shoes", "trail running shoes", "leather shoes", "hiking boots", "rain boots",
    "cheap flights to rome", "flights to rome from berlin", "hotel rome centre", "train to rome",
    "rome guide book", "mountain bike", "city bike", "electric bike", "bike lights", "winter jacket",
    "rain jacket", "wool socks", "running socks", "laptop bag", "travel bag",
    "coffee machine", "espresso beans", "green tea", "tea pot",
    "garden chair", "office chair", "desk lamp", "night light", "phone case", "phone charger",
)  # fmt: skip


def make_model(folder: Path) -> Path:
    """A model with random weights: small, quick to write, and every text is nearest to itself."""
    return random_model(folder, conv=16, hash_buckets=64)


def make_index(path: Path, model: Path, *, count: int = len(TEXTS), id_type: str = "int64") -> Path:
    """An index of the first texts with prices, languages and a column that is mostly null."""
    with rbegir.Index.create(path, rbegir.Model.load(model), id_type=id_type) as index:
        if count:
            numbers = range(count)
            index.add(
                list(TEXTS[:count]),
                ids=[100 + i if id_type == "int64" else f"p{i}" for i in numbers],
                attributes={
                    "price": [5.0 + 7 * i for i in numbers],
                    "lang": ["en" if i % 3 else "de" for i in numbers],
                    "rare": [i if i % 10 == 0 else None for i in numbers],
                },
            )
    return path


class Running:
    """A running service: its address, and how to end it."""

    def __init__(
        self, path: Path | str, *options: str, port: int = 0, environment: dict[str, str] | None = None
    ) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "rbegir", "serve", str(path), "--port", str(port), *options],
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **(environment or {})},
        )
        assert self._process.stderr is not None
        said = []
        for line in self._process.stderr:
            said.append(line)
            found = re.search(r"keywords at (http://\S+:(\d+))", line)
            if found:
                self.url, self.port = found[1], int(found[2])
                self._process.stderr.readline()
                return
        raise AssertionError(f"the service did not start:\n{''.join(said)}")

    def end(self, how: int = signal.SIGTERM) -> int:
        """Stop it, if it still runs, and wait."""
        if self._process.poll() is None:
            self._process.send_signal(how)
        assert self._process.stderr is not None
        if not self._process.stderr.closed:
            self._process.communicate()
        return self._process.returncode


@contextlib.contextmanager
def reserved_port() -> Iterator[int]:
    """A port of loopback that nobody else gets while the block runs; whoever allows the reuse of addresses,
    as servers do, can listen on it."""
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]


@contextlib.contextmanager
def running(path: Path | str, *options: str, environment: dict[str, str] | None = None) -> Iterator[Running]:
    """A service that ends with the block."""
    service = Running(path, "--no-access-log", *options, environment=environment)
    try:
        yield service
    finally:
        service.end()
