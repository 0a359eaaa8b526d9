"""What every scan costs on this card, by shape: the table that `search.kernels.dispatch` chooses by.

    rbegir bench costs --json > src/rbegir/search/gpu/costs.json

Scans alone, of random codes made on the device, with a threshold that nothing passes. A scan by popcounts is
timed for every number of query planes; the others for one chunk of queries and for many, which gives what a
pass and what a chunk cost. Figures are milliseconds for 10⁹ keywords, medians of `rounds`.

How this can mislead: survivors cost something too, most in `mma`, whose floor lets more of them through.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch

from rbegir.errors import DeviceError
from rbegir.lab.bench.device import describe_card, timed
from rbegir.search.gpu import dispatch, tensorcore, words
from rbegir.search.gpu.card import Batch, Card
from rbegir.search.gpu.device import find_devices
from rbegir.search.gpu.dispatch import Method
from rbegir.search.gpu.slab import Slab, SlabSearch

KEYWORDS = 100_000_000
SHAPES = ((64, 2), (128, 2), (256, 2), (64, 1), (64, 3), (64, 4), (512, 2))
WIDE = ((64, 2),)
POPCOUNT, PRODUCT = ((64, 2), (64, 1)), ((64, 2), (512, 2))


def random_piece(n: int, planes: int, keywords: int, device: torch.device) -> SlabSearch:
    """Random codes, with a sample that nobody asks for."""
    streams = words.streams(n, planes)
    lanes = torch.empty(streams, words.stride_of(keywords), dtype=torch.int32, device=device)
    lanes.random_(-(2**31), 2**31)
    none = torch.zeros(streams, words.stride_of(0), dtype=torch.int32, device=device)
    return SlabSearch(
        Slab(lanes, keywords, none, torch.zeros(0, dtype=torch.int32, device=device), 0), 0, None, keywords
    )


def scan_ms(card: Card, piece: SlabSearch, method: Method, top: int, queries: int, rounds: int) -> float:
    """Milliseconds of one scan of random odd queries up to ±top, scaled to 10⁹ keywords."""
    rng = np.random.default_rng(queries)
    values = (2 * rng.integers(0, top + 1, (queries, card.n)) - top).astype(np.int16)
    batch = Batch(values, card.device)
    found = card.survivors(batch, 64)
    limits = torch.tensor([[1 << 44, 1 << 17, 0]], device=card.device).repeat(queries, 1)
    card.force = method
    ms = timed(lambda: card.scan(piece, batch, limits, found), rounds)["ms"]
    return round(ms * 1e9 / piece.slab.count, 3)


def compile_all(device: torch.device) -> None:
    """Compile the CUDA C++ kernels side by side; one after the other takes a minute."""
    wanted = [
        tensorcore.shape_for(kind, n, planes, wide)
        for wide in (False, True)
        for n, planes in (WIDE if wide else SHAPES)
        for kind in tensorcore.kinds_of(device)
        if tensorcore.fits(kind, n, planes, 255 if wide else 1)
    ]
    capability = torch.cuda.get_device_capability(device)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda shape: tensorcore.cubin(shape, capability), wanted))


def run(
    device: str = "cuda", rounds: int = 5, progress: Callable[[str], None] = lambda what: None
) -> dict[str, Any]:
    """The whole table, and the card it is of."""
    where = find_devices(device)[0]
    if where.type != "cuda":
        raise DeviceError(f"bench costs needs a GPU, got {device!r}")
    torch.cuda.set_device(where)
    compile_all(where)
    costs: dict[str, dict[str, Any]] = {}
    for n, planes in SHAPES:
        name = f"{n}×{planes}"
        keywords = KEYWORDS * 64 // n
        card, piece = Card(n, planes, where), random_piece(n, planes, keywords, where)
        if (n, planes) in POPCOUNT:
            progress(f"{name} popcount")
            costs.setdefault("popcount", {})[name] = [
                scan_ms(card, piece, "popcount", 2**b - 1, 1, rounds) for b in range(1, 9)
            ]
        for wide in (False, True) if (n, planes) in WIDE else (False,):
            methods: list[Method] = ["product"] if (n, planes) in PRODUCT else []
            methods += [kind for kind in card.kinds if tensorcore.fits(kind, n, planes, 255 if wide else 1)]
            for method in methods:
                progress(f"{name} {method}{' wide' if wide else ''}")
                top = 255 if wide else 1 if method == "float8" else 3
                size, many = dispatch.CHUNK[method], 4 if method == "product" else 8
                one, more = (scan_ms(card, piece, method, top, size * chunks, rounds) for chunks in (1, many))
                chunk = max((more - one) / (many - 1), 0.01)
                costs.setdefault(method + "/wide" if wide else method, {})[name] = [
                    round(one - chunk, 3),
                    round(chunk, 3),
                ]
        del piece
        torch.cuda.empty_cache()
    return {"host": describe_card(where), "rounds": rounds, "costs": costs}
