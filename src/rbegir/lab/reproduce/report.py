"""Tables as a page of Markdown: figures, the paper's beside them, and which orderings held.

The page is a function of the results alone, so it is made again without any training, and a test can tell
whether the committed one is current.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rbegir.lab.reproduce import remarks
from rbegir.lab.reproduce.job import tables_of

Json = dict[str, Any]
PLOTS = {
    "1": [("loss", "Training loss and validation log loss by epoch")],
    "2": [("auc-bits", "ROC AUC against bits a dimension")],
    "3": [("estimators", "Training loss by epoch of three estimators")],
    "bytes": [
        ("recall-bytes", "Recall@10 against bytes a title"),
        ("recall-corpus", "Recall@10 against the number of titles searched"),
    ],
}  # fmt: skip


def page(results: Sequence[Json]) -> str:
    """The report of one or more results (the full one first)."""
    level = 2 if len(results) > 1 else 1
    return "\n".join([remarks.OPENING, *(section(result, level=level) for result in results), remarks.AGAIN])


def section(result: Json, *, level: int = 1) -> str:
    """All tables of one result."""
    data, host = result["dataset"], result["host"]
    mark = "#" * (level + 1)
    device = result["device"] if result["device"] != "cpu" else host["cpu"]
    seeds = sorted({run["seed"] for run in result["runs"]})
    lines = [
        f"{'#' * level} {remarks.title(result)}\n" if level > 1 else "",
        f"{data['train_pairs']:,} training pairs, {data['test_pairs']:,} pairs of titles that training never "
        f"saw, {data['corpus']:,} titles searched, every one scored. {device}; {len(result['runs'])} runs, "
        f"seeds {', '.join(map(str, seeds))}. ± is the standard deviation over seeds.\n",
    ]
    headline = level == 1 or result["scale"] == "full"
    for table in tables_of(result):
        key = table["table"]
        name = "The best 16 bytes" if key == "bytes" else f"Table {key}: {_small_first(table['title'])}"
        if not made(table):
            lines.append(f"{mark} {name}\n\nNot made.\n")
            continue
        lines.append(f"{mark} {name}\n")
        if table["paper"] != "no table":
            lines.append(f"In the paper: {table['paper']}.\n")
        lines.append(markdown(table))
        if "printed" in table:
            lines.append(_printed(table["printed"]))
        if table["orderings"]:
            lines.append(_orderings(table["orderings"]))
        lines.append(remarks.of(key, result, table))
        if headline:
            lines += [f"![{alt}](img/reproduce-{name}.svg)\n" for name, alt in PLOTS.get(key, [])]
        lines.append(f"```text\n{table['command']}\n```\n")
    return "\n".join(line for line in lines if line)


def made(table: Json) -> bool:
    """Whether there is anything to show: tables of orderings need two rows to compare."""
    return bool(table["rows"]) and (table["table"] not in ("2", "3", "4") or bool(table["orderings"]))


def _small_first(title: str) -> str:
    return title[0].lower() + title[1:]


def markdown(table: Json) -> str:
    """The rows of a table; columns without any value are left out."""
    columns = [c for c in table["columns"] if any(row.get(c[0]) is not None for row in table["rows"])]
    head = "| " + " | ".join(heading for _, heading in columns) + " |"
    lines = [head, "|" + "---|" * len(columns)]
    for row in table["rows"]:
        cells = []
        for key, _ in columns:
            change = row.get(f"{key}_change")
            cells.append(cell(key, row.get(key)) + (f" ({change:+.0f} %)" if change is not None else ""))
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


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


def _orderings(orderings: list[Json]) -> str:
    lines = ["| the paper's ordering | paper | ours ± standard error | |", "|---|---|---|---|"]
    for order in orderings:
        error = "" if order["error"] is None else f" ± {order['error']:.4f}"
        cells = (
            order["claim"],
            f"{order['paper']:+.4f}",
            f"{order['difference']:+.4f}{error}",
            order["verdict"],
        )
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _printed(changes: Json) -> str:
    grades = list(next(iter(changes.values())))
    lines = ["The paper's changes against its production system, in percent:\n"]
    lines += ["| baseline | " + " | ".join(grades) + " |", "|" + "---|" * (len(grades) + 1)]
    lines += [
        f"| {name} | " + " | ".join(f"{row[grade]:+.2f}" for grade in grades) + " |"
        for name, row in changes.items()
    ]
    return "\n".join(lines) + "\n"
