"""The search task of Debian packages, made from a small list of them, and the benchmark of hits on it."""

from __future__ import annotations

import functools
import hashlib
import json
import random
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rbegir.cli import main
from rbegir.encode.clsm.presets import ModelConfig
from rbegir.errors import FileError, InputError
from rbegir.lab.bench import hits
from rbegir.read.pairs import read_pairs
from tests.reranking import WORDS, short_fits

TOOL = Path(__file__).resolve().parents[3] / "tools" / "packages.py"
PACKAGES = 150


@pytest.fixture(scope="module")
def tool() -> dict[str, Any]:
    return runpy.run_path(str(TOOL))


def pretend_apt() -> Callable[..., str]:
    """What apt would print about some packages, of which the last has no long description."""
    draw = random.Random(3)
    words = [word for word in WORDS if len(word) > 3 and word.isascii() and word.isalpha()]
    short, long = ([" ".join(draw.choices(words, k=k)) for _ in range(PACKAGES)] for k in (3, 8))
    available = [f"Package: p{i}\nDescription: {short[i]}\n {long[i]}" for i in range(PACKAGES)]
    translated = [
        f"Package: p{i}\nDescription-en: {short[i]}\n {long[i]}\n .\n end" for i in range(PACKAGES - 1)
    ]

    def apt(*arguments: str) -> str:
        return {
            "indextargets": "list-of-translations\n",
            "cat-file": "\n\n".join(translated) + "\n",
            "dumpavail": "\n\n".join(available) + "\n",
        }[arguments[1]]

    return apt


@pytest.fixture(scope="module")
def folder(tool: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("task") / "packages"
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(tool["main"].__globals__, "apt", pretend_apt())
        tool["main"](out)
    return out


def test_stanzas_join_continued_lines(tool: dict[str, Any]) -> None:
    text = "Package: a\nDescription: short\n long one\n .\n more\nSize: 3\n\n\nPackage: b\nTag:\n"
    assert tool["stanzas"](text) == [
        {"Package": "a", "Description": "short\n long one\n .\n more", "Size": "3"},
        {"Package": "b", "Tag": ""},
    ]


def test_queries_are_content_words(tool: dict[str, Any]) -> None:
    words = tool["content_words"]
    assert words("The X11 viewer for G++ files, a viewer of 3D maps") == ["x11", "viewer", "g++", "maps"]
    found = tool["queries"]("photo viewer", "shows river maps", random.Random(0))
    assert len(found) == 3
    assert all(1 <= len(query.split()) <= 4 for query in found)
    assert tool["queries"]("photo viewer", "", random.Random(0)) == []


@pytest.mark.parametrize(("share", "source"), [(0, "river maps shows"), (1, "photo viewer")])
def test_queries_may_come_from_one_description(
    tool: dict[str, Any], monkeypatch: pytest.MonkeyPatch, share: float, source: str
) -> None:
    monkeypatch.setitem(tool["queries"].__globals__, "typo", lambda word, draw: word)
    draw = random.Random(0)
    found = {
        word
        for _ in range(20)
        for query in tool["queries"]("photo viewer", "shows river maps", draw, share)
        for word in query.split()
    }
    assert found == set(source.split())


def test_the_share_of_short_words_is_checked(
    tool: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "argv", ["packages.py", str(tmp_path), "--short", "1.5"])
    with pytest.raises(SystemExit):
        runpy.run_path(str(TOOL), run_name="__main__")
    assert "--short must be a share from 0 to 1, got 1.5" in capsys.readouterr().err


def test_no_test_package_is_trained_on(folder: Path) -> None:
    def position(text: str) -> float:
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") / 2**64

    texts = (folder / "texts.txt").read_text().splitlines()
    assert len(texts) == PACKAGES
    train, test = (
        read_pairs(folder / f"{part}.tsv").read_all()["keyword"].to_pylist() for part in ("train", "test")
    )
    assert {text for text in texts[:-1] if position(text) < 0.04} == set(test)
    assert set(train) | set(test) == set(texts[:-1])
    assert not set(train) & set(test)
    assert len(train) + len(test) == 3 * (PACKAGES - 1)


def test_the_benchmark_of_hits(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = ModelConfig(n=64, conv=8, hash_buckets=16, share_towers=True)
    monkeypatch.setattr(hits, "train", functools.partial(hits.train, config=config, epochs=1, batch_size=100))
    arguments = ["--tasks", "packages:300", "--packages", str(folder), "--seeds", "1", "--device", "cpu"]
    monkeypatch.setattr(sys, "argv", ["rbegir", "bench", "hits", *arguments, "--json"])
    with short_fits(), pytest.raises(SystemExit) as stopped:
        main()
    assert not stopped.value.code
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["method"] for row in rows] == ["BM25", "tri-letter cosine", "codes", "reranked"]
    asked = len(set(read_pairs(folder / "test.tsv").read_all()["query"].to_pylist()))
    for row in rows:
        assert (row["task"], row["pairs"], row["texts"], row["queries"]) == (
            "packages:300",
            300,
            PACKAGES,
            asked,
        )
        recall = [row[f"recall@{k}"]["mean"] for k in (1, 10, 100)]
        assert 0 <= recall[0] <= recall[1] <= recall[2] <= 1
        assert len(row["recall@1"]["seeds"]) == 1
    assert rows[1]["recall@10"]["mean"] > 0.3
    assert rows[3]["model_mb"] > 0


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ("words", "unknown task 'words'"),
        ("packages", "unknown task 'packages'"),
        ("sample:3", "unknown task 'sample:3'"),
        ("titles", "the task titles needs its folder"),
        ("packages:3", "the task packages needs its folder"),
    ],
)
def test_other_tasks_are_refused(task: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        hits.run([task])


def test_refusals(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="the task titles needs its folder"):
        hits.run(["titles"])
    with pytest.raises(FileError, match=r"has no file train\.\*") as raised:
        hits.run(["packages:10"], packages=tmp_path)
    assert raised.value.hint == "--packages is a folder that tools/packages.py wrote"
