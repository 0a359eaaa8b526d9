"""`rbegir bench ann`: recall and speed on a data set of ann-benchmarks."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer


def ann(
    data: Annotated[
        Path, typer.Argument(help="Data set: .hdf5 (with h5py) or .npz of train, test, neighbors.")
    ],
    k: Annotated[int, typer.Option("-k", help="Neighbours a query.")] = 10,
    planes: Annotated[str, typer.Option(help="Planes of a query, several with commas.")] = "1,2,4,8",
    n: Annotated[
        int | None, typer.Option(help="Dimension of the codes.", show_default="that of the vectors")
    ] = None,
    keyword_planes: Annotated[int, typer.Option(help="Bits a dimension of a stored vector.")] = 2,
    threads: Annotated[int, typer.Option(min=1, help="Threads; ann-benchmarks uses one.")] = 1,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds; speeds are medians.")] = 3,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Recall of the true neighbours and queries per second, one by one and in a batch."""
    from rich.console import Console
    from rich.table import Table

    from rbegir.cli.options import wholes
    from rbegir.lab.annbench import run

    parameters = {"keyword_planes": keyword_planes, "threads": threads} | ({} if n is None else {"n": n})
    result = run(
        data,
        k=k,
        planes=wholes(planes),
        parameters=parameters,
        rounds=rounds,
        progress=lambda what: print(what, file=sys.stderr),
    )
    if as_json:
        print(json.dumps(result, indent=1))
        return
    table = Table("algorithm", "recall", "queries/s", "in a batch", "bytes", title=result["dataset"])
    for row in result["rows"]:
        figures = (f"{row['recall']:.4f}", f"{row['qps']:,.0f}", f"{row['batch_qps']:,.0f}")
        table.add_row(row["algorithm"], *figures, str(row["bytes_per_vector"]))
    Console().print(table)
