"""`rbegir bench encode`: texts a second, from text to grams and to codes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer


def encode(
    texts: Annotated[
        Path | None,
        typer.Option(
            help="Texts to encode: lines or a table; the shipped titles if not given.", show_default=False
        ),
    ] = None,
    count: Annotated[int, typer.Option(help="At most this many of them.")] = 1_000_000,
    model: Annotated[
        Path | None, typer.Option(help="A trained model; random weights if not given.", show_default=False)
    ] = None,
    preset: Annotated[str, typer.Option(help="Preset of the random weights.")] = "rbe_star",
    device: Annotated[str, typer.Option(help="cpu, cuda or cuda:N.")] = "cpu",
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads.", show_default="all cores")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds; figures are medians.")] = 5,
    peers: Annotated[bool, typer.Option("--peers", help="MiniLM in the same run.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Texts a second: cut into grams, encoded by each side, and MiniLM beside it with --peers."""
    from rich.console import Console
    from rich.progress import Progress
    from rich.table import Table

    from rbegir.lab.bench.encode import measure
    from rbegir.read.pairs import read_texts
    from rbegir.read.sample import sample_path

    column: list[str] = []
    for batch in read_texts(texts or sample_path("titles")):
        column += batch.column("text").to_pylist()
        if len(column) >= count:
            break
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("bench")
        result = measure(
            column[:count],
            model=model,
            preset_name=preset,
            device=device,
            threads=threads,
            rounds=rounds,
            peers=peers,
            progress=lambda cell, done, total: bar.update(
                task, description=cell, completed=done, total=total
            ),
        )
    if as_json:
        print(json.dumps(result, indent=1))
        return
    table = Table(title=f"{result['model']} on {result['host']['cpu']}, {rounds} rounds")
    for name in ("cell", "device", "threads", "texts", "texts/s", "lowest", "highest"):
        table.add_column(name, justify="left" if name in ("cell", "device") else "right")
    for row in result["cells"]:
        figures = (row["texts"], row["texts_per_s"], *row["spread"])
        name = row.get("name", row["cell"])
        table.add_row(name, row["device"], str(row.get("threads", "")), *(f"{x:,.0f}" for x in figures))
    Console().print(table)
