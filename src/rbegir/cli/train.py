"""`rbegir train`, `upgrade` and `eval`: train a model, or one that reads stored codes, and measure it."""

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import typer

import rbegir
from rbegir.cli import options
from rbegir.cli.options import needing, option, print_json, print_table, some, take_texts
from rbegir.errors import InputError

app = typer.Typer()

BASELINE = "tri-letter cosine"


def of_recipe(help_text: str, *names: str) -> Any:
    """An option that replaces a setting of the recipe."""
    return option(None, help_text, *names, show_default="set by the recipe")


@app.command("train")
def train(
    out: Path = option(..., "Directory to write the model to."),
    pairs: Path | None = typer.Argument(
        None, help="Pairs (query, keyword): Parquet, CSV, TSV or JSONL; may be absent with --corpus."
    ),
    corpus: Path | None = option(
        None, "Texts that will be searched. Training also learns from them if pairs are few or absent."
    ),
    teacher: Path | None = option(
        None, "A sentence-transformers model to learn meaning from, needed for training only."
    ),
    preset: str = option("rbe_star", "m_1, m_2, m_3, m_5, rbe_1, rbe_2, rbe_star or rbe_3."),
    share_towers: bool | None = of_recipe(
        "One tower for both sides, or one per side, for queries that are unlike keywords.",
        "--share-towers/--separate-towers",
    ),
    estimator: str | None = option(
        None,
        "Gradient of the binarisation: straight_through, straight_through_variant, "
        "annealing_tanh or stochastic.",
        show_default="straight_through_variant",
    ),
    recipe: str = option("default", "Settings to start from: default or paper."),
    valid: Path | None = options.VALID,
    no_valid: bool = option(False, "Train on all pairs, without validation.", "--no-valid"),
    epochs: int | None = options.EPOCHS,
    batch_size: int | None = options.BATCH_SIZE,
    lr: float | None = of_recipe("Learning rate."),
    negatives: str | None = of_recipe("in_batch, or a number of negatives per pair."),
    gamma: str | None = of_recipe("γ of the loss: learned, or a number."),
    word_dropout: float | None = of_recipe("Share of words left out in training."),
    gram_dropout: float | None = of_recipe("Share of a word's grams left out in training."),
    feature_dropout: float | None = of_recipe("Share of features left out in training."),
    rerank: bool | None = of_recipe("Fit a reranker on the held-out pairs.", "--rerank/--no-rerank"),
    patience: int | None = option(None, "Stop after this many epochs without a better AUC."),
    seed: int = options.SEED,
    device: str = options.TORCH_DEVICE,
    precision: str = option("auto", "auto, float32 or bfloat16."),
    resume: bool = options.RESUME,
    strict: bool = options.STRICT,
    query_column: str = options.QUERY_COLUMN,
    keyword_column: str = options.KEYWORD_COLUMN,
    weight_column: str = option("weight", "Column of the weights, used if it is there."),
    text_column: str = options.TEXT_COLUMN,
    as_json: bool = options.AS_JSON,
) -> None:
    """Train a model on clicked pairs; under torchrun, on several GPUs at once."""
    from rbegir.encode.clsm.presets import Estimator
    from rbegir.encode.clsm.presets import preset as named_preset

    if valid is not None and no_valid:
        raise InputError("--valid and --no-valid contradict each other", hint="leave one of them out")
    shape = named_preset(preset)
    if estimator is not None:
        shape = replace(shape, estimator=cast(Estimator, estimator))
    _need_torch()
    from rbegir.training.config import recipe as named_recipe
    from rbegir.training.trainer import run

    dropouts = ("word_dropout", "gram_dropout", "feature_dropout")
    plain = ("epochs", "batch_size", "lr", "rerank", "share_towers", "patience", "precision", "seed")
    settings = named_recipe(
        recipe,
        negatives=_number_or("in_batch", negatives, int),
        gamma=_number_or("learned", gamma, float),
        **some(locals(), *plain, *dropouts),
    )
    columns = some(locals(), "query_column", "keyword_column", "weight_column", "text_column")
    result = run(
        pairs,
        config=replace(shape, share_towers=settings.share_towers),
        valid=False if no_valid else valid,
        settings=settings,
        progress=True,
        **some(locals(), "corpus", "teacher", "out", "device", "resume", "strict"),
        **columns,
    )
    if int(os.environ.get("RANK", "0")) > 0:
        return
    if as_json:
        print_json({"model": str(out), "preset": preset, **result.to_dict()})
    else:
        print(f"wrote {out}", file=sys.stderr)


@app.command("upgrade")
def upgrade(
    old: Path = typer.Argument(..., help="The model that made the stored codes, or an index of it."),
    pairs: Path = options.PAIRS,
    out: Path = option(..., "Directory to write the new model to."),
    keywords: str = option(
        "new",
        "new: train both sides, so that queries search old and new codes; keep: train the query side.",
    ),
    adopt: bool = option(
        False, "Put the new model into the index OLD, whose codes stay as they are.", "--adopt"
    ),
    valid: Path | None = options.VALID,
    corpus: Path | None = option(None, "Texts to measure recall in; all keywords of the pairs if not given."),
    epochs: int | None = options.EPOCHS,
    batch_size: int | None = options.BATCH_SIZE,
    seed: int = options.SEED,
    resume: bool = options.RESUME,
    as_json: bool = options.AS_JSON,
) -> None:
    """Train a model whose queries search the stored codes of an old one, and report its accuracy on them."""
    if adopt and not (old / "MANIFEST").is_file():
        raise InputError(
            "--adopt needs an index as OLD, got a model", hint="name the index, or leave --adopt out"
        )
    if adopt and keywords != "keep":
        raise InputError(
            f"--adopt needs --keywords keep, got {keywords}",
            hint="new codes go to an index of their own: rbegir index migrate OLD NEW --model DIRECTORY",
        )
    _need_torch()
    from rbegir.read.pairs import read_texts
    from rbegir.training.upgrade import adopt as put_into
    from rbegir.training.upgrade import upgrade as train

    texts = None if corpus is None else take_texts(read_texts(corpus))
    result = train(
        old,
        pairs,
        corpus=texts,
        progress=True,
        **some(locals(), "out", "keywords", "valid", "epochs", "batch_size", "seed", "resume"),
    )
    if adopt:
        put_into(old, result.model)
    if as_json:
        print_json({"model": str(out), "adopted": adopt, **result.to_dict()})
        return
    print(f"wrote {out}", file=sys.stderr)
    rows = [{"queries/codes": case, **figures} for case, figures in result.kept.items()]
    print_table(list(rows[0]), rows)


def _need_torch() -> None:
    with needing("training", "train"):
        import torch  # noqa: F401


def _number_or(word: str, text: str | None, kind: type[int] | type[float]) -> str | float | None:
    """The text as a number if it is one; the settings refuse anything else but `word`."""
    if text is None or text == word:
        return text
    try:
        return kind(text)
    except ValueError:
        return text


@app.command("eval")
def evaluate(
    model: Path = typer.Argument(..., help="Directory of a trained model."),
    pairs: Path | None = option(None, "Pairs (query, keyword): log loss and ROC AUC."),
    corpus: Path | None = option(None, "Texts to search for the keywords of the pairs: recall."),
    labels: Path | None = option(None, "Judged pairs (query, keyword, label): ROC AUC, nDCG."),
    query_column: str = options.QUERY_COLUMN,
    keyword_column: str = options.KEYWORD_COLUMN,
    label_column: str = option("label", "Column of the labels."),
    text_column: str = options.TEXT_COLUMN,
    k: list[int] | None = option(
        None, "Cutoff of recall, repeat for more; 1, 10 and 100 if not given.", "--k", "-k"
    ),
    negatives: int = option(10, "Random negatives per pair."),
    gamma: float | None = option(None, "γ of the log loss; fitted to the pairs if not given."),
    device: str = option("cpu", "Where texts are embedded, and float vectors compared: cpu, cuda, cuda:1 …"),
    bootstrap: int = option(500, "Replicates for the intervals; 0 for none.", min=0),
    seed: int = option(0, "Seed of the negatives and of the intervals."),
    rerank: bool | None = options.RERANK,
    baseline: bool = option(False, "Also measure tri-letter cosine and BM25.", "--baseline"),
    strict: bool = options.STRICT,
    as_json: bool = options.AS_JSON,
) -> None:
    """Evaluate a model: log loss, ROC AUC, recall in a corpus, human labels, each with its interval.

    Files are Parquet, CSV, TSV or JSONL (texts also one per line), gz allowed.
    """
    from rich.console import Console

    from rbegir.evaluate.evaluator import corpus_texts, evaluate_model, report_table
    from rbegir.evaluate.metrics import need_scipy
    from rbegir.evaluate.retrieval import CUTOFFS
    from rbegir.evaluate.scorers import BM25, ModelScorer, RerankScorer, Scorer, TriletterCosine
    from rbegir.read.pairs import read_labels, read_pairs, read_texts

    if baseline or (pairs is not None and gamma is None):
        need_scipy()
    loaded = rbegir.Model.load(model, device)
    reranks = loaded.reranker is not None if rerank is None else rerank
    scorers: dict[str, Scorer] = {str(model): RerankScorer(loaded) if reranks else ModelScorer(loaded)}
    if baseline:
        scorers |= {BASELINE: TriletterCosine(), "BM25": BM25()}
    both: Any = {"query_column": query_column, "keyword_column": keyword_column, "strict": strict}
    clicked = read_pairs(pairs, weight_column=None, **both) if pairs else None
    texts = read_texts(corpus, text_column=text_column, strict=strict) if corpus else None
    judged = read_labels(labels, label_column=label_column, **both) if labels else None
    tables: Any = {
        "pairs": clicked and clicked.read_all(),
        "corpus": texts and corpus_texts(texts),
        "labels": judged and judged.read_all(),
    }
    for stream in (clicked, texts, judged):
        if stream is not None:
            options.tell_skipped(stream, f"{stream.name}: ")
    settings = some(locals(), "negatives", "gamma", "bootstrap", "seed")
    reports = {
        name: evaluate_model(scorer, **tables, cutoffs=k or CUTOFFS, **settings)
        for name, scorer in scorers.items()
    }
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
