"""What a trained model is compared with: texts drawn at random, in an order that favours nobody."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from rbegir.evaluate.retrieval import CUTOFFS
from rbegir.read.pairs import read_pairs
from rbegir.training import rerank
from rbegir.training.rerank import compare, searched_texts
from tests.reranking import make_model

TEXTS = [f"item {number:05d}" for number in range(5000)]


def pairs_of(keywords: list[str]) -> pa.Table:
    """Queries that share no gram with any text."""
    return pa.table(
        {"query": [f"zz{'yx'[i % 2] * (i + 1)}" for i in range(len(keywords))], "keyword": keywords}
    )


@pytest.mark.parametrize("wanted", [slice(0, 20), slice(4980, 5000)])
def test_ties_do_not_favour_wanted_keywords(wanted: slice, tmp_path: Path) -> None:
    model, pairs = make_model(tmp_path / "model", TEXTS[:100]), pairs_of(TEXTS[wanted])
    held = pairs_of(TEXTS[wanted])
    found = compare(model, searched_texts(None, pa.array(TEXTS), held, 0), pairs, 0)
    assert list(found) == ["reranked", "codes", "tri-letter cosine", "BM25"]
    assert list(found["BM25"]) == [f"recall@{k}" for k in CUTOFFS]
    for method in ("tri-letter cosine", "BM25"):  # all texts score 0: 10 of 5,000 are found by chance
        assert found[method]["recall@10"] <= 0.05
    assert found == compare(model, searched_texts(None, pa.array(TEXTS), held, 0), pairs, 0)


def test_the_compared_texts_are_drawn_at_random(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rerank, "COMPARED_TEXTS", 400)
    monkeypatch.setattr(rerank, "COMPARED", 10)
    seen: list[pa.Array] = []
    monkeypatch.setattr(rerank.BM25, "search", lambda self, queries, corpus, k, progress: (
        seen.append(corpus), np.zeros((len(queries), k), np.int64))[1])  # fmt: skip
    model = make_model(tmp_path / "model", TEXTS[:100])
    compare(model, pa.array(TEXTS, pa.large_string()), pairs_of(TEXTS[:50]), 0)
    places = [TEXTS.index(text) for text in seen[0].to_pylist()]
    assert 400 <= len(places) <= 410
    assert len(set(places)) == len(places)
    assert 2000 < np.mean(places) < 3000
    assert 2000 < np.mean(places[:200]) < 3000  # those that are wanted are not at the beginning, either


def test_the_searched_texts_are_drawn_from_the_whole_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rerank, "TEXTS", 500)
    held = pairs_of(TEXTS[:3])

    def drawn(corpus: list[str] | None, keywords: list[str], seed: int = 0) -> list[int]:
        stream = read_pairs([("q", keyword) for keyword in keywords]) if keywords else None
        found = searched_texts(stream, None if corpus is None else pa.array(corpus), held, seed)
        return [TEXTS.index(text) for text in found.to_pylist()]

    places = drawn(TEXTS, [])
    assert set(range(3)) < set(places)
    assert set(places[:3]) != set(range(3))
    assert 500 <= len(places) <= 503
    assert 2200 < np.mean(places) < 2800  # of a sorted file, from one end to the other
    assert drawn(TEXTS[::-1], []) == places
    assert drawn(TEXTS[:2500], TEXTS[2500:]) == places
    assert drawn(None, TEXTS * 2) == places
    assert drawn(TEXTS, [], seed=1) != places
    assert sorted(drawn(TEXTS[:40], TEXTS[20:60])) == list(range(60))
