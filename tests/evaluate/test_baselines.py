"""Tri-letter cosine against counting grams in plain Python, BM25 against its formula."""

from __future__ import annotations

import math
import re
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest

from rbegir.evaluate import retrieval, scorers
from rbegir.evaluate.groups import sample_groups
from rbegir.evaluate.scorers import BM25, TriletterCosine, gram_vectors

TEXTS = [
    "cheap flights", "cheap cheap flights", "flight", "a", "a a a", "ab", "banana", "bananas nanana",
    "1984", "nineteen eighty four", "straße", "москва", "moskva", "北京", "new york", "york new", "yorkshire",
]  # fmt: skip


def grams(text: str) -> Counter[str]:
    words = re.findall(r"\w+", text.casefold())
    return Counter(f"#{word}#"[i : i + 3] for word in words for i in range(len(word)))


def cosine(one: str, two: str) -> float:
    a, b = grams(one), grams(two)
    dot = sum(a[g] * b[g] for g in a)
    return dot / math.sqrt(sum(v * v for v in a.values()) * sum(v * v for v in b.values()))


def test_vectors_are_gram_counts() -> None:
    vectors = gram_vectors(TEXTS).toarray()
    similar = vectors @ vectors.T
    for i, one in enumerate(TEXTS):
        for j, two in enumerate(TEXTS):
            assert similar[i, j] == pytest.approx(cosine(one, two), abs=1e-6), (one, two)


def test_scores_of_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scorers, "_ROWS", 7)
    pairs = pa.table({"query": TEXTS[:-1], "keyword": TEXTS[1:]})
    groups = sample_groups(pairs, negatives=3)
    done: list[float] = []
    scores = TriletterCosine().score(groups, done.append)
    for row, query in enumerate(groups.query):
        for column, keyword in enumerate(groups.keyword[row]):
            expected = cosine(groups.queries[int(query)].as_py(), groups.keywords[int(keyword)].as_py())
            assert scores[row, column] == pytest.approx(expected, abs=1e-6)
    assert done[-1] == 1.0


@pytest.mark.parametrize("k", [1, 5, 100])
def test_search_is_the_sorted_cosine(monkeypatch: pytest.MonkeyPatch, k: int) -> None:
    monkeypatch.setattr(retrieval, "BLOCK", 5)
    monkeypatch.setattr(retrieval, "QUERY_BLOCK", 2)
    queries = pa.array(["flights", "new yorks", "bananas", "moskva 1984"])
    found = TriletterCosine().search(queries, pa.array(TEXTS), k, lambda _: None)
    assert found.shape == (4, min(k, len(TEXTS)))
    for row, query in enumerate(queries.to_pylist()):
        exact = np.array([cosine(query, text) for text in TEXTS])
        order = np.argsort(-np.round(exact, 6), kind="stable")[:k]
        assert np.allclose(exact[found[row]], exact[order], atol=1e-6)
        assert sorted(set(found[row].tolist())) == sorted(found[row].tolist())


def bm25(query: list[str], texts: list[list[str]], k1: float = 1.2, b: float = 0.75) -> list[float]:
    """Robertson's formula, one text at a time."""
    mean = sum(map(len, texts)) / len(texts)
    out = []
    for text in texts:
        score = 0.0
        for word in query:
            holders = sum(word in other for other in texts)
            if holders:
                idf = math.log(1 + (len(texts) - holders + 0.5) / (holders + 0.5))
                tf = text.count(word)
                score += idf * tf * (k1 + 1) / (tf + k1 * (1 - b + b * len(text) / mean))
        out.append(score)
    return out


def test_bm25_is_the_formula() -> None:
    rng = np.random.default_rng(0)
    words = [f"w{i}" for i in range(12)]
    texts = [list(rng.choice(words, rng.integers(1, 6))) for _ in range(40)]
    corpus = pa.array([" ".join(text) for text in texts], pa.large_string())
    for query in (["w0"], ["w3", "w7", "w11"], ["nothing", "w2"]):
        exact = np.array(bm25(query, texts))
        (found,) = BM25().search(pa.array([" ".join(query)]), corpus, 10, lambda _: None)
        assert exact[found] == pytest.approx(np.sort(exact)[::-1][:10], rel=1e-5)
