"""`rbegir bench accuracy`: what recall so many bytes a vector buy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from rbegir.cli.options import wholes


def accuracy(
    vectors: Annotated[Path, typer.Option(help="Vectors to store: a .npy file [count, dims].")],
    queries: Annotated[
        Path | None,
        typer.Option(help="Vectors to ask with; drawn from the others if not given.", show_default=False),
    ] = None,
    bits: Annotated[str, typer.Option(help="Budgets in bits a dimension, with commas; '' for none.")] = "2",
    byte_budgets: Annotated[str, typer.Option("--bytes", help="Budgets in bytes, with commas.")] = "",
    seeds: Annotated[int, typer.Option(min=1, help="Runs with other random choices.")] = 1,
    methods: Annotated[str, typer.Option(help="Methods, with commas.", show_default="all")] = "",
    count: Annotated[int, typer.Option("--queries-count", min=1, help="Queries asked.")] = 1000,
    train_rows: Annotated[int, typer.Option(min=2, help="Rows that methods learn from.")] = 100_000,
    search_rows: Annotated[
        int | None, typer.Option(min=1, help="Rows that are searched.", show_default="all others")
    ] = None,
    apart: Annotated[
        bool, typer.Option("--apart/--among", help="Learn from rows apart from, or among, those searched.")
    ] = True,
    budget: Annotated[
        float | None, typer.Option(help="Seconds after which no row is begun.", show_default=False)
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="JSON file, written after every row; rows it holds are kept.", show_default=False),
    ] = None,
    about: Annotated[str, typer.Option(help="What the vectors are, for the file.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Recall of the float vectors' true top 10 and 100, and of the best one, at equal bytes, beside peers."""
    from rich.console import Console
    from rich.progress import Progress
    from rich.table import Table

    from rbegir.index.exchange.arrays import map_npy
    from rbegir.lab.bench.accuracy import METHODS, measure, sizes

    stored = map_npy(vectors)
    asked = None if queries is None else map_npy(queries)
    chosen = tuple(methods.split(",")) if methods else METHODS
    by_bits = wholes(bits) if bits else []
    by_bytes = wholes(byte_budgets) if byte_budgets else []
    cells = len(sizes(stored.shape[-1], by_bits, by_bytes)) * len(chosen) * seeds
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("bench", total=cells)
        result = measure(
            stored,
            asked,
            bits=by_bits,
            byte_budgets=by_bytes,
            seeds=seeds,
            methods=chosen,
            query_count=count,
            train_rows=train_rows,
            search_rows=search_rows,
            apart=apart,
            budget_s=budget,
            out=out,
            about=about,
            report=lambda row: bar.update(
                task, advance=1, description=f"{row['method']} {row['bytes']:g} bytes"
            ),
        )
    if as_json:
        print(json.dumps(result, indent=1))
        return
    used = result["vectors"]
    title = "no row measured" if used is None else f"{used['count']:,} vectors of {used['dims']}"
    table = Table(title=title if used is None else f"{title}, {used['queries']:,} queries")
    for name in ("method", "bytes", "recall@10", "± 95 %", "recall@100", "recall@1"):
        table.add_column(name, justify="left" if name == "method" else "right")
    for row in sorted(result["summary"], key=lambda row: (row["budget_bytes"], -row["recall@10"]["mean"])):
        ten = row["recall@10"]
        spread = f"{ten['half_width']:.4f}" if row["seeds"] > 1 else ""
        others = (f"{row[name]['mean']:.4f}" for name in ("recall@100", "recall@1"))
        table.add_row(row["method"], f"{row['bytes']:g}", f"{ten['mean']:.4f}", spread, *others)
    Console().print(table)
