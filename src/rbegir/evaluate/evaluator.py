"""Evaluates a model on pairs, a corpus and labels: one `Evaluation` with every figure, as JSON or a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias, TypedDict, Unpack

import numpy as np
import pyarrow as pa

from rbegir.errors import InputError
from rbegir.evaluate.groups import NEGATIVES, sample_groups
from rbegir.evaluate.labels import NDCG_CUTOFF, LabelReport, evaluate_labels
from rbegir.evaluate.metrics import (
    REPLICATES,
    Measure,
    fit_gamma,
    group_auc,
    group_losses,
    measure,
    measure_mean,
    positives_first,
    weighted_auc,
    weighted_mean,
)
from rbegir.evaluate.retrieval import CUTOFFS, Targets
from rbegir.evaluate.scorers import Embedder, ModelScorer, Scorer
from rbegir.read.pairs import LabelStream, PairStream, TextStream

if TYPE_CHECKING:
    from rich.table import Table

Stage: TypeAlias = Callable[[str, float], None]  # (what is being done, fraction done)


@dataclass(frozen=True)
class Evaluation:
    """The figures of one model. What was not measured is None."""

    log_loss: Measure | None = None
    roc_auc: Measure | None = None
    recall: dict[int, Measure] = field(default_factory=dict)  # cutoff → recall
    labels: LabelReport | None = None
    gamma: float | None = None
    negatives: int | None = None
    pairs: int = 0  # distinct pairs, one sample group each
    queries: int = 0  # distinct queries among them
    corpus: int = 0  # distinct texts searched
    missing: int = 0  # pairs whose keyword is not in the corpus
    seed: int = 0

    def measures(self) -> dict[str, Measure]:
        """The figures on pairs by the names they have in JSON."""
        found = {"log_loss": self.log_loss, "roc_auc": self.roc_auc}
        found |= {f"recall@{k}": value for k, value in self.recall.items()}
        return {name: value for name, value in found.items() if value is not None}

    def to_dict(self) -> dict[str, object]:
        """For JSON: every figure under its name, null if not measured; with labels alone, their ROC AUC."""
        measures = self.measures()
        if self.roc_auc is None and self.labels is not None:
            measures["roc_auc"] = self.labels.roc_auc
        names = dict.fromkeys(["log_loss", "roc_auc", *(f"recall@{k}" for k in CUTOFFS), *measures])
        return {
            **{name: measures[name].value if name in measures else None for name in names},
            "intervals": {name: value.interval for name, value in measures.items()},
            "pairs": self.pairs,
            "queries": self.queries,
            "corpus": self.corpus,
            "missing": self.missing,
            "negatives": self.negatives,
            "gamma": self.gamma,
            "seed": self.seed,
            "labels": None if self.labels is None else self.labels.to_dict(),
        }


class Options(TypedDict, total=False):
    """What `evaluate_model` and `evaluate` take besides the model and the pairs."""

    corpus: TextStream | pa.Array | Sequence[str] | None  # texts in which recall is measured
    labels: LabelStream | pa.Table | None
    cutoffs: Sequence[int]  # of recall
    negatives: int  # of a group
    gamma: float | None  # None: fitted to the groups (see `metrics`)
    bootstrap: int  # replicates for the intervals
    seed: int
    progress: Stage | None


def evaluate_model(
    model: Embedder, pairs: PairStream | pa.Table | None = None, **options: Unpack[Options]
) -> Evaluation:
    """Log loss and ROC AUC on pairs, recall in a corpus, ROC AUC and nDCG on labels: whatever is given.

    Weights of pairs are not used: each distinct pair is one group.
    """
    return evaluate(ModelScorer(model), pairs, **options)


def evaluate(
    scorer: Scorer,
    pairs: PairStream | pa.Table | None = None,
    *,
    corpus: TextStream | pa.Array | Sequence[str] | None = None,
    labels: LabelStream | pa.Table | None = None,
    cutoffs: Sequence[int] = CUTOFFS,
    negatives: int = NEGATIVES,
    gamma: float | None = None,
    bootstrap: int = REPLICATES,
    seed: int = 0,
    progress: Stage | None = None,
) -> Evaluation:
    """The figures of `evaluate_model` for anything that scores, such as the baseline."""
    if pairs is None and labels is None:
        raise InputError("there is nothing to evaluate on", hint="give pairs, labels, or both")
    if corpus is not None and pairs is None:
        raise InputError("a corpus alone cannot be evaluated", hint="give pairs too")
    if not cutoffs or min(cutoffs) < 1:
        raise InputError(f"recall needs cutoffs of at least 1, got {list(cutoffs)}")
    stage = progress or (lambda what, done: None)
    report: dict[str, object] = {"seed": seed}
    if pairs is not None:
        table = pairs if isinstance(pairs, pa.Table) else pairs.read_all()
        report |= _on_pairs(scorer, table, negatives, gamma, bootstrap, seed, stage)
        if corpus is not None:
            report |= _in_corpus(scorer, table, corpus, sorted(set(cutoffs)), bootstrap, seed, stage)
    if labels is not None:
        report["labels"] = evaluate_labels(
            scorer,
            labels if isinstance(labels, pa.Table) else labels.read_all(),
            bootstrap=bootstrap,
            seed=seed,
            progress=lambda done: stage("labels", done),
        )
    return Evaluation(**report)  # type: ignore[arg-type]


def _on_pairs(
    scorer: Scorer,
    pairs: pa.Table,
    negatives: int,
    gamma: float | None,
    bootstrap: int,
    seed: int,
    stage: Stage,
) -> dict[str, object]:
    groups = sample_groups(pairs, negatives=negatives, seed=seed)
    scores = scorer.score(groups, lambda done: stage("pairs", done))  # [G, 1 + negatives]
    gamma = fit_gamma(scores) if gamma is None else gamma
    losses = group_losses(scores, gamma)
    queries = len(groups.queries)
    owner = np.repeat(groups.query, scores.shape[1])
    auc = weighted_auc(positives_first(scores).ravel(), scores.ravel(), owner)
    mean = weighted_mean(losses, groups.query)
    return {
        "log_loss": measure(float(losses.mean()), mean, queries, count=bootstrap, seed=seed),
        "roc_auc": measure(group_auc(scores), auc, queries, count=bootstrap, seed=seed),
        "gamma": gamma,
        "negatives": negatives,
        "pairs": len(groups),
        "queries": queries,
    }


def _in_corpus(
    scorer: Scorer,
    pairs: pa.Table,
    corpus: TextStream | pa.Array | Sequence[str],
    cutoffs: list[int],
    bootstrap: int,
    seed: int,
    stage: Stage,
) -> dict[str, object]:
    texts = corpus_texts(corpus)
    targets = Targets(pairs, texts)
    found = scorer.search(targets.queries, texts, max(cutoffs), lambda done: stage("corpus", done))
    recall = {
        k: measure_mean(values, count=bootstrap, seed=seed)
        for k, values in targets.recall(found, cutoffs).items()
    }
    return {"recall": recall, "corpus": len(texts), "missing": targets.missing}


def corpus_texts(corpus: TextStream | pa.Array | Sequence[str]) -> pa.LargeStringArray:
    """The distinct texts of a corpus in order of first occurrence; read once, they serve several evaluations.

    Offsets are 64-bit: the texts may exceed 2 GiB.
    """
    if isinstance(corpus, TextStream):
        chunks = [batch.column("text").cast(pa.large_string()) for batch in corpus]
        texts = pa.chunked_array(chunks, pa.large_string())
    else:
        texts = pa.array(corpus, pa.large_string())
    if not len(texts):
        raise InputError("the corpus is empty")
    return texts.unique()


def report_table(reports: Mapping[str, Evaluation]) -> Table:
    """A table for people: one row per figure, one column per model, with 95 % intervals."""
    from rich.table import Table

    table = Table("", *reports, caption=_caption(next(iter(reports.values()))), caption_justify="left")
    rows = {name: _rows(report) for name, report in reports.items()}
    for label in dict.fromkeys(label for found in rows.values() for label in found):
        table.add_row(label, *(_cell(found.get(label)) for found in rows.values()))
    return table


def _rows(report: Evaluation) -> dict[str, Measure]:
    names = {"log_loss": "log loss", "roc_auc": "ROC AUC"}
    rows = {names.get(name, name): value for name, value in report.measures().items()}
    if report.labels is not None:
        rows["labels: ROC AUC"] = report.labels.roc_auc
        for grade, value in report.labels.roc_auc_from.items():
            rows[f"labels: ROC AUC, grade ≥ {grade:g}"] = value
        if report.labels.ndcg is not None:
            rows[f"labels: nDCG@{NDCG_CUTOFF}"] = report.labels.ndcg
    return rows


def _cell(measure: Measure | None) -> str:
    if measure is None:
        return "–"
    shown = f"{measure.value:.4f}"
    return shown if measure.low is None else f"{shown}  ({measure.low:.4f} … {measure.high:.4f})"


def _caption(report: Evaluation) -> str:
    parts = []
    if report.pairs:
        parts.append(
            f"{report.pairs:,} pairs of {report.queries:,} queries, {report.negatives} random negatives each"
        )
    if report.corpus:
        parts.append(f"recall among {report.corpus:,} texts")
    if report.labels is not None:
        parts.append(f"{report.labels.pairs:,} labels of {report.labels.queries:,} queries")
    return "; ".join(parts) + "; 95 % intervals by resampling queries"
