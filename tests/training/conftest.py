"""Small data that can be learned: misspelt and shortened titles, like those that people type."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from rbegir.encode.clsm.presets import ModelConfig
from rbegir.training.trainer import TrainResult, run
from tests import reranking

SMALL = ModelConfig(conv=16, hash_buckets=64)
# how `trained` was made
TRAINED = {"config": SMALL, "device": "cpu", "batch_size": 200, "epochs": 1, "rerank": False}


def synthetic_pairs(count: int, seed: int = 0) -> list[tuple[str, str]]:
    """Titles of three made-up words, and queries that leave one out and change a letter of another."""
    rng = np.random.default_rng(seed)
    letters = np.array(list("abcdefghijklmnopqrstuvwxyz"))
    words = ["".join(rng.choice(letters, size=rng.integers(4, 8))) for _ in range(400)]
    titles = [[words[i] for i in rng.choice(len(words), size=3, replace=False)] for _ in range(count // 2)]
    pairs = []
    for _ in range(count):
        title = titles[rng.integers(len(titles))]
        left_out = rng.integers(3)
        query = [word for i, word in enumerate(title) if i != left_out]
        place = rng.integers(len(query))
        letter = rng.integers(len(query[place]))
        query[place] = query[place][:letter] + rng.choice(letters) + query[place][letter + 1 :]
        pairs.append((" ".join(query), " ".join(title)))
    return pairs


@pytest.fixture(scope="session")
def pairs_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pairs") / "pairs.tsv"
    lines = ["query\tkeyword", *("\t".join(pair) for pair in synthetic_pairs(3000))]
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture(scope="session")
def trained(pairs_file: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[TrainResult, Path]:
    """One small model and its directory, for tests that only look at a finished training."""
    out = tmp_path_factory.mktemp("trained") / "model"
    return run(pairs_file, out=out, **TRAINED), out


@pytest.fixture
def short_fits() -> Iterator[None]:
    with reranking.short_fits():
        yield
