"""Train presets with several seeds on one file of pairs and measure them on keywords they never saw.

    python benchmarks/accuracy.py redirects.tsv.gz --query-column alias --keyword-column title \
        --corpus titles.txt.gz --presets rbe_star m_3 --seeds 3 --device cuda --out accuracy.json

The pairs are split by keyword with the fixed hash of `rbegir.training.split` (2 % for validation). Each
model is trained with the default recipe, the best epoch by validation AUC is kept, and that model is
evaluated on the validation pairs: ROC AUC and log loss against 10 random negatives a pair, recall among all
texts of the corpus. `NAME+shared` is a preset with one tower for both sides.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from rbegir.bench.host import describe
from rbegir.evaluate.evaluator import corpus_texts, evaluate_model
from rbegir.model.presets import ModelConfig, preset
from rbegir.training.pairs import read_pairs, read_texts
from rbegir.training.split import split_by_keyword
from rbegir.training.trainer import run

FIGURES = ("roc_auc", "log_loss", "recall@1", "recall@10", "recall@100")


def shape(name: str) -> ModelConfig:
    base, _, suffix = name.partition("+")
    if suffix not in ("", "shared"):
        sys.exit(f"error: expected a preset or PRESET+shared, got {name!r}")
    return replace(preset(base), share_towers=suffix == "shared")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("pairs", type=Path)
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--presets", nargs="+", default=["rbe_star", "m_3"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--query-column", default="query")
    parser.add_argument("--keyword-column", default="keyword")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()

    corpus = corpus_texts(read_texts(args.corpus))
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        split = Path(folder)
        pairs = read_pairs(args.pairs, query_column=args.query_column, keyword_column=args.keyword_column)
        counts = split_by_keyword(pairs, split)
        valid = read_pairs(split / "valid.parquet").read_all()
        for name in args.presets:
            runs = []
            for seed in range(args.seeds):
                trained = run(
                    split / "train.parquet",
                    config=shape(name),
                    valid=split / "valid.parquet",
                    device=args.device,
                    epochs=args.epochs,
                    seed=seed,
                )
                report = evaluate_model(trained.model, valid, corpus=corpus).to_dict()
                runs.append(
                    {figure: report[figure] for figure in FIGURES}
                    | {"seed": seed, "epochs": len(trained.history), "pairs_per_s": trained.pairs_per_s}
                    | {"intervals": report["intervals"]}
                )
                print(name, json.dumps(runs[-1]), file=sys.stderr, flush=True)
            means = {
                figure: {
                    "mean": float(np.mean([r[figure] for r in runs])),
                    "std": float(np.std([r[figure] for r in runs], ddof=1)) if len(runs) > 1 else None,
                }
                for figure in FIGURES
            }
            rows.append({"preset": name, **means, "runs": runs})
            result = {
                "host": describe(("torch", "triton", "pyarrow", "scikit-learn")),
                "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
                "command": " ".join(
                    ["python benchmarks/accuracy.py", *(Path(word).name for word in sys.argv[1:])]
                ),
                "pairs": counts,
                "corpus": len(corpus),
                "rows": rows,
            }
            args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
