"""`rbegir plan`: how many machines a wish takes."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from rbegir.cli.options import whole

app = typer.Typer(add_completion=False)


@app.command()
def plan(
    keywords: Annotated[int, typer.Option(parser=whole, metavar="INTEGER", help="Keywords to search.")],
    latency_ms: Annotated[float, typer.Option(help="99 of 100 questions must be answered in this time.")],
    qps: Annotated[float, typer.Option(help="Queries a second.")],
    k: Annotated[int, typer.Option("-k", "--k", help="Hits a query.")] = 1000,
    bytes_per_keyword: Annotated[int, typer.Option(help="Bytes of a code.")] = 16,
    replicas: Annotated[int, typer.Option(help="Copies of every shard, whatever the load.")] = 1,
    machine: Annotated[
        str | None,
        typer.Option(help="Plan for this measured kind of machine only; default: the best of all."),
    ] = None,
    round_trip_ms: Annotated[float, typer.Option(help="Between two machines of the cluster.")] = 0.2,
    network_gbit: Annotated[float, typer.Option(help="Of a machine, in Gbit/s.")] = 25.0,
    client_cores: Annotated[int, typer.Option(help="Of a machine that asks and merges.")] = 16,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Machines, memory, latency and what decides, from measured figures and a simulation of slow answers."""
    from rbegir.lab.plan.planner import Wish
    from rbegir.lab.plan.planner import plan as make_plan

    wish = Wish(
        keywords=keywords,
        latency_ms=latency_ms,
        qps=qps,
        k=k,
        bytes_per_keyword=bytes_per_keyword,
        replicas=replicas,
        round_trip_ms=round_trip_ms,
        network_gbit=network_gbit,
        client_cores=client_cores,
    )
    found = make_plan(wish, machine=machine)
    if as_json:
        print(json.dumps(found))
        return
    _show(found)


def _show(found: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    console.print(found["why"], highlight=False)
    options = Table("machine", "how many", "shards × copies", "memory each", "p50 ms", "p99 ms", "bound by")
    for option in found["options"]:
        options.add_row(
            option["machine"],
            f"{option['machines']:,}",
            f"{option['shards']:,} × {option['groups']:,}",
            f"{option['memory_bytes_per_machine'] / 1e9:.1f} GB",
            f"{option['latency_ms']['p50']:.2f}",
            f"{option['latency_ms']['p99']:.2f}",
            option["bound_by"],
        )
    console.print(options)
    for name, reason in found["impossible"].items():
        console.print(f"{name}: impossible, {reason}", highlight=False)
    clients = min(found["options"], key=lambda option: option["machines"])["clients"]
    console.print(
        f"and {clients['machines']:g} machines that ask and merge "
        f"({clients['cores']:g} cores, {clients['gbit']:g} Gbit/s)",
        highlight=False,
    )
    tails = Table("shards", "p99 ms", "hedged", title="how late the slowest shard is", title_justify="left")
    plain = {tail["shards"]: tail["p99_ms"] for tail in found["tails"] if not tail["hedged"]}
    hedged = {tail["shards"]: tail["p99_ms"] for tail in found["tails"] if tail["hedged"]}
    for shards in plain:
        tails.add_row(f"{shards:,}", f"{plain[shards]:.2f}", f"{hedged[shards]:.2f}")
    console.print(tails)
    constants = Table("constant", "value", "source")
    for name, constant in found["constants"].items():
        constants.add_row(name, f"{constant['value']:.4g} {constant['unit']}", constant["source"])
    console.print(constants)
