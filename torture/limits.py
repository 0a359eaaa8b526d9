"""How much of an attempt is made, in which processes, and where its result goes."""

from __future__ import annotations

import json
import multiprocessing
import os
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rbegir.lab.bench.host import describe


@dataclass(frozen=True)
class Limits:
    """An attempt ends when it has made `points` tries or `seconds` have passed, whichever comes first."""

    points: int
    seconds: float
    seed: int = 1
    processes: int = 2

    def pool(self) -> ProcessPoolExecutor:
        """New processes that share the attempt."""
        return fresh_processes(self.processes)


def fresh_processes(count: int) -> ProcessPoolExecutor:
    """Processes that inherit nothing from this one."""
    return ProcessPoolExecutor(count, multiprocessing.get_context("spawn"))


def memory() -> Path | None:
    """A directory in memory, where the system has one."""
    shared = Path("/dev/shm")
    return shared if shared.is_dir() and os.access(shared, os.W_OK) else None


class LossError(AssertionError):
    """A promise is broken."""


def promise(kept: bool, what: str) -> None:
    if not kept:
        raise LossError(what)


def result(name: str, limits: Limits, attempt: Callable[[Limits], dict[str, Any]]) -> dict[str, Any]:
    """Make the attempt; returns what it found, with the machine it ran on."""
    host = describe(("pyarrow",))
    start = time.monotonic()
    found = attempt(limits)
    return {
        "attempt": name,
        "seed": limits.seed,
        "seconds": round(time.monotonic() - start, 1),
        **found,
        "host": host,
    }


def store(path: Path, found: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found, indent=1) + "\n")
