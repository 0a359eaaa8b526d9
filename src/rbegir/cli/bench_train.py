"""`rbegir bench train`: pairs a second, and where the time of a step goes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def train(
    pairs: Annotated[
        Path | None,
        typer.Option(help="Pairs to train on; the shipped sample if not given.", show_default=False),
    ] = None,
    preset: Annotated[str, typer.Option(help="Preset to train.")] = "rbe_star",
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    batch_size: Annotated[int | None, typer.Option(help="Pairs a step.", show_default="by size")] = None,
    negatives: Annotated[str, typer.Option(help="in_batch, or a number of negatives a pair.")] = "in_batch",
    rows: Annotated[
        int | None,
        typer.Option(
            help="Pairs an epoch, repeating the file.", show_default="all of the file, 4 million on a GPU"
        ),
    ] = None,
    epochs: Annotated[int, typer.Option(help="Epochs to time after a first one.")] = 5,
    query_column: Annotated[str, typer.Option(help="Column of the queries.")] = "query",
    keyword_column: Annotated[str, typer.Option(help="Column of the keywords.")] = "keyword",
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Train for a few epochs: pairs a second, and where the time of a step goes."""
    import json

    from rich.console import Console
    from rich.table import Table

    from rbegir.lab.bench.train import measure
    from rbegir.read.pairs import read_pairs
    from rbegir.read.sample import sample_path

    stream = read_pairs(
        pairs or sample_path("train"), query_column=query_column, keyword_column=keyword_column
    )
    result = measure(
        stream,
        preset=preset,
        device=device,
        batch_size=batch_size,
        negatives=int(negatives) if negatives.isdigit() else negatives,
        rows=rows,
        epochs=epochs,
    )
    if as_json:
        print(json.dumps(result))
        return
    low, high = result["spread"]
    table = Table(
        title=f"{result['preset']} on {result['host']['device']}, batches of {result['batch_size']:,}"
    )
    for name in ("part", "ms", "floor ms"):
        table.add_column(name, justify="left" if name == "part" else "right")
    for part, ms in result["parts_ms"].items():
        floor = result["floor_ms"].get(part)
        table.add_row(part, f"{ms:.2f}", "" if floor is None else f"{floor:.2f}")
    table.add_row("step", f"{result['step_ms']:.2f}", f"{sum(result['floor_ms'].values()):.2f}")
    table.caption = f"{result['pairs_per_s']:,.0f} pairs/s ({low:,.0f} to {high:,.0f})"
    Console().print(table)
