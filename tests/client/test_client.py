"""Both clients against a real service: the same methods, results and errors as the index behind it."""

from __future__ import annotations

import asyncio
import datetime
import inspect
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import rbegir
from rbegir.errors import (
    AccessError,
    FilterError,
    InputError,
    MismatchError,
    RbegirError,
    ServiceError,
    TextError,
)
from rbegir.search.hits import Hits
from tests.client.conftest import READ, WRITE
from tests.service import TEXTS, Running, make_index, running

Do = Callable[..., Any]  # (method name, arguments) → result


@pytest.fixture(params=["sync", "async"])
def reader(request: pytest.FixtureRequest, shared: tuple[Path, Running]) -> Do:
    """Calls a method of a client of the shared service, by either client."""
    return caller(request.param, shared[1].url, READ)


def caller(kind: str, url: str, token: str | None = None) -> Do:
    def do(method: str, *args: Any, **kwargs: Any) -> Any:
        if kind == "sync":
            with rbegir.Client(url, token) as client:
                return getattr(client, method)(*args, **kwargs)

        async def one() -> Any:
            async with rbegir.AsyncClient(url, token) as client:
                return await getattr(client, method)(*args, **kwargs)

        return asyncio.run(one())

    return do


def assert_same(ours: Hits, theirs: Hits) -> None:
    for name in ("ids", "scores", "keys", "rows", "texts"):
        mine, other = getattr(ours, name), getattr(theirs, name)
        assert getattr(mine, "dtype", None) == getattr(other, "dtype", None), name
        np.testing.assert_array_equal(mine, other, err_msg=name)
    assert ours.attributes == theirs.attributes
    assert ours.certificate == theirs.certificate
    assert ours.recall == theirs.recall


OPTIONS: list[dict[str, Any]] = [
    {},
    {"k": 1},
    {"k": 1000},
    {"where": "price < 100 and lang = 'en'"},
    {"where": "price < 0"},
    {"allow": [101, 104, 9999], "where": "price < 30"},
    {"allow": []},
    {"must": "SHOES"},
    {"deny": np.arange(100, 120)},
    {"mode": "paper"},
    {"planes": 1, "k": 5},
    {"planes": 1, "where": "rare is not null"},
    {"planes": 1, "k": 3, "candidates": 5, "measure": True},
    {"mode": "paper", "per_thread": 2, "queue": 2, "k": 4},
    {"texts": False},
    {"attributes": False, "k": 3},
    {"partial": True},
    {"min_score": 0.25},
    {"k": None, "min_score": 0.0},
    {"k": None, "min_score": 2.0, "attributes": False},
]
EACH: list[dict[str, Any]] = [
    {"where": ["price < 100", None, "price < 0"]},
    {"must": ["shoes", None, "no such word"]},
    {"allow": [[101, 104], None, []], "deny": [None, [105], None], "k": 30},
    {"where": ["lang = 'en'", "lang = 'de'", "lang is null"], "min_score": 0.0},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("queries", ["running shoes", ["rome"], ["bike", "tea", "boots for rain"]], ids=str)
def test_search_is_that_of_the_index(
    reader: Do, shared: tuple[Path, Running], queries: Any, options: dict[str, Any]
) -> None:
    with rbegir.Index.open(shared[0], read_only=True) as index:
        assert_same(reader("search", queries, **options), index.search(queries, **options))


@pytest.mark.parametrize("options", EACH, ids=str)
def test_a_filter_per_query_is_that_of_the_index(
    reader: Do, shared: tuple[Path, Running], options: dict[str, Any]
) -> None:
    queries = ["bike", "tea", "boots for rain"]
    with rbegir.Index.open(shared[0], read_only=True) as index:
        assert_same(reader("search", queries, **options), index.search(queries, **options))


def test_tenants(model: Path, tmp_path: Path) -> None:
    """Searches of a tenant, in JSON too, and its export; what a service without tenants refuses."""
    with rbegir.Index.create(tmp_path / "a.rbe", rbegir.Model.load(model), tenant="shop") as index:
        index.add(list(TEXTS), attributes={"shop": [i % 3 for i in range(len(TEXTS))]})
    with running(tmp_path / "a.rbe") as service, rbegir.Index.open(tmp_path / "a.rbe") as index:
        for kind in ("sync", "async"):
            do = caller(kind, service.url)
            for own in (1, 7):
                for rerank in (False, None):
                    ours = do("search", ["rome", "bike"], 5, tenant=own, rerank=rerank)
                    assert_same(ours, index.search(["rome", "bike"], 5, tenant=own, rerank=rerank))
            ours = do("search", ["rome", "bike"], 2, item="shop")
            assert_same(ours, index.search(["rome", "bike"], 2, item="shop"))
            with pytest.raises(InputError, match="item must be an attribute, got 'color'"):
                do("search", "rome", item="color")
            with pytest.raises(MismatchError, match="tenant is 'x', in this index 'shop' is int64"):
                do("search", "rome", tenant="x")
            with pytest.raises(InputError, match="attributes lack 'shop'"):
                do("add", ["tea"])
        body = {"queries": ["rome"], "k": 3, "tenant": 2, "explain": True, "rerank": False}
        (found,) = httpx.post(f"{service.url}/v1/search", json=body).json()["results"]
        assert [hit["attributes"]["shop"] for hit in found["hits"]] == [2, 2, 2]
        assert [hit["ranks"][-1] for hit in found["hits"]] == [1, 2, 3]
        body = {"queries": ["rome"], "k": 3, "item": "shop", "explain": True}
        (found,) = httpx.post(f"{service.url}/v1/search", json=body).json()["results"]
        assert sorted(hit["attributes"]["shop"] for hit in found["hits"]) == [0, 1, 2]
        order = index.search("rome", len(TEXTS), rerank=False).ids[0].tolist()
        assert all(hit["ranks"][-1] == 1 + order.index(hit["id"]) for hit in found["hits"])
        lines = httpx.get(f"{service.url}/v1/keywords", params={"tenant": 2, "limit": 4}).text.splitlines()
        assert [json.loads(line)["id"] for line in lines] == [2, 5, 8, 11]
        assert httpx.get(f"{service.url}/v1/keywords?tenant=x").status_code == 422
        properties = httpx.get(f"{service.url}/openapi.json").json()["components"]["schemas"]["SearchRequest"]
        assert [one["type"] for one in properties["properties"]["tenant"]["anyOf"]] == ["integer", "null"]
        assert properties["properties"]["item"]["anyOf"][0]["enum"] == ["shop"]
        for body in ({}, {"ids": [1], "where": "id > 3", "tenant": 1}, {"where": "id > 3", "ids": [1]}):
            assert httpx.request("DELETE", f"{service.url}/v1/keywords", json=body).status_code == 422
        for kind, own in (("sync", 1), ("async", 2)):
            do = caller(kind, service.url)
            assert do("count", tenant=own) == 10
            assert do("count", "id < 6", tenant=own) == do("delete", [1, 2, 3, 4, 5], tenant=own) == 2
            assert do("delete", where="id > 20", tenant=own) == 3
            assert (do("count", tenant=own), do("count", tenant=7)) == (5, 0)
            assert do("delete", tenant=own) == 5
        assert do("count") == do("count", tenant=0) == 10


def test_tables_of_hits_have_the_types_of_the_index(model: Path, tmp_path: Path) -> None:
    """Attributes go from the index to a table as Arrow arrays; dictionaries are made only for who asks."""
    columns = {
        "stock": pa.array([1, None, 3], pa.int8()),
        "since": pa.array([datetime.date(2024, 1, 2), None, datetime.date(2025, 3, 4)]),
        "tags": pa.array([["a", "b"], [], None]),
        "width": pa.array([0.5, 1.5, None], pa.float32()),
        "empty": pa.array([None, None, "x"]),
    }
    with rbegir.Index.create(tmp_path / "x.rbe", rbegir.Model.load(model)) as index:
        index.add(list(TEXTS[:3]), attributes=columns)
        queries = [TEXTS[2], TEXTS[0]]
        hits = index.search(queries, k=2)
        table = hits.to_arrow()
        assert vars(hits)["attributes"] is None
        for name, column in columns.items():
            assert table[name].type == column.type
            assert table[name].combine_chunks() == column.take(hits.rows[hits.places])
        wanted = [
            {name: column[row].as_py() for name, column in columns.items()} for row in hits.rows[hits.places]
        ]
        assert hits.attributes == [wanted[:2], wanted[2:]]
        assert hits.to_arrow() == table
        assert hits.to_pandas()["tags"].tolist() == [one["tags"] for one in wanted]
        assert "2025-03-04" in hits._repr_html_()
        with running(tmp_path / "x.rbe", "--read-only") as service, rbegir.Client(service.url) as client:
            ours = client.search(queries, k=2)
            assert ours.to_arrow() == table
            assert ours.attributes == hits.attributes
        nothing = index.search(queries, k=2, where="stock > 100")
        assert nothing.attributes == [[], []]
        assert nothing.to_arrow().num_rows == 0
        assert nothing.to_arrow().schema == table.schema


@pytest.mark.parametrize("rows", [1, 7, 1000])
def test_all_keywords_in_pages(shared: tuple[Path, Running], rows: int) -> None:
    path, service = shared
    with rbegir.Index.open(path, read_only=True) as index, rbegir.Client(service.url, READ) as client:
        assert list(client.rows()) == list(index.rows())
        assert list(client.rows("price > 99")) == list(index.rows("price > 99"))
        for where in (None, "lang = 'de'", "id < 0"):
            wanted = pa.Table.from_batches(index.batches(where=where))
            pages = list(client.batches(rows, where=where))
            assert pa.Table.from_batches(pages).equals(wanted)
            assert [page.num_rows for page in pages[:-2]] == [rows] * (len(pages) - 2)
        with pytest.raises(InputError, match="rows must be a whole number of at least 1, got 0"):
            next(client.batches(0))
        wanted_rows = list(index.rows("price > 99"))

    async def read() -> None:
        async with rbegir.AsyncClient(service.url, READ) as client:
            assert [row async for row in client.rows("price > 99")] == wanted_rows
            assert [len(page) async for page in client.batches(20)] == [20, 10, 0]

    asyncio.run(read())


@pytest.mark.parametrize("rows", [3, 1 << 14])
def test_a_scan_is_that_of_the_index(model: Path, tmp_path: Path, rows: int) -> None:
    """Page by page, with pages of the service that are smaller than asked for too."""
    path = make_index(tmp_path / "a.rbe", model)
    with rbegir.Index.open(path) as index:
        index.add(["city bike, used"], [99], {"rank": [1], "query": [2], "attribute_rank": [3]})
    queries = ["bike", "nothing like it", "boots for rain"]
    allow: list[list[int] | None] = [None, list(range(100, 104)), None]
    with running(path, "--max-k", "4") as service, rbegir.Index.open(path, read_only=True) as index:
        codes = index.model.encode_queries(queries)
        asked: list[tuple[Any, float, dict[str, Any]]] = [
            ("bike", -1.0, {}),
            (queries, 0.3, {}),
            (queries, 2.0, {}),
            (queries, -1.0, {"where": "price < 100", "allow": allow}),
            (codes, 0.2, {"must": "shoes"}),
        ]

        async def read() -> None:
            async with rbegir.AsyncClient(service.url) as other:
                for (given, least, options), wanted in zip(asked, pages, strict=True):
                    assert [page async for page in other.scan(given, least, rows=rows, **options)] == wanted

        pages: list[list[pa.RecordBatch]] = []
        with rbegir.Client(service.url) as client:
            for given, least, options in asked:
                pages.append(list(client.scan(given, least, rows=rows, **options)))
                wanted = list(index.scan(given, least, **options))
                assert bool(pages[-1]) == bool(wanted)
                assert all(0 < page.num_rows <= min(rows, 4) for page in pages[-1])
                assert not wanted or pa.Table.from_batches(pages[-1]).equals(pa.Table.from_batches(wanted))
            with pytest.raises(InputError, match="allow has 3 entries for 1 queries"):
                next(client.scan("bike", 0.5, allow=allow))
            with pytest.raises(InputError, match="rows must be a whole number"):
                next(client.scan("bike", 0.5, rows=0))
        asyncio.run(read())


def test_pages_and_ranges_longer_than_a_page(model: Path, tmp_path: Path) -> None:
    """A service of small pages: the client asks for as many as there are."""
    path = make_index(tmp_path / "a.rbe", model)
    with (
        running(path, "--max-k", "4") as service,
        rbegir.Client(service.url) as client,
        rbegir.Index.open(path) as index,
    ):
        for queries in ("rome", ["bike", "tea", "shoes"]):
            for least in (-1.0, 0.3, 0.9):
                ours = client.search(queries, None, min_score=least)
                assert_same(ours, index.search(queries, None, min_score=least))
                assert ours.counts.max() > 4 or least > 0
            page, seen = client.search(queries, 4, rerank=False), []
            while page.k:
                seen.append(page.rows)
                page = client.search(queries, 4, after=page.cursor)
            wanted = index.search(queries, 99, rerank=False).rows
            np.testing.assert_array_equal(np.concatenate(seen, axis=1), wanted)


def test_search_by_codes_is_that_of_the_index(reader: Do, shared: tuple[Path, Running]) -> None:
    with rbegir.Index.open(shared[0], read_only=True) as index:
        codes = index.model.encode_queries(["rome", "chair"])
        vectors = np.random.default_rng(1).integers(-127, 128, (3, 64), dtype=np.int8)
        for given in (codes, vectors):
            assert_same(reader("search_codes", given, k=7), index.search_codes(given, k=7))


def test_get_and_info_are_those_of_the_index(reader: Do, shared: tuple[Path, Running]) -> None:
    with rbegir.Index.open(shared[0], read_only=True) as index:
        assert reader("get", [104, 5, 100]) == index.get([104, 5, 100])
        ours, theirs = reader("info"), index.info()
        assert {name: ours[name] for name in theirs if name != "path"} == {
            name: value for name, value in theirs.items() if name != "path"
        }
        assert "path" not in ours


def test_ids_of_any_characters_are_found(model: Path, tmp_path: Path) -> None:
    path = make_index(tmp_path / "ids.rbe", model, count=0, id_type="string")
    ids = [".", "..", "", "a/b", "a/../b", "%2E", "ü?x=1#y"]
    with running(path) as service:
        for kind in ("sync", "async"):
            do = caller(kind, service.url)
            do("upsert", [f"text {number}" for number in range(len(ids))], ids)
            assert [record and record["id"] for record in do("get", ids)] == ids


@pytest.mark.parametrize(("kind", "id_type"), [("sync", "int64"), ("async", "string")])
def test_a_life(kind: str, id_type: str, model: Path, tmp_path: Path) -> None:
    path = make_index(tmp_path / "life.rbe", model, count=3, id_type=id_type)
    name: Callable[[int], Any] = (lambda i: i) if id_type == "int64" else (lambda i: f"id/{i} ü?")
    with running(path) as service:
        do = caller(kind, service.url)
        day = datetime.date(2024, 2, 29)
        assert do(
            "upsert", ["red paint", "blue paint"], ids=[name(1), name(2)], attributes={"price": [1.5, None]}
        ).tolist() == [name(1), name(2)]
        assert do("search", "blue paint", k=1).ids.tolist() == [[name(2)]]
        assert do("get", [name(1), name(2)])[0] == {
            "id": name(1),
            "text": "red paint",
            "price": 1.5,
            "lang": None,
            "rare": None,
        }
        do("upsert", ["green paint"], ids=[name(2)], attributes=[{"lang": "fr"}])
        assert do("get", [name(2)])[0]["text"] == "green paint"
        fresh = do("add", ["yellow paint", "white paint"])
        assert fresh.dtype == (np.int64 if id_type == "int64" else object)
        assert [record["text"] for record in do("get", fresh)] == ["yellow paint", "white paint"]
        with pytest.raises(InputError, match=r"is in the index already"):
            do("add", ["black paint", "x"], ids=[name(9), name(1)])
        assert do("get", [name(9)]) == [None], "a refused add must leave nothing behind"
        assert do("delete", [name(1), name(77)]) == 1
        assert do("delete", []) == 0
        assert do("count", where="price = 1.5 or lang = 'fr'") == 1
        assert do("update", [name(2)], attributes={"price": [2.5], "lang": [None]}) == 1
        assert do("update", [name(2)], attributes={}) == 0
        assert [do("get", [name(2)])[0][column] for column in ("text", "price", "lang")] == [
            "green paint", 2.5, None
        ]  # fmt: skip
        records = [{"lang": "fr"}, {"price": 1.5, "rare": None}, {}]
        assert do("update", [name(2), fresh[0], name(3)], attributes=records) == 2
        kept = [(found["price"], found["lang"]) for found in do("get", [name(2), fresh[0]])]
        assert kept == [(2.5, "fr"), (1.5, None)]
        assert do("count") == 6
        assert do("delete", where="price = 2.5") == 1
        do("upsert", ["green paint"], ids=[name(2)], attributes=[{"lang": "fr"}])
        assert do("upsert", [], ids=[]).tolist() == []
        do("compact")
        assert do("info")["keywords"] == 6
    with rbegir.Index.open(path) as index:
        assert len(index) == 6
        assert index.get([name(2)])[0]["lang"] == "fr"  # type: ignore[index]
        index.add(["dated"], ids=[name(50)], attributes={"day": [day]})
    with running(path) as service:
        do = caller(kind, service.url)
        assert do("search", "dated", k=1).attributes[0][0]["day"] == day
        do("upsert", ["dated too"], ids=[name(51)], attributes={"day": [day]})
        assert do("search", "dated too", k=1).attributes[0][0]["day"] == day
        assert do("get", [name(51)])[0]["day"] == "2024-02-29"


def test_len_and_repr(shared: tuple[Path, Running]) -> None:
    with rbegir.Client(shared[1].url, READ) as client:
        assert len(client) == len(TEXTS)
        assert repr(client) == f"Client({shared[1].url!r})"
        assert READ not in repr(vars(client)), "tokens must not be seen in tracebacks"


WRONG: list[tuple[str, tuple[Any, ...], dict[str, Any], type[RbegirError], str]] = [
    ("search", ("a",), {"k": 0}, InputError, "k must be a whole number of at least 1, got 0"),
    ("search", ("a",), {"k": True}, InputError, "k must be a whole number of at least 1, got True"),
    ("search", ("a",), {"k": 2**40}, InputError, "k: at most 10000"),
    ("search", ("a",), {"planes": 1.5}, InputError, "planes must be a whole number of at least 1, got 1.5"),
    ("search", ("a",), {"mode": "fast"}, InputError, "mode"),
    ("search", ([],), {}, InputError, "queries must hold at least one query"),
    ("search", ([True],), {}, InputError, "queries must hold texts, got bool"),
    ("search", ("…",), {}, TextError, "has no letter and no digit"),
    ("search", ("\ud800",), {}, InputError, "a text holds a lone surrogate, which UTF-8 cannot encode"),
    ("search", ("a",), {"where": "prize < 3"}, FilterError, "there is no column 'prize'"),
    ("search", ("a",), {"allow": 7}, InputError, "allow must be a list of int or str, got int"),
    ("search", ("a",), {"deny": [1] * 10_001}, InputError, "deny: at most 10000 items, got 10001"),
    ("search", ("a",), {"where": 3}, InputError, "where must be a text, got int"),
    ("search", ("a",), {"where": pc.field("price") < 3}, InputError, "where must be a text, got Expression"),
    ("search", ("a",), {"deadline": 0}, InputError, "deadline must be a positive number of seconds, got 0"),
    ("search", ("a",), {"texts": 1}, InputError, "texts must be True or False, got 1"),
    (
        "search",
        ("a",),
        {"planes": 1, "mode": "paper"},
        InputError,
        "planes and mode='paper' cannot be combined",
    ),
    ("search", (np.zeros((1, 4)),), {}, ServiceError, "this index has no model of vectors"),
    ("search", ([0.5, 1],), {}, ServiceError, "this index has no model of vectors"),
    (
        "search_codes",
        (np.zeros((1, 64), np.float32),),
        {},
        InputError,
        "codes must be rbegir.Codes or an int8",
    ),
    ("search_codes", (np.zeros((1, 128), np.int8),), {}, InputError, "expected n = 64"),
    ("upsert", (["a"], [1, 2]), {}, InputError, "ids has 2 values for 1 keywords"),
    ("upsert", (["a", "b"], [1, 1]), {}, InputError, "ids holds 1 more than once"),
    (
        "upsert",
        (["a"], [1]),
        {"attributes": {"price": ["dear"]}},
        MismatchError,
        "in this index it is double",
    ),
    ("upsert", (["a"], ["x"]), {}, MismatchError, "ids are string, the ids of this index are int64"),
    ("delete", ("x",), {}, InputError, "ids must be a list of int or str, got str"),
    ("delete", (), {}, InputError, "delete needs ids or where, and not both"),
    ("delete", ([1],), {"where": "id = 1"}, InputError, "delete needs ids or where, and not both"),
    ("delete", (), {"where": "prize < 3"}, FilterError, "there is no column 'prize'"),
    ("count", ("prize < 3",), {}, FilterError, "there is no column 'prize'"),
    ("count", (pc.field("price") < 3,), {}, InputError, "where must be a text, got Expression"),
    ("update", ([100, 7], {"price": [1, 2]}), {}, InputError, "7"),
    ("update", ([100], {"price": ["dear"]}), {}, MismatchError, "in this index it is double"),
]


@pytest.mark.parametrize(("method", "args", "options", "error", "message"), WRONG, ids=lambda v: str(v)[:30])
def test_mistakes_raise_the_errors_of_the_index(
    shared: tuple[Path, Running],
    method: str,
    args: tuple[Any, ...],
    options: dict[str, Any],
    error: type[RbegirError],
    message: str,
) -> None:
    with (
        rbegir.Client(shared[1].url, WRITE) as client,
        pytest.raises(error, match=re.escape(message)) as caught,
    ):
        getattr(client, method)(*args, **options)
    assert type(caught.value) is error


@pytest.mark.parametrize(
    ("token", "method", "args", "message"),
    [
        (None, "info", (), "a bearer token is needed"),
        ("token-of-a-stranger", "search", ("a",), "the token is not known"),
        (READ, "delete", ([1],), "the token may read but not write"),
        (READ, "compact", (), "the token may read but not write"),
    ],
)
def test_tokens(
    shared: tuple[Path, Running], token: str | None, method: str, args: Any, message: str
) -> None:
    with rbegir.Client(shared[1].url, token) as client, pytest.raises(AccessError, match=message) as caught:
        getattr(client, method)(*args)
    assert caught.value.hint


def test_vectors_search_an_index_made_with_a_binarizer(tmp_path: Path) -> None:
    vectors = np.random.default_rng(3).standard_normal((600, 24)).astype(np.float32)
    binarizer = rbegir.Binarizer(24, n=64, metric="l2").fit(vectors)
    path = tmp_path / "vectors.rbe"
    with rbegir.Index.create(path, binarizer) as index:
        index.add_codes(binarizer.encode_keywords(vectors))
    with rbegir.Index.open(path, read_only=True) as index, running(path) as service:
        for kind in ("sync", "async"):
            do = caller(kind, service.url)
            assert_same(do("search", vectors[:5], k=3), index.search(vectors[:5], k=3))
            for one in (vectors[7], vectors[7].tolist(), [vectors[7]]):
                assert_same(do("search", one, k=3), index.search(vectors[7:8], k=3))
            values = binarizer.encode_queries(vectors[7:8]).values()
            assert_same(do("search_codes", values[0], k=3), index.search_codes(values, k=3))
            with pytest.raises(ServiceError, match="no model of texts"):
                do("search", "a text")
            with pytest.raises(InputError, match="3 features"):
                do("search", np.zeros((1, 3)))
            with pytest.raises(InputError, match="texts must be a list of texts, got float32") as caught:
                do("add", vectors[:2])
            assert caught.value.hint == "a service takes texts; add vectors with Index.add or Cluster.add"
            with pytest.raises(InputError, match="texts must be a list of texts, got int"):
                do("add", 5)


def test_a_deadline_is_sent_and_kept(shared: tuple[Path, Running]) -> None:
    with rbegir.Client(shared[1].url, READ) as client:
        assert client.search("rome", k=1, deadline=30.0).k == 1
        with pytest.raises(ServiceError, match=r"within|deadline"):
            client.search(["rome"] * 1000, k=100, deadline=0.001)


def test_both_clients_have_the_methods_of_an_index() -> None:
    for name in ("add", "upsert", "update", "delete", "count", "get", "info", "compact", "close"):
        index = inspect.signature(getattr(rbegir.Index, name))
        for cls in (rbegir.Client, rbegir.AsyncClient):
            method = inspect.signature(getattr(cls, name))
            given = [
                p
                for p in index.parameters.values()
                if p.kind is p.POSITIONAL_OR_KEYWORD and p.name != "progress"
            ]
            assert [p.name for p in given] == [
                p.name for p in method.parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD
            ]


CLIENT_WITHOUT_NATIVE = """
import sys

class Blocked:
    def find_spec(self, name, path, target=None):
        if name == "rbegir._native._core" or name.partition(".")[0] in ("torch", "pydantic", "starlette"):
            raise ImportError(f"{name} is not there")

sys.meta_path.insert(0, Blocked())
import asyncio, rbegir

url = sys.argv[1]
with rbegir.Client(url) as client:
    hits = client.search("running shoes", k=2, where="price < 100")
    codes = rbegir.Codes.from_values(__import__("numpy").ones((1, 64), "i2"), 1)
    client.search_codes(codes, k=1)

async def main():
    async with rbegir.AsyncClient(url) as other:
        again = await other.search("running shoes", k=2, where="price < 100")
        assert again.ids.tolist() == hits.ids.tolist()

asyncio.run(main())
print(hits.ids.tolist())
"""


def test_a_client_needs_no_native_module(model: Path, tmp_path: Path) -> None:
    path = make_index(tmp_path / "plain.rbe", model)
    with running(path) as service, rbegir.Index.open(path, read_only=True) as index:
        done = subprocess.run(
            [sys.executable, "-c", CLIENT_WITHOUT_NATIVE, service.url], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip() == str(
            index.search("running shoes", k=2, where="price < 100").ids.tolist()
        )
