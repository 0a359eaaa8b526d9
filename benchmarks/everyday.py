"""What a person would find: the first five hits for ten everyday queries among Debian packages, judged.

    python benchmarks/everyday.py find PACKAGES FOUND.json --model NAME=DIR … --encoder NAME=DIR …
    python benchmarks/everyday.py sheet FOUND.json SHEET.json [--known RESULT.json]
    python benchmarks/everyday.py count FOUND.json SHEET.json OUT.json

`find` searches texts.txt of PACKAGES (`tools/packages.py`) with each model as a user would (reranked, if the
model has a reranker) and by its codes alone, and with BM25 and tri-letter cosine. A sentence-transformers
model (`--encoder`) is searched by its float vectors, by codes of 48 bytes, and by these codes and words.
`find` also measures the recall of QUERIED test pairs. `sheet` writes every pair of query and package once,
shuffled and without the methods that found it, and fills in the verdicts of an earlier result (`--known`).
The judge replaces each null by true or false:

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
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from rbegir import Index
from rbegir.codes.planes import Codes
from rbegir.encode.binarizer import Binarizer
from rbegir.encode.clsm.model import Model
from rbegir.encode.sentence.encoder import SentenceEncoder
from rbegir.evaluate.evaluator import corpus_texts
from rbegir.evaluate.retrieval import Targets
from rbegir.evaluate.scorers import BM25, ModelScorer, RerankScorer, Scorer, TriletterCosine
from rbegir.lab.bench.host import describe
from rbegir.read.pairs import read_pairs, read_texts

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
QUERIED, DEPTH = 2000, 10
CODE_BYTES = 48  # of a sentence encoder

Positions = np.ndarray[Any, np.dtype[np.int64]]
Find = Callable[[pa.Array], Positions]  # queries → the best texts, [queries, DEPTH]


def by_scorer(scorer: Scorer, texts: pa.Array) -> Find:
    return lambda queries: scorer.search(queries, texts, DEPTH, lambda done: None)


def by_encoder(name: str, path: Path, texts: pa.Array, folder: Path) -> dict[str, Find]:
    """A sentence encoder by its vectors, by its codes, and by codes and words."""
    encoder = SentenceEncoder.load(path, batch_size=256)
    listed = texts.to_pylist()
    vectors = encoder.vectors(listed, "document")
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    encoder.binarizer = Binarizer(vectors.shape[1], bytes=CODE_BYTES).fit(vectors)
    index = Index.create(folder / f"{name}.rbe", encoder.learn_words(texts))
    codes = encoder.binarizer.encode_keywords(vectors)
    index.add_codes(Codes(codes.planes, codes.n), texts=listed, fingerprint=encoder.fingerprint)

    def by_vectors(queries: pa.Array) -> Positions:
        scores = encoder.vectors(queries.to_pylist(), "query") @ vectors.T
        return np.argsort(-scores, axis=1, kind="stable")[:, :DEPTH]

    def by_index(rerank: bool) -> Find:
        return lambda queries: index.search(queries.to_pylist(), DEPTH, rerank=rerank).ids

    return {
        f"{name}, float vectors": by_vectors,
        f"{name}, codes of {CODE_BYTES} bytes": by_index(False),
        f"{name}, these codes and words": by_index(True),
    }


def recall(method: Find, pairs: pa.Table, texts: pa.Array) -> dict[str, float]:
    targets = Targets(pairs, texts)
    found = targets.recall(method(targets.queries), (1, DEPTH))
    return {f"recall@{k}": float(values.mean()) for k, values in found.items()}


def find(folder: Path, models: dict[str, Path], encoders: dict[str, Path], temporary: Path) -> dict[str, Any]:
    queries, texts = pa.array(QUERIES), corpus_texts(read_texts(folder / "texts.txt"))
    pairs = read_pairs(folder / "test.tsv").read_all()
    some = pairs.take(np.random.default_rng(0).permutation(pairs.num_rows)[:QUERIED])
    methods: dict[str, Find] = {
        "BM25": by_scorer(BM25(), texts),
        "tri-letter cosine": by_scorer(TriletterCosine(), texts),
    }
    for name, path in encoders.items():
        methods |= by_encoder(name, path, texts, temporary)
    for name, path in models.items():
        model = Model.load(path)
        methods[f"{name}, codes"] = by_scorer(ModelScorer(model), texts)
        if model.reranker is not None:
            methods[f"{name}, reranked"] = by_scorer(RerankScorer(model), texts)
    found, recalls = {}, {}
    for name, method in methods.items():
        found[name] = {
            query: texts.take(pa.array(row[:HITS])).to_pylist()
            for query, row in zip(QUERIES, method(queries), strict=True)
        }
        recalls[name] = recall(method, some, texts)
        print(name, recalls[name], flush=True)
    return {"host": describe(), "texts": len(texts), "queried": QUERIED, "recall": recalls, "found": found}


def sheet(found: dict[str, Any], known: dict[str, Any]) -> list[dict[str, Any]]:
    verdicts = {(row["query"], row["package"]): row["useful"] for row in known.get("judged", ())}
    pairs = {(q, text) for hits in found["found"].values() for q, texts in hits.items() for text in texts}
    rows = sorted(pairs)
    random.Random(0).shuffle(rows)
    return [{"query": query, "package": text, "useful": verdicts.get((query, text))} for query, text in rows]


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
    parser.add_argument("--encoder", action="append", default=[], help="NAME=DIRECTORY")
    parser.add_argument("--known", type=Path, help="an earlier result, whose verdicts are kept")
    args = parser.parse_args()
    *given, out = args.files
    made: Any
    if args.step == "find":
        models, encoders = (
            {name: Path(path) for name, path in (one.split("=", 1) for one in named)}
            for named in (args.model, args.encoder)
        )
        with tempfile.TemporaryDirectory() as temporary:
            made = find(given[0], models, encoders, Path(temporary))
    else:
        read = [
            json.loads(path.read_text(encoding="utf-8")) for path in (*given, *filter(None, [args.known]))
        ]
        made = count(read[0], read[1]) if args.step == "count" else sheet(read[0], *read[1:] or [{}])
    out.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
