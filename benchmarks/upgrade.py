"""What an upgrade without re-encoding keeps, on the shipped sample.

    python benchmarks/upgrade.py --out benchmarks/results/upgrade.json

An old model learns from half of the pairs; its codes of all titles are stored. Then all pairs are there, and

    keep     a new query side for the old codes
    new      both sides new, the queries trained on old and new codes in one softmax
    apart    a model trained alone, as if nothing were stored

Recall is measured among all titles of the sample with the validation pairs, whose titles no model has seen.
The corpus of "both" has old codes for one half of the titles and new ones for the other, by a hash of the
text. For `apart` the halves are asked by two query codes, each by its own model's, and merged by cosine:
what one would do without an upgrade.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from rbegir.codes.score import cosine, keys, norm_squared
from rbegir.encode.clsm.model import Model
from rbegir.encode.clsm.presets import ModelConfig
from rbegir.evaluate.evaluator import corpus_texts
from rbegir.evaluate.retrieval import Targets
from rbegir.lab.bench.host import describe
from rbegir.read.pairs import read_pairs, read_texts
from rbegir.read.sample import sample_path
from rbegir.read.split import positions
from rbegir.training.trainer import train
from rbegir.training.upgrade import measure, upgrade

CUTOFFS = (1, 10, 100)
BLOCK = 256  # queries at a time


def merged_by_cosine(old: Model, new: Model, pairs: pa.Table, corpus: pa.Array) -> dict[str, float]:
    """Recall in a corpus of two halves, each asked by its own model's queries."""
    newer = positions(corpus.to_pylist()) * 1024 % 1 < 0.5
    targets = Targets(pairs, corpus)
    asked = targets.queries.to_pylist()
    halves = [
        (model, np.flatnonzero(mask), model.encode_keywords(corpus.filter(pa.array(mask)).to_pylist()))
        for model, mask in ((old, ~newer), (new, newer))
    ]
    found: list[npt.NDArray[np.int64]] = []
    for low in range(0, len(asked), BLOCK):
        scores = np.empty((len(asked[low : low + BLOCK]), len(corpus)))
        for model, places, codes in halves:
            values = model.encode_queries(asked[low : low + BLOCK]).values()
            scores[:, places] = cosine(keys(values, codes), norm_squared(values))
        found.append(np.argsort(-scores, axis=1, kind="stable")[:, : max(CUTOFFS)])
    recall = targets.recall(np.concatenate(found), list(CUTOFFS))
    return {f"recall@{k}": float(values.mean()) for k, values in recall.items()}


def main() -> None:
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=plain)
    parser.add_argument("--pairs", type=int, default=100_000, help="of the sample; the old model has half")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--conv", type=int, default=128)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)

    table = read_pairs(sample_path("train")).read_all()
    table = table.take(np.random.default_rng(0).permutation(table.num_rows)[: args.pairs])
    valid = read_pairs(sample_path("valid")).read_all()
    corpus = corpus_texts(read_texts(sample_path("titles")))
    config = ModelConfig(conv=args.conv)
    runs: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        files = {"half": args.pairs // 2, "all": args.pairs}
        for name, count in files.items():
            pq.write_table(table.slice(0, count), Path(folder) / f"{name}.parquet")
        for seed in range(args.seeds):
            settings: dict[str, Any] = {"epochs": args.epochs, "seed": seed, "valid": False, "config": config}
            old = train(Path(folder) / "half.parquet", **settings)
            rows = {}
            for side in ("keep", "new"):
                made = upgrade(
                    old, table, keywords=side, valid=valid, corpus=corpus, epochs=args.epochs, seed=seed
                )  # type: ignore[arg-type]
                rows[side] = made.kept
                print(side, json.dumps(made.kept), file=sys.stderr, flush=True)
            apart = train(Path(folder) / "all.parquet", **settings)
            rows["apart"] = {
                "new/new": measure(valid, corpus, apart),
                "both": merged_by_cosine(old, apart, valid, corpus),
            }
            print("apart", json.dumps(rows["apart"]), file=sys.stderr, flush=True)
            runs.append({"seed": seed, **rows})
    result = {
        "host": describe(("torch",)),
        "command": " ".join(["python benchmarks/upgrade.py", *(Path(w).name for w in sys.argv[1:])]),
        "pairs": {"old": args.pairs // 2, "new": args.pairs, "valid": valid.num_rows},
        "corpus": len(corpus),
        "runs": runs,
    }
    args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
