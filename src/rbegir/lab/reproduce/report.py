"""The report of `rbegir reproduce` as a page of Markdown: tables, the paper's figures beside them, remarks.

Sentences are in report.md.j2, figures come from the results, and a conclusion is printed only if the figures
support it. The page is a function of the results alone, so a test can tell whether the committed one is
current.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from rbegir.lab.markdown import environment
from rbegir.lab.reproduce import paper
from rbegir.lab.reproduce.dataset import HEADLINE
from rbegir.lab.reproduce.job import tables_of
from rbegir.lab.reproduce.results import Results, Stat, shown
from rbegir.lab.reproduce.rows import PAPER, PLAIN, under

Json = dict[str, Any]
BEST_FLOAT = "m_1, 10 epochs, 20 % feature dropout"  # the best float model that was found
LEVEL = 0.003  # of recall@10: one and a half standard deviations between seeds
SEEDS = 3  # that a figure should have


def page(results: Sequence[Json]) -> str:
    """The report of one or more results (the full one first)."""
    template = environment(Path(__file__).parent).get_template("report.md.j2")
    return template.render(
        sections=[section(result) for result in results],
        paper=paper,
        paper_differences=sorted(abs(a - b) for a, b in paper.BINARISATION.values()),
        level=LEVEL,
        headline=HEADLINE,
        recipes=((PLAIN, "Without dropout and guide"), (PAPER, "With the paper's own recipe")),
        shown=shown,
        under=under,
    )


def section(result: Json) -> Json:
    """What the template says about one result."""
    results = Results(result["runs"])
    tables = tables_of(result)
    for table in tables:
        columns = [c for c in table["columns"] if any(row.get(c[0]) is not None for row in table["rows"])]
        table["made"] = bool(table["rows"]) and (table["table"] not in "234" or bool(table["orderings"]))
        table["head"] = [heading for _, heading in columns]
        table["cells"] = [[_cell(row, key) for key, _ in columns] for row in table["rows"]]
        table["seeds"] = seeds_of(table)
        table["reversed"] = [o["claim"] for o in table["orderings"] if o["verdict"].startswith("reversed")]
    by_key = {table["table"]: table for table in tables}
    return {
        **result,
        "device": result["device"] if result["device"] != "cpu" else result["host"]["cpu"],
        "seeds": sorted({run["seed"] for run in result["runs"]}),
        "results": results,
        "tables": tables,
        "few_seeds": lambda names: [
            (shown(name), count) for name in names if 0 < (count := len(results.runs(name))) < SEEDS
        ],
        "judged": {
            name: found.mean
            for name in ("m_1", "m_3", "m_5", "rbe_star")
            if (found := results.stat(name, f"labels/{HEADLINE}/roc_auc"))
        },
        "all_slices": [
            found.mean for name in paper.ACCURACY if (found := results.stat(name, "labels/all/roc_auc"))
        ],
        "losses": losses(results, by_key["3"]),
        "best": best_code(by_key["bytes"]),
        "best_float": max(
            (found.mean for name in ("m_1", BEST_FLOAT) if (found := results.stat(name, "recall@10"))),
            default=None,
        ),
        "rivals": {query: best_rival(by_key["bytes"], query) for query in ("3 bits", "float")},
    }


def seeds_of(table: Json) -> list[int]:
    """The numbers of seeds that figures of a table have, each once; empty if all have enough."""
    cells = (value for row in table["rows"] for value in row.values())
    found = {value["seeds"] for value in cells if isinstance(value, dict) and "seeds" in value}
    return sorted(found) if found and min(found) < SEEDS else []


def losses(results: Results, table: Json) -> dict[str, float] | None:
    """Training losses of rbe*: the last ones of two estimators, and the lowest of plain straight-through."""
    sources = next(row["sources"] for row in table["rows"] if row["model"] == "rbe*")
    curves = {
        key: [[entry["loss"] for entry in run["history"]] for run in results.runs(sources[key])]
        for key in ("variant", "plain")
    }
    if not all(curves.values()):
        return None
    found = {key: fmean(curve[-1] for curve in many) for key, many in curves.items()}
    return {**found, "lowest": fmean(min(curve) for curve in curves["plain"])}


def best_code(table: Json) -> tuple[str, Stat] | None:
    """The trained model of 16 bytes and a 3-bit query with the best recall@10, of those with most seeds."""
    found = [
        (row["model"], Stat(**row["recall@10"]))
        for row in table["rows"]
        if row["bytes"] == 16 and row["query"] == "3 bits" and not row["model"].startswith("m_1, ")
    ]
    most = max((value.seeds for _, value in found), default=0)
    return max((one for one in found if one[1].seeds == most), key=lambda one: one[1].mean, default=None)


def best_rival(table: Json, query: str) -> tuple[str, float] | None:
    """The quantiser of 16 bytes with the best recall@10 for queries of a precision."""
    found = (
        (row["model"].removeprefix("m_1, "), float(row["recall@10"]["mean"]))
        for row in table["rows"]
        if row["model"].startswith("m_1, ") and row["bytes"] == 16 and row["query"] == query
    )
    return max(found, key=lambda one: one[1], default=None)


def _cell(row: Json, key: str) -> str:
    change = row.get(f"{key}_change")
    return cell(key, row.get(key)) + (f" ({change:+.0f} %)" if change is not None else "")


def cell(key: str, value: Any) -> str:
    """One value: a figure over seeds, an interval, a number or a word."""
    if value is None:
        return ""
    if isinstance(value, dict):
        digits = 3 if "r10" in key or key.startswith("recall") else 4
        spread = "" if value["std"] is None else f" ± {value['std']:.{digits}f}"
        return f"{value['mean']:.{digits}f}{spread}"
    if isinstance(value, list):
        return f"{value[0]:.3f} … {value[1]:.3f}"
    if isinstance(value, float):
        if "lift" in key or key in ("bad", "fair", "good", "judged"):
            return f"{value:.1f}"
        return f"{value:g}" if key == "bytes" else f"{value:.{2 if key == 'found' else 4}f}"
    return str(value)
