"""Every generated page is what the committed results and the command line make."""

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


def test_the_page_of_the_command_line_is_current() -> None:
    tool = runpy.run_path(str(ROOT / "tools" / "cli_docs.py"))
    assert tool["PAGE"].read_text() == tool["page"](), "run: python tools/cli_docs.py"


def test_figures_are_those_of_the_committed_results() -> None:
    tool = runpy.run_path(str(ROOT / "tools" / "results.py"))
    assert tool["README"].read_text() == tool["current_readme"](), "run: python tools/results.py"
    assert tool["PAGE"].read_text() == tool["page"](), "run: python tools/results.py"
