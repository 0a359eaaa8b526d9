"""What a benchmark ran on, so that its numbers can be judged and repeated."""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from rbegir.errors import RbegirError


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass  # not Linux: the platform module's word has to do
    return platform.processor() or platform.machine()


def _commit() -> str | None:
    """The commit of the source tree, with + if it is changed; None for an installed package."""
    here = Path(__file__).resolve().parent
    try:
        run = subprocess.run(
            ["git", "describe", "--always", "--dirty=+", "--abbrev=12", "--exclude=*"],
            cwd=here,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return run.stdout.strip()


def versions(packages: Sequence[str]) -> dict[str, str | None]:
    """Installed versions; None for what is not installed."""
    found: dict[str, str | None] = {}
    for package in packages:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = None
    return found


def device_name(device: str) -> str:
    """What stands behind a device: the card's name, or cpu."""
    if device == "cpu":
        return device
    import torch

    return str(torch.cuda.get_device_name(device))


def describe(packages: Sequence[str] = ()) -> dict[str, Any]:
    """The machine, the software and the moment, as JSON values."""
    from rbegir import __version__
    from rbegir.base.devices import cpu_count
    from rbegir.search.cpu import available_isas

    return {
        "cpu": _cpu_name(),
        "cpus": cpu_count(),
        "isa": available_isas()[0],
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "load_average": round(os.getloadavg()[0], 2),
        "system": platform.platform(),
        "python": platform.python_version(),
        "rbegir": __version__,
        "commit": _commit(),
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": versions(("numpy", *packages)),
    }


def fresh_process_seconds(source: str, *, repeats: int = 5) -> float:
    """The median time that a new Python process takes to run `source`, start and imports included."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True)
        times.append(time.perf_counter() - start)
        if done.returncode:
            last = done.stderr.strip().splitlines()[-1:] or ["no message"]
            raise RbegirError(f"the measured program failed: {last[0]}")
    return statistics.median(times)
