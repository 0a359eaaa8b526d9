"""Writes licences.tsv: the licence of every package of the tested environment, as its own metadata state it.

    python tools/licences.py        run it in the tested environment after constraints.txt has changed

A test compares the committed list with what is installed, and refuses a licence that would bind a user of
rbegir itself (its required packages) to more than attribution.
"""

from __future__ import annotations

import runpy
import sys
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LIST = ROOT / "licences.tsv"
UNSTATED = "not stated"


def licence(name: str) -> str | None:
    """The licence of an installed package; None for one that is not installed."""
    try:
        found = metadata.metadata(name)
    except metadata.PackageNotFoundError:
        return None
    classified = [c.split(" :: ")[-1] for c in found.get_all("Classifier", []) if c.startswith("License ::")]
    first_line = (found.get("License") or "").strip().splitlines()[:1]
    said = found.get("License-Expression") or "; ".join(classified) or "".join(first_line)
    return said.strip() or UNSTATED


def table(old: dict[str, str]) -> str:
    """The list; packages that are not installed here keep their old line."""
    pins = runpy.run_path(str(ROOT / "tools" / "lock.py"))["pins"]()
    rows = {name: licence(name) or old.get(name, UNSTATED) for name in pins}
    return "".join(f"{name}\t{said}\n" for name, said in rows.items())


def read() -> dict[str, str]:
    if not LIST.exists():
        return {}
    lines = LIST.read_text().splitlines()
    return dict(line.split("\t", 1) for line in lines)


if __name__ == "__main__":
    LIST.write_text(table(read()))
    sys.exit(0)
