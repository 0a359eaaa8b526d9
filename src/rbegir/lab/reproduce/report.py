"""The report of `rbegir reproduce` as a page of Markdown (report.md.j2), and its pictures in plain SVG.

Figures come from the results alone, and a conclusion is printed only if the figures support it.

auc-bits        ROC AUC against bits per keyword dimension, ours and the paper's
recall-bytes    recall@10 against bytes per title, every method
recall-corpus   recall@10 against the number of titles searched
loss            training loss and validation log loss by epoch
estimators      training loss by epoch of three gradient estimators
"""

from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from rbegir.errors import needing
from rbegir.lab.figures import Json, Stat, environment, mean_std
from rbegir.lab.reproduce import paper
from rbegir.lab.reproduce.dataset import HEADLINE
from rbegir.lab.reproduce.results import Results, short, shown
from rbegir.lab.reproduce.rows import PAPER, PLAIN, under
from rbegir.lab.reproduce.tables import tables_of

BEST_FLOAT = "m_1, 10 epochs, 20 % feature dropout"  # the best float model that was found
LEVEL = 0.003  # of recall@10: one and a half standard deviations between seeds
SEEDS = 3  # per figure, if there are enough
VERDICTS = {  # of orderings that are not simply held
    "reversed": ("reversed", "reversed, one seed"),
    "open": ("held, within the spread", "reversed, within the spread"),
}
LABEL_GAP = 0.014  # between two labels of a picture, in recall
OURS, THEIRS, OTHER = "#0b6e99", "#c2571a", "#8a8a8a"  # colours


def page(result: Json, pictures: bool = True) -> str:
    """The report of a result."""
    template = environment(Path(__file__).parent).get_template("report.md.j2")
    return template.render(
        s=section(result),
        pictures=pictures,
        parts={"": "Our recipe", PAPER: "The paper's recipe", PLAIN: "Our recipe without dropout and guide"},
        paper=paper,
        paper_differences=sorted(abs(a - b) for a, b in paper.BINARISATION.values()),
        level=LEVEL,
        headline=HEADLINE,
        recipes=((PLAIN, "Without dropout and guide"), (PAPER, "With the paper's own recipe")),
        short=short,
        under=under,
    )


def section(result: Json) -> Json:
    """The values of the template for one result."""
    results = Results(result["runs"])
    tables = tables_of(result)
    for table in tables:
        columns = [c for c in table["columns"] if any(row.get(c[0]) is not None for row in table["rows"])]
        table["made"] = bool(table["rows"]) and (table["table"] not in "234" or bool(table["orderings"]))
        table["head"] = [heading for _, heading in columns]
        table["parts"] = [
            {
                "title": part,
                "cells": [[_cell(row, key) for key, _ in columns] for row in rows],
                "orderings": [order for order in table["orderings"] if order.get("part", "") == part],
            }
            for part in table.get("parts", [""])
            if (rows := [row for row in table["rows"] if row.get("part", "") == part])
        ]
        table["seeds"] = seeds_of(table)
        for name, verdicts in VERDICTS.items():
            table[name] = [order["claim"] for order in table["orderings"] if order["verdict"] in verdicts]
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
        "slices": slices(results),
        "losses": losses(results, by_key["3"]),
        "best": best_code(by_key["bytes"]),
        "best_float": max(
            (found.mean for name in ("m_1", BEST_FLOAT) if (found := results.stat(name, "recall@10"))),
            default=None,
        ),
        "rivals": {query: best_rival(by_key["bytes"], query) for query in ("3 bits", "float")},
    }


def slices(results: Results) -> list[Json]:
    """Label AUC of the paper's models on every slice of the judged pairs, the largest slice last."""
    judged = [run["figures"]["labels"] for run in results.runs("rbe_star") if "labels" in run["figures"]]
    labels: Json = judged[0] if judged else {}
    made = []
    for name, about in sorted(labels.items(), key=lambda part: part[1]["pairs"]):
        found = {model: results.stat(model, f"labels/{name}/roc_auc") for model in paper.ACCURACY}
        if all(found.values()):
            auc = [mean_std(value._asdict()) for value in found.values() if value]
            made.append({"name": name, "pairs": about["pairs"], "queries": about["queries"], "auc": auc})
    return made


def seeds_of(table: Json) -> list[int]:
    """The distinct numbers of seeds of a table's figures; empty if all have enough."""
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
        return mean_std(value, 1 if key == "lift" else 3 if "r10" in key or key.startswith("recall") else 4)
    if isinstance(value, list):
        return f"{value[0]:.3f} … {value[1]:.3f}"
    if isinstance(value, float):
        if key.endswith("_count"):
            return f"{value:.0f}"
        if "lift" in key or key in ("bad", "fair", "good", "judged"):
            return f"{value:.1f}"
        return f"{value:g}" if key == "bytes" else f"{value:.{2 if key == 'found' else 4}f}"
    return str(value)


def draw(result: Json, folder: Path) -> list[Path]:
    """Write the pictures of one result and return their files."""
    with needing("the pictures need matplotlib", "pip install 'rbegir[tables]'"):
        import matplotlib
    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "rbegir"  # the same picture again for the same figures
    import matplotlib.pyplot as plt

    results = Results(result["runs"])
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, make in (
        ("auc-bits", _bits),
        ("recall-bytes", _bytes),
        ("recall-corpus", _corpus),
        ("loss", _loss),
        ("estimators", _estimators),
    ):
        figure, axes = plt.subplots(figsize=(7, 4.2))
        make(axes, results, result)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        path = folder / f"reproduce-{name}.svg"
        figure.savefig(path, bbox_inches="tight", metadata={"Date": None})
        plt.close(figure)
        written.append(path)
    return written


def _bits(axes: Any, results: Results, _: Json) -> None:
    places = {"m_2": 1.0, "rbe_2": 2.0, "rbe_star": 2.5, "rbe_3": 3.0}
    shown = {name: found for name in places if (found := results.stat(name, "roc_auc"))}
    x = [places[name] for name in shown]
    axes.errorbar(
        x,
        [s.mean for s in shown.values()],
        [s.std or 0.0 for s in shown.values()],
        color=OURS, marker="o", capsize=3, label="ours (left axis)",
    )  # fmt: skip
    for name, where in (("m_1", "m_1, float"), ("m_3", "m_3, 128-d one bit")):
        if found := results.stat(name, "roc_auc"):
            axes.axhline(found.mean, color=OURS, linestyle=":", linewidth=1)
            axes.annotate(where, (3.0, found.mean), ha="right", va="bottom", fontsize=8, color=OURS)
    other = axes.twinx()
    other.plot(
        list(places.values()), [paper.BITS[name].roc_auc for name in places], color=THEIRS, marker="s",
        label="paper, human labels (right axis)",
    )  # fmt: skip
    axes.set_xticks(
        list(places.values()), ["m_2\n1 and 1", "rbe_2\n2 and 2", "rbe*\n3 and 2", "rbe_3\n3 and 3"]
    )
    axes.set(xlabel="bits per dimension of query and keyword", ylabel="ROC AUC, unseen titles")
    other.set_ylabel("ROC AUC in the paper")
    _one_legend(axes, other, loc="lower right")


def _one_legend(axes: Any, other: Any, **options: Any) -> None:
    """One legend for the lines of both vertical axes."""
    other.spines["top"].set_visible(False)
    lines, labels = axes.get_legend_handles_labels()
    more, names = other.get_legend_handles_labels()
    axes.legend(lines + more, labels + names, frameon=False, **options)


def _bytes(axes: Any, _: Results, result: Json) -> None:
    (table,) = tables_of(result, ["bytes"])
    columns: dict[float, list[tuple[float, str, bool]]] = {}
    for row in table["rows"]:
        if row.get("bytes") is None or row.get("recall@10") is None or "among" in row["model"]:
            continue
        quantised = row["model"].startswith("m_1, ")
        if quantised and row["query"] == "3 bits":  # they are in the table; both would crowd the picture
            continue
        label = row["model"].removeprefix("m_1, ") if quantised else short(row["model"])
        if "epochs" not in row["model"]:
            point = (row["recall@10"]["mean"], label.replace("rescored with the ", ""), quantised)
            columns.setdefault(row["bytes"], []).append(point)
    smaller = max((value for size in columns if size < 16 for value, *_ in columns[size]), default=0.0)
    for size, points in columns.items():
        points.sort()
        for (value, label, quantised), height in zip(points, spread([p[0] for p in points]), strict=True):
            color = OTHER if quantised else OURS
            axes.scatter(size, value, color=color, marker="x" if quantised else "o", s=22)
            # most points are at 16 bytes: these and smaller ones are labelled on the left, with more room
            left = size < 16 or (size == 16 and height > smaller + LABEL_GAP)
            axes.annotate(
                label, (size, value), xytext=(size / 1.15 if left else size * 1.15, height), fontsize=6,
                va="center", ha="right" if left else "left", color=color,
                arrowprops={"arrowstyle": "-", "color": color, "linewidth": 0.4},
            )  # fmt: skip
    axes.set_xscale("log", base=2)
    axes.set_xticks([8, 16, 32, 64, 128, 256], ["8", "16", "32", "64", "128", "256"])
    axes.set_xlim(1.8, 420)
    axes.set_xlabel("bytes per title (● trained, × quantised vectors of m_1, float query)")
    axes.set_ylabel(f"recall@10 among {result['dataset']['corpus']:,} titles")


def spread(values: list[float]) -> list[float]:
    """Heights for labels of ascending values, at least LABEL_GAP apart and otherwise as near as possible."""
    from sklearn.isotonic import isotonic_regression

    steps = LABEL_GAP * np.arange(len(values))
    near: list[float] = (isotonic_regression(np.array(values) - steps) + steps).tolist() if values else []
    return near


def _corpus(axes: Any, results: Results, _: Json) -> None:
    for name, label, color in (
        ("m_1", "m_1, 256 bytes", OTHER),
        ("rbe_star", "rbe*, 16 bytes", OURS),
        ("m_3", "m_3, 16 bytes", THEIRS),
    ):
        if found := results.study(name, "sizes"):
            sizes = sorted(found[0], key=int)
            means = [sum(one[size] for one in found) / len(found) for size in sizes]
            axes.plot([int(size) for size in sizes], means, marker="o", label=label, color=color)
    axes.set_xscale("log")
    axes.set(xlabel="titles searched, all targets among them", ylabel="recall@10")
    axes.legend(frameon=False)


def _course(axes: Any, run: Json, figure: str, **style: Any) -> None:
    """A line of a figure against the epochs of a run."""
    history = run["history"]
    axes.plot([entry["epoch"] for entry in history], [entry[figure] for entry in history], **style)


def _loss(axes: Any, results: Results, _: Json) -> None:
    other = axes.twinx()
    for name, color in (("m_1", OTHER), ("rbe_star", OURS), ("m_3", THEIRS)):
        for run in results.runs(name)[:1]:
            _course(axes, run, "loss", color=color, label=f"{name}: training")
            if "log_loss" in run["history"][0]:
                _course(other, run, "log_loss", color=color, linestyle="--", label=f"{name}: validation")
    axes.set(xlabel="epoch", ylabel="training loss, all keywords of a batch (solid)")
    other.set_ylabel("validation log loss, 10 negatives (dashed)")
    _one_legend(axes, other, loc="upper right", fontsize=8)


def _estimators(axes: Any, results: Results, result: Json) -> None:
    (table,) = tables_of(result, ["3"])
    sources = {row["model"]: row["sources"] for row in table["rows"]}["rbe*"]
    for key, label, color in (
        ("variant", "straight-through variant", OURS),
        ("tanh", "annealing tanh", OTHER),
        ("plain", "plain straight-through", THEIRS),
    ):
        style = {"color": color, "marker": "o", "markersize": 3}
        for number, run in enumerate(results.runs(sources[key])):
            _course(axes, run, "loss", label=label if number == 0 else None, **style)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set(xlabel="epoch, every seed a line", ylabel="training loss of rbe*, all keywords of a batch")
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False)
