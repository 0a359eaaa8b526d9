"""`rbegir search`: the best keywords for some texts."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rbegir.cli.options import IndexPath, SearchDevice, Threads, option, print_json

if TYPE_CHECKING:
    from rbegir.search.hits import Hits

app = typer.Typer()


@app.command("search")
def search(
    index: IndexPath,
    queries: Annotated[list[str], typer.Argument(metavar="QUERY…", help="Texts to search for.")],
    k: Annotated[int, option("Hits per query.", "-k")] = 10,
    newer: Annotated[
        list[Path] | None,
        option(
            "A newer generation, searched as one with the first INDEX; several: oldest first.",
            metavar="INDEX",
        ),
    ] = None,
    where: Annotated[str | None, option("Filter, such as: price < 10 and lang = 'en' and not sold")] = None,
    device: SearchDevice = "cpu",
    mode: Annotated[str, option("exact, or paper: the published algorithm.")] = "exact",
    planes: Annotated[
        int | None, option("Search with this many planes first, refine the best with the others.")
    ] = None,
    threads: Threads = None,
    as_json: Annotated[bool, option("Print one JSON list to stdout.", "--json")] = False,
) -> None:
    """Search an index: every keyword is scored, the best k of each query are shown.

    With --newer, several generations (`rbegir upgrade`) are searched by the query code of the newest model.
    """
    from rbegir.index.generations import Generations
    from rbegir.index.store import Index

    opened: Index | Generations
    with contextlib.ExitStack() as open_:
        devices = device.split(",")
        if newer:
            opened = Generations([index, *newer], device=devices, read_only=True, threads=threads)
            open_.enter_context(opened)
        else:
            uploaded = open_.enter_context(_upload_bar())
            opened = Index.open(index, devices, read_only=True, threads=threads, progress=uploaded)
            open_.enter_context(opened)
        hits = opened.search(queries, k, where=where, mode=mode, planes=planes)
    if as_json:
        print_json(_as_json(queries, hits), default=str, ensure_ascii=False)
    else:
        _show(queries, hits)


@contextlib.contextmanager
def _upload_bar() -> Iterator[Callable[[int, int], None]]:
    """A progress bar for copying an index to GPUs, begun when there is something to copy."""
    from rich.console import Console
    from rich.progress import Progress

    bar = Progress(console=Console(stderr=True), transient=True)
    task = bar.add_task("uploading to the GPU")

    def show(done: int, total: int) -> None:
        bar.start()
        bar.update(task, completed=done, total=total)

    try:
        yield show
    finally:
        if bar.live.is_started:
            bar.stop()


def _as_json(queries: list[str], hits: Hits) -> list[dict[str, Any]]:
    results: list[dict[str, Any]] = []
    for query, found in zip(queries, hits, strict=True):
        shown: list[dict[str, Any]] = []
        for hit in found:
            shown.append({"id": hit.id, "score": hit.score, "text": hit.text})
            if hit.attributes is not None:
                shown[-1]["attributes"] = dict(hit.attributes)
        result: dict[str, Any] = {"query": query, "hits": shown}
        if hits.recall is not None:
            result["recall"] = hits.recall
        if hits.certificate is not None:
            result["expected_recall"] = hits.certificate.expected_recall
        results.append(result)
    return results


def _show(queries: list[str], hits: Hits) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    for query, found in zip(queries, hits, strict=True):
        names = list(found[0].attributes or {}) if found else []
        table = Table("", "score", "id", "text", *names, title=Text(query), title_justify="left", box=None)
        for rank, hit in enumerate(found, 1):
            shown = [hit.text, *((hit.attributes or {})[name] for name in names)]
            cells = ["" if value is None else str(value) for value in shown]
            table.add_row(str(rank), f"{hit.score:.4f}", str(hit.id), *(Text(cell) for cell in cells))
        console.print(table)
    if hits.recall is not None:
        console.print(f"recall of the search by fewer planes: {hits.recall:.4f}")
    if hits.certificate is not None:
        console.print(f"expected recall of the published algorithm: {hits.certificate.expected_recall:.6f}")
