"""`rbegir bench cluster`: what a cluster costs and how it scales, or what it survives."""

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
    faults: Annotated[
        bool, typer.Option("--faults", help="Kill shards under load instead of measuring speed.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Overhead and scaling of a cluster on this machine, or, with --faults, what it survives."""
    from rich.console import Console
    from rich.progress import Progress
    from rich.table import Table

    from rbegir.lab.bench import cluster as bench

    with Progress(console=Console(stderr=True)) as bar:
        task = bar.add_task("cluster", total=1.0)

        def progress(what: str, done: float) -> None:
            bar.update(task, description=what, completed=done)

        result = (
            bench.survival(seconds=seconds, every=every, clients=clients, progress=progress)
            if faults
            else bench.speed(keywords=keywords, rounds=rounds, progress=progress)
        )
    if as_json:
        print(json.dumps(result, indent=1))
        return
    table = Table("what", "figure")
    if not faults:
        table.add_row("a call", f"{result['overhead']['call_ms']['median']:.2f} ms")
        table.add_row("two shards over one", f"{result['scaling']['speedup']['median']:.2f}×")
    for run in result.get("faults", ()):
        table.add_row(
            f"{run['kills']} kills, {run['replicas']} replicas",
            f"{run['asked']:,} asked, {run['wrong']} wrong, {run['failed']} failed",
        )
    Console().print(table)
