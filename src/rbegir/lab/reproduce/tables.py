"""From runs to tables: each row beside the paper's figures, and the orderings that the paper claims.

A table is one JSON object:

    table, title, paper         what it is, and where the paper has it
    command                     what makes it again
    columns                     [[key, heading], …] in order
    rows                        [{model, command, …}]; a figure is {mean, std, seeds} or a plain value
    orderings                   [{claim, paper, difference, error, verdict}]

which `report` turns into Markdown and `rbegir reproduce --json` prints.
"""

from __future__ import annotations

from collections.abc import Callable

from rbegir.lab.reproduce import accuracy_tables, system_tables
from rbegir.lab.reproduce.maker import Json, Maker

MAKERS: dict[str, Callable[[Maker], Json]] = {
    "1": accuracy_tables.accuracy,
    "2": accuracy_tables.bits,
    "3": accuracy_tables.binarisation,
    "4": accuracy_tables.weights,
    "5": system_tables.top_five,
    "6": system_tables.system,
    "7": system_tables.effects,
    "bytes": system_tables.equal_bytes,
}


def table(key: str, make: Maker) -> Json:
    """The table of a key."""
    return {"table": key, "command": f"rbegir reproduce {key}{make.options}", **MAKERS[key](make)}
