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

from rbegir.lab.markdown import Json
from rbegir.lab.reproduce import paper
from rbegir.lab.reproduce.results import Columns, Stat, TableMaker, bits_of, shown, stat
from rbegir.lab.reproduce.rows import OTHER_RECIPES, PAPER, PLAIN, bytes_of, query_bits, under
from rbegir.lab.reproduce.studies import GRADES
from rbegir.search.missrate import certificate


def accuracy(make: TableMaker) -> Json:
    """Table 1: the models of the paper, trained alike: with our recipe, then with others."""
    models = [
        (source, printed, under(recipe, "m_3"), under(recipe, "m_1"))
        for recipe in ("", *OTHER_RECIPES)
        for name, printed in paper.ACCURACY.items()
        if make.results.runs(source := under(recipe, name))
    ]
    rows = [
        {
            **_beside(make, name, printed),
            "n": make.rows[name].shape.n,
            "epochs": len(make.results.runs(name)[0]["history"]),
            "labels": make.label(name),
            "lift": make.results.lift(name, low, high),
            "seeds": len(make.results.runs(name)) or None,
            "paper_lift": printed.lift,
        }
        for name, printed, low, high in models
    ]
    gap = paper.REFERENCE_GAP
    return {
        "title": "Model configurations and accuracy",
        "paper": "tables 1 and 2",
        "columns": [
            ["model", "model"], ["n", "n"], ["q", "query bits"], ["k", "keyword bits"], ["epochs", "epochs"],
            ["log_loss", "log loss"], ["roc_auc", "ROC AUC"], ["lift", "AUC lift %"],
            ["recall@10", "R@10"], ["labels", "label AUC"], ["seeds", "seeds"],
            ["paper_loss", "paper: log loss"], ["paper_auc", "paper: AUC"],
            ["paper_lift", "paper: lift %"],
        ],
        "rows": rows,
        "orderings": [
            *make.order("m_3 above m_2", "m_3", "m_2", 0.7846 - 0.7719),
            *make.order("rbe* above m_3", "rbe_star", "m_3", 0.8005 - 0.7846),
            *make.order("m_5 above rbe*", "m_5", "rbe_star", 0.8011 - 0.8005),
            *make.order("m_1 above m_5", "m_1", "m_5", 0.8044 - 0.8011),
            *make.order("m_1 above m_3: the reference gap", "m_1", "m_3", gap),
        ],
    }  # fmt: skip


def _beside(make: TableMaker, name: str, printed: paper.Accuracy) -> Json:
    """The accuracy of a model beside the paper's."""
    shape = make.rows[name].shape
    return {
        "model": shown(name),
        "q": bits_of(shape.query_planes),
        "k": bits_of(shape.keyword_planes),
        **make.figures(name, "log_loss", "roc_auc", "recall@10"),
        "paper_loss": printed.log_loss,
        "paper_auc": printed.roc_auc,
        "command": make.command(name),
    }


def bits(make: TableMaker) -> Json:
    """Table 2: more planes."""
    rows = [_beside(make, name, printed) for name, printed in paper.BITS.items() if make.results.runs(name)]
    steps = (("rbe_2", "m_2"), ("rbe_star", "rbe_2"), ("rbe_3", "rbe_star"))
    return {
        "title": "Bits per dimension",
        "paper": "table 4",
        "columns": [
            ["model", "model"], ["q", "query bits"], ["k", "keyword bits"], ["log_loss", "log loss"],
            ["roc_auc", "ROC AUC"], ["recall@10", "R@10"],
            ["paper_loss", "paper: log loss"], ["paper_auc", "paper: AUC"],
        ],
        "rows": rows,
        "orderings": [
            order
            for a, b in steps
            for order in make.order(
                f"{shown(a)} above {b.replace('rbe_star', 'rbe*')}",
                a, b, paper.BITS[a].roc_auc - paper.BITS[b].roc_auc,
            )
        ],
    }  # fmt: skip


def binarisation(make: TableMaker) -> Json:
    """Table 3: three estimators of the gradient of ρ."""
    rows, orderings = [], []
    for name, (variant, tanh) in paper.BINARISATION.items():
        ours = make.like(name)
        label = shown(name)
        row: Json = {"model": label, "paper_variant": variant, "paper_tanh": tanh}
        sources = {
            "variant": ours, "tanh": f"{name}, annealing tanh", "plain": f"{name}, straight-through"
        }  # fmt: skip
        for key, source in sources.items():
            found = make.figures(source, "roc_auc", "recall@10")
            row |= {key: found.get("roc_auc"), f"{key}_r10": found.get("recall@10")}
        row |= {"sources": sources, "command": make.command(sources["tanh"])}
        rows.append(row)
        better, worse = (sources["variant"], sources["tanh"])
        word = ("the variant", "annealing tanh")
        if tanh > variant:
            better, worse, word = worse, better, (word[1], word[0])
        orderings += make.order(f"{label}: {word[0]} above {word[1]}", better, worse, abs(variant - tanh))
    return {
        "title": "Binarisation: the straight-through variant, annealing tanh, plain straight-through",
        "paper": "table 5",
        "columns": [
            ["model", "model"], ["variant", "ST variant"], ["tanh", "annealing tanh"],
            ["plain", "plain straight-through"], ["variant_r10", "R@10: ST variant"],
            ["tanh_r10", "R@10: annealing tanh"], ["plain_r10", "R@10: plain"],
            ["paper_variant", "paper: ST variant"], ["paper_tanh", "paper: annealing tanh"],
        ],
        "rows": rows,
        "orderings": orderings,
    }  # fmt: skip


def weights(make: TableMaker) -> Json:
    """Table 4: planes worth (½)^t, or all the same."""
    rows, orderings = [], []
    for name, (without, weighted, lift) in paper.RESIDUAL_WEIGHTS.items():
        off = f"{name}, no weights"
        on = make.like(name)
        row: Json = {"model": shown(name), "command": make.command(off)}
        for key, source in (("off", off), ("on", on)):
            found = make.figures(source, "roc_auc", "recall@10")
            row |= {key: found.get("roc_auc"), f"{key}_r10": found.get("recall@10")}
        if row["off"] and row["on"] and make.gap:
            row["lift"] = 100 * (row["on"]["mean"] - row["off"]["mean"]) / make.gap
        rows.append(row | {"paper_off": without, "paper_on": weighted, "paper_lift": lift})
        orderings += make.order(f"{shown(name)}: weights help", on, off, weighted - without)
    return {
        "title": "Residual weights off and on (ROC AUC)",
        "paper": "table 6",
        "columns": [
            ["model", "model"], ["off", "no weights"], ["on", "weights"],
            ["lift", "AUC lift, % of table 1's gap"],
            ["off_r10", "R@10: no weights"], ["on_r10", "R@10: weights"],
            ["paper_off", "paper: no weights"], ["paper_on", "paper: weights"],
            ["paper_lift", "paper: lift %"],
        ],
        "rows": rows,
        "orderings": orderings,
    }  # fmt: skip


GIB = 1 << 30
RECALL: Columns = [["recall@1", "R@1"], ["recall@10", "R@10"], ["recall@100", "R@100"]]


def top_five(make: TableMaker) -> Json:
    """Table 5: the grades of what is found first."""
    ours = _mean_counts([s["found"]["all titles"] for s in make.results.study("rbe_star", "top_five")])
    cut = [s["found"]["the same memory"] for s in make.results.study("m_1", "top_five")]
    every = [s["found"]["all titles"] for s in make.results.study("m_1", "top_five")]
    lexical = [run["top_five"] for run in make.results.runs("bm25") if "top_five" in run]
    systems = [
        ("rbe*, all titles, 16 bytes each", ours, "rbe_star"),
        ("float model, as many titles as fit the same memory", _mean_counts(cut), "m_1"),
        ("BM25, the same titles", _mean_counts(lexical), "bm25"),
        ("float model, all titles (16 times the memory)", _mean_counts(every), "m_1"),
    ]
    mine = _shares(ours)
    graded = [
        study["queries"] for name in ("rbe_star", "m_1") for study in make.results.study(name, "top_five")
    ]
    rows = []
    for label, counts, source in systems:
        if shares := _shares(counts):
            changes = {
                f"{grade}_change": 100 * (mine[grade] / shares[grade] - 1)
                for grade in GRADES
                if mine and counts is not ours and shares[grade]
            }
            good = counts["good"] / graded[0] if graded else None
            rows.append({"model": label, **shares, **changes, "found": good, "command": make.command(source)})
    return {
        "title": "Quality of the top five: percent of those judged, and in brackets what rbe* changes",
        "paper": "table 3",
        "columns": [
            ["model", "system"],
            ["judged", "% judged"],
            *([grade, f"% {grade}"] for grade in GRADES),
            ["found", "good titles per query"],
        ],
        "rows": rows,
        "printed": paper.TOP_FIVE,
        "orderings": [],
    }


def system(make: TableMaker) -> Json:
    """Table 6: what the published selection costs and misses."""
    rows: list[Json] = []
    for found in make.results.study("rbe_star", "selection")[:1]:
        label = f"recall@{found['top']} of the published selection, {found['keywords']:,} titles"
        rows.append(
            {"model": label, "ours": f"{found['recall']:.4f} (its certificate: {found['expected']:.4f})"}
        )
    billion = certificate(1_200_000_000, 1000, 256)
    rows.append(
        {
            "model": "expected recall@1000 of the published selection, 1.2 billion keywords",
            "ours": f"{billion.expected_recall:.6f}",
            "paper": f"{paper.RECALL_AT_1000:.4f} measured",
        }
    )
    for found in make.results.study("rbe_star", "latency")[:1]:
        two, three = found["ms"]["2"], found["ms"]["3"]
        rows.append(
            {
                "model": f"one exact search of {found['keywords']:,} titles, CPU, 2 and 3 query planes",
                "ours": f"{two:.2f} ms, {three:.2f} ms ({100 * (three / two - 1):+.1f} %)",
                "paper": f"{paper.LATENCY_MS['rbe_2']} ms, {paper.LATENCY_MS['rbe_star']} ms (+4.18 %), "
                "1.2 billion on four GPUs",
            }
        )
    for name in ("rbe_star", "m_1"):
        size = bytes_of(make.rows[name].shape)
        rows.append(
            {
                "model": f"memory of a billion keywords, {shown(name)}",
                "ours": f"{1e9 * size / GIB:.2f} GB",
                "paper": f"{paper.MEMORY_GB[name]:g} GB",
            }
        )
    exact = certificate(10**9, 1000, 256)
    for misses, printed in enumerate(paper.MISS_AT_MOST):
        rows.append(
            {
                "model": f"P(at most {misses} of 1000 missed), 10⁹ keywords, 256 per thread",
                "ours": f"{exact.at_most(misses):.5f}",
                "paper": f"{printed:.5f}",
            }
        )
    return {
        "title": "Selection, latency, memory, and the probability of a miss",
        "paper": "section 6.3 and the appendix",
        "columns": [["model", "what"], ["ours", "ours"], ["paper", "paper"]],
        "rows": [row | {"command": f"rbegir reproduce 6{make.options}"} for row in rows],
        "orderings": [],
    }


def effects(make: TableMaker) -> Json:
    """Table 7: one setting changed at a time."""
    star = make.like("rbe_star")
    groups = {
        "B and R": [("a pair for each round", star), ("one pair for all rounds", "fixed B and R")],
        "towers": [("shared", star), ("separate", "separate towers")],
        "negatives": [
            ("every other keyword of the batch", star),
            ("100", "100 negatives"), ("10", "10 negatives"), ("1", "1 negative"),
        ],
        "query planes": [
            ("1", "1 query plane"), ("2", make.like("rbe_2")), ("3", star), ("4", "4 query planes"),
            ("6", "6 query planes"), ("8", "8 query planes"),
        ],
        "recipe": [
            ("ours", star), ("without the float guide", "no float guide"),
            ("without gram dropout", "no gram dropout"),
            ("without feature dropout", "no feature dropout"),
            ("without word dropout", "no word dropout"), ("without any of these", under(PLAIN, "rbe_star")),
            ("the paper's", under(PAPER, "rbe_star")),
        ],
    }  # fmt: skip
    rows = [
        {
            "effect": effect,
            "model": label,
            **make.figures(source, "roc_auc", "recall@1", "recall@10", "recall@100"),
            "labels": make.label(source),
            "command": make.command(source),
        }
        for effect, options in groups.items()
        for label, source in options
        if make.results.runs(source)
    ]
    return {
        "title": "Effects beyond the paper, on rbe*",
        "paper": "no table",
        "columns": [["effect", "what"], ["model", "setting"], ["roc_auc", "ROC AUC"], *RECALL,
                    ["labels", "label AUC"]],
        "rows": rows,
        "orderings": [],
    }  # fmt: skip


def equal_bytes(make: TableMaker) -> Json:
    """Every method at its size."""
    names = [name for name, row in make.rows.items() if "bytes" in row.tables and make.results.runs(name)]
    rows: list[Json] = [
        {
            "model": shown(name),
            "bytes": bytes_of(make.rows[name].shape),
            "query": query_bits(make.rows[name].shape),
            **make.figures(name, "roc_auc", "recall@1", "recall@10", "recall@100"),
            "interval": make.results.interval(name, "recall@10"),
            "labels": make.label(name),
            "command": make.command(name),
        }
        for name in names
    ]
    rows += _quantised(make)
    rows += [
        {
            "model": f"BM25 ({run['queries']:,} of the queries)",
            "bytes": None,
            "query": "words",
            **{f"recall@{k}": stat([run[f"recall@{k}"]])._asdict() for k in (1, 10, 100)},  # type: ignore[union-attr]
            "command": make.command("bm25"),
        }
        for run in make.results.runs("bm25")
    ]
    recall = {id(row): row["recall@10"]["mean"] for row in rows if row.get("recall@10")}
    rows.sort(key=lambda row: (row["bytes"] is None, row["bytes"], -recall.get(id(row), 0.0)))
    return {
        "title": "The best 16 bytes: every method at its size",
        "paper": "no table",
        "columns": [["model", "method"], ["bytes", "bytes per title"], ["query", "query"],
                    ["roc_auc", "ROC AUC"],
                    *RECALL, ["interval", "R@10, 95 % interval of one seed"], ["labels", "label AUC"]],
        "rows": rows,
        "orderings": [],
    }  # fmt: skip


def _quantised(make: TableMaker) -> list[Json]:
    """The quantisers of the float model's vectors, over the seeds of that model."""
    found: dict[tuple[str, str], list[Json]] = {}  # (method, precision of the query) → figures of the seeds
    for run in make.results.runs("m_1"):
        for figures in run["studies"].get("quantisers", []):
            found.setdefault((figures["name"], figures["query"]), []).append(figures)
    rows = []
    for (name, _), many in found.items():
        first = many[0]
        among = f", {first['queries']:,} of the queries" if "queries" in first else ""
        row: Json = {"model": f"m_1, {name}{among}", "bytes": first["bytes"], "query": first["query"]}
        for figure in ("roc_auc", "recall@1", "recall@10", "recall@100"):
            value: Stat | None = stat(f[figure]["value"] for f in many if figure in f)
            row |= {figure: value._asdict()} if value else {}
        row["interval"] = first["recall@10"]["interval"]
        rows.append(row | {"command": make.command("m_1")})
    return rows


def _shares(counts: dict[str, float]) -> dict[str, float]:
    """Percent of the hits that are judged, and of those the percent of each grade."""
    judged = sum(counts.get(grade, 0.0) for grade in GRADES)
    if not judged:
        return {}
    whole = judged + counts["unjudged"]
    return {"judged": 100 * judged / whole, **{grade: 100 * counts[grade] / judged for grade in GRADES}}


def _mean_counts(many: list[dict[str, int]]) -> dict[str, float]:
    return {grade: sum(c[grade] for c in many) / len(many) for grade in many[0]} if many else {}


MAKERS: dict[str, Callable[[TableMaker], Json]] = {
    "1": accuracy,
    "2": bits,
    "3": binarisation,
    "4": weights,
    "5": top_five,
    "6": system,
    "7": effects,
    "bytes": equal_bytes,
}


def table(key: str, make: TableMaker) -> Json:
    """The table of a key."""
    return {"table": key, "command": f"rbegir reproduce {key}{make.options}", **MAKERS[key](make)}
