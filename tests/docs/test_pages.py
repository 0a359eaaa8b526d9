"""Every generated page and picture is what the committed results make."""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results"
NAMES = [
    "README.md",
    *(
        f"docs/{name}.md"
        for name in ("benchmarks", "generalisations", "reliability", "cluster", "plan", "upgrade", "vectors")
    ),
    "docs/reproduction.md",
    "docs/reproduction-small.md",
    "docs/cli.md",
    "src/rbegir/lab/plan_figures.json",
    *(f"docs/img/{name}.svg" for name in ("hashing", "cbow", "recall")),
]


@pytest.fixture(scope="module")
def made() -> dict[str, str]:
    """What tools/pages.py would write, by path."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "tools")
        tool = runpy.run_path(str(ROOT / "tools" / "pages.py"))
        found = [*tool["pages"](), *tool["pictures"]()]
    return {str(path.relative_to(ROOT)): text for path, text in found}


def test_all_are_checked(made: dict[str, str]) -> None:
    assert list(made) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_the_committed_page_is_current(made: dict[str, str], name: str) -> None:
    assert (ROOT / name).read_text() == made[name], "run: python tools/pages.py"


def test_plus_minus_means_the_same_on_every_page() -> None:
    pages = [*(ROOT / "docs").glob("*.md"), ROOT / "README.md"]
    spreads = {path.name for path in pages if re.search(r"\d ± \d", path.read_text())}
    said = {
        path.name for path in pages if "± is half of the 95 % interval" in " ".join(path.read_text().split())
    }
    assert spreads == said
    assert "| **±** | half of the 95 % interval" in (ROOT / "docs" / "glossary.md").read_text()


def test_the_first_screen_of_the_readme_is_short_and_names_the_losses(made: dict[str, str]) -> None:
    shown = made["README.md"].split("<!-- results: ")[1].split("<!-- end of results -->")[0]
    table, losses = shown.split("### What we lose")
    rows = [line.split(" | ") for line in table.splitlines() if line.startswith("| [")]
    assert len(rows) <= 9
    words = [len(re.sub(r"\(docs/[^)]*\)", "", cell).split()) for row in rows for cell in row]
    assert max(words) <= 24
    assert all("](docs/" in row[0] for row in rows)
    bullets = [line for line in losses.splitlines() if line.startswith("- **")]
    assert len(bullets) <= 6
    assert max(len(re.findall(r"\.(?: |$)", bullet.split("**")[2])) for bullet in bullets) <= 2
    lost = re.findall(r"^\| ([^|,]+)[^|]*\| (\d+) \| [^|]+\| -0", made["docs/vectors.md"], re.MULTILINE)
    assert lost
    for name, size in lost:
        assert re.search(rf"{name} in (\d+(, | and ))*{size}\b", bullets[0]), f"{name}, {size} bytes"


def test_pictures_are_there(made: dict[str, str]) -> None:
    for name, text in made.items():
        for picture in re.findall(r"!\[[^]]*\]\(([^)]+)\)", text) if name.endswith(".md") else ():
            assert ((ROOT / name).parent / picture).exists(), f"{name} shows {picture}"


def test_what_the_cpu_found_is_not_counted_for_the_gpu(made: dict[str, str]) -> None:
    result = json.loads((RESULTS / "torture-exact-gpu.json").read_text())
    found = sum(count for way, count in result["by_way"].items() if way.endswith("cuda:0"))
    assert 0 < found < result["results"]
    assert f"| {found:,} query results of a GPU" in made["docs/reliability.md"]


def test_no_promise_was_broken() -> None:
    results = sorted(RESULTS.glob("torture-*.json"))
    assert results
    for path in results:
        assert json.loads(path.read_text())["losses"] == 0, path.name
