"""CBOW with RBE layers: it learns from the shipped titles, and its codes are what an index stores."""

from __future__ import annotations

import gzip
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import rbegir
from rbegir.codes.score import keys
from rbegir.errors import InputError, MismatchError, TextError
from rbegir.lab.cbow import CBOW, CBOWConfig, contexts, words_of
from rbegir.read.sample import sample_path

CONFIG = CBOWConfig(min_count=20, epochs=6)


@pytest.fixture(scope="module")
def titles() -> list[str]:
    with gzip.open(sample_path("titles"), "rt") as file:
        return file.read().splitlines()


@pytest.fixture(scope="module")
def words(titles: list[str]) -> CBOW:
    return CBOW.fit(titles, CONFIG)


def substitutes(vocabulary: set[str]) -> list[tuple[str, str]]:
    """Words that editors put in each other's place: never seen in training."""
    found = set()
    with gzip.open(sample_path("train"), "rt") as file:
        for line in file:
            left, right = (words_of(side) for side in line.rstrip("\n").split("\t"))
            if len(left) == len(right) >= 2:
                different = [both for both in zip(left, right, strict=True) if both[0] != both[1]]
                if len(different) == 1 and vocabulary.issuperset(different[0]):
                    found.add(different[0])
    return sorted(found)


def found_share(model: CBOW) -> float:
    wanted = substitutes(set(model.vocabulary))
    assert len(wanted) > 500
    asked = sorted({word for word, _ in wanted})
    order, _ = model.neighbours(asked, 10)
    near = {w: {model.vocabulary[i] for i in row} for w, row in zip(asked, order, strict=True)}
    return float(np.mean([other in near[word] for word, other in wanted]))


def test_it_learns_which_words_replace_each_other(titles: list[str], words: CBOW) -> None:
    untrained = found_share(CBOW.fit(titles, replace(CONFIG, epochs=0)))
    chance = 10 / len(words.vocabulary)
    learned = found_share(words)
    assert learned > 3 * chance
    assert learned > 3 * untrained


def test_binary_neighbours_are_close_to_those_of_the_float_model(titles: list[str], words: CBOW) -> None:
    plain = CBOW.fit(titles, replace(CONFIG, planes=0, keyword_planes=1))
    assert plain.vocabulary == words.vocabulary
    asked = words.vocabulary[:200]
    ours, theirs = words.neighbours(asked, 20)[0], plain.neighbours(asked, 20)[0]
    shared = np.mean([len(set(a) & set(b)) / 20 for a, b in zip(ours, theirs, strict=True)])
    assert shared > 3 * 20 / len(words.vocabulary)
    with pytest.raises(MismatchError, match="a float word model has no codes"):
        plain.encode_queries(["river"])


def test_neighbours_equal_a_full_sort_of_the_scores(words: CBOW) -> None:
    asked = words.vocabulary[5:20]
    order, cosines = words.neighbours(asked, 7)
    stored = words.encode_keywords(words.vocabulary)
    scores = keys(words.encode_queries(asked).values(), stored)  # [asked, words]
    for row, word in enumerate(asked):
        own = words.vocabulary.index(word)
        ranked = [int(i) for i in np.argsort(-scores[row], kind="stable") if i != own]
        assert order[row].tolist() == ranked[:7]
    assert np.all(np.diff(cosines, axis=1) <= 0)
    assert words.similar(asked[0], 3) == [
        (words.vocabulary[i], pytest.approx(score))
        for i, score in zip(order[0][:3], cosines[0], strict=False)
    ]


def test_it_is_an_encoder_of_an_index(words: CBOW, tmp_path: Path) -> None:
    texts = words.vocabulary[:100]
    with rbegir.Index.create(tmp_path / "words.rbe", words) as index:
        index.add(texts)
        assert index.info()["bytes_per_keyword"] == 16
        hits = index.search([texts[3], f"{texts[3]} {texts[50]}"], k=5)
    expected = keys(words.encode_queries([texts[3]]).values(), words.encode_keywords(texts))[0]
    assert hits.keys[0].tolist() == sorted(expected.tolist(), reverse=True)[:5]


def test_the_same_seed_gives_the_same_codes(titles: list[str]) -> None:
    config = replace(CONFIG, epochs=1)
    first, second, other = (
        CBOW.fit(titles[:5000], replace(config, seed=seed, min_count=5)) for seed in (1, 1, 2)
    )
    assert first.fingerprint == second.fingerprint != other.fingerprint
    assert first.encode_queries(first.vocabulary) == second.encode_queries(first.vocabulary)


def test_contexts_stay_in_their_text() -> None:
    tokens = np.array([0, 1, 2, 3, 4, 5, 6])
    texts = np.array([0, 0, 0, 0, 1, 1, 2])
    words, lengths = contexts(tokens, texts, np.array([0, 2, 4, 6]), 2)
    assert lengths.tolist() == [2, 3, 1, 0]
    assert words.tolist() == [1, 2, 0, 1, 3, 5]


def test_bad_input(words: CBOW) -> None:
    with pytest.raises(InputError, match="texts hold 0 words that occur 5 times or more, at least 2"):
        CBOW.fit(["one two", "three four"])
    with pytest.raises(InputError, match="no text has two words of the vocabulary"):
        CBOW.fit(["one", "two"] * 9, CBOWConfig(min_count=1, subsample=1.0))
    with pytest.raises(InputError, match="'zzzz' is not one of the"):
        words.similar("zzzz")
    with pytest.raises(TextError, match="text at position 1 has no word of the model's vocabulary"):
        words.encode_queries([words.vocabulary[0], "zzzz"])
    for change, message in (
        ({"planes": 9}, r"planes must be from 0 \(float\) to 8, got 9"),
        ({"keyword_planes": 4}, "keyword_planes must be a whole number from 1 to 3, got 4"),
        ({"n": 100}, "n must be a multiple of 64"),
        ({"window": 0}, "window must be a whole number of at least 1, got 0"),
        ({"epochs": -1}, "epochs must be a whole number of at least 0, got -1"),
    ):
        with pytest.raises(InputError, match=message):
            CBOWConfig(**change)  # type: ignore[arg-type]
