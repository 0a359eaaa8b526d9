"""What every table is made with: figures of rows by name, commands, and the paper's orderings."""

from __future__ import annotations

from typing import Any

from rbegir.encode.clsm.presets import FLOAT
from rbegir.lab.reproduce.dataset import HEADLINE
from rbegir.lab.reproduce.results import Results
from rbegir.lab.reproduce.rows import Scale, like, rows

Json = dict[str, Any]
Columns = list[list[str]]
SHOWN = {
    "m_1": "m_1: float CLSM",
    "m_2": "m_2: 64-d, one bit",
    "m_3": "m_3: 128-d, one bit",
    "rbe_star": "rbe*",
    "m_5": "m_5: float query",
}


class Maker:
    """Runs, seen from the tables."""

    def __init__(self, results: Results, scale: Scale, options: str) -> None:
        """`options`: those of the command that made the results."""
        self.results, self.scale = results, scale
        self.rows = {row.name: row for row in rows(scale)}
        self.options = options

    def figures(self, row: str, *names: str) -> Json:
        """Figures of a row over its seeds; those that were not made are left out."""
        found = {name: self.results.stat(row, name) for name in names}
        return {name: value.to_dict() for name, value in found.items() if value is not None}

    def like(self, row: str) -> str:
        """The row that the rows of tables 3, 4 and 7 are to be compared with."""
        name = like(row, self.scale)
        return "m_2" if name == "rbe_1" else name  # the same model

    def label(self, row: str) -> Json | None:
        """ROC AUC on the judged pairs, of the headline slice if there is one."""
        for part in (HEADLINE, "all"):
            if found := self.results.stat(row, f"labels/{part}/roc_auc"):
                return found.to_dict()
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
