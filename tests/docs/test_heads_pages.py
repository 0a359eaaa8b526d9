"""The page of the generalisations, its pictures and the table of upgrades are those of the results."""

from __future__ import annotations

import runpy
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_pages_and_pictures_are_current() -> None:
    tool = runpy.run_path(str(ROOT / "tools" / "heads_pages.py"))
    assert tool["PAGE"].read_text() == tool["page"](), "run: python tools/heads_pages.py"
    assert tool["UPGRADE"].read_text() == tool["current_upgrade"](), "run: python tools/heads_pages.py"
    for path, drawing in tool["images"]().items():
        assert path.read_text() == drawing, "run: python tools/heads_pages.py"
