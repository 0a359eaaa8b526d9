"""How fast an exact join is, beside the bare kernel of the scan.

    python benchmarks/join.py OUT.json --keywords 1e6
    python benchmarks/join.py OUT.json --keywords 1e8 --device cuda --seconds 60

Two indexes of random codes of 16 bytes are joined: the ten best keywords of one for every keyword of the
other. The join is measured by its batches of 16,384 queries, not to its end. Ratios are taken within rounds,
in which the sides are timed in turns.

    kernel        the native scan alone, called with the queries of a batch as integers
    join          the same batch from stored codes to Arrow columns of ids, ranks and scores
    parquet       … and written to a file
    duplicates    all groups of an index in which a tenth of the keywords are copies with one bit changed,
                  beside the kernel's ten best of all its keywords. That scans each pair twice

The keywords that the join finds are compared with those of the kernel.

On a GPU, a slice of `index.neighbors(10)` is measured instead: the ten best others of as many keywords of one
index as the seconds allow. There, `kernel` is `Backend.search` with the same queries, which are on the host.
The hits of the first queries are compared with those of the CPU.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import rbegir
from rbegir._native import _core
from rbegir.codes.planes import Codes
from rbegir.index.join import MOST_QUERIES, Join
from rbegir.lab.bench.host import describe, device_name, milliseconds, spread
from rbegir.lab.bench.scan import PLANES, N, random_codes
from rbegir.search.backend import Backend, open_backend
from rbegir.search.cpu import CpuBackend

K = 10
ADDED = 1 << 24  # codes added to an index at a time
WARM = 2  # batches that upload codes and compile kernels
COMPARED = 64  # queries whose hits are compared with those of the CPU
MIN_SCORE = 0.95  # of duplicates: one bit of 128 changes a code by less
SEED = 7
Json = dict[str, Any]
Kernel = Callable[[Any], Any]  # queries as integers [Q, N] → positions of their best keywords


def with_copies(rng: np.random.Generator, codes: Codes) -> Codes:
    """The codes, of which every tenth is the code before it with one bit of the last plane changed."""
    planes = codes.planes.copy()
    planes[:, 9::10] = planes[:, 8::10][:, : planes[:, 9::10].shape[1]]
    planes[-1, 9::10, 0] ^= np.uint64(1) << rng.integers(0, N, planes[-1, 9::10, 0].shape, dtype=np.uint64)
    return Codes(planes, N)


class NativeKernel:
    """The native scan of all keywords of an index, without anything around it."""

    def __init__(self, index: rbegir.Index) -> None:
        backend = CpuBackend(N, PLANES)
        self.threads, self.isa = backend.threads, backend.isa
        self._parts = [tuple(part) for part in index.snapshot.candidates()[1]]

    def __call__(self, values: Any) -> Any:
        """The positions [queries, K] of the best keywords."""
        return _core.scan_search(
            self._parts, values, K, None, planes=PLANES, threads=self.threads, isa=self.isa
        )[1]


def batches_in_turns(
    join: Join, backend: Backend, kernel: Kernel, folder: Path, rounds: int, seconds: float, warm: int
) -> Json:
    """Whole batches, searched by the kernel and joined in turns, until the rounds or the seconds are over."""
    times: dict[str, list[float]] = {"kernel": [], "join": [], "parquet": []}
    batches = join.batches(backend)
    for segment, positions in islice(join.spans(), warm + rounds):
        if seconds < 0 or positions.size < join.rows:
            break
        values = segment.codes(positions).values()
        found: dict[str, Any] = {}

        def scan(values: Any = values, found: Json = found) -> None:
            found["positions"] = kernel(values)

        def joined(found: Json = found) -> None:
            found["table"] = pa.Table.from_batches(list(next(batches)))

        def write(found: Json = found) -> None:
            pq.write_table(found["table"], folder / "batch.parquet")

        taken = {label: milliseconds(call) for label, call in (("kernel", scan), ("join", joined))}
        taken["parquet"] = taken["join"] + milliseconds(write)
        table, best = found["table"], found["positions"]  # ids are rows, and rows positions
        if not join.itself:
            assert np.array_equal(best[:, 0], table["id"].to_numpy()[::K])  # nothing is more like a code
            best = best[:, 1:]
        assert np.array_equal(best.ravel(), table["neighbor_id"].to_numpy())
        if warm > 0:
            warm -= 1
            continue
        seconds -= (taken["kernel"] + taken["parquet"]) / 1e3
        for label, own in taken.items():
            times[label].append(own)
        print(json.dumps(taken), flush=True)
    pairs = join.rows * join.keywords.keywords * 1e3  # per batch, for rates from milliseconds
    return {
        "queries_per_batch": join.rows,
        "batches": len(times["join"]),
        "ms": {label: spread(own) for label, own in times.items()},
        "pairs_per_s": {label: spread([pairs / ms for ms in own]) for label, own in times.items()},
        "ratio": {
            label: spread([bare / ms for bare, ms in zip(times["kernel"], times[label], strict=True)])
            for label in ("join", "parquet")
        },
        "whole_s_extrapolated": statistics.median(times["parquet"]) / 1e3 * join.queries.keywords / join.rows,
    }


def joins(index: rbegir.Index, other: rbegir.Index, folder: Path, rounds: int) -> Json:
    join = index.joining(other, K, None, texts=False)
    backend = CpuBackend(N, PLANES)
    return batches_in_turns(join, backend, NativeKernel(index), folder, rounds, float("inf"), warm=1)


def graph(path: Path, keywords: int, device: str, folder: Path, rounds: int, seconds: float) -> Json:
    """A slice of the ten best others of every keyword of one index, on a GPU."""
    rng = np.random.default_rng(SEED)
    with rbegir.Index.create(path, n=N, keyword_planes=PLANES) as index:
        began = time.perf_counter()
        for start in range(0, keywords, ADDED):
            index.add_codes(random_codes(min(ADDED, keywords - start), PLANES, rng))
        built = time.perf_counter() - began
        join = index.joining(None, K, None, texts=False)
        backend = open_backend(device, N, PLANES)
        parts = index.snapshot.candidates()[1]

        def kernel(values: Any) -> Any:
            return backend.search(parts, values, K + 1).positions

        segment, positions = next(join.spans())
        values = segment.codes(positions[:COMPARED]).values()
        began = time.perf_counter()
        found = kernel(values)  # uploads the codes
        first = time.perf_counter() - began
        same = np.array_equal(found, CpuBackend(N, PLANES).search(parts, values, K + 1).positions)
        slice_of = batches_in_turns(join, backend, kernel, folder, rounds, seconds, WARM)
    measured = slice_of["batches"] * slice_of["queries_per_batch"]
    return {
        "built_s": built,
        "first_search_s": first,
        "queries": measured,
        "compared_with_cpu": len(values),
        "equal_to_cpu": bool(same),
        **slice_of,
    }


def duplicates(index: rbegir.Index, rounds: int) -> Json:
    kernel = NativeKernel(index)

    def scan() -> None:
        for segment, positions in index.snapshot.spans(MOST_QUERIES):
            kernel(segment.codes(positions).values())

    times: dict[str, list[float]] = {"kernel": [], "duplicates": []}
    for _ in range(rounds):
        times["kernel"].append(milliseconds(scan))
        times["duplicates"].append(milliseconds(lambda: index.duplicates(MIN_SCORE)))
        print(json.dumps({label: own[-1] for label, own in times.items()}), flush=True)
    pairs = zip(times["kernel"], times["duplicates"], strict=True)
    return {
        "keywords": index.snapshot.keywords,
        "min_score": MIN_SCORE,
        "groups": len(set(index.duplicates(MIN_SCORE)["group"].to_pylist())),
        "ms": {label: spread(own) for label, own in times.items()},
        "ratio": spread([scanned / own for scanned, own in pairs]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--keywords", type=lambda text: int(float(text)), default=1_000_000)
    parser.add_argument("--duplicates", type=lambda text: int(float(text)), default=200_000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--device", default="cpu", help="cuda: measure a slice of neighbors(10) on a GPU")
    parser.add_argument("--seconds", type=float, default=60.0, help="of that slice")
    args = parser.parse_args()
    on_cpu = args.device == "cpu"
    if on_cpu and args.keywords < (args.rounds + 1) * MOST_QUERIES:
        parser.error(f"--keywords must be at least {(args.rounds + 1) * MOST_QUERIES}")
    result: Json = {"seed": SEED, "keywords": args.keywords, "k": K}
    with tempfile.TemporaryDirectory(prefix="rbegir-bench-") as name:
        if on_cpu:
            result |= {"host": describe(("pyarrow",)), **two_indexes(Path(name), args)}
        else:
            host = {**describe(("pyarrow", "torch", "triton")), "device": device_name(args.device)}
            folder, rounds = Path(name), args.keywords // MOST_QUERIES
            found = graph(folder / "whole.rbe", args.keywords, args.device, folder, rounds, args.seconds)
            result |= {"host": host, "neighbors": found}
    args.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    if not on_cpu and not result["neighbors"]["equal_to_cpu"]:
        raise SystemExit("hits differ from those of the CPU")


def two_indexes(folder: Path, args: argparse.Namespace) -> Json:
    rng = np.random.default_rng(SEED)

    def build(label: str, codes: Codes) -> rbegir.Index:
        index = rbegir.Index.create(folder / f"{label}.rbe", n=N, keyword_planes=PLANES)
        index.add_codes(codes)
        return index

    first, second = (build(label, random_codes(args.keywords, PLANES, rng)) for label in ("first", "second"))
    copies = build("copies", with_copies(rng, random_codes(args.duplicates, PLANES, rng)))
    return {
        "rounds": args.rounds,
        "threads": NativeKernel(first).threads,
        "join": joins(first, second, folder, args.rounds),
        "duplicates": duplicates(copies, max(1, args.rounds // 2)),
    }


if __name__ == "__main__":
    main()
