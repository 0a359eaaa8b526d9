"""Reports for people: one row a figure, one column a model."""

from __future__ import annotations

from collections.abc import Mapping

from rich.table import Table

from rbegir.evaluate.bootstrap import Measure
from rbegir.evaluate.evaluator import Report
from rbegir.evaluate.labels import NDCG_CUTOFF


def report_table(reports: Mapping[str, Report]) -> Table:
    """The figures of models by name, with their 95 % intervals."""
    table = Table("", *reports, caption=_caption(next(iter(reports.values()))), caption_justify="left")
    rows = {name: _rows(report) for name, report in reports.items()}
    for label in dict.fromkeys(label for found in rows.values() for label in found):
        table.add_row(label, *(_cell(found.get(label)) for found in rows.values()))
    return table


def _rows(report: Report) -> dict[str, Measure]:
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


def _caption(report: Report) -> str:
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
