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
