"""A service as a child process that can be killed, starved of disk and given wrong clocks.

    disk      a small file system in memory (tmpfs, needs root); `fill` takes all that is left of it
    clock     libfaketime, where it is installed: the wall clock follows a file, the monotonic one stays true

Where one of them is not to be had the report says so.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import numpy as np

from rbegir.encode.clsm import checkpoint
from rbegir.encode.clsm.model import Model
from rbegir.encode.clsm.presets import ModelConfig, tensor_shapes
from rbegir.index.store import Index

FAKETIME = Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1")
DISK_BYTES = 64 << 20
BASE = 20_000  # keywords that nobody changes


def base_text(key: int) -> str:
    return f"base {key} {'abcdefgh'[key % 8] * 3} {'stuvwxyz'[key // 8 % 8] * 3}"


class Disk:
    """A directory on a file system of its own, if we may mount one."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "disk"
        self.path.mkdir()
        libc = ctypes.CDLL(None, use_errno=True)
        options = f"size={DISK_BYTES}".encode()
        self.own = libc.mount(b"tmpfs", os.fsencode(self.path), b"tmpfs", 0, options) == 0
        self._unmount = libc.umount2

    def fill(self) -> None:
        with contextlib.suppress(OSError), (self.path / "ballast").open("ab", buffering=0) as ballast:
            while ballast.write(bytes(4096)):
                pass

    def free(self) -> None:
        (self.path / "ballast").unlink(missing_ok=True)

    def close(self) -> None:
        if self.own:
            self._unmount(os.fsencode(self.path), 2)  # MNT_DETACH: what is still mapped goes later


def make_index(folder: Path) -> Path:
    """An index with a model of the smallest useful size."""
    config = ModelConfig(conv=16, hash_buckets=64)
    rng = np.random.default_rng(3)
    tensors = {k: rng.normal(0, 0.3, shape).astype(np.float32) for k, shape in tensor_shapes(config).items()}
    checkpoint.write(folder / "model", config, tensors)
    with Index.create(folder / "x.rbe", Model.load(folder / "model"), id_type="int64") as index:
        index.upsert(
            [base_text(i) for i in range(BASE)], list(range(BASE)), {"price": [i % 100 for i in range(BASE)]}
        )
    return folder / "x.rbe"


class Server:
    """`rbegir serve` on a port of its own."""

    def __init__(self, index: Path, folder: Path) -> None:
        self.index = index
        self.log = folder / "server.log"
        self.clock = folder / "clock"
        self.clock.write_text("+0")
        self.has_clock = FAKETIME.exists()
        self._reserved = socket.socket()  # the port is nobody else's between two lives of the service
        self._reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._reserved.bind(("127.0.0.1", 0))
        self.port = int(self._reserved.getsockname()[1])
        self.url = f"http://127.0.0.1:{self.port}"
        self.process: subprocess.Popen[bytes] | None = None
        self.starts = 0

    def start(self) -> None:
        environment = dict(os.environ)
        if self.has_clock:
            environment |= {
                "LD_PRELOAD": str(FAKETIME),
                "FAKETIME_TIMESTAMP_FILE": str(self.clock),
                "FAKETIME_CACHE_DURATION": "1",
                "FAKETIME_DONT_FAKE_MONOTONIC": "1",
                "DONT_FAKE_MONOTONIC": "1",
            }
        command = [sys.executable, "-m", "rbegir", "serve", str(self.index), "--port", str(self.port)]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*command, "--threads", "1", "--no-access-log"], env=environment, stdout=log, stderr=log
            )
        self.starts += 1

    def wait_ready(self, seconds: float = 600.0) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            assert self.process is not None
            if self.process.poll() is not None:
                raise RuntimeError(f"the service ended by itself: {self.tail()}")
            with contextlib.suppress(httpx.HTTPError):
                if httpx.get(f"{self.url}/readyz", timeout=2).status_code == 200:
                    return
            time.sleep(0.1)
        raise RuntimeError(f"the service is not ready after {seconds:.0f} s: {self.tail()}")

    def stop(self, how: signal.Signals) -> int:
        """Send a signal and wait for the end; the status."""
        assert self.process is not None
        self.process.send_signal(how)
        return self.process.wait(600)

    def close(self) -> None:
        """Kill it if it still runs, and give the port back."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self._reserved.close()

    def jump(self, seconds: int) -> None:
        """The wall clock is so many seconds off from now on."""
        self.clock.write_text(f"{seconds:+d}")

    def memory(self) -> int:
        """Bytes of its own that the process holds (mapped files are not its own)."""
        assert self.process is not None
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("RssAnon"):
                return int(line.split()[1]) << 10
        return 0

    def tail(self) -> str:
        return self.log.read_text(errors="replace")[-600:]
