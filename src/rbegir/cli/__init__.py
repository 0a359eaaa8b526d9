"""The command line: one file per family of commands; an error is one line and a hint; data goes to stdout.

Each file defines `app`, a Typer application with the commands of the family. Only the file of the given
command is imported, so `rbegir search` does not wait for what `rbegir train` needs.
"""

import importlib
import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from typing import Any, NoReturn

import typer

import rbegir
from rbegir.cli.options import shown, with_cluster_address
from rbegir.errors import RbegirError, TrainingWarning

COMMANDS = {  # command → the file that has it
    "demo": "demo",
    "train": "train",
    "upgrade": "train",
    "eval": "train",
    "search": "search",
    "join": "search",
    "mine": "search",
    "serve": "search",
    "mcp": "search",
    "missrate": "research",
    "plan": "research",
    "reproduce": "research",
}
GROUPS = ("index", "bench")
CONTINUED = {  # command → how to go on after Ctrl-C
    "train": "the same command with --resume continues this run",
    "upgrade": "the same command with --resume continues this run",
    "join": "the same command continues this run",
}
EXTRAS = {"torch": "train", "scipy": "train", "sklearn": "train", "ray": "cluster", "httpx": "client"}


def _version(asked: bool) -> None:
    if asked:
        print(f"rbegir {rbegir.__version__}")
        raise typer.Exit


def build(names: Iterable[str] = (*COMMANDS, *GROUPS)) -> typer.Typer:
    """The application with the commands of these names."""
    root = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)

    @root.callback()
    def _root(
        version: bool = typer.Option(
            False, "--version", callback=_version, is_eager=True, help="Print the version."
        ),
    ) -> None:
        """Exhaustive, exact retrieval over learned binary embeddings."""

    for name in names:
        app: typer.Typer = importlib.import_module(f"rbegir.cli.{COMMANDS.get(name, name)}").app
        if name in GROUPS:
            root.add_typer(app, name=name)
        else:
            (command,) = (found for found in app.registered_commands if found.name == name)
            assert command.callback is not None
            root.command(name)(command.callback)
    return root


@contextmanager
def _warnings_in_one_line() -> Iterator[None]:
    """Print warnings about a training without the line of Python that they come from."""
    show = warnings.showwarning

    def show_plainly(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
        if issubclass(category, TrainingWarning):
            print(f"warning: {shown(str(message))}", file=sys.stderr)
        else:
            show(message, category, *where, **more)

    with warnings.catch_warnings():
        warnings.simplefilter("always", TrainingWarning)
        warnings.showwarning = show_plainly
        yield


def main() -> None:
    """Run the command line; every expected failure is one line on stderr and exit status 1."""
    known = [name for name in sys.argv[1:2] if name in COMMANDS or name in GROUPS]
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # a terminal that cannot show a character shows its number
            stream.reconfigure(errors="backslashreplace")
    try:
        try:
            with _warnings_in_one_line():
                build(known or (*COMMANDS, *GROUPS))(with_cluster_address(sys.argv[1:]))
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()
    except RbegirError as error:
        fail(error.message, error.hint)
    except ModuleNotFoundError as error:  # of an extra that no command has asked for by name
        missing = (error.name or "").partition(".")[0]
        if missing in ("", "rbegir"):
            raise
        package = f"'rbegir[{EXTRAS[missing]}]'" if missing in EXTRAS else missing
        fail(f"this command needs {missing}, which is not installed", f"pip install {package}")
    except KeyboardInterrupt:
        if sys.argv[1:2] and (way := CONTINUED.get(sys.argv[1])):
            print(f"interrupted\nhint: {way}", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:
        sys.exit(141)  # the reader of a pipe left, as `head` does
    except OSError as error:
        sys.stdout = None  # Python would try to write the rest once more
        where = "the output" if error.filename is None else error.filename
        fail(f"{where} cannot be read or written: {error.strerror or error}", "check the disk and the path")


def fail(message: str, hint: str = "") -> NoReturn:
    """End with an error."""
    print(f"error: {shown(message)}", file=sys.stderr)
    if hint:
        print(f"hint: {shown(hint)}", file=sys.stderr)
    sys.exit(1)
