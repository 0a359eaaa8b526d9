"""Wrong and hostile requests get the right status and a problem document, and the service goes on."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from rbegir.errors import FileError
from rbegir.index import filter as filters
from rbegir.serve.batcher import FilterQueue
from rbegir.wire.problems import KINDS, URN, from_error
from tests.serve.conftest import PATIENT, TEXTS, Local

Start = Callable[..., Local]
SEARCH = "/v1/search"
FILTER = " or ".join(["text like 'contains in%'"] * 40 + ["contains(text, 'it''s b')"] * 29)
JSON = {"content-type": "application/json"}


def problem(answer: Any, status: int, kind: str) -> dict[str, Any]:
    """The answer as a problem document of this kind."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    body: dict[str, Any] = answer.json()
    assert body["type"] == URN + kind
    assert (body["status"], body["title"]) == KINDS[kind][:2]
    assert body["detail"]
    assert "Traceback" not in answer.text
    return body


@pytest.fixture
def service(shared: Local) -> Iterator[Local]:
    """The service that all wrong requests go to; it still answers after each, and nothing has changed."""
    yield shared
    assert len(shared.search(queries=["still there"], k=3)[0]["hits"]) == 3
    assert len(shared.index) == len(TEXTS)


@pytest.mark.parametrize(
    ("body", "detail"),
    [
        (b"", "EOF while parsing a value"),
        (b'{"queries": ["a"', "EOF while parsing"),
        (b'{"queries": ["\xff\xfe"]}', "invalid unicode"),
        (b'{"queries": ["\\ud800"]}', "hex escape"),
        (b"[" * 10_000, "recursion"),
    ],
)
def test_malformed_json(service: Local, body: bytes, detail: str) -> None:
    found = problem(service.client.post(SEARCH, content=body, headers=JSON), 400, "malformed")
    assert detail in found["detail"]


@pytest.mark.parametrize(
    ("body", "detail"),
    [
        (b"null", "body: Input should be an object"),
        ({"queries": "text"}, "queries: Input should be a valid array"),
        ({"queries": []}, "queries: List should have at least 1 item after validation, not 0"),
        ({"queries": [7]}, "queries.0: Input should be a valid string"),
        ({"queries": ["a"], "k": 0}, "k: Input should be greater than or equal to 1"),
        ({"queries": ["a"], "k": 10**9}, "k: at most 10000, got 1000000000"),
        ({"queries": ["a"], "k": 10**30}, "k: at most 10000, got 1" + "0" * 30),
        ({"queries": ["a"], "k": "3"}, "k: Input should be a valid integer"),
        ({"queries": ["a"], "k": 3.5}, "k: Input should be a valid integer"),
        ({"queries": ["a"], "k": True}, "k: Input should be a valid integer"),
        ({"queries": ["a"], "top": 3}, "top: Extra inputs are not permitted"),
        ({"queries": ["a"], "mode": "fast"}, "mode: Input should be 'exact' or 'paper'"),
        ({"queries": ["a"], "planes": 9}, "planes must be a whole number from 1 to 2, got 9"),
        ({"queries": ["a"], "planes": 1, "mode": "paper"}, "planes and mode='paper' cannot be combined"),
        ({"k": 3}, "exactly one of queries, codes and vectors must be given"),
        ({"queries": ["a"], "codes": [["00"]]}, "exactly one of queries, codes and vectors must be given"),
        ({"queries": ["a" * 5000]}, "queries.0: at most 4096 characters, got 5000"),
        ({"queries": ["a"] * 1025}, "queries: at most 1024 items, got 1025"),
        ({"queries": ["a"] * 1000, "k": 10_000}, "queries times k: at most 200000 hits, got 10000000"),
        ({"queries": ["a"] * 11, "k": 100, "explain": True}, "with explain: at most 1000 hits, got 1100"),
        ({"queries": ["a"], "where": "x" * 5000}, "where: at most 4096 characters, got 5000"),
        (
            {"queries": ["a"] * 20, "where": [f"id != {i} and text != '{'x' * 4000}'" for i in range(20)]},
            "filters: at most 65536 characters, got 80450",
        ),
        (
            {"queries": ["a"] * 3, "where": [" and ".join(["not contains(text, 'b')"] * 90)] * 2 + [FILTER]},
            "filters: at most 256 words or patterns to look for, got 257",
        ),
        (
            {"queries": ["a"] * 257, "must": [f"word{i}" for i in range(257)]},
            "filters: at most 256 words or patterns to look for, got 257",
        ),
        ({"queries": ["a"], "k": float("nan")}, "k: Input should be a valid integer"),
        ({"codes": [[]]}, "codes.0 has 0 integers, expected n = 64"),
        ({"codes": [["0" * 16] * 9]}, "codes.0 has 9 planes, expected 1 to 8"),
        ({"codes": [["00"]]}, "codes.0.0 has 2 digits, expected 16 for n = 64"),
        ({"codes": [["zz" * 8]]}, "String should match pattern"),
        ({"codes": [[1, 2, 3]]}, "codes.0 has 3 integers, expected n = 64"),
        ({"codes": [[256] * 64]}, "Input should be less than or equal to 255"),
    ],
)
def test_wrong_searches(service: Local, body: Any, detail: str) -> None:
    content = body if isinstance(body, bytes) else json.dumps(body)
    found = problem(service.client.post(SEARCH, content=content, headers=JSON), 422, "invalid")
    assert detail in json.dumps(found, ensure_ascii=False)


def test_an_unknown_field_is_answered_with_those_that_there_are(service: Local) -> None:
    found = problem(service.post(SEARCH, {"queries": ["a"], "filter": "price < 3"}), 422, "invalid")
    assert found["detail"] == "filter: Extra inputs are not permitted"
    assert "the fields are: " in found["hint"]
    assert " where, " in found["hint"]


def test_equal_filters_count_once(service: Local) -> None:
    where = " and ".join(["not contains(text, 'b')"] * 120)
    assert len(service.search(queries=["a"] * 100, where=[where] * 100, k=1)) == 100
    many = [f"id = {number} or lang in ('contains', 'like')" for number in range(1000)]
    assert len(service.search(queries=["a"] * 1000, where=many, k=1)) == 1000


def test_a_text_without_words_and_a_wrong_filter(service: Local) -> None:
    found = problem(service.post(SEARCH, {"queries": ["good", "!?"]}), 422, "invalid-text")
    assert "position 1" in found["detail"]
    found = problem(service.post(SEARCH, {"queries": ["a"], "where": "cost < 3"}), 422, "invalid-filter")
    assert "no column 'cost'" in found["detail"]
    assert "price" in found["hint"]


VALUE = "Input should be a finite number, a text, a truth value, null, or a list of texts or of whole numbers"


@pytest.mark.parametrize(
    ("keywords", "detail"),
    [
        ([{"id": 1}], "keywords.0.text: Field required"),
        ([{"id": 1.5, "text": "a"}], "keywords.0.id"),
        (
            [{"id": 2**63, "text": "a"}],
            "keywords.0.id: Input should be less than or equal to 9223372036854775807",
        ),
        ([{"id": 1, "text": "a"}, {"id": 1, "text": "b"}], "keywords.1.id: 1 is given twice"),
        (
            [{"id": 1, "text": "a", "attributes": {"price": {"x": 1}}}],
            f"attributes.price: {VALUE}",
        ),
        (
            [{"id": 1, "text": "a", "attributes": {"tags": ["a", None]}}],
            f"attributes.tags: {VALUE}",
        ),
        ([{"id": 1, "text": "a", "attributes": {"score": 1}}], "an attribute cannot be called 'score'"),
        ([{"id": 1, "text": "a", "file": "/etc/passwd"}], "keywords.0.file: Extra inputs are not permitted"),
        ([{"id": i, "text": "a"} for i in range(10_001)], "keywords: at most 10000 items, got 10001"),
    ],
)
def test_wrong_upserts(service: Local, keywords: Any, detail: str) -> None:
    found = problem(service.post("/v1/keywords", {"keywords": keywords}), 422, "invalid")
    assert detail in json.dumps(found)


def test_upserts_that_do_not_fit_the_index(service: Local) -> None:
    body = {"keywords": [{"id": "seven", "text": "a"}]}
    found = problem(service.post("/v1/keywords", body), 422, "mismatch")
    assert found["detail"] == "ids are string, the ids of this index are int64"
    body = {"keywords": [{"id": 7, "text": "a", "attributes": {"price": "cheap"}}]}
    found = problem(service.post("/v1/keywords", body), 422, "mismatch")
    assert "in this index it is double" in found["detail"]


def test_infinite_numbers_are_refused(service: Local) -> None:
    body = b'{"keywords": [{"id": 1, "text": "a", "attributes": {"price": 1e999}}]}'
    problem(service.client.post("/v1/keywords", content=body, headers=JSON), 422, "invalid")


def test_bodies_that_are_too_large(local: Start) -> None:
    service = local(max_body_bytes=1000)
    big = b'{"queries": ["' + b"a" * 1000 + b'"]}'
    found = problem(service.client.post(SEARCH, content=big, headers=JSON), 413, "too-large")
    assert found["detail"] == "the body has more than 1000 bytes"
    chunked = service.client.post(SEARCH, content=iter([big[:600], big[600:]]), headers=JSON)
    problem(chunked, 413, "too-large")
    lying = service.client.post(SEARCH, content=big, headers={**JSON, "content-length": "10"})
    problem(lying, 413, "too-large")
    assert service.search(queries=["hat"], k=1)


@pytest.mark.parametrize("media", ["text/plain", "application/x-www-form-urlencoded", ""])
def test_other_media_types_are_refused(service: Local, media: str) -> None:
    headers = {"content-type": media}
    problem(service.client.post(SEARCH, content=b"{}", headers=headers), 415, "unsupported-media-type")


def test_what_is_not_there(service: Local) -> None:
    problem(service.client.get("/v1/nothing"), 404, "not-found")
    for name in ("999999", "seven", "1.0", "007", str(2**70), "%00", "-0"):
        problem(service.client.get(f"/v1/keywords/{name}"), 404, "not-found")
    answer = service.client.put(SEARCH)
    problem(answer, 405, "method-not-allowed")
    assert answer.headers["allow"] == "POST"
    assert service.client.put("/v1/keywords").headers["allow"] == "DELETE, GET, PATCH, POST"
    assert service.client.put("/v1/keywords/7").headers["allow"] == "GET"
    assert service.client.post("/").headers["allow"] == "GET"


@pytest.mark.parametrize("path", ["/../app.py", "/%2e%2e/app.py", "/static/../../app.py", "//etc/passwd"])
def test_no_path_names_a_file_outside_the_page(service: Local, path: str) -> None:
    problem(service.client.get(f"http://localhost{path}"), 404, "not-found")


def test_deadlines(service: Local) -> None:
    for wrong in ("0", "-1", "soon", "1e3", "9" * 30):
        headers = {"x-timeout-ms": wrong}
        problem(service.client.post(SEARCH, json={"queries": ["a"]}, headers=headers), 400, "bad-header")
    assert service.post(SEARCH, {"queries": ["a"]}, **{"x-timeout-ms": "20000"}).status_code == 200


@pytest.mark.parametrize("path", ["/v1/keywords:count", "/v1/keywords"])
def test_a_filter_ends_with_the_deadline(service: Local, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    monkeypatch.setattr(filters, "BLOCK_ROWS", 64)
    monkeypatch.setattr(filters, "LEAST_ROWS", 64)
    blocks, go, done = [], threading.Event(), threading.Event()
    evaluate, step = filters.Filter._evaluate, FilterQueue._step

    def noted(self: filters.Filter, table: pa.Table) -> Any:
        if table.num_rows:
            blocks.append(table.num_rows)
            assert go.wait(PATIENT)
        return evaluate(self, table)

    def watched(self: FilterQueue, batch: Any) -> Any:
        try:
            return step(self, batch)
        finally:
            if blocks:
                done.set()

    monkeypatch.setattr(filters.Filter, "_evaluate", noted)
    monkeypatch.setattr(FilterQueue, "_step", watched)
    given = {"where": f"price < 7 and id != {9000 + len(path)}"}
    answer = service.client.get(path, params=given, headers={"x-timeout-ms": "50"})
    problem(answer, 504, "deadline")
    go.set()
    assert done.wait(PATIENT)
    assert blocks == [64]
    assert service.client.get("/v1/keywords:count", params=given).json() == {"keywords": 28}


def test_unexpected_failures_say_nothing_of_their_cause() -> None:
    for error, kind in ((RuntimeError("secret"), "internal"), (FileError("/secret/path"), "storage")):
        found = from_error(error)
        assert found.kind == kind
        assert b"secret" not in found.document()


def test_a_bug_is_a_500_for_the_client_and_a_trace_in_the_log(
    local: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = local()
    monkeypatch.setattr(service.index, "search_codes", lambda *a, **o: 1 / 0)
    problem(service.post(SEARCH, {"queries": ["a"]}), 500, "internal")
    assert "ZeroDivisionError" in service.log.getvalue()
    monkeypatch.undo()
    assert service.search(queries=["a"])
