"""The accuracy benchmark: figures against a plain count, every cheap method, and a page that is current."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from rbegir.bench import accuracy, quantizers
from rbegir.cli.bench import app
from rbegir.errors import FileError, InputError

ROOT = Path(__file__).resolve().parents[2]
CHEAP = ("binarizer", "binarizer_start", "scalar", "sign_rescore")


def test_recalls_are_counts() -> None:
    truth = np.arange(100)[None]
    found = np.arange(100)[None].copy()
    found[0, :5] = np.arange(200, 205)  # five of the top 10 missed, the best among them
    assert accuracy.recalls(found, truth) == {"recall@10": 0.5, "recall@100": 0.95, "recall@1": 0.0}
    assert accuracy.recalls(truth[:, ::-1], truth)["recall@10"] == 0.0
    assert accuracy.recalls(truth[:, ::-1], truth)["recall@100"] == 1.0


def test_sizes_round_dimensions_up() -> None:
    assert accuracy.sizes(50, (1, 2), (16, 32)) == [8, 16, 32]
    assert accuracy.sizes(384, (2,), ()) == [96]


def test_levels_are_those_of_the_best_gaussian_quantiser() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((4000, 64)).astype(np.float32)
    for bits, error in ((1, 0.363), (2, 0.1175), (3, 0.0345), (4, 0.0095)):  # Max, 1960
        outcome = quantizers.scalar(x, x, 8 * bits, 0)
        assert outcome is not None
        assert outcome.decoded is not None
        assert ((x - outcome.decoded) ** 2).mean() == pytest.approx(error, rel=0.03)


def test_the_command_measures_and_prints_one_json(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    vectors = (rng.standard_normal((1500, 40)) * np.arange(1, 41) ** -0.5).astype(np.float16)
    np.save(tmp_path / "v.npy", vectors)
    options = ["--vectors", str(tmp_path / "v.npy"), "--bits", "1,2", "--queries-count", "50", "--seeds", "2"]
    run = CliRunner().invoke(app, ["accuracy", *options, "--methods", ",".join(CHEAP), "--json"])
    assert run.exit_code == 0, run.output
    result = json.loads(run.stdout)
    assert result["vectors"] == {"count": 1450, "dims": 40, "queries": 50, "train_rows": 1450}
    found = {(row["method"], row["budget_bytes"]): row for row in result["summary"]}
    assert set(found) == {(m, b) for m in CHEAP for b in (8, 16)} - {("sign_rescore", 16)}
    for row in result["cells"]:
        assert row["bytes"] == row["code_bytes"] + row["factor_bytes"]
        assert 0 < row["recall@10"] <= 1
    ours, plain = (found[m, 16]["recall@10"] for m in ("binarizer", "scalar"))
    assert ours["low"] <= ours["mean"] <= ours["high"]
    assert ours["mean"] > plain["mean"]
    table = CliRunner().invoke(
        app, ["accuracy", *options[:4], "--queries-count", "50", "--methods", "scalar"]
    )
    assert table.exit_code == 0
    assert "recall@10" in table.stdout


def test_bad_arguments(tmp_path: Path) -> None:
    (tmp_path / "v.npy").write_bytes(b"no array")
    with pytest.raises(FileError, match="cannot read vectors from"):
        accuracy.load(tmp_path / "v.npy")
    few = np.ones((30, 8), np.float32)
    with pytest.raises(InputError, match="30 vectors are too few"):
        accuracy.measure(few, query_count=20)
    with pytest.raises(InputError, match="unknown method 'magic'"):
        accuracy.measure(few, few, methods=("magic",))


def test_the_page_shows_the_committed_results() -> None:
    tool = runpy.run_path(str(ROOT / "tools" / "vectors_page.py"))
    assert tool["PAGE"].read_text() == tool["page"](), "run: python tools/vectors_page.py"
    assert tool["PICTURE"].read_text() == tool["picture"](tool["load"]()), "run: python tools/vectors_page.py"
