"""Human labels: AUC at every bar and nDCG, against plain Python."""

from __future__ import annotations

import math

import ir_measures
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

from rbegir.errors import InputError
from rbegir.evaluate.evaluator import LabelReport, evaluate_labels
from rbegir.evaluate.groups import SampleGroups
from rbegir.evaluate.retrieval import Positions
from rbegir.evaluate.scorers import Progress


class Told:
    """A scorer that is told the score of each (query, keyword)."""

    def __init__(self, scores: dict[tuple[str, str], float]) -> None:
        self._scores = scores

    def score(self, groups: SampleGroups, progress: Progress) -> npt.NDArray[np.float32]:
        queries, keywords = groups.queries.to_pylist(), groups.keywords.to_pylist()
        rows = zip(groups.query, groups.keyword, strict=True)
        return np.array(
            [[self._scores[queries[q], keywords[k]] for k in row] for q, row in rows], dtype=np.float32
        )

    judge = score

    def search(self, queries: pa.Array, corpus: pa.Array, k: int, progress: Progress) -> Positions:
        raise AssertionError("labels need no search")


def judge(rows: list[tuple[str, str, float, float]], bootstrap: int = 0) -> LabelReport:
    """From (query, keyword, grade, score)."""
    labels = pa.table(
        {"query": [r[0] for r in rows], "keyword": [r[1] for r in rows], "label": [float(r[2]) for r in rows]}
    )
    scorer = Told({(q, k): s for q, k, _, s in rows})
    return evaluate_labels(scorer, labels, bootstrap=bootstrap, seed=0, progress=lambda _: None)


def slow_auc(rows: list[tuple[str, str, float, float]], bar: float) -> float:
    plus = [s for _, _, grade, s in rows if grade >= bar]
    minus = [s for _, _, grade, s in rows if grade < bar]
    return sum((p > n) + 0.5 * (p == n) for p in plus for n in minus) / (len(plus) * len(minus))


def slow_ndcg(rows: list[tuple[str, str, float, float]]) -> float:
    total, queries = 0.0, sorted({q for q, *_ in rows})
    for query in queries:
        judged = [(s, grade) for q, _, grade, s in rows if q == query]
        ranked = [grade for _, grade in sorted(judged, reverse=True)][:10]
        ideal = sorted((grade for _, grade in judged), reverse=True)[:10]
        gain, best = (sum(g / math.log2(i + 2) for i, g in enumerate(order)) for order in (ranked, ideal))
        total += gain / best if best else 0
    return total / len(queries)


def random_rows(rng: np.random.Generator, grades: int) -> list[tuple[str, str, float, float]]:
    scores = rng.permutation(400)  # all different, so that the order is nobody's choice
    return [(f"q{i % 13}", f"k{i}", float(rng.integers(0, grades)), float(scores[i])) for i in range(400)]


def test_auc_and_ndcg(rng: np.random.Generator) -> None:
    rows = random_rows(rng, 4)
    report = judge(rows, bootstrap=200)
    assert report.roc_auc.value == pytest.approx(slow_auc(rows, 1))
    assert list(report.roc_auc_from) == [2, 3]
    for bar, value in report.roc_auc_from.items():
        assert value.value == pytest.approx(slow_auc(rows, bar))
    assert report.ndcg is not None
    assert report.ndcg.value == pytest.approx(slow_ndcg(rows))
    assert (report.pairs, report.queries) == (400, 13)
    found = report.to_dict()
    assert found["roc_auc>=2"] == report.roc_auc_from[2].value
    intervals = found["intervals"]
    assert isinstance(intervals, dict)
    assert set(intervals) == {"roc_auc", "roc_auc>=2", "roc_auc>=3", "ndcg@10"}
    for name, (low, high) in intervals.items():
        assert low <= found[name] <= high  # type: ignore[operator]


def test_grades_that_ndcg_cannot_use(rng: np.random.Generator) -> None:
    rows = random_rows(rng, 3)
    for strange in (0.5, -1.0):
        report = judge([*rows, ("q0", "odd", strange, 1000.0)])
        assert report.ndcg is None
        assert report.to_dict()["ndcg@10"] is None
        assert report.roc_auc.value == pytest.approx(slow_auc([*rows, ("q0", "odd", strange, 1000.0)], 0.25))


def test_a_continuous_scale_has_one_auc(rng: np.random.Generator) -> None:
    rows = [(q, k, float(rng.random()) - 0.5, s) for q, k, _, s in random_rows(rng, 2)]
    report = judge(rows)
    assert report.roc_auc_from == {}
    assert report.roc_auc.value == pytest.approx(slow_auc(rows, 1e-12))


@pytest.mark.parametrize(
    ("grade", "message"), [(2.0, "none is bad"), (0.0, "all are bad"), (-1.0, "all are bad")]
)
def test_one_class_only(grade: float, message: str) -> None:
    rows = [("q", f"k{i}", grade, float(i)) for i in range(5)]
    with pytest.raises(InputError, match=f"the labels are of one class only: {message}") as caught:
        judge(rows)
    assert "both kinds" in caught.value.hint


def test_ndcg_is_that_of_ir_measures() -> None:
    """Without ties, which ir-measures orders by name."""
    draw = np.random.default_rng(3)
    scores = draw.permutation(400) / 400
    rows = [(f"q{i % 17}", f"k{i}", float(draw.integers(0, 4)), float(scores[i])) for i in range(400)]
    qrels: dict[str, dict[str, int]] = {}
    run: dict[str, dict[str, float]] = {}
    for query, keyword, grade, score in rows:
        qrels.setdefault(query, {})[keyword] = int(grade)
        run.setdefault(query, {})[keyword] = score
    wanted = ir_measures.calc_aggregate([ir_measures.nDCG @ 10], qrels, run)
    found = judge(rows).ndcg
    assert found is not None
    assert found.value == pytest.approx(wanted[ir_measures.nDCG @ 10])
