"""`rbegir train` and `rbegir upgrade`: learn a model from clicked pairs, or a new one for stored codes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rbegir.cli.options import (
    AsJson,
    BatchSize,
    Epochs,
    KeywordColumn,
    PairsFile,
    QueryColumn,
    Resume,
    Seed,
    Strict,
    TorchDevice,
    option,
    print_json,
    print_table,
)
from rbegir.errors import MissingExtraError

app = typer.Typer()


@app.command("train")
def train(
    pairs: PairsFile,
    out: Annotated[Path, option("Directory to write the model to.")],
    preset: Annotated[str, option("m_1, m_2, m_3, m_5, rbe_1, rbe_2, rbe_star or rbe_3.")] = "rbe_star",
    share_towers: Annotated[
        bool | None,
        option(
            "One tower for both sides, or one each: for queries unlike keywords.",
            "--share-towers/--separate-towers",
            show_default="of the recipe",
        ),
    ] = None,
    estimator: Annotated[
        str | None,
        option(
            "Gradient of the binarisation: straight_through, straight_through_variant, annealing_tanh "
            "or stochastic.",
            show_default="straight_through_variant",
        ),
    ] = None,
    recipe: Annotated[str, option("Settings to start from: default or paper.")] = "default",
    valid: Annotated[
        Path | None, option("Pairs to validate on; 2 % of the keywords are held out if not given.")
    ] = None,
    no_valid: Annotated[bool, option("Train on all pairs, without validation.", "--no-valid")] = False,
    epochs: Epochs = None,
    batch_size: BatchSize = None,
    lr: Annotated[float | None, option("Learning rate.", show_default="of the recipe")] = None,
    negatives: Annotated[
        str | None, option("in_batch, or a number of negatives per pair.", show_default="of the recipe")
    ] = None,
    gamma: Annotated[
        str | None, option("γ of the loss: learned, or a number.", show_default="of the recipe")
    ] = None,
    word_dropout: Annotated[
        float | None, option("Share of words left out in training.", show_default="of the recipe")
    ] = None,
    gram_dropout: Annotated[
        float | None, option("Share of a word's grams left out in training.", show_default="of the recipe")
    ] = None,
    feature_dropout: Annotated[
        float | None, option("Share of features left out in training.", show_default="of the recipe")
    ] = None,
    patience: Annotated[int | None, option("Stop after this many epochs without a better AUC.")] = None,
    seed: Seed = 0,
    device: TorchDevice = "auto",
    precision: Annotated[str, option("auto, float32 or bfloat16.")] = "auto",
    resume: Resume = False,
    strict: Strict = False,
    query_column: QueryColumn = "query",
    keyword_column: KeywordColumn = "keyword",
    weight_column: Annotated[str, option("Column of the weights, used if it is there.")] = "weight",
    as_json: AsJson = False,
) -> None:
    """Train a model on clicked pairs; under torchrun, on several GPUs at once."""
    import os
    import sys
    from dataclasses import replace
    from typing import cast

    from rbegir.encode.clsm.presets import Estimator
    from rbegir.encode.clsm.presets import preset as named_preset
    from rbegir.errors import InputError

    if valid is not None and no_valid:
        raise InputError("--valid and --no-valid contradict each other", hint="leave one of them out")
    shape = named_preset(preset)
    if estimator is not None:
        shape = replace(shape, estimator=cast(Estimator, estimator))
    _need_torch()

    from rbegir.training.config import recipe as named_recipe
    from rbegir.training.trainer import run

    settings = named_recipe(
        recipe,
        epochs=epochs,
        batch_size=batch_size,
        lr=lr,
        negatives=_number_or("in_batch", negatives, int),
        gamma=_number_or("learned", gamma, float),
        word_dropout=word_dropout,
        gram_dropout=gram_dropout,
        feature_dropout=feature_dropout,
        share_towers=share_towers,
        patience=patience,
        precision=precision,
        seed=seed,
    )
    result = run(
        pairs,
        config=replace(shape, share_towers=settings.share_towers),
        valid=False if no_valid else valid,
        out=out,
        settings=settings,
        device=device,
        resume=resume,
        progress=True,
        strict=strict,
        query_column=query_column,
        keyword_column=keyword_column,
        weight_column=weight_column,
    )
    if int(os.environ.get("RANK", "0")) > 0:
        return
    if as_json:
        print_json({"model": str(out), "preset": preset, **result.to_dict()})
    else:
        print(f"wrote {out}", file=sys.stderr)


@app.command("upgrade")
def upgrade(
    old: Annotated[Path, typer.Argument(help="The model that made the stored codes, or an index of it.")],
    pairs: PairsFile,
    out: Annotated[Path, option("Directory to write the new model to.")],
    keywords: Annotated[
        str,
        option("new: both sides are, and queries read the old codes too; keep: only the queries are new."),
    ] = "new",
    adopt: Annotated[
        bool, option("Put the new model into the index OLD, whose codes stay as they are.", "--adopt")
    ] = False,
    valid: Annotated[
        Path | None, option("Pairs to measure on; 2 % of the keywords are held out if not given.")
    ] = None,
    corpus: Annotated[
        Path | None, option("Texts to measure recall in; all keywords of the pairs if not given.")
    ] = None,
    epochs: Epochs = None,
    batch_size: BatchSize = None,
    seed: Seed = 0,
    resume: Resume = False,
    as_json: AsJson = False,
) -> None:
    """Train a model whose queries search the codes that an old one has stored, and report what is kept."""
    import sys
    from typing import cast

    from rbegir.errors import InputError

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
    from rbegir.training.progress import Bar
    from rbegir.training.upgrade import KeywordSide
    from rbegir.training.upgrade import adopt as put_into
    from rbegir.training.upgrade import upgrade as train

    texts = None
    if corpus is not None:
        texts = [text for batch in read_texts(corpus) for text in batch.column("text").to_pylist()]
    with Bar(enabled=True) as bar:
        bar.begin("upgrading", 1.0)
        result = train(
            old,
            pairs,
            out=out,
            keywords=cast(KeywordSide, keywords),
            valid=valid,
            corpus=texts,
            epochs=epochs,
            batch_size=batch_size,
            seed=seed,
            progress=bar.show,
            resume=resume,
        )
    if adopt:
        put_into(old, result.model)
    if as_json:
        print_json({"model": str(out), "adopted": adopt, **result.to_dict()})
        return
    print(f"wrote {out}", file=sys.stderr)
    names = list(next(iter(result.kept.values())))
    rows = ([case, *(f"{figures[name]:.4f}" for name in names)] for case, figures in result.kept.items())
    print_table(["queries/codes", *names], rows)


def _need_torch() -> None:
    try:
        import torch  # noqa: F401
    except ImportError:
        raise MissingExtraError("training needs torch", hint="pip install 'rbegir[train]'") from None


def _number_or(word: str, text: str | None, kind: type[int] | type[float]) -> str | float | None:
    """A number where the text is one; the settings refuse anything else."""
    if text is None or text == word:
        return text
    try:
        return kind(text)
    except ValueError:
        return text
