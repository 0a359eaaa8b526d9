"""RBE on two other networks, measured: semantic hashing of documents and CBOW of words.

    python benchmarks/generalisations.py --titles titles.txt.gz --pairs redirects.tsv.gz \
        --query-column alias --keyword-column title --out benchmarks/results/generalisations.json

*Documents* are docstrings of installed packages (`docstrings.py`); a fifth of them are queries,
and the figure is the share of a query's ten nearest of the others that come from its subpackage.

*Words* are those of titles, learned without pairs. Two figures on the ten nearest words: how many a model
shares with the float model (another float model, trained from another seed, shows the most that can be
expected), and how often they hold the word that editors put in its place: in pairs such as `saint gallen →
st. gallen`, which differ in one word and which no model has seen.

Each model is trained with several seeds. Random codes and untrained models show what costs nothing.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from docstrings import Document, docstrings
from rbegir.codes.planes import Codes
from rbegir.codes.score import keys
from rbegir.lab.bench.host import describe
from rbegir.lab.cbow import CBOW, CBOWConfig, words_of
from rbegir.lab.figures import Stat
from rbegir.lab.hashing import HashingConfig, SemanticHashing
from rbegir.read.pairs import read_pairs, read_texts

NEAREST = 10
ASKED = 2000  # words whose neighbours are compared


def summary(name: str, size: int, figures: Iterable[dict[str, float]]) -> dict[str, Any]:
    """Mean and standard deviation over seeds of each figure."""
    runs = list(figures)
    row: dict[str, Any] = {"model": name, "bytes": size, "seeds": len(runs)}
    for figure in runs[0]:
        found = Stat.of([run[figure] for run in runs])
        row[figure] = {"mean": found.mean, "std": found.std}
    print(json.dumps(row), file=sys.stderr, flush=True)
    return row


def unit(vectors: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)


def random_codes(count: int, n: int, planes: int, seed: int) -> Codes:
    return Codes.from_signs(np.random.default_rng(seed).random((planes, count, n)) < 0.5)


# ---- documents ----


def precision(
    scores: npt.NDArray[Any], asked: npt.NDArray[np.str_], stored: npt.NDArray[np.str_]
) -> dict[str, float]:
    nearest = np.argsort(-scores, axis=1, kind="stable")[:, :NEAREST]
    return {"precision@10": float((stored[nearest] == asked[:, None]).mean())}


def hashing_rows(documents: list[Document], seeds: int, epochs: int) -> list[dict[str, Any]]:
    from sklearn.feature_extraction.text import TfidfVectorizer

    order = np.random.default_rng(0).permutation(len(documents))
    asked, stored = ([documents[i] for i in part] for part in np.split(order, [len(order) // 5]))
    asked_texts, stored_texts = [d.text for d in asked], [d.text for d in stored]
    labels = np.array([d.label for d in asked]), np.array([d.label for d in stored])
    config = HashingConfig(epochs=epochs)

    def binary(trained: bool, planes: tuple[int, int]) -> Callable[[int], dict[str, float]]:
        def run(seed: int) -> dict[str, float]:
            model = models[trained, seed]
            queries = model.encode_queries(asked_texts).first_planes(planes[0])
            return precision(
                keys(queries.values(), model.encode_keywords(stored_texts).first_planes(planes[1])), *labels
            )

        return run

    def floats(model: SemanticHashing) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        return model.embed(asked_texts), model.embed(stored_texts)

    def plainly(seed: int, of: Callable[..., npt.NDArray[np.float32]]) -> dict[str, float]:
        return precision(of(plain[seed][0]) @ of(plain[seed][1]).T, *labels)

    models, plain = {}, {}
    for seed in range(seeds):
        models[True, seed] = SemanticHashing.fit(stored_texts, replace(config, seed=seed))
        models[False, seed] = SemanticHashing.fit(stored_texts, replace(config, seed=seed, epochs=0))
        plain[seed] = floats(SemanticHashing.fit(stored_texts, replace(config, planes=0, seed=seed)))
    tf_idf = TfidfVectorizer(stop_words="english", sublinear_tf=True).fit(stored_texts)
    weights = (tf_idf.transform(asked_texts) @ tf_idf.transform(stored_texts).T).toarray()
    n, each = config.n, range(seeds)
    chance = [
        keys(random_codes(len(asked), n, 3, 2 * s).values(), random_codes(len(stored), n, 2, 2 * s + 1))
        for s in each
    ]
    return [
        summary("TF-IDF, every word", 0, [precision(weights, *labels)]),
        summary("float code layer", 4 * n, (plainly(s, unit) for s in each)),
        summary("float code layer, signs", n // 8, (plainly(s, np.sign) for s in each)),
        summary("RBE, 1 plane", n // 8, map(binary(True, (1, 1)), each)),
        summary("RBE, 3 planes ask 2", n // 4, map(binary(True, (3, 2)), each)),
        summary("RBE, untrained", n // 4, map(binary(False, (3, 2)), each)),
        summary("random codes", n // 4, (precision(scores, *labels) for scores in chance)),
    ]


# ---- words ----


def substitutes(pairs: Iterable[tuple[str, str]]) -> set[tuple[str, str]]:
    """Words that stand for each other in pairs that differ in nothing else."""
    found = set()
    for query, keyword in pairs:
        left, right = words_of(query), words_of(keyword)
        if len(left) == len(right) >= 2:
            different = [both for both in zip(left, right, strict=True) if both[0] != both[1]]
            if len(different) == 1:
                found.add(different[0])
    return found


Planes = tuple[int, int] | None


def nearest_words(model: CBOW, asked: list[str], planes: Planes) -> list[set[str]]:
    order, _ = model.neighbours(asked, NEAREST, planes=planes)
    return [{model.vocabulary[i] for i in row} for row in order]


def found_substitutes(model: CBOW, wanted: list[tuple[str, str]], planes: Planes) -> float:
    asked = sorted({word for word, _ in wanted})
    near = dict(zip(asked, nearest_words(model, asked, planes), strict=True))
    return float(np.mean([other in near[word] for word, other in wanted]))


def cbow_rows(
    titles: list[str], pairs: Iterable[tuple[str, str]], seeds: int, config: CBOWConfig
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    plain = [CBOW.fit(titles, replace(config, planes=0, keyword_planes=1, seed=s)) for s in range(seeds)]
    print("float models are trained", file=sys.stderr, flush=True)
    binary = [CBOW.fit(titles, replace(config, seed=s)) for s in range(seeds)]
    fresh = CBOW.fit(titles, replace(config, epochs=0))
    vocabulary = plain[0].vocabulary
    known = set(vocabulary)
    wanted = sorted(pair for pair in substitutes(pairs) if known.issuperset(pair))
    asked = vocabulary[:ASKED]
    reference = [nearest_words(model, asked, None) for model in plain]

    def figures(model: CBOW, seed: int, planes: Planes = None) -> dict[str, float]:
        near = nearest_words(model, asked, planes)
        shared = [len(a & b) / NEAREST for a, b in zip(near, reference[seed], strict=True)]
        found = found_substitutes(model, wanted, planes)
        return {"overlap@10": float(np.mean(shared)), "substitute@10": found}

    n = config.n
    rows = [
        summary("float", 4 * n, (figures(m, (s + 1) % seeds) for s, m in enumerate(plain))),
        summary("RBE, 3 planes ask 2", n // 4, (figures(m, s) for s, m in enumerate(binary))),
        summary("RBE, 1 plane", n // 8, (figures(m, s, (1, 1)) for s, m in enumerate(binary))),
        summary("RBE, untrained", n // 4, [figures(fresh, 0)]),
    ]
    rng = np.random.default_rng(0)
    by_chance = {w: set(rng.choice(len(vocabulary), NEAREST, replace=False)) for w in {a for a, _ in wanted}}
    number = {word: i for i, word in enumerate(vocabulary)}
    chance = float(np.mean([number[other] in by_chance[word] for word, other in wanted]))
    nothing = {"overlap@10": NEAREST / len(vocabulary), "substitute@10": chance}
    rows.append(summary("random words", 0, [nothing]))
    examples = {
        word: {
            "float": [other for other, _ in plain[0].similar(word, 5)],
            "rbe": [other for other, _ in binary[0].similar(word, 5)],
        }
        for word in ("river", "film", "football", "germany", "painter", "1990", "church", "insect")
        if word in known
    }
    counts = {"titles": len(titles), "words": len(vocabulary), "substitutes": len(wanted)}
    return rows, {**counts, "examples": examples}


def main() -> None:
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=plain)
    parser.add_argument("--parts", nargs="+", choices=("hashing", "cbow"), default=("hashing", "cbow"))
    parser.add_argument("--titles", type=Path, required=True)
    parser.add_argument("--pairs", type=Path, required=True)
    parser.add_argument("--query-column", default="query")
    parser.add_argument("--keyword-column", default="keyword")
    parser.add_argument("--sample", type=int, help="this many titles, drawn at random")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--hashing-epochs", type=int, default=HashingConfig.epochs)
    parser.add_argument("--epochs", type=int, default=CBOWConfig.epochs, help="of CBOW")
    parser.add_argument("--min-count", type=int, default=30, help="of CBOW's words")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)

    result: dict[str, Any] = json.loads(args.out.read_text()) if args.out.exists() else {}
    run = {
        "host": describe(("torch", "scikit-learn", "scipy")),
        "command": " ".join(["python benchmarks/generalisations.py", *(Path(w).name for w in sys.argv[1:])]),
    }
    if "hashing" in args.parts:
        documents = docstrings()
        result["hashing"] = {
            **run,
            "documents": len(documents),
            "classes": len({d.label for d in documents}),
            "rows": hashing_rows(documents, args.seeds, args.hashing_epochs),
        }
        args.out.write_text(json.dumps(result, indent=1) + "\n")
    if "cbow" not in args.parts:
        return
    titles = [text for batch in read_texts(args.titles) for text in batch.column("text").to_pylist()]
    if args.sample and args.sample < len(titles):
        chosen = np.random.default_rng(0).choice(len(titles), args.sample, replace=False)
        titles = [titles[i] for i in np.sort(chosen)]
    stream = read_pairs(args.pairs, query_column=args.query_column, keyword_column=args.keyword_column)
    pairs = (
        pair
        for batch in stream
        for pair in zip(batch["query"].to_pylist(), batch["keyword"].to_pylist(), strict=True)
    )
    config = CBOWConfig(epochs=args.epochs, min_count=args.min_count)
    rows, about = cbow_rows(titles, pairs, args.seeds, config)
    result["cbow"] = {**run, **about, "rows": rows}
    args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
