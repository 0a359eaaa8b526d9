"""Which scan for which batch: a cost model with measured constants, not a guess.

Milliseconds for 10⁹ keywords of 64 dimensions on one H200 (`rbegir bench scan --device cuda` measures them
again):

    popcount   a query            2 planes: by planes of the query, see POPCOUNT
    others     a pass over the keywords (reading, unpacking) and a chunk of queries (8, 32 or 64)

Longer codes scale all of them alike. The constants only choose between kernels that give equal results.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

from rbegir.search.kernels import tensorcore

Method = Literal["popcount", "product", "mma", "wgmma", "float8"]

PASS: dict[Method, tuple[float, float, int]] = {  # (a pass, a chunk, queries of a chunk)
    "float8": (3.5, 5.8, 64),
    "wgmma": (3.5, 4.1, 32),
    "mma": (7.0, 2.6, 8),
    "product": (8.0, 12.0, 32),
}


def cost(method: Method, planes: int, queries: int, query_planes: int) -> float:
    """Milliseconds for 10⁹ keywords of 64 dimensions."""
    if method == "popcount":
        return queries * max(3.5, 0.65 * planes * query_planes)
    once, chunk, size = PASS[method]
    return once + chunk * -(-queries // size)


def choose(
    n: int, planes: int, queries: int, query_planes: int, largest: int, kinds: Collection[tensorcore.Kind]
) -> Method:
    """The cheapest scan that is right for a shape; `kinds` are the tensor-core kernels that the card runs."""
    methods: list[Method] = ["popcount", "product"]
    methods += [kind for kind in kinds if tensorcore.fits(kind, n, planes, largest)]
    return min(methods, key=lambda method: cost(method, planes, queries, query_planes))
