"""Recall of the hits that a user gets: by codes alone, reranked, and by methods that need no training.

Tasks, each with keywords that training never saw, over all texts of its corpus:

    titles      aliases → Wikipedia titles, `reproduce.dataset` (all pairs, the whole corpus)
    sample      its shipped part
    packages:N  words of descriptions → Debian packages (`tools/packages.py`), N pairs; 0: the corpus alone

Recall@k is that of `evaluate.retrieval`; the spread is over seeds, each with its own training.
"""

import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rbegir.encode.clsm.model import Model
from rbegir.errors import InputError
from rbegir.evaluate.evaluator import corpus_texts, evaluate_labels
from rbegir.evaluate.retrieval import Targets
from rbegir.evaluate.scorers import BM25, ModelScorer, RerankScorer, Scorer, TriletterCosine
from rbegir.lab.bench.host import describe
from rbegir.lab.figures import Json, Stat
from rbegir.lab.reproduce import dataset
from rbegir.lab.reproduce.testbed import scorer_recall
from rbegir.read.pairs import read_pairs, read_texts
from rbegir.read.sample import sample_path
from rbegir.training.trainer import run as train

QUERIES = 6000  # of a test set
Say = Callable[[str], None]


class HitsTask(NamedTuple):
    """The training pairs, the texts that are searched, and the test pairs."""

    name: str
    pairs: pa.Table
    texts: pa.Array
    test: pa.Table
    judged: pa.Table | None = None


def run(
    tasks: Sequence[str],
    *,
    data: str | Path | None = None,
    packages: str | Path | None = None,
    seeds: int = 3,
    device: str = "auto",
    say: Say = lambda line: None,
) -> Json:
    """The figures of every task."""
    began = time.monotonic()
    rows = [row for name in tasks for row in _measure(_load(name, data, packages), seeds, device, say)]
    return {"rows": rows, "host": describe(), "minutes": round((time.monotonic() - began) / 60, 1)}


def _load(task: str, data: str | Path | None, packages: str | Path | None) -> HitsTask:
    name, _, number = task.partition(":")
    if name not in ("titles", "sample", "packages") or (name == "packages") != number.isdigit():
        raise InputError(f"unknown task {task!r}", hint="choose titles, sample or packages:PAIRS")
    if name == "titles" and data is not None:
        found = dataset.load(data)
        pairs, head = pa.concat_tables([found.train, found.select]), dataset.headline(found.labels)
        return HitsTask(task, pairs, found.corpus, found.test, None if head is None else found.labels[head])
    if name == "sample":
        files = [sample_path(part) for part in ("train", "valid", "titles")]
    elif name == "packages" and packages is not None:
        hint = "--packages is a folder that tools/packages.py wrote"
        files = [dataset.find(Path(packages), stem, hint) for stem in ("train", "test", "texts")]
    else:
        raise InputError(f"the task {name} needs its folder", hint="give --data or --packages")
    pairs, test = (read_pairs(file).read_all() for file in files[:2])
    if number:
        pairs = pairs.take(np.random.default_rng(0).permutation(pairs.num_rows)[: int(number)])
    return HitsTask(task, pairs, corpus_texts(read_texts(files[2])), test)


def _measure(task: HitsTask, seeds: int, device: str, say: Say) -> list[Json]:
    test = task.test.take(dataset.sample_rows(task.test.num_rows, QUERIES, 0))
    targets = Targets(test, task.texts)

    def measured(method: str, scorers: Sequence[Scorer]) -> Json:
        found = [_figures(scorer, targets, task.texts, task.judged) for scorer in scorers]
        row: Json = {
            "task": task.name,
            "pairs": task.pairs.num_rows,
            "method": method,
            "queries": len(targets.queries),
            "texts": len(task.texts),
        }
        for name in found[0]:
            values = [figures[name] for figures in found]
            row[name] = {**Stat.of(values)._asdict(), "seeds": values}
        say(f"{task.name} {method}: " + "  ".join(f"{n} {row[n]['mean']:.4f}" for n in found[0]))
        return row

    rows = [measured("BM25", [BM25()]), measured("tri-letter cosine", [TriletterCosine()])]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        pairs, corpus = folder / "pairs.parquet", folder / "corpus.parquet"
        pq.write_table(task.pairs, pairs)
        pq.write_table(pa.table({"text": task.texts}), corpus)
        models = []
        for seed in range(seeds):
            began = time.monotonic()
            out = folder / f"model{seed}"
            done = train(
                pairs if task.pairs.num_rows else None, corpus=corpus, out=out, seed=seed, device=device
            )
            took = time.monotonic() - began
            say(f"{task.name} seed {seed}: {done.pairs:,} pairs, {len(done.history)} epochs, {took:.0f} s")
            models.append(Model.load(out))
        rows.append(measured("codes", [ModelScorer(model) for model in models]))
        rows.append(measured("reranked", [RerankScorer(model) for model in models]))
        size = sum(file.stat().st_size for file in (folder / "model0").rglob("*"))
        rows[-1] |= {"model_mb": round(size / 1e6, 1), "epochs": len(done.history)}
    return rows


def _figures(scorer: Scorer, targets: Targets, texts: pa.Array, judged: pa.Table | None) -> dict[str, float]:
    figures = scorer_recall(scorer, targets, texts)
    if judged is not None:
        found = evaluate_labels(scorer, judged, bootstrap=0, seed=0, progress=lambda done: None)
        figures["auc_1"] = found.roc_auc.value
        figures |= {f"auc_{bar:g}": auc.value for bar, auc in found.roc_auc_from.items()}
    return figures
