"""The planner's figures from the committed results: src/rbegir/lab/plan_figures.json, written by pages.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PATH = ROOT / "src" / "rbegir" / "lab" / "plan_figures.json"
HELD = 0.8  # of a machine's memory, for codes

Json = dict[str, Any]


def load(name: str) -> Json:
    """A committed result."""
    data: Json = json.loads((RESULTS / f"{name}.json").read_text())
    return data


def constant(value: float, unit: str, source: str) -> Json:
    return {"value": value, "unit": unit, "source": source}


def cells(result: Json, threads: int) -> list[Json]:
    """By batch: the keywords of its cells and their times, top 1000."""
    chosen = [c for c in result["cells"] if c["k"] == 1000 and c["threads"] == threads]
    found = []
    for batch in sorted({c["batch"] for c in chosen}):
        own = sorted((c["keywords"], c["ms"]) for c in chosen if c["batch"] == batch)
        found.append({"batch": batch, "keywords": [n for n, _ in own], "ms": [round(ms, 4) for _, ms in own]})
    return found


def bandwidth(result: Json) -> float:
    """GB/s of plain reading, at the largest size."""
    largest = max(c["keywords"] for c in result["cells"])
    return float(max(c["read_gb_per_s"] for c in result["cells"] if c["keywords"] == largest))


def figures() -> Json:
    gpu, cpu, cluster = load("scan-gpu"), load("scan-cpu"), load("cluster")
    most = max(c["keywords"] for c in gpu["cells"])
    cores = cpu["host"]["cpus"]
    small = f"{cpu['host']['cpu']}, {cores} cores"
    encoders = {gpu["host"]["device"]: load("encode-h200"), small: load("encode-cpu")}
    return {
        "machines": [
            {
                "name": gpu["host"]["device"],
                "capacity": constant(
                    16.0 * most, "bytes", f"benchmarks/results/scan-gpu.json: {most:,} keywords were searched"
                ),
                "cells": cells(gpu, 1),
                "bandwidth": constant(
                    bandwidth(gpu), "GB/s", "benchmarks/results/scan-gpu.json: read_gb_per_s"
                ),
                "source": "benchmarks/results/scan-gpu.json, top 1000",
            },
            {
                "name": small,
                "capacity": constant(
                    HELD * cpu["host"]["memory_bytes"],
                    "bytes",
                    f"benchmarks/results/scan-cpu.json: host memory, {HELD:.0%} of it for codes (chosen)",
                ),
                "cells": cells(cpu, cores),
                "bandwidth": constant(
                    bandwidth(cpu), "GB/s", "benchmarks/results/scan-cpu.json: read_gb_per_s"
                ),
                "source": f"benchmarks/results/scan-cpu.json, top 1000, {cores} threads",
            },
        ],
        "call": constant(
            cluster["overhead"]["two_calls_ms"]["median"],
            "ms",
            "benchmarks/results/cluster.json: overhead of one shard through Ray, loopback: search, then texts of the hits",
        ),
        "merge": constant(
            cluster["merge_ns"]["median"], "ns per candidate", "benchmarks/results/cluster.json: merge_ns"
        ),
        "spread": {
            "quantiles": cluster["spread"]["over_median_ms"],
            "source": f"benchmarks/results/cluster.json: {cluster['spread']['answers']:,} responses of a shard",
        },
        "encode": {
            name: constant(
                result["texts_per_s"],
                "texts/s",
                f"benchmarks/results/encode-{'h200' if i == 0 else 'cpu'}.json",
            )
            for i, (name, result) in enumerate(encoders.items())
        },
    }


def text() -> str:
    return json.dumps(figures(), indent=1) + "\n"
