"""The figures of many runs: mean and spread over seeds, and what the difference of two models is worth."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from typing import Any, NamedTuple

from rbegir.encode.clsm.presets import FLOAT
from rbegir.lab.markdown import Json
from rbegir.lab.reproduce.dataset import HEADLINE
from rbegir.lab.reproduce.rows import Scale, like, rows

Columns = list[list[str]]
SHOWN = {
    "m_1": "m_1: float CLSM",
    "m_2": "m_2: 64-d, one bit",
    "m_3": "m_3: 128-d, one bit",
    "rbe_star": "rbe*",
    "m_5": "m_5: float query",
}
CLEAR = 2.0  # standard errors that make a difference more than noise


class Stat(NamedTuple):
    """A figure over seeds."""

    mean: float
    std: float | None  # None with one seed
    seeds: int


def stat(values: Iterable[float]) -> Stat | None:
    numbers = list(values)
    if not numbers:
        return None
    spread = statistics.stdev(numbers) if len(numbers) > 1 else None
    return Stat(statistics.fmean(numbers), spread, len(numbers))


class Results:
    """Runs by row."""

    def __init__(self, runs: Iterable[Json]) -> None:
        self._runs: dict[str, list[Json]] = {}
        for run in runs:
            self._runs.setdefault(run["row"], []).append(run)

    def runs(self, row: str) -> list[Json]:
        return self._runs.get(row, [])

    def stat(self, row: str, figure: str) -> Stat | None:
        """A figure of a row by its path, such as roc_auc or labels/SemSearch_ES/roc_auc; None if not made."""
        found = (_at(run.get("figures", {}), figure.split("/")) for run in self.runs(row))
        return stat(value["value"] for value in found if value is not None)

    def interval(self, row: str, figure: str) -> list[float] | None:
        """The bootstrap interval of the first seed."""
        for run in self.runs(row)[:1]:
            value = _at(run.get("figures", {}), figure.split("/"))
            return None if value is None else value["interval"]
        return None

    def study(self, row: str, name: str) -> list[Json]:
        """What a study found, seed by seed."""
        return [run["studies"][name] for run in self.runs(row) if run.get("studies", {}).get(name)]

    def lift(self, row: str, low: str = "m_3", high: str = "m_1") -> float | None:
        """Where the mean AUC of a row lies between those of two others, in percent of their gap."""
        auc = [self.stat(name, "roc_auc") for name in (row, low, high)]
        if auc[0] is None or auc[1] is None or auc[2] is None or auc[1].mean == auc[2].mean:
            return None
        return 100 * (auc[0].mean - auc[1].mean) / (auc[2].mean - auc[1].mean)

    def compare(self, better: str, worse: str, figure: str = "roc_auc") -> Json | None:
        """The difference of two rows in a figure and a verdict on whether the first is above the second."""
        a, b = self.stat(better, figure), self.stat(worse, figure)
        if a is None or b is None:
            return None
        difference = a.mean - b.mean
        verdict = "held" if difference > 0 else "reversed"
        if a.std is None or b.std is None:
            return {"difference": difference, "error": None, "verdict": f"{verdict}, one seed"}
        error = math.sqrt(a.std**2 / a.seeds + b.std**2 / b.seeds)
        if abs(difference) <= CLEAR * error:
            verdict += ", within the spread"
        return {"difference": difference, "error": error, "verdict": verdict}


def _at(value: Any, path: list[str]) -> Any:
    for name in path:
        if not isinstance(value, dict) or name not in value:
            return None
        value = value[name]
    return value


class TableMaker:
    """What tables are made with: figures of rows by name, commands, and the paper's orderings."""

    def __init__(self, results: Results, scale: Scale, options: str) -> None:
        """`options`: those of the command that made the results."""
        self.results, self.scale = results, scale
        self.rows = {row.name: row for row in rows(scale)}
        self.options = options

    def figures(self, row: str, *names: str) -> Json:
        """Figures of a row over its seeds; those that were not made are left out."""
        found = {name: self.results.stat(row, name) for name in names}
        return {name: value._asdict() for name, value in found.items() if value is not None}

    def like(self, row: str) -> str:
        """The row that the rows of tables 3, 4 and 7 are to be compared with."""
        name = like(row, self.scale)
        return "m_2" if name == "rbe_1" else name  # the same model

    def label(self, row: str) -> Json | None:
        """ROC AUC on the judged pairs, of the headline slice if there is one."""
        for part in (HEADLINE, "all"):
            if found := self.results.stat(row, f"labels/{part}/roc_auc"):
                return found._asdict()
        return None

    def command(self, row: str) -> str:
        return f'rbegir reproduce --rows "{row}"{self.options}'

    def order(self, claim: str, better: str, worse: str, printed: float) -> list[Json]:
        """One ordering by ROC AUC, if both rows were made: `printed` is the paper's difference."""
        found = self.results.compare(better, worse)
        return [] if found is None else [{"claim": claim, "paper": printed, **found}]

    @property
    def gap(self) -> float | None:
        """The reference gap: ROC AUC of m_1 less that of m_3."""
        high, low = (self.results.stat(name, "roc_auc") for name in ("m_1", "m_3"))
        return None if high is None or low is None else high.mean - low.mean


def shown(name: str) -> str:
    """A row's name in a table."""
    base, comma, rest = name.partition(",")
    return SHOWN.get(base, base) + comma + rest


def bits_of(planes: int) -> str:
    return "32" if planes == FLOAT else str(planes)
