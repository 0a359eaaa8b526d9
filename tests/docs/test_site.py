"""The documentation site builds without a warning, is complete, and asks no other host for anything."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import rbegir

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


def test_every_page_is_there(site: Path) -> None:
    pages = {path.stem for path in (ROOT / "docs").glob("*.md")}
    made = {"http", "security", "contributing", "changelog", "log"}
    assert pages | made <= {path.stem for path in site.glob("*.html")}


def test_no_asset_comes_from_another_host(site: Path) -> None:
    for page in site.rglob("*.html"):
        text = page.read_text()
        sources = re.findall(r'<(?:script|img|iframe|source)\b[^>]*\bsrc="([^"]+)"', text)
        sources += re.findall(r'<link\b(?![^>]*rel="canonical")[^>]*\bhref="([^"]+)"', text)
        assert sources
        foreign = [source for source in sources if re.match(r"(?:https?:)?//", source)]
        assert not foreign, f"{page.name} loads {foreign}"
    for style in site.rglob("*.css"):
        assert not re.search(r"(?:@import|url\()\s*[\"']?(?:https?:)?//", style.read_text()), style.name


def test_comments_are_not_published(site: Path) -> None:
    hidden = [path for path in (ROOT / "docs").glob("*.md") if "<!--" in path.read_text()]
    assert hidden
    for path in hidden:
        for comment in re.findall(r"^<!--(.*?)-->", path.read_text(), re.MULTILINE | re.DOTALL):
            first = comment.strip().splitlines()[0]
            assert first not in (site / f"{path.stem}.html").read_text(), f"{path.name}: {first}"


def test_the_python_reference_has_every_public_name(site: Path) -> None:
    listed = re.findall(r"^::: rbegir\.(\w+)$", (ROOT / "docs" / "api.md").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(set(rbegir.__all__) - {"__version__"})
    text = (site / "api.html").read_text()
    for name in listed:
        assert f'id="rbegir.{name}"' in text, name


def test_the_http_reference_has_every_route(site: Path) -> None:
    text = (site / "http.html").read_text()
    for route in ("POST /v1/search", "DELETE /v1/keywords", "GET /v1/keywords/{id}", "GET /metrics"):
        assert f"<code>{route}</code>" in text, route


def test_the_picture_of_the_packages_is_current() -> None:
    tool = runpy.run_path(str(ROOT / "tools" / "architecture.py"))
    assert tool["PICTURE"].read_text() == tool["picture"](tool["imports"]()), (
        "run: python tools/architecture.py"
    )


def test_the_picture_shows_upward_imports_and_leaves_out_implied_ones() -> None:
    tool = runpy.run_path(str(ROOT / "tools" / "architecture.py"))
    nothing: dict[str, set[str]] = {name: set() for row in tool["ROWS"] for name in row}
    graph = {**nothing, "cli": {"index", "search"}, "index": {"search"}, "codes": {"index"}}
    assert tool["neighbours"](graph) == [("cli", "index"), ("codes", "index"), ("index", "search")]
    assert 'class="up"' in tool["picture"](graph)
    assert 'class="up"' not in tool["picture"]({**graph, "codes": set()})


def test_version_and_citation_agree() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == rbegir.__version__
    assert citation["license"] == "Apache-2.0"
    assert f"## [{rbegir.__version__}]" in (ROOT / "CHANGELOG.md").read_text()


def test_files_that_guides_name_exist() -> None:
    """CONTRIBUTING.md by path, the architecture page by file name below the package of its section."""
    guide = (ROOT / "CONTRIBUTING.md").read_text()
    paths = re.findall(r"`((?:src|tests|tools|docs|dev|benchmarks)/[\w./-]+)`", guide)
    assert paths
    missing = [path for path in paths if not (ROOT / path).exists()]
    page = (ROOT / "docs" / "architecture.md").read_text()
    for section in re.split(r"^### ", page, flags=re.MULTILINE)[1:]:
        packages = re.findall(r"`(\w+)`", section.splitlines()[0])
        for name in re.findall(r"`(\w+\.py)`", section.split("\n## ")[0]):
            found = [path for package in packages for path in (ROOT / "src/rbegir" / package).rglob(name)]
            if not found and not (ROOT / "src/rbegir" / name).exists():
                missing.append(f"{packages}: {name}")
    assert not missing
