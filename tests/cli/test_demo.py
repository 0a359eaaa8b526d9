"""The demo from end to end, on a small part of its sample."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from rbegir.cli import demo, main
from rbegir.encode.clsm import presets
from rbegir.read import sample
from rbegir.read.pairs import read_pairs
from tests.reranking import short_fits

Run = Callable[..., str]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Run]:
    """Runs the demo on 300 + 40 pairs, whose texts look like the markup of rich, with a small model."""
    titles = []
    for part, count in (("train", 300), ("valid", 40)):
        table = read_pairs(sample.sample_path(part)).read_all().slice(0, count)
        keywords = [f"{keyword} [/dim] [red]" for keyword in table["keyword"].to_pylist()]
        queries = [f"[/bold] {query}" for query in table["query"].to_pylist()]
        rows = ["query\tkeyword", *map("\t".join, zip(queries, keywords, strict=True))]
        (tmp_path / f"{part}.tsv").write_text("\n".join(rows) + "\n")
        titles += keywords
    (tmp_path / "titles.txt").write_text("\n".join(titles) + "\n")
    files = {"train": "train.tsv", "valid": "valid.tsv", "titles": "titles.txt"}
    monkeypatch.setattr(sample, "sample_path", lambda part: tmp_path / files[part])
    small = replace(presets.PRESETS[demo.PRESET], conv=16, hash_buckets=64)
    monkeypatch.setitem(presets.PRESETS, demo.PRESET, small)
    monkeypatch.setattr(demo, "BATCH", 64)
    monkeypatch.setenv("COLUMNS", "500")

    def call(*arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["rbegir", "demo", "--out", str(tmp_path / "out"), *arguments])
        with pytest.raises(SystemExit) as stopped:
            main()
        out, err = capsys.readouterr()
        assert not stopped.value.code, err
        return out

    with short_fits():
        yield call


def test_the_demo_reports_figures_and_hits(run: Run, tmp_path: Path) -> None:
    found = json.loads(run("--epochs", "1", "--json"))
    for name in ("recall@1", "recall@10", "code_recall@10", "triletter_recall@10"):
        assert 0 <= found[name] <= 1
    assert found["triletter_recall@10"] > 0.5
    assert found["recall@1"] <= found["recall@10"] <= found["recall@100"]
    files = [file for file in (tmp_path / "out" / "model").rglob("*") if file.is_file()]
    assert found["model_mb"] == round(sum(file.stat().st_size for file in files) / 1e6, 1) > 0
    assert len(found["queries"]) == demo.SHOWN_QUERIES
    for result in found["queries"]:
        assert result["query"].startswith("[/bold] ")
        assert [hit["text"][-13:] for hit in result["hits"]] == [" [/dim] [red]"] * 10
        assert all({"meaning", "spelling", "words", "code_rank"} <= set(hit["why"]) for hit in result["hits"])

    printed = run("--epochs", "1")  # which replaces the first model and index
    table, why = printed.split("Why each first hit is there:")
    assert all(name in table for name in (demo.SPELLING, demo.CODES, demo.RERANKED, "recall@10", "hit 3"))
    lines = why.strip().splitlines()
    assert len(lines) == demo.SHOWN_QUERIES
    for line, result in zip(lines, found["queries"], strict=True):
        assert result["query"] in table
        assert line.strip().startswith(f"{result['query']} → ")
        assert " [/dim] [red]  meaning " in line
