"""What is compared with the codes: quantisers, grades of the top five, each against its definition."""

from __future__ import annotations

from pathlib import Path

import faiss
import numpy as np
import pyarrow as pa
import pytest
import torch

from rbegir.encode.binarizer.learn import rotation
from rbegir.lab.bench import quantizers, residual
from rbegir.lab.reproduce import equal_bytes, testbed
from rbegir.lab.reproduce.dataset import load


def test_signs_of_both_sides() -> None:
    x = np.random.default_rng(1).standard_normal((4000, 64)).astype(np.float32)
    outcome = equal_bytes.both_signs(x, x, 8, 0)
    assert outcome.bytes == 8
    assert set(np.unique(np.rint(outcome.ask(x[:50]) @ rotation(64, 0)))) == {-1.0, 1.0}
    assert outcome.decoded is not None
    estimate = outcome.ask(x[:50]) @ outcome.decoded.T
    assert np.corrcoef((x[:50] @ x.T).ravel(), estimate.ravel())[0, 1] > 0.6  # 2/π of the variance each


def test_a_coarse_query_has_eight_even_levels_per_dimension() -> None:
    q = np.random.default_rng(2).standard_normal((40, 64)).astype(np.float32)
    levels = equal_bytes.coarse(q) @ rotation(64, 0)  # the rotation undone: odd integers
    np.testing.assert_allclose(levels, np.rint(levels), atol=1e-4)
    assert {abs(int(level)) for level in np.rint(levels).ravel()} == {1, 3, 5, 7}
    cosine = torch.cosine_similarity(torch.from_numpy(q), torch.from_numpy(equal_bytes.coarse(q)))
    # eight even levels lose 3.7 % of a Gaussian's variance, and each query has the scale that suits it
    assert 1 - cosine.mean() ** 2 == pytest.approx(0.037, abs=0.006)
    assert np.array_equal(equal_bytes.coarse(5 * q), equal_bytes.coarse(q))


def test_our_own_codes_stand_for_the_vectors() -> None:
    x = np.random.default_rng(5).standard_normal((2000, 64)).astype(np.float32)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    outcome = equal_bytes.wide_codes(x, x, 16, 0)
    assert outcome.bytes == 16
    assert outcome.decoded is not None
    assert outcome.decoded.shape == (2000, 128)
    assert len(np.unique(np.abs(outcome.decoded))) == 1  # one bit: ± one value
    estimate = outcome.ask(3 * x[:50]) @ outcome.decoded.T
    assert np.corrcoef((x[:50] @ x.T).ravel(), estimate.ravel())[0, 1] > 0.93


def test_the_beam_search_here_is_faiss_s(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(3)
    x = (rng.standard_normal((700, 12)) @ rng.standard_normal((12, 12))).astype(np.float32)
    index = faiss.index_factory(12, "RQ5x4", faiss.METRIC_INNER_PRODUCT)
    index.train(x)
    rq = faiss.downcast_index(index).rq
    books = torch.from_numpy(faiss.vector_to_array(rq.codebooks).reshape(5, 16, 12))
    codec = residual.Residual(list(books), rq.max_beam_size)
    monkeypatch.setattr(residual, "ROWS", 300)
    theirs = index.sa_decode(index.sa_encode(x))
    np.testing.assert_allclose(codec.decode(x), theirs, atol=1e-4)
    codec.beam = 1
    assert ((codec.decode(x) - x) ** 2).mean() > ((theirs - x) ** 2).mean()


def test_ranks_of_a_sampled_search(folder: Path) -> None:
    bed = testbed.Testbed(load(folder), torch.device("cpu"))
    chosen = np.arange(0, len(bed.queries), 2)
    right = {int(q): int(t) for q, t in zip(bed.query, bed.target, strict=True)}
    found = np.full((len(chosen), 5), -1, dtype=np.int64)
    for row, query in enumerate(chosen):
        found[row, row % 5] = right[int(query)]  # the first of five finds it at rank 0, the second at 1 …
    result = equal_bytes.sampled_recall(bed, chosen, found)
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
    judged = testbed.Judgements(labels, pa.array(["x", "y", "z"], pa.large_string()))
    assert judged.added.to_pylist() == ["new"]
    counts = judged.count(np.array([[0, 1, 3], [0, 2, 2]]))
    assert counts == {"bad": 1, "fair": 1, "good": 2, "unjudged": 2}
    only = judged.asked_in({"SemSearch_ES": labels.slice(3), "all": labels})
    assert only.tolist() == [False, True]
    counts = judged.count(np.array([[0, 1, 3], [0, 2, 2]]), only)
    assert counts == {"bad": 0, "fair": 0, "good": 1, "unjudged": 2}


def test_a_part_of_the_corpus_holds_every_target(folder: Path) -> None:
    bed = testbed.Testbed(load(folder), torch.device("cpu"))
    kept, place = bed.part(200)
    assert len(kept) == len(kept.unique()) == 200
    assert torch.equal(kept[place], bed.target)
    assert kept.tolist() == sorted(kept.tolist()), "ties are broken by the order of the corpus"
