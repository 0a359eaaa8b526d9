"""`rbegir index`: build, change, inspect, verify, compact, back up and migrate a stored index."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rbegir.cli.options import (
    AsJson,
    ClusterAddress,
    Columns,
    IdType,
    IndexPath,
    Strict,
    TextColumn,
    bar,
    cluster_address,
    names_in,
    option,
    print_json,
    take_texts,
    whole_option,
)
from rbegir.cli.vectors import VectorColumn, are_vectors, vector_encoder
from rbegir.errors import FileError, InputError, MismatchError

if TYPE_CHECKING:
    from rbegir.encode.encoder import Encoder
    from rbegir.index.store import Index
    from rbegir.read.pairs import TextStream

app = typer.Typer(no_args_is_help=True, help="Build and change a stored index.")

Texts = Annotated[
    Path,
    typer.Argument(
        help="Texts: one per line (.txt, or - for standard input), or Parquet, CSV, TSV or JSONL with a text "
        "column. Or vectors: .npy, .fvecs or .bvecs."
    ),
]
ID_TYPES = ("int64", "string")
IdColumn = Annotated[str, option("Column of the ids, if there is one.")]


@app.command()
def build(
    sources: Annotated[
        list[Path],
        typer.Argument(
            metavar="MODEL TEXTS",
            help="Directory of a trained model (left out with --encoder), and the texts: one per line "
            "(.txt, or - for standard input), or Parquet, CSV, TSV or JSONL with a text column. Or vectors "
            "(.npy, .fvecs, .bvecs), and before them the directory of a Binarizer if one is not to be "
            "fitted.",
        ),
    ],
    out: Annotated[Path, option("Directory to create, for example ads.rbe.", metavar="INDEX")],
    encoder: Annotated[
        str | None,
        option(
            "Encode with this sentence-transformers model instead: a directory, or a name in the local "
            "cache. Nothing is downloaded.",
            metavar="NAME_OR_PATH",
        ),
    ] = None,
    vector_column: VectorColumn = None,
    metric: Annotated[
        str | None, option("With vectors: cosine, ip or l2 orders them.", show_default="cosine")
    ] = None,
    n: Annotated[
        int | None,
        option("With --encoder or vectors: dimension of the codes.", show_default="the encoder's"),
    ] = None,
    keyword_planes: Annotated[
        int | None, option("With --encoder or vectors: bits per dimension.", show_default="2")
    ] = None,
    text_column: TextColumn = "text",
    id_column: IdColumn = "id",
    id_type: IdType = None,
    columns: Columns = None,
    tenant: Annotated[
        str | None,
        option("Column that says whose a keyword is, for searches with --tenant.", metavar="COLUMN"),
    ] = None,
    overwrite: Annotated[bool, option("Replace an index that is there already.")] = False,
    upsert: Annotated[
        bool, option("Of rows with the same id keep the last instead of refusing them.")
    ] = False,
    strict: Strict = False,
    cluster: ClusterAddress = None,
    segment_rows: Annotated[int, whole_option("Keywords held in memory, and per segment.")] = 1 << 20,
    as_json: AsJson = False,
) -> None:
    """Encode all texts or vectors and store them in a new index; other columns become attributes.

    The index appears when it is complete. An interrupted build leaves nothing behind; with --cluster, its
    finished parts are kept beside it, and the same command resumes from them.
    """
    from rbegir.index.store import Index

    vectors = are_vectors(sources[-1], vector_column)
    if len(sources) not in ((1, 2) if vectors else (1,) if encoder else (2,)):
        wanted = "TEXTS alone" if encoder else "MODEL and TEXTS"
        raise InputError(
            f"expected {wanted}, got {', '.join(map(str, sources))}",
            hint="rbegir index build MODEL TEXTS --out INDEX; MODEL is the directory that training wrote",
        )
    if vectors and (encoder or cluster is not None):
        raise InputError("vectors are encoded by a Binarizer", hint="leave out --encoder and --cluster")
    if metric is not None and not vectors:
        raise InputError("--metric is for vectors", hint="a model has its own")
    if cluster is not None:
        if encoder:
            raise InputError("--cluster builds with a trained model", hint="leave out --encoder or --cluster")
        if upsert:
            raise InputError("--cluster refuses duplicate ids", hint="leave out --upsert or --cluster")
        if id_type:
            raise InputError("--cluster keeps the types of ids", hint="leave out --id-type or --cluster")
        from rbegir.cluster.bulk import build as build_bulk
        from rbegir.read.parquet import Reading

        with bar("building") as show:
            built = build_bulk(
                out,
                sources[0],
                sources[1],
                address=cluster_address(cluster),
                reading=Reading(text_column, id_column, strict, names_in(columns)),
                overwrite=overwrite,
                segment_rows=segment_rows,
                tenant=tenant,
                progress=lambda step, done: show({"counting": 0.0, "encoding": done}.get(step, 1.0)),
            )
        with Index.open(out, read_only=True) as made:
            _report(made, as_json, skipped=built.skipped, resumed_segments=built.resumed)
        return
    names = {"text_column": text_column, "id_column": id_column, "columns": names_in(columns)}
    stream = _stream(sources[-1], vector_column, strict, id_type=_id_type(id_type), **names)
    if vectors:
        model: Encoder = vector_encoder(sources, stream, n, keyword_planes, metric)
    elif encoder:
        model = _sentence_encoder(encoder, stream, n, keyword_planes)
    else:
        if n is not None or keyword_planes is not None:
            raise InputError("--n and --keyword-planes belong to --encoder", hint="a model has its own")
        from rbegir.encode.clsm.model import Model

        model = Model.load(sources[0])
    with _watched(stream, "building") as show:
        index = Index.build(
            out,
            model,
            stream,
            tenant=tenant,
            overwrite=overwrite,
            upsert=upsert,
            segment_rows=segment_rows,
            progress=show,
        )
    with index:
        _report(index, as_json, skipped=stream.skipped.to_dict())


@app.command()
def add(
    index: IndexPath,
    texts: Texts,
    upsert: Annotated[
        bool, option("Replace keywords that have the same id; of rows with the same id keep the last.")
    ] = False,
    text_column: TextColumn = "text",
    vector_column: VectorColumn = None,
    id_column: IdColumn = "id",
    id_type: IdType = None,
    columns: Columns = None,
    strict: Strict = False,
    as_json: AsJson = False,
) -> None:
    """Add texts to an index. Each million of texts is durable on its own: an interrupted run keeps those."""
    from rbegir.index.creation import fill
    from rbegir.index.store import Index

    with Index.open(index) as opened:
        facts = opened.info()
        known = facts["id_type"] if facts["next_row"] else None
        names = {"text_column": text_column, "id_column": id_column, "columns": names_in(columns)}
        stream = _stream(texts, vector_column, strict, id_type=_id_type(id_type) or known, **names)
        with _watched(stream, "adding") as show:
            added = fill(opened, stream, upsert=upsert, progress=show)
        _report(opened, as_json, added=added, skipped=stream.skipped.to_dict())


@app.command()
def delete(
    index: IndexPath,
    ids: Annotated[list[str] | None, typer.Argument(metavar="ID…", help="Ids to delete.")] = None,
    ids_from: Annotated[Path | None, option("A file with one id per line.", "--from")] = None,
    where: Annotated[str | None, option("Delete all that pass this filter, such as: price < 10")] = None,
    tenant: Annotated[
        str | None, option("Delete only keywords of this tenant, all without ID and --where.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Delete keywords by id, or by a filter; ids that are not there are ignored."""
    from rbegir.base.arguments import tenant_named
    from rbegir.index.store import Index

    wanted: list[Any] = list(ids or []) + (_lines(ids_from) if ids_from else [])
    if not wanted and where is None and (tenant is None or ids_from):
        raise InputError(
            "there are no ids to delete", hint="give ids, --from FILE with one id per line, or --where"
        )
    with Index.open(index) as opened:
        if wanted and opened.info()["id_type"] == "int64":
            wanted = _typed(wanted)
        own = None if tenant is None else tenant_named(tenant, opened.info())
        deleted = opened.delete(wanted or None, where=where, tenant=own)
        _report(opened, as_json, deleted_now=deleted)


@app.command()
def info(index: IndexPath, as_json: AsJson = False) -> None:
    """Show what an index holds."""
    from rbegir.index.store import Index

    with Index.open(index, read_only=True) as opened:
        _report(opened, as_json)


@app.command()
def verify(
    index: IndexPath,
    salvage: Annotated[Path | None, option("Copy what is intact to a new index.", metavar="OUT")] = None,
    as_json: AsJson = False,
) -> None:
    """Read every byte of an index and check it; names each file and block that is damaged.

    With --salvage, intact keywords go to a new index, and lost ones are listed by file and row.
    """
    from rbegir.index.snapshot import damage

    try:
        found = [error.message for error in damage(index)]
    except FileError as error:
        if salvage is None or not index.is_dir():
            raise
        found = [error.message]
    facts: dict[str, Any] = {"ok": not found, "damage": found}
    for message in [] if as_json else found:
        print(f"damaged: {message}", file=sys.stderr)
    if salvage is not None:
        from rbegir.index.store import Index

        facts["salvage"] = Index.salvage(index, salvage)
    if as_json:
        print_json(facts)
    else:
        print(f"{index}: {f'{len(found)} damaged' if found else 'every byte is as it was written'}")
        if salvage is not None:
            _tell_salvage(facts["salvage"])
    if found:
        raise typer.Exit(1)


def _tell_salvage(report: dict[str, Any]) -> None:
    for part in report["segments"]:
        rows = ", ".join(f"{first} to {last}" for first, last in part["rows"][:10])
        more = f" and {len(part['rows']) - 10} more runs" if len(part["rows"]) > 10 else ""
        print(f"lost: {part['keywords']} keywords of {part['file']}, rows {rows}{more}", file=sys.stderr)
    for part in report["deletes"]:
        count = "an unknown number of" if part["unknown"] is None else part["unknown"]
        print(f"not known: {count} deletes of {part['segment']}; these keywords are back", file=sys.stderr)
    if report["manifest"] == "rebuilt":
        print("the manifest was lost and has been rebuilt from the segments", file=sys.stderr)
    if report["model"] == "lost":
        print("the model was damaged: open the new index with a copy of it", file=sys.stderr)
    print(f"{report['out']}: {report['keywords']} keywords saved, {report['lost']} lost")


@app.command()
def compact(index: IndexPath, as_json: AsJson = False) -> None:
    """Rewrite an index into a few large segments, without the deleted keywords."""
    from rbegir.index.store import Index

    with Index.open(index) as opened:
        with bar("compacting") as show:
            opened.compact(lambda done, total: show(done / total if total else 1.0))
        _report(opened, as_json)


@app.command()
def backup(
    index: IndexPath,
    dest: Annotated[Path, typer.Argument(metavar="DEST", help="Directory to create, or an earlier backup.")],
    as_json: AsJson = False,
) -> None:
    """Copy an index, which may be in use, to DEST; an earlier backup there is brought up to date.

    Only files that DEST lacks are copied; the others are checked. DEST is replaced when the copy is complete.
    It is an index: search it, or restore it with `rbegir index backup DEST NEW`.
    """
    from rbegir.index.store import Index

    with Index.open(index, read_only=True) as opened, bar("copying") as show:
        facts = opened.backup(dest, lambda done, total: show(done / total))
    if as_json:
        print_json(facts)
    else:
        print(f"{dest}: {facts['keywords']:,} keywords; {facts['copied']} of {facts['files']} files copied")


@app.command()
def migrate(
    old: Annotated[Path, typer.Argument(metavar="OLD", help="Directory of the index to take keywords from.")],
    new: Annotated[
        Path, typer.Argument(metavar="NEW", help="Directory of the index they go to; --model makes it.")
    ],
    model: Annotated[
        Path | None,
        option(
            "The model that `rbegir upgrade` wrote, for an index NEW that is not there yet.",
            metavar="DIRECTORY",
        ),
    ] = None,
    most: Annotated[
        int | None, whole_option("Keywords to move in this run.", show_default="all of them")
    ] = None,
    batch: Annotated[int, whole_option("Keywords moved at a time.")] = 100_000,
    as_json: AsJson = False,
) -> None:
    """Re-encode keywords of an old generation, from their stored texts, into the index of a new model.

    A keyword is in NEW before it is gone from OLD, so an interrupted run loses nothing and the next one
    continues. Both can be searched meanwhile: rbegir search OLD QUERY --newer NEW
    """
    from rbegir.index.generations import Generations

    for name, value in (("--most", most), ("--batch", batch)):
        if value is not None and value < 1:
            raise InputError(f"{name} must be at least 1, got {value}")
    if old.resolve() == new.resolve():
        raise InputError(f"OLD and NEW are both {old}", hint="new codes need an index of their own")
    if new.exists() and model is not None:
        raise InputError(f"{new} exists and has its model already", hint="leave out --model")
    if not new.exists():
        if model is None:
            raise InputError(
                f"{new} does not exist", hint="--model DIRECTORY makes it, with the model of `rbegir upgrade`"
            )
        _create_for(old, new, model)
    with Generations([old, new]) as both, bar("migrating") as show:
        there = len(both.indexes[0])
        wanted, moved = there if most is None else min(most, there), 0
        while moved < wanted and (now := both.migrate(min(batch, wanted - moved))):
            moved += now
            show(moved / wanted)
        facts = {"moved": moved, "left": len(both.indexes[0]), "keywords": len(both.indexes[-1])}
    if as_json:
        print_json(facts)
        return
    print(f"moved {moved:,} keywords, {facts['left']:,} left in {old}, {facts['keywords']:,} in {new}")
    if facts["left"] and most is None:
        print("the keywords left have no stored text to encode", file=sys.stderr)


def _sentence_encoder(name: str, stream: TextStream, n: int | None, keyword_planes: int | None) -> Encoder:
    """A sentence-transformers model; without an RBE head it gets a Binarizer fitted on the first texts."""
    from rbegir.encode.sentence.encoder import FIT_TEXTS, SentenceEncoder

    encoder = SentenceEncoder.load(name)
    if encoder.head is not None:
        if n is not None or keyword_planes is not None:
            raise InputError(
                "--n and --keyword-planes are for encoders without an RBE head, this one has its own",
                hint="leave them out",
            )
        return encoder
    seen = take_texts(stream, FIT_TEXTS)
    print(f"fitting codes to {len(seen):,} texts", file=sys.stderr)
    with bar("fitting codes") as show:
        return encoder.fit(seen, n=n, keyword_planes=keyword_planes or 2, notify=show)


def _stream(path: Path, vector_column: str | None, strict: bool, **columns: Any) -> Any:
    """The texts of a file, or its vectors."""
    from rbegir.read.pairs import read_texts
    from rbegir.read.vectors import read_vectors

    if are_vectors(path, vector_column):
        return read_vectors(path, vector_column, **columns)
    return read_texts(path, strict=strict, **columns)


@contextlib.contextmanager
def _watched(stream: TextStream, title: str) -> Iterator[Callable[[int, int], None]]:
    """A progress bar for (keywords encoded, all); afterwards, a line about skipped rows."""
    with bar(title) as show:
        yield lambda done, total: show(done / total)
    if stream.skipped:
        print(str(stream.skipped), file=sys.stderr)


def _report(index: Index, as_json: bool, **more: Any) -> None:
    facts = {**index.info(), **more}
    if as_json:
        print_json(facts)
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(show_header=False, box=None)
    for name, value in facts.items():
        if isinstance(value, dict):
            value = ", ".join(f"{key}: {part}" for key, part in value.items()) or "none"
        table.add_row(name.replace("_", " "), f"{value:,}" if type(value) is int else str(value))
    Console().print(table)


def _id_type(given: str | None) -> str | None:
    if given not in (None, *ID_TYPES):
        raise InputError(f"--id-type must be {' or '.join(ID_TYPES)}, got {given!r}")
    return given


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise FileError(f"cannot read {path}: {error}") from error


def _typed(ids: list[str]) -> list[int]:
    try:
        return [int(text) for text in ids]
    except ValueError as error:
        raise InputError(f"the ids of this index are whole numbers: {error}") from error


def _create_for(old: Path, new: Path, model: Path) -> None:
    """Create an empty index of the model, if its queries can read the codes of the old index."""
    from rbegir.encode.clsm.model import Model
    from rbegir.index.manifest import read_manifest
    from rbegir.index.store import Index

    loaded = Model.load(model)
    manifest = read_manifest(old)
    fingerprint = manifest.fingerprint
    if fingerprint not in loaded.reads:
        raise MismatchError(
            f"the model {model} does not read the codes of {old}, which are of {fingerprint!r}",
            hint="make one with: rbegir upgrade OLD PAIRS --out DIRECTORY",
        )
    Index.create(new, loaded, tenant=manifest.tenant).close()
