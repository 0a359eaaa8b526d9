"""Reranked hits over HTTP, alone and in shared scans."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from pathlib import Path

import httpx
import numpy as np
import pyarrow as pa
import pytest

import rbegir
from rbegir.encode.reranker import Spelling
from rbegir.search.request import SearchRequest
from rbegir.serve.app import create_app
from rbegir.serve.batcher import Batcher, Search
from rbegir.serve.monitor import Metrics
from rbegir.serve.settings import Settings
from rbegir.wire.search import ARROW, JSON, read_hits
from tests.reranking import make_model, some_texts

TEXTS = some_texts(600)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reranked")
    with rbegir.Index.create(folder / "texts.rbe", make_model(folder / "model", TEXTS)) as made:
        made.add(TEXTS, ids=range(len(TEXTS)))
    return folder / "texts.rbe"


@pytest.fixture
def index(path: Path) -> rbegir.Index:
    return rbegir.Index.open(path, read_only=True)


def ask(path: Path, body: dict[str, object], accept: str = JSON) -> httpx.Response:
    async def post() -> httpx.Response:
        app = create_app(rbegir.Index.open(path, read_only=True), Settings(read_only=True))
        async with app.router.lifespan_context(app):
            transport = httpx.ASGITransport(app)
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
                return await client.post("/v1/search", json=body, headers={"Accept": accept})

    return asyncio.run(post())


def test_hits_over_http_are_those_of_the_index(index: rbegir.Index, path: Path) -> None:
    for options in ({}, {"rerank": False}, {"candidates": 40}):
        wanted = index.search(["rivr bank", "chess"], 7, **options)  # type: ignore[arg-type]
        answer = ask(path, {"queries": ["rivr bank", "chess"], "k": 7, **options}).json()
        for number, result in enumerate(answer["results"]):
            assert [hit["id"] for hit in result["hits"]] == wanted.ids[number].tolist()
            assert [hit["score"] for hit in result["hits"]] == wanted.scores[number].tolist()
            assert [hit["code_score"] for hit in result["hits"]] == wanted.code_scores[number].tolist()


def test_a_service_is_ready_when_it_can_rerank(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[int] = []
    build = Spelling.lexical_index
    monkeypatch.setattr(
        Spelling, "lexical_index", lambda self, texts: (built.append(len(texts)), build(self, texts))[1]
    )

    async def start() -> None:
        app = create_app(rbegir.Index.open(path, read_only=True), Settings(read_only=True))
        async with app.router.lifespan_context(app):
            assert built == [len(TEXTS)]
            transport = httpx.ASGITransport(app)
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
                answer = await client.post("/v1/search", json={"queries": ["chess"]})
        assert answer.status_code == 200
        assert built == [len(TEXTS)]

    asyncio.run(start())


def test_an_explained_hit_has_its_rank_by_code(index: rbegir.Index, path: Path) -> None:
    answer = ask(path, {"queries": ["rivr bank"], "k": 10, "explain": True}).json()
    by_code = index.search("rivr bank", len(TEXTS), rerank=False).ids[0].tolist()
    hits = answer["results"][0]["hits"]
    assert [hit["ranks"][-1] for hit in hits] == [by_code.index(hit["id"]) + 1 for hit in hits]
    assert {len(hit["ranks"]) for hit in hits} == {index.info()["keyword_planes"]}


def test_a_hit_says_why_it_is_there_if_asked(index: rbegir.Index, path: Path) -> None:
    body = {"queries": ["rivr bank", "chess"], "k": 300, "why": True}
    wanted = index.search(["rivr bank", "chess"], 300, candidates=300, why=True)
    answer = ask(path, {**body, "candidates": 300}).json()
    for hits, result in zip(wanted, answer["results"], strict=True):
        assert [hit["why"] for hit in result["hits"]] == [asdict(hit.why) for hit in hits if hit.why]
    stream = ask(path, {**body, "candidates": 300}, accept=ARROW).content
    read = read_hits(stream, 2)
    np.testing.assert_array_equal(read.why, wanted.why)
    assert "why" not in ask(path, {"queries": ["chess"]}).json()["results"][0]["hits"][0]
    other = pa.ipc.open_stream(stream).read_all()
    column = other.column_names.index("why")
    other = other.set_column(column, "why", pa.array(["because"] * len(other)))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, other.schema) as writer:
        writer.write_table(other)
    with pytest.raises(TypeError, match="a column is string, expected struct"):
        read_hits(sink.getvalue().to_pybytes(), 2)


def test_codes_cannot_be_reranked(path: Path) -> None:
    answer = ask(path, {"codes": [[1] * 64], "rerank": True})
    assert answer.status_code in (400, 422)
    assert "texts" in answer.text


def test_a_request_cannot_ask_for_endless_reranking(path: Path) -> None:
    answer = ask(path, {"queries": ["river"] * 100, "k": 1, "candidates": 10_000})
    assert answer.status_code == 422
    assert "queries times candidates: at most 200000" in answer.text


def test_the_candidates_of_the_default_count_too(path: Path) -> None:
    answer = ask(path, {"queries": ["river"] * 401, "k": 1})
    assert answer.status_code == 422
    said = answer.json()
    assert said["detail"] == "queries times candidates: at most 200000 candidates, got 200500"
    assert said["hint"] == "send fewer queries, or set rerank to false"
    for fewer in ({"rerank": False}, {"candidates": 2}, {"min_score": 0.0}):
        assert ask(path, {"queries": ["river"] * 401, "k": 1, **fewer}).status_code == 200
    assert ask(path, {"codes": [[1] * 64] * 401, "k": 1}).status_code == 200


def test_requests_that_share_a_scan_get_their_own_hits(index: rbegir.Index) -> None:
    async def together() -> None:
        batcher = Batcher(index, Metrics().of(), Settings())
        asked = [("rivr bank", 17), ("chess", 33), ("new york", 64), ("photo", 20)]
        jobs = [batcher.submit(Search(SearchRequest(k), texts=[text])) for text, k in asked]
        jobs.append(batcher.submit(Search(SearchRequest(17), values=np.ones((1, 64), np.int16))))
        batcher.start()
        for (text, k), job in zip(asked, jobs[:-1], strict=True):
            (part,) = await job.future
            alone = index.search(text, k)
            np.testing.assert_array_equal(part.ids, alone.ids)
            np.testing.assert_array_equal(part.scores, alone.scores)
            np.testing.assert_array_equal(part.code_scores, alone.code_scores)
        (codes,) = await jobs[-1].future
        assert not codes.reranked
        await batcher.stop()

    asyncio.run(together())


def test_vectors_are_reranked_if_asked_for(tmp_path: Path) -> None:
    vectors = np.random.default_rng(0).standard_normal((700, 12)).astype(np.float32)
    binarizer = rbegir.Binarizer(moves=20).fit(vectors)
    with rbegir.Index.create(tmp_path / "v.rbe", binarizer) as made:
        made.add(vectors)
        plain, wanted = made.search(vectors[:4], 6), made.search(vectors[:4], 6, rerank=True)
    body: dict[str, object] = {"vectors": vectors[:4].tolist(), "k": 6}
    for options, hits in (({}, plain), ({"rerank": False}, plain), ({"rerank": True}, wanted)):
        answer = ask(tmp_path / "v.rbe", {**body, **options}).json()
        for number, result in enumerate(answer["results"]):
            assert [hit["id"] for hit in result["hits"]] == hits.ids[number].tolist()
            assert [hit["score"] for hit in result["hits"]] == hits.scores[number].tolist()
    stream = ask(tmp_path / "v.rbe", {**body, "rerank": True}, ARROW).content
    read = read_hits(stream, 4)
    assert read.reranked
    np.testing.assert_array_equal(read.scores, wanted.scores)
    refused = ask(tmp_path / "v.rbe", {"codes": [[1] * 64], "rerank": True})
    assert refused.status_code == 422
    assert "needs queries that are texts, or vectors" in refused.json()["detail"]
