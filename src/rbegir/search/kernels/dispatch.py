"""Which scan for which batch: a cost model with measured constants, not a guess.

Milliseconds for 10⁹ keywords of 64 dimensions and two planes on one H200 (dev/LOG.md has the
measurements, `rbegir bench scan --device cuda` repeats them):

    popcount   a scan a query: reading up to three query planes, counting bits beyond
    others     a pass over the keywords (reading, unpacking) and a chunk of queries (8, 32 or 64)

So one or two queries go by popcounts, a few by `mma`, from some twenty on by `float8` or `wgmma`. Longer
codes scale all of them alike. The constants only choose between kernels that give equal results.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

from rbegir.search.kernels import tensorcore

Method = Literal["popcount", "product", "mma", "wgmma", "float8"]

PASS: dict[Method, tuple[float, float, int]] = {  # (a pass, a chunk, queries of a chunk)
    "float8": (8.6, 6.7, 64),
    "wgmma": (9.3, 7.1, 32),
    "mma": (6.9, 2.5, 8),
    "product": (8.0, 12.0, 32),
}
READ, COUNT, SPILL = 3.9, 0.65, 2.0  # of popcount: reading, a pair of planes, beyond seven query planes


def cost(method: Method, planes: int, queries: int, query_planes: int) -> float:
    """Milliseconds for 10⁹ keywords of 64 dimensions."""
    if method == "popcount":
        counting = COUNT * planes * query_planes * (SPILL if query_planes > 7 else 1)
        return queries * max(READ, counting)
    once, chunk, size = PASS[method]
    return once + chunk * -(-queries // size)


def choose(
    n: int, planes: int, queries: int, query_planes: int, largest: int, kinds: Collection[tensorcore.Kind]
) -> Method:
    """The cheapest scan that is right for a shape; `kinds` are the tensor-core kernels that the card runs."""
    methods: list[Method] = ["popcount", "product"]
    methods += [kind for kind in kinds if tensorcore.fits(kind, n, planes, largest)]
    return min(methods, key=lambda method: cost(method, planes, queries, query_planes))
