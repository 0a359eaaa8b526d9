"""Helpers shared by the commands: options and their parsers, progress on stderr, results on stdout."""

import contextlib
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import typer

from rbegir import errors
from rbegir.base.progress import reported


def whole(text: str) -> int:
    """A whole number; 1e9 and 1_000_000 are accepted."""
    for read in (int, float):
        with contextlib.suppress(ValueError, OverflowError):
            if (value := read(text)) == int(value):
                return int(value)
    raise typer.BadParameter(f"expected a whole number such as 1000 or 1e9, got {text!r}")


def wholes(text: str) -> list[int]:
    """Whole numbers separated by commas; none in an empty text."""
    return [whole(part) for part in text.split(",")] if text else []


def option(default: Any, help_text: str, *names: str, **settings: Any) -> Any:
    """An option of one command, as the default of its parameter; `...`: it must be given.

    Without `names` the option is called like the parameter. Options that several commands have stand below.
    """
    return typer.Option(default, *names, help=help_text, **settings)


def whole_option(default: Any, help_text: str, **settings: Any) -> Any:
    """An option whose value `whole` reads."""
    return option(default, help_text, parser=whole, metavar="INTEGER", **settings)


AS_JSON = option(False, "Print one JSON object to stdout.", "--json")
INDEX_PATH: Any = typer.Argument(..., metavar="INDEX", help="Directory of the index.")
INDEX_ADDRESS: Any = typer.Argument(..., metavar="INDEX", help="Directory or URL of the index.")
PAIRS: Any = typer.Argument(..., help="Pairs (query, keyword): Parquet, CSV, TSV or JSONL, gz allowed.")
QUERY_COLUMN = option("query", "Column of the queries.")
KEYWORD_COLUMN = option("keyword", "Column of the keywords.")
TEXT_COLUMN = option("text", "Column of the texts.")
ID_COLUMN = option("id", "Column of the ids, if there is one.")
ID_TYPE = option(None, "int64 or string; by default as the file has them, and text such as 00123 stays text.")
COLUMNS = option(
    None,
    "Columns to store as attributes, such as price,lang; '' for none.",
    show_default="all",
    metavar="NAMES",
)
STRICT = option(False, "Fail at the first bad row instead of skipping and counting it.")
EPOCHS = option(None, "Passes over the pairs.", show_default="by the number of pairs")
BATCH_SIZE = option(None, "Pairs per step.", show_default="by the number of pairs")
SEED = option(0, "Seed of everything random.")
RESUME = option(False, "Continue an interrupted run.", "--resume")
VALID = option(None, "Pairs to validate on; 2 % of the keywords are held out if not given.")
RERANK = option(
    None,
    "Rerank the best candidates by their texts; by default if the model has a reranker.",
    "--rerank/--no-rerank",
)
ANY_MODEL = option(None, "A trained model; random weights if not given.")
ROUNDS = option(5, "Rounds; figures are medians.", min=1)
THREADS = option(None, "CPU threads.", min=1, show_default="all cores")
SEARCH_DEVICE = option("cpu", "cpu, cuda, cuda:1 or several: cuda:0,cuda:1.")
TORCH_DEVICE = option("auto", "auto, cpu, cuda or cuda:N.")
CLUSTER = option(
    None,
    "Use a Ray cluster: host:port, auto, local, or nothing (RAY_ADDRESS, else this machine).",
    metavar="[ADDRESS]",
)

ANY_CLUSTER = "any"  # what `--cluster` without an address stands for


def some(given: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """Options of a command, picked from its `locals()`, to pass them on under the same names."""
    return {name: given[name] for name in names}


def names_in(text: str | None) -> list[str] | None:
    """Names separated by commas; None: all."""
    return None if text is None else [name for name in text.split(",") if name]


def cluster_address(given: str) -> str | None:
    """The address of `--cluster`; None: RAY_ADDRESS, or this machine alone."""
    return None if given == ANY_CLUSTER else given


def with_cluster_address(arguments: list[str]) -> list[str]:
    """The arguments with a value after every `--cluster`, which may be given without one."""
    filled: list[str] = []
    for place, argument in enumerate(arguments):
        filled.append(argument)
        rest = arguments[place + 1 :]
        if argument == "--cluster" and (not rest or rest[0].startswith("-")):
            filled.append(ANY_CLUSTER)
    return filled


def needing(what: str, extra: str) -> contextlib.AbstractContextManager[None]:
    """Around the imports of a command: if one fails, the error names the extra of rbegir that is needed."""
    return errors.needing(f"{what} needs {{}}", f"pip install 'rbegir[{extra}]'")


def take_texts(stream: Iterable[Any], most: int | None = None) -> list[str]:
    """The first texts of the batches of a file, all of them by default."""
    taken: list[str] = []
    for batch in stream:
        taken += batch.column("text").to_pylist()
        if most is not None and len(taken) >= most:
            break
    return taken[:most]


@contextlib.contextmanager
def bar(title: str) -> Iterator[Callable[..., None]]:
    """A progress bar (`base.progress`). Yields `show(share)` or `show(share, what)`."""
    with reported(None, title) as report:
        yield lambda share, what=None: report(share, what=what)


# Characters that a terminal acts on instead of showing: control characters and writing directions.
_ORDERS = {
    code: f"\\u{code:04x}" for code in (*range(0x7F, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A))
}


def tell_skipped(stream: Any, prefix: str = "") -> None:
    """Say on stderr how many rows of a file were left out, and how to find them."""
    if stream.skipped:
        print(f"{prefix}{stream.skipped}\nhint: {stream.skipped.hint}", file=sys.stderr)


def shown(value: object) -> str:
    """A value as text that is safe to print to a terminal: special characters are escaped."""
    return str(value).translate({**_ORDERS, **{code: f"\\u{code:04x}" for code in range(32)}})


def print_json(result: object, **settings: Any) -> None:
    """One JSON value on stdout; json itself escapes the ASCII control characters."""
    print(json.dumps(result, **settings).translate(_ORDERS))


def figure(value: Any) -> str:
    """A value as a cell of a table: numbers in four digits, of a spread its middle."""
    if isinstance(value, dict):
        value = value.get("median", value.get("mean"))
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return "" if value is None else f"{value:,}" if type(value) is int else shown(value)


def print_table(
    columns: Sequence[str] | Mapping[str, str], rows: Iterable[Mapping[str, Any]], **notes: str
) -> None:
    """A table for people, right-aligned after the first column.

    `columns` are the keys of the rows to show, or headings and the keys below them. `notes` are a title and a
    caption.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text  # a plain str would be read as markup

    keys = columns if isinstance(columns, Mapping) else {name: name for name in columns}
    table = Table(title=notes.get("title"), caption=notes.get("caption"))
    for number, heading in enumerate(keys):
        table.add_column(Text(shown(heading)), justify="right" if number else "left")
    for row in rows:
        table.add_row(*(Text(figure(row.get(key))) for key in keys.values()))
    Console().print(table)


def report(
    result: object,
    as_json: bool,
    columns: Sequence[str] | Mapping[str, str],
    rows: Iterable[Mapping[str, Any]],
    **notes: str,
) -> None:
    """A result as JSON for programs, or as a table for people (`print_table`)."""
    if as_json:
        print_json(result, indent=1)
    else:
        print_table(columns, rows, **notes)


def tell(facts: object, as_json: bool, sentence: str) -> None:
    """A result as JSON for programs, or as a sentence for people."""
    if as_json:
        print_json(facts)
    else:
        print(sentence)
