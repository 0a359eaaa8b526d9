"""`rbegir index migrate`: keywords of an old generation encoded again by a new model."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from rbegir.cli.bars import bar
from rbegir.cli.options import whole


def migrate(
    old: Annotated[Path, typer.Argument(metavar="OLD", help="Directory of the index to take keywords from.")],
    new: Annotated[
        Path,
        typer.Argument(metavar="NEW", help="Directory of the index they go to; --model makes it."),
    ],
    model: Annotated[
        Path | None,
        typer.Option(
            metavar="DIRECTORY",
            help="The model that `rbegir upgrade` wrote, for an index NEW that is not there yet.",
            show_default=False,
        ),
    ] = None,
    most: Annotated[
        int | None,
        typer.Option(
            parser=whole, metavar="INTEGER", help="Keywords to move in this run.", show_default="all of them"
        ),
    ] = None,
    batch: Annotated[
        int, typer.Option(parser=whole, metavar="INTEGER", help="Keywords moved at a time.")
    ] = 100_000,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object to stdout.")] = False,
) -> None:
    """Encode keywords of an old generation again, from their stored texts, into the index of a new model.

    A keyword is in NEW before it is gone from OLD, so that a run that is stopped loses nothing and the next
    one goes on. Both can be searched meanwhile: rbegir search OLD QUERY --newer NEW
    """
    from rbegir.errors import InputError
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
        _create(old, new, model)
    with Generations([old, new]) as both, bar("migrating") as show:
        there = len(both.indexes[0])
        wanted, moved = there if most is None else min(most, there), 0
        while moved < wanted and (now := both.migrate(min(batch, wanted - moved))):
            moved += now
            show(moved / wanted)
        facts = {"moved": moved, "left": len(both.indexes[0]), "keywords": len(both.indexes[-1])}
    if as_json:
        print(json.dumps(facts))
        return
    print(f"moved {moved:,} keywords, {facts['left']:,} left in {old}, {facts['keywords']:,} in {new}")
    if facts["left"] and most is None:
        print("those left have no text to encode again", file=sys.stderr)


def _create(old: Path, new: Path, model: Path) -> None:
    """An empty index of the model, if its queries read the codes of the old one."""
    from rbegir.encode.clsm.model import Model
    from rbegir.errors import MismatchError
    from rbegir.index.manifest import read_manifest
    from rbegir.index.store import Index

    loaded = Model.load(model)
    fingerprint = read_manifest(old).fingerprint
    if fingerprint not in loaded.reads:
        raise MismatchError(
            f"the model {model} does not read the codes of {old}, which are of {fingerprint!r}",
            hint="make one with: rbegir upgrade OLD PAIRS --out DIRECTORY",
        )
    Index.create(new, loaded).close()
