"""A small index with attributes and a stored model, and services over copies of it."""

from __future__ import annotations

import contextlib
import functools
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.testclient import TestClient

import rbegir
from rbegir.encode.clsm import checkpoint
from rbegir.encode.clsm.presets import ModelConfig, random_tensors
from rbegir.serve.app import create_app
from rbegir.serve.monitor import RequestLog
from rbegir.serve.server import Server, bind
from rbegir.serve.settings import Settings

PATIENT = 240.0  # seconds: more than a loaded machine needs, less than the time limit of a test
get, post = functools.partial(httpx.get, timeout=PATIENT), functools.partial(httpx.post, timeout=PATIENT)
TEXTS = [f"{colour} {thing} number {i}" for i, (colour, thing) in enumerate(
    (colour, thing) for colour in ("red", "green", "blue", "black", "white") * 8
    for thing in ("shoes", "hat", "bicycle", "flight to rome", "hotel in paris")
)]  # fmt: skip


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> rbegir.Model:
    """Untrained and tiny, with one tower, so that equal texts have equal codes."""
    path = tmp_path_factory.mktemp("model")
    config = ModelConfig(n=64, conv=4, hash_buckets=16, share_towers=True)
    checkpoint.write(path, config, random_tensors(config))
    return rbegir.Model.load(path)


@pytest.fixture(scope="session")
def stored(model: rbegir.Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """200 keywords with ids 0 … 199; copied, never changed."""
    path = tmp_path_factory.mktemp("stored") / "shop.rbe"
    with rbegir.Index.create(path, model) as index:
        index.add(
            TEXTS,
            ids=range(len(TEXTS)),
            attributes={
                "price": [float(i % 50) for i in range(len(TEXTS))],
                "lang": ["en" if i % 3 else None for i in range(len(TEXTS))],
            },
        )
    return path


@pytest.fixture
def index_path(stored: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(stored, tmp_path / "shop.rbe"))


@dataclass
class Local:
    """A service in this process, spoken to without a socket."""

    client: TestClient
    index: rbegir.Index
    log: io.StringIO

    def post(self, path: str, body: Any, **headers: str) -> httpx.Response:
        return self.client.post(path, json=body, headers=headers)

    def search(self, **body: Any) -> Any:
        answer = self.post("/v1/search", body)
        assert answer.status_code == 200, answer.text
        return answer.json()["results"]


@pytest.fixture
def local(index_path: Path) -> Iterator[Callable[..., Local]]:
    """Starts services with given settings."""
    with starter(index_path) as start:
        yield start


@pytest.fixture(scope="module")
def shared(stored: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Local]:
    """One service with the default settings for all tests of a file that leave it as it was."""
    path = Path(shutil.copytree(stored, tmp_path_factory.mktemp("shared") / "shop.rbe"))
    with starter(path) as start:
        yield start()


@contextlib.contextmanager
def starter(index_path: Path) -> Iterator[Callable[..., Local]]:
    """A function that starts services over an index; they end with the context."""
    with contextlib.ExitStack() as stack:

        def start(**settings: Any) -> Local:
            index = rbegir.Index.open(index_path, read_only=settings.get("read_only", False))
            chosen = Settings(**settings)
            log = io.StringIO()
            app = create_app(index, chosen, log=RequestLog(log))
            client = TestClient(app, base_url="http://localhost", raise_server_exceptions=False)
            return Local(stack.enter_context(client), index, log)

        yield start


@contextlib.contextmanager
def listening(engine: Any, **settings: Any) -> Iterator[str]:
    """A service on a socket in a thread of this process; gives its address."""
    app = create_app(engine, Settings(**settings), log=RequestLog(io.StringIO()))
    ready = threading.Event()
    server = Server(app, ready.set)
    with bind("127.0.0.1", 0) as listener:
        thread = threading.Thread(target=server.listen, args=[listener])
        thread.start()
        assert ready.wait(PATIENT)
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.stop()
            thread.join()


class Process:
    """`rbegir serve` as a process on a free port."""

    def __init__(self, arguments: list[str], environment: dict[str, str]) -> None:
        command = [sys.executable, "-m", "rbegir", "serve", "--port", "0", *arguments]
        self.lines: list[str] = []
        self._process = subprocess.Popen(
            command, stderr=subprocess.PIPE, text=True, env={**os.environ, **environment}
        )
        self._ready = threading.Event()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        self._ready.wait()  # until it serves, or ends
        found = re.search(r"at (http://\S+:(\d+))", "".join(self.lines))
        if found is None:
            self.stop(signal.SIGKILL)
            raise AssertionError(f"the service did not start: {''.join(self.lines)}")
        self.address, self.port = found[1], int(found[2])
        self.pid = self._process.pid

    def _read(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self.lines.append(line)
            if line.startswith("open http"):
                self._ready.set()
        self._ready.set()

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """End it and wait; returns its exit status."""
        if self._process.poll() is None:
            self._process.send_signal(number)
        return self.wait()

    def wait(self) -> int:
        status = self._process.wait()
        self._reader.join()
        assert self._process.stderr is not None
        self._process.stderr.close()
        return status

    def events(self) -> list[dict[str, Any]]:
        """The lines of the log."""
        return [json.loads(line) for line in self.lines if line.startswith("{")]


@pytest.fixture
def serve() -> Iterator[Callable[..., Process]]:
    """Starts processes, and ends those that a test leaves."""
    started: list[Process] = []

    def start(*arguments: str | Path, **environment: str) -> Process:
        started.append(Process([str(argument) for argument in arguments], environment))
        return started[-1]

    yield start
    for process in started:
        process.stop(signal.SIGKILL)
