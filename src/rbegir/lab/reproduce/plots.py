"""The pictures of the report, drawn from the same results, in plain SVG.

auc-bits        ROC AUC against bits a keyword dimension, ours and the paper's
recall-bytes    recall@10 against bytes a title, every method
recall-corpus   recall@10 against the number of titles searched
loss            training loss and validation log loss by epoch
estimators      training loss by epoch of three estimators of the gradient of ρ
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rbegir.errors import MissingExtraError
from rbegir.lab.reproduce import paper
from rbegir.lab.reproduce.job import tables_of
from rbegir.lab.reproduce.results import Results

Json = dict[str, Any]
LABEL_GAP = 0.014  # between two labels, in recall
OURS, THEIRS, OTHER = "#0b6e99", "#c2571a", "#8a8a8a"


def draw(result: Json, folder: Path) -> list[Path]:
    """Write the pictures of one result → their files."""
    try:
        import matplotlib
    except ImportError:
        raise MissingExtraError("the pictures need matplotlib", hint="pip install 'rbegir[tables]'") from None
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
    other.spines["top"].set_visible(False)
    axes.set_xticks(
        list(places.values()), ["m_2\n1 and 1", "rbe_2\n2 and 2", "rbe*\n3 and 2", "rbe_3\n3 and 3"]
    )
    axes.set_xlabel("bits a dimension of query and keyword")
    axes.set_ylabel("ROC AUC, unseen titles")
    other.set_ylabel("ROC AUC in the paper")
    lines, labels = axes.get_legend_handles_labels()
    more, names = other.get_legend_handles_labels()
    axes.legend(lines + more, labels + names, loc="lower right", frameon=False)


def _bytes(axes: Any, _: Results, result: Json) -> None:
    (table,) = tables_of(result, ["bytes"])
    columns: dict[float, list[tuple[float, str, bool]]] = {}
    for row in table["rows"]:
        if row.get("bytes") is None or row.get("recall@10") is None or "among" in row["model"]:
            continue
        quantised = row["model"].startswith("m_1, ")
        if quantised and row["query"] == "3 bits":  # the table has them: a picture of both would be a crowd
            continue
        label = row["model"].removeprefix("m_1, ") if quantised else row["model"].split(":")[0]
        if "epochs" not in row["model"]:
            point = (row["recall@10"]["mean"], label.replace("rescored with the ", ""), quantised)
            columns.setdefault(row["bytes"], []).append(point)
    smaller = max((value for size in columns if size < 16 for value, *_ in columns[size]), default=0.0)
    for size, points in columns.items():
        points.sort()
        for (value, label, quantised), height in zip(points, spread([p[0] for p in points]), strict=True):
            color = OTHER if quantised else OURS
            axes.scatter(size, value, color=color, marker="x" if quantised else "o", s=22)
            # the crowd stands at 16 bytes: it and smaller ones are labelled on the left, where there is room
            left = size < 16 or (size == 16 and height > smaller + LABEL_GAP)
            axes.annotate(
                label, (size, value), xytext=(size / 1.15 if left else size * 1.15, height), fontsize=6,
                va="center", ha="right" if left else "left", color=color,
                arrowprops={"arrowstyle": "-", "color": color, "linewidth": 0.4},
            )  # fmt: skip
    axes.set_xscale("log", base=2)
    axes.set_xticks([8, 16, 32, 64, 128, 256], ["8", "16", "32", "64", "128", "256"])
    axes.set_xlim(1.8, 420)
    axes.set_xlabel("bytes a title (● trained, × quantised vectors of m_1, float query)")
    axes.set_ylabel(f"recall@10 among {result['dataset']['corpus']:,} titles")


def spread(values: list[float]) -> list[float]:
    """Heights for labels of ascending values, at least LABEL_GAP apart, crowds centred on what they label."""
    crowds = [[value] for value in values]

    def bottom(crowd: list[float]) -> float:
        return sum(crowd) / len(crowd) - LABEL_GAP * (len(crowd) - 1) / 2

    merged = True
    while merged:
        merged = False
        for i in range(len(crowds) - 1):
            top = bottom(crowds[i]) + LABEL_GAP * (len(crowds[i]) - 1)
            if bottom(crowds[i + 1]) - top < LABEL_GAP - 1e-12:
                crowds[i : i + 2] = [crowds[i] + crowds[i + 1]]
                merged = True
                break
    return [bottom(crowd) + LABEL_GAP * place for crowd in crowds for place in range(len(crowd))]


def _corpus(axes: Any, results: Results, _: Json) -> None:
    for (name, label), color in zip(
        (("m_1", "m_1, 256 bytes"), ("rbe_star", "rbe*, 16 bytes"), ("m_3", "m_3, 16 bytes")),
        (OTHER, OURS, THEIRS),
        strict=True,
    ):
        found = results.study(name, "sizes")
        if found:
            sizes = sorted(found[0], key=int)
            means = [sum(one[size] for one in found) / len(found) for size in sizes]
            axes.plot([int(size) for size in sizes], means, marker="o", label=label, color=color)
    axes.set_xscale("log")
    axes.set_xlabel("titles searched, all targets among them")
    axes.set_ylabel("recall@10")
    axes.legend(frameon=False)


def _loss(axes: Any, results: Results, _: Json) -> None:
    other = axes.twinx()
    for name, color in (("m_1", OTHER), ("rbe_star", OURS), ("m_3", THEIRS)):
        for run in results.runs(name)[:1]:
            epochs = [entry["epoch"] for entry in run["history"]]
            axes.plot(
                epochs, [entry["loss"] for entry in run["history"]], color=color, label=f"{name}: training"
            )
            if "log_loss" in run["history"][0]:
                values = [entry["log_loss"] for entry in run["history"]]
                other.plot(epochs, values, color=color, linestyle="--", label=f"{name}: validation")
    axes.set_xlabel("epoch")
    axes.set_ylabel("training loss, all keywords of a batch (solid)")
    other.set_ylabel("validation log loss, 10 negatives (dashed)")
    other.spines["top"].set_visible(False)
    lines, labels = axes.get_legend_handles_labels()
    more, names = other.get_legend_handles_labels()
    axes.legend(lines + more, labels + names, loc="upper right", frameon=False, fontsize=8)


def _estimators(axes: Any, results: Results, result: Json) -> None:
    (table,) = tables_of(result, ["3"])
    sources = {row["model"]: row["sources"] for row in table["rows"]}["rbe*"]
    names = {
        "variant": "straight-through variant",
        "tanh": "annealing tanh",
        "plain": "plain straight-through",
    }
    for (key, label), color in zip(names.items(), (OURS, OTHER, THEIRS), strict=True):
        for number, run in enumerate(results.runs(sources[key])):
            axes.plot(
                [entry["epoch"] for entry in run["history"]],
                [entry["loss"] for entry in run["history"]],
                color=color, marker="o", markersize=3, label=label if number == 0 else None,
            )  # fmt: skip
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_xlabel("epoch, every seed a line")
    axes.set_ylabel("training loss of rbe*, all keywords of a batch")
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False)
