"""Speed of the exact scan beside the machine's limit and its peers, measured in turns.

A cell is (keywords, batch, k, threads) over random rbe* codes: n = 64, two keyword planes (16 bytes),
queries of three planes. A round times reading all codes once, the scan, every peer and, beside peers, the
scans for other instruction sets. The figures of a cell are medians over rounds. Ratios are taken within
rounds, so that a machine that slows down for a while affects all sides alike. Codes are read from beginning
to end and from 2 to 16 places in turn, which is faster on some CPUs; `bandwidth_fraction` compares with the
fastest way in the same round.

How this can mislead: codes are random, so hits are spread evenly; everything is warm and in memory; peers
search float vectors of the same size and return approximate scores, not the same hits.
"""

import statistics
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from itertools import product
from pathlib import Path

import numpy as np
import numpy.typing as npt

from rbegir._native import available_isas, choose_isa
from rbegir.codes.layout import packed_bytes
from rbegir.codes.planes import Codes
from rbegir.errors import InputError, MissingExtraError, whole_number
from rbegir.index.store import Index
from rbegir.lab.bench import host
from rbegir.lab.bench.peers import ONE_THREAD, SCAN_PACKAGES, SCAN_PEERS, ScanPeer
from rbegir.lab.figures import Json

N, PLANES, QUERY_PLANES = 64, 2, 3
STREAMS = (1, 2, 4, 8, 16)  # places of memory that are read in turn
COMPARED = ("avx512bw", "avx2")  # instruction sets of other CPUs, measured where peers are
SMALL_BATCH = 8  # up to this batch every side is timed three times per round and the best counts
PEER_SECONDS = 10.0  # after this long, a peer is not timed again in a cell


def random_codes(count: int, planes: int, rng: np.random.Generator) -> Codes:
    """Random codes of N dimensions."""
    return Codes(rng.integers(0, 2**64, (planes, count, N // 64), dtype=np.uint64), N)


def random_packed(keywords: int) -> npt.NDArray[np.uint8]:
    """Packed random keywords, aligned to 64 bytes as a mapped segment is."""
    size = packed_bytes(keywords, N, PLANES)
    buffer = np.empty(size + 64, dtype=np.uint8)
    packed = buffer[-buffer.ctypes.data % 64 :][:size]
    rng = np.random.default_rng(0)
    step = 1 << 24
    for at in range(0, size, step):
        part = packed[at : at + step]
        part[:] = rng.integers(0, 2**64, len(part) // 8, dtype=np.uint64).view(np.uint8)
    return packed


def random_queries(batch: int, planes: int = QUERY_PLANES) -> npt.NDArray[np.int16]:
    """Random queries of the given number of planes."""
    bits = np.random.default_rng(3).integers(0, 2**planes, (batch, N), dtype=np.int16)
    return 2 * bits - np.int16(2**planes - 1)


@dataclass(frozen=True)
class ScanGrid:
    """The grid of measurements: its cells are all combinations of the lists."""

    keywords: Sequence[int]
    batches: Sequence[int]
    ks: Sequence[int]
    threads: Sequence[int] = (1,)
    device: str = "cpu"
    peers: bool = False
    rounds: int = 7

    def __post_init__(self) -> None:
        lists = {"keywords": self.keywords, "batches": self.batches, "k": self.ks, "threads": self.threads}
        for name, numbers in lists.items():
            if not numbers or any(number < 1 for number in numbers):
                raise InputError(f"{name} must be positive numbers, got {list(numbers)}")
        whole_number("rounds", self.rounds)


def run(grid: ScanGrid, progress: host.Progress = host.quiet) -> Json:
    """Measure all cells; on a GPU with `scan_gpu`."""
    if grid.device != "cpu":
        import rbegir.search.gpu.backend  # noqa: F401  says what to install where torch or triton is missing
        from rbegir.lab.bench import scan_gpu

        return scan_gpu.run(grid, progress)
    missing = [package for package in SCAN_PACKAGES if not find_spec(package.removesuffix("-cpu"))]
    if grid.peers and missing:
        raise MissingExtraError(
            f"--peers needs {', '.join(missing)}", hint="pip install 'rbegir[bench]', or leave out --peers"
        )
    keywords, threads, batches, ks = grid.keywords, grid.threads, grid.batches, grid.ks
    needed, memory = packed_bytes(max(keywords), N, PLANES), host.memory_bytes()
    if needed > memory:
        raise InputError(
            f"{max(keywords):,} keywords take {needed:,} bytes of memory, the machine has {memory:,}"
        )
    cells: list[Json] = []
    total = len(keywords) * len(threads) * len(batches) * len(ks)
    for count in keywords:
        packed = random_packed(count)
        for thread_count in threads:
            with ExitStack() as stack:
                progress(len(cells) / total, f"{count:,} keywords: preparing")
                names = [name for name in SCAN_PEERS if thread_count == 1 or name not in ONE_THREAD]
                running = [
                    stack.enter_context(closing(ScanPeer(name, count, thread_count)))
                    for name in (names if grid.peers else ())
                ]
                for batch, k in product(batches, ks):
                    cell = f"{count:,} keywords, batch {batch}, top {k}, {thread_count} threads"
                    progress(len(cells) / total, cell)
                    cells.append(measure(packed, count, batch, k, thread_count, running, grid.rounds))
    return {
        "host": host.describe(SCAN_PACKAGES if grid.peers else ()),
        "rounds": grid.rounds,
        "cells": cells,
        "start": first_answer(max(keywords)),
    }


def measure(
    packed: npt.NDArray[np.uint8],
    keywords: int,
    batch: int,
    k: int,
    threads: int,
    peers: Sequence[ScanPeer],
    rounds: int,
) -> Json:
    """One cell."""
    from rbegir._native import _core
    from rbegir.search.backend import Partition
    from rbegir.search.cpu import CpuBackend

    partitions, values = [Partition(packed, keywords)], random_queries(batch)
    first = choose_isa()
    others = [isa for isa in available_isas() if isa in COMPARED] if peers else []
    scans = {
        isa: partial(CpuBackend(N, PLANES, threads=threads, isa=isa).search, partitions, values, k)
        for isa in (first, *others)
    }

    def read(streams: int) -> float:
        return min(host.milliseconds(partial(_core.read_sum, packed, threads, streams)) for _ in range(3))

    for scan in scans.values():
        scan()  # not timed: fills caches and page tables
    for peer in peers:
        peer.search(batch, k)
    repeats = 3 if batch <= SMALL_BATCH else 1
    reads: list[list[float]] = []
    times: dict[str, list[float]] = {isa: [] for isa in scans}
    theirs: dict[str, list[float]] = {peer.name: [] for peer in peers}
    for _ in range(rounds):
        reads.append([read(streams) for streams in STREAMS])
        for isa, scan in scans.items():
            times[isa].append(min(host.milliseconds(scan) for _ in range(repeats)))
        for peer in peers:
            if sum(theirs[peer.name]) < PEER_SECONDS * 1e3:
                theirs[peer.name].append(min(peer.search(batch, k) for _ in range(repeats)))
    ours = times[first]
    fraction = statistics.median(min(r) / o for r, o in zip(reads, ours, strict=True))
    return {
        "backend": f"cpu/{first}",
        "keywords": keywords,
        "batch": batch,
        "k": k,
        "threads": threads,
        "ms": statistics.median(ours),
        "ms_min": min(ours),
        "ms_max": max(ours),
        "bandwidth_fraction": fraction if batch == 1 else None,
        "read_gb_per_s": len(packed) / statistics.median(r[0] for r in reads) / 1e6,
        "read_gb_per_s_interleaved": len(packed) / statistics.median(min(r[1:]) for r in reads) / 1e6,
        "isas": {isa: _spread(own) for isa, own in times.items()},
        "peers": {name: statistics.median(own) for name, own in theirs.items()},
        "peer_spread": {name: [min(own), max(own)] for name, own in theirs.items()},
        "ratios": {name: _ratio(own, ours) for name, own in theirs.items()},
        "isa_ratios": {isa: {name: _ratio(own, times[isa]) for name, own in theirs.items()} for isa in times},
    }


def _spread(times: Sequence[float]) -> list[float]:
    """Median, lowest and highest."""
    return [statistics.median(times), min(times), max(times)]


def _ratio(theirs: Sequence[float], ours: Sequence[float]) -> float:
    """The median ratio within rounds; a slow peer has fewer of them."""
    return statistics.median(t / o for t, o in zip(theirs, ours, strict=False))


PROGRAM = """
import numpy as np, rbegir
with rbegir.Index.open({path!r}, read_only=True) as index:
    index.search_codes(np.ones((1, {n}), np.int8), k=10)
"""


def first_answer(keywords: int) -> Json:
    """Seconds until a new process has searched an index of random keywords; Python alone beside it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "start.rbe"
        with Index.create(path, n=N, keyword_planes=PLANES) as index:
            index.add_codes(random_codes(keywords, PLANES, np.random.default_rng(0)))
        seconds = host.fresh_process_seconds(PROGRAM.format(path=str(path), n=N))
    return {
        "keywords": keywords,
        "first_answer_s": seconds,
        "python_alone_s": host.fresh_process_seconds("pass"),
    }
