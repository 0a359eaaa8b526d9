"""Human labels: does the model score what judges liked above what they did not?

ROC AUC pools all judged pairs, as the paper does: bad is negative, every better grade positive; beside it,
one AUC per higher bar (at least good, at least excellent). nDCG@10 ranks the judged keywords of each
query against each other; it needs grades that are whole and not negative, and is left out otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rbegir.errors import InputError
from rbegir.evaluate.groups import SampleGroups, distinct
from rbegir.evaluate.metrics import Measure, measure, measure_mean, roc_auc, weighted_auc
from rbegir.evaluate.scorers import Progress, Scorer

_MOST_GRADES = 10  # more distinct grades than this are a continuous scale: no AUC for each
NDCG_CUTOFF = 10


@dataclass(frozen=True)
class LabelReport:
    """Figures on judged pairs."""

    roc_auc: Measure  # any grade above bad
    roc_auc_from: dict[float, Measure]  # grade → AUC of at least that grade
    ndcg: Measure | None
    pairs: int
    queries: int

    def to_dict(self) -> dict[str, object]:
        bars = self.roc_auc_from.items()
        intervals = {"roc_auc": self.roc_auc.interval}
        intervals |= {f"roc_auc>={grade:g}": auc.interval for grade, auc in bars}
        if self.ndcg is not None:
            intervals[f"ndcg@{NDCG_CUTOFF}"] = self.ndcg.interval
        return {
            "roc_auc": self.roc_auc.value,
            **{f"roc_auc>={grade:g}": auc.value for grade, auc in bars},
            f"ndcg@{NDCG_CUTOFF}": None if self.ndcg is None else self.ndcg.value,
            "intervals": intervals,
            "pairs": self.pairs,
            "queries": self.queries,
        }


def evaluate_labels(
    scorer: Scorer, labels: pa.Table, *, bootstrap: int, seed: int, progress: Progress
) -> LabelReport:
    """Figures from a table with the columns query, keyword and label (a grade, 0 for bad)."""
    grades = np.asarray(labels["label"], dtype=np.float64)
    if (grades > 0).all() or not (grades > 0).any():
        raise InputError(
            "the labels are of one class only: "
            + ("none is bad (0)" if (grades > 0).all() else "all are bad (0 or less)"),
            hint="ROC AUC needs judged pairs of both kinds",
        )
    queries, query = distinct(labels["query"])
    keywords, keyword = distinct(labels["keyword"])
    pairs = SampleGroups(queries, keywords, query, keyword[:, None])
    scores = scorer.judge(pairs, progress)[:, 0]  # [pairs]

    def auc(bar: npt.NDArray[np.bool_]) -> Measure:
        statistic = weighted_auc(bar, scores, query)
        return measure(roc_auc(bar, scores), statistic, len(queries), count=bootstrap, seed=seed)

    levels = [float(grade) for grade in np.unique(grades[grades > 0])]
    higher = levels[1:] if len(levels) <= _MOST_GRADES else []
    return LabelReport(
        roc_auc=auc(grades > 0),
        roc_auc_from={grade: auc(grades >= grade) for grade in higher},
        ndcg=_ndcg(grades, scores, query, keyword, len(queries), bootstrap, seed),
        pairs=len(grades),
        queries=len(queries),
    )


def _ndcg(
    grades: npt.NDArray[np.float64],
    scores: npt.NDArray[np.float32],
    query: npt.NDArray[np.int64],
    keyword: npt.NDArray[np.int64],
    queries: int,
    bootstrap: int,
    seed: int,
) -> Measure | None:
    if (grades < 0).any() or (grades != np.round(grades)).any():
        return None
    discounts = 1 / np.log2(np.arange(2, NDCG_CUTOFF + 2))
    values = np.zeros(queries)
    for number in range(queries):
        rows = np.flatnonzero(query == number)
        names, first = np.unique(keyword[rows], return_inverse=True)
        gain, score = np.zeros(len(names)), np.full(len(names), -np.inf)
        np.maximum.at(gain, first, grades[rows])
        np.maximum.at(score, first, scores[rows])
        found = gain[np.lexsort((names, -score))][:NDCG_CUTOFF]
        ideal = np.sort(gain)[::-1][:NDCG_CUTOFF]
        best = float(ideal @ discounts[: len(ideal)])
        values[number] = float(found @ discounts[: len(found)]) / best if best else 0.0
    return measure_mean(values, count=bootstrap, seed=seed)
