"""What a trained model is compared with: texts drawn at random, in an order that favours nobody.

If the model is behind, it warns: once, truthfully, and with advice that can be followed.
"""

from __future__ import annotations

import sys
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from rbegir.cli import main
from rbegir.encode.clsm import presets
from rbegir.errors import TrainingWarning
from rbegir.evaluate.retrieval import CUTOFFS
from rbegir.read.pairs import PairStream, read_pairs
from rbegir.training import rerank
from rbegir.training.config import TrainConfig
from rbegir.training.rerank import compare, fit_reranker, searched_texts
from rbegir.training.trainer import _tell, run
from tests.reranking import make_model

from .conftest import SMALL

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


def test_a_fit_draws_from_the_whole_of_the_held_out_pairs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, short_fits: None
) -> None:
    """A file sorted by keyword holds out sorted pairs."""
    seen: list[pa.Table] = []
    collect = rerank.collect
    monkeypatch.setattr(rerank, "collect", lambda search, pairs, texts: (
        seen.append(pairs), collect(search, pairs, texts))[1])  # fmt: skip
    model, texts = make_model(tmp_path / "model", TEXTS[:100]), TEXTS[:1000]
    held = pairs_of(texts).append_column("weight", pa.array([1.0] * 1000)).cast(PairStream.schema)
    assert model.reranker is not None
    for seed in (0, 0, 1):
        fit_reranker(model, model.reranker.guide, pa.array(texts), held, seed)
    places = [[TEXTS.index(text) for text in table["keyword"].to_pylist()] for table in seen]
    assert len(set(places[0])) == 200 == 2 * rerank.QUERIES
    assert 400 < np.mean(places[0]) < 600
    assert places[0] == places[1] != places[2]


UNTAUGHT = {
    "config": SMALL,
    "settings": TrainConfig(epochs=1, batch_size=500, lr=1e-9, table_lr=1e-9),
    "device": "cpu",
    "rerank": False,
}


@pytest.mark.parametrize(
    ("pairs", "corpus", "advice"),
    [
        (True, False, "give more pairs, or the texts that will be searched as a corpus"),
        (True, True, "give more pairs"),
        (False, True, "give clicked pairs"),
    ],
)
def test_a_model_that_is_behind_warns_once(
    pairs: bool, corpus: bool, advice: str, pairs_file: Path, recwarn: pytest.WarningsRecorder
) -> None:
    warnings.simplefilter("always")
    result = run(pairs_file if pairs else None, corpus=TEXTS[:300] if corpus else None, **UNTAUGHT)
    assert list(result.recall) == ["codes", "tri-letter cosine", "BM25"]
    ours, *others = (figures["recall@10"] for figures in result.recall.values())
    (warning,) = recwarn.list
    assert warning.category is TrainingWarning
    best = ("tri-letter cosine", "BM25")[others.index(max(others))]
    figures = f"recall@10 is {ours:.3f} and {max(others):.3f}"
    expected = f"the model finds less than {best}, which needs no training: {figures}; {advice}"
    assert str(warning.message) == expected


def test_a_model_without_codes_is_compared_too(pairs_file: Path) -> None:
    shape = replace(SMALL, query_planes=0, keyword_planes=0)
    result = run(pairs_file, **{**UNTAUGHT, "config": shape, "rerank": True})
    assert list(result.recall) == ["vectors", "tri-letter cosine", "BM25"]


@pytest.mark.parametrize(
    ("reranked", "codes", "behind"), [(0.5, 0.6, None), (0.5, 0.4, None), (0.49, 0.6, "BM25")]
)
def test_the_warning_is_about_methods_that_need_no_training(
    reranked: float, codes: float, behind: str | None, recwarn: pytest.WarningsRecorder
) -> None:
    warnings.simplefilter("always")
    figures = {"reranked": reranked, "codes": codes, "tri-letter cosine": 0.3, "BM25": 0.5}
    recall = {method: {"recall@10": value} for method, value in figures.items()}
    told: list[str] = []
    _tell(recall, (500, 100_000), told.append, pairs=None, corpus=None)
    assert told[0] == "500 held-out pairs among about 100,000 texts; no weight was fitted on them,"
    assert told[1] == "but they are among those by which the epoch was chosen:"
    assert [f"less than {behind}," in str(found.message) for found in recwarn.list] == [True] * bool(behind)


def test_the_shell_shows_the_warning_as_one_line(
    pairs_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(presets.PRESETS, "rbe_star", SMALL)
    options = ["--epochs", "1", "--batch-size", "3000", "--lr", "1e-9", "--no-rerank", "--device", "cpu"]
    command = ["rbegir", "train", str(pairs_file), "--out", str(tmp_path / "model"), *options]
    monkeypatch.setattr(sys, "argv", command)
    with pytest.raises(SystemExit) as caught:
        main()
    assert not caught.value.code
    told = capsys.readouterr().err
    (line,) = (line for line in told.splitlines() if "finds less than" in line)
    assert line.startswith("warning: the model finds less than ")
    assert "TrainingWarning" not in told
