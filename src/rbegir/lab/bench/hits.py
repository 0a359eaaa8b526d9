"""How good the hits are, as a user gets them: codes alone, reranked, and what needs no training.

Tasks, each with keywords that training never saw, over all texts of its corpus:

    titles      aliases → Wikipedia titles, `reproduce.dataset` (all pairs, the whole corpus)
    sample      its shipped part
    packages:N  words of descriptions → Debian packages (`tools/packages.py`), N pairs; 0: the corpus alone

Recall@k is that of `evaluate.retrieval`; intervals are over seeds, each with a training of its own.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rbegir.encode.clsm.model import Model
from rbegir.errors import InputError
from rbegir.evaluate.evaluator import corpus_texts
from rbegir.evaluate.groups import SampleGroups, distinct
from rbegir.evaluate.metrics import roc_auc
from rbegir.evaluate.retrieval import CUTOFFS, Targets
from rbegir.evaluate.scorers import BM25, ModelScorer, RerankScorer, Scorer, TriletterCosine
from rbegir.lab.bench.host import describe
from rbegir.lab.reproduce import dataset
from rbegir.read.pairs import read_pairs, read_texts
from rbegir.read.sample import sample_path
from rbegir.training.trainer import run as train

QUERIES = 6000  # of a test set
Json = dict[str, Any]
Say = Callable[[str], None]


def run(
    tasks: Sequence[str],
    *,
    data: str | Path | None = None,
    packages: str | Path | None = None,
    seeds: int = 3,
    device: str = "auto",
    untrained: bool = True,
    say: Say = lambda line: None,
    **settings: Any,
) -> Json:
    """The figures of every task; `untrained` also measures BM25 and tri-letter cosine."""
    began, rows = time.monotonic(), []
    for task in tasks:
        name, _, number = task.partition(":")
        if name not in ("titles", "sample", "packages") or (name == "packages") != number.isdigit():
            raise InputError(f"unknown task {task!r}", hint="choose titles, sample or packages:PAIRS")
        if (name == "titles" and data is None) or (name == "packages" and packages is None):
            raise InputError(f"the task {name} needs its folder", hint="give --data or --packages")
        if name == "titles":
            assert data is not None
            found = dataset.load(data)
            pairs = pa.concat_tables([found.train, found.select])
            rows += _task(
                task, pairs, found.corpus, found.test, found.labels, seeds, device, untrained, say, settings
            )
        elif name == "sample":
            pairs, test = (read_pairs(sample_path(part)).read_all() for part in ("train", "valid"))
            texts = corpus_texts(read_texts(sample_path("titles")))
            rows += _task(task, pairs, texts, test, {}, seeds, device, untrained, say, settings)
        else:
            folder = Path(packages or "")
            pairs, test = (read_pairs(_file(folder, part)).read_all() for part in ("train", "test"))
            chosen = np.random.default_rng(0).permutation(pairs.num_rows)[: int(number)]
            texts = corpus_texts(read_texts(_file(folder, "texts")))
            rows += _task(task, pairs.take(chosen), texts, test, {}, seeds, device, untrained, say, settings)
    return {"rows": rows, "host": describe(), "minutes": round((time.monotonic() - began) / 60, 1)}


def _file(folder: Path, stem: str) -> Path:
    return sorted(folder.glob(f"{stem}.*"))[0]


def _task(
    task: str,
    pairs: pa.Table,
    texts: pa.Array,
    test: pa.Table,
    labels: dict[str, pa.Table],
    seeds: int,
    device: str,
    untrained: bool,
    say: Say,
    settings: Json,
) -> list[Json]:
    test = test.take(dataset.sample_rows(test.num_rows, QUERIES, 0))
    targets = Targets(test, texts)
    slice_name = dataset.headline(labels)
    judged = None if slice_name is None else labels[slice_name]

    def measured(method: str, scorers: Sequence[Scorer]) -> Json:
        found = [_figures(scorer, targets, texts, judged) for scorer in scorers]
        row = {
            "task": task,
            "pairs": pairs.num_rows,
            "method": method,
            "queries": len(targets.queries),
            "texts": len(texts),
        }
        row |= {name: _summary([figures[name] for figures in found]) for name in found[0]}
        say(f"{task} {method}: " + "  ".join(f"{n} {row[n]['mean']:.4f}" for n in found[0]))
        return row

    rows = []
    if untrained:
        rows += [measured("BM25", [BM25()]), measured("tri-letter cosine", [TriletterCosine()])]
    with tempfile.TemporaryDirectory() as temporary:
        path = Path(temporary) / "pairs.parquet"
        pq.write_table(pairs, path)
        corpus = Path(temporary) / "corpus.parquet"
        pq.write_table(pa.table({"text": texts}), corpus)
        models = []
        for seed in range(seeds):
            began = time.monotonic()
            out = Path(temporary) / f"model{seed}"
            done = train(
                path if pairs.num_rows else None, corpus=corpus, out=out, device=device, seed=seed, **settings
            )
            took = time.monotonic() - began
            say(f"{task} seed {seed}: {done.pairs:,} pairs, {len(done.history)} epochs, {took:.0f} s")
            models.append(Model.load(out))
        rows.append(measured("codes", [ModelScorer(model) for model in models]))
        rows.append(measured("reranked", [RerankScorer(model) for model in models]))
        rows[-1]["model_mb"] = round(
            sum(f.stat().st_size for f in (Path(temporary) / "model0").rglob("*")) / 1e6, 1
        )
    return rows


def _figures(scorer: Scorer, targets: Targets, texts: pa.Array, judged: pa.Table | None) -> dict[str, float]:
    found = scorer.search(targets.queries, texts, max(CUTOFFS), lambda done: None)
    figures = {f"recall@{k}": float(values.mean()) for k, values in targets.recall(found, CUTOFFS).items()}
    if judged is not None:
        (queries, query), (keywords, keyword) = distinct(judged["query"]), distinct(judged["keyword"])
        judged_pairs = SampleGroups(queries, keywords, query, keyword[:, None])
        score = scorer.judge(judged_pairs, lambda done: None)[:, 0]
        grade = np.asarray(judged["label"])
        figures |= {f"auc_{bar}": float(roc_auc(grade >= bar, score)) for bar in (1, 2)}
    return figures


def _summary(values: list[float]) -> Json:
    deviation = statistics.stdev(values) if len(values) > 1 else None
    return {"mean": statistics.fmean(values), "std": deviation, "seeds": values}
