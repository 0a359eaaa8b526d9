"""How fast an exact join is, beside the bare kernel of the scan.

    python benchmarks/join.py OUT.json --keywords 1e6

Two indexes of random codes of 16 bytes are joined: the ten best keywords of one for every keyword of the
other. The join is measured by its batches of 16,384 queries, not to its end. Ratios are taken within rounds,
in which the sides are timed in turns.

    kernel        the native scan alone, called with the queries of a batch as integers
    join          the same batch from stored codes to Arrow columns of ids, ranks and scores
    parquet       … and written to a file
    duplicates    all groups of an index in which a tenth of the keywords are copies with one bit changed,
                  beside the kernel's ten best of all its keywords. That scans each pair twice

The keywords that the join finds are compared with those of the kernel.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import rbegir
from rbegir._native import _core
from rbegir.codes.planes import Codes
from rbegir.index.join import MOST_QUERIES
from rbegir.lab.bench.host import describe, milliseconds, spread
from rbegir.lab.bench.scan import PLANES, N, random_codes
from rbegir.search.cpu import CpuBackend

K = 10
MIN_SCORE = 0.95  # of duplicates: one bit of 128 changes a code by less
SEED = 7
Json = dict[str, Any]


def with_copies(rng: np.random.Generator, codes: Codes) -> Codes:
    """The codes, of which every tenth is the code before it with one bit of the last plane changed."""
    planes = codes.planes.copy()
    planes[:, 9::10] = planes[:, 8::10][:, : planes[:, 9::10].shape[1]]
    planes[-1, 9::10, 0] ^= np.uint64(1) << rng.integers(0, N, planes[-1, 9::10, 0].shape, dtype=np.uint64)
    return Codes(planes, N)


class Kernel:
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


def joins(index: rbegir.Index, other: rbegir.Index, folder: Path, rounds: int) -> Json:
    kernel, backend = Kernel(index), CpuBackend(N, PLANES)
    batches = index.joining(other, K, None, texts=False).batches(backend)
    spans = other.snapshot.spans(MOST_QUERIES)
    times: dict[str, list[float]] = {"kernel": [], "join": [], "parquet": []}
    for number in range(rounds + 1):
        segment, positions = next(spans)
        values = segment.codes(positions).values()
        found: dict[str, Any] = {}

        def scan(values: Any = values, found: Json = found) -> None:
            found["positions"] = kernel(values)

        def join(found: Json = found) -> None:
            found["table"] = pa.Table.from_batches(list(next(batches)))

        def write(found: Json = found, number: int = number) -> None:
            pq.write_table(found["table"], folder / f"{number}.parquet")

        taken = {label: milliseconds(call) for label, call in (("kernel", scan), ("join", join))}
        taken["parquet"] = taken["join"] + milliseconds(write)
        assert np.array_equal(found["positions"].ravel(), found["table"]["neighbor_id"].to_numpy())
        if number:  # the first warms up
            for label, own in taken.items():
                times[label].append(own)
            print(json.dumps(taken), flush=True)
    seconds = statistics.median(times["parquet"]) / 1e3 * other.snapshot.keywords / MOST_QUERIES
    pairs = MOST_QUERIES * index.snapshot.keywords * 1e3  # per batch, for rates from milliseconds
    return {
        "queries_per_batch": MOST_QUERIES,
        "ms": {label: spread(own) for label, own in times.items()},
        "pairs_per_s": {label: spread([pairs / ms for ms in own]) for label, own in times.items()},
        "ratio": {
            label: spread([bare / ms for bare, ms in zip(times["kernel"], times[label], strict=True)])
            for label in ("join", "parquet")
        },
        "whole_s_extrapolated": seconds,
    }


def duplicates(index: rbegir.Index, rounds: int) -> Json:
    kernel = Kernel(index)

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
    args = parser.parse_args()
    if args.keywords < (args.rounds + 1) * MOST_QUERIES:
        parser.error(f"--keywords must be at least {(args.rounds + 1) * MOST_QUERIES}")
    rng = np.random.default_rng(SEED)
    host = describe(("pyarrow",))
    with tempfile.TemporaryDirectory(prefix="rbegir-bench-") as name:
        folder = Path(name)

        def build(label: str, codes: Codes) -> rbegir.Index:
            index = rbegir.Index.create(folder / f"{label}.rbe", n=N, keyword_planes=PLANES)
            index.add_codes(codes)
            return index

        first, second = (
            build(label, random_codes(args.keywords, PLANES, rng)) for label in ("first", "second")
        )
        copies = build("copies", with_copies(rng, random_codes(args.duplicates, PLANES, rng)))
        result = {
            "host": host,
            "seed": SEED,
            "keywords": args.keywords,
            "k": K,
            "rounds": args.rounds,
            "threads": Kernel(first).threads,
            "join": joins(first, second, folder, args.rounds),
            "duplicates": duplicates(copies, max(1, args.rounds // 2)),
        }
    args.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
