"""The machine that a benchmark ran on, so that its figures can be judged and repeated; clocks; progress."""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rbegir.errors import RbegirError

if TYPE_CHECKING:
    import torch

Progress = Callable[[float, str], None]  # the share that is done, and what is being done


def quiet(share: float, what: str) -> None:
    """A `Progress` that shows nothing."""


def _cpu() -> dict[str, str]:
    """Name, family and model of the CPU, as far as Linux knows them."""
    lines = Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
    found = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    fields = {"cpu_family": "cpu family", "cpu_model": "model"}
    name = found.get("model name") or platform.machine()
    return {"cpu": name} | {key: found[field] for key, field in fields.items() if field in found}


def commit() -> str | None:
    """The commit of the source tree, with + if it is changed; None for an installed package.

    For a tree that was copied to another machine without its history, RBEGIR_COMMIT names the commit.
    """
    if named := os.environ.get("RBEGIR_COMMIT"):
        return named
    command = ["git", "describe", "--always", "--dirty=+", "--abbrev=12", "--exclude=*"]
    try:
        return subprocess.check_output(
            command, cwd=Path(__file__).parent, stderr=subprocess.DEVNULL, text=True
        ).strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def _version(package: str) -> str | None:
    """The installed version of a package; None if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def device_name(device: str) -> str:
    """The name of a GPU, or "cpu"."""
    if device == "cpu":
        return device
    import torch

    return str(torch.cuda.get_device_name(device))


def describe(packages: Sequence[str] = ()) -> dict[str, Any]:
    """The machine, the software and the moment, as JSON values."""
    from rbegir import __version__
    from rbegir._native import available_isas
    from rbegir.base.devices import cpu_count

    found = {package: _version(package) for package in ("numpy", *packages)}
    if found.get("faiss-cpu"):
        import faiss

        found["faiss compile options"] = faiss.get_compile_options().strip()
    return {
        **_cpu(),
        "cpus": cpu_count(),
        "isa": available_isas()[0],
        "memory_bytes": memory_bytes(),
        "load_average": load_average(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "rbegir": __version__,
        "commit": commit(),
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": found,
    }


def cpu_name(about: dict[str, Any]) -> str:
    """The CPU of a description, with family and model where it has them: names alone are often the same."""
    model = f" (family {about['cpu_family']}, model {about['cpu_model']})" if "cpu_model" in about else ""
    return f"{about['cpu']}{model}"


def memory_bytes() -> int:
    """Memory of the machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def load_average() -> float:
    """The load of the last minute."""
    return round(os.getloadavg()[0], 2)


def fresh_process_seconds(source: str) -> float:
    """The median time of a new Python process that runs `source`, start-up and imports included."""
    times = []
    for _ in range(5):
        start = time.perf_counter()
        done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True)
        times.append(time.perf_counter() - start)
        if done.returncode:
            raise RbegirError(f"the measured program failed: {last_line(done.stderr)}")
    return statistics.median(times)


def last_line(output: str) -> str:
    """The error message of a failed program: the last line of its output."""
    return (output.strip().splitlines() or ["no message"])[-1]


def milliseconds(call: Callable[[], object]) -> float:
    """The time of one call in ms."""
    start = time.perf_counter()
    call()
    return (time.perf_counter() - start) * 1e3


def turns(calls: Sequence[Callable[[], object]], rounds: int) -> list[list[float]]:
    """The times of several calls in ms, in turns, so that a machine that slows down affects all alike."""
    times = [[milliseconds(call) for call in calls] for _ in range(rounds)]
    return [list(own) for own in zip(*times, strict=True)]


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, lowest and highest."""
    return {"median": statistics.median(values), "lowest": min(values), "highest": max(values)}


def timed(call: Callable[[], object], rounds: int, warm: int = 1) -> dict[str, float]:
    """ms, ms_min and ms_max of a call on a GPU, between events; the first `warm` calls do not count."""
    return in_turns([call], rounds, warm)[0]


def in_turns(calls: Sequence[Callable[[], object]], rounds: int, warm: int = 1) -> list[dict[str, float]]:
    """`timed` for several calls in turns, so that a GPU that heats up slows all of them alike."""
    import torch

    times: list[list[float]] = [[] for _ in calls]
    for call in calls:
        for _ in range(warm):
            call()
    for _ in range(rounds):
        for call, own in zip(calls, times, strict=True):
            start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            torch.cuda.synchronize()
            start.record()
            call()
            stop.record()
            stop.synchronize()
            own.append(start.elapsed_time(stop))
    return [{"ms": statistics.median(own), "ms_min": min(own), "ms_max": max(own)} for own in times]


def describe_card(device: torch.device) -> dict[str, Any]:
    """The machine, its GPU and the versions that matter on it."""
    import torch
    import triton

    versions = {"torch": torch.__version__, "cuda": torch.version.cuda, "triton": triton.__version__}
    return {**describe(), "device": torch.cuda.get_device_name(device), **versions}
