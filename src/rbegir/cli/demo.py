"""`rbegir demo`: the whole system on the shipped sample, in a few minutes on two cores."""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rbegir.cli.options import AsJson, bar, needing, option, print_json
from rbegir.errors import FileError

if TYPE_CHECKING:
    import pyarrow as pa

    from rbegir.encode.clsm.model import Model
    from rbegir.evaluate.evaluator import Evaluation
    from rbegir.search.hits import Hits

app = typer.Typer()

PRESET = "rbe_star"
SHOWN_QUERIES = 8
SHOWN_HITS = 3
PARTS = ("model", "index.rbe")


@app.command("demo")
def demo(
    out: Annotated[Path, option("Where model/ and index.rbe/ are left.")] = Path("rbegir-demo"),
    epochs: Annotated[int | None, option("Passes over the pairs.")] = None,
    seed: Annotated[int, option("Seed of the training.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Train, evaluate, index and search the shipped sample of real aliases and titles, end to end."""
    from rich.console import Console

    with needing("the demo, which trains a model,", "train"):
        from rbegir.training.trainer import run
    from rbegir.index.store import Index
    from rbegir.read.pairs import read_pairs, read_texts
    from rbegir.read.sample import sample_path

    say = Console(stderr=True).print
    began = time.monotonic()
    _clear(out)
    valid = read_pairs(sample_path("valid")).read_all()

    say(f"[bold]1. Train[/] {PRESET} on aliases of Wikipedia titles (editor-made, a stand-in for clicks)")
    trained = run(
        sample_path("train"),
        preset=PRESET,
        valid=sample_path("valid"),
        out=out / "model",
        progress=True,
        epochs=epochs,
        seed=seed,
    )
    say("[bold]2. Evaluate[/] on titles that training never saw")
    reports = _evaluate(trained.model, valid)

    say("[bold]3. Index[/] the titles")
    with Index.build(out / "index.rbe", trained.model, read_texts(sample_path("titles"))) as index:
        size = index.info()["bytes_per_keyword"]
        say(f"   {len(index):,} titles, {size} bytes each, in {out / 'index.rbe'}")
        say("[bold]4. Search[/] all of them")
        shown = valid.take(list(range(0, valid.num_rows, valid.num_rows // SHOWN_QUERIES))[:SHOWN_QUERIES])
        queries, meant = shown["query"].to_pylist(), shown["keyword"].to_pylist()
        hits = index.search(queries, k=10)
    took = time.monotonic() - began

    best = reports[PRESET]
    if as_json:
        answers = [
            {"query": query, "hits": [{"id": h.id, "score": h.score, "text": h.text} for h in found]}
            for query, found in zip(queries, hits, strict=True)
        ]
        print_json({**best.to_dict(), "queries": answers, "seconds": round(took, 1)})
        return
    _show(reports, queries, meant, hits)
    say("Spelling alone finds much in so small a sample; docs/reproduction.md has the methods on all titles.")
    say(f'Done in {took:.0f} s. Go on with:  rbegir search {out / "index.rbe"} "your query"')
    say(f"or look at it in a browser:  rbegir serve {out / 'index.rbe'}")


def _clear(out: Path) -> None:
    """Remove what an earlier demo left, and nothing else."""
    for part in PARTS:
        path = out / part
        try:
            if path.is_dir():
                shutil.rmtree(path)
        except OSError as error:
            raise FileError(f"cannot remove {path} of an earlier demo: {error.strerror}") from None


def _evaluate(model: Model, valid: pa.Table) -> dict[str, Evaluation]:
    """The trained model beside plain tri-letter cosine and itself before training, on one protocol."""
    import torch

    from rbegir.encode.clsm import checkpoint
    from rbegir.encode.clsm.model import Model
    from rbegir.encode.clsm.twotower import TwoTower
    from rbegir.evaluate.evaluator import corpus_texts, evaluate
    from rbegir.evaluate.scorers import ModelScorer, Scorer, TriletterCosine
    from rbegir.read.pairs import read_texts
    from rbegir.read.sample import sample_path

    corpus = corpus_texts(read_texts(sample_path("titles")))
    with torch.random.fork_rng(devices=[]), tempfile.TemporaryDirectory() as temporary:
        torch.manual_seed(0)
        tensors = {name: value.numpy() for name, value in TwoTower(model.config).state_dict().items()}
        checkpoint.write(temporary, model.config, tensors, {})
        scorers: dict[str, Scorer] = {
            "tri-letter cosine": TriletterCosine(),
            f"{PRESET}, untrained": ModelScorer(Model.load(temporary)),
            PRESET: ModelScorer(model),
        }
        reports: dict[str, Evaluation] = {}
        with bar("evaluating") as show:
            for name, scorer in scorers.items():
                show(len(reports) / len(scorers), name)
                reports[name] = evaluate(scorer, valid, corpus=corpus)
    return reports


def _show(reports: dict[str, Evaluation], queries: list[str], meant: list[str], hits: Hits) -> None:
    from rich.console import Console
    from rich.table import Table

    from rbegir.evaluate.evaluator import report_table

    console = Console()
    console.print(report_table(reports))
    table = Table("query", "meant", "rank", *(f"hit {i + 1}" for i in range(SHOWN_HITS)))
    for query, wanted, found in zip(queries, meant, hits, strict=True):
        texts = [hit.text for hit in found]
        rank = str(texts.index(wanted) + 1) if wanted in texts else f"> {len(texts)}"
        best = [f"{hit.text} [dim]{hit.score:.2f}[/]" for hit in found[:SHOWN_HITS]]
        table.add_row(f"[bold]{query}[/]", wanted, rank, *best)
    console.print(table)
