"""`rbegir missrate`: what the published selection may miss."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from rbegir.cli.options import whole

app = typer.Typer(add_completion=False)


@app.command()
def missrate(
    candidates: Annotated[
        int, typer.Option(parser=whole, metavar="INTEGER", help="C: keywords that are searched.")
    ],
    top: Annotated[int, typer.Option(parser=whole, metavar="INTEGER", help="N: keywords that are wanted.")],
    per_thread: Annotated[
        int, typer.Option(parser=whole, metavar="INTEGER", help="I: keywords a thread selects from.")
    ],
    queue: Annotated[int, typer.Option(help="q: keywords that a thread keeps.")] = 1,
    most: Annotated[int, typer.Option(min=0, help="The largest l of the table.")] = 10,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Probability that the published selection misses at most l of the top N, and its expected recall."""
    from rbegir.search.missrate import certificate

    found = certificate(candidates, top, per_thread, queue, most=most)
    if as_json:
        print(
            json.dumps(
                {"p_miss_at_most": list(found.p_miss_at_most), "expected_recall": found.expected_recall}
            )
        )
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("l", "P(misses ≤ l) %")
    for misses, probability in enumerate(found.p_miss_at_most):
        table.add_row(str(misses), f"{100 * probability:.6f}")
    console = Console()
    console.print(table)
    console.print(f"expected recall {found.expected_recall:.9f}")
