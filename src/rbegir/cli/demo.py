"""`rbegir demo`: the whole system on the shipped sample, in a few minutes on two cores."""

from __future__ import annotations

import shutil
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import typer

import rbegir
from rbegir.cli import options
from rbegir.cli.options import needing, option, print_json, shown
from rbegir.cli.search import hits_as_json
from rbegir.errors import FileError

if TYPE_CHECKING:
    import pyarrow as pa

    from rbegir.evaluate.evaluator import Evaluation
    from rbegir.search.hits import Hits

app = typer.Typer()

PRESET = "rbe_star"
EPOCHS = 5
BATCH, GUIDE_DIMS = 2048, 64  # less than the default, to learn more in a minute on two cores
SPELLING, CODES, RERANKED = "tri-letter cosine", "codes, 16 bytes", "reranked"
SHOWN_QUERIES = 8
SHOWN_HITS = 3
CODE_DEPTH = 1000  # hits by code alone among which the right one is looked up
PARTS = ("model", "index.rbe")


@app.command("demo")
def demo(
    out: Path = option(Path("rbegir-demo"), "Where model/ and index.rbe/ are left."),
    epochs: int | None = option(None, "Passes over the pairs."),
    seed: int = option(0, "Seed of the training."),
    as_json: bool = options.AS_JSON,
) -> None:
    """Train, evaluate, index and search the shipped sample of real aliases and titles, end to end."""
    from rich.console import Console

    with needing("the demo, which trains a model,", "train"):
        from rbegir.training.config import TrainConfig
        from rbegir.training.trainer import run
    from rbegir.evaluate.evaluator import corpus_texts, evaluate_model
    from rbegir.evaluate.scorers import BM25, ModelScorer, RerankScorer, Scorer, TriletterCosine
    from rbegir.read.pairs import read_pairs, read_texts
    from rbegir.read.sample import sample_path

    say = Console(stderr=True).print
    began = time.monotonic()
    _clear(out)
    clicked, valid = (read_pairs(sample_path(part)).read_all() for part in ("train", "valid"))
    titles = corpus_texts(read_texts(sample_path("titles")))

    say(f"[bold]1. Train[/] {PRESET} on aliases of Wikipedia titles (editor-made, a stand-in for clicks),")
    say("   and on the spelling of titles without any")
    trained = run(
        clicked,
        corpus=_without(titles, clicked["keyword"]),
        preset=PRESET,
        settings=TrainConfig(batch_size=BATCH, guide_dims=GUIDE_DIMS),
        out=out / "model",
        progress=True,
        epochs=EPOCHS if epochs is None else epochs,
        seed=seed,
    )
    size = sum(file.stat().st_size for file in (out / "model").rglob("*") if file.is_file()) / 1e6
    say(f"   {out / 'model'} has {size:.0f} MB")
    say("[bold]2. Evaluate[/] on aliases of titles that no trained alias belongs to")
    scorers: dict[str, Scorer] = {
        "BM25": BM25(),
        SPELLING: TriletterCosine(),
        CODES: ModelScorer(trained.model),
        RERANKED: RerankScorer(trained.model),
    }
    reports = {name: evaluate_model(scorer, valid, corpus=titles) for name, scorer in scorers.items()}

    say("[bold]3. Index[/] the titles")
    with rbegir.Index.build(out / "index.rbe", trained.model, read_texts(sample_path("titles"))) as index:
        each = index.info()["bytes_per_keyword"]
        say(f"   {len(index):,} titles, {each} bytes each beside their text, in {out / 'index.rbe'}")
        say("[bold]4. Search[/] all of them")
        shown = everyday(valid)
        queries, meant = shown["query"].to_pylist(), shown["keyword"].to_pylist()
        hits = index.search(queries, k=10, why=True)
        by_code = index.search(queries, k=CODE_DEPTH, rerank=False)
    took = time.monotonic() - began

    figures = {name: report.to_dict() for name, report in reports.items()}
    if as_json:
        beside = {
            "code_recall@10": figures[CODES]["recall@10"],
            "triletter_recall@10": figures[SPELLING]["recall@10"],
            "model_mb": round(size, 1),
        }
        print_json(
            {**figures[RERANKED], **beside, "queries": hits_as_json(queries, hits), "seconds": round(took, 1)}
        )
        return
    _show(reports, queries, meant, hits, by_code)
    say(f'Done in {took:.0f} s. Go on with:  rbegir search {out / "index.rbe"} "your query"')
    say(f"or look at it in a browser:  rbegir serve {out / 'index.rbe'}")


def everyday(valid: pa.Table) -> pa.Table:
    """Queries as people type them, chosen by rule: one for each of the most frequent words of at least four
    letters. Of the aliases of two to four words that have it, the one whose rarest word is the most frequent.
    """
    queries = [query.split() for query in valid["query"].to_pylist()]
    frequency = Counter(word for query in queries for word in set(query))
    rarest = [min(frequency[word] for word in query) for query in queries]
    shown: list[int] = []
    for word in sorted(frequency, key=lambda word: (-frequency[word], word)):
        having = [
            row
            for row, query in enumerate(queries)
            if word in query and 2 <= len(query) <= 4 and row not in shown
        ]
        if len(word) >= 4 and word.isalpha() and having:
            shown.append(max(having, key=lambda row: rarest[row]))
        if len(shown) == SHOWN_QUERIES:
            break
    return valid.take(shown)


def _without(titles: pa.Array, clicked: pa.ChunkedArray) -> pa.Table:
    """The titles that no alias belongs to: those with aliases are learned from them."""
    import pyarrow as pa
    import pyarrow.compute as pc

    known = pc.is_in(titles, value_set=clicked.combine_chunks().cast(titles.type))
    return pa.table({"text": titles.filter(pc.invert(known))})


def _clear(out: Path) -> None:
    """Remove what an earlier demo left, and nothing else."""
    for part in PARTS:
        path = out / part
        try:
            if path.is_dir():
                shutil.rmtree(path)
        except OSError as error:
            raise FileError(f"cannot remove {path} of an earlier demo: {error.strerror}") from None


def _show(
    reports: dict[str, Evaluation], queries: list[str], meant: list[str], hits: Hits, by_code: Hits
) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from rbegir.evaluate.evaluator import report_table

    console = Console()
    console.print(report_table(reports))
    table = Table("query", "meant", "rank", "by code", *(f"hit {i + 1}" for i in range(SHOWN_HITS)))

    def plain(text: object) -> str:
        return escape(shown(text))

    def rank(found: list[str | None], wanted: str) -> str:
        return str(found.index(wanted) + 1) if wanted in found else f"> {len(found)}"

    for number, (query, wanted) in enumerate(zip(queries, meant, strict=True)):
        texts, coded = ([hit.text for hit in found[number]] for found in (hits, by_code))
        best = [f"{plain(hit.text)} [dim]{hit.score:.1f}[/]" for hit in hits[number][:SHOWN_HITS]]
        ranks = rank(texts, wanted), rank(coded, wanted)
        table.add_row(f"[bold]{plain(query)}[/]", plain(wanted), *ranks, *best)
    console.print(table)
    console.print("Why each first hit is there:")
    for query, (first, *_) in zip(queries, hits, strict=True):
        console.print(
            f"  [bold]{plain(query)}[/] → {plain(first.text)}  [dim]{first.why}[/]",
            highlight=False,
            soft_wrap=True,
        )
