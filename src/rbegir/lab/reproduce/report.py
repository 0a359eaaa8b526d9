"""The report of `rbegir reproduce` as a page of Markdown (report.md.j2), and its pictures in plain SVG.

Figures come from the results alone, and a conclusion is printed only if the figures support it.

auc-bits        ROC AUC against bits per keyword dimension, ours and the paper's
recall-bytes    recall@10 of every method, with its bytes per title
recall-corpus   recall@10 against the number of titles searched
loss            training loss and validation log loss by epoch
estimators      training loss by epoch of three gradient estimators
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from rbegir.errors import needing
from rbegir.lab.bench.host import cpu_name
from rbegir.lab.figures import Json, Stat, environment, interval, stat
from rbegir.lab.reproduce import paper
from rbegir.lab.reproduce.dataset import HEADLINE
from rbegir.lab.reproduce.results import Results, short, shown
from rbegir.lab.reproduce.rows import OTHER_GAMMAS, OTHER_RECIPES, PAPER, PLAIN, under
from rbegir.lab.reproduce.tables import ALL, tables_of

BEST_FLOAT = "m_1, 10 epochs, 20 % feature dropout"  # the best float model that was found
GAP = ("rbe_star", "m_3", "m_1")  # the models of the headline's lift
SEEDS = 3  # per figure, if there are enough
VERDICTS = {  # of orderings that are not simply held
    "reversed": ("reversed", "reversed, one seed"),
    "open": ("held, within the spread", "reversed, within the spread"),
}
OURS, THEIRS, OTHER = "#0b6e99", "#c2571a", "#8a8a8a"  # colours


def page(result: Json, pictures: bool = True, gpu: Json | None = None) -> str:
    """The report of a result; `gpu` is one of `rbegir bench scan` on a GPU, which table 6 quotes."""
    template = environment(Path(__file__).parent).get_template("report.md.j2")
    return template.render(
        s=section(result, gpu),
        pictures=pictures,
        parts={
            "": "Our recipe",
            ALL: "Queries of all slices",
            HEADLINE: f"Queries of {HEADLINE}",
            PAPER: "The paper's recipe",
            **{recipe: recipe.replace("the", "The", 1) for recipe in OTHER_GAMMAS},
            PLAIN: "Our recipe without dropout and guide",
        },
        paper=paper,
        paper_differences=sorted(abs(a - b) for a, b in paper.BINARISATION.values()),
        headline=HEADLINE,
        plain=PLAIN,
        short=short,
        shown=shown,
        under=under,
    )


def on_gpu(gpu: Json) -> list[Json]:
    """Rows of table 6 from a benchmark of scans of random codes on a GPU."""
    alone = [case for case in gpu["cases"] if case["case"].endswith("query planes") and case["batch"] == 1]
    two, three = (case for planes in (2, 3) for case in alone if case["query_planes"] == planes)
    count, card = three["keywords"], gpu["host"]["device"]
    change = 100 * (three["ms"] / two["ms"] - 1)
    (published,) = (one for one in gpu["paper"] if (one["keywords"], one["queue"]) == (count, 1))
    theirs = [paper.LATENCY_MS[name] for name in ("rbe_2", "rbe_star")]
    return [
        {
            "model": f"one exact search of {count:,} random codes, {card}, 2 and 3 query planes",
            "ours": f"{two['ms']:.2f} ms, {three['ms']:.2f} ms ({change:+.1f} %); "
            f"for the caller {two['wall_ms']:.2f} ms, {three['wall_ms']:.2f} ms",
            "paper": f"{theirs[0]} ms, {theirs[1]} ms (+4.18 %), four GTX 1080",
        },
        {
            "model": f"measured recall@{published['k']} of the published selection, {count:,} random codes, "
            f"{published['queries']} queries",
            "ours": f"{published['measured_recall']:.6f}",
            "paper": f"{paper.RECALL_AT_1000:.4f}",
        },
    ]


def section(result: Json, gpu: Json | None = None) -> Json:
    """The values of the template for one result."""
    results = Results(result["runs"])
    tables = tables_of(result)
    if gpu is not None:
        next(table for table in tables if table["table"] == "6")["rows"][:0] = on_gpu(gpu)
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
    by_name = {shown(run["row"]): run["row"] for run in result["runs"]}
    whole = result["host"].get("commit")
    commits = [(run["row"], str(run.get("commit", whole) or "unknown+")) for run in result["runs"]]
    changed = {shown(row) for row, commit in commits if commit.endswith("+")}
    return {
        **result,
        "device": result["device"] if result["device"] != "cpu" else cpu_name(result["host"]),
        "seeds": sorted({run["seed"] for run in result["runs"]}),
        "results": results,
        "gpu": gpu,
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
        "by_gamma": by_gamma(results),
        "chosen_gamma": with_chosen_gamma(results),
        "commits": Counter(commit for _, commit in commits).most_common(),
        "changed": changed,
        "clean": sorted({shown(row) for row, _ in commits} - changed),
        "best": best_of(by_key["bytes"], "3 bits", quantised=False),
        "best_float": max(
            (found.mean for name in ("m_1", BEST_FLOAT) if (found := results.stat(name, "recall@10"))),
            default=None,
        ),
        "rivals": {query: best_of(by_key["bytes"], query, quantised=True) for query in ("3 bits", "float")},
        "ahead": lambda model, quantiser, query: ahead(results, by_name[model], quantiser, query),
    }


def by_gamma(results: Results) -> list[Json]:
    """The lift of rbe* under the paper's recipe for each γ, and the mean held-out ROC AUC of three models."""
    made = []
    for recipe in (PAPER, *OTHER_GAMMAS):
        rows = {model: under(recipe, model) for model in GAP}
        lift = results.lift(*rows.values())
        if lift is not None:
            kept = {
                model: fmean(run["history"][run["best_epoch"] - 1]["roc_auc"] for run in results.runs(row))
                for model, row in rows.items()
            }
            made.append({"gamma": OTHER_RECIPES[recipe].gamma, "recipe": recipe, "lift": lift, **kept})
    return sorted(made, key=lambda found: found["gamma"])


def with_chosen_gamma(results: Results) -> Stat | None:
    """The lift of rbe* if each of the three models has the γ with its best held-out ROC AUC."""
    found = by_gamma(results)
    best = {model: max(found, key=lambda one: one[model])["recipe"] for model in GAP if found}
    return results.lift(*(under(recipe, model) for model, recipe in best.items())) if best else None


def ahead(results: Results, row: str, quantiser: str, query: str) -> Stat | None:
    """Recall@10 of a model minus that of a quantiser of m_1's vectors, seed by seed."""
    theirs = {
        run["seed"]: one["recall@10"]["value"]
        for run in results.runs("m_1")
        for one in run["studies"].get("quantisers", ())
        if (one["name"], one["query"]) == (quantiser, query)
    }
    ours = {run["seed"]: run["figures"]["recall@10"]["value"] for run in results.runs(row)}
    return stat(ours[seed] - theirs[seed] for seed in ours.keys() & theirs.keys())


def slices(results: Results) -> list[Json]:
    """Label AUC of the paper's models on every slice of the judged pairs, the largest slice last."""
    judged = [run["figures"]["labels"] for run in results.runs("rbe_star") if "labels" in run["figures"]]
    labels: Json = judged[0] if judged else {}
    made = []
    for name, about in sorted(labels.items(), key=lambda part: part[1]["pairs"]):
        found = {model: results.stat(model, f"labels/{name}/roc_auc") for model in paper.ACCURACY}
        if all(found.values()):
            auc = [interval(value._asdict()) for value in found.values() if value]
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


def best_of(table: Json, query: str, *, quantised: bool) -> tuple[str, Stat] | None:
    """The model or quantiser of 16 bytes with the best recall@10 for queries of a precision, of those with
    most seeds."""
    found = [
        (row["model"].removeprefix("m_1, "), Stat(**row["recall@10"]))
        for row in table["rows"]
        if (row["bytes"], row["query"], row["model"].startswith("m_1, ")) == (16, query, quantised)
    ]
    return max(found, key=lambda one: (one[1].seeds, one[1].mean), default=None)


def _cell(row: Json, key: str) -> str:
    change = row.get(f"{key}_change")
    return cell(key, row.get(key)) + (f" ({change:+.0f} %)" if change is not None else "")


def cell(key: str, value: Any) -> str:
    """One value: a figure over seeds, an interval, a number or a word."""
    if value is None:
        return ""
    if isinstance(value, dict):
        return interval(value, 1 if key == "lift" else 3 if "r10" in key or key.startswith("recall") else 4)
    if isinstance(value, list):
        return f"{value[0]:.3f} … {value[1]:.3f}"
    if isinstance(value, float):
        if key.endswith("_count"):
            return f"{value:.0f}"
        if "lift" in key or key in ("bad", "fair", "good", "judged"):
            return f"{value:.1f}"
        return f"{value:g}" if key == "bytes" else f"{value:.{2 if key == 'found' else 4}f}"
    return str(value)


class Curve(NamedTuple):
    """A line of a picture."""

    label: str | None
    x: Sequence[float]
    y: Sequence[float]
    color: str
    style: str = "-o"


def draw(result: Json, folder: Path) -> list[Path]:
    """Write the pictures of one result and return their files."""
    with needing("the pictures need matplotlib", "pip install 'rbegir[tables]'"):
        import matplotlib
    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "rbegir"  # the same picture again for the same figures
    import matplotlib.pyplot as plt

    results = Results(result["runs"])
    folder.mkdir(parents=True, exist_ok=True)
    pictures: dict[str, tuple[list[Curve], Json]] = {
        "auc-bits": (_bits(results), {
            "xlabel": "bits per dimension, mean of query and keyword", "ylabel": "ROC AUC above one bit",
        }),
        "recall-corpus": (_corpus(results), {
            "xlabel": "titles searched, all targets among them", "ylabel": "recall@10", "xscale": "log",
        }),
        "loss": (_loss(results), {
            "xlabel": "epoch", "ylabel": "loss of a batch, log loss with 10 negatives", "yscale": "log",
        }),
        "estimators": (_estimators(results, result), {
            "xlabel": "epoch, every seed a line", "ylabel": "training loss of rbe*, all keywords of a batch",
        }),
    }  # fmt: skip
    written = []
    for name in (*pictures, "recall-bytes"):
        figure, axes = plt.subplots(figsize=(7, 4.2))
        if name == "recall-bytes":
            _bars(axes, result)
        else:
            curves, about = pictures[name]
            for curve in curves:
                axes.plot(curve.x, curve.y, curve.style, color=curve.color, label=curve.label, markersize=4)
            axes.set(**about)
            if curves:
                axes.legend(frameon=False, fontsize=8)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        written.append(folder / f"reproduce-{name}.svg")
        figure.savefig(written[-1], bbox_inches="tight", metadata={"Date": None})
        plt.close(figure)
    return written


def _bits(results: Results) -> list[Curve]:
    places = {"m_2": 1.0, "rbe_2": 2.0, "rbe_star": 2.5, "rbe_3": 3.0}
    found = {name: value.mean for name in (*places, "m_1", "m_3") if (value := results.stat(name, "roc_auc"))}
    theirs = [paper.BITS[name].roc_auc - paper.BITS["m_2"].roc_auc for name in places]
    curves = [Curve("the paper, human labels", list(places.values()), theirs, THEIRS)]
    if "m_2" in found:
        made = {places[name]: value - found["m_2"] for name, value in found.items() if name in places}
        curves.append(Curve("ours, unseen titles", list(made), list(made.values()), OURS))
        for name, style in (("m_1", ":"), ("m_3", "--")):
            if name in found:
                curves.append(
                    Curve(f"ours, {shown(name)}", [1, 3], 2 * [found[name] - found["m_2"]], OURS, style)
                )
    return curves


def _corpus(results: Results) -> list[Curve]:
    curves = []
    for name, label, color in (
        ("m_1", "m_1, 256 bytes", OTHER),
        ("rbe_star", "rbe*, 16 bytes", OURS),
        ("m_3", "m_3, 16 bytes", THEIRS),
    ):
        if found := results.study(name, "sizes"):
            sizes = sorted(found[0], key=int)
            means = [fmean(one[size] for one in found) for size in sizes]
            curves.append(Curve(label, [int(size) for size in sizes], means, color))
    return curves


def _course(run: Json, figure: str, label: str | None, color: str, style: str) -> Curve:
    """A figure by epoch."""
    known = [entry for entry in run["history"] if figure in entry]
    return Curve(label, [entry["epoch"] for entry in known], [entry[figure] for entry in known], color, style)


def _loss(results: Results) -> list[Curve]:
    return [
        _course(run, figure, f"{name}: {what}", color, style)
        for name, color in (("m_1", OTHER), ("rbe_star", OURS), ("m_3", THEIRS))
        for run in results.runs(name)[:1]
        for figure, what, style in (("loss", "training", "-"), ("log_loss", "validation", "--"))
    ]


def _estimators(results: Results, result: Json) -> list[Curve]:
    (table,) = tables_of(result, ["3"])
    sources = {row["model"]: row["sources"] for row in table["rows"]}["rbe*"]
    return [
        _course(run, "loss", None if number else label, color, "-o")
        for key, label, color in (
            ("variant", "straight-through variant", OURS),
            ("tanh", "annealing tanh", OTHER),
            ("plain", "plain straight-through", THEIRS),
        )
        for number, run in enumerate(results.runs(sources[key]))
    ]


def _bars(axes: Any, result: Json) -> None:
    """Recall@10 of every method with its bytes per title, best last; float queries of quantised vectors."""
    (table,) = tables_of(result, ["bytes"])
    bars: dict[str, tuple[float, str]] = {}
    for row in table["rows"]:
        quantised = row["model"].startswith("m_1, ")
        known = row.get("bytes") is not None and row.get("recall@10") is not None
        if known and "epochs" not in row["model"] and not (quantised and row["query"] == "3 bits"):
            name = row["model"].removeprefix("m_1, ") if quantised else short(row["model"])
            bars[f"{name}, {row['bytes']:g} bytes"] = row["recall@10"]["mean"], OTHER if quantised else OURS
    names = sorted(bars, key=lambda name: bars[name])
    axes.barh(names, [bars[name][0] for name in names], color=[bars[name][1] for name in names])
    axes.tick_params(axis="y", labelsize=6)
    axes.set_xlabel(
        f"recall@10 among {result['dataset']['corpus']:,} titles (light: quantised vectors of m_1)"
    )
