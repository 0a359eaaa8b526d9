"""Reranked searches of an index: the same however the keywords are stored, and from every door."""

from __future__ import annotations

import contextlib
import threading
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import rbegir
from rbegir import Hits, Index, Model
from rbegir.encode.reranker import FEATURES, Spelling
from rbegir.errors import InputError
from rbegir.evaluate import scorers
from rbegir.evaluate.scorers import RerankScorer
from rbegir.search.hits import Why
from rbegir.search.request import CANDIDATES, SearchRequest, k_group
from rbegir.search.rerank import TextSearch
from tests.cli.test_index_cli import rbegir as rbegir_command
from tests.reranking import make_model, some_texts

TEXTS = some_texts(900)
QUERIES = ["rivr bank", "new york", "chess 1984", "photo viewer"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return make_model(tmp_path_factory.mktemp("model"), TEXTS)


@pytest.fixture(scope="module")
def index(model: Model, tmp_path_factory: pytest.TempPathFactory) -> Index:
    path = tmp_path_factory.mktemp("index") / "one.rbe"
    with Index.create(path, model) as made:
        made.add(TEXTS, ids=range(len(TEXTS)), attributes={"even": [i % 2 == 0 for i in range(len(TEXTS))]})
    return Index.open(path, read_only=True)


def same(one: Hits, other: Hits) -> bool:
    names = ("ids", "scores", "code_scores", "keys", "texts")
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in names)


def test_hits_are_those_of_a_search_in_memory(index: Index, model: Model) -> None:
    assert model.reranker is not None
    search = TextSearch(model, model.reranker, pa.array(TEXTS))
    found = search.search(QUERIES, SearchRequest(20, candidates=100))
    hits = index.search(QUERIES, 20, candidates=100)
    np.testing.assert_array_equal(hits.ids, found)
    assert hits.reranked
    assert not np.array_equal(hits.scores, hits.code_scores)
    assert (np.diff(hits.scores, axis=1) <= 0).all()


@pytest.mark.parametrize("k", [10, 256, 257, 1000, 5000])
def test_an_evaluation_measures_what_an_index_finds(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, k: int
) -> None:
    """Also beyond 256 hits, for which an index looks at more candidates, and beyond the number of texts."""
    texts = [f"{text} {i}" for i, text in enumerate(some_texts(1300))]
    monkeypatch.setattr(scorers, "RERANKED", 3 * SearchRequest(k).pool)
    with Index.create(tmp_path / "many.rbe", model) as many:
        many.add(texts)
        wanted = many.search(QUERIES, k).ids
    assert len(QUERIES) > 3
    done: list[float] = []
    found = RerankScorer(model).search(pa.array(QUERIES), pa.array(texts), k, done.append)
    np.testing.assert_array_equal(found, wanted)
    assert found.shape == (len(QUERIES), min(k, len(texts)))
    assert done[-1] == 1


def test_threads_build_the_words_of_a_segment_once(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    fresh = Index.open(index.path, read_only=True)
    assert fresh.model.n == 64
    wanted, found = index.search(QUERIES), []
    built: list[int] = []
    start, building = threading.Barrier(6), threading.Barrier(6)
    build = Spelling.lexical_index

    def counted(self: Spelling, texts: pa.Array) -> object:
        built.append(len(texts))
        with contextlib.suppress(threading.BrokenBarrierError):
            building.wait(0.5)  # gives all other threads the time to begin to build too
        return build(self, texts)

    monkeypatch.setattr(Spelling, "lexical_index", counted)

    def search() -> None:
        start.wait()
        found.append(fresh.search(QUERIES))

    threads = [threading.Thread(target=search) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert built == [len(TEXTS)]
    assert [same(hits, wanted) for hits in found] == [True] * 6


def test_a_search_after_a_compaction_finds_the_words_ready(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A compaction makes those of the new segment before the swap, if searches use those of the old ones."""
    built: list[int] = []
    build = Spelling.lexical_index

    def counted(self: Spelling, texts: pa.Array) -> object:
        built.append(len(texts))
        return build(self, texts)

    monkeypatch.setattr(Spelling, "lexical_index", counted)
    with Index.create(tmp_path / "x.rbe", model) as changing:
        for start in range(0, 300, 100):
            changing.add(TEXTS[start : start + 100], ids=range(start, start + 100))
        changing.delete(range(0, 60))
        changing.compact()
        assert built == []  # nobody has asked for words
        changing.search(QUERIES)
        changing.delete([100, 101])
        built.clear()

        def delete_one_more(done: int, total: int) -> None:
            if changing.get([150])[0]:
                changing.delete([150])

        changing.compact(progress=delete_one_more)
        assert built == [238]
        found = changing.search(QUERIES)
        assert built == [238]
        with Index.open(changing.path, read_only=True) as fresh:
            assert same(found, fresh.search(QUERIES))
        assert not np.isin(found.ids, [*range(60), 100, 101, 150]).any()
        changing.add(["new york river bank"], ids=[900])
        assert changing.search("new york river bank", 1).ids == [[900]]
        assert built == [238, 238, 1]  # also by `fresh`


def test_every_candidate_is_scored_by_its_text(index: Index, model: Model) -> None:
    """With as many candidates as keywords, hits are the order of the reranker over all of them."""
    assert model.reranker is not None
    hits = index.search(QUERIES, len(TEXTS), candidates=len(TEXTS))
    by_code = index.search(QUERIES, len(TEXTS), rerank=False)
    for number, query in enumerate(QUERIES):
        code = np.empty(len(TEXTS))
        code[by_code.ids[number]] = by_code.scores[number]
        score = model.reranker.scores([query], TEXTS, np.array([0, len(TEXTS)]), code)
        wanted = np.lexsort((np.arange(len(TEXTS)), -score))
        np.testing.assert_array_equal(hits.ids[number], wanted)


def test_hits_say_why_they_are_there(index: Index, model: Model) -> None:
    assert model.reranker is not None
    hits = index.search(QUERIES, 100, candidates=100, why=True)
    assert same(hits, index.search(QUERIES, 100, candidates=100))
    by_code = index.search(QUERIES, 100, rerank=False)
    found_by_words = 0
    for number, query in enumerate(QUERIES):
        ranks = {id_: rank for rank, id_ in enumerate(by_code.ids[number].tolist(), 1)}
        for hit in hits[number]:
            assert hit.why is not None
            code = np.array([hit.code_score])
            features = model.reranker.features([query], [hit.text], np.array([0, 1]), code)  # type: ignore[list-item]
            measured = dict(zip(FEATURES, features[0].tolist(), strict=True))
            assert hit.why.meaning == pytest.approx(measured["guide"], abs=1e-4)
            assert hit.why.spelling == pytest.approx(measured["letters alike"], abs=1e-4)
            assert hit.why.words == pytest.approx(measured["query words alike"], abs=1e-4)
            assert hit.why.code_rank == ranks.get(int(hit.id))
            found_by_words += hit.why.code_rank is None
    assert 0 < found_by_words < hits.ids.size
    assert str(hits.why[0, 0]) in hits.to_arrow()["why"].to_pylist()  # type: ignore[index]
    for options in ({"rerank": False}, {"planes": 1}, {"mode": "paper"}):
        assert index.search(QUERIES, 3, why=True, **options).why is None  # type: ignore[arg-type]


def test_a_reason_is_one_line() -> None:
    assert str(Why(0.714, 0.9, 0.5, 4)) == "meaning .71 · spelling .90 · words .50 · code rank 4"
    assert str(Why(1, 0, 0.25, None)) == "meaning 1.00 · spelling .00 · words .25 · found by words"


def test_segments_and_deletes_change_nothing(model: Model, tmp_path: Path) -> None:
    kept = [i for i in range(len(TEXTS)) if i % 7]
    with (
        Index.create(tmp_path / "whole.rbe", model) as whole,
        Index.create(tmp_path / "cut.rbe", model) as cut,
    ):
        whole.add([TEXTS[i] for i in kept], ids=kept)
        for start in range(0, len(TEXTS), 111):
            some = range(start, min(start + 111, len(TEXTS)))
            cut.add([TEXTS[i] for i in some], ids=some)
        cut.delete([i for i in range(len(TEXTS)) if i % 7 == 0])
        for k in (1, 10, 60):
            assert same(whole.search(QUERIES, k, candidates=60), cut.search(QUERIES, k, candidates=60))
        before = cut.search(QUERIES, 10)
        cut.add(["rivr bank"], ids=[5000])
        assert 5000 in cut.search(QUERIES, len(cut), candidates=len(cut)).ids[0]
        cut.compact()
        cut.delete([5000])
        assert same(before, cut.search(QUERIES, 10))


def test_filters_hold(index: Index) -> None:
    hits = index.search(QUERIES, 30, where="even", deny=[0, 2, 4])
    assert (hits.ids % 2 == 0).all()
    assert not np.isin(hits.ids, [0, 2, 4]).any()
    allowed = [3, 5, 7]
    assert set(index.search("river", 10, allow=allowed).ids[0]) == set(allowed)


def test_a_scan_without_rerank_is_that_of_the_codes(index: Index, model: Model) -> None:
    plain = index.search(QUERIES, 10, rerank=False)
    assert same(plain, index.search_codes(model.encode_queries(QUERIES), 10))
    np.testing.assert_array_equal(plain.scores, plain.code_scores)
    assert not plain.reranked


def test_shorter_lists_begin_longer_ones(index: Index) -> None:
    long = index.search(QUERIES, 64)
    for k in (17, 33):
        np.testing.assert_array_equal(index.search(QUERIES, k).ids, long.ids[:, :k])
    request = SearchRequest(CANDIDATES + 1)
    assert request.pool == SearchRequest(4 ** k_group(CANDIDATES + 1)).pool >= CANDIDATES + 1


def test_keywords_without_texts_stay_findable(model: Model, tmp_path: Path) -> None:
    with Index.create(tmp_path / "bare.rbe", model) as bare:
        bare.add_codes(model.encode_keywords(TEXTS[:50]))
        hits = bare.search("river", 50)
        assert sorted(hits.ids[0].tolist()) == list(range(50))


def test_what_cannot_be_reranked_is_refused(index: Index, model: Model, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="needs queries that are texts"):
        index.search_codes(model.encode_queries(["river"]), 3, rerank=True)
    with pytest.raises(InputError, match="candidates must be at least k = 10, got 9"):
        index.search("river", 10, candidates=9)
    for options in ({"mode": "paper"}, {"planes": 1}):
        with pytest.raises(InputError, match="cannot be combined"):
            index.search("river", 3, rerank=True, **options)  # type: ignore[arg-type]
        assert not index.search("river", 3, **options).reranked  # type: ignore[arg-type]
    plain = rbegir.Model.load(_without_reranker(model, tmp_path / "plain"))
    with Index.create(tmp_path / "plain.rbe", plain) as without:
        without.add(TEXTS[:5])
        assert not without.search("river", 3).reranked
        with pytest.raises(InputError, match="a model with a reranker"):
            without.search("river", 3, rerank=True)


def _without_reranker(model: Model, path: Path) -> Path:
    import shutil

    model.save(path)
    shutil.rmtree(path / "rerank")
    return path


def test_the_command_says_why(index: Index) -> None:
    asked = ("search", index.path, "rivr bank", "chess", "-k", "5", "--why")
    wanted = index.search(["rivr bank", "chess"], 5, why=True)
    for result, hits in zip(rbegir_command(*asked, "--json").json, wanted, strict=True):
        assert [hit["why"] for hit in result["hits"]] == [asdict(hit.why) for hit in hits if hit.why]
    shown = " ".join(rbegir_command(*asked).out.split())
    assert all(str(hit.why).split(" · ")[0] in shown for hits in wanted for hit in hits)
    assert "why" not in rbegir_command(*asked[:-1], "--json").json[0]["hits"][0]
