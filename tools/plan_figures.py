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
    return {"value": value, "unit": unit, "source": f"benchmarks/results/{source}"}


def machine(name: str, file: str, threads: int, capacity: Json) -> Json:
    """A kind of machine: its capacity in bytes, and by batch size the times of its scans, top 1000."""
    measured = load(file)["cells"]
    chosen = [c for c in measured if c["k"] == 1000 and c["threads"] == threads]
    cells = []
    for batch in sorted({c["batch"] for c in chosen}):
        own = sorted((c["keywords"], c["ms"]) for c in chosen if c["batch"] == batch)
        cells.append({"batch": batch, "keywords": [n for n, _ in own], "ms": [round(ms, 4) for _, ms in own]})
    largest = max(c["keywords"] for c in measured)
    speed = max(c["read_gb_per_s"] for c in measured if c["keywords"] == largest)  # of plain reading
    used = f", {threads} threads" if threads > 1 else ""
    return {
        "name": name,
        "capacity": capacity,
        "cells": cells,
        "bandwidth": constant(float(speed), "GB/s", f"{file}.json: read_gb_per_s"),
        "source": f"benchmarks/results/{file}.json, top 1000{used}",
    }


def figures() -> Json:
    gpu, cpu, cluster = load("scan-gpu"), load("scan-cpu"), load("cluster")
    most, cores = max(c["keywords"] for c in gpu["cells"]), cpu["host"]["cpus"]
    large, small = gpu["host"]["device"], f"{cpu['host']['cpu']}, {cores} cores"
    held = constant(16.0 * most, "bytes", f"scan-gpu.json: {most:,} keywords were searched")
    chosen = f"scan-cpu.json: host memory, {HELD:.0%} of it for codes (chosen)"
    memory = constant(HELD * cpu["host"]["memory_bytes"], "bytes", chosen)
    call = "cluster.json: overhead of one shard through Ray, loopback: search, then texts of the hits"
    answers = f"cluster.json: {cluster['spread']['answers']:,} responses of a shard"
    encoders = {large: "encode-h200", small: "encode-cpu"}
    return {
        "machines": [machine(large, "scan-gpu", 1, held), machine(small, "scan-cpu", cores, memory)],
        "call": constant(cluster["overhead"]["two_calls_ms"]["median"], "ms", call),
        "merge": constant(cluster["merge_ns"]["median"], "ns per candidate", "cluster.json: merge_ns"),
        "spread": {
            "quantiles": cluster["spread"]["over_median_ms"],
            "source": f"benchmarks/results/{answers}",
        },
        "encode": {
            name: constant(load(file)["texts_per_s"], "texts/s", f"{file}.json")
            for name, file in encoders.items()
        },
    }


def text() -> str:
    return json.dumps(figures(), indent=1) + "\n"
