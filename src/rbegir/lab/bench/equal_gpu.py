"""Random searches on a GPU beside the reference: how many of how many are equal, by kernel.

Shapes, planes, query values, numbers of keywords, partitions, masks, ties and k are drawn at random.
Compiling kernels takes most of the time, so shapes are spread over processes.
"""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from typing import cast

import numpy as np

from rbegir.base import masks
from rbegir.codes.layout import pack
from rbegir.codes.planes import Codes
from rbegir.search.backend import Candidates, Partition
from rbegir.search.gpu import tensorcore
from rbegir.search.gpu.backend import GpuBackend
from rbegir.search.gpu.dispatch import Method
from rbegir.search.gpu.local import MAX_QUEUE
from rbegir.search.reference import ReferenceBackend

SHAPES = (  # n, keyword planes, largest query value, odd values only
    (64, 2, 7, True), (64, 2, 255, False), (64, 1, 1, True), (64, 3, 3, True), (64, 4, 15, False),
    (128, 2, 7, True), (192, 3, 31, False), (256, 4, 127, True),
)  # fmt: skip
METHODS = ("popcount", "product", "mma", "wgmma", "float8", "chosen", "paper")
TURNS = 8  # searches of a shape and method
COUNTS = (1, 63, 64, 65, 1000, 1024, 4097, 12_000)


def same(found: Candidates, wanted: Candidates) -> bool:
    return np.array_equal(found.keys, wanted.keys) and np.array_equal(found.positions, wanted.positions)


def compare(task: tuple[str, tuple[int, int, int, bool], str]) -> tuple[str, int, int]:
    """(method, equal searches, searches) of one shape on a device."""
    device, (n, planes, top, odd), method = task
    rng = np.random.default_rng([n, planes, top, METHODS.index(method)])
    reference, equal = ReferenceBackend(n, planes), 0
    for turn in range(TURNS):
        backend = GpuBackend(n, planes, [device] * (1 + turn % 3))
        for worker in backend._workers:
            if method in tensorcore.KINDS:
                if method not in worker.card.kinds or not tensorcore.fits(method, n, planes, top):
                    return method, 0, 0
                worker.card.force = cast(Method, method)
            elif method in ("popcount", "product"):
                worker.card.force = cast(Method, method)
        counts = rng.choice(COUNTS, rng.integers(1, 4)).tolist()
        codes = [Codes.from_signs(rng.random((planes, count, n)) < 0.5) for count in counts]
        if turn % 3 == 2:  # few different keywords, many ties
            codes = [each[rng.integers(0, min(5, len(each)), len(each))] for each in codes]
        density = (None, 0.5, 0.02, None)[turn % 4]
        parts = [
            Partition(
                pack(each),
                len(each),
                None if density is None else masks.from_bools(rng.random(len(each)) < density),
            )
            for each in codes
        ]
        queries = int(rng.choice([1, 2] if method in ("popcount", "paper") else [1, 7, 65]))
        odds, any_values = (
            2 * rng.integers(0, top + 1, (queries, n)) - top,
            rng.integers(-top, top + 1, (queries, n)),
        )
        values = (odds if odd else any_values).astype(np.int16)
        k = int(rng.choice([1, 10, 100, 1000, 20_000]))
        if method == "paper":
            block = int(rng.choice([32, 100, 256]))
            per_thread, queue = int(rng.choice([1, 3, 16])), int(rng.choice([1, 2, MAX_QUEUE]))
            asked = {"per_thread": per_thread, "queue": queue, "block": block}
            found, certificate = backend.search_paper(parts, values, k, **asked)
            wanted, expected = reference.search_paper(parts, values, k, **asked)
            equal += same(found, wanted) and certificate == expected
        else:
            equal += same(backend.search(parts, values, k), reference.search(parts, values, k))
    return method, equal, TURNS


def run(device: str, processes: int = 12) -> dict[str, dict[str, int]]:
    """{method: {equal, of}} over all shapes."""
    tasks = [(device, shape, method) for shape in SHAPES for method in METHODS]
    result = {method: {"equal": 0, "of": 0} for method in METHODS}
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        for method, equal, of in pool.map(compare, tasks):
            result[method]["equal"] += equal
            result[method]["of"] += of
    return result
