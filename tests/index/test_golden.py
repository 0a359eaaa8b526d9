"""Indexes of every past version of the format open and answer as they did when they were made."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from rbegir.index.format import VERSION
from rbegir.index.store import Index
from tests.golden.make import answers, make

GOLDEN = Path(__file__).parent.parent / "golden"


@pytest.mark.parametrize("version", range(1, VERSION + 1))
def test_past_versions_answer_as_they_did(version: int) -> None:
    wanted = json.loads((GOLDEN / f"v{version}.json").read_text(encoding="utf-8"))
    assert answers(GOLDEN / f"v{version}.rbe") == wanted


@pytest.mark.parametrize("version", range(1, VERSION + 1))
def test_past_versions_can_be_changed(version: int, tmp_path: Path) -> None:
    shutil.copytree(GOLDEN / f"v{version}.rbe", tmp_path / "x.rbe")
    with Index.open(tmp_path / "x.rbe") as index:
        before = len(index)
        assert index.delete(["id3"]) == 1
        index.compact()
        index.verify()
        assert len(index) == before - 1


def test_the_current_version_is_written_byte_for_byte(tmp_path: Path) -> None:
    """A change of these bytes is a change of the format, and needs a new version and a new golden index."""
    make(tmp_path / "x.rbe")
    golden = GOLDEN / f"v{VERSION}.rbe"
    names = sorted(file.name for file in golden.iterdir())
    assert names == sorted(file.name for file in (tmp_path / "x.rbe").iterdir() if file.name != "LOCK")
    for name in names:
        assert (tmp_path / "x.rbe" / name).read_bytes() == (golden / name).read_bytes(), name
