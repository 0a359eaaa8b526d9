"""`rbegir upgrade`: a new model for codes that are already stored."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer()


@app.command()
def upgrade(
    old: Annotated[Path, typer.Argument(help="The model that made the stored codes, or an index of it.")],
    pairs: Annotated[
        Path, typer.Argument(help="Pairs (query, keyword): Parquet, CSV, TSV or JSONL, gz allowed.")
    ],
    out: Annotated[Path, typer.Option(help="Directory to write the new model to.")],
    keywords: Annotated[
        str,
        typer.Option(
            help="new: both sides are, and queries read the old codes too; keep: only the queries are new."
        ),
    ] = "new",
    adopt: Annotated[
        bool,
        typer.Option("--adopt", help="Put the new model into the index OLD, whose codes stay as they are."),
    ] = False,
    valid: Annotated[
        Path | None,
        typer.Option(
            help="Pairs to measure on; 2 % of the keywords are held out if not given.", show_default=False
        ),
    ] = None,
    corpus: Annotated[
        Path | None,
        typer.Option(
            help="Texts to measure recall in; all keywords of the pairs if not given.", show_default=False
        ),
    ] = None,
    epochs: Annotated[int | None, typer.Option(help="Passes over the pairs.", show_default="by size")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Pairs a step.", show_default="by size")] = None,
    seed: Annotated[int, typer.Option(help="Seed of everything random.")] = 0,
    resume: Annotated[bool, typer.Option("--resume", help="Continue an interrupted run.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Train a model whose queries search the codes that an old one has stored, and report what is kept."""
    import json
    import sys
    from typing import cast

    from rbegir.errors import InputError, MissingExtraError

    if adopt and not (old / "MANIFEST").is_file():
        raise InputError(
            "--adopt needs an index as OLD, got a model", hint="name the index, or leave --adopt out"
        )
    if adopt and keywords != "keep":
        raise InputError(
            f"--adopt needs --keywords keep, got {keywords}",
            hint="new codes go to an index of their own: rbegir index migrate OLD NEW --model DIRECTORY",
        )
    try:
        import torch  # noqa: F401
    except ImportError:
        raise MissingExtraError("training needs torch", hint="pip install 'rbegir[train]'") from None

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
        print(json.dumps({"model": str(out), "adopted": adopt, **result.to_dict()}))
        return
    print(f"wrote {out}", file=sys.stderr)
    from rich.console import Console
    from rich.table import Table

    names = list(next(iter(result.kept.values())))
    table = Table("queries/codes", *names)
    for case, figures in result.kept.items():
        table.add_row(case, *(f"{figures[name]:.4f}" for name in names))
    Console().print(table)
