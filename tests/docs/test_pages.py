"""Every generated page and picture is what the committed results make."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NAMES = [
    "README.md",
    *(
        f"docs/{name}.md"
        for name in ("benchmarks", "generalisations", "reliability", "cluster", "plan", "upgrade", "vectors")
    ),
    "docs/reproduction.md",
    "docs/cli.md",
    "src/rbegir/lab/plan_figures.json",
    *(f"docs/img/{name}.svg" for name in ("hashing", "cbow", "recall")),
]
PROGRAM = """
import json, sys
sys.path.insert(0, "tools")
import pages
made = [*pages.pages(), *pages.pictures()]
json.dump({str(path.relative_to(pages.ROOT)): text for path, text in made}, sys.stdout)
"""


@pytest.fixture(scope="module")
def made() -> dict[str, str]:
    """What tools/pages.py would write, by path."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(done.stdout)
    return found


def test_all_are_checked(made: dict[str, str]) -> None:
    assert list(made) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_the_committed_page_is_current(made: dict[str, str], name: str) -> None:
    assert (ROOT / name).read_text() == made[name], "run: python tools/pages.py"


def test_pictures_are_there(made: dict[str, str]) -> None:
    for name, text in made.items():
        for picture in re.findall(r"!\[[^]]*\]\(([^)]+)\)", text) if name.endswith(".md") else ():
            assert ((ROOT / name).parent / picture).exists(), f"{name} shows {picture}"


def test_no_promise_was_broken() -> None:
    results = sorted((ROOT / "benchmarks" / "results").glob("torture-*.json"))
    assert results
    for path in results:
        assert json.loads(path.read_text())["losses"] == 0, path.name
