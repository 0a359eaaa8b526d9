"""Bits and bytes that must never change: gram ids, codes and files are stored, and outlive versions and
machines.

The weights are made of integers only, so that every machine makes the same ones; the golden values were
written once and hold for every instruction set, Python and NumPy.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import numpy.typing as npt

from rbegir.encode.clsm import checkpoint
from rbegir.encode.clsm.checkpoint import CONFIG, WEIGHTS
from rbegir.encode.clsm.presets import ModelConfig, tensor_shapes
from rbegir.encode.clsm.sides import NativeSide
from rbegir.read.tokenizer import tokenize
from tests.isa import every_isa

CONFIG_OF_THE_TEST = ModelConfig(conv=20, hash_buckets=64, hidden=(24,))
TEXTS = [
    "Cheap Flights to New York",
    "straße ½ İstanbul",
    "東京 タワー",
    "Ünïcödé e\u0301 \u0378",
    "x",
    "i ❤\ufe0f 2 grams",
    "хороший перевод",
    "a " * 40,
]


def weights() -> dict[str, npt.NDArray[np.float32]]:
    tensors = {}
    for number, (name, shape) in enumerate(tensor_shapes(CONFIG_OF_THE_TEST).items()):
        steps = np.arange(int(np.prod(shape)), dtype=np.uint64) + np.uint64(number << 32)
        mixed = steps * np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
        small = (mixed >> np.uint64(48)).astype(np.int64) - 32768  # sixteen bits
        tensors[name] = (small.astype(np.float32) / np.float32(2**17)).reshape(shape)
    return tensors


def digest(*arrays: npt.NDArray[np.generic]) -> str:
    content = b"".join(array.astype(array.dtype.newbyteorder("<")).tobytes() for array in arrays)
    return hashlib.sha256(content).hexdigest()[:16]


def test_gram_ids() -> None:
    batch = tokenize(TEXTS)
    assert batch.gram_ids[:6].tolist() == [119, 4408, 11138, 6898, 1961, 234]
    assert digest(*batch) == "2dabe30510c515eb"


@every_isa()
def test_codes(isa: str) -> None:
    tensors = weights()
    query = NativeSide(CONFIG_OF_THE_TEST, "query", tensors.__getitem__, isa=isa).planes(TEXTS)
    keyword = NativeSide(CONFIG_OF_THE_TEST, "keyword", tensors.__getitem__, isa=isa).planes(TEXTS)
    assert [f"{word:016x}" for word in query[:, 0, 0].tolist()] == [
        "358721359fe1dafd",
        "0282217b6bd86010",
        "b876e7060de1d082",
    ]
    assert digest(query, keyword) == "66716af3bd98b524"


def test_files(tmp_path: Path) -> None:
    fingerprint = checkpoint.write(tmp_path, CONFIG_OF_THE_TEST, weights(), {"note": "golden"})
    assert fingerprint == "9cf7cbd4a1e6d193fda3c7a5cc338825"
    for name, want in ((WEIGHTS, "1280cd0faa657e82"), (CONFIG, "8214e943afe69cbe")):
        assert hashlib.sha256((tmp_path / name).read_bytes()).hexdigest()[:16] == want
