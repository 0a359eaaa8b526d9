"""What a client makes of servers that are busy, broken, slow, or no rbegir at all."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
import threading
import zlib
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import httpx
import numpy as np
import pyarrow as pa
import pytest

import rbegir
from rbegir.client import transport
from rbegir.client.calls import Call, read_json
from rbegir.client.transport import HttpExchange, retry_after
from rbegir.errors import (
    AccessError,
    BusyError,
    FullError,
    InputError,
    MissingExtraError,
    RbegirError,
    ServiceError,
)
from rbegir.search.hits import Hits
from rbegir.wire.search import read_hits, write_hits
from tests.client.scripted import Turn, answer, arrow, hits_table, scripted
from tests.service import reserved_port

GOOD = arrow(hits_table())
BUSY = answer("503 Service Unavailable", b"{}", "application/problem+json", Retry_After="0")
CUT = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{"
SLAM = b""  # closes without a word


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "BACKOFF", 0.0001)


@pytest.fixture(params=["sync", "async"])
def call(request: pytest.FixtureRequest) -> Any:
    """call(url, method, *args, client options) with either client."""

    def do(url: str, method: str, *args: Any, **options: Any) -> Any:
        if request.param == "sync":
            with rbegir.Client(url, **options) as client:
                return getattr(client, method)(*args)

        async def one() -> Any:
            async with rbegir.AsyncClient(url, **options) as client:
                return await getattr(client, method)(*args)

        return asyncio.run(one())

    return do


@pytest.mark.parametrize("trouble", [BUSY, CUT, SLAM], ids=["503", "cut", "slam"])
def test_repeatable_calls_are_tried_again(call: Any, trouble: bytes) -> None:
    with scripted(trouble, trouble, GOOD) as server:
        assert call(server.url, "search", "a").ids.tolist() == [[0, 1]]
        assert len(server.asked) == 3
    done = answer("200 OK", b'{"deleted": 2, "upserted": 1}')
    for method, args in (("delete", ([1],)), ("upsert", (["a"], [1]))):
        with scripted(trouble, done) as server:
            call(server.url, method, *args)
            assert len(server.asked) == 2


@pytest.mark.parametrize("trouble", [BUSY, CUT, SLAM], ids=["503", "cut", "slam"])
@pytest.mark.parametrize(("method", "args"), [("add", (["a"], [1])), ("compact", ())])
def test_other_calls_are_not(call: Any, method: str, args: Any, trouble: bytes) -> None:
    with scripted(trouble, answer("200 OK", b'{"upserted": 1}')) as server:
        with pytest.raises((ServiceError, BusyError)) as caught:
            call(server.url, method, *args)
        assert len(server.asked) == 1
    if trouble != BUSY:
        assert "check whether it was done before trying again" in caught.value.hint


def test_a_storm_of_503_ends(call: Any) -> None:
    said = json.dumps(
        {"type": "urn:rbegir:problem:overloaded", "detail": "4096 queries wait", "hint": "later"}
    )
    storm = answer("503 Service Unavailable", said.encode(), "application/problem+json", Retry_After="0")
    with scripted(storm) as server:
        with pytest.raises(BusyError, match="4096 queries wait") as caught:
            call(server.url, "search", "a", retries=3)
        assert caught.value.hint == "later"
        assert len(server.asked) == 4


def test_a_wait_that_is_too_long_is_not_made(call: Any) -> None:
    with scripted(answer("503 Service Unavailable", b"", "text/plain", Retry_After="3600")) as server:
        with pytest.raises(BusyError, match="the service answered 503 without a reason"):
            call(server.url, "info")
        assert len(server.asked) == 1


def test_a_cut_connection_every_time(call: Any) -> None:
    with scripted(SLAM) as server:
        with pytest.raises(
            ServiceError, match=r"POST /v1/search got no response.*the connection broke \(tried 3 times\)"
        ):
            call(server.url, "search", "a", retries=2)
        assert len(server.asked) == 3


def test_nobody_listens(call: Any) -> None:
    with (
        reserved_port() as port,
        pytest.raises(
            ServiceError, match=r"GET /v1/index got no response.*no connection \(.+\) \(tried 2 times\)"
        ) as caught,
    ):
        call(f"http://127.0.0.1:{port}", "info", retries=1)
    assert caught.value.hint == "is it running, and is the address right?"


def test_silence_is_a_time_out_and_not_repeated(call: Any) -> None:
    over = threading.Event()
    with scripted(lambda connection: over.wait() and None) as server:
        with pytest.raises(ServiceError, match=r"the service did not answer within 0.2 s"):
            call(server.url, "search", "a", timeout_s=0.2)
        server.wait_asked(1)
        over.set()
        assert len(server.asked) == 1


def test_a_drip_is_a_time_out(call: Any) -> None:
    over = threading.Event()

    def drip(connection: socket.socket) -> None:
        connection.sendall(
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100000\r\n\r\n"
        )
        while not over.wait(0.05):
            connection.sendall(b" ")

    with scripted(drip) as server:
        with pytest.raises(ServiceError, match=r"did not answer within 0.4 s"):
            call(server.url, "info", timeout_s=0.4)
        over.set()


def test_an_endless_answer_is_not_collected(call: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "MAX_RESPONSE_BYTES", 1000)
    bomb = zlib.compressobj(wbits=31)
    packed = bomb.compress(bytes(10**6)) + bomb.flush()
    for turn in (answer("200 OK", bytes(2000)), answer("200 OK", packed, Content_Encoding="gzip")):
        with (
            scripted(turn) as server,
            pytest.raises(ServiceError, match="the response has more than 1000 bytes"),
        ):
            call(server.url, "info")


def _stream(**columns: list[Any]) -> bytes:
    return arrow(hits_table(**columns))


NONSENSE: list[tuple[str, Turn, type[RbegirError], str]] = [
    (
        "html",
        answer("200 OK", b"<html>", "text/html"),
        ServiceError,
        "it is text/html, expected application/json",
    ),
    ("no type", b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", ServiceError, "it is of no type"),
    ("not json", answer("200 OK", b"{]"), ServiceError, "cannot be understood"),
    ("a list", answer("200 OK", b"[]"), ServiceError, "expected an object, got list"),
    ("deep", answer("200 OK", b"[" * 100_000), ServiceError, "cannot be understood"),
    ("bad gzip", answer("200 OK", b"xxxx", Content_Encoding="gzip"), ServiceError, "cannot be decompressed"),
    (
        "redirect",
        answer("302 Found", Location="http://127.0.0.1:1/"),
        ServiceError,
        "the service answered 302",
    ),
    ("bare 401", answer("401 Unauthorized"), AccessError, "the service answered 401 without a reason"),
    ("odd problem", answer("500 Oops", b'{"type": 3, "detail": [], "title": "T"}'), ServiceError, "T"),
    (
        "404",
        answer("404 Not Found", b"nginx", "text/html"),
        ServiceError,
        "the service answered 404 without a reason",
    ),
    ("422", answer("422 x", b'{"type": "urn:rbegir:problem:invalid", "detail": "D"}'), InputError, "D"),
    ("507", answer("507 x", b'{"type": "urn:rbegir:problem:full", "detail": "D"}'), FullError, "D"),
    ("not http", b"SSH-2.0-OpenSSH_9.2\r\n", ServiceError, "the connection broke"),
]


@pytest.mark.parametrize(
    ("turn", "error", "message"), [n[1:] for n in NONSENSE], ids=[n[0] for n in NONSENSE]
)
def test_nonsense(call: Any, turn: Turn, error: type[RbegirError], message: str) -> None:
    with scripted(turn) as server, pytest.raises(error, match=message) as caught:
        call(server.url, "info", retries=0)
    assert type(caught.value) is error


STREAMS = {
    "not arrow": answer("200 OK", b"ARROW1", "application/vnd.apache.arrow.stream"),
    "cut arrow": answer(
        "200 OK", GOOD.partition(b"\r\n\r\n")[2][:-300], "application/vnd.apache.arrow.stream"
    ),
    "cut in a column": answer(
        "200 OK", GOOD.partition(b"\r\n\r\n")[2][:-100], "application/vnd.apache.arrow.stream"
    ),
    "null ids": _stream(id=["a", None]),
    "lists as ids": _stream(id=[[1], [2]]),
    "rising keys": _stream(key=[1, 2]),
    "a row twice": _stream(key=[1, 1], row=[3, 3]),
    "no column": arrow(hits_table().drop_columns(["key"])),
    "another query": _stream(query=[0, 1]),
    "negative query": _stream(query=[-1, 0]),
    "huge query": _stream(query=[0, 2**60]),
    "null query": _stream(query=[0, None]),
    "wrong ranks": _stream(rank=[2, 1]),
    "wrong type": _stream(key=[0.5, 0.25]),
    "null scores": _stream(score=[0.5, None], key=[1, None]),
    "bad certificate": arrow(hits_table().replace_schema_metadata({"certificate": "{}"})),
    "bad recall": arrow(hits_table().replace_schema_metadata({"recall": "much"})),
}


@pytest.mark.parametrize("turn", STREAMS.values(), ids=STREAMS)
def test_a_stream_that_is_no_answer(call: Any, turn: bytes) -> None:
    with (
        scripted(turn) as server,
        pytest.raises(ServiceError, match="the response to POST /v1/search cannot be understood") as caught,
    ):
        call(server.url, "search", "a")
    assert caught.value.hint == "is this the address of an rbegir service of this version?"


FACTS: dict[str, Any] = {
    "keywords": 2,
    "limits": {"max_k": 2, "max_hits": 100},
    "id_type": "int64",
    "attributes": {"price": "double"},
}


def facts(**changed: Any) -> bytes:
    """What a service says of its index."""
    return answer("200 OK", json.dumps({**FACTS, **changed}).encode())


@pytest.mark.parametrize(
    "wrong",
    [
        {"keywords": -1},
        {"keywords": None},
        {"limits": None},
        {"limits": {"max_k": 0, "max_hits": 1}},
        {"limits": {"max_k": 1}},
        {"limits": {"max_k": 1, "max_hits": 1e400}},
        {"id_type": None},
        {"attributes": ["price"]},
        {"attributes": {"price": "complex"}},
    ],
    ids=str,
)
@pytest.mark.parametrize(
    ("method", "arguments"),
    [
        ("__len__", ()),
        ("add", (["a"],)),
        ("update", ([1], {"price": [1.0]})),
        ("search", ("a", None)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_facts_that_no_index_has(wrong: dict[str, Any], method: str, arguments: tuple[Any, ...]) -> None:
    options = {"min_score": 0.5} if method == "search" else {}
    with (
        scripted(facts(**wrong)) as server,
        rbegir.Client(server.url) as client,
        pytest.raises(ServiceError, match="the response to GET /v1/index cannot be understood"),
    ):
        getattr(client, method)(*arguments, **options)


@pytest.mark.parametrize("said", [-1, 2.5, "3", None, 1e400])
def test_counts_that_are_none(call: Any, said: Any) -> None:
    turn = answer("200 OK", json.dumps({"keywords": said}).encode())
    with scripted(turn) as server, pytest.raises(ServiceError, match="cannot be understood"):
        call(server.url, "count")


def test_a_server_that_ignores_the_cursor_is_not_asked_forever() -> None:
    for ask in (
        lambda client: client.search("a", None, min_score=0.0),
        lambda client: list(client.scan("a", 0.0)),
    ):
        with scripted(facts(), GOOD) as server, rbegir.Client(server.url) as client:
            with pytest.raises(ServiceError, match="not behind the cursor"):
                ask(client)
            assert len(server.asked) == 3


def test_queries_have_as_many_hits_as_the_service_found_for_each(call: Any) -> None:
    table = pa.concat_tables([hits_table(1, 3), hits_table(1, 2, query=[1, 1])])
    with scripted(arrow(table)) as server:
        hits = call(server.url, "search", ["a", "b"])
        assert hits.ids.tolist() == [[0, 1, 2], [0, 1, -1]]
        assert hits.counts.tolist() == [3, 2]


def test_attributes_with_our_names_get_them_back(call: Any) -> None:
    table = (
        hits_table()
        .append_column("attribute_rank", pa.array([7, 8]))
        .append_column("price", pa.array([1, None]))
    )
    with scripted(arrow(table)) as server:
        hits = call(server.url, "search", "a")
    assert hits.attributes == [[{"rank": 7, "price": 1}, {"rank": 8, "price": None}]]


def test_attributes_that_look_prefixed_keep_their_names() -> None:
    names = ["rank", "attribute_rank", "attribute_attribute_rank", "attribute_price", "key", "query"]
    hits = Hits(
        ids=np.zeros((1, 1), np.int64),
        scores=np.zeros((1, 1)),
        keys=np.zeros((1, 1), np.int64),
        rows=np.zeros((1, 1), np.int64),
        attributes=[[{name: number for number, name in enumerate(names)}]],
    )
    stream = write_hits([hits], {"id_type": "int64", "attributes": dict.fromkeys(names, "int64")})
    assert read_hits(stream, 1).attributes == hits.attributes
    columns = pa.ipc.open_stream(stream).schema.names
    assert len(set(columns)) == len(columns)
    assert {"attribute_rank", "attribute_price"} < set(columns)  # as before


BAD_SETTINGS: list[tuple[dict[str, Any], str]] = [
    ({"url": "localhost:8080"}, "url must be the address of a service"),
    ({"url": "ftp://x"}, "url must be the address of a service"),
    ({"url": None}, "url must be the address of a service"),
    ({"url": "http://[bad"}, "url must be the address of a service"),
    ({"url": "http://a b/"}, "url must be the address of a service"),
    ({"url": "http://x:99999"}, "url must be the address of a service"),
    ({"url": "http://x", "index": 7}, "index must be the name of an index of the service, got 7"),
    ({"url": "http://x", "index": ""}, "index must be the name of an index of the service, got ''"),
    ({"url": "http://me:secret@x"}, "url must hold nothing but scheme, host, port and path"),
    ({"url": "http://x", "token": "a\nb"}, "token must be a text of printable ASCII characters"),
    ({"url": "http://x", "token": ""}, "token must be a text of printable ASCII characters"),
    ({"url": "http://x", "timeout_s": 0}, "timeout_s must be a positive number of seconds, got 0"),
    ({"url": "http://x", "timeout_s": float("nan")}, "timeout_s must be a positive number"),
    ({"url": "http://x", "retries": -1}, "retries must be a whole number of at least 0, got -1"),
]


@pytest.mark.parametrize("cls", [rbegir.Client, rbegir.AsyncClient])
@pytest.mark.parametrize(("settings", "message"), BAD_SETTINGS, ids=lambda v: str(v)[:40])
def test_settings_are_checked(cls: Any, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        cls(**settings)


@pytest.mark.parametrize("cls", [rbegir.Client, rbegir.AsyncClient])
def test_without_httpx(cls: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "httpx", None)
    with pytest.raises(MissingExtraError, match="needs httpx") as caught:
        cls("http://127.0.0.1:8080")
    assert caught.value.hint == "pip install 'rbegir[client]'"


def exchange(repeatable: bool, retries: int = 2) -> HttpExchange[Any]:
    return HttpExchange(Call("GET", "/", read_json, repeatable=repeatable), 1.0, retries)


def test_waits_grow_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "BACKOFF", 0.1)
    broken, unreachable = httpx.ReadError("broke"), httpx.ConnectError("")
    monkeypatch.setattr(transport.random, "uniform", max)
    attempts = exchange(True, retries=10)
    waits = [attempts.wait_after_failure(broken) for _ in range(10)]
    assert waits == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0, 10.0]
    with pytest.raises(ServiceError, match=r"the connection broke \(tried 11 times\)"):
        attempts.wait_after_failure(broken)

    def answered(status: int, retry_after: str) -> httpx.Response:
        return httpx.Response(status, headers={"Retry-After": retry_after})

    monkeypatch.setattr(transport.random, "uniform", min)
    polite = exchange(True)
    assert polite.wait_after_response(answered(503, "2")) == 2.0
    assert polite.wait_after_response(answered(429, "3")) == 3.0
    assert polite.wait_after_response(answered(500, "2")) is None
    assert polite.wait_after_response(answered(503, "11")) is None
    assert exchange(False).wait_after_response(answered(503, "0")) is None
    assert exchange(False).wait_after_failure(unreachable) == 0.0
    with pytest.raises(ServiceError, match="the connection broke"):
        exchange(False).wait_after_failure(broken)


def test_retry_after() -> None:
    soon = format_datetime(datetime.now(UTC) + timedelta(seconds=600), usegmt=True)
    past = format_datetime(datetime.now(UTC) - timedelta(seconds=60), usegmt=True)
    assert 0 < retry_after(soon) <= 600
    assert [retry_after(header) for header in (None, "", "3", past, "soon", "-1", "1e9", "Mon, 99")] == [
        0.0, 0.0, 3.0, 0.0, 0.0, 0.0, 0.0, 0.0,
    ]  # fmt: skip


def test_the_token_and_the_deadline_are_sent() -> None:
    seen: list[tuple[str, str]] = []

    def watch(request: httpx.Request) -> httpx.Response:
        seen.append((request.headers["authorization"], request.headers["x-timeout-ms"]))
        return httpx.Response(200, json={"keywords": 3})

    transport = httpx.MockTransport(watch)
    with rbegir.Client("http://x", "secret-token", timeout_s=1.5, transport=transport) as client:
        assert client.count() == 3
    assert seen == [("Bearer secret-token", "1500")]
