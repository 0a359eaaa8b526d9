"""`rbegir train`: learn a model from clicked pairs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer()


@app.command()
def train(
    pairs: Annotated[
        Path, typer.Argument(help="Pairs (query, keyword): Parquet, CSV, TSV or JSONL, gz allowed.")
    ],
    out: Annotated[Path, typer.Option(help="Directory to write the model to.")],
    preset: Annotated[
        str, typer.Option(help="m_1, m_2, m_3, m_5, rbe_1, rbe_2, rbe_star or rbe_3.")
    ] = "rbe_star",
    share_towers: Annotated[
        bool | None,
        typer.Option(
            "--share-towers/--separate-towers",
            help="One tower for both sides, or one each: for queries unlike keywords.",
            show_default="of the recipe",
        ),
    ] = None,
    estimator: Annotated[
        str | None,
        typer.Option(
            help="Gradient of the binarisation: straight_through, straight_through_variant, annealing_tanh "
            "or stochastic.",
            show_default="straight_through_variant",
        ),
    ] = None,
    recipe: Annotated[str, typer.Option(help="Settings to start from: default or paper.")] = "default",
    valid: Annotated[
        Path | None,
        typer.Option(
            help="Pairs to validate on; 2 % of the keywords are held out if not given.", show_default=False
        ),
    ] = None,
    no_valid: Annotated[
        bool, typer.Option("--no-valid", help="Train on all pairs, without validation.")
    ] = False,
    epochs: Annotated[int | None, typer.Option(help="Passes over the pairs.", show_default="by size")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Pairs a step.", show_default="by size")] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate.", show_default="of the recipe")] = None,
    negatives: Annotated[
        str | None,
        typer.Option(help="in_batch, or a number of negatives a pair.", show_default="of the recipe"),
    ] = None,
    gamma: Annotated[
        str | None, typer.Option(help="γ of the loss: learned, or a number.", show_default="of the recipe")
    ] = None,
    word_dropout: Annotated[
        float | None, typer.Option(help="Share of words left out in training.", show_default="of the recipe")
    ] = None,
    gram_dropout: Annotated[
        float | None,
        typer.Option(help="Share of a word's grams left out in training.", show_default="of the recipe"),
    ] = None,
    feature_dropout: Annotated[
        float | None,
        typer.Option(help="Share of features left out in training.", show_default="of the recipe"),
    ] = None,
    patience: Annotated[
        int | None, typer.Option(help="Stop after so many epochs without a better AUC.", show_default=False)
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of everything random.")] = 0,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    precision: Annotated[str, typer.Option(help="auto, float32 or bfloat16.")] = "auto",
    resume: Annotated[bool, typer.Option("--resume", help="Continue an interrupted run.")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Fail at the first bad row.")] = False,
    query_column: Annotated[str, typer.Option(help="Column of the queries.")] = "query",
    keyword_column: Annotated[str, typer.Option(help="Column of the keywords.")] = "keyword",
    weight_column: Annotated[
        str, typer.Option(help="Column of the weights, used if it is there.")
    ] = "weight",
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Train a model on clicked pairs; under torchrun, on several GPUs at once."""
    import json
    import os
    import sys
    from dataclasses import replace
    from typing import cast

    from rbegir.encode.clsm.presets import Estimator
    from rbegir.encode.clsm.presets import preset as named_preset
    from rbegir.errors import InputError, MissingExtraError

    if valid is not None and no_valid:
        raise InputError("--valid and --no-valid contradict each other", hint="leave one of them out")
    shape = named_preset(preset)
    if estimator is not None:
        shape = replace(shape, estimator=cast(Estimator, estimator))
    try:
        import torch  # noqa: F401
    except ImportError:
        raise MissingExtraError("training needs torch", hint="pip install 'rbegir[train]'") from None

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
        print(json.dumps({"model": str(out), "preset": preset, **result.to_dict()}))
    else:
        print(f"wrote {out}", file=sys.stderr)


def _number_or(word: str, text: str | None, kind: type[int] | type[float]) -> str | float | None:
    """A number where the text is one; the settings refuse anything else."""
    if text is None or text == word:
        return text
    try:
        return kind(text)
    except ValueError:
        return text
