"""The figures of many runs by row and seed, and whether two rows differ by more than noise."""

from collections.abc import Iterable
from typing import Any

from rbegir.lab.figures import Json, Stat, stat

SHOWN = {
    "m_1": "m_1: float CLSM",
    "m_2": "m_2: 64-d, one bit",
    "m_3": "m_3: 128-d, one bit",
    "rbe_star": "rbe*",
    "m_5": "m_5: float query",
}


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
        value = _figure(self.runs(row)[0], figure) if self.runs(row) else None
        return None if value is None else value["interval"]

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
        return self.gain(row, low, low, high)

    def gain(self, better: str, worse: str, low: str = "m_3", high: str = "m_1") -> Stat | None:
        """How far the AUC of one row is above another's, in percent of the gap of two others, by seed."""
        found = self.paired(better, worse, low, high)
        return stat(100 * (a - b) / (d - c) for a, b, c, d in found if c != d)

    def compare(self, better: str, worse: str, figure: str = "roc_auc") -> Json | None:
        """The difference of two rows by seed, half its 95 % interval, and whether the first is above."""
        found = stat(a - b for a, b in self.paired(better, worse, figure=figure))
        if found is None:
            return None
        verdict = "held" if found.mean > 0 else "reversed"
        error = found.half_width()
        if error is None:
            verdict += ", one seed"
        elif abs(found.mean) <= error:
            verdict += ", within the spread"
        return {"difference": found.mean, "error": error, "verdict": verdict}


def _figure(run: Json, figure: str) -> Json | None:
    value: Any = run.get("figures", {})
    for name in figure.split("/"):
        value = value.get(name) if isinstance(value, dict) else None
    found: Json | None = value
    return found


def shown(name: str) -> str:
    """A row's name in a table."""
    base, comma, rest = name.partition(",")
    return SHOWN.get(base, base) + comma + rest


def short(name: str) -> str:
    """A row's name in a sentence."""
    return shown(name).split(":")[0]
