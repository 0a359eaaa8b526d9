"""What the planner knows, each number with its source.

Speeds are read from committed benchmark results, which are packaged with rbegir as `figures.json` (made from
benchmarks/results by tools/plan_figures.py, and kept current by a test). What no benchmark of ours can
measure, such as the network between somebody's machines, is an assumption: named as one, and an option of the
command.

A scan of B queries over K keywords takes t(B, K): between measured K linear, between measured B linear in
logarithms, beyond the largest K along the last slope. More queries than the largest measured batch are not
planned for.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_left
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class Constant:
    """A number and where it comes from."""

    value: float
    unit: str
    source: str

    def to_dict(self) -> dict[str, Any]:
        return {"value": self.value, "unit": self.unit, "source": self.source}


@dataclass(frozen=True)
class Machine:
    """A measured kind of machine."""

    name: str
    capacity: Constant  # bytes of codes that it holds
    batches: tuple[int, ...]
    sizes: tuple[tuple[float, ...], ...]  # of each batch: keywords
    times: tuple[tuple[float, ...], ...]  # of each batch: ms, for those keywords
    bandwidth: Constant
    source: str

    def scan_ms(self, batch: float, keywords: float) -> float:
        """t(B, K) in ms."""
        above = min(bisect_left(self.batches, batch), len(self.batches) - 1)
        below = max(0, above - 1)
        low, high = (_line(keywords, self.sizes[i], self.times[i]) for i in (below, above))
        if above == below or batch <= self.batches[below]:
            return low
        part = math.log(batch / self.batches[below]) / math.log(self.batches[above] / self.batches[below])
        return math.exp((1 - part) * math.log(low) + part * math.log(high))


def _line(x: float, xs: tuple[float, ...], ys: tuple[float, ...]) -> float:
    """Linear interpolation, continued along the last piece and never below the first value."""
    if x <= xs[-1]:
        return float(np.interp(x, xs, ys))
    slope = (ys[-1] - ys[-2]) / (xs[-1] - xs[-2])
    return ys[-1] + slope * (x - xs[-1])


@dataclass(frozen=True, eq=False)
class Figures:
    """Everything that was measured."""

    machines: tuple[Machine, ...]
    call: Constant  # ms of asking a shard for hits, then for their texts; scan and network left out
    merge: Constant  # ns a candidate that a client merges
    spread: npt.NDArray[np.float64]  # quantiles 0 … 1 of ms by which a shard's answer is later than usual
    spread_source: str
    encode: dict[str, Constant]  # machine → texts a second


@cache
def load() -> Figures:
    """The packaged figures."""
    raw = json.loads(resources.files("rbegir.lab.plan").joinpath("figures.json").read_text())
    return parse(raw)


def parse(raw: dict[str, Any]) -> Figures:
    machines = tuple(
        Machine(
            found["name"],
            Constant(**found["capacity"]),
            tuple(cell["batch"] for cell in found["cells"]),
            tuple(tuple(map(float, cell["keywords"])) for cell in found["cells"]),
            tuple(tuple(cell["ms"]) for cell in found["cells"]),
            Constant(**found["bandwidth"]),
            found["source"],
        )
        for found in raw["machines"]
    )
    return Figures(
        machines,
        Constant(**raw["call"]),
        Constant(**raw["merge"]),
        np.asarray(raw["spread"]["quantiles"], np.float64),
        raw["spread"]["source"],
        {name: Constant(**value) for name, value in raw["encode"].items()},
    )
