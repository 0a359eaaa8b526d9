"""`rbegir bench scan`: exhaustive search beside its peers and the machine's read bandwidth."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from rbegir.cli.options import wholes


def scan(
    keywords: Annotated[str, typer.Option(help="Numbers of keywords.")] = "1e6,1e7",
    batches: Annotated[str, typer.Option(help="Queries a search.")] = "1,8,64,256",
    k: Annotated[str, typer.Option("-k", "--k", help="Hits a query.")] = "10,1000",
    threads: Annotated[str, typer.Option(help="Threads.")] = "1,2",
    device: Annotated[str, typer.Option(help="cpu, or a GPU: cuda, cuda:1.")] = "cpu",
    peers: Annotated[
        bool, typer.Option("--peers", help="FAISS and turbovec, or torch on a GPU, in the same run.")
    ] = False,
    rounds: Annotated[int, typer.Option(help="Rounds of a cell; figures are medians.")] = 7,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Exhaustive search over random codes of 16 bytes."""
    from rich.console import Console
    from rich.progress import Progress, TextColumn
    from rich.table import Table

    from rbegir.lab.bench import scan as bench

    errors = Console(stderr=True)
    with Progress(*Progress.get_default_columns(), TextColumn("{task.fields[cell]}"), console=errors) as bar:
        task = bar.add_task("scan", cell="")
        result = bench.run(
            keywords=wholes(keywords),
            batches=wholes(batches),
            ks=wholes(k),
            threads=wholes(threads),
            device=device,
            peers=peers,
            rounds=rounds,
            progress=lambda cell, done, total: bar.update(task, completed=done, total=total, cell=cell),
        )
    if as_json:
        print(json.dumps(result, indent=1))
        return
    names = sorted({name for cell in result["cells"] for name in cell["peers"]})
    table = Table("keywords", "batch", "k", "threads", "ms", "10⁹ pairs/s", "of bandwidth", *names)
    for cell in result["cells"]:
        fraction = cell["bandwidth_fraction"]
        table.add_row(
            f"{cell['keywords']:,}",
            str(cell["batch"]),
            str(cell["k"]),
            str(cell["threads"]),
            f"{cell['ms']:.2f}",
            f"{cell['keywords'] * cell['batch'] / cell['ms'] / 1e6:.2f}",
            "" if fraction is None else f"{100 * fraction:.0f} %",
            *(f"{cell['peers'][name]:.1f} ({cell['ratios'][name]:.1f}×)" for name in names),
        )
    Console().print(table)
