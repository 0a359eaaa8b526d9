"""The figures of many runs: mean and spread over seeds, and whether two models differ by more than noise."""

import math
import statistics
from collections.abc import Iterable
from typing import Any, NamedTuple

from rbegir.lab.markdown import Json

SHOWN = {
    "m_1": "m_1: float CLSM",
    "m_2": "m_2: 64-d, one bit",
    "m_3": "m_3: 128-d, one bit",
    "rbe_star": "rbe*",
    "m_5": "m_5: float query",
}
# half the width of a 95 % interval in standard errors, by number of seeds: quantiles of Student's t
STUDENT = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365}
NORMAL = 1.96


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
        found = (_figure(run, figure) for run in self.runs(row))
        return stat(value["value"] for value in found if value is not None)

    def interval(self, row: str, figure: str) -> list[float] | None:
        """The bootstrap interval of the first seed."""
        for run in self.runs(row)[:1]:
            value = _figure(run, figure)
            return None if value is None else value["interval"]
        return None

    def study(self, row: str, name: str) -> list[Json]:
        """The results of a study, one per seed."""
        return [run["studies"][name] for run in self.runs(row) if run.get("studies", {}).get(name)]

    def paired(self, *rows: str, figure: str = "roc_auc") -> list[tuple[float, ...]]:
        """A figure of several rows, for every seed that all of them have."""
        by_seed = [
            {run["seed"]: value["value"] for run in self.runs(row) if (value := _figure(run, figure))}
            for row in rows
        ]
        return [
            tuple(of[seed] for of in by_seed)
            for seed in sorted(by_seed[0])
            if all(seed in of for of in by_seed)
        ]

    def lift(self, row: str, low: str = "m_3", high: str = "m_1") -> Stat | None:
        """Where the AUC of a row lies between those of two others, in percent of their gap, by seed."""
        return stat(100 * (a - b) / (c - b) for a, b, c in self.paired(row, low, high) if b != c)

    def weight_lift(self, weighted: str, plain: str) -> Stat | None:
        """What residual weights add to the AUC, in percent of the gap between m_3 and m_1, by seed."""
        return stat(
            100 * (a - b) / (c - d) for a, b, c, d in self.paired(weighted, plain, "m_1", "m_3") if c != d
        )

    def compare(self, better: str, worse: str, figure: str = "roc_auc") -> Json | None:
        """The difference of two rows by seed, half its 95 % interval, and whether the first is above."""
        found = stat(a - b for a, b in self.paired(better, worse, figure=figure))
        if found is None:
            return None
        verdict = "held" if found.mean > 0 else "reversed"
        if found.std is None:
            return {"difference": found.mean, "error": None, "verdict": f"{verdict}, one seed"}
        error = STUDENT.get(found.seeds, NORMAL) * found.std / math.sqrt(found.seeds)
        if abs(found.mean) <= error:
            verdict += ", within the spread"
        return {"difference": found.mean, "error": error, "verdict": verdict}


def _figure(run: Json, figure: str) -> Json | None:
    found: Json | None = _at(run.get("figures", {}), figure.split("/"))
    return found


def _at(value: Any, path: list[str]) -> Any:
    for name in path:
        if not isinstance(value, dict) or name not in value:
            return None
        value = value[name]
    return value


def shown(name: str) -> str:
    """A row's name in a table."""
    base, comma, rest = name.partition(",")
    return SHOWN.get(base, base) + comma + rest


def short(name: str) -> str:
    """A row's name in a sentence."""
    return shown(name).split(":")[0]
