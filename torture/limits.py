"""How much of an attempt is made, and where its result goes."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
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


def result(name: str, limits: Limits, attempt: Callable[[Limits], dict[str, Any]]) -> dict[str, Any]:
    """Make the attempt; what it found, with what it ran on."""
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
