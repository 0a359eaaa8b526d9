"""A service in a child process that can be killed, run out of disk space and have its clock changed.

    disk      a small file system in memory (tmpfs, needs root); `fill` takes all that is left of it
    clock     libfaketime, where it is installed: the wall clock follows a file, the monotonic one stays true

The report says if one of them is not available.
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

from rbegir.encode.clsm.model import Model
from rbegir.index.store import Index
from rbegir.lab.bench.serve import random_model

FAKETIME = Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1")
DISK_BYTES = 64 << 20
LIBC = ctypes.CDLL(None, use_errno=True)
BASE = 20_000  # keywords that nobody changes


def base_text(key: int) -> str:
    return f"base {key} {'abcdefgh'[key % 8] * 3} {'stuvwxyz'[key // 8 % 8] * 3}"


class Disk:
    """A directory on a file system of its own, if we may mount one."""

    def __init__(self, folder: Path, size: int = DISK_BYTES) -> None:
        self.path = folder / "disk"
        self.path.mkdir()
        options = f"size={size}".encode()
        self.own = LIBC.mount(b"tmpfs", os.fsencode(self.path), b"tmpfs", 0, options) == 0

    def fill(self) -> None:
        with contextlib.suppress(OSError), (self.path / "ballast").open("ab", buffering=0) as ballast:
            while ballast.write(bytes(4096)):
                pass

    def free(self) -> None:
        (self.path / "ballast").unlink(missing_ok=True)

    def close(self) -> None:
        if self.own:
            LIBC.umount2(os.fsencode(self.path), 2)  # MNT_DETACH: what is still mapped goes later


def shop_of(key: int) -> str:
    return f"shop {key % 8}"


def item_of(key: int) -> str:
    return f"item {key % 50}"


def make_index(folder: Path, tenant: str | None = None) -> Path:
    """An index with a model of the smallest useful size."""
    model = Model.load(random_model(folder / "model", conv=16, hash_buckets=64))
    ids = range(BASE)
    attributes: dict[str, list[int] | list[str]] = {"price": [i % 100 for i in ids]}
    if tenant is not None:
        attributes |= {"item": [item_of(i) for i in ids], tenant: [shop_of(i) for i in ids]}
    with Index.create(folder / "x.rbe", model, id_type="int64", tenant=tenant) as index:
        index.upsert([base_text(i) for i in ids], list(ids), attributes)
    return folder / "x.rbe"


class Server:
    """`rbegir serve` on a port of its own."""

    def __init__(self, index: Path, folder: Path) -> None:
        self.index = index
        self.log = folder / "server.log"
        self.clock = folder / "clock"
        self.clock.write_text("+0")
        self.has_clock = FAKETIME.exists()
        self._reserved = socket.socket()  # keeps the port reserved while the service is down
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
        """Send a signal, wait until the process ends, and return its status."""
        assert self.process is not None
        self.process.send_signal(how)
        return self.process.wait(600)

    def close(self) -> None:
        """Kill it if it still runs, and release the port."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self._reserved.close()

    def jump(self, seconds: int) -> None:
        """Shift the wall clock of the service by so many seconds."""
        self.clock.write_text(f"{seconds:+d}")

    def memory(self) -> int:
        """Anonymous memory of the process in bytes; mapped files do not count."""
        assert self.process is not None
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("RssAnon"):
                return int(line.split()[1]) << 10
        return 0

    def tail(self) -> str:
        return self.log.read_text(errors="replace")[-600:]
