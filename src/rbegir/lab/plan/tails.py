"""The slowest of many: what fanning out to S shards does to latency, by simulation.

A question is answered when its slowest shard is. If a shard is slow once in a hundred times, one of a hundred
shards is slow in 1 − 0.99¹⁰⁰ = 63 % of all questions: the tail of one becomes the median of many. Replicas
with hedging cut it: a shard that is later than `hedge` (the 95th percentile) is asked again elsewhere, and
the first answer counts,

    J' = min(J, hedge + T + K)      J, K independent draws of the delay, T the usual time of an answer

which costs five per cent more questions. Replicas without hedging do not help the tail: they only give each
question another random shard.

Delays of one shard are drawn from the measured ones, through their quantiles, with hedging applied draw by
draw. The largest of S independent delays is below x with probability F(x)^S, so a draw of it is the quantile
U^(1/S) of one. The generator is seeded: the same question gets the same answer.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

SAMPLE = 1 << 17  # times of one shard
DRAWS = 4000  # questions a simulation
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


def one(quantiles: Floats, *, usual_ms: float | None = None, seed: int = 0) -> Floats:
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
    """[draws] the largest delay of `shards`, given those of `one`."""
    u = np.random.default_rng((seed, 1)).random(draws) ** (1 / shards)
    return times[(u * len(times)).astype(np.int64)]


def table(quantiles: Floats, usual_ms: float, *, seed: int = 0) -> list[Tail]:
    """The tail against the number of shards, without and with hedging."""
    found = []
    for hedged in (False, True):
        delays = one(quantiles, usual_ms=usual_ms if hedged else None, seed=seed)
        for shards in SHARDS:
            p50, p99 = np.quantile(slowest(delays, shards, seed=seed), (0.5, 0.99))
            found.append(Tail(shards, hedged, float(p50), float(p99)))
    return found
