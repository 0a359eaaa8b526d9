"""From runs to tables: each row beside the paper's figures, and the orderings that the paper claims.

A table is one JSON object:

    table, title, note          what it is
    columns                     [[key, heading], …] in order
    rows                        [{model, command, …}]; a figure is {mean, std, seeds} or a plain value
    orderings                   [{claim, paper, difference, error, verdict}]

which `report` turns into Markdown and `rbegir reproduce --json` prints.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rbegir.model.presets import FLOAT
from rbegir.reproduce import paper
from rbegir.reproduce.dataset import HEADLINE
from rbegir.reproduce.results import Results, Stat, stat
from rbegir.reproduce.rows import Row, bytes_of, query_bits
from rbegir.search.missrate import certificate

Json = dict[str, Any]
Columns = list[list[str]]
GIB = 1 << 30
SHOWN = {
    "m_1": "m_1: float CLSM",
    "m_2": "m_2: 64-d, one bit",
    "m_3": "m_3: 128-d, one bit",
    "rbe_star": "rbe*",
    "m_5": "m_5: float query",
}
RECALL: Columns = [["recall@1", "R@1"], ["recall@10", "R@10"], ["recall@100", "R@100"]]


class Tables:
    """All tables of one set of runs."""

    def __init__(self, results: Results, rows: Sequence[Row], options: str) -> None:
        """`options`: those of the command that made the results."""
        self.results, self._rows = results, {row.name: row for row in rows}
        self._options = options

    def make(self, key: str) -> Json:
        makers: dict[str, Callable[[], Json]] = {
            "1": self.accuracy,
            "2": self.bits,
            "3": self.binarisation,
            "4": self.weights,
            "5": self.top_five,
            "6": self.system,
            "7": self.effects,
            "bytes": self.equal_bytes,
        }
        return {"table": key, **makers[key]()}

    # helpers

    def _figures(self, row: str, *names: str) -> Json:
        found = {name: self.results.stat(row, name) for name in names}
        return {name: value.to_dict() for name, value in found.items() if value is not None}

    def _command(self, row: str) -> str:
        return f'rbegir reproduce --rows "{row}"{self._options}'

    def _order(
        self, claim: str, better: str, worse: str, printed: float, figure: str = "roc_auc"
    ) -> list[Json]:
        """One ordering, if both rows were made: `printed` is the paper's difference (+: it claims it)."""
        found = self.results.compare(better, worse, figure)
        return [] if found is None else [{"claim": claim, "paper": printed, **found}]

    @property
    def _gap(self) -> float | None:
        high, low = (self.results.stat(name, "roc_auc") for name in ("m_1", "m_3"))
        return None if high is None or low is None else high.mean - low.mean

    # the tables

    def accuracy(self) -> Json:
        rows = []
        for name, printed in paper.ACCURACY.items():
            shape = self._rows[name].shape
            rows.append(
                {
                    "model": SHOWN[name],
                    "n": shape.n,
                    "q": _bits(shape.query_planes),
                    "k": _bits(shape.keyword_planes),
                    **self._figures(name, "log_loss", "roc_auc", "recall@10"),
                    "labels": _label(self.results, name),
                    "lift": self.results.lift(name),
                    "paper_loss": printed.log_loss,
                    "paper_auc": printed.roc_auc,
                    "paper_lift": printed.lift,
                    "command": self._command(name),
                }
            )
        gap = paper.REFERENCE_GAP
        return {
            "title": "Model configurations and accuracy",
            "paper": "tables 1 and 2",
            "columns": [
                ["model", "model"], ["n", "n"], ["q", "query bits"], ["k", "keyword bits"],
                ["log_loss", "log loss"], ["roc_auc", "ROC AUC"], ["lift", "AUC lift %"],
                ["recall@10", "R@10"], ["labels", "label AUC"],
                ["paper_loss", "paper: log loss"], ["paper_auc", "paper: AUC"],
                ["paper_lift", "paper: lift %"],
            ],
            "rows": rows,
            "orderings": [
                *self._order("m_3 above m_2", "m_3", "m_2", 0.7846 - 0.7719),
                *self._order("rbe* above m_3", "rbe_star", "m_3", 0.8005 - 0.7846),
                *self._order("m_5 above rbe*", "m_5", "rbe_star", 0.8011 - 0.8005),
                *self._order("m_1 above m_5", "m_1", "m_5", 0.8044 - 0.8011),
                *self._order("m_1 above m_3: the reference gap", "m_1", "m_3", gap),
            ],
        }  # fmt: skip

    def bits(self) -> Json:
        rows = []
        for name, printed in paper.BITS.items():
            shape = self._rows[name].shape
            rows.append(
                {
                    "model": SHOWN.get(name, name),
                    "q": _bits(shape.query_planes),
                    "k": _bits(shape.keyword_planes),
                    **self._figures(name, "log_loss", "roc_auc", "recall@10"),
                    "paper_loss": printed.log_loss,
                    "paper_auc": printed.roc_auc,
                    "command": self._command(name),
                }
            )
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
                for order in self._order(
                    f"{SHOWN.get(a, a)} above {b.replace('rbe_star', 'rbe*')}",
                    a, b, paper.BITS[a].roc_auc - paper.BITS[b].roc_auc,
                )
            ],
        }  # fmt: skip

    def binarisation(self) -> Json:
        rows, orderings = [], []
        for name, (variant, tanh) in paper.BINARISATION.items():
            ours = "m_2" if name == "rbe_1" else name  # the same model
            shown = SHOWN.get(name, name)
            row: Json = {"model": shown, "paper_variant": variant, "paper_tanh": tanh}
            sources = {
                "variant": ours, "tanh": f"{name}, annealing tanh", "plain": f"{name}, straight-through"
            }  # fmt: skip
            for key, source in sources.items():
                found = self._figures(source, "roc_auc", "recall@10")
                row |= {key: found.get("roc_auc"), f"{key}_r10": found.get("recall@10")}
            row["command"] = self._command(sources["tanh"])
            rows.append(row)
            better, worse = (sources["variant"], sources["tanh"])
            word = ("the variant", "annealing tanh")
            if tanh > variant:
                better, worse, word = worse, better, (word[1], word[0])
            orderings += self._order(
                f"{shown}: {word[0]} above {word[1]}", better, worse, abs(variant - tanh)
            )
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

    def weights(self) -> Json:
        rows, orderings = [], []
        for name, (without, weighted, lift) in paper.RESIDUAL_WEIGHTS.items():
            off = f"{name}, no weights"
            stats = [self.results.stat(source, "roc_auc") for source in (off, name)]
            row: Json = {"model": SHOWN.get(name, name), "command": self._command(off)}
            for key, value in zip(("off", "on"), stats, strict=True):
                if value is not None:
                    row[key] = value.to_dict()
            for key, source in (("off_r10", off), ("on_r10", name)):
                row[key] = self._figures(source, "recall@10").get("recall@10")
            if stats[0] and stats[1] and self._gap:
                row["lift"] = 100 * (stats[1].mean - stats[0].mean) / self._gap
            rows.append(row | {"paper_off": without, "paper_on": weighted, "paper_lift": lift})
            orderings += self._order(f"{SHOWN.get(name, name)}: weights help", name, off, weighted - without)
        return {
            "title": "Residual weights off and on (ROC AUC)",
            "paper": "table 6",
            "columns": [
                ["model", "model"], ["off", "no weights"], ["on", "weights"], ["lift", "AUC lift %"],
                ["off_r10", "R@10: no weights"], ["on_r10", "R@10: weights"],
                ["paper_off", "paper: no weights"], ["paper_on", "paper: weights"],
                ["paper_lift", "paper: lift %"],
            ],
            "rows": rows,
            "orderings": orderings,
        }  # fmt: skip

    def top_five(self) -> Json:
        ours = _mean_counts([s["found"]["all titles"] for s in self.results.study("rbe_star", "top_five")])
        cut = [s["found"]["the same memory"] for s in self.results.study("m_1", "top_five")]
        every = [s["found"]["all titles"] for s in self.results.study("m_1", "top_five")]
        lexical = [run["top_five"] for run in self.results.runs("bm25") if "top_five" in run]
        systems = [
            ("rbe*, all titles, 16 bytes each", ours, "rbe_star"),
            ("float model, as many titles as fit the same memory", _mean_counts(cut), "m_1"),
            ("BM25, the same titles", _mean_counts(lexical), "bm25"),
            ("float model, all titles (16 times the memory)", _mean_counts(every), "m_1"),
        ]
        rows = []
        for label, counts, source in systems:
            if counts:
                total = sum(counts.values())
                row: Json = {"model": label, **{g: 100 * c / total for g, c in counts.items()}}
                row |= {
                    f"{grade}_change": 100 * (ours[grade] - counts[grade]) / counts[grade]
                    for grade in counts
                    if ours and counts is not ours and counts[grade]
                }
                rows.append(row | {"command": self._command(source)})
        return {
            "title": "Quality of the top five: shares in percent, and what rbe* changes",
            "paper": "table 3",
            "columns": [
                ["model", "system"],
                *([grade, grade] for grade in ("bad", "fair", "good", "unjudged")),
            ],
            "rows": rows,
            "printed": paper.TOP_FIVE,
            "orderings": [],
        }

    def system(self) -> Json:
        rows: list[Json] = []
        for found in self.results.study("rbe_star", "selection")[:1]:
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
        for found in self.results.study("rbe_star", "latency")[:1]:
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
            size = bytes_of(self._rows[name].shape)
            rows.append(
                {
                    "model": f"memory of a billion keywords, {SHOWN[name]}",
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
            "rows": [row | {"command": f"rbegir reproduce 6{self._options}"} for row in rows],
            "orderings": [],
        }

    def effects(self) -> Json:
        groups = {
            "B and R": [("a pair for each round", "rbe_star"), ("one pair for all rounds", "fixed B and R")],
            "towers": [("shared", "rbe_star"), ("separate", "separate towers")],
            "negatives": [
                ("every other keyword of the batch", "rbe_star"),
                ("100", "100 negatives"), ("10", "10 negatives"), ("1", "1 negative"),
            ],
            "query planes": [
                ("1", "1 query plane"), ("2", "rbe_2"), ("3", "rbe_star"), ("4", "4 query planes"),
                ("6", "6 query planes"), ("8", "8 query planes"), ("float, rounded to 8", "m_5"),
            ],
            "recipe": [
                ("ours", "rbe_star"), ("without the float guide", "no float guide"),
                ("without feature dropout", "no feature dropout"),
                ("without word dropout", "no word dropout"), ("the paper's", "the paper's recipe"),
            ],
        }  # fmt: skip
        rows = [
            {
                "effect": effect,
                "model": label,
                **self._figures(source, "roc_auc", "recall@1", "recall@10", "recall@100"),
                "labels": _label(self.results, source),
                "command": self._command(source),
            }
            for effect, options in groups.items()
            for label, source in options
            if self.results.runs(source)
        ]
        return {
            "title": "Effects beyond the paper, on rbe*",
            "paper": "no table",
            "columns": [["effect", "what"], ["model", "setting"], ["roc_auc", "ROC AUC"], *RECALL,
                        ["labels", "label AUC"]],
            "rows": rows,
            "orderings": [],
        }  # fmt: skip

    def equal_bytes(self) -> Json:
        names = [
            name for name, row in self._rows.items() if "bytes" in row.tables and self.results.runs(name)
        ]
        rows: list[Json] = [
            {
                "model": SHOWN.get(name, name),
                "bytes": bytes_of(self._rows[name].shape),
                "query": query_bits(self._rows[name].shape),
                **self._figures(name, "roc_auc", "recall@1", "recall@10", "recall@100"),
                "interval": self.results.interval(name, "recall@10"),
                "labels": _label(self.results, name),
                "command": self._command(name),
            }
            for name in names
        ]
        rows += self._quantised()
        rows += [
            {
                "model": f"BM25 ({run['queries']:,} of the queries)",
                "bytes": None,
                "query": "words",
                **{f"recall@{k}": stat([run[f"recall@{k}"]]).to_dict() for k in (1, 10, 100)},  # type: ignore[union-attr]
                "command": self._command("bm25"),
            }
            for run in self.results.runs("bm25")
        ]
        rows.sort(key=lambda row: (row["bytes"] is None, row["bytes"], -_mean(row.get("recall@10"))))
        return {
            "title": "The best 16 bytes: every method at its size",
            "paper": "no table",
            "columns": [["model", "method"], ["bytes", "bytes a title"], ["query", "query"],
                        ["roc_auc", "ROC AUC"],
                        *RECALL, ["interval", "R@10, 95 % interval"], ["labels", "label AUC"]],
            "rows": rows,
            "orderings": [],
        }  # fmt: skip

    def _quantised(self) -> list[Json]:
        """The quantisers of the float model's vectors, over the seeds of that model."""
        by_name: dict[str, list[Json]] = {}
        for run in self.results.runs("m_1"):
            for figures in run["studies"].get("quantisers", []):
                by_name.setdefault(figures["name"], []).append(figures)
        rows = []
        for name, many in by_name.items():
            first, among = many[0], ""
            most = max(f["titles"] for q in by_name.values() for f in q)
            if first["titles"] < most:
                among = f", among {first['titles']:,} titles"
            if "queries" in first:
                among = f", {first['queries']:,} of the queries"
            row: Json = {"model": f"m_1, {name}{among}", "bytes": first["bytes"], "query": first["query"]}
            for figure in ("roc_auc", "recall@1", "recall@10", "recall@100"):
                value: Stat | None = stat(f[figure]["value"] for f in many if figure in f)
                row |= {figure: value.to_dict()} if value else {}
            row["interval"] = first["recall@10"]["interval"]
            rows.append(row | {"command": self._command("m_1")})
        return rows


def _bits(planes: int) -> str:
    return "32" if planes == FLOAT else str(planes)


def _label(results: Results, row: str) -> Json | None:
    found = results.stat(row, f"labels/{HEADLINE}/roc_auc") or results.stat(row, "labels/all/roc_auc")
    return None if found is None else found.to_dict()


def _mean(figure: Json | None) -> float:
    return 0.0 if figure is None else float(figure["mean"])


def _mean_counts(many: list[dict[str, int]]) -> dict[str, float]:
    return {grade: sum(c[grade] for c in many) / len(many) for grade in many[0]} if many else {}
