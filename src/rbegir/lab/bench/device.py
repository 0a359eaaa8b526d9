"""Time on a GPU: events on the device, the host's clock, and which card it was."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

import torch
import triton

from rbegir import __version__


class Timing(dict[str, float]):
    """ms, ms_min, ms_max of a call on the device."""


def timed(call: Callable[[], object], rounds: int, warm: int = 1) -> Timing:
    """Time between events around a call; the first `warm` calls do not count."""
    for _ in range(warm):
        call()
    times = []
    for _ in range(rounds):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()
        start.record()
        call()
        stop.record()
        stop.synchronize()
        times.append(start.elapsed_time(stop))
    return Timing(ms=statistics.median(times), ms_min=min(times), ms_max=max(times))


def in_turns(calls: Sequence[Callable[[], object]], rounds: int, warm: int = 1) -> list[Timing]:
    """The same for several calls in turns: a card that gets warm slows all of them alike."""
    times: list[list[float]] = [[] for _ in calls]
    for call in calls:
        for _ in range(warm):
            call()
    for _ in range(rounds):
        for call, own in zip(calls, times, strict=True):
            own.append(timed(call, 1, warm=0)["ms"])
    return [Timing(ms=statistics.median(own), ms_min=min(own), ms_max=max(own)) for own in times]


def walled(call: Callable[[], object], rounds: int) -> float:
    """Median milliseconds on the host's clock."""
    times = []
    for _ in range(rounds):
        torch.cuda.synchronize()
        start = time.perf_counter()
        call()
        times.append((time.perf_counter() - start) * 1e3)
    return statistics.median(times)


def describe_card(device: torch.device) -> dict[str, str | None]:
    """The card and the versions that matter on it."""
    return {
        "device": torch.cuda.get_device_name(device),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "triton": triton.__version__,
        "rbegir": __version__,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }
