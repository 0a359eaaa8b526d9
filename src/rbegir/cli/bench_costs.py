"""`rbegir bench costs`: what every GPU scan costs, the table that the choice between them is made by."""

from __future__ import annotations

import json
from typing import Annotated

import typer


def costs(
    device: Annotated[str, typer.Option(help="A GPU: cuda, cuda:1.")] = "cuda",
    rounds: Annotated[int, typer.Option(min=1, help="Rounds; figures are medians.")] = 5,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Milliseconds of every GPU scan for 10⁹ keywords, by shape.

    Searches choose by the table that comes with the package, measured on one H200. For another card, keep
    this one's in a file and name it in RBEGIR_GPU_COSTS.
    """
    from rich.console import Console
    from rich.table import Table

    import rbegir.search.gpu.backend  # noqa: F401  says what to install where torch or triton is missing
    from rbegir.lab.bench import costs_gpu

    with Console(stderr=True).status("measuring") as status:
        result = costs_gpu.run(device, rounds, lambda what: status.update(what))
    if as_json:
        print(json.dumps(result, indent=1, ensure_ascii=False))
        return
    table = Table("kernel", "code", "ms of 1, 2, … 8 query planes, or of a pass and of a chunk of queries")
    for kernel, shapes in result["costs"].items():
        for shape, figures in shapes.items():
            table.add_row(kernel, shape, ", ".join(f"{ms:.2f}" for ms in figures))
    Console().print(table)
