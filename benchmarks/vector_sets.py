"""The accuracy benchmark over the three sets of vectors, and the title search task; results row by row.

    python benchmarks/vector_sets.py OUT --budget SECONDS [--minilm DIR] [--clsm DIR] [--glove FILE]

MiniLM and CLSM directories hold `keywords.npy`, `queries.npy` and, for the task, `relevant.npy`
(`benchmarks/title_vectors.py`); GloVe is one file whose queries are drawn from it. OUT gets one JSON file a
set, written anew after every row: a run that is stopped has lost nothing.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from rbegir.bench import accuracy
from rbegir.bench.scorer import top
from rbegir.binarizer.estimator import Binarizer
from rbegir.binarizer.vectors import as_rows, unit_blocks

FIRST = (
    "binarizer",
    "opq",
    "turbovec",
    "scalar",
    "rabitq",
    "rq",
    "pq",
    "binarizer_thorough",
    "binarizer_start",
    "binarizer_3_planes",
)
LATER = ("binarizer", "opq", "turbovec", "scalar", "pq", "rabitq", "sign_rescore")
CANDIDATES = 1000


class Clock:
    """Seconds that are left."""

    def __init__(self, budget: float) -> None:
        self.end = time.perf_counter() + budget

    def left(self) -> float:
        return self.end - time.perf_counter()


def writer(path: Path, rows: list[dict[str, Any]]) -> Callable[[dict[str, Any]], None]:
    def report(row: dict[str, Any]) -> None:
        rows.append(row)
        path.write_text(json.dumps({"cells": rows}, indent=1))
        print(
            f"{path.stem} {row['method']:<20} {row['bytes']:>6} bytes  "
            f"R@10 {row['recall@10']:.4f}  R@100 {row['recall@100']:.4f}  R@1 {row['recall@1']:.4f}  "
            f"{row['setting']}  train {row['train_s']:.1f} s  {row['encode_per_s']:,.0f}/s",
            flush=True,
        )

    return report


def recall_set(name: str, out: Path, clock: Clock, vectors: Any, queries: Any, **options: Any) -> None:
    """One set: what is asked, in parts that are each written as they end."""
    path, rows = out / f"accuracy-{name}.json", []
    result: dict[str, Any] = {}
    for part in options.pop("parts"):
        if clock.left() < 5:
            break
        result = accuracy.measure(
            vectors, queries, budget_s=clock.left(), report=writer(path, rows), **options, **part
        )
        path.write_text(json.dumps({**result, "cells": rows, "summary": accuracy.summary(rows)}, indent=1))


def ndcg(found: np.ndarray, relevant: np.ndarray) -> float:
    """Mean over queries with one relevant row each: 1 / log2(1 + rank) if it is among the 10 found."""
    hit = found[:, :10] == relevant[:, None]
    return float((hit / np.log2(np.arange(2, 12))).sum(axis=1).mean())


def title_task(out: Path, vectors: Any, queries: Any, relevant: np.ndarray) -> None:
    """nDCG@10 of aliases → titles: floats, all planes, and one plane refined by the second."""
    every = np.concatenate(list(unit_blocks(as_rows(vectors))))
    asked = np.concatenate(list(unit_blocks(as_rows(queries))))
    whole = ndcg(top(asked, every, 10), relevant)
    rows: list[dict[str, Any]] = [
        {"method": "float", "bytes": 4 * every.shape[1], "ndcg@10": whole, "kept": 1.0}
    ]
    n = -(-every.shape[1] // 64) * 64
    binarizer = Binarizer(n=n, keyword_planes=2).fit(every)
    codes = binarizer.encode_keywords(every)
    signs, values = (c.values().astype(np.float32) for c in (codes.first_planes(1), codes))
    values /= np.linalg.norm(values, axis=1, keepdims=True)
    for planes in (8, 3):
        binarizer.query_planes = planes
        question = binarizer.encode_queries(asked).values().astype(np.float32)
        rough = top(question, signs, CANDIDATES)  # [Q, 1000]
        refined = np.empty((len(question), 10), np.int64)
        for i, at in enumerate(rough):
            best = np.argsort(-(values[at] @ question[i]), kind="stable")[:10]
            refined[i] = at[best]
        for method, found, size in (
            ("1 plane", rough, n // 8),
            (f"1 plane, {CANDIDATES} refined by the second", refined, n // 4),
            ("2 planes", top(question, values, 10), n // 4),
        ):
            score = ndcg(found, relevant)
            rows.append(
                {
                    "method": method,
                    "query_planes": planes,
                    "bytes": size,
                    "ndcg@10": score,
                    "kept": score / whole,
                }
            )
            print(rows[-1], flush=True)
    result = {"queries": len(asked), "keywords": len(every), "rows": rows}
    (out / "accuracy-title-task.json").write_text(json.dumps(result, indent=1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--budget", type=float, required=True)
    for name in ("minilm", "clsm", "glove"):
        parser.add_argument(f"--{name}", type=Path)
    parser.add_argument("--limit", type=int, help="only so many keywords, for a trial")
    args = parser.parse_args()
    clock = Clock(args.budget)
    args.out.mkdir(parents=True, exist_ok=True)
    common: dict[str, Any] = {"query_count": 1000, "train_rows": 100_000}
    if args.minilm:
        vectors, queries = (accuracy.load(args.minilm / f"{n}.npy") for n in ("keywords", "queries"))
        relevant = np.load(args.minilm / "relevant.npy")
        if args.limit:
            known = relevant < args.limit
            vectors, queries, relevant = vectors[: args.limit], queries[known], relevant[known]
        recall_set(
            "minilm", args.out, clock, vectors, queries, parts=[{"bits": (2,), "methods": FIRST}], **common
        )
        if clock.left() > 10:
            title_task(args.out, vectors, queries, relevant)
    if args.clsm:
        vectors, queries = (accuracy.load(args.clsm / f"{n}.npy") for n in ("keywords", "queries"))
        parts = [{"bits": (2,), "methods": FIRST}, {"bits": (2,), "methods": ("lsq",)}]
        parts.append({"bits": (1, 3, 4), "methods": LATER})
        recall_set("clsm", args.out, clock, vectors[: args.limit], queries, parts=parts, **common)
    if args.glove:
        vectors = accuracy.load(args.glove)
        parts = [{"bits": (2,), "methods": FIRST}, {"bits": (2,), "methods": ("lsq",)}]
        parts.append({"bits": (1, 3, 4), "methods": LATER})
        recall_set("glove", args.out, clock, vectors[: args.limit], None, parts=parts, **common)
    if args.minilm and clock.left() > 20:
        parts = [{"bits": (1, 3, 4), "byte_budgets": (16, 32, 64), "methods": LATER}]
        recall_set("minilm-sizes", args.out, clock, vectors, queries, parts=parts, **common)


if __name__ == "__main__":
    main()
