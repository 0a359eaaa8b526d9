"""A cluster answers what one machine answers, bit for bit."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pytest
from pyarrow import fs

import rbegir
from rbegir.cluster.fanout import State
from rbegir.cluster.session import import_ray
from rbegir.cluster.shard import Loaded
from rbegir.encode.encoder import write_reference
from rbegir.encode.reranker import Reranker, Spelling
from rbegir.errors import FilterError, InputError, MismatchError, MissingExtraError
from tests.index.fakes import HashEncoder
from tests.reranking import make_model, some_texts

from .conftest import PATIENT, equal, grow

OPTIONS: list[dict[str, Any]] = [
    {},
    {"k": 1},
    {"k": 5000},
    {"where": "price < 30"},
    {"where": "price < 30 and lang == 'de'", "k": 200},
    {"where": "price > 1000"},
    {"where": pc.field("price") >= 50.0},
    {"allow": list(range(1000, 1400)), "k": 50},
    {"allow": []},
    {"must": "W1"},
    {"must": "w1 w2", "where": "price < 90"},
    {"deny": list(range(1000, 3000)), "k": 50},
    {"allow": list(range(1000, 3000)), "deny": list(range(1500, 2500)), "where": "price < 90"},
    {"texts": False, "attributes": False},
    {"min_score": 0.2},
    {"k": None, "min_score": 0.1, "where": "price < 70"},
    {"k": None, "min_score": 2.0},
    {"mode": "paper", "per_thread": 4, "k": 100},
    {"mode": "paper", "per_thread": 3, "queue": 2, "k": 300, "where": "price < 60"},
    {"mode": "paper", "per_thread": 1, "k": 700, "deny": list(range(1000, 1200))},
    {"mode": "paper", "per_thread": 7, "k": 100, "allow": [1000, 2400, 2401, 3500]},
    {"mode": "paper", "where": "price > 1000"},
    {"planes": 1, "k": 20, "candidates": 50},
    {"planes": 1, "k": 20, "candidates": 50, "measure": True},
    {"planes": 2, "k": 20},
    {"planes": 1, "k": 20, "where": "lang == 'en'", "candidates": 40},
    {"planes": 1, "where": "price > 1000"},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("count", [1, 9])
def test_equal_to_one_machine(
    cluster: rbegir.Cluster, index: rbegir.Index, encoder: HashEncoder, options: dict[str, Any], count: int
) -> None:
    codes = encoder.encode_queries([f"w{i} w{i + 1}" for i in range(count)])
    equal(cluster.search_codes(codes, **options), index.search_codes(codes, **options))


def test_a_filter_per_query_is_that_of_one_machine(
    cluster: rbegir.Cluster, index: rbegir.Index, encoder: HashEncoder
) -> None:
    codes = encoder.encode_queries(["w1 w2", "w3 w4", "w5 w6", "w7"])
    options: dict[str, Any]
    for options in (
        {"where": ["price < 30", None, "price > 1000", "lang = 'de'"]},
        {"allow": [[1000, 2400], None, [], [1000, 1200]], "deny": [None, [1003], None, None], "k": 50},
        {"where": ["price < 30", None, "lang is null", None], "min_score": 0.1, "k": None},
        {"must": ["w1", None, "w5", "w99"], "k": 50},
    ):
        equal(cluster.search_codes(codes, **options), index.search_codes(codes, **options))


@pytest.mark.parametrize("k", [3, 100])
def test_pages_are_those_of_one_machine(
    cluster: rbegir.Cluster, index: rbegir.Index, encoder: HashEncoder, k: int
) -> None:
    codes = encoder.encode_queries(["w1 w2", "w3 w4"])
    ours, theirs = cluster.search_codes(codes, k), index.search_codes(codes, k)
    for _ in range(4):
        assert ours.cursor == theirs.cursor
        equal(ours, theirs)
        options: dict[str, Any] = {"after": ours.cursor, "min_score": -0.1}
        ours, theirs = cluster.search_codes(codes, k, **options), index.search_codes(codes, k, **options)


def test_tenants_are_those_of_one_machine(nodes: Any, tmp_path: Path) -> None:
    texts = some_texts(900)
    model = make_model(tmp_path / "model", texts)
    with rbegir.Index.create(tmp_path / "x.rbe", model, tenant="shop") as index:
        for start in (0, 400, 500):
            part = range(start, {0: 400, 400: 500, 500: 900}[start])
            index.add([texts[i] for i in part], attributes={"shop": [f"s{i % 11}" for i in part]})
        index.delete(list(range(0, 900, 5)))
        codes = model.encode_queries(texts[:3])
        with rbegir.Cluster.open(tmp_path / "x.rbe", devices=3, model=model, deadline=PATIENT) as cluster:
            options: dict[str, Any]
            for options in (
                {},
                {"where": "id > 300", "k": 100},
                {"where": [None, "id < 0", "id > 100"], "k": 30},
                {"k": None, "min_score": 0.1},
                {"planes": 1, "k": 5, "candidates": 20},
            ):
                for own in ("s3", "s9", "nobody"):
                    ours = cluster.search_codes(codes, tenant=own, **options)
                    equal(ours, index.search_codes(codes, tenant=own, **options))
            equal(cluster.search(texts[:3], 7, tenant="s4"), index.search(texts[:3], 7, tenant="s4"))
            page = cluster.search_codes(codes, 4, tenant="s4")
            ours = cluster.search_codes(codes, 4, tenant="s4", after=page.cursor)
            equal(ours, index.search_codes(codes, 4, tenant="s4", after=page.cursor))
            for options in (
                {"k": 4},
                {"k": 20, "where": ["id > 9", None, "id < 0"]},
                {"k": 4, "tenant": "s4"},
            ):
                page = cluster.search_codes(codes, item="shop", **options)
                equal(page, index.search_codes(codes, item="shop", **options))
                options["after"] = page.cursor
                ours = cluster.search_codes(codes, item="shop", **options)
                equal(ours, index.search_codes(codes, item="shop", **options))
            options = {"item": "shop", "min_score": 0.2, "texts": False, "attributes": False}
            equal(cluster.search_codes(codes, None, **options), index.search_codes(codes, None, **options))
            with pytest.raises(InputError, match="item must be an attribute, got 'color'"):
                cluster.search_codes(codes, item="color")
            for where, own in (
                (None, None),
                ("id > 300", None),
                (None, "s4"),
                ("id < 500", "s4"),
                ("id < 0", None),
            ):
                assert cluster.count(where, tenant=own) == index.count(where, tenant=own)
            with pytest.raises(FilterError, match="there is no column 'prize'"):
                cluster.count("prize < 3")
            coarse = cluster.coarse_rows(codes, 9, planes=1, tenant="s4")
            assert np.array_equal(coarse, index.coarse_rows(codes, 9, planes=1, tenant="s4"))
            with pytest.raises(MismatchError, match="tenant is 4, in this index 'shop' is string"):
                cluster.search_codes(codes, tenant=4)


def test_equal_on_random_questions(
    cluster: rbegir.Cluster, index: rbegir.Index, encoder: HashEncoder
) -> None:
    rng = np.random.default_rng(11)
    for _ in range(60):
        codes = encoder.encode_queries(
            [f"w{a} w{b}" for a, b in rng.integers(0, 60, (rng.integers(1, 20), 2))]
        )
        options: dict[str, Any] = {"k": int(rng.choice([1, 3, 10, 100, 400]))}
        if rng.random() < 0.5:
            options["where"] = f"price < {rng.integers(0, 100)}"
        if rng.random() < 0.3:
            options["deny"] = (rng.choice(2903, 500, replace=False) + 1000).tolist()
        kind = rng.integers(3)
        if kind == 1:
            options |= {
                "mode": "paper",
                "per_thread": int(rng.integers(1, 9)),
                "queue": int(rng.integers(1, 3)),
            }
        elif kind == 2:
            options |= {"planes": 1, "candidates": options["k"] + int(rng.integers(0, 50))}
        equal(cluster.search_codes(codes, **options), index.search_codes(codes, **options))


def test_texts_vectors_and_no_queries(
    cluster: rbegir.Cluster, index: rbegir.Index, encoder: HashEncoder
) -> None:
    equal(cluster.search("w1 w2", k=5), index.search("w1 w2", k=5))
    equal(cluster.search(["w1 w2", "w3"], k=5), index.search(["w1 w2", "w3"], k=5))
    equal(cluster.search([], k=5), index.search([], k=5))
    vectors = np.random.default_rng(1).integers(-255, 256, (3, 64)).astype(np.int16)
    equal(cluster.search_codes(vectors, 7), index.search_codes(vectors, 7))


def test_codes_and_coarse_rows(cluster: rbegir.Cluster, index: rbegir.Index, encoder: HashEncoder) -> None:
    live = [record["id"] for record in index.get(list(range(1000, 3900, 7))) if record]
    assert cluster.codes(live) == index.codes(live)
    with pytest.raises(InputError, match="id 5 is not in the index"):
        cluster.codes([live[0], 5])
    codes = encoder.encode_queries(["w1 w2", "w3"])
    for planes in (1, 2):
        for filters in ({}, {"where": "price < 30"}, {"deny": live[::2]}):
            ours = cluster.coarse_rows(codes, 40, planes=planes, **filters)  # type: ignore[arg-type]
            assert np.array_equal(ours, index.coarse_rows(codes, 40, planes=planes, **filters))  # type: ignore[arg-type]
    with pytest.raises(InputError, match="planes must be a whole number from 1 to 2"):
        cluster.coarse_rows(codes, 3, planes=3)


def test_get_info_and_length(cluster: rbegir.Cluster, index: rbegir.Index) -> None:
    ids = [1000, 1003, 99, 3901, 1000]
    assert cluster.get(ids) == index.get(ids)
    assert len(cluster) == len(index)
    ours, theirs = cluster.info(), index.info()
    assert {key: ours[key] for key in theirs} == theirs
    assert ours["shards"] == 3
    assert sum(ours["keywords_of_shards"]) == len(index)
    assert max(ours["keywords_of_shards"]) < len(index)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"where": "colour == 'red'"}, FilterError),
        ({"where": 3}, FilterError),
        ({"k": 0}, InputError),
        ({"mode": "fast"}, InputError),
        ({"planes": 3}, InputError),
        ({"planes": 1, "k": 9, "candidates": 8}, InputError),
        ({"allow": ["text"]}, MismatchError),
        ({"mode": "paper", "planes": 1}, InputError),
    ],
    ids=str,
)
def test_refused_as_one_machine_refuses(
    cluster: rbegir.Cluster, index: rbegir.Index, encoder: HashEncoder, options: dict[str, Any], error: type
) -> None:
    codes = encoder.encode_queries(["w1"])
    with pytest.raises(error) as ours:
        cluster.search_codes(codes, **options)
    with pytest.raises(error) as theirs:
        index.search_codes(codes, **options)
    assert str(ours.value) == str(theirs.value)


def test_wrong_queries_are_refused(cluster: rbegir.Cluster) -> None:
    with pytest.raises(MismatchError, match="n = 128"):
        cluster.search_codes(HashEncoder(128).encode_queries(["w1"]))
    with pytest.raises(InputError, match="deadline must be"):
        cluster.search("w1", deadline=0)
    with pytest.raises(InputError, match="certificate"):
        cluster.search("w1", mode="paper", partial=True)


@pytest.mark.parametrize("ids", ["int64", "string"])
def test_changes_are_searchable_at_once(nodes: Any, tmp_path: Path, encoder: HashEncoder, ids: str) -> None:
    """Add, replace, delete and compact through the cluster; a plain index does the same."""
    ours, theirs = tmp_path / "ours.rbe", tmp_path / "theirs.rbe"
    for path in (ours, theirs):
        grow(path, encoder, sizes=[400, 90], seed=3, ids=ids)
    name = (lambda i: f"k{i}") if ids == "string" else int
    codes = encoder.encode_queries(["w1 w2", "w5"])
    with (
        rbegir.Cluster.open(ours, devices=2, model=encoder) as cluster,
        rbegir.Index.open(theirs, model=encoder) as index,
    ):
        before = cluster.info()["generation"]
        for change in (
            lambda on: on.add(["w1 w2", "w1"], [name(5000), name(5001)], {"price": [1.0, 2.0]}).tolist(),
            lambda on: on.upsert(["w5 w5"], [name(1001)]).tolist(),
            lambda on: on.delete([name(5001), name(1002), name(77)]),
            lambda on: on.update([name(1001)], {"price": [1e6]}),
            lambda on: on.update([name(1003), name(1004)], [{"price": 7.0}, {"lang": "it"}]),
            lambda on: on.delete(where="price = 1000000"),
            lambda on: on.compact(),
        ):
            assert change(cluster) == change(index)
            equal(cluster.search_codes(codes, 30), index.search_codes(codes, 30))
        assert cluster.info()["generation"] > before
        with pytest.raises(InputError, match="is in the index already"):
            cluster.add(["w9"], [name(5000)])
        with pytest.raises(InputError, match="upsert needs ids"):
            cluster.upsert(["w9"], None)


def test_an_empty_index(nodes: Any, tmp_path: Path, encoder: HashEncoder) -> None:
    rbegir.Index.create(tmp_path / "new.rbe", encoder).close()
    with rbegir.Cluster.open(tmp_path / "new.rbe", model=encoder) as cluster:
        assert cluster.search("w1").ids.shape == (1, 0)
        assert cluster.get([1]) == [None]
        assert cluster.add([]).tolist() == []
        cluster.add(["w1 w2"])
        assert cluster.search("w1").texts.tolist() == [["w1 w2"]]
    with pytest.raises(InputError, match="has been closed"):
        cluster.search("w1")


def test_reranked_hits_are_those_of_one_machine(nodes: Any, tmp_path: Path) -> None:
    texts = some_texts(700)
    model = make_model(tmp_path / "model", texts)
    path = tmp_path / "texts.rbe"
    with rbegir.Index.create(path, model) as made:
        for start in range(0, len(texts), 90):
            some = range(start, min(start + 90, len(texts)))
            made.add([texts[i] for i in some], ids=some, attributes={"odd": [i % 2 == 1 for i in some]})
        made.delete(range(0, 700, 9))
    queries = ["rivr bank", "new york city", "chess 1984"]
    with (
        rbegir.Index.open(path, read_only=True) as index,
        rbegir.Cluster.open(path, devices=2, deadline=PATIENT) as cluster,
    ):
        asked: list[dict[str, Any]] = [{}, {"candidates": 30}, {"where": "odd", "k": 60}, {"rerank": False}]
        for options in [*asked, {"texts": False}, {"why": True}]:
            one, many = (door.search(queries, **options) for door in (index, cluster))
            assert many.reranked == one.reranked == (options != {"rerank": False})
            equal(many, one)
            np.testing.assert_array_equal(many.code_scores, one.code_scores)
            np.testing.assert_array_equal(many.why, one.why)


def test_hits_of_a_remote_file_system_are_reranked(
    nodes: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RBEGIR_CACHE", str(tmp_path / "cache"))
    texts = some_texts(300)
    with rbegir.Index.create(tmp_path / "texts.rbe", make_model(tmp_path / "model", texts)) as index:
        index.add(texts)
        weights: list[Any] = []
        question = State.question

        def watched(self: State, shard: int, method: str, *arguments: Any) -> Any:
            weights.extend(arguments[1:] if arguments[0] == "ready" else ())
            return question(self, shard, method, *arguments)

        monkeypatch.setattr(State, "question", watched)
        remote = fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem())
        with rbegir.Cluster.open("texts.rbe", devices=2, filesystem=remote, deadline=PATIENT) as cluster:
            assert weights
            assert None not in weights  # shards have read the words
            for rerank in (None, True, False):
                many = cluster.search(["rivr bank", "new york city"], rerank=rerank)
                equal(many, index.search(["rivr bank", "new york city"], rerank=rerank))
                assert many.reranked == (rerank is not False)


def test_shards_have_read_the_words_before_the_first_search(
    nodes: Any, tmp_path: Path, encoder: HashEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = some_texts(60)
    model = make_model(tmp_path / "model", texts)
    with rbegir.Index.create(tmp_path / "x.rbe", model) as made:
        made.add(texts[:40], ids=range(40))
        made.add(texts[40:], ids=range(40, 60))
    rbegir.Index.create(tmp_path / "bare.rbe", encoder).close()

    # what a shard does when it is asked whether it is ready
    snapshot, built = rbegir.Index.open(tmp_path / "x.rbe").snapshot, []
    build = Spelling.lexical_index
    with monkeypatch.context() as patch:
        patch.setattr(
            Spelling, "lexical_index", lambda self, texts: (built.append(len(texts)), build(self, texts))[1]
        )
        loaded = Loaded(None, snapshot, np.array([0, 40]))  # type: ignore[arg-type]
        assert (loaded.ready(), built) == (60, [])
        spelling = model.reranker.spelling  # type: ignore[union-attr]
        assert loaded.ready((spelling.grams, spelling.words, spelling.mean_words)) == 60
        assert built == [40, 20]

    # what it is asked
    asked: list[Any] = []
    question = State.question

    def watched(self: State, shard: int, method: str, *arguments: Any) -> Any:
        if arguments[0] == "ready":
            asked.append(arguments[1])
        return question(self, shard, method, *arguments)

    monkeypatch.setattr(State, "question", watched)
    for given in (None, model):
        asked.clear()
        with rbegir.Cluster.open(tmp_path / "x.rbe", devices=1, model=given) as cluster:
            cluster.delete([7])
            cluster.refresh()
            assert len(asked) >= 3
            assert len(set(asked)) == 1
            (grams, words, mean_words) = import_ray().get(asked[0])
            assert Spelling(grams, words, mean_words).key == spelling.key
            asked.clear()
            cluster.swap(tmp_path / "bare.rbe", model=encoder)
            assert set(asked) <= {None}


class Elsewhere(HashEncoder):
    """An encoder that an index refers to, with weights of words."""

    def save(self, directory: Path) -> None:
        Reranker.by_words([some_texts(60)]).write(directory, self.fingerprint)
        write_reference(directory, "an/encoder", self.fingerprint)


def test_the_words_of_an_encoder_are_read_without_it(
    nodes: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its package need not be there where only codes are searched."""
    model, texts = Elsewhere(), some_texts(60)
    with rbegir.Index.create(tmp_path / "x.rbe", model) as index:
        index.add(texts)
        wanted = index.search_codes(model.encode_queries(texts[:3]))
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    with rbegir.Cluster.open(tmp_path / "x.rbe", devices=1, deadline=PATIENT) as cluster:
        equal(cluster.search_codes(model.encode_queries(texts[:3])), wanted)
        with pytest.raises(MissingExtraError):
            cluster.search(texts[:3])
    with rbegir.Cluster.open(tmp_path / "x.rbe", devices=1, model=model, deadline=PATIENT) as cluster:
        equal(cluster.search(texts[:3]), wanted)


def test_codes_of_a_replaced_model_are_not_written(nodes: Any, tmp_path: Path, encoder: HashEncoder) -> None:
    """The client encodes, the writer stores: it compares the model of the codes with that of the index."""
    path = tmp_path / "ads.rbe"
    grow(path, encoder, sizes=[50])
    with rbegir.Cluster.open(path, devices=1, model=encoder, deadline=PATIENT) as opened:
        rbegir.Index.create(path, HashEncoder(seed="other"), overwrite=True).close()
        with pytest.raises(MismatchError, match="the codes were made for an index with the fingerprint"):
            opened.upsert(["w1 w2"], [7])
    assert len(rbegir.Index.open(path)) == 0


def test_scores_of_a_binarizer_are_those_of_an_index(nodes: Any, tmp_path: Path) -> None:
    vectors = np.random.default_rng(3).standard_normal((600, 24)).astype(np.float32)
    binarizer = rbegir.Binarizer(24, metric="ip", moves=20).fit(vectors)
    with rbegir.Index.create(tmp_path / "v.rbe", binarizer) as index:
        for part in np.split(vectors, 3):
            index.add_codes(binarizer.encode_keywords(part))
        hits = index.search(vectors[:20], k=5)
    products = np.sum(vectors[:20, None] * vectors[hits.rows], axis=2)
    products /= np.linalg.norm(vectors[:20], axis=1)[:, None]
    assert np.abs(hits.scores - products).mean() < 0.5
    with rbegir.Cluster.open(tmp_path / "v.rbe", devices=2, deadline=PATIENT) as cluster:
        equal(cluster.search_codes(binarizer.encode_queries(vectors[:20]), k=5), hits)
        equal(cluster.search(vectors[:20], k=5), hits)


def test_vectors_are_added_as_to_one_machine(nodes: Any, tmp_path: Path, encoder: HashEncoder) -> None:
    vectors = np.random.default_rng(4).standard_normal((300, 24)).astype(np.float32)
    binarizer = rbegir.Binarizer(24, moves=20).fit(vectors)
    for name in ("ours.rbe", "theirs.rbe"):
        rbegir.Index.create(tmp_path / name, binarizer).close()
    rbegir.Index.create(tmp_path / "texts.rbe", encoder).close()
    with (
        rbegir.Cluster.open(tmp_path / "ours.rbe", devices=2, deadline=PATIENT) as cluster,
        rbegir.Index.open(tmp_path / "theirs.rbe") as index,
    ):
        for change in (
            lambda on: on.add(vectors[:200], attributes={"even": [i % 2 == 0 for i in range(200)]}).tolist(),
            lambda on: on.add(vectors[200].tolist()).tolist(),  # a single vector
            lambda on: on.upsert(vectors[250:252], [7, 900]).tolist(),
        ):
            assert change(cluster) == change(index)
            equal(cluster.search(vectors, 10), index.search(vectors, 10))
        for wrong, message in (
            (np.zeros((2, 3), np.float32), "X has 3 features"),
            (["a text"], "a Binarizer encodes vectors, not texts"),
        ):
            for one in (cluster, index):
                with pytest.raises(InputError, match=message):
                    one.add(wrong)
        cluster.swap(tmp_path / "texts.rbe", model=encoder)
        with pytest.raises(
            InputError, match=r"texts must be a list of texts, got float32 \[300, 24\]"
        ) as caught:
            cluster.add(vectors)
        assert caught.value.hint == "only an index made with a Binarizer takes vectors"


def test_vectors_are_reranked_as_on_one_machine(nodes: Any, tmp_path: Path) -> None:
    vectors = np.random.default_rng(3).standard_normal((600, 24)).astype(np.float32)
    binarizer = rbegir.Binarizer(24, moves=20).fit(vectors)
    with rbegir.Index.create(tmp_path / "v.rbe", binarizer) as index:
        for part in np.split(vectors, 3):
            index.add(part, attributes={"first": (part[:, 0] > 0).tolist()})
        with rbegir.Cluster.open(tmp_path / "v.rbe", devices=2, deadline=PATIENT) as cluster:
            for options in (
                {"k": 5},
                {"k": 300},
                {"k": 5, "candidates": 7, "where": "first"},
                {"k": 5, "where": ["first", "first and not first", *[None] * 18]},
                {"k": 5, "where": "first and not first"},
            ):
                hits = index.search(vectors[:20], rerank=True, **options)  # type: ignore[arg-type]
                equal(cluster.search(vectors[:20], rerank=True, **options), hits)  # type: ignore[arg-type]
            with pytest.raises(InputError, match="needs queries that are texts, or vectors"):
                cluster.search_codes(binarizer.encode_queries(vectors[:2]), rerank=True)
