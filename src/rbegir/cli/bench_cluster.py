"""`rbegir bench cluster`: what a cluster costs, how it scales, and what it survives."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from rbegir.cli.options import whole


def cluster(
    keywords: Annotated[
        int, typer.Option(parser=whole, metavar="INTEGER", help="Keywords of the scaling part.")
    ] = 8_000_000,
    seconds: Annotated[float, typer.Option(help="Length of each of the two fault runs.")] = 120.0,
    every: Annotated[float, typer.Option(help="Seconds between kills.")] = 4.0,
    clients: Annotated[int, typer.Option(help="Threads that ask during the fault runs.")] = 4,
    rounds: Annotated[int, typer.Option(help="Rounds of the timed parts; figures are medians.")] = 30,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Overhead, scaling and faults of a cluster on this machine: processes are killed under load."""
    from rich.console import Console
    from rich.progress import Progress
    from rich.table import Table

    from rbegir.bench import cluster as bench

    with Progress(console=Console(stderr=True)) as bar:
        task = bar.add_task("cluster", total=1.0)
        result = bench.run(
            keywords=keywords,
            seconds=seconds,
            every=every,
            clients=clients,
            rounds=rounds,
            progress=lambda what, done: bar.update(task, description=what, completed=done),
        )
    if as_json:
        print(json.dumps(result, indent=1))
        return
    table = Table("what", "figure")
    table.add_row("a call", f"{result['overhead']['call_ms']['median']:.2f} ms")
    table.add_row("two shards over one", f"{result['scaling']['speedup']['median']:.2f}×")
    for run in result["faults"]:
        table.add_row(
            f"{run['kills']} kills, {run['replicas']} replicas",
            f"{run['asked']:,} asked, {run['wrong']} wrong, {run['failed']} failed",
        )
    Console().print(table)
