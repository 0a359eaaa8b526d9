"""Option values that several commands read alike."""

from __future__ import annotations

import typer


def whole(text: str) -> int:
    """A whole number; 1e9 and 1_000_000 are ones too."""
    try:
        return int(text)
    except ValueError:
        pass
    try:
        value = float(text)
        if value == int(value):
            return int(value)
    except (ValueError, OverflowError):
        pass
    raise typer.BadParameter(f"expected a whole number such as 1000 or 1e9, got {text!r}")


def wholes(text: str) -> list[int]:
    """Whole numbers separated by commas."""
    return [whole(part) for part in text.split(",")]


ANY_CLUSTER = "any"  # what `--cluster` without an address stands for


def cluster_address(given: str) -> str | None:
    """The address of `--cluster`; None: RAY_ADDRESS, or this machine alone."""
    return None if given == ANY_CLUSTER else given


def with_cluster_address(arguments: list[str]) -> list[str]:
    """The arguments with something behind every `--cluster`, whose value may be left out."""
    filled: list[str] = []
    for place, argument in enumerate(arguments):
        filled.append(argument)
        rest = arguments[place + 1 :]
        if argument == "--cluster" and (not rest or rest[0].startswith("-")):
            filled.append(ANY_CLUSTER)
    return filled
