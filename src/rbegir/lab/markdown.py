"""Renders Markdown from Jinja2 templates: sentences come from the template, figures from results.

A template fails if it names a figure that the results do not have, or formats a missing value. Filters of all
templates:

    f(spec)    a number in Python's format: {{ 0.12345 | f(".3f") }}
    big        1,234,567 → 1.23 million
    mean_std   mean ± standard deviation, or the mean alone for one seed
    oneline    line breaks and indentation become single spaces: a paragraph of conditional sentences
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rbegir.errors import needing

if TYPE_CHECKING:
    from jinja2 import Environment

Json = dict[str, Any]


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
    found.filters |= {"f": format, "big": big, "mean_std": mean_std, "oneline": oneline}
    return found


def big(number: float) -> str:
    """A large number with three digits and its unit in words."""
    for unit, name in ((1e9, "billion"), (1e6, "million"), (1e3, "thousand")):
        if number >= unit:
            return f"{number / unit:.3g} {name}"
    return f"{number:.3g}"


def mean_std(figure: Json, digits: int = 3) -> str:
    """A figure over seeds: mean ± standard deviation; the mean alone for one seed."""
    spread = "" if figure["std"] is None else f" ± {figure['std']:.{digits}f}"
    return f"{figure['mean']:.{digits}f}{spread}"


def oneline(text: str) -> str:
    """A text with every run of white space as one space."""
    return " ".join(text.split())
