"""Semantic hashing with RBE layers: nearest docstrings come from the same subpackage."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

import rbegir
from benchmarks.docstrings import Document, docstrings
from rbegir.codes.score import keys
from rbegir.errors import InputError, MismatchError, MissingExtraError, TextError
from rbegir.lab.hashing import HashingConfig, SemanticHashing

CONFIG = HashingConfig(vocabulary=1000, epochs=15)


@pytest.fixture(scope="module")
def documents() -> list[Document]:
    return docstrings(["scipy"])


@pytest.fixture(scope="module")
def parts(documents: list[Document]) -> tuple[list[Document], list[Document]]:
    order = np.random.default_rng(0).permutation(len(documents))
    return [documents[i] for i in order[:300]], [documents[i] for i in order[300:1200]]


def texts(documents: list[Document]) -> list[str]:
    return [document.text for document in documents]


def precision(scores: npt.NDArray[np.int64], asked: list[Document], stored: list[Document]) -> float:
    labels = np.array([d.label for d in stored])
    nearest = np.argsort(-scores, axis=1, kind="stable")[:, :10]
    return float((labels[nearest] == np.array([[d.label] for d in asked])).mean())


def test_it_learns_what_documents_are_about(
    parts: tuple[list[Document], list[Document]], tmp_path: Path
) -> None:
    asked, stored = parts
    found = {}
    for epochs in (0, CONFIG.epochs):
        model = SemanticHashing.fit(texts(stored), replace(CONFIG, epochs=epochs))
        queries, keywords = model.encode_queries(texts(asked)), model.encode_keywords(texts(stored))
        found[epochs] = precision(keys(queries.values(), keywords), asked, stored)
    rng = np.random.default_rng(1)
    chance = precision(rng.integers(0, 1000, (len(asked), len(stored))), asked, stored)
    assert found[CONFIG.epochs] > found[0] + 0.05
    assert found[CONFIG.epochs] > chance + 0.3

    with rbegir.Index.create(tmp_path / "docs.rbe", model) as index:
        index.add(texts(stored))
        hits = index.search(texts(asked)[:3], k=4)
    expected = np.sort(keys(queries[:3].values(), keywords), axis=1)[:, ::-1][:, :4]
    assert np.array_equal(hits.keys, expected)


def test_docstrings_are_documents_with_classes(documents: list[Document]) -> None:
    labels = {document.label for document in documents}
    assert {"scipy.stats", "scipy.signal", "scipy.optimize"} <= labels
    assert len(documents) == len(set(texts(documents))) > 1000
    assert all(len(document.text.split()) >= 30 for document in documents)
    with pytest.raises(MissingExtraError, match="the docstrings of no_such_package need no_such_package"):
        docstrings(["no_such_package"])


def test_the_float_model_has_vectors_and_no_codes(parts: tuple[list[Document], list[Document]]) -> None:
    some = texts(parts[0])
    plain = SemanticHashing.fit(some, replace(CONFIG, planes=0, epochs=1))
    vectors = plain.embed(some[:5])
    assert vectors.shape == (5, 64)
    assert np.abs(vectors).max() <= 1
    assert plain.keyword_planes == plain.query_planes == 0
    with pytest.raises(MismatchError, match="a float document model has no codes"):
        plain.encode_keywords(some[:1])


def test_bad_input(parts: tuple[list[Document], list[Document]]) -> None:
    with pytest.raises(InputError, match="documents must be at least 2, got 1"):
        SemanticHashing.fit(["alone here"])
    with pytest.raises(InputError, match="fewer than 2 words that occur in more than one"):
        SemanticHashing.fit(["alpha beta", "gamma delta"])
    model = SemanticHashing.fit(texts(parts[0]), replace(CONFIG, epochs=0))
    with pytest.raises(TextError, match="document at position 1 has no word of the model's vocabulary"):
        model.encode_queries([parts[0][0].text, "12 34 !"])
    with pytest.raises(InputError, match="width must be a whole number of at least 1, got 0"):
        HashingConfig(width=0)
    with pytest.raises(InputError, match="keyword_planes must be a whole number from 1 to 2, got 3"):
        HashingConfig(planes=2, keyword_planes=3)
