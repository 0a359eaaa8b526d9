"""`rbegir train` and `rbegir bench train`: JSON on stdout, one-line errors, nothing half-written."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from rbegir.cli import main
from rbegir.encode.clsm import presets

from .conftest import SMALL


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch, short_fits: None) -> None:
    """The preset at a size for tests."""
    monkeypatch.setitem(presets.PRESETS, "rbe_star", SMALL)


def rbegir(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr(sys, "argv", ["rbegir", *map(str, arguments)])
    with pytest.raises(SystemExit) as caught:
        main()
    return int(caught.value.code or 0)


def test_json(
    pairs_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "model"
    status = rbegir(
        monkeypatch, "train", pairs_file, "--out", out, "--epochs", 2, "--batch-size", 300, "--device", "cpu",
        "--negatives", "10", "--gamma", "8", "--json",
    )  # fmt: skip
    assert status == 0
    told = capsys.readouterr()
    result = json.loads(told.out)
    assert {"log_loss", "roc_auc", "pairs_per_s", "model", "preset", "best_epoch", "skipped"} <= set(result)
    assert result["epochs"] == 2
    assert result["gamma"] == pytest.approx(8)
    assert "epoch 2" in told.err
    assert (out / "config.json").exists()


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (["--preset", "m_9"], "unknown preset 'm_9'", "choose one of"),
        (["--recipe", "best"], "unknown recipe 'best'", "choose one of default, paper"),
        (["--negatives", "many"], "negatives must be 'in_batch' or a positive integer, got 'many'", ""),
        (["--gamma", "0"], "gamma must be 'learned' or a number above 0 and at most 40, got 0.0", ""),
        (["--valid", "x.tsv", "--no-valid"], "--valid and --no-valid contradict each other", "leave one"),
        (["--query-column", "q"], "query", ""),
        (["--valid", "x.tsv"], "x.tsv", ""),
    ],
)
def test_errors(
    arguments: list[str],
    message: str,
    hint: str,
    pairs_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "model"
    assert rbegir(monkeypatch, "train", pairs_file, "--out", out, "--device", "cpu", *arguments) == 1
    told = capsys.readouterr()
    assert told.out == ""
    error = next(line for line in told.err.splitlines() if line.startswith("error: "))
    assert message in error
    if hint:
        assert any(line.startswith(f"hint: {hint}") for line in told.err.splitlines())
    assert "Traceback" not in told.err
    assert not out.exists()


def test_without_torch(
    pairs_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert rbegir(monkeypatch, "train", pairs_file, "--out", tmp_path / "model") == 1
    assert capsys.readouterr().err == "error: training needs torch\nhint: pip install 'rbegir[train]'\n"


def test_bench(pairs_file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [
        "bench",
        "train",
        "--pairs",
        pairs_file,
        "--device",
        "cpu",
        "--batch-size",
        500,
        "--epochs",
        1,
    ]
    assert rbegir(monkeypatch, *arguments, "--rows", 4000, "--json") == 0
    result = json.loads(capsys.readouterr().out)
    assert result["pairs_per_s"] > 0
    assert result["pairs"] == 4000
    assert result["spread"] == [result["pairs_per_s"]] * 2
    assert set(result["parts_ms"]) == {
        "tokenise",
        "build",
        "transfer",
        "forward",
        "loss",
        "backward",
        "update",
    }
    assert set(result["floor_ms"]) == {"forward", "loss", "backward", "update"}
    assert result["host"]["cores"] >= 1
    assert rbegir(monkeypatch, *arguments, "--negatives", "10") == 0
    assert "pairs/s" in capsys.readouterr().out
