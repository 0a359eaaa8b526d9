"""Evaluates a model on pairs, a corpus and labels: one `Evaluation` with every figure, as JSON or a table.

*Labels* say whether the model scores what judges liked above what they did not. ROC AUC pools all judged
pairs, as the paper does: bad is negative, every better grade positive; then one AUC per higher bar (at
least good, at least excellent). nDCG@10 ranks the judged keywords of each query against each other; it needs
grades that are whole and not negative, and is left out otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rbegir.base.progress import reported
from rbegir.encode.encoder import Encoder
from rbegir.errors import InputError, whole_number
from rbegir.evaluate import metrics
from rbegir.evaluate.groups import NEGATIVES, SampleGroups, distinct, sample_groups
from rbegir.evaluate.metrics import REPLICATES, Measure, measure, measure_mean, weighted_auc
from rbegir.evaluate.retrieval import CUTOFFS, Targets
from rbegir.evaluate.scorers import ModelScorer, Progress, Scorer
from rbegir.read.pairs import TextStream, read_labels, read_pairs
from rbegir.read.rows import Stream

if TYPE_CHECKING:
    from rich.table import Table

_MOST_GRADES = 10  # more distinct grades than this are a continuous scale: no AUC for each
NDCG_CUTOFF = 10

Stage: TypeAlias = Callable[[str, float], None]  # (what is being done, fraction done)


@dataclass(frozen=True)
class LabelReport:
    """Figures on judged pairs."""

    roc_auc: Measure  # any grade above bad
    roc_auc_from: dict[float, Measure]  # grade → AUC of at least that grade
    ndcg: Measure | None
    pairs: int
    queries: int

    def to_dict(self) -> dict[str, object]:
        measures = {"roc_auc": self.roc_auc}
        measures |= {f"roc_auc>={grade:g}": auc for grade, auc in self.roc_auc_from.items()}
        if self.ndcg is not None:
            measures[f"ndcg@{NDCG_CUTOFF}"] = self.ndcg
        figures = _figures(measures, [*measures, f"ndcg@{NDCG_CUTOFF}"])
        return {**figures, "pairs": self.pairs, "queries": self.queries}


def _figures(measures: dict[str, Measure], names: Iterable[str]) -> dict[str, object]:
    """For JSON: the value of every name, null if not measured, and the intervals."""
    values = {name: measures[name].value if name in measures else None for name in dict.fromkeys(names)}
    return {**values, "intervals": {name: value.interval for name, value in measures.items()}}


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
        always = ("log_loss", "roc_auc", *(f"recall@{k}" for k in CUTOFFS))
        about = ("pairs", "queries", "corpus", "missing", "negatives", "gamma", "seed")
        return {
            **_figures(measures, [*always, *measures]),
            **{name: getattr(self, name) for name in about},
            "labels": None if self.labels is None else self.labels.to_dict(),
        }


def evaluate_model(
    model: Encoder | Scorer,
    pairs: Any = None,
    *,
    corpus: TextStream | pa.Array | Sequence[str] | None = None,
    labels: Any = None,
    cutoffs: Sequence[int] = CUTOFFS,
    negatives: int = NEGATIVES,
    gamma: float | None = None,
    bootstrap: int = REPLICATES,
    seed: int = 0,
    progress: Stage | bool | None = None,
) -> Evaluation:
    """Log loss and ROC AUC on pairs, recall in a corpus, ROC AUC and nDCG on labels: whatever is given.

    `model` is an encoder of texts, or anything that scores, such as a baseline. `pairs` and `labels` are
    given as for `read_pairs` and `read_labels`, or as what these return. Weights of pairs are not
    used: each distinct pair is one group with `negatives` negatives. `gamma` None is fitted to the groups
    (see `metrics`), `cutoffs` are those of recall, `bootstrap` is the number of replicates for the intervals.
    `progress` is called with what is being done and its share done; True shows a bar, and None does in a
    terminal or a notebook.
    """
    if pairs is None and labels is None:
        raise InputError("there is nothing to evaluate on", hint="give pairs, labels, or both")
    if corpus is not None and pairs is None:
        raise InputError("a corpus alone cannot be evaluated", hint="give pairs too")
    if not cutoffs:
        raise InputError("recall needs a cutoff, got none")
    for k in cutoffs:
        whole_number("a cutoff of recall", k, 1)
    for name, value in (("seed", seed), ("bootstrap", bootstrap)):
        whole_number(name, value, 0)
    if pairs is not None and gamma is None:
        metrics.need_scipy()
    with reported(False if callable(progress) else progress, "evaluating") as show:

        def stage(what: str) -> Progress:
            return partial(progress, what) if callable(progress) else lambda done: show(done, 1.0, what)

        scorer = model if isinstance(model, Scorer) else ModelScorer(model)
        report: dict[str, Any] = {"seed": seed}
        if pairs is not None:
            table = _good_rows(pairs, ("query", "keyword"), read_pairs)
            groups = sample_groups(table, negatives=negatives, seed=seed)
            scores = scorer.score(groups, stage("pairs"))  # [G, 1 + negatives]
            gamma = metrics.fit_gamma(scores) if gamma is None else gamma
            report |= metrics.measure_groups(scores, groups.query, gamma, count=bootstrap, seed=seed)
            report |= {"gamma": gamma, "negatives": negatives}
            report |= {"pairs": len(groups), "queries": len(groups.queries)}
            if corpus is not None:
                texts = corpus_texts(corpus)
                targets = Targets(table, texts)
                found = scorer.search(targets.queries, texts, max(cutoffs), stage("corpus"))
                report["recall"] = {
                    k: measure_mean(values, count=bootstrap, seed=seed)
                    for k, values in targets.recall(found, sorted(set(cutoffs))).items()
                }
                report |= {"corpus": len(texts), "missing": targets.missing}
        if labels is not None:
            judged = _good_rows(labels, ("query", "keyword", "label"), read_labels)
            report["labels"] = evaluate_labels(
                scorer, judged, bootstrap=bootstrap, seed=seed, progress=stage("labels")
            )
    return Evaluation(**report)


def _good_rows(given: Any, columns: Iterable[str], read: Callable[[Any], Stream]) -> pa.Table:
    """A table with these columns as it is, or all good rows of what `read` can open."""
    if isinstance(given, pa.Table) and set(columns) <= set(given.column_names):
        return given
    return (given if isinstance(given, Stream) else read(given)).read_all()


def evaluate_labels(
    scorer: Scorer, labels: pa.Table, *, bootstrap: int, seed: int, progress: Progress
) -> LabelReport:
    """Figures from a table with the columns query, keyword and label (a grade, 0 for bad)."""
    grades = np.asarray(labels["label"], dtype=np.float64)
    if (grades > 0).all() or not (grades > 0).any():
        which = "none is bad (0)" if (grades > 0).all() else "all are bad (0 or less)"
        raise InputError(
            f"the labels are of one class only: {which}", hint="ROC AUC needs judged pairs of both kinds"
        )
    queries, query = distinct(labels["query"])
    keywords, keyword = distinct(labels["keyword"])
    pairs = SampleGroups(queries, keywords, query, keyword[:, None])
    scores = scorer.judge(pairs, progress)[:, 0]  # [pairs]

    def auc(bar: npt.NDArray[np.bool_]) -> Measure:
        return measure(weighted_auc(bar, scores), query, count=bootstrap, seed=seed)

    levels = [float(grade) for grade in np.unique(grades[grades > 0])]
    higher = levels[1:] if len(levels) <= _MOST_GRADES else []
    ndcg = None
    if (grades >= 0).all() and (grades == np.round(grades)).all():
        each = (np.flatnonzero(query == number) for number in range(len(queries)))
        values = np.array([_ndcg(grades[rows], scores[rows], keyword[rows]) for rows in each])
        ndcg = measure_mean(values, count=bootstrap, seed=seed)
    higher_bars = {grade: auc(grades >= grade) for grade in higher}
    return LabelReport(auc(grades > 0), higher_bars, ndcg, pairs=len(grades), queries=len(queries))


def _ndcg(
    grades: npt.NDArray[np.float64], scores: npt.NDArray[np.float32], keyword: npt.NDArray[np.int64]
) -> float:
    """nDCG of the judged keywords of one query; of several judgements of a keyword the highest counts."""
    discounts = 1 / np.log2(np.arange(2, NDCG_CUTOFF + 2))
    names, first = np.unique(keyword, return_inverse=True)
    gain, score = np.zeros(len(names)), np.full(len(names), -np.inf)
    np.maximum.at(gain, first, grades)
    np.maximum.at(score, first, scores)
    found = gain[np.lexsort((names, -score))][:NDCG_CUTOFF]
    ideal = np.sort(gain)[::-1][:NDCG_CUTOFF]
    best = float(ideal @ discounts[: len(ideal)])
    return float(found @ discounts[: len(found)]) / best if best else 0.0


def corpus_texts(corpus: TextStream | pa.Array | Sequence[str]) -> pa.LargeStringArray:
    """The distinct texts of a corpus in order of first occurrence; with 64-bit offsets, for over 2 GiB."""
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
        pairs = f"{report.pairs:,} pairs of {report.queries:,} queries"
        parts.append(f"{pairs}, {report.negatives} random negatives each")
    if report.corpus:
        parts.append(f"recall among {report.corpus:,} texts")
    if report.labels is not None:
        parts.append(f"{report.labels.pairs:,} labels of {report.labels.queries:,} queries")
    return "; ".join(parts) + "; 95 % intervals by resampling queries"
