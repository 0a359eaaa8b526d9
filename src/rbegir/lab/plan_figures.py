"""What the planner knows, each number with its source.

Speeds come from committed benchmark results, packaged as `plan_figures.json` (made by tools/pages.py, kept
current by a test). What no benchmark of ours can measure, such as somebody's network, is an assumption:
named as one, and an option of the command.

A scan of B queries over K keywords takes t(B, K): between measured K linear, between measured B linear in
logarithms, beyond the largest K along the last slope.

`tails` simulates the slowest of many: a search is complete when its slowest shard is. Hedging asks a shard
that is later than the 95th percentile again elsewhere, and the first response counts,

    J' = min(J, hedge + T + K)      J, K independent draws of the delay, T the usual response time

which costs five per cent more requests. The largest of S independent delays is below x with probability
F(x)^S, so a draw of it is the quantile U^(1/S) of one.
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
    merge: Constant  # ns per candidate that a client merges
    spread: npt.NDArray[np.float64]  # quantiles 0 … 1 of ms by which a shard's answer is later than usual
    spread_source: str
    encode: dict[str, Constant]  # machine → texts per second


@cache
def load() -> Figures:
    """The packaged figures."""
    raw = json.loads(resources.files("rbegir.lab").joinpath("plan_figures.json").read_text())
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


SAMPLE = 1 << 17  # times of one shard
DRAWS = 4000  # searches per simulation
HEDGE_QUANTILE = 0.95
SHARDS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Tail:
    """By how many ms the slowest of `shards` is later than one usually is."""

    shards: int
    hedged: bool
    p50_ms: float
    p99_ms: float


def delays(quantiles: Floats, *, usual_ms: float | None = None, seed: int = 0) -> Floats:
    """[SAMPLE] ascending delays of one shard in ms; hedged if its usual time is given."""
    rng = np.random.default_rng(seed)
    grid = np.linspace(0, 1, len(quantiles))
    # the same draws with and without hedging, so that the two can be compared
    first, second = (np.interp(rng.random(SAMPLE), grid, quantiles) for _ in range(2))
    if usual_ms is not None:
        hedge = np.interp(HEDGE_QUANTILE, grid, quantiles)
        first = np.minimum(first, hedge + usual_ms + second)
    return np.sort(first)


def slowest(times: Floats, shards: int, *, seed: int = 0, draws: int = DRAWS) -> Floats:
    """[draws] the largest delay of `shards`, given those of `delays`."""
    u = np.random.default_rng((seed, 1)).random(draws) ** (1 / shards)
    return times[(u * len(times)).astype(np.int64)]


def tails(quantiles: Floats, usual_ms: float, *, seed: int = 0) -> list[Tail]:
    """The tail against the number of shards, without and with hedging."""
    found = []
    for hedged in (False, True):
        late = delays(quantiles, usual_ms=usual_ms if hedged else None, seed=seed)
        for shards in SHARDS:
            p50, p99 = np.quantile(slowest(late, shards, seed=seed), (0.5, 0.99))
            found.append(Tail(shards, hedged, float(p50), float(p99)))
    return found
