"""The slowest of many: what fanning out to S shards does to latency, by simulation.

A question is answered when its slowest shard is. If a shard is slow once in a hundred times, one of a hundred
shards is slow in 1 − 0.99¹⁰⁰ = 63 % of all questions: the tail of one becomes the median of many. Replicas
with hedging cut it: a shard that takes longer than `hedge` (its own 95th percentile, say) is asked again
elsewhere, and the first answer counts,

    X' = min(X, hedge + Y)      X, Y independent draws of a shard's time

which costs five per cent more questions. Replicas without hedging do not help the tail: they only give each
question another random shard.

Draws come from the measured distribution of a shard's time over its median, through its quantiles. The
generator is seeded: the same question gets the same answer.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

DRAWS = 4000  # questions a simulation
HEDGE_QUANTILE = 0.95
SHARDS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Tail:
    """Time of the slowest of `shards`, over the median time of one."""

    shards: int
    hedged: bool
    p50: float
    p99: float


def slowest(quantiles: Floats, shards: int, *, hedged: bool, seed: int = 0, draws: int = DRAWS) -> Floats:
    """[draws] the time of the slowest shard of a question, over the median time of one shard."""
    rng = np.random.default_rng((seed, shards))
    grid = np.linspace(0, 1, len(quantiles))
    worst = np.zeros(draws)
    for _ in range(shards):  # the same draws with and without hedging, so that they can be compared
        first, second = (np.interp(rng.random(draws), grid, quantiles) for _ in range(2))
        if hedged:
            hedge = np.interp(HEDGE_QUANTILE, grid, quantiles)
            first = np.minimum(first, hedge + second)
        worst = np.maximum(worst, first)
    return worst


def table(quantiles: Floats, *, seed: int = 0, draws: int = DRAWS) -> list[Tail]:
    """The tail against the number of shards, without and with hedging."""
    found = []
    for shards in SHARDS:
        for hedged in (False, True):
            times = slowest(quantiles, shards, hedged=hedged, seed=seed, draws=draws)
            found.append(Tail(shards, hedged, *(float(v) for v in np.quantile(times, (0.5, 0.99)))))
    return found
