"""What stands beside the codes: BM25, quantisers, grades of the top five, each against its definition."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch

from rbegir.lab.bench import quantizers, residual
from rbegir.lab.reproduce import equal_bytes, studies, testbed
from rbegir.lab.reproduce.dataset import load
from rbegir.lab.reproduce.studies import Lexical


def bm25(query: list[str], titles: list[list[str]], k1: float = 1.5, b: float = 0.75) -> list[float]:
    """Lucene's formula, one title at a time."""
    mean = sum(map(len, titles)) / len(titles)
    out = []
    for title in titles:
        score = 0.0
        for word in query:
            holders = sum(word in other for other in titles)
            if holders:
                idf = math.log(1 + (len(titles) - holders + 0.5) / (holders + 0.5))
                tf = title.count(word)
                score += idf * tf / (tf + k1 * (1 - b + b * len(title) / mean))
        out.append(score)
    return out


def test_bm25_is_the_formula() -> None:
    rng = np.random.default_rng(0)
    words = [f"w{i}" for i in range(12)]
    titles = [list(rng.choice(words, rng.integers(1, 6))) for _ in range(40)]
    index = Lexical(pa.array([" ".join(title) for title in titles], pa.large_string()))
    for query in (["w0"], ["w3", "w7", "w11"], ["nothing", "w2"]):
        wanted = np.array(bm25(query, titles))
        (found,) = index.search([" ".join(query)], 10)
        hits = found[found >= 0]
        assert len(hits) == min(10, int((wanted > 0).sum()))
        assert wanted[hits] == pytest.approx(np.sort(wanted)[::-1][: len(hits)], rel=1e-5)
    assert (index.search(["nothing at all"], 3) == -1).all()


def test_two_bits_after_a_rotation_are_lloyd_s_levels() -> None:
    rng = np.random.default_rng(1)
    x = rng.standard_normal((4000, 64)).astype(np.float32)
    codec = equal_bytes._Rotated(x, bits=2, query_sign=False)
    assert codec.bytes == 16
    q = torch.from_numpy(x[:50])
    exact = x[:50] @ x.T
    estimate = codec.query(q).numpy() @ codec.decode(x).T
    assert (
        np.corrcoef(exact.ravel(), estimate.ravel())[0, 1] > 0.93
    )  # the best 4 levels keep 88 % of the variance
    assert ((codec.decode(x) - x @ codec._rotation) ** 2).mean() == pytest.approx(0.1175, abs=0.003)
    sign = equal_bytes._Rotated(x, bits=1, query_sign=True)
    assert sign.bytes == 8
    assert set(np.unique(sign.query(q).numpy())) == {-1.0, 1.0}


def test_a_coarse_query_has_eight_even_levels_a_dimension() -> None:
    q = torch.from_numpy(np.random.default_rng(2).standard_normal((40, 64)).astype(np.float32))
    levels = equal_bytes.coarse(q).numpy() @ equal_bytes.rotated(64)  # the rotation undone: odd integers
    np.testing.assert_allclose(levels, np.rint(levels), atol=1e-4)
    assert {abs(int(level)) for level in np.rint(levels).ravel()} == {1, 3, 5, 7}
    cosine = torch.nn.functional.cosine_similarity(q, equal_bytes.coarse(q))
    # eight even levels lose 3.7 % of a Gaussian's variance, and each query has the scale that suits it
    assert 1 - cosine.mean() ** 2 == pytest.approx(0.037, abs=0.006)
    assert torch.equal(equal_bytes.coarse(5 * q), equal_bytes.coarse(q))


def test_our_own_codes_stand_for_the_vectors() -> None:
    x = np.random.default_rng(5).standard_normal((2000, 64)).astype(np.float32)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    codec = equal_bytes._codec(x, equal_bytes.SLOW[1], torch.device("cpu"))
    codes = codec.decode(x)
    assert codec.bytes == 16
    assert codes.shape == (2000, 128)
    assert set(np.unique(codes)) == {-1.0, 1.0}
    estimate = codec.query(torch.from_numpy(3 * x[:50])).numpy() @ codes.T
    assert np.corrcoef((x[:50] @ x.T).ravel(), estimate.ravel())[0, 1] > 0.93


def test_the_beam_search_here_is_faiss_s(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(3)
    x = (rng.standard_normal((700, 12)) @ rng.standard_normal((12, 12))).astype(np.float32)
    codec = equal_bytes._Residual(x, "RQ5x4", torch.device("cpu"))
    monkeypatch.setattr(residual, "ROWS", 300)
    assert codec.bytes == 3
    np.testing.assert_allclose(codec.decode(x), equal_bytes._Faiss.decode(codec, x), atol=1e-4)
    codec.beam.beam = 1
    greedy = codec.decode(x)
    assert ((greedy - x) ** 2).mean() > ((equal_bytes._Faiss.decode(codec, x) - x) ** 2).mean()


def test_ranks_of_a_sampled_search(folder: Path) -> None:
    bed = testbed.Testbed(load(folder), torch.device("cpu"), hash_buckets=32)
    chosen = np.arange(0, len(bed.queries), 2)
    right = {int(q): int(t) for q, t in zip(bed.query, bed.target, strict=True)}
    found = np.full((len(chosen), 5), -1, dtype=np.int64)
    for row, query in enumerate(chosen):
        found[row, row % 5] = right[int(query)]  # the first of five finds it at rank 0, the second at 1 …
    result = equal_bytes._sampled(bed, "x", 16, chosen, found)
    assert result["recall@1"]["value"] == pytest.approx(np.mean([row % 5 == 0 for row in range(len(chosen))]))
    assert result["recall@10"]["value"] == 1.0
    assert result["queries"] == len(chosen)


def test_best_is_the_top_of_the_cosines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantizers, "BLOCK", 100)  # two queries at a time
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(n, 6, generator=generator) for n in (4, 50))
    cosines = torch.nn.functional.normalize(k) @ torch.nn.functional.normalize(q).T  # [50, 4]
    found = quantizers.top(q.numpy(), torch.nn.functional.normalize(k).numpy(), 5)
    assert found.tolist() == cosines.T.topk(5, dim=1).indices.tolist()


def test_grades_of_the_first_five() -> None:
    labels = pa.table(
        {"query": ["a", "a", "a", "b"], "keyword": ["x", "y", "new", "x"], "label": [2.0, 1.0, 0.0, 3.0]}
    )
    judged = studies.Judgements(labels, pa.array(["x", "y", "z"], pa.large_string()))
    assert judged.added.to_pylist() == ["new"]
    counts = judged.count(np.array([[0, 1, 3], [0, 2, -1]]))
    assert counts == {"bad": 1, "fair": 1, "good": 2, "unjudged": 1}


def test_a_part_of_the_corpus_holds_every_target(folder: Path) -> None:
    bed = testbed.Testbed(load(folder), torch.device("cpu"), hash_buckets=32)
    kept, place = bed.part(200)
    assert len(kept) == len(kept.unique()) == 200
    assert torch.equal(kept[place], bed.target)
    assert kept.tolist() == sorted(kept.tolist()), "ties are broken by the order of the corpus"
