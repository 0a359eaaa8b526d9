"""`rbegir bench serve`: the HTTP service under a mixed load, with and without micro-batching."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from rbegir.cli.options import whole


def serve(
    keywords: Annotated[str, typer.Option(help="Keywords in the index.")] = "1e6",
    k: Annotated[int, typer.Option("-k", "--k", min=1, help="Hits a search.")] = 100,
    clients: Annotated[
        int, typer.Option(min=1, max=1000, help="Concurrent clients, each in a closed loop.")
    ] = 64,
    seconds: Annotated[
        float, typer.Option(min=0.1, help="Load of each setting, split over the rounds.")
    ] = 60.0,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of each setting, in turns.")] = 3,
    writes: Annotated[float, typer.Option(min=0, max=1, help="Share of requests that write.")] = 0.05,
    model: Annotated[
        Path | None, typer.Option(help="A trained model; random weights of the same shape otherwise.")
    ] = None,
    peers: Annotated[
        bool,
        typer.Option("--peers", help="qdrant-client's local mode and LanceDB, in process, in the same run."),
    ] = False,
    peer_seconds: Annotated[float, typer.Option(min=0.1, help="Load of each peer.")] = 10.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """A real service over loopback: searches and writes at once; is every acknowledged write kept?"""
    from rich.console import Console
    from rich.progress import Progress, TextColumn
    from rich.table import Table

    from rbegir.lab.bench import serve as bench

    errors = Console(stderr=True)
    with Progress(*Progress.get_default_columns(), TextColumn("{task.fields[what]}"), console=errors) as bar:
        task = bar.add_task("serve", total=1.0, what="")
        result = bench.run(
            keywords=whole(keywords),
            k=k,
            clients=clients,
            seconds=seconds,
            rounds=rounds,
            writes=writes,
            model=model,
            peers=peers,
            peer_seconds=peer_seconds,
            progress=lambda what, share: bar.update(task, completed=share, what=what),
        )
    if as_json:
        print(json.dumps(result, indent=1))
    else:
        table = Table("", "searches/s", "p50 ms", "p99 ms", "write p50 ms", "queries a scan")
        for name in bench.SETTINGS:
            of = result[name]
            shown = [
                of.get(key, {}).get("median")
                for key in ("searches_per_s", "p50_ms", "p99_ms", "write_p50_ms", "queries_a_scan")
            ]
            table.add_row(name, *("" if value is None else f"{value:,.1f}" for value in shown))
        for name, peer in result["peers"].items():
            if "failed" in peer:
                table.add_row(f"{name}, in process", peer["failed"])
            else:
                table.add_row(
                    f"{name}, in process",
                    f"{peer['searches_per_s']:,.1f}",
                    f"{peer['p50_ms']:,.1f}",
                    f"{peer['p99_ms']:,.1f}",
                )
        kept = result["integrity"]
        Console().print(table)
        Console().print(
            f"batched / unbatched {result['ratio']['median']:.1f}×; "
            f"the generator alone {result['generator']['searches_per_s']:,.0f}/s; "
            f"{kept['acknowledged_writes']:,} writes, {kept['lost']} lost, {kept['phantom']} phantom, "
            f"{result['errors']} errors"
        )
    if result["errors"] or result["integrity"]["lost"] or result["integrity"]["phantom"]:
        raise typer.Exit(1)
