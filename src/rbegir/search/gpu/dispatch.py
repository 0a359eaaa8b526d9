"""The choice of a scan for a batch: the one with the lowest measured cost.

`costs.json` beside this file is the output of `rbegir bench costs` on one H200: milliseconds for 10⁹
keywords, by kernel and shape. For another GPU, RBEGIR_GPU_COSTS names a file measured there.

    popcount   one scan per query; the cost depends on the number of query planes
    others     one pass over the keywords, plus a cost per chunk of 8, 16, 32 or 64 queries

A shape that was not measured takes the costs of the nearest that was (first by planes, then by n), scaled by
the size of a code. The table only chooses between kernels that give equal results.
"""

import json
import os
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

from rbegir.errors import InputError
from rbegir.search.gpu import tensorcore

Method = Literal["popcount", "product", "mma", "wgmma", "float8"]
CHUNK: dict[str, int] = {**tensorcore.CHUNK, "product": 16}
VARIABLE = "RBEGIR_GPU_COSTS"


class ScanShape(NamedTuple):
    """The sizes that the cost of a scan depends on, besides the number of queries."""

    n: int
    planes: int
    query_planes: int  # of the popcount scan: one more for queries with even entries
    wide: bool  # queries beyond ±127


@cache
def table(path: str | None = None) -> dict[str, Any]:
    """The measured costs in a file, by default those that come with the package."""
    file = Path(path) if path else Path(__file__).with_name("costs.json")
    try:
        costs: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))["costs"]
        if not all(costs[method] for method in ("popcount", "product")):
            raise ValueError("no figures")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{VARIABLE} must name a file of scan costs, got {str(file)!r}: {error}",
            hint="rbegir bench costs --json > FILE",
        ) from error
    return costs


def _nearest(measured: dict[str, Any], n: int, planes: int) -> tuple[Any, float]:
    """The costs of the nearest measured shape "n×planes", and the factor to scale them by."""
    shapes = {name: tuple(int(part) for part in name.split("×")) for name in measured}
    best = min(shapes, key=lambda name: (abs(shapes[name][1] - planes), abs(shapes[name][0] - n)))
    return measured[best], n * planes / (shapes[best][0] * shapes[best][1])


def cost(method: Method, shape: ScanShape, queries: int) -> float:
    """The expected milliseconds of a scan of 10⁹ keywords."""
    costs = table(os.environ.get(VARIABLE))
    if method == "popcount":
        by_planes, factor = _nearest(costs[method], shape.n, shape.planes)
        return queries * float(by_planes[min(shape.query_planes, len(by_planes)) - 1]) * factor
    measured = costs.get(method + "/wide" if shape.wide else method) or costs.get(method)
    if not measured:
        return float("inf")
    (once, chunk), factor = _nearest(measured, shape.n, shape.planes)
    return float(once + chunk * -(-queries // CHUNK[method])) * factor


def choose(shape: ScanShape, queries: int, largest: int, kinds: tuple[tensorcore.Kind, ...]) -> Method:
    """The cheapest scan that supports a shape; `kinds` are the tensor-core kernels that the GPU runs."""
    return _choose(shape, queries, largest, kinds, os.environ.get(VARIABLE))


@cache  # one table per `path`
def _choose(
    shape: ScanShape, queries: int, largest: int, kinds: tuple[tensorcore.Kind, ...], path: str | None
) -> Method:
    methods: list[Method] = ["popcount", "product"]
    methods += [kind for kind in kinds if tensorcore.fits(kind, shape.n, shape.planes, largest)]
    return min(methods, key=lambda method: cost(method, shape, queries))
