"""The MCP server, driven as an assistant's client drives it: lines in, lines out."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import rbegir
from rbegir.adapters.mcp import MAX_LINE, VERSIONS, McpServer
from rbegir.errors import InputError
from tests.service import TEXTS, make_index


@pytest.fixture(scope="module")
def index(model: Path) -> Iterator[rbegir.Index]:
    path = make_index(model.parent / "mcp.rbe", model)
    with rbegir.Index.open(path, read_only=True) as opened:
        yield opened


def exchange(index: rbegir.Index, *messages: Any) -> list[Any]:
    """What the server answers to these messages; bytes are sent as they are."""
    lines = [one if isinstance(one, bytes) else json.dumps(one).encode() for one in messages]
    out = io.BytesIO()
    McpServer(index).serve(io.BytesIO(b"\n".join(lines) + b"\n"), out)
    return [json.loads(line) for line in out.getvalue().splitlines()]


def ask(index: rbegir.Index, method: str, **params: Any) -> Any:
    (response,) = exchange(index, {"jsonrpc": "2.0", "id": 7, "method": method, "params": params})
    assert (response["jsonrpc"], response["id"]) == ("2.0", 7)
    return response.get("result") or response["error"]


def call(index: rbegir.Index, name: str, **arguments: Any) -> Any:
    return ask(index, "tools/call", name=name, arguments=arguments)


def test_one_tenant_is_served_alone(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "shops.rbe"
    attributes = {"shop": [("ann", "bob")[i % 2] for i in range(len(TEXTS))]}
    with rbegir.Index.create(path, rbegir.Model.load(model), tenant="shop") as made:
        made.add(list(TEXTS), attributes=attributes)
    with rbegir.Index.open(path, read_only=True) as index:
        with pytest.raises(InputError, match="belong to tenants") as refused:
            McpServer(index)
        assert "--tenant" in refused.value.hint

        def told(name: str, **arguments: Any) -> Any:
            message = {
                "jsonrpc": "2.0",
                "id": 1,
                "method": "tools/call",
                "params": {"name": name, "arguments": arguments},
            }
            return json.loads(McpServer(index, "bob").answer(json.dumps(message).encode()) or b"")["result"]

        found = told("search", query=TEXTS[2], k=100)["structuredContent"]["results"]
        assert sorted(one["id"] for one in found) == list(range(1, len(TEXTS), 2))
        assert told("search", query="shoes", where="shop = 'ann'")["structuredContent"]["results"] == []
        assert told("fetch", id=3)["structuredContent"]["text"] == TEXTS[3]
        hidden, unknown = told("fetch", id=2), told("fetch", id=999)
        assert hidden["isError"]
        assert hidden["content"][0]["text"].replace("'2'", "'999'") == unknown["content"][0]["text"]
        listed = json.loads(
            McpServer(index, "bob").answer(b'{"jsonrpc": "2.0", "id": 1, "method": "tools/list"}') or b""
        )
        assert f"Search {len(TEXTS) // 2} keywords" in listed["result"]["tools"][0]["description"]


def test_an_index_that_is_replaced_by_one_with_tenants(model: Path, tmp_path: Path) -> None:
    path, encoder = tmp_path / "x.rbe", rbegir.Model.load(model)
    rbegir.Index.create(path, encoder).close()
    with rbegir.Index.open(path, read_only=True) as index:
        server = McpServer(index)
        with rbegir.Index.create(path, encoder, tenant="shop", overwrite=True) as other:
            other.add(["secret shoes"], attributes={"shop": ["ann"]})
        message = {
            "jsonrpc": "2.0",
            "id": 1,
            "method": "tools/call",
            "params": {"name": "search", "arguments": {"query": "shoes"}},
        }
        result = json.loads(server.answer(json.dumps(message).encode()) or b"")["result"]
        assert result["isError"]
        assert "belong to tenants" in result["content"][0]["text"]
        with pytest.raises(InputError, match="this index has no tenants"):
            McpServer(rbegir.Index.create(tmp_path / "y.rbe", encoder), "ann")


def test_the_command_names_the_tenant(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "numbers.rbe"
    with rbegir.Index.create(path, rbegir.Model.load(model), tenant="shop") as made:
        made.add(["red shoes", "blue shoes"], attributes={"shop": [7, 8]})
    message = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "tools/call",
        "params": {"name": "search", "arguments": {"query": "shoes"}},
    }
    for options, status, said in (([], 1, "belong to tenants"), (["--tenant", "8"], 0, "blue shoes")):
        done = subprocess.run(
            [sys.executable, "-m", "rbegir", "mcp", str(path), *options],
            input=json.dumps(message) + "\n",
            capture_output=True,
            text=True,
        )
        assert done.returncode == status
        assert said in done.stderr + done.stdout
        assert "red shoes" not in done.stdout


def test_a_session_as_a_process(model: Path, tmp_path: Path) -> None:
    path = make_index(tmp_path / "own.rbe", model)
    begin = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    asked = {"name": "search", "arguments": {"query": "green tea", "k": 2, "where": "price < 1000"}}
    messages = [
        {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": begin},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": "a", "method": "tools/list"},
        {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": asked},
        {"jsonrpc": "2.0", "id": 3, "method": "ping"},
    ]
    done = subprocess.run(
        [sys.executable, "-m", "rbegir", "mcp", str(path)],
        input="".join(json.dumps(one) + "\n" for one in messages),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    first, tools, found, pong = [json.loads(line) for line in done.stdout.splitlines()]
    assert first["id"] == 0
    assert first["result"]["protocolVersion"] == "2025-06-18"
    assert first["result"]["capabilities"] == {"tools": {"listChanged": False}}
    assert first["result"]["serverInfo"] == {"name": "rbegir", "version": rbegir.__version__}
    assert tools["id"] == "a"
    assert [tool["name"] for tool in tools["result"]["tools"]] == ["search", "fetch"]
    with rbegir.Index.open(path, read_only=True) as index:
        hits = index.search("green tea", 2, where="price < 1000")[0]
    results = found["result"]["structuredContent"]["results"]
    assert [(one["id"], one["text"], one["score"]) for one in results] == [
        (hit.id, hit.text, hit.score) for hit in hits
    ]
    assert results[0]["attributes"] == {"price": 159.0, "lang": "en"}  # what is null is left out
    assert pong == {"jsonrpc": "2.0", "id": 3, "result": {}}


def test_versions_are_agreed_on(index: rbegir.Index) -> None:
    for version in VERSIONS:
        assert ask(index, "initialize", protocolVersion=version)["protocolVersion"] == version
    assert ask(index, "initialize", protocolVersion="1999-01-01")["protocolVersion"] == VERSIONS[0]
    assert ask(index, "initialize")["code"] == -32602


def test_results_fit_the_schemas_of_the_tools(index: rbegir.Index) -> None:
    search, fetch = ask(index, "tools/list")["tools"]
    arguments = {"query": "rome", "k": 3}
    jsonschema.validate(arguments, search["inputSchema"])
    found = call(index, "search", **arguments)
    assert found["isError"] is False
    jsonschema.validate(found["structuredContent"], search["outputSchema"])
    assert json.loads(found["content"][0]["text"]) == found["structuredContent"]
    one = found["structuredContent"]["results"][0]
    for given in (one["id"], str(one["id"])):
        jsonschema.validate({"id": given}, fetch["inputSchema"])
        got = call(index, "fetch", id=given)["structuredContent"]
        jsonschema.validate(got, fetch["outputSchema"])
        assert got == {name: one[name] for name in ("id", "text", "attributes")}
    assert "price (double)" in search["inputSchema"]["properties"]["where"]["description"]


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("search", {}, "query must be a text"),
        ("search", {"query": 7}, "query must be a text"),
        ("search", {"query": "a", "k": 0}, "k must be a whole number from 1 to 100, got 0"),
        ("search", {"query": "a", "k": True}, "k must be a whole number"),
        ("search", {"query": "a", "where": 7}, "where must be a text"),
        ("search", {"query": "a", "where": "prize < 3"}, "there is no column 'prize'"),
        ("search", {"query": "…"}, "has no letter and no digit"),
        ("search", {"query": "a", "top": 3}, "there is no argument 'top'"),
        ("fetch", {}, "id must be a text or a whole number"),
        ("fetch", {"id": "nothing"}, "no keyword has the id 'nothing'"),
        ("fetch", {"id": 2**70}, "no keyword has the id"),
        ("fetch", {"id": 100, "text": True}, "there is no argument 'text'"),
    ],
)
def test_mistakes_are_told_to_the_assistant(
    index: rbegir.Index, name: str, arguments: dict[str, Any], message: str
) -> None:
    result = call(index, name, **arguments)
    assert result["isError"] is True
    assert message in result["content"][0]["text"]


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (b"{", -32700),
        (b"\xff", -32700),
        (b"[" * 100_000, -32700),
        (b"[]", -32600),
        (b"7", -32600),
        ({"id": 1, "method": "ping"}, -32600),
        ({"jsonrpc": "2.0", "id": [1], "method": "ping"}, -32600),
        ({"jsonrpc": "2.0", "id": 1}, -32600),
        ({"jsonrpc": "2.0", "id": 1, "method": 7}, -32600),
        ({"jsonrpc": "2.0", "id": 1, "method": "resources/list"}, -32601),
        ({"jsonrpc": "2.0", "id": 1, "method": "ping", "params": [1]}, -32602),
        ({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "drop"}}, -32602),
        (
            {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "search", "arguments": 7}},
            -32602,
        ),
        (b'{"jsonrpc": "2.0", "id": 1, "method": "' + b"x" * MAX_LINE + b'"}', -32600),
    ],
    ids=lambda value: str(value)[:40],
)
def test_broken_messages_are_errors_and_the_session_goes_on(
    index: rbegir.Index, message: Any, code: int
) -> None:
    wrong, pong = exchange(index, message, {"jsonrpc": "2.0", "id": 2, "method": "ping"})
    assert wrong["error"]["code"] == code
    assert pong == {"jsonrpc": "2.0", "id": 2, "result": {}}


def test_what_needs_no_answer_gets_none(index: rbegir.Index) -> None:
    assert not exchange(
        index,
        {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}},
        {"jsonrpc": "2.0", "method": "unknown"},
        {"jsonrpc": "2.0", "id": 9, "result": {}},
        b"",
    )
    (batch,) = exchange(
        index, [{"jsonrpc": "2.0", "id": 1, "method": "ping"}, {"jsonrpc": "2.0", "method": "x"}]
    )
    assert batch == [{"jsonrpc": "2.0", "id": 1, "result": {}}]


def test_a_bug_ends_no_session(
    index: rbegir.Index, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError("a secret")

    monkeypatch.setattr(index, "search", broken)
    assert call(index, "search", query="a")["code"] == -32603
    assert "a secret" in capsys.readouterr().err


def test_changes_are_seen(model: Path, tmp_path: Path) -> None:
    path = make_index(tmp_path / "grows.rbe", model, count=2)
    with rbegir.Index.open(path, read_only=True) as index:
        server = McpServer(index)
        with rbegir.Index.open(path) as writer:
            writer.add([TEXTS[9]], ids=[9], attributes={"price": [1.0]})
        asked = {"jsonrpc": "2.0", "id": 1, "method": "tools/call"}
        asked["params"] = {"name": "fetch", "arguments": {"id": 9}}
        response = server.answer(json.dumps(asked).encode())
        assert response is not None
        assert json.loads(response)["result"]["structuredContent"]["text"] == TEXTS[9]


def test_an_index_of_vectors_is_refused(tmp_path: Path) -> None:
    import numpy as np

    vectors = np.random.default_rng(0).standard_normal((50, 64)).astype("float32")
    binarizer = rbegir.Binarizer(64).fit(vectors)
    rbegir.Index.create(tmp_path / "v.rbe", binarizer).close()
    done = subprocess.run(
        [sys.executable, "-m", "rbegir", "mcp", str(tmp_path / "v.rbe")],
        input="",
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert "it is searched by vectors, and assistants send texts" in done.stderr
    assert done.stdout == ""
