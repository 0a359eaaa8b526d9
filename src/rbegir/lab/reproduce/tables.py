"""From runs to tables: each row beside the paper's figures, and the orderings that the paper claims.

A table is one JSON object:

    table, title, paper         what it is, and where the paper has it
    command                     the command that makes it again
    columns                     [[key, heading], …] in order
    rows                        [{model, command, …}]; a figure is {mean, std, seeds} or a plain value
    orderings                   [{claim, paper, difference, error, verdict}]; error is half a 95 % interval
    parts                       names of the parts that rows and orderings belong to (`part`), if there are
                                several

which `report` turns into Markdown and `rbegir reproduce --json` prints.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any, NamedTuple

from rbegir.encode.clsm.presets import FLOAT
from rbegir.lab.figures import Json, Stat, stat
from rbegir.lab.reproduce import paper
from rbegir.lab.reproduce.dataset import FOLDER, HEADLINE
from rbegir.lab.reproduce.results import Results, short, shown
from rbegir.lab.reproduce.rows import (
    FULL,
    OTHER_RECIPES,
    PAPER,
    PLAIN,
    SMALL,
    TABLES,
    Scale,
    bytes_of,
    like,
    query_bits,
    rows,
    under,
)
from rbegir.lab.reproduce.testbed import GRADES
from rbegir.search.missrate import certificate

GIB = 1 << 30
ALL = "all"  # queries of every slice of the labels
BASELINES = {"bm25": "BM25", "triletter": "tri-letter cosine, untrained"}
RECALLS = ("recall@1", "recall@10", "recall@100", "recall@1000")
ACCURACY = ("roc_auc", "recall@1", "recall@10", "recall@100")
HEADINGS = {
    "model": "model", "n": "n", "q": "query bits", "k": "keyword bits", "epochs": "epochs", "seeds": "seeds",
    "log_loss": "log loss", "roc_auc": "ROC AUC", "lift": "AUC lift %", "labels": "label AUC",
    "recall@1": "R@1", "recall@10": "R@10", "recall@100": "R@100", "recall@1000": "R@1000",
    "interval": "R@10, 95 % interval of one seed", "bytes": "bytes per title", "query": "query",
    "paper_loss": "paper: log loss", "paper_auc": "paper: AUC", "paper_lift": "paper: lift %",
    "variant": "ST variant", "tanh": "annealing tanh", "plain": "plain straight-through",
    "variant_r10": "R@10: ST variant", "tanh_r10": "R@10: annealing tanh", "plain_r10": "R@10: plain",
    "paper_variant": "paper: ST variant", "paper_tanh": "paper: annealing tanh",
    "off": "no weights", "on": "weights", "off_r10": "R@10: no weights", "on_r10": "R@10: weights",
    "paper_off": "paper: no weights", "paper_on": "paper: weights",
    "judged": "% judged", **{grade: f"% {grade}" for grade in GRADES}, "found": "good titles per query",
    **{f"{grade}_count": grade for grade in GRADES},
    "ours": "ours", "paper": "paper", "effect": "what",
}  # fmt: skip


class TableMaker:
    """Supplies the tables with figures of rows, commands, and the paper's orderings."""

    def __init__(self, results: Results, scale: Scale, options: str) -> None:
        """`options`: those of the command that made the results."""
        self.results, self.scale, self.options = results, scale, options
        self.rows = {row.name: row for row in rows(scale)}

    def row(self, name: str, columns: str, **given: Any) -> Json:
        """A trained row: its figures in these columns, as far as they were made, and what is given."""
        runs, shape = self.results.runs(name), self.rows[name].shape
        floats = shape.keyword_planes == FLOAT
        known: dict[str, Any] = {
            "model": shown(name),
            "n": shape.n,
            # codes are asked with a float query rounded to 8 bits
            "q": str(shape.query_planes) if shape.query_planes != FLOAT else "32" if floats else "8",
            "k": "32" if floats else str(shape.keyword_planes),
            "bytes": bytes_of(shape),
            "query": query_bits(shape),
            "epochs": len(runs[0]["history"]),
            "seeds": len(runs),
            "labels": self.label(name),
            "interval": self.results.interval(name, "recall@10"),
        }
        for figure in ("log_loss", *ACCURACY):
            if found := self.results.stat(name, figure):
                known[figure] = found._asdict()
        made = {key: known[key] for key in columns.split() if key in known}
        return {**made, **given, "command": self.command(name)}

    def pair(self, row: str, key: str) -> Json:
        """ROC AUC and recall@10 of a row under `key` and `key`_r10."""
        found = {key: self.results.stat(row, "roc_auc"), f"{key}_r10": self.results.stat(row, "recall@10")}
        return {name: value and value._asdict() for name, value in found.items()}

    def like(self, row: str) -> str:
        """The row that the rows of tables 3, 4 and 7 are to be compared with."""
        name = like(row, self.scale)
        return "m_2" if name == "rbe_1" else name  # the same model

    def label(self, row: str) -> Json | None:
        """ROC AUC on the judged pairs, of the headline slice if there is one."""
        for part in (HEADLINE, "all"):
            if found := self.results.stat(row, f"labels/{part}/roc_auc"):
                return found._asdict()
        return None

    def command(self, row: str) -> str:
        return f'rbegir reproduce --rows "{row}"{self.options}'

    def order(self, claim: str, better: str, worse: str, printed: float) -> list[Json]:
        """One ordering by ROC AUC, if both rows were made; `printed` is the paper's difference."""
        found = self.results.compare(better, worse)
        return [] if found is None else [{"claim": claim, "paper": printed, **found}]

    def above(
        self, printed: dict[str, paper.Accuracy], *steps: tuple[str, str], recipe: str = ""
    ) -> list[Json]:
        """The orderings (better, worse) of models that the paper's table has, trained with a recipe."""
        return [
            order
            for a, b in steps
            for order in self.order(
                f"{short(a)} above {short(b)}",
                under(recipe, a),
                under(recipe, b),
                printed[a].roc_auc - printed[b].roc_auc,
            )
        ]


def accuracy(make: TableMaker) -> Json:
    """Table 1: the models of the paper, trained alike: with our recipe, then with others."""
    made: list[Json] = []
    orderings: list[Json] = []
    steps = ("m_3", "m_2"), ("rbe_star", "m_3"), ("m_5", "rbe_star"), ("m_1", "m_5")
    for recipe in ("", *OTHER_RECIPES):
        for model, printed in paper.ACCURACY.items():
            name = under(recipe, model)
            if not make.results.runs(name):
                continue
            lift = make.results.lift(name, under(recipe, "m_3"), under(recipe, "m_1"))
            by_definition = {"m_1": 100.0, "m_3": 0.0}.get(model)
            row = make.row(
                name, KINDS["1"].columns, part=recipe, **_printed(printed), paper_lift=printed.lift
            )
            row["lift"] = lift and (lift._asdict() if by_definition is None else by_definition)
            made.append(row)
        own = make.above(paper.ACCURACY, *steps, recipe=recipe)
        ends = under(recipe, "m_1"), under(recipe, "m_3")
        own += make.order("m_1 above m_3: the reference gap", *ends, paper.REFERENCE_GAP)
        orderings += [{**order, "part": recipe} for order in own]
    return {"rows": made, "orderings": orderings, "parts": ["", *OTHER_RECIPES]}


def _printed(accuracy: paper.Accuracy) -> Json:
    return {"paper_loss": accuracy.log_loss, "paper_auc": accuracy.roc_auc}


def bits(make: TableMaker) -> Json:
    """Table 2: more planes."""
    made = [
        make.row(name, KINDS["2"].columns, **_printed(printed))
        for name, printed in paper.BITS.items()
        if make.results.runs(name)
    ]
    steps = (("rbe_2", "m_2"), ("rbe_star", "rbe_2"), ("rbe_3", "rbe_star"))
    return {"rows": made, "orderings": make.above(paper.BITS, *steps)}


def binarisation(make: TableMaker) -> Json:
    """Table 3: three estimators of the gradient of ρ."""
    made, orderings = [], []
    for name, (variant, tanh) in paper.BINARISATION.items():
        label = shown(name)
        sources = {"variant": make.like(name)}
        sources |= {"tanh": f"{name}, annealing tanh", "plain": f"{name}, straight-through"}
        row: Json = {"model": label, "paper_variant": variant, "paper_tanh": tanh, "sources": sources}
        for key, source in sources.items():
            row |= make.pair(source, key)
        made.append(row | {"command": make.command(sources["tanh"])})
        order = [("the variant", sources["variant"]), ("annealing tanh", sources["tanh"])]
        (high, better), (low, worse) = order if variant > tanh else order[::-1]
        orderings += make.order(f"{label}: {high} above {low}", better, worse, abs(variant - tanh))
    return {"rows": made, "orderings": orderings}


def weights(make: TableMaker) -> Json:
    """Table 4: planes worth (½)^t, or all the same."""
    made, orderings = [], []
    for name, (without, weighted) in paper.RESIDUAL_WEIGHTS.items():
        off, on = f"{name}, no weights", make.like(name)
        row: Json = {"model": shown(name), "command": make.command(off)}
        row |= make.pair(off, "off") | make.pair(on, "on")
        if lift := make.results.gain(on, off):
            row["lift"] = lift._asdict()
        printed = 100 * (weighted - without) / paper.REFERENCE_GAP
        made.append(row | {"paper_off": without, "paper_on": weighted, "paper_lift": printed})
        orderings += make.order(f"{shown(name)}: weights help", on, off, weighted - without)
    return {"rows": made, "orderings": orderings}


def top_five(make: TableMaker) -> Json:
    """Table 5: the grades of the first five hits, for the queries of all slices and for those of one."""
    studies = {row: make.results.study(row, "top_five") for row in ("rbe_star", "m_1")}
    queries = {ALL: [study["queries"] for many in studies.values() for study in many]}
    queries[HEADLINE] = [
        study["headline"]["queries"] for many in studies.values() for study in many if "headline" in study
    ]

    def counts_of(part: str, row: str, titles: str = "") -> dict[str, float]:
        """The mean over seeds of a model for some titles, or of a baseline."""
        of_models = (study if part == ALL else study.get("headline") for study in studies.get(row, ()))
        many = [study["found"][titles] for study in of_models if study]
        key = "top_five" if part == ALL else "headline_top_five"
        many += [run[key] for run in make.results.runs(row) if key in run]
        return {grade: fmean(counts[grade] for counts in many) for grade in many[0]} if many else {}

    made = []
    for part, graded in queries.items():
        ours = counts_of(part, "rbe_star", "all titles")
        systems = [
            ("rbe*, all titles, 16 bytes each", ours, "rbe_star"),
            (
                "float model, as many titles as fit the same memory",
                counts_of(part, "m_1", "the same memory"),
                "m_1",
            ),
            *((f"{label}, the same titles", counts_of(part, row), row) for row, label in BASELINES.items()),
            ("float model, all titles (16 times the memory)", counts_of(part, "m_1", "all titles"), "m_1"),
        ]
        mine = _shares(ours)
        for label, counts, source in systems:
            if shares := _shares(counts):
                changes = {
                    f"{grade}_change": 100 * (mine[grade] / shares[grade] - 1)
                    for grade in GRADES
                    if mine and counts is not ours and shares[grade]
                }
                found: Json = {f"{grade}_count": counts[grade] for grade in GRADES}
                found["found"] = counts["good"] / graded[0] if graded else None
                row = {"model": label, "part": part, **shares, **changes, **found}
                made.append(row | {"command": make.command(source)})
    return {
        "rows": made,
        "parts": list(queries),
        "printed": paper.TOP_FIVE,
        "queries": {part: graded[0] for part, graded in queries.items() if graded},
    }


def system(make: TableMaker) -> Json:
    """Table 6: what the published selection costs and misses."""
    lines: list[tuple[str, str, str | None]] = []  # what, ours, the paper's
    for found in make.results.study("rbe_star", "selection")[:1]:
        what = f"recall@{found['top']} of the published selection, {found['keywords']:,} titles"
        lines.append((what, f"{found['recall']:.4f} (its certificate: {found['expected']:.4f})", None))
    what = "expected recall@1000 of the published selection, 1.2 billion keywords"
    expected = certificate(1_200_000_000, 1000, 256).expected_recall
    lines.append((what, f"{expected:.6f}", None))
    for found in make.results.study("rbe_star", "latency")[:1]:
        two, three = found["ms"]["2"], found["ms"]["3"]
        what = f"one exact search of {found['keywords']:,} titles, CPU, 2 and 3 query planes"
        ours = f"{two:.2f} ms, {three:.2f} ms ({100 * (three / two - 1):+.1f} %)"
        lines.append((what, ours, None))
    for name in ("rbe_star", "m_1"):
        size = 1e9 * bytes_of(make.rows[name].shape) / GIB
        what = f"memory of a billion keywords, {shown(name)}"
        lines.append((what, f"{size:.2f} GB", f"{paper.MEMORY_GB[name]:g} GB"))
    exact = certificate(10**9, 1000, 256)
    for misses, printed in enumerate(paper.MISS_AT_MOST):
        what = f"P(at most {misses} of 1000 missed), 10⁹ keywords, 256 per thread"
        lines.append((what, f"{exact.at_most(misses):.5f}", f"{printed:.5f}"))
    command = f"rbegir reproduce 6{make.options}"
    return {
        "rows": [
            {"model": what, "ours": ours, "paper": theirs, "command": command} for what, ours, theirs in lines
        ]
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
    made = [
        make.row(source, KINDS["7"].columns, effect=effect, model=label)
        for effect, options in groups.items()
        for label, source in options
        if make.results.runs(source)
    ]
    return {"rows": made}


def equal_bytes(make: TableMaker) -> Json:
    """Every method at its size."""
    made: list[Json] = [
        make.row(name, KINDS["bytes"].columns)
        for name, row in make.rows.items()
        if "bytes" in row.tables.split() and make.results.runs(name)
    ]
    made += _quantised(make)
    made += [
        {
            "model": f"{label} ({run['queries']:,} of the queries)",
            "bytes": None,
            "query": "text",
            **{at: Stat.of([run[at]])._asdict() for at in RECALLS if at in run},
            "command": make.command(row),
        }
        for row, label in BASELINES.items()
        for run in make.results.runs(row)
    ]
    recall = {id(row): row["recall@10"]["mean"] for row in made if row.get("recall@10")}
    made.sort(key=lambda row: (row["bytes"] is None, row["bytes"], -recall.get(id(row), 0.0)))
    return {"rows": made}


def _quantised(make: TableMaker) -> list[Json]:
    """The quantisers of the float model's vectors, over the seeds of that model."""
    found: dict[tuple[str, str], list[Json]] = {}  # (method, precision of the query) → figures of the seeds
    for run in make.results.runs("m_1"):
        for figures in run["studies"].get("quantisers", []):
            found.setdefault((figures["name"], figures["query"]), []).append(figures)
    made = []
    for (name, _), many in found.items():
        first = many[0]
        among = f", {first['queries']:,} of the queries" if "queries" in first else ""
        row: Json = {"model": f"m_1, {name}{among}", "bytes": first["bytes"], "query": first["query"]}
        for figure in ACCURACY:
            value = stat(f[figure]["value"] for f in many if figure in f)
            row |= {figure: value._asdict()} if value else {}
        row["interval"] = first["recall@10"]["interval"]
        made.append(row | {"command": make.command("m_1")})
    return made


def _shares(counts: dict[str, float]) -> dict[str, float]:
    """Percent of the hits that are judged, and of those the percent of each grade."""
    judged = sum(counts.get(grade, 0.0) for grade in GRADES)
    if not judged:
        return {}
    whole = judged + counts["unjudged"]
    return {"judged": 100 * judged / whole, **{grade: 100 * counts[grade] / judged for grade in GRADES}}


class _Kind(NamedTuple):
    make: Callable[[TableMaker], Json]
    title: str
    paper: str  # where the paper has it
    columns: str  # their keys, in order
    model: str = "model"  # heading of the column of that key
    lift: str = HEADINGS["lift"]


KINDS = {
    "1": _Kind(accuracy, "Model configurations and accuracy", "tables 1 and 2",
        "model n q k epochs log_loss roc_auc lift recall@10 labels seeds paper_loss paper_auc paper_lift"),
    "2": _Kind(bits, "Bits per dimension", "table 4",
        "model q k log_loss roc_auc recall@10 paper_loss paper_auc"),
    "3": _Kind(binarisation,
        "Binarisation: the straight-through variant, annealing tanh, plain straight-through", "table 5",
        "model variant tanh plain variant_r10 tanh_r10 plain_r10 paper_variant paper_tanh"),
    "4": _Kind(weights, "Residual weights off and on (ROC AUC)", "table 6",
        "model off on lift off_r10 on_r10 paper_off paper_on paper_lift",
        lift="AUC lift, % of table 1's gap"),
    "5": _Kind(top_five,
        "Quality of the top five: percent of those judged, and in brackets what rbe* changes", "table 3",
        f"model judged {' '.join(GRADES)} {' '.join(f'{grade}_count' for grade in GRADES)} found",
        model="system"),
    "6": _Kind(system, "Selection, latency, memory, and the probability of a miss",
        "section 6.3 and the appendix", "model ours paper", model="what"),
    "7": _Kind(effects, "Effects beyond the paper, on rbe*", "no table",
        "effect model roc_auc recall@1 recall@10 recall@100 labels", model="setting"),
    "bytes": _Kind(equal_bytes, "The best 16 bytes: every method at its size", "no table",
        f"model bytes query roc_auc {' '.join(RECALLS)} interval labels", model="method"),
}  # fmt: skip


def tables_of(result: Json, keys: Sequence[str] = TABLES) -> list[Json]:
    """The tables of a result, one object each."""
    other = replace(FULL, short=None)  # all rows are trained equally long
    scale = {scale.name: scale for scale in (FULL, SMALL)}.get(result["scale"], other)
    options = " --data DIR" if result["dataset"]["name"] == FOLDER else ""
    options += " --small" if scale is SMALL and options else ""
    maker = TableMaker(Results(result["runs"]), scale, options)
    made = []
    for key in keys:
        kind = KINDS[key]
        headings = {**HEADINGS, "model": kind.model, "lift": kind.lift}
        about = {"table": key, "command": f"rbegir reproduce {key}{options}"}
        about |= {"title": kind.title, "paper": kind.paper}
        columns = [[name, headings[name]] for name in kind.columns.split()]
        made.append({**about, "columns": columns, "orderings": [], **kind.make(maker)})
    return made
