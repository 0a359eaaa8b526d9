"""MaxSim on a GPU: time per query, and whether scores equal those of the CPU to the last bit.

    python benchmarks/maxsim_gpu.py OUT.json --keywords 1e7,6e8

Keywords are random codes of 16 bytes made on the device, 60 per item, item after item; a query has 32 random
vectors of three planes. Medians of several calls, in turns:

    scan_ms     all items scored, on the device
    select_ms   … and the items that may be among the best k found
    caller_ms   the whole call, from the query on the host to the items on the host

How this can mislead: all items have the same length, and nothing is filtered.

Two checks compare with the CPU. Items of keywords that were packed on the host are searched on both; and the
best items among all keywords are scored again on the CPU from their codes, fetched from the device.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from rbegir.codes.layout import pack
from rbegir.codes.planes import Codes
from rbegir.lab.bench.host import describe_card, milliseconds, timed
from rbegir.lab.bench.scan import random_packed, random_queries
from rbegir.search.backend import Partition
from rbegir.search.cpu import CpuBackend
from rbegir.search.gpu import maxsim
from rbegir.search.gpu.device import Range, Worker
from rbegir.search.gpu.words import Slab, SlabSearch, stride_of
from rbegir.search.items import ItemHits, ItemOrder

N, PLANES, VECTORS, LENGTH, K, ROUNDS = 64, 2, 32, 60, 10, 9
CHECKED = 1000  # items whose keywords are packed on the host


def in_order(keywords: int) -> ItemOrder:
    """Items of LENGTH keywords that lie one after the other."""
    starts = np.append(np.arange(0, keywords, LENGTH), keywords)
    return ItemOrder(np.arange(keywords), starts)


def random_slab(worker: Worker, keywords: int, packed: npt.NDArray[np.uint8]) -> Slab:
    """A slab of random words, whose first keywords are packed ones."""
    words = torch.empty(4, stride_of(keywords), dtype=torch.int32, device=worker.device)
    for stream in words:
        torch.randint(-(2**31), 2**31, stream.shape, dtype=torch.int32, out=stream)
    first = min(keywords, CHECKED * LENGTH)
    words[:, :first] = worker.resident.upload(Range(packed, CHECKED * LENGTH, 0, CHECKED * LENGTH)).words[
        :, :first
    ]
    nothing = torch.empty(0, dtype=torch.int32, device=worker.device)
    return Slab(words, keywords, nothing, nothing, 0)


def codes_of(slab: Slab, positions: npt.NDArray[np.int64]) -> Codes:
    """Codes fetched from the device, unwoven (`rbegir.search.gpu.words`)."""
    where = torch.from_numpy(positions).to(slab.words.device)
    u0, u1, v0, v1 = slab.words[:, where].cpu().numpy().view(np.uint32).astype(np.uint64)
    u, v = u0 | u1 << np.uint64(32), v0 | v1 << np.uint64(32)
    odd, even = np.uint64(0xAAAAAAAAAAAAAAAA), np.uint64(0x5555555555555555)
    y = (u & even) | (v & odd)  # every half rotated right by one
    top = np.uint64(0x8000000080000000)
    y = (y & ~top) << np.uint64(1) | (y & top) >> np.uint64(31)
    return Codes(np.stack([(u & odd) | (v & even), y])[:, :, None], N)


def equal(one: ItemHits, other: ItemHits) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def measure(keywords: int) -> dict[str, Any]:
    worker, cpu, values = (
        Worker(N, PLANES, torch.device("cuda:0"), None),
        CpuBackend(N, PLANES),
        random_queries(VECTORS),
    )
    packed = random_packed(CHECKED * LENGTH)
    with worker.active():
        slab = random_slab(worker, keywords, packed)
        pieces = [[SlabSearch(slab, 0, None, keywords)]]
        start = time.perf_counter()
        order = in_order(keywords)
        plan = maxsim.plan(order, pieces, [worker])
        planned = time.perf_counter() - start
        scan = maxsim.ItemScan(worker.card, plan.shares[0], pieces[0], values)
        items = len(order.starts) - 1
        scans = timed(partial(scan.scores, items), ROUNDS, warm=2)
        selects = timed(lambda: scan.reaching(scan.scores(items), K), ROUNDS, warm=2)
    call = partial(maxsim.search, order, plan, [worker], pieces, values, K)
    hits = call()
    callers = [milliseconds(call) for _ in range(ROUNDS)]

    few = in_order(CHECKED * LENGTH)
    small = maxsim.search(few, maxsim.plan(few, pieces, [worker]), [worker], pieces, values, CHECKED)
    same = equal(small, cpu.maxsim([Partition(packed, CHECKED * LENGTH)], values, few, CHECKED))
    by_item = np.sort(hits.items)  # the best items alone, in the order of items
    codes = codes_of(slab, (by_item[:, None] * LENGTH + np.arange(LENGTH)).ravel())
    again = cpu.maxsim([Partition(pack(codes), len(codes))], values, in_order(len(codes)), K)
    best = np.array_equal(again.scores, hits.scores) and np.array_equal(by_item[again.items], hits.items)
    return {
        "keywords": keywords,
        "items": items,
        "vectors": VECTORS,
        "k": K,
        "plan_s": round(planned, 2),
        **{f"scan_{name}": time for name, time in scans.items()},
        "select_ms": selects["ms"],
        "caller_ms": statistics.median(callers),
        "caller_ms_min": min(callers),
        "caller_ms_max": max(callers),
        "ns_per_pair": scans["ms"] * 1e6 / keywords / VECTORS,
        "items_equal_to_cpu": same,
        "best_equal_to_cpu": best,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--keywords", default="1e7,6e8", help="multiples of 60 are measured")
    arguments = parser.parse_args()
    counts = [int(float(one)) // LENGTH * LENGTH for one in arguments.keywords.split(",")]
    cells = [measure(count) for count in counts]
    for cell in cells:
        print(" | ".join(f"{name} {value:.4g}" for name, value in cell.items()))
    result = {"host": describe_card(torch.device("cuda:0")), "cells": cells}
    arguments.out.write_text(json.dumps(result, indent=1) + "\n")
    if not all(cell["items_equal_to_cpu"] and cell["best_equal_to_cpu"] for cell in cells):
        raise SystemExit("scores differ from those of the CPU")


if __name__ == "__main__":
    main()
