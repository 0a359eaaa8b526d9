"""An MCP server: assistants search an index and cite its keywords by id.

The Model Context Protocol over stdio is JSON-RPC 2.0, one message per line: requests on standard input,
responses on standard output, and nothing else there. `initialize` agrees on a version, `tools/list` describes
the tools, `tools/call` runs one:

    search      the best keywords for a text, with their ids, scores and attributes
    fetch       one keyword by id, whole

Of an index with tenants one is served; the keywords of others are neither found nor fetched.

A mistake in the arguments of a tool is a result with `isError`, which the assistant reads and can mend. A
mistake in the protocol is a JSON-RPC error. The index is opened read-only and refreshed before every call.
"""

import json
import sys
import traceback
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

import rbegir
from rbegir.adapters.store import Documents
from rbegir.errors import InputError, RbegirError
from rbegir.index.store import Index
from rbegir.search.request import Tenant

VERSIONS = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")  # the newest first
MAX_LINE = 1 << 20  # bytes of a message
MAX_K = 100
PARSE, REQUEST, METHOD, PARAMS, INTERNAL = -32700, -32600, -32601, -32602, -32603
ID = {"type": ["string", "integer"], "description": "The id of the keyword, to cite it and to fetch it."}
KEYWORD = {"id": ID, "text": {"type": ["string", "null"]}, "attributes": {"type": "object"}}


class ProtocolError(Exception):
    """A message that breaks the protocol: a code of JSON-RPC and a sentence."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class McpServer:
    """Answers the messages of one client about one index, or about one tenant of it."""

    def __init__(self, index: Index, tenant: Tenant = None) -> None:
        self._index, self._tenant = index, tenant
        self._check_tenant()
        self._methods: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
            "initialize": self._initialize,
            "ping": lambda params: {},
            "tools/list": lambda params: {"tools": self._tools()},
            "tools/call": self._call,
        }

    def serve(self, requests: BinaryIO, responses: BinaryIO) -> None:
        """Answer line by line until there are no more."""
        for line in bounded_lines(requests):
            if (response := self.answer(line)) is not None:
                responses.write(response)
                responses.flush()

    def answer(self, line: bytes | None) -> bytes | None:
        """The response to a line, if it asks for one; a line that was too long comes as None."""
        try:
            if line is None:
                raise ProtocolError(REQUEST, f"a message has at most {MAX_LINE} bytes")
            said = json.loads(line)
            if isinstance(said, list) and said:  # a batch, which one version of the protocol has
                found = [answer for one in said if (answer := self._one(one)) is not None]
                return as_line(found) if found else None
            response = self._one(said)
        except (ValueError, RecursionError):
            response = failure(None, PARSE, "the message is not JSON")
        except ProtocolError as error:
            response = failure(None, error.code, str(error))
        return None if response is None else as_line(response)

    def _one(self, message: Any) -> dict[str, Any] | None:
        """The response to one message; None for a notification and for a response to nothing we asked."""
        if not isinstance(message, dict) or message.get("jsonrpc") != "2.0":
            return failure(None, REQUEST, "a message must be an object of JSON-RPC 2.0")
        method, given = message.get("method"), message.get("id")
        if method is None and ("result" in message or "error" in message):
            return None
        if isinstance(given, bool) or not isinstance(given, (str, int, float, type(None))):
            return failure(None, REQUEST, "id must be a text or a number")
        if not isinstance(method, str):
            return failure(given, REQUEST, "method must be a text")
        if "id" not in message:
            return None
        try:
            params = message.get("params", {})
            if not isinstance(params, dict):
                raise ProtocolError(PARAMS, "params must be an object")
            if method not in self._methods:
                raise ProtocolError(METHOD, f"there is no method {method[:80]!r}")
            return {"jsonrpc": "2.0", "id": given, "result": self._methods[method](params)}
        except ProtocolError as error:
            return failure(given, error.code, str(error))
        except Exception:
            traceback.print_exc(file=sys.stderr)
            return failure(given, INTERNAL, "something unexpected went wrong; see standard error")

    def _check_tenant(self) -> None:
        """Refuse to show all tenants. The index may be replaced while it is served."""
        if self._tenant is not None:
            self._index.count(tenant=self._tenant)  # refuses an index without tenants
        elif self._index.info().get("tenant") is not None:
            raise InputError(
                "the keywords of this index belong to tenants, and an assistant may see those of one",
                hint="name it: rbegir mcp INDEX --tenant NAME",
            )

    def _initialize(self, params: dict[str, Any]) -> dict[str, Any]:
        asked = params.get("protocolVersion")
        if not isinstance(asked, str):
            raise ProtocolError(PARAMS, "protocolVersion must be a text")
        return {
            "protocolVersion": asked if asked in VERSIONS else VERSIONS[0],
            "capabilities": {"tools": {"listChanged": False}},
            "serverInfo": {"name": "rbegir", "version": rbegir.__version__},
            "instructions": "Search the index with short texts, and cite keywords by their ids.",
        }

    def _tools(self) -> list[dict[str, Any]]:
        columns = self._index.info()["attributes"]
        known = ", ".join(f"{name} ({kind})" for name, kind in columns.items()) or "none"
        where = {
            "type": "string",
            "description": f"A filter such as: price < 10 and lang = 'en'. Attributes here: {known}.",
        }
        count = self._index.count(tenant=self._tenant)
        hit = {**KEYWORD, "score": {"type": "number", "description": "Higher is nearer."}}
        return [
            {
                "name": "search",
                "description": f"Search {count:,} keywords. Every one is compared with the query; the best "
                "come first, each with its id.",
                "inputSchema": fields(
                    {
                        "query": {"type": "string", "description": "A short text."},
                        "k": {"type": "integer", "minimum": 1, "maximum": MAX_K, "default": 10},
                        "where": where,
                    },
                    "query",
                ),
                "outputSchema": fields({"results": {"type": "array", "items": fields(hit, *hit)}}, "results"),
                "annotations": {"readOnlyHint": True},
            },
            {
                "name": "fetch",
                "description": "One keyword by its id: its text and all attributes.",
                "inputSchema": fields({"id": ID}, "id"),
                "outputSchema": fields(KEYWORD, *KEYWORD),
                "annotations": {"readOnlyHint": True},
            },
        ]

    def _call(self, params: dict[str, Any]) -> dict[str, Any]:
        tools = {"search": self._search, "fetch": self._fetch}
        name, arguments = params.get("name"), params.get("arguments", {})
        if not isinstance(name, str) or name not in tools:
            raise ProtocolError(PARAMS, f"there is no tool {str(name)[:80]!r}; known are {', '.join(tools)}")
        if not isinstance(arguments, dict):
            raise ProtocolError(PARAMS, "arguments must be an object")
        try:
            self._index.refresh()
            self._check_tenant()
            found = json.loads(json.dumps(tools[name](dict(arguments)), default=str))
        except RbegirError as error:
            said = f"{error.message} (hint: {error.hint})" if error.hint else error.message
            return {"content": [{"type": "text", "text": said}], "isError": True}
        text = json.dumps(found, ensure_ascii=False)
        return {"content": [{"type": "text", "text": text}], "structuredContent": found, "isError": False}

    def _search(self, arguments: dict[str, Any]) -> dict[str, Any]:
        query, k, where = arguments.pop("query", None), arguments.pop("k", 10), arguments.pop("where", None)
        refuse_others(arguments, "query, k and where")
        if not isinstance(query, str):
            raise InputError("query must be a text", hint="give one short text")
        if isinstance(k, bool) or not isinstance(k, int) or not 1 <= k <= MAX_K:
            raise InputError(f"k must be a whole number from 1 to {MAX_K}, got {k!r}")
        if not isinstance(where, (str, type(None))):
            raise InputError("where must be a text", hint="leave it out to search everything")
        hits = self._index.search(query, k, where=where or None, tenant=self._tenant)[0]
        return {
            "results": [{**keyword(hit.id, hit.text, hit.attributes), "score": hit.score} for hit in hits]
        }

    def _fetch(self, arguments: dict[str, Any]) -> dict[str, Any]:
        given = arguments.pop("id", None)
        refuse_others(arguments, "id")
        if isinstance(given, bool) or not isinstance(given, (str, int)):
            raise InputError("id must be a text or a whole number", hint="use an id that search returned")
        for found in Documents(self._index).get([str(given)]):
            if self._tenant is not None and found[self._index.info()["tenant"]] != self._tenant:
                break
            return keyword(found.pop("id"), found.pop("text"), found)
        raise InputError(f"no keyword has the id {str(given)[:80]!r}", hint="use an id that search returned")


def keyword(key: Any, text: str | None, attributes: Any) -> dict[str, Any]:
    """A keyword as the tools show it, without attributes that it does not have."""
    there = {name: value for name, value in (attributes or {}).items() if value is not None}
    return {"id": key, "text": text, "attributes": there}


def fields(properties: dict[str, Any], *required: str) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required)}


def refuse_others(left: dict[str, Any], known: str) -> None:
    """Refuse arguments that no tool has read."""
    if left:
        raise InputError(f"there is no argument {next(iter(left))[:80]!r}", hint=f"known are {known}")


def failure(given: Any, code: int, message: str) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": given, "error": {"code": code, "message": message}}


def as_line(message: Any) -> bytes:
    """A message as one line; JSON escapes the line breaks of texts."""
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def bounded_lines(stream: BinaryIO) -> Iterator[bytes | None]:
    """The lines of a stream that are not blank; None for one that is too long, which is skipped."""
    while line := stream.readline(MAX_LINE + 1):
        if len(line) <= MAX_LINE:
            if line.strip():
                yield line
            continue
        while line and not line.endswith(b"\n"):
            line = stream.readline(MAX_LINE)
        yield None
