"""Figures: their spread over seeds, and the Jinja2 templates that turn them into Markdown.

Sentences come from a template, figures from results. A template fails if it names a figure that the results
do not have, or formats a missing value. All templates have these filters:

    f(spec)    a number in Python's format: {{ 0.12345 | f(".3f") }}
    big        1,234,567 → 1.23 million
    interval   mean ± half of its 95 % interval over seeds, or the mean alone for one seed
    oneline    line breaks and indentation become single spaces: a paragraph of conditional sentences
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rbegir.errors import needing

if TYPE_CHECKING:
    from jinja2 import Environment

Json = dict[str, Any]
# 97.5 % points of Student's t for 1, 2, … degrees of freedom; the last one serves for more seeds, too
STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)


class Stat(NamedTuple):
    """A figure over seeds."""

    mean: float
    std: float | None  # None with one seed
    seeds: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Stat:
        spread = statistics.stdev(values) if len(values) > 1 else None
        return cls(statistics.fmean(values), spread, len(values))

    def half_width(self) -> float | None:
        """Half the width of the 95 % interval of the mean."""
        if self.std is None:
            return None
        return STUDENT[min(self.seeds, len(STUDENT) + 1) - 2] * self.std / math.sqrt(self.seeds)


def stat(values: Iterable[float]) -> Stat | None:
    """A figure over the seeds that have it; None if there are none."""
    numbers = list(values)
    return Stat.of(numbers) if numbers else None


def environment(folder: Path) -> Environment:
    """The templates of a folder with the filters above."""
    with needing("pages need jinja2", "pip install 'rbegir[tables]'"):
        from jinja2 import Environment, FileSystemLoader, StrictUndefined
    found = Environment(
        loader=FileSystemLoader(folder),
        undefined=StrictUndefined,
        autoescape=False,  # Markdown, written by and for the repository
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    found.filters |= {"f": format, "big": big, "interval": interval}
    found.filters["oneline"] = lambda text: " ".join(text.split())
    return found


def big(number: float) -> str:
    """A large number with three digits and its unit in words."""
    units = ((1e9, "billion"), (1e6, "million"), (1e3, "thousand"), (1, ""))
    unit, name = next((one for one in units if number >= 0.9995 * one[0]), units[-1])  # 999,999 is a million
    return f"{float(f'{number / unit:.3g}'):,g} {name}".rstrip()


def interval(figure: Json, digits: int = 3, seeds: int | None = None) -> str:
    """A figure over seeds: mean ± half of its 95 % interval; the mean alone for one seed.

    `seeds` is for figures that do not say their number.
    """
    half = Stat(figure["mean"], figure["std"], seeds or figure["seeds"]).half_width()
    return f"{figure['mean']:.{digits}f}" + ("" if half is None else f" ± {half:.{digits}f}")
