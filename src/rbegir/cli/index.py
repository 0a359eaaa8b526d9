"""`rbegir index`: build, add to, delete from, look at, check and compact a stored index."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rbegir.cli.options import whole

if TYPE_CHECKING:
    import pyarrow as pa

    from rbegir.index.store import Index
    from rbegir.tables.texts import TextStream

app = typer.Typer(no_args_is_help=True, help="Build and change a stored index.")

IndexPath = Annotated[Path, typer.Argument(metavar="INDEX", help="Directory of the index.")]
Texts = Annotated[
    Path, typer.Argument(help="Texts: one a line (.txt), or Parquet, CSV, TSV or JSONL with a text column.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object to stdout.")]
Strict = Annotated[
    bool, typer.Option(help="Make the first bad row fatal instead of skipping and counting it.")
]
TextColumn = Annotated[str, typer.Option(help="Name of the column that holds the texts.")]
IdColumn = Annotated[str, typer.Option(help="Name of the column that holds the ids, if there is one.")]


@app.command()
def build(
    model: Annotated[Path, typer.Argument(help="Directory of a trained model.")],
    texts: Texts,
    out: Annotated[Path, typer.Option(metavar="INDEX", help="Directory to create, for example ads.rbe.")],
    text_column: TextColumn = "text",
    id_column: IdColumn = "id",
    overwrite: Annotated[bool, typer.Option(help="Replace an index that is there already.")] = False,
    strict: Strict = False,
    cluster: Annotated[
        str | None,
        typer.Option(
            metavar="[ADDRESS]",
            help="Build with Ray: host:port, auto, local, or nothing (RAY_ADDRESS, else this machine).",
        ),
    ] = None,
    segment_rows: Annotated[
        int, typer.Option(parser=whole, metavar="INTEGER", help="Keywords held in memory, and a segment.")
    ] = 1 << 20,
    as_json: AsJson = False,
) -> None:
    """Encode all texts and store them in a new index; columns other than text and id become attributes.

    The index appears when it is complete. If the build is stopped, nothing is left of it; with --cluster what
    was made is kept beside it, and the same command goes on from there.
    """
    from rbegir.index.store import Index

    if cluster is not None:
        facts = _build_on_cluster(
            model,
            texts,
            out,
            cluster,
            text_column=text_column,
            id_column=id_column,
            overwrite=overwrite,
            strict=strict,
            segment_rows=segment_rows,
        )
        with Index.open(out, read_only=True) as made:
            _report(made, as_json, **facts)
        return
    from rbegir.model.model import Model
    from rbegir.tables.texts import read_texts

    stream = read_texts(texts, text_column=text_column, id_column=id_column, strict=strict)
    with _watched(stream, "building") as batches:
        index = Index.build(out, Model.load(model), batches, overwrite=overwrite, segment_rows=segment_rows)
    with index:
        _report(index, as_json, skipped=stream.skipped.to_dict())


@app.command()
def add(
    index: IndexPath,
    texts: Texts,
    upsert: Annotated[bool, typer.Option(help="Replace keywords that have the same id.")] = False,
    text_column: TextColumn = "text",
    id_column: IdColumn = "id",
    strict: Strict = False,
    as_json: AsJson = False,
) -> None:
    """Add texts to an index. Every million is durable on its own: a run that is stopped keeps those."""
    from rbegir.index.build import fill
    from rbegir.index.store import Index
    from rbegir.tables.texts import read_texts

    stream = read_texts(texts, text_column=text_column, id_column=id_column, strict=strict)
    with Index.open(index) as opened:
        with _watched(stream, "adding") as batches:
            added = fill(opened, batches, upsert=upsert)
        _report(opened, as_json, added=added, skipped=stream.skipped.to_dict())


@app.command()
def delete(
    index: IndexPath,
    ids: Annotated[list[str] | None, typer.Argument(metavar="ID…", help="Ids to delete.")] = None,
    ids_from: Annotated[Path | None, typer.Option("--from", help="A file with one id a line.")] = None,
    as_json: AsJson = False,
) -> None:
    """Delete keywords by id; ids that are not there are ignored."""
    from rbegir.errors import InputError
    from rbegir.index.store import Index

    wanted = list(ids or []) + (_lines(ids_from) if ids_from else [])
    if not wanted:
        raise InputError("there are no ids to delete", hint="give ids, or --from FILE with one id a line")
    with Index.open(index) as opened:
        deleted = opened.delete(_typed(wanted) if opened.info()["id_type"] == "int64" else wanted)
        _report(opened, as_json, deleted_now=deleted)


@app.command()
def info(index: IndexPath, as_json: AsJson = False) -> None:
    """Show what an index holds."""
    from rbegir.index.store import Index

    with Index.open(index, read_only=True) as opened:
        _report(opened, as_json)


@app.command()
def verify(index: IndexPath, as_json: AsJson = False) -> None:
    """Read every byte of an index and check it; names each file and block that is damaged."""
    from rbegir.index.verify import damage

    found = [error.message for error in damage(index)]
    if as_json:
        print(json.dumps({"ok": not found, "damage": found}))
    else:
        for message in found:
            print(f"damaged: {message}", file=sys.stderr)
        print(f"{index}: {f'{len(found)} damaged' if found else 'every byte is as it was written'}")
    if found:
        raise typer.Exit(1)


@app.command()
def compact(index: IndexPath, as_json: AsJson = False) -> None:
    """Rewrite an index into few large segments without what was deleted."""
    from rbegir.index.store import Index

    with Index.open(index) as opened:
        with _bar("compacting") as show:
            opened.compact(lambda done, total: show(done / total if total else 1.0))
        _report(opened, as_json)


def _build_on_cluster(
    model: Path,
    texts: Path,
    out: Path,
    address: str,
    *,
    text_column: str,
    id_column: str,
    overwrite: bool,
    strict: bool,
    segment_rows: int,
) -> dict[str, Any]:
    from rbegir.cli.options import cluster_address
    from rbegir.cluster.bulk import build as build_bulk
    from rbegir.cluster.rowgroups import Reading

    with _bar("building") as show:

        def progress(step: str, done: float) -> None:
            show(done if step == "encoding" else 0.0 if step == "counting" else 1.0)

        made = build_bulk(
            out,
            model,
            texts,
            address=cluster_address(address),
            reading=Reading(text_column, id_column, strict),
            overwrite=overwrite,
            segment_rows=segment_rows,
            progress=progress,
        )
    return {"skipped": made.skipped, "resumed_segments": made.resumed}


@contextlib.contextmanager
def _bar(title: str) -> Iterator[Callable[[float], None]]:
    """A progress bar on stderr; what it gives takes the fraction that is done."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task(title, total=1.0)
        yield lambda done: progress.update(task, completed=done)


@contextlib.contextmanager
def _watched(stream: TextStream, title: str) -> Iterator[Iterator[pa.RecordBatch]]:
    """The batches of a file with a progress bar; afterwards what was skipped is said."""

    def batches(show: Callable[[float], None]) -> Iterator[pa.RecordBatch]:
        for batch in stream:
            yield batch
            show(stream.progress)
        show(1.0)

    with _bar(title) as show:
        yield batches(show)
    if stream.skipped:
        print(str(stream.skipped), file=sys.stderr)


def _report(index: Index, as_json: bool, **more: Any) -> None:
    facts = {**index.info(), **more}
    if as_json:
        print(json.dumps(facts))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(show_header=False, box=None)
    for name, value in facts.items():
        if isinstance(value, dict):
            value = ", ".join(f"{key}: {part}" for key, part in value.items()) or "none"
        table.add_row(name.replace("_", " "), f"{value:,}" if type(value) is int else str(value))
    Console().print(table)


def _lines(path: Path) -> list[str]:
    from rbegir.errors import FileError

    try:
        return path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise FileError(f"cannot read {path}: {error}") from error


def _typed(ids: list[str]) -> list[int]:
    from rbegir.errors import InputError

    try:
        return [int(text) for text in ids]
    except ValueError as error:
        raise InputError(f"the ids of this index are whole numbers: {error}") from error
