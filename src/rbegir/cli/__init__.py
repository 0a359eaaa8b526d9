"""The command line: one thin file a command, errors as one line with a hint, data on stdout, the rest on stderr."""

from __future__ import annotations

import importlib
import sys

import click
import typer
from typer.core import TyperGroup

from rbegir.errors import RbegirError

# command → module that defines it as `command` (a function) or `app` (a group); loaded only when it is used
COMMANDS = {
    "demo": "rbegir.cli.demo",
    "train": "rbegir.cli.train",
    "eval": "rbegir.cli.eval",
    "index": "rbegir.cli.index",
    "search": "rbegir.cli.search",
    "missrate": "rbegir.cli.missrate",
    "bench": "rbegir.cli.bench",
}


class _Lazy(TyperGroup):
    """Loads a command's module on use: `rbegir search` must not wait for the imports of `rbegir train`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(COMMANDS[cmd_name])
        command = typer.main.get_command(module.app)
        command.name = cmd_name
        return command


app = typer.Typer(
    cls=_Lazy,
    no_args_is_help=True,
    add_completion=False,
    help="Exhaustive, exact retrieval over learned binary embeddings.",
)


@app.callback()
def _root() -> None:
    pass


def main() -> None:
    """Run the command line; every expected failure is one line on stderr and exit status 1."""
    try:
        app(standalone_mode=True)
    except RbegirError as error:
        print(f"error: {error.message}", file=sys.stderr)
        if error.hint:
            print(f"hint: {error.hint}", file=sys.stderr)
        sys.exit(1)
    except BrokenPipeError:
        sys.exit(141)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
