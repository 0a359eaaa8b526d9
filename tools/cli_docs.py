"""The text of docs/cli.md, from the command line itself; pages.py writes it."""

from __future__ import annotations

import re
from typing import Any

import typer

from rbegir.cli import build

HEAD = """# Command line

Data goes to stdout, everything else to stderr. `--json` prints one JSON value. An error is one line,
`error: …`, with a `hint: …` where there is a way out, and exit status 1; wrong usage is exit status 2.

```console
$ rbegir --version
$ rbegir --help
```

`rbegir --install-completion` makes your shell (bash, zsh, fish or PowerShell) complete commands and options with the Tab
key, from the next shell on. `rbegir --show-completion` prints the script instead.

This page is made by `tools/pages.py`.
"""


def page() -> str:
    root = typer.main.get_command(build())
    return HEAD + "".join(_section(f"rbegir {name}", command) for name, command in root.commands.items())  # type: ignore[attr-defined]


def _section(name: str, command: Any) -> str:
    if hasattr(command, "commands"):
        return "".join(_section(f"{name} {sub}", inner) for sub, inner in command.commands.items())
    words = [name, "[OPTIONS]"]
    rows = []
    for parameter in command.params:
        if parameter.name == "help":
            continue
        if parameter.param_type_name == "argument":
            shown = parameter.metavar or parameter.name.upper()
            words.append(shown + ("…" if parameter.nargs == -1 else ""))
            rows.append((shown, parameter.help or ""))
        else:
            help_text = parameter.help or ""
            default = parameter.default
            if isinstance(parameter.show_default, str):
                default = parameter.show_default
            elif not parameter.show_default or isinstance(default, bool) or callable(default):
                default = None
            if default is not None:
                help_text += f" Default: {default}."
            rows.append((", ".join(f"`{flag}`" for flag in parameter.opts), help_text))
    intro = re.sub(r"\s+", " ", (command.help or "").strip())
    table = "".join(f"| {left} | {right} |\n" for left, right in rows)
    return f"\n## {name}\n\n{intro}\n\n```text\n{' '.join(words)}\n```\n\n| | |\n|---|---|\n{table}"
