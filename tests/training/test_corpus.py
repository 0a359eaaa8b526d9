"""Pairs made of a corpus, and training with them."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pytest

import rbegir
from rbegir.errors import InputError
from rbegir.training.corpus import COPIES, ENOUGH, MOST, changed, corpus_pairs, wanted_pairs
from rbegir.training.trainer import run
from tests.reranking import some_texts

from .conftest import SMALL

TEXTS = list(dict.fromkeys([*some_texts(400), "C++", "4'33\"", "!!! (band)", "x"]))


def test_changed_texts_can_still_be_encoded() -> None:
    draw = random.Random(0)
    for text in TEXTS * 5:
        assert any(c.isalnum() for c in changed(text, draw))
    every = {changed("new york city map", draw) for _ in range(300)}
    assert len(every) > 40  # typos, dropped, swapped, shortened and joined words
    assert {"new york map", "newyork city map"} & every


def test_pairs_are_made_evenly_and_by_seed() -> None:
    texts = pa.array(TEXTS)
    table = corpus_pairs(texts, 3 * len(TEXTS), seed=4)
    counts = table["keyword"].value_counts().to_pylist()
    assert {entry["counts"] for entry in counts} == {3}
    assert table.equals(corpus_pairs(texts, 3 * len(TEXTS), seed=4))
    assert not table.equals(corpus_pairs(texts, 3 * len(TEXTS), seed=5))


def test_fewer_are_made_where_more_were_clicked() -> None:
    assert wanted_pairs(0, 1000) == COPIES * 1000
    assert wanted_pairs(0, 10**9) == MOST
    assert 0 < wanted_pairs(ENOUGH // 2, 1000) < COPIES * 1000
    assert wanted_pairs(ENOUGH, 1000) == wanted_pairs(2 * ENOUGH, 1000) == 0


def test_a_corpus_alone_trains_a_model_that_finds_it(tmp_path: Path) -> None:
    corpus = tmp_path / "texts.txt"
    corpus.write_text("\n".join(TEXTS) + "\n")
    result = run(corpus=corpus, config=SMALL, epochs=3, batch_size=200, out=tmp_path / "model", device="cpu")
    assert set(result.recall) == {"reranked", "codes", "tri-letter cosine", "BM25"}
    assert result.recall["reranked"]["recall@10"] > 0.5
    with rbegir.Index.create(tmp_path / "texts.rbe", result.model) as index:
        index.add(TEXTS)
        hits = index.search(TEXTS[7], k=5)
        assert hits.reranked
        assert TEXTS[7] in hits.texts[0]


def test_skipped_pairs_are_reported_with_a_corpus(pairs_file: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad.tsv"
    bad.write_text(pairs_file.read_text() + "!!!\t???\n")
    result = run(bad, corpus=TEXTS, config=SMALL, epochs=1, valid=False, device="cpu")
    assert result.skipped == {"no letter or digit": 1}


def test_bad_rows_of_a_corpus_are_reported(capsys: pytest.CaptureFixture[str]) -> None:
    bad = [*TEXTS, "!!"]
    run(corpus=bad, config=SMALL, epochs=1, valid=False, rerank=False, device="cpu", progress=True)
    assert f"corpus: skipped 1 of {len(bad)} rows: 1 with no letter or digit" in capsys.readouterr().err
    with pytest.raises(InputError, match=f"row {len(bad)}: no letter or digit"):
        run(corpus=bad, config=SMALL, strict=True, device="cpu")


def test_pairs_come_with_a_corpus(pairs_file: Path, tmp_path: Path) -> None:
    corpus = tmp_path / "texts.txt"
    corpus.write_text("\n".join(TEXTS) + "\n")
    quick = {"config": SMALL, "epochs": 1, "batch_size": 500, "device": "cpu", "rerank": False}
    with_corpus, without = run(pairs_file, corpus=corpus, **quick), run(pairs_file, **quick)
    made = wanted_pairs(3000, len(TEXTS))
    assert with_corpus.pairs == without.pairs + made
    assert with_corpus.valid_pairs == without.valid_pairs  # none of them is made


def test_nothing_to_learn_from_is_refused() -> None:
    with pytest.raises(InputError, match="training needs pairs, a corpus, or both"):
        run(config=SMALL)
