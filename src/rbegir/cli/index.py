"""`rbegir index`: build, change, inspect, verify, compact, back up and migrate a stored index."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

import rbegir
from rbegir.base.progress import reported
from rbegir.cli import options
from rbegir.cli.options import option, print_json, shown, tell, whole_option
from rbegir.errors import FileError, InputError, MismatchError

if TYPE_CHECKING:
    from rbegir.encode.encoder import Encoder
    from rbegir.read.pairs import TextStream
    from rbegir.read.vectors import VectorStream

app = typer.Typer(no_args_is_help=True, help="Build and change a stored index.")

TEXTS = "one per line (.txt, or - for standard input), or Parquet, CSV, TSV or JSONL with a text column."
VECTORS = "Or vectors: .npy, .fvecs or .bvecs."
ID_TYPES = ("int64", "string")
WORD_TEXTS = 1_000_000  # that words are weighed by, at most
VECTOR_COLUMN = option(
    None, "Column of a Parquet file that holds vectors; they are encoded, not the texts.", metavar="COLUMN"
)


@app.command()
def build(
    sources: list[Path] = typer.Argument(
        ...,
        metavar="MODEL TEXTS",
        help=f"Directory of a trained model (left out with --encoder), and the texts: {TEXTS} {VECTORS} "
        "Before vectors comes the directory of a Binarizer, if none is to be fitted.",
    ),
    out: Path = option(..., "Directory to create, for example ads.rbe.", metavar="INDEX"),
    encoder: str | None = option(
        None,
        "Encode with this sentence-transformers model instead: a directory, or a name in the "
        "local cache. Nothing is downloaded.",
        metavar="NAME_OR_PATH",
    ),
    vector_column: str | None = VECTOR_COLUMN,
    metric: str | None = option(None, "With vectors: cosine, ip or l2.", show_default="cosine"),
    n: int | None = option(
        None, "With --encoder or vectors: dimension of the codes.", show_default="the encoder's"
    ),
    keyword_planes: int | None = option(
        None, "With --encoder or vectors: bits per dimension.", show_default="2"
    ),
    code_bytes: int | None = option(
        None,
        "With --encoder or vectors: bytes per keyword. Fitting chooses the bits per dimension, and the "
        "dimension if --n is not given.",
        "--bytes",
    ),
    words: bool = option(
        False, "With --encoder: searches by text also find and order keywords by their words."
    ),
    text_column: str = options.TEXT_COLUMN,
    id_column: str = options.ID_COLUMN,
    id_type: str | None = options.ID_TYPE,
    columns: str | None = options.COLUMNS,
    tenant: str | None = option(
        None, "Column that holds the tenant of a keyword, for searches with --tenant.", metavar="COLUMN"
    ),
    overwrite: bool = option(False, "Replace an index that is there already."),
    upsert: bool = option(False, "If rows have the same id, keep the last instead of failing."),
    strict: bool = options.STRICT,
    cluster: str | None = options.CLUSTER,
    segment_rows: int = whole_option(1 << 20, "Keywords held in memory, and per segment."),
    as_json: bool = options.AS_JSON,
) -> None:
    """Encode all texts or vectors and store them in a new index; other columns become attributes.

    The index appears when it is complete. An interrupted build leaves no index behind; with --cluster, its
    finished parts are kept beside it, and the same command resumes from them.
    """
    vectors = _are_vectors(sources[-1], vector_column)
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
    if words and not encoder:
        raise InputError("--words belongs to --encoder", hint="a trained model searches by words already")
    given = {"n": n, "keyword_planes": keyword_planes, "bytes": code_bytes}
    shape = {name: value for name, value in given.items() if value is not None}
    if shape and not vectors and not encoder:
        raise InputError(
            "--n, --keyword-planes and --bytes belong to --encoder and to vectors", hint="a model has its own"
        )
    if {"keyword_planes", "bytes"} <= shape.keys():
        raise InputError(
            "--keyword-planes and --bytes cannot both be given", hint="--bytes chooses the bits per dimension"
        )
    made_with: Any = {"tenant": tenant, "overwrite": overwrite, "segment_rows": segment_rows}
    if cluster is not None:
        if encoder:
            raise InputError("--cluster builds with a trained model", hint="leave out --encoder or --cluster")
        if upsert:
            raise InputError("--cluster refuses duplicate ids", hint="leave out --upsert or --cluster")
        if id_type:
            raise InputError("--cluster keeps the types of ids", hint="leave out --id-type or --cluster")
        from rbegir.cluster.bulk import build as build_bulk
        from rbegir.read.pairs import Reading

        with options.bar("building") as show:
            built = build_bulk(
                out,
                *sources,
                **made_with,
                address=options.cluster_address(cluster),
                reading=Reading(text_column, id_column, strict, options.names_in(columns)),
                progress=lambda step, done: show({"counting": 0.0, "encoding": done}.get(step, 1.0)),
            )
        with rbegir.Index.open(out, read_only=True) as made:
            _report(made, as_json, skipped=built.skipped, resumed_segments=built.resumed)
        return
    names = {"text_column": text_column, "id_column": id_column, "columns": options.names_in(columns)}
    stream = _stream(sources[-1], vector_column, strict, id_type=_id_type(id_type), **names)
    if vectors:
        model: Encoder = _vector_encoder(sources, stream, shape, metric)
    elif encoder:
        model = _sentence_encoder(encoder, stream, shape, words)
    else:
        model = rbegir.Model.load(sources[0])
    with rbegir.Index.build(out, model, stream, upsert=upsert, **made_with) as index:
        options.tell_skipped(stream)
        _report(index, as_json, skipped=stream.skipped.to_dict())


@app.command()
def add(
    index: Path = options.INDEX_PATH,
    texts: Path = typer.Argument(..., help=f"Texts: {TEXTS} {VECTORS}"),
    upsert: bool = option(
        False, "Replace keywords that have the same id; if rows have the same id, keep the last."
    ),
    text_column: str = options.TEXT_COLUMN,
    vector_column: str | None = VECTOR_COLUMN,
    id_column: str = options.ID_COLUMN,
    id_type: str | None = options.ID_TYPE,
    columns: str | None = options.COLUMNS,
    strict: bool = options.STRICT,
    as_json: bool = options.AS_JSON,
) -> None:
    """Add texts to an index. They become durable a million at a time; an interrupted run keeps those."""
    from rbegir.index.creation import fill

    with rbegir.Index.open(index) as opened:
        facts = opened.info()
        known = facts["id_type"] if facts["next_row"] else None
        names = {"text_column": text_column, "id_column": id_column, "columns": options.names_in(columns)}
        stream = _stream(texts, vector_column, strict, id_type=_id_type(id_type) or known, **names)
        added = fill(opened, stream, upsert=upsert)
        options.tell_skipped(stream)
        _report(opened, as_json, added=added, skipped=stream.skipped.to_dict())


@app.command()
def delete(
    index: Path = options.INDEX_PATH,
    ids: list[str] | None = typer.Argument(None, metavar="ID…", help="Ids to delete."),
    ids_from: Path | None = option(None, "A file with one id per line.", "--from"),
    where: str | None = option(None, "Delete all that pass this filter, such as: price < 10"),
    tenant: str | None = option(
        None, "Delete only keywords of this tenant; all of them without ID and --where."
    ),
    as_json: bool = options.AS_JSON,
) -> None:
    """Delete keywords by id, or by a filter; ids that are not there are ignored."""
    from rbegir.base.arguments import number_named, tenant_named

    wanted: list[Any] | None = list(ids) if ids else None
    if ids_from:
        try:
            wanted = (wanted or []) + ids_from.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            raise FileError(f"{ids_from} cannot be read: {reason}") from error
    if not wanted and where is None and (tenant is None or ids_from):
        raise InputError(
            "there are no ids to delete", hint="give ids, --from FILE with one id per line, or --where"
        )
    with rbegir.Index.open(index) as opened:
        if wanted and opened.info()["id_type"] == "int64":
            numbers = [number_named(text) for text in wanted]
            if None in numbers:
                wrong = wanted[numbers.index(None)]
                raise InputError(f"the ids of this index are 64-bit whole numbers, got {wrong!r}")
            wanted = numbers
        own = tenant_named(tenant, opened.info())
        deleted = opened.delete(wanted, where=where, tenant=own)
        _report(opened, as_json, deleted_now=deleted)


@app.command()
def update(
    index: Path = options.INDEX_PATH,
    table: Path = typer.Argument(..., help="Parquet, CSV, TSV or JSONL with an id column and attributes."),
    id_column: str = options.ID_COLUMN,
    columns: str | None = option(
        None, "Attributes to change, such as price,lang.", show_default="all of TABLE", metavar="NAMES"
    ),
    strict: bool = options.STRICT,
    as_json: bool = options.AS_JSON,
) -> None:
    """Change attributes of keywords. All ids must exist; a missing value clears the stored one.

    Texts and attributes that TABLE lacks stay, and nothing is encoded. Changes become durable a block of rows
    at a time; an interrupted run can be repeated.
    """
    from rbegir.read.pairs import read_attributes

    with rbegir.Index.open(index) as opened:
        names = options.names_in(columns)
        known = opened.info()["id_type"]
        stream = read_attributes(table, id_column=id_column, strict=strict, id_type=known, columns=names)
        if not stream.attributes:
            raise InputError(f"{table} has no attributes", hint="give it a column for each one to change")
        updated = sum(opened.update(batch["id"], batch.drop_columns(["id"])) for batch in stream)
        options.tell_skipped(stream)
        _report(opened, as_json, updated=updated, skipped=stream.skipped.to_dict())


@app.command()
def count(
    index: str = options.INDEX_ADDRESS,
    where: str | None = option(None, "Count those that pass this filter, such as: price < 10"),
    tenant: str | None = option(None, "Count only keywords of this tenant."),
    as_json: bool = options.AS_JSON,
) -> None:
    """Count the keywords of an index, or those that pass a filter."""
    from rbegir.base.arguments import tenant_named

    with rbegir.Index.open(index, read_only=True) as opened:
        found = opened.count(where, tenant=tenant_named(tenant, opened.info()))
    tell({"keywords": found}, as_json, f"{found:,}")


@app.command()
def info(index: Path = options.INDEX_PATH, as_json: bool = options.AS_JSON) -> None:
    """Show what an index holds."""
    with rbegir.Index.open(index, read_only=True) as opened:
        _report(opened, as_json)


@app.command()
def verify(
    index: Path = options.INDEX_PATH,
    salvage: Path | None = option(None, "Copy what is intact to a new index.", metavar="OUT"),
    as_json: bool = options.AS_JSON,
) -> None:
    """Read every byte of an index and check it; names each file and block that is damaged.

    With --salvage, intact keywords go to a new index, and lost ones are listed by file and row.
    """
    from rbegir.index.snapshot import damage

    try:
        with reported(None, "verifying") as report:
            found = [error.message for error in damage(index, report)]
    except FileError as error:
        if salvage is None or not index.is_dir():
            raise
        found = [error.message]
    facts: dict[str, Any] = {"ok": not found, "damage": found}
    for message in [] if as_json else found:
        print(f"damaged: {shown(message)}", file=sys.stderr)
    if salvage is not None:
        facts["salvage"] = rbegir.Index.salvage(index, salvage)
    state = f"{len(found)} damaged" if found else "every byte is as it was written"
    tell(facts, as_json, f"{index}: {state}")
    if salvage is not None and not as_json:
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
def compact(index: Path = options.INDEX_PATH, as_json: bool = options.AS_JSON) -> None:
    """Rewrite an index into a few large segments, without the deleted keywords."""
    with rbegir.Index.open(index) as opened:
        opened.compact()
        _report(opened, as_json)


@app.command()
def backup(
    index: Path = options.INDEX_PATH,
    dest: Path = typer.Argument(..., metavar="DEST", help="Directory to create, or an earlier backup."),
    as_json: bool = options.AS_JSON,
) -> None:
    """Copy an index, which may be in use, to DEST; an earlier backup there is brought up to date.

    Only files that DEST lacks are copied; the others are checked. DEST is replaced when the copy is complete.
    It is an index: search it, or restore it with `rbegir index backup DEST NEW`.
    """
    with rbegir.Index.open(index, read_only=True) as opened:
        facts = opened.backup(dest)
    copied = f"{facts['copied']} of {facts['files']} files copied"
    tell(facts, as_json, f"{dest}: {facts['keywords']:,} keywords; {copied}")


@app.command()
def migrate(
    old: Path = typer.Argument(..., metavar="OLD", help="Directory of the index to take keywords from."),
    new: Path = typer.Argument(
        ..., metavar="NEW", help="Directory of the index they go to; --model makes it."
    ),
    model: Path | None = option(
        None,
        "The model that `rbegir upgrade` wrote, for an index NEW that is not there yet.",
        metavar="DIRECTORY",
    ),
    most: int | None = whole_option(None, "Keywords to move in this run.", show_default="all of them"),
    batch: int = whole_option(100_000, "Keywords moved at a time."),
    as_json: bool = options.AS_JSON,
) -> None:
    """Re-encode keywords of an old generation, from their stored texts, into the index of a new model.

    A keyword is in NEW before it is gone from OLD, so an interrupted run loses nothing and the next one
    continues. Both can be searched meanwhile: rbegir search OLD QUERY --newer NEW
    """
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
    with rbegir.Generations([old, new]) as both, options.bar("migrating") as show:
        there = len(both.indexes[0])
        wanted, moved = there if most is None else min(most, there), 0
        while moved < wanted and (now := both.migrate(min(batch, wanted - moved))):
            moved += now
            show(moved / wanted)
        facts = {"moved": moved, "left": len(both.indexes[0]), "keywords": len(both.indexes[-1])}
    left, stored = facts["left"], facts["keywords"]
    tell(facts, as_json, f"moved {moved:,} keywords, {left:,} left in {old}, {stored:,} in {new}")
    if left and most is None and not as_json:
        print("the keywords left have no stored text to encode", file=sys.stderr)


def _sentence_encoder(name: str, stream: TextStream, shape: dict[str, int], words: bool) -> Encoder:
    """A sentence-transformers model; without an RBE head it gets a Binarizer fitted on the first texts."""
    from rbegir.encode.sentence.encoder import FIT_TEXTS, SentenceEncoder

    encoder = SentenceEncoder.load(name)
    if words:
        encoder.learn_words(options.take_texts(stream, WORD_TEXTS))
    if encoder.head is not None:
        if shape:
            raise InputError(
                "--n, --keyword-planes and --bytes are for encoders without an RBE head, "
                "this one has its own",
                hint="leave them out",
            )
        return encoder
    seen = options.take_texts(stream, FIT_TEXTS)
    print(f"fitting codes to {len(seen):,} texts", file=sys.stderr)
    with options.bar("fitting codes") as show:
        return encoder.fit(seen, notify=show, **shape)


def _are_vectors(path: Path, vector_column: str | None) -> bool:
    """Whether a file is to be read as vectors."""
    from rbegir.read.source import VECTOR_FORMATS

    return vector_column is not None or path.suffix.lower() in VECTOR_FORMATS


def _vector_encoder(
    sources: list[Path], stream: VectorStream, shape: dict[str, int], metric: str | None
) -> Encoder:
    """The Binarizer in the directory before the file, or else one that is fitted to the vectors."""
    from rbegir.encode.binarizer.binarizer import SAMPLE_VALUES, Binarizer

    if len(sources) == 2:
        if shape or metric is not None:
            raise InputError(
                "--n, --keyword-planes, --bytes and --metric are for a Binarizer that is fitted",
                hint="leave them out: the one given has its own",
            )
        return Binarizer.load(sources[0])
    settings: dict[str, Any] = {**shape, "metric": metric or "cosine"}
    return Binarizer(stream.dims, **settings).fit(stream.some(SAMPLE_VALUES // stream.dims))


def _stream(path: Path, vector_column: str | None, strict: bool, **columns: Any) -> Any:
    """The texts of a file, or its vectors."""
    from rbegir.read.pairs import read_texts
    from rbegir.read.vectors import read_vectors

    if _are_vectors(path, vector_column):
        return read_vectors(path, vector_column, **columns)
    return read_texts(path, strict=strict, **columns)


def _report(index: rbegir.Index, as_json: bool, **more: Any) -> None:
    facts = {**index.info(), **more}
    if as_json:
        print_json(facts)
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text  # a plain str would be read as markup

    table = Table(show_header=False, box=None)
    for name, value in facts.items():
        if isinstance(value, dict):
            value = ", ".join(f"{key}: {part}" for key, part in value.items()) or "none"
        text = Text(f"{value:,}" if type(value) is int else shown(value))
        table.add_row(name.replace("_", " "), text)
    Console().print(table)


def _id_type(given: str | None) -> str | None:
    if given not in (None, *ID_TYPES):
        raise InputError(f"--id-type must be {' or '.join(ID_TYPES)}, got {given!r}")
    return given


def _create_for(old: Path, new: Path, model: Path) -> None:
    """Create an empty index of the model, if its queries can read the codes of the old index."""
    from rbegir.index.manifest import read_manifest

    loaded, manifest = rbegir.Model.load(model), read_manifest(old)
    if manifest.fingerprint not in loaded.reads:
        raise MismatchError(
            f"the model {model} does not read the codes of {old}, which are of {manifest.fingerprint!r}",
            hint="make one with: rbegir upgrade OLD PAIRS --out DIRECTORY",
        )
    rbegir.Index.create(new, loaded, tenant=manifest.tenant).close()
