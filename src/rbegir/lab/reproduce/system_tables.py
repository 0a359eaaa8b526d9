"""Tables 5 to 7 and the equal-bytes comparison: retrieval, the system, effects beyond the paper."""

from __future__ import annotations

from rbegir.lab.reproduce import paper
from rbegir.lab.reproduce.results import Columns, Json, Stat, TableMaker, shown, stat
from rbegir.lab.reproduce.rows import PAPER, PLAIN, bytes_of, query_bits, under
from rbegir.lab.reproduce.studies import GRADES
from rbegir.search.missrate import certificate

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
            ["found", "good titles a query"],
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
                "model": f"P(at most {misses} of 1000 missed), 10⁹ keywords, 256 a thread",
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
            **{f"recall@{k}": stat([run[f"recall@{k}"]]).to_dict() for k in (1, 10, 100)},  # type: ignore[union-attr]
            "command": make.command("bm25"),
        }
        for run in make.results.runs("bm25")
    ]
    rows.sort(key=lambda row: (row["bytes"] is None, row["bytes"], -_mean(row.get("recall@10"))))
    return {
        "title": "The best 16 bytes: every method at its size",
        "paper": "no table",
        "columns": [["model", "method"], ["bytes", "bytes a title"], ["query", "query"],
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
            row |= {figure: value.to_dict()} if value else {}
        row["interval"] = first["recall@10"]["interval"]
        rows.append(row | {"command": make.command("m_1")})
    return rows


def _mean(figure: Json | None) -> float:
    return 0.0 if figure is None else float(figure["mean"])


def _shares(counts: dict[str, float]) -> dict[str, float]:
    """Percent of the hits that are judged, and of those the percent of each grade."""
    judged = sum(counts.get(grade, 0.0) for grade in GRADES)
    if not judged:
        return {}
    whole = judged + counts["unjudged"]
    return {"judged": 100 * judged / whole, **{grade: 100 * counts[grade] / judged for grade in GRADES}}


def _mean_counts(many: list[dict[str, int]]) -> dict[str, float]:
    return {grade: sum(c[grade] for c in many) / len(many) for grade in many[0]} if many else {}
