"""Every route does what it says, and every answer is of the documented shape."""

from __future__ import annotations

import datetime
import errno
import json
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from starlette.testclient import TestClient

import rbegir
from rbegir.base import disk
from rbegir.codes.planes import Codes
from rbegir.errors import InputError
from rbegir.index import snapshot, writer
from rbegir.search.hits import Cursor
from rbegir.serve.app import create_app
from rbegir.wire import schema
from tests.serve.conftest import PATIENT, TEXTS, Local
from tests.serve.test_requests import problem

Start = Callable[..., Local]
ARROW = "application/vnd.apache.arrow.stream"


def expected(local: Local, query: str, k: int, **options: Any) -> list[dict[str, Any]]:
    """What the library finds."""
    (hits,) = local.index.search([query], k, **options)
    found = [hit._asdict() for hit in hits]
    return [{name: value for name, value in hit.items() if name != "why"} for hit in found]


def test_search_finds_what_the_library_finds(local: Start) -> None:
    service = local()
    answer = service.post("/v1/search", {"queries": ["red hat", "blue shoes number 7"], "k": 7})
    schema.SearchResponse.model_validate_json(answer.content, strict=True)
    for result, query in zip(answer.json()["results"], ["red hat", "blue shoes number 7"], strict=True):
        assert result["query"] == query
        assert result["hits"] == expected(service, query, 7)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"where": "price < 10 and lang = 'en'"},
        {"where": "price > 1e9"},
        {"allow": [3, 7, 11, 4000], "where": "price > 3"},
        {"allow": []},
        {"deny": list(range(0, 200, 2))},
        {"mode": "paper"},
        {"planes": 1},
    ],
)
def test_options_reach_the_search(local: Start, options: dict[str, Any]) -> None:
    service = local()
    (result,) = service.search(queries=["green bicycle"], k=20, **options)
    assert result["hits"] == expected(service, "green bicycle", 20, **options)
    assert ("recall" in result) == ("planes" in options)
    assert ("expected_recall" in result) == ("mode" in options)


def test_a_filter_per_query(local: Start) -> None:
    service = local(max_keywords=4)
    wheres, queries = ["price < 10", None, "price > 1e9"], ["red hat", "hat", "blue"]
    found = service.search(queries=queries, k=5, where=wheres, explain=True)
    for result, query, where in zip(found, queries, wheres, strict=True):
        wanted = service.search(queries=[query], k=5, where=where, explain=True)
        assert result["hits"] == wanted[0]["hits"]
    found = service.search(queries=queries, k=5, allow=[[1, 2], None, []], deny=[[2], [3], None])
    assert [len(result["hits"]) for result in found] == [1, 5, 0]
    for body, message in (
        ({"where": wheres[:2]}, "where has 2 entries for 3 queries"),
        ({"where": [7, None, None]}, "where.0: Input should be a valid string"),
        ({"allow": [[1, 2], [1, 2], [1]]}, "allow: at most 4 items, got 5"),
        ({"allow": [[1], 2, None]}, "allow.1: Input should be a valid array"),
        ({"where": wheres, "mode": "paper"}, "a filter per query and mode='paper' cannot be combined"),
    ):
        said = problem(service.post("/v1/search", {"queries": queries, **body}), 422, "invalid")["detail"]
        assert message in said


def test_pages_and_ranges(local: Start) -> None:
    service = local(max_k=30)
    whole = expected(service, "green bicycle", 200)
    page = service.post("/v1/search", {"queries": ["green bicycle"], "k": 30}).json()
    seen: list[Any] = []
    while page["results"][0]["hits"]:
        seen += page["results"][0]["hits"]
        body = {"queries": ["green bicycle"], "k": 30, "after": page["cursor"]}
        answer = service.post("/v1/search", body)
        schema.SearchResponse.model_validate_json(answer.content, strict=True)
        page = answer.json()
    assert seen == whole
    least = whole[12]["score"]
    (result,) = service.search(queries=["green bicycle"], k=None, min_score=least)
    assert result["hits"] == [hit for hit in whole if hit["score"] >= least]
    (result,) = service.search(queries=["green bicycle"], k=None, min_score=-1)
    assert result["hits"] == whole[:30]  # the largest page
    answer = service.post("/v1/search", {"queries": ["a", "b"], "after": page["cursor"]})
    assert problem(answer, 422, "invalid")["detail"] == "after is a cursor of 1 queries, got 2"
    answer = service.post("/v1/search", {"queries": ["a"], "after": Cursor.start(2).text()})
    assert problem(answer, 422, "invalid")["detail"] == "after is a cursor of 2 queries, got 1"
    answer = service.post("/v1/search", {"queries": ["a"], "k": None})
    said = problem(answer, 422, "invalid")["detail"]
    assert said == "k=None needs a min_score: it asks for all hits that reach one"
    assert service.post("/v1/search", {"queries": ["a"], "mode": "paper"}).json()["cursor"] is None


def test_k_beyond_the_index_gives_all_of_it(local: Start) -> None:
    (result,) = local().search(queries=["hat"], k=10_000)
    assert len(result["hits"]) == len(TEXTS)


def test_codes_made_elsewhere(local: Start) -> None:
    service = local()
    codes = service.index.model.encode_queries(["red hat", "white shoes"])
    signs = codes.signs()  # [planes, 2, 64]
    planes = [
        [f"{int(''.join('01'[int(bit)] for bit in plane[q]), 2):016x}" for plane in signs] for q in (0, 1)
    ]
    texts = service.search(queries=["red hat", "white shoes"], k=5)
    found = service.search(codes=planes, k=5)
    assert [result["hits"] for result in found] == [result["hits"] for result in texts]
    assert found[0]["query"] is None
    integers = service.search(codes=codes.values().tolist(), k=5)
    assert [result["hits"] for result in integers] == [result["hits"] for result in texts]
    mixed = service.search(codes=[planes[0], codes.values()[1].tolist()], k=5)
    assert [result["hits"] for result in mixed] == [result["hits"] for result in texts]


def test_explain_shows_bits_and_ranks(local: Start) -> None:
    service = local()
    answer = service.post(
        "/v1/search",
        {"queries": ["red hat"], "k": 6, "explain": True, "where": "price < 40", "deny": [1, 5, 9]},
    )
    schema.SearchResponse.model_validate_json(answer.content, strict=True)
    (result,) = answer.json()["results"]
    model = service.index.model

    def bits(codes: Codes) -> list[str]:
        return [f"{int(''.join('01'[int(bit)] for bit in plane[0]), 2):016x}" for plane in codes.signs()]

    assert result["query_planes"] == bits(model.encode_queries(["red hat"]))
    # the rank by one plane, from the definition: cosine of the query with the signs of the base vectors
    passing = [i for i in range(len(TEXTS)) if i % 50 < 40 and i not in (1, 5, 9)]
    query = model.encode_queries(["red hat"]).values()[0].astype(np.int64)
    base = model.encode_keywords(TEXTS).first_planes(1).values().astype(np.int64)
    order = sorted(passing, key=lambda i: (-int(base[i] @ query), i))
    for place, hit in enumerate(result["hits"], 1):
        assert hit["planes"] == bits(model.encode_keywords([hit["text"]]))
        assert hit["ranks"] == [order.index(hit["id"]) + 1, place]


def test_explain_searches_again_when_a_hit_is_deleted_meanwhile(
    local: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = local()
    best = service.search(queries=["red hat"], k=1)[0]["hits"][0]["id"]
    codes = service.index.codes

    def first_delete_it(ids: Any) -> Codes:
        service.index.delete([best])
        return codes(ids)

    monkeypatch.setattr(service.index, "codes", first_delete_it)
    (result,) = service.search(queries=["red hat"], k=3, explain=True)
    assert best not in [hit["id"] for hit in result["hits"]]
    assert [hit["ranks"][-1] for hit in result["hits"]] == [1, 2, 3]
    with pytest.raises(InputError, match=f"id {best} is not in the index"):
        codes([best])
    monkeypatch.setattr(service.index, "codes", lambda ids: codes([best]))
    answer = service.post("/v1/search", {"queries": ["red hat"], "explain": True})
    assert answer.status_code == 503
    assert answer.json()["detail"] == "the hits changed faster than they could be explained"


def test_upsert_get_search_delete(local: Start) -> None:
    service = local()
    keyword = {"id": 7, "text": "purple umbrella", "attributes": {"price": 3.5, "lang": "de"}}
    added = service.post("/v1/keywords", {"keywords": [keyword, {"id": 1000, "text": "violet umbrella"}]})
    assert added.json() == {"upserted": 2}
    assert service.client.get("/v1/keywords/7").json() == keyword
    (result,) = service.search(queries=["purple umbrella"], k=1000)
    found = {hit["id"]: hit["text"] for hit in result["hits"]}
    assert len(found) == len(TEXTS) + 1
    assert (found[7], found[1000]) == ("purple umbrella", "violet umbrella")
    gone = service.client.request("DELETE", "/v1/keywords", json={"ids": [7, 7, 1000, 123456]})
    assert gone.json() == {"deleted": 2}
    assert service.client.get("/v1/keywords/7").status_code == 404
    assert len(service.index) == len(TEXTS) - 1


def test_count_and_delete_by_filter(local: Start) -> None:
    service = local()

    def count(**parameters: Any) -> int:
        response = service.client.get("/v1/keywords:count", params=parameters)
        schema.CountResponse.model_validate_json(response.content, strict=True)
        return int(response.json()["keywords"])

    cheap = [i for i in range(len(TEXTS)) if i % 50 < 10]
    assert count() == len(TEXTS)
    assert count(where="price < 10") == len(cheap)
    gone = service.client.request("DELETE", "/v1/keywords", json={"where": "price < 10"})
    schema.DeleteResponse.model_validate_json(gone.content, strict=True)
    assert gone.json() == {"deleted": len(cheap)}
    assert count() == len(service.index) == len(TEXTS) - len(cheap)
    assert count(where="price < 10") == 0
    assert service.index.get(cheap) == [None] * len(cheap)
    for body, kind in (
        ({}, "invalid"),
        ({"ids": [1], "where": "price > 1"}, "invalid"),
        ({"where": None}, "invalid"),
        ({"where": ""}, "invalid"),
        ({"where": "x" * 5000}, "invalid"),
        ({"where": "prise < 3"}, "invalid-filter"),
    ):
        problem(service.client.request("DELETE", "/v1/keywords", json=body), 422, kind)
    for wrong, kind in (({"limit": "3"}, "invalid"), ({"where": "prise < 3"}, "invalid-filter")):
        problem(service.client.get("/v1/keywords:count", params=wrong), 422, kind)
    assert count() == len(TEXTS) - len(cheap)


def test_pages_of_an_export(local: Start) -> None:
    service = local()

    def page(**parameters: Any) -> list[dict[str, Any]]:
        return [
            json.loads(line)
            for line in service.client.get("/v1/keywords", params=parameters).text.splitlines()
        ]

    first = page(after=-1, limit=3)
    assert [(one["id"], one["row"]) for one in first] == [(0, 0), (1, 1), (2, 2)]
    assert first[0]["text"] == TEXTS[0]
    service.index.delete([3])
    assert [one["row"] for one in page(after=2, limit=2)] == [4, 5]
    assert [one["id"] for one in page(after=2, limit=2, where="id > 10")] == [11, 12]
    assert page(after=len(TEXTS) - 1) == []
    assert "row" not in page(limit=1)[0]
    for wrong in ("-2", "x", "1.0", str(2**60)):
        problem(service.client.get("/v1/keywords", params={"after": wrong}), 422, "invalid")


def test_update_of_attributes(local: Start) -> None:
    service = local()
    before = service.index.get([1, 2, 4])

    def update(*keywords: dict[str, Any]) -> Any:
        return service.client.patch("/v1/keywords", json={"keywords": list(keywords)})

    done = update(
        {"id": 1, "attributes": {"price": 7.5}},
        {"id": 2, "attributes": {"lang": None, "day": "2024-05-31"}},
        {"id": 4, "attributes": {"price": None, "sold": True}},
    )
    schema.UpdateResponse.model_validate_json(done.content, strict=True)
    assert done.json() == {"updated": 3}
    new = [
        {"price": 7.5, "day": None, "sold": None},
        {"lang": None, "day": "2024-05-31", "sold": None},
        {"price": None, "day": None, "sold": True},
    ]
    wanted = [{**(old or {}), **changed} for old, changed in zip(before, new, strict=True)]
    assert service.index.get([1, 2, 4]) == wanted
    for keywords, kind in (
        ([{"id": 1, "attributes": {}}], "invalid"),
        ([{"id": 1, "attributes": {"price": 1}}, {"id": 123456, "attributes": {"price": 1}}], "invalid"),
        ([{"id": 1, "attributes": {"price": 1}}, {"id": 1, "attributes": {"price": 2}}], "invalid"),
        ([{"id": 1, "text": "hat", "attributes": {"price": 1}}], "invalid"),
        ([{"id": 1, "attributes": {"price": "dear"}}], "mismatch"),
        ([{"id": "one", "attributes": {"price": 1}}], "mismatch"),
    ):
        problem(update(*keywords), 422, kind)
    assert service.index.get([1, 2, 4]) == wanted


def test_new_columns_and_dates(local: Start) -> None:
    service = local()
    service.index.upsert(["a day"], ids=[500], attributes={"day": [datetime.date(2024, 1, 1)]})
    moment = datetime.datetime(2024, 1, 1, 12, tzinfo=datetime.UTC)
    service.index.upsert(["an hour"], ids=[501], attributes={"at": pa.array([moment])})
    keyword = {
        "id": 502,
        "text": "a day later",
        "attributes": {"day": "2024-01-02", "at": "2024-01-01T13:00:00+00:00"},
    }
    assert service.post("/v1/keywords", {"keywords": [keyword]}).status_code == 200
    stored = service.client.get("/v1/keywords/502").json()["attributes"]
    assert stored["day"] == "2024-01-02"
    assert datetime.datetime.fromisoformat(stored["at"]) == moment + datetime.timedelta(hours=1)
    wrong = service.post("/v1/keywords", {"keywords": [{**keyword, "attributes": {"day": "tomorrow"}}]})
    assert wrong.status_code == 422
    assert wrong.json()["detail"] == "keywords.0.attributes.day: not a date32[day] in ISO 8601"


def test_string_ids_with_any_character(model: Any, tmp_path: Any) -> None:
    index = rbegir.Index.create(tmp_path / "strings.rbe", model)
    with TestClient(create_app(index), base_url="http://localhost") as client:
        ids = ["a/b", "ü?x=1", "..", "7"]
        body = {"keywords": [{"id": i, "text": f"text {n}"} for n, i in enumerate(ids)]}
        assert client.post("/v1/keywords", json=body).status_code == 200
        for name in ("a%2Fb", "%C3%BC%3Fx%3D1", "7"):
            assert client.get(f"/v1/keywords/{name}").status_code == 200
        wrong = client.post("/v1/keywords", json={"keywords": [{"id": 7, "text": "number"}]})
        assert wrong.status_code == 422
        assert wrong.json()["type"] == "urn:rbegir:problem:mismatch"


@pytest.mark.parametrize("binarizer", [False, True])
def test_an_index_that_cannot_encode_texts(tmp_path: Any, binarizer: bool) -> None:
    rng = np.random.default_rng(0)
    if binarizer:
        fitted = rbegir.Binarizer(16, n=64, rounds=0).fit(rng.standard_normal((200, 16), dtype=np.float32))
        index = rbegir.Index.create(tmp_path / "vectors.rbe", fitted)
    else:
        index = rbegir.Index.create(tmp_path / "codes.rbe", n=64, keyword_planes=2)
    index.add_codes(Codes(rng.integers(0, 2**64, (2, 50, 1), dtype=np.uint64), 64))
    with TestClient(create_app(index), base_url="http://localhost") as client:
        assert client.get("/v1/index").json()["has_model"] is False
        for path, body in (
            ("/v1/search", {"queries": ["a"]}),
            ("/v1/keywords", {"keywords": [{"id": 1, "text": "a"}]}),
        ):
            answer = client.post(path, json=body)
            assert answer.status_code == 501
            assert answer.json()["detail"] == "this index has no model of texts, so they cannot be encoded"
            assert ("vectors" if binarizer else "codes") in answer.json()["hint"]
        values = rng.integers(-127, 128, (1, 64), dtype=np.int16)
        (result,) = client.post("/v1/search", json={"codes": values.tolist(), "k": 5}).json()["results"]
        assert [hit["id"] for hit in result["hits"]] == index.search_codes(values, 5).ids[0].tolist()
        assert result["hits"][0]["text"] is None


def test_a_full_disk_refuses_changes_and_nothing_else(local: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    service = local()
    keywords = {"keywords": [{"id": 900, "text": "one too many"}]}
    before = service.search(queries=["hat"], k=5)

    def full(descriptor: int, data: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(disk, "write", full)
        said = problem(service.post("/v1/keywords", keywords), 507, "full")
        assert said["detail"] == "there is no room left on the disk of the service; nothing was changed"
        assert said["hint"].startswith("free some space and try again")
        problem(service.client.request("DELETE", "/v1/keywords", json={"ids": [3]}), 507, "full")
        assert service.search(queries=["hat"], k=5) == before
        assert service.client.get("/readyz").status_code == 200
    assert service.client.get("/v1/keywords/900").status_code == 404
    assert service.post("/v1/keywords", keywords).json() == {"upserted": 1}


def test_index_says_what_is_served_and_not_where(local: Start, index_path: Any) -> None:
    answer = local().client.get("/v1/index")
    schema.IndexResponse.model_validate_json(answer.content)
    assert answer.json()["keywords"] == len(TEXTS)
    assert answer.json()["attributes"] == {"price": "double", "lang": "string"}
    assert str(index_path.parent) not in answer.text


def test_compact(local: Start) -> None:
    service = local()
    service.client.request("DELETE", "/v1/keywords", json={"ids": list(range(50))})
    assert service.client.get("/v1/index").json()["deleted"] == 50
    answer = service.client.post("/v1/index:compact")
    assert answer.json() == {"keywords": len(TEXTS) - 50, "segments": 1}
    assert service.client.get("/v1/index").json()["deleted"] == 0


def test_changes_are_acknowledged_during_a_compaction(local: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    service = local()
    service.client.request("DELETE", "/v1/keywords", json={"ids": list(range(50))})
    begun, go = threading.Event(), threading.Event()
    write = writer.write_segment

    def held(path: Path, *arguments: Any) -> Any:
        if path.name.startswith("unnamed"):
            begun.set()
            assert go.wait(PATIENT)
        return write(path, *arguments)

    monkeypatch.setattr(writer, "write_segment", held)
    with ThreadPoolExecutor(1) as pool:
        compaction = pool.submit(service.client.post, "/v1/index:compact")
        try:
            assert begun.wait(PATIENT)
            rows = [{"id": 60, "text": "changed"}, {"id": 300, "text": "new"}]
            assert service.post("/v1/keywords", {"keywords": rows}).json() == {"upserted": 2}
            gone = service.client.request("DELETE", "/v1/keywords", json={"ids": [70, 71]})
            assert gone.json() == {"deleted": 2}
            assert not compaction.done()
        finally:
            go.set()
        assert compaction.result().json() == {"keywords": len(TEXTS) - 51, "segments": 2}
    assert service.client.get("/v1/index").json()["deleted"] == 3  # carried over to the new segment
    found = service.index.get([60, 70, 71, 300])
    assert [row and row["text"] for row in found] == ["changed", None, None, "new"]
    assert service.index.count() == len(TEXTS) - 51


def test_hits_as_arrow(local: Start) -> None:
    service = local()
    answer = service.post("/v1/search", {"queries": ["red hat", "shoes"], "k": 3}, accept=ARROW)
    assert answer.headers["content-type"] == ARROW
    table = pa.ipc.open_stream(answer.content).read_all()
    hits = service.index.search(["red hat", "shoes"], 3)
    assert table.schema.names == ["query", "rank", "id", "score", "key", "row", "text", "price", "lang"]
    assert table.drop_columns(["key", "row"]).to_pylist() == hits.to_arrow().to_pylist()
    assert table["key"].to_pylist() == hits.keys.ravel().tolist()
    assert table["row"].to_pylist() == hits.rows.ravel().tolist()
    empty = service.post("/v1/search", {"queries": ["hat"], "where": "price > 1e9"}, accept=ARROW)
    nothing = pa.ipc.open_stream(empty.content).read_all()
    assert nothing.num_rows == 0
    assert nothing.schema == table.schema


@pytest.mark.parametrize("accept", [ARROW, "*/*"])
def test_export_of_all_keywords(local: Start, accept: str) -> None:
    service = local()
    service.post("/v1/keywords", {"keywords": [{"id": 300, "text": "new", "attributes": {"size": 4}}]})
    service.client.request("DELETE", "/v1/keywords", json={"ids": [3]})
    answer = service.client.get("/v1/keywords", headers={"accept": accept})
    wanted = [k for k in service.index.get([*range(len(TEXTS)), 300]) if k is not None]
    if accept == ARROW:
        assert pa.ipc.open_stream(answer.content).read_all().to_pylist() == wanted
    else:
        rows = [json.loads(line) for line in answer.text.splitlines()]
        assert [{"id": r["id"], "text": r["text"], **r["attributes"]} for r in rows] == wanted


@pytest.mark.parametrize("accept", [ARROW, "*/*"])
def test_export_of_some_keywords(local: Start, accept: str) -> None:
    service = local()

    def ids(**parameters: Any) -> list[int]:
        response = service.client.get("/v1/keywords", params=parameters, headers={"accept": accept})
        assert response.status_code == 200
        if accept == ARROW:
            return pa.ipc.open_stream(response.content).read_all()["id"].to_pylist()
        return [json.loads(line)["id"] for line in response.text.splitlines()]

    assert ids(limit=3) == [0, 1, 2]
    assert ids(where="id >= 5", limit=2) == [5, 6]
    assert ids(where="id < 0") == []
    assert ids(limit=10**6) == list(range(len(TEXTS)))
    for wrong, kind in (
        ({"limit": "0"}, "invalid"),
        ({"limit": "many"}, "invalid"),
        ({"top": "3"}, "invalid"),
        ({"limit": ["1", "2"]}, "invalid"),
        ({"where": "prise < 3"}, "invalid-filter"),
        ({"where": "x" * 5000}, "invalid"),
    ):
        problem(service.client.get("/v1/keywords", params=wrong, headers={"accept": accept}), 422, kind)


def test_health_readiness_and_metrics(local: Start) -> None:
    service = local()
    assert service.client.get("/healthz").json() == {"status": "alive"}
    assert service.client.get("/readyz").json() == {"status": "ready"}
    service.search(queries=["red hat"])
    service.post("/v1/search", {"queries": []})
    service.post("/v1/keywords", {"keywords": [{"id": 1, "text": "x"}]})
    page = service.client.get("/metrics").text
    for line in (
        'rbegir_search_stage_seconds_count{stage="queue"} 1.0',
        'rbegir_search_stage_seconds_count{stage="encode"} 1.0',
        'rbegir_search_stage_seconds_count{stage="scan"} 1.0',
        'rbegir_search_stage_seconds_count{stage="fetch"} 1.0',
        'rbegir_search_stage_seconds_count{stage="serialise"} 1.0',
        'rbegir_write_stage_seconds_count{stage="commit"} 1.0',
        "rbegir_batch_queries_count 1.0",
        "rbegir_queue_depth 0.0",
        f"rbegir_keywords {len(TEXTS)}.0",
        'rbegir_requests_total{route="/v1/search",status="200"} 1.0',
        'rbegir_requests_total{route="/v1/search",status="422"} 1.0',
    ):
        assert line in page.splitlines(), line


def test_the_page_is_served_with_a_strict_policy(local: Start) -> None:
    answer = local().client.get("/")
    assert answer.status_code == 200
    assert answer.headers["content-security-policy"].startswith("default-src 'none'; script-src 'self'")
    assert answer.headers["x-frame-options"] == "DENY"
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_logs_hold_no_query_text_unless_asked(local: Start) -> None:
    quiet = local()
    quiet.search(queries=["secret words"])
    line = json.loads(quiet.log.getvalue().splitlines()[-1])
    assert line["route"] == "/v1/search"
    assert (line["status"], line["queries"], line["k"]) == (200, 1, 10)
    assert "secret" not in quiet.log.getvalue()


def test_logs_hold_query_texts_when_asked(local: Start) -> None:
    loud = local(log_queries=True)
    loud.search(queries=["secret words"])
    assert json.loads(loud.log.getvalue().splitlines()[-1])["texts"] == ["secret words"]


def test_the_texts_of_a_response_are_bounded(local: Start) -> None:
    service = local(max_hit_bytes=30_000, max_batch=4)
    rows = [{"id": 1000 + i, "text": f"long {i} " + "é" * 2000} for i in range(10)]
    assert service.post("/v1/keywords", {"keywords": rows}).status_code == 200
    only = {"where": "id >= 1000", "k": 10}
    assert len(service.search(queries=["long"], **(only | {"k": 7}))[0]["hits"]) == 7
    in_one_scan, in_several = {"queries": ["long"], **only}, {"queries": ["long"] * 40, **only, "k": 1}
    for body in (in_one_scan, in_several):
        said = problem(service.post("/v1/search", body), 422, "invalid")
        assert said["detail"] == "the texts and attributes of the hits have more than 30000 bytes"
        assert said["hint"] == "lower k, send fewer queries, or leave out texts and attributes"
        assert service.post("/v1/search", {**body, "texts": False}).status_code == 200


def test_an_export_reads_few_long_texts_at_a_time(local: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "BATCH_BYTES", 10_000)
    service = local()
    rows = [{"id": 1000 + i, "text": f"long {i} " + "x" * 3900} for i in range(20)]
    assert service.post("/v1/keywords", {"keywords": rows}).status_code == 200
    sizes = [batch.num_rows for batch in service.index.batches(where="id >= 1000")]
    assert sum(sizes) == 20
    assert max(sizes) <= 3
    lines = service.client.get("/v1/keywords").text.splitlines()
    assert [json.loads(line)["id"] for line in lines] == [*range(200), *range(1000, 1020)]
