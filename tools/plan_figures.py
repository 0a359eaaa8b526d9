"""Writes src/rbegir/lab/plan/figures.json, what the planner knows, from the committed results.

python tools/plan_figures.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "src" / "rbegir" / "cluster" / "plan" / "figures.json"
HELD = 0.8  # of a machine's memory, for codes

Json = dict[str, Any]


def load(name: str) -> Json:
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
            cluster["merge_ns"]["median"], "ns a candidate", "benchmarks/results/cluster.json: merge_ns"
        ),
        "spread": {
            "quantiles": cluster["spread"]["over_median_ms"],
            "source": f"benchmarks/results/cluster.json: {cluster['spread']['answers']:,} answers of a shard",
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


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)]) + "\n"


def plans() -> str:
    """What the planner says to a few wishes, and the tails behind it."""
    from rbegir.errors import InputError
    from rbegir.lab.plan.figures import parse
    from rbegir.lab.plan.planner import Wish, plan

    known = parse(figures())
    rows = []
    for wish in (
        Wish(10**8, 100.0, 100.0),
        Wish(10**9, 50.0, 1000.0),
        Wish(10**10, 50.0, 1000.0),
        Wish(10**11, 200.0, 100.0),
        Wish(10**11, 50.0, 10_000.0),
        Wish(10**11, 5.0, 10_000.0),
    ):
        asked = [f"{wish.keywords:.0e}".replace("e+", "e"), f"{wish.latency_ms:g}", f"{wish.qps:,.0f}"]
        for machine in known.machines:
            try:
                found = plan(wish, known, machine.name)
            except InputError:
                rows.append([*asked, machine.name, "impossible", "", "", ""])
                continue
            option = found["options"][0]
            rows.append(
                [
                    *asked,
                    machine.name,
                    f"{option['machines']:,} ({option['shards']:,} × {option['groups']:,})",
                    f"{option['memory_bytes_per_machine'] / 1e9:.1f} GB",
                    f"{option['latency_ms']['p50']:.1f} / {option['latency_ms']['p99']:.1f}",
                    option["bound_by"],
                ]
            )
    head = ["keywords", "ms", "queries/s", "machine", "how many (shards × copies)", "codes each"]
    late = plan(Wish(10**11, 50.0, 10_000.0), known)["tails"]
    plain = {tail["shards"]: tail for tail in late if not tail["hedged"]}
    hedged = {tail["shards"]: tail for tail in late if tail["hedged"]}
    return "\n".join(
        [
            table([*head, "p50 / p99 ms", "bound by"], rows),
            "How many ms the slowest shard is later than one usually is, 99th percentile, from the measured answers of "
            "a shard (`1e11` keywords, 50 ms):\n",
            table(
                ["shards", "one replica", "two, hedged"],
                [
                    [f"{shards:,}", f"{plain[shards]['p99_ms']:.1f}", f"{hedged[shards]['p99_ms']:.1f}"]
                    for shards in plain
                ],
            ),
        ]
    )


def faults() -> str:
    """What was survived, and what a cluster costs."""
    cluster, survived = load("cluster"), load("cluster-faults")
    rows = [
        [
            str(run["replicas"]),
            f"{run['seconds']:.0f} s",
            str(run["kills"]),
            f"{run['asked']:,}",
            str(run["wrong"]),
            str(run["failed"]),
            f"{run['latency_ms']['p50']:.1f} / {run['latency_ms']['p99']:.0f}",
        ]
        for run in survived["faults"]
    ]
    scaling, overhead = cluster["scaling"], cluster["overhead"]
    return "\n".join(
        [
            f"Measured (`rbegir bench cluster --faults`, {survived['host']['cpus']} cores, load "
            f"{survived['host']['load_average']:g} when it began): two shards, processes killed with `kill -9` under "
            "load, every answer compared with the right one.\n",
            table(["replicas", "for", "kills", "questions", "wrong", "failed", "p50 / p99 ms"], rows),
            f"Speed (`rbegir bench cluster`, {cluster['host']['cpu']}, {cluster['host']['cpus']} cores, load "
            f"{cluster['host']['load_average']:g} when it began): around a scan of {overhead['index_ms']['median']:.2f} ms a cluster of one shard adds "
            f"{overhead['call_ms']['median']:.2f} ms. Two shards of one thread each take "
            f"{scaling['two_ms']['median']:.0f} ms where one takes {scaling['one_ms']['median']:.0f} ms: "
            f"{scaling['speedup']['median']:.2f} times as fast (two threads of one process: "
            f"{scaling['threads_speedup']['median']:.2f} times).\n",
        ]
    )


def pages() -> dict[Path, str]:
    """The pages with their figures."""
    found = {}
    for name, marks, body in (("plan", "plans", plans()), ("cluster", "faults", faults())):
        path = ROOT / "docs" / f"{name}.md"
        begin, end = f"<!-- {marks}: written by tools/plan_figures.py -->\n", f"<!-- end of {marks} -->\n"
        before, rest = path.read_text().split(begin)
        found[path] = before + begin + body + end + rest.split(end)[1]
    return found


if __name__ == "__main__":
    PAGE.write_text(text())
    for path, content in pages().items():
        path.write_text(content)
