"""`rbegir reproduce`: the paper's tables beside ours."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer()


@app.command()
def reproduce(
    tables: Annotated[
        list[str] | None, typer.Argument(help="1 to 7, and bytes; all if none is given.", show_default=False)
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            help="Folder with redirects.*, titles.* and, optionally, entity_labels.*; the shipped sample if "
            "not given.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="Where runs, results and the report are kept.")] = Path(
        "rbegir-tables"
    ),
    rows: Annotated[
        list[str] | None, typer.Option(help="Make this row alone, repeat for more.", show_default=False)
    ] = None,
    seeds: Annotated[int | None, typer.Option(help="Runs of each row.", show_default="3, small: 1")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    small: Annotated[
        bool, typer.Option("--small", help="Few pairs and short trainings: minutes on a CPU.")
    ] = False,
    workers: Annotated[int, typer.Option(help="Runs at the same time on one device.", min=1)] = 1,
    together: Annotated[
        int, typer.Option(help="Models that each of them trains side by side, on the same batches.", min=1)
    ] = 1,
    seconds: Annotated[
        float | None, typer.Option(help="Start no run that would end later than this.", show_default=False)
    ] = None,
    report: Annotated[
        list[Path] | None,
        typer.Option(help="Train nothing: write the report of these results.", show_default=False),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="The tables as JSON on stdout, one object each.")
    ] = False,
) -> None:
    """Make the tables of the paper on real data, ours beside theirs, with seeds and spread.

    Runs are kept: a command that was interrupted goes on where it was.
    """
    import json

    from rich.console import Console

    from rbegir.errors import MissingExtraError

    say = Console(stderr=True).print
    try:
        from rbegir.lab.reproduce.job import Request, make, read_results, tables_of, write_report
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            f"the tables train models, which needs {error.name}", hint="pip install 'rbegir[train,tables]'"
        ) from None
    from rbegir.lab.reproduce.rows import FULL, TABLES, chosen

    wanted = tuple(tables or TABLES)
    chosen(FULL, wanted)  # refuses a table that there is not
    if report:
        results = [read_results(path) for path in report]
    else:
        request = Request(
            wanted, tuple(rows or ()), data, out, seeds, device, small, workers, together, seconds
        )
        results = [make(request, lambda line: say(line, highlight=False, markup=False))]
    if as_json:
        print(json.dumps([table for result in results for table in tables_of(result, wanted)]))
    else:
        say(f"wrote {write_report(results, out)}", highlight=False)
