"""A small model with a reranker, made without training, texts to search, and short fits of rerankers."""

from __future__ import annotations

import random
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from rbegir import Model
from rbegir.encode.clsm import checkpoint
from rbegir.encode.clsm.presets import ModelConfig, random_tensors
from rbegir.encode.reranker import FEATURES, Combination, Reranker, Spelling

CONFIG = ModelConfig(n=64, conv=8, hash_buckets=16, share_towers=True)
WORDS = [
    "river",
    "rivers",
    "bank",
    "banks",
    "music",
    "musical",
    "player",
    "play",
    "chess",
    "cheese",
    "1984",
    "1985",
    "route",
    "66",
    "new",
    "york",
    "city",
    "café",
    "naïve",
    "straße",
    "東京",
    "tower",
    "map",
    "maps",
    "of",
    "the",
    "a",
    "blue",
    "bluer",
    "viewer",
    "reader",
    "writer",
    "photo",
    "photos",
    "database",
    "data",
    "base",
]


def short_fits() -> AbstractContextManager[Any]:
    """Training fits its reranker in few steps, for tests that do not ask how well it ranks."""
    from rbegir.training import rerank

    return mock.patch.multiple(rerank, FEW=100, QUERIES=100, STEPS=20)


def some_texts(count: int, seed: int = 0) -> list[str]:
    """Texts of one to six words; some repeat."""
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS, k=draw.randint(1, 6))) for _ in range(count)]


def make_model(path: Path, texts: list[str], seed: int = 0) -> Model:
    """A model with random weights and a reranker that weighs random features of these texts."""
    draw = np.random.default_rng(seed)
    checkpoint.write(path, CONFIG, random_tensors(CONFIG, seed))
    model = Model.load(path)
    count, hidden = len(FEATURES), 4

    def normal(*shape: int) -> np.ndarray:
        return draw.standard_normal(shape).astype(np.float32)

    combination = Combination(
        normal(count),
        np.abs(normal(count)),
        normal(count),
        normal(hidden, count),
        normal(hidden),
        normal(hidden),
    )
    guide = {
        f"{side}.{name}": normal(*shape)
        for side in ("query", "keyword")
        for name, shape in (("weight", (64, CONFIG.conv)), ("bias", (64,)))
    }
    spelling = Spelling.of([texts], hash_buckets=CONFIG.hash_buckets)
    Reranker(spelling, combination, guide, model.guide_vectors).write(path, model.fingerprint)
    return Model.load(path)
