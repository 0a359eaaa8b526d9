"""`rbegir eval`: how good a model is, on pairs, in a corpus, on human labels."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rbegir.cli.options import AsJson, KeywordColumn, QueryColumn, Strict, TextColumn, option, print_json

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from rbegir.evaluate.evaluator import Stage

app = typer.Typer()

BASELINE = "tri-letter cosine"


@app.command("eval")
def evaluate(
    model: Annotated[Path, typer.Argument(help="Directory of a trained model.")],
    pairs: Annotated[Path | None, option("Pairs (query, keyword): log loss and ROC AUC.")] = None,
    corpus: Annotated[Path | None, option("Texts to search for the keywords of the pairs: recall.")] = None,
    labels: Annotated[Path | None, option("Judged pairs (query, keyword, label): ROC AUC, nDCG.")] = None,
    query_column: QueryColumn = "query",
    keyword_column: KeywordColumn = "keyword",
    label_column: Annotated[str, option("Column of the labels.")] = "label",
    text_column: TextColumn = "text",
    k: Annotated[
        list[int] | None,
        option("Cutoff of recall, repeat for more; 1, 10 and 100 if not given.", "--k", "-k"),
    ] = None,
    negatives: Annotated[int, option("Random negatives per pair.")] = 10,
    gamma: Annotated[float | None, option("γ of the log loss; fitted to the pairs if not given.")] = None,
    device: Annotated[str, option("Where texts are embedded: cpu, cuda, cuda:1 …")] = "cpu",
    bootstrap: Annotated[int, option("Replicates for the intervals; 0 for none.")] = 500,
    seed: Annotated[int, option("Seed of the negatives and of the intervals.")] = 0,
    baseline: Annotated[bool, option("Put plain tri-letter cosine beside it.", "--baseline")] = False,
    strict: Strict = False,
    as_json: AsJson = False,
) -> None:
    """Evaluate a model: log loss, ROC AUC, recall in a corpus, human labels, each with its interval.

    Files are Parquet, CSV, TSV or JSONL (texts also one per line), gz allowed.
    """
    import sys

    from rich.console import Console
    from rich.progress import Progress

    from rbegir.encode.clsm.model import Model
    from rbegir.evaluate import evaluator
    from rbegir.evaluate.evaluator import report_table
    from rbegir.evaluate.retrieval import CUTOFFS
    from rbegir.evaluate.scorers import ModelScorer, Scorer, TriletterCosine
    from rbegir.read.pairs import read_labels, read_pairs, read_texts

    scorers: dict[str, Scorer] = {str(model): ModelScorer(Model.load(model, device))}
    if baseline:
        scorers[BASELINE] = TriletterCosine()
    pair_stream = label_stream = text_stream = None
    if pairs:
        pair_stream = read_pairs(
            pairs, query_column=query_column, keyword_column=keyword_column, weight_column=None, strict=strict
        )
    if corpus:
        text_stream = read_texts(corpus, text_column=text_column, strict=strict)
    if labels:
        label_stream = read_labels(
            labels,
            query_column=query_column,
            keyword_column=keyword_column,
            label_column=label_column,
            strict=strict,
        )
    pair_table = pair_stream and pair_stream.read_all()
    label_table = label_stream and label_stream.read_all()
    texts = text_stream and evaluator.corpus_texts(text_stream)
    for stream in (pair_stream, text_stream, label_stream):
        if stream is not None and stream.skipped:
            print(f"{stream.path}: {stream.skipped}", file=sys.stderr)

    reports = {}
    errors = Console(stderr=True)
    with Progress(console=errors, transient=True, disable=not errors.is_terminal) as bars:
        for name, scorer in scorers.items():
            reports[name] = evaluator.evaluate(
                scorer,
                pair_table,
                corpus=texts,
                labels=label_table,
                cutoffs=k or CUTOFFS,
                negatives=negatives,
                gamma=gamma,
                bootstrap=bootstrap,
                seed=seed,
                progress=_stages(bars, name),
            )
    report = reports[str(model)]
    if report.missing:
        print(
            f"{report.missing:,} pairs have a keyword that is not in {corpus}: left out of recall",
            file=sys.stderr,
        )
    if as_json:
        beside = {"baseline": reports[BASELINE].to_dict()} if baseline else {}
        print_json(report.to_dict() | beside)
    else:
        Console().print(report_table(reports))


def _stages(bars: Progress, name: str) -> Stage:
    """One bar for each stage of an evaluation."""
    tasks: dict[str, TaskID] = {}

    def show(stage: str, done: float) -> None:
        if stage not in tasks:
            tasks[stage] = bars.add_task(f"{name}: {stage}", total=1.0)
        bars.update(tasks[stage], completed=done)

    return show
