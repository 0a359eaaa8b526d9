"""From the bytes of a request to work: read, validate, hold against the limits, give up if the client leaves.

    received ─ parse ─┬─ search_of ─ Search      for the batcher
                      └─ rows_of, attributes_of ─ Change    for the committer

The size limit holds while bytes arrive, whatever Content-Length says or leaves out, and the time limit covers
the whole body, so a client that sends a byte per second does not keep a handler for long. Large bodies are
parsed in a thread: the parser calls Python for most values, so the event loop gets its turn.

All bodies that are being received and parsed share a budget (`Bodies`), because a client may send most of a
body on each of many connections and withhold the rest.
"""

import asyncio
import contextlib
import datetime
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect, Request

from rbegir.base.arguments import words_in
from rbegir.index.where import slow_tests_in
from rbegir.search.hits import Cursor
from rbegir.serve.batcher import Search
from rbegir.serve.committer import RowId
from rbegir.serve.middleware import header
from rbegir.serve.served import ServedIndex
from rbegir.serve.settings import Settings, number_limits
from rbegir.wire.problems import Problem
from rbegir.wire.schema import TAG, KeywordBody, KeywordUpdate, SearchQueries, UpdateBody, UpsertBody
from rbegir.wire.search import JSON, code_values

Model = TypeVar("Model", bound=BaseModel)
Result = TypeVar("Result")
DOCUMENT = "the OpenAPI document at /openapi.json describes the body"
LARGE = 64 << 10  # bytes: a larger body is parsed in a thread
MAX_PARTS, MAX_SEARCH_PARTS = 1 << 19, 1 << 16  # lists, objects and fields of a change, of a search
MAX_VALUES = 1_200_000  # commas of a body: 1,024 codes of 1,024 integers have fewer
MAX_ERRORS = 1000  # that are looked at one by one
_PARSER = ThreadPoolExecutor(1, "rbegir-parse")  # one at a time: a parsed body is many times as large


class Bodies:
    """The bytes of all bodies that are being received and parsed: at most `most`.

    The first LARGE bytes of a body are not counted, so that small requests always get through. If there is no
    room, a client that holds less than an equal share still gets it.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._held: Counter[Hashable] = Counter()

    @contextlib.contextmanager
    def receiving(self, client: Hashable) -> Iterator[Callable[[int], None]]:
        """Around a body of a client. Gives a function that is told its size so far, and may refuse it."""
        counted = 0

        def grown(size: int) -> None:
            nonlocal counted
            more = max(0, size - LARGE) - counted
            own, total = self._held[client] + more, self._held.total() + more
            if more and total > self._most and own > self._most // len(self._held):
                raise Problem(
                    "overloaded",
                    "too many large bodies are being received; nothing was done",
                    hint="try again after the time in Retry-After, or send smaller bodies",
                    headers={"Retry-After": "1", "Connection": "close"},
                )
            counted += more
            self._held[client] += more

        self._held[client] += 0
        try:
            yield grown
        finally:
            self._held[client] -= counted
            if not self._held[client]:
                del self._held[client]


async def received(model: type[Model], request: Request, settings: Settings) -> Model:
    """The body of a request, read, held against the limits of its kind and validated; or a Problem."""
    searching = issubclass(model, SearchQueries)
    most = settings.max_body_bytes
    limit = min(most, settings.max_search_bytes) if searching else most
    bodies: Bodies = request.app.state.catalog.bodies
    with bodies.receiving(request.scope["state"]["client"]) as grown:
        body = await read_body(request, settings, limit, grown)
        if len(body) <= LARGE:
            return parse(model, body)
        at_most("body", body.count(b","), MAX_VALUES, "values")
        parts = sum(map(body.count, b"[{:"))
        at_most("body", parts, MAX_SEARCH_PARTS if searching else MAX_PARTS, "lists, objects and fields")
        return await asyncio.get_running_loop().run_in_executor(_PARSER, parse, model, body)


async def read_body(request: Request, settings: Settings, limit: int, grown: Callable[[int], None]) -> bytes:
    """The whole body, or a Problem; `grown` is called with its size whenever more has arrived."""
    media = (header(request, b"content-type") or "").partition(";")[0].strip().lower()
    if media != JSON:
        raise Problem(
            "unsupported-media-type",
            f"the content type is {media[:100] or 'missing'}",
            hint="send JSON with the header: Content-Type: application/json",
        )
    length = header(request, b"content-length") or ""
    if length.isdecimal() and (len(length) > 18 or int(length) > limit):
        raise _too_large(limit)
    chunks: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(settings.body_timeout_s):
            async for chunk in request.stream():  # raises ClientDisconnect
                chunks.append(chunk)
                size += len(chunk)
                if size > LARGE:
                    request.scope["state"]["large"] = True
                if size > limit:
                    raise _too_large(limit)
                grown(size)
    except TimeoutError:
        raise Problem(
            "body-timeout",
            f"the body was not complete after {settings.body_timeout_s:g} s",
            hint="send it faster, or in smaller requests",
            headers={"Connection": "close"},
        ) from None
    return b"".join(chunks)


def _too_large(limit: int) -> Problem:
    return Problem(
        "too-large",
        f"the body has more than {limit} bytes",
        hint="split it into several requests",
        headers={"Connection": "close"},
    )


def parse(model: type[Model], body: bytes) -> Model:
    """The body as a model, or a Problem that names the field."""
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        raise _explained(error, model) from None


def _explained(error: ValidationError, model: type[BaseModel]) -> Problem:
    if error.error_count() > MAX_ERRORS:
        return Problem("invalid", f"body: {error.error_count()} fields are wrong", hint=DOCUMENT)
    found = error.errors(include_url=False, include_context=False)
    first = found[0]
    if first["type"] == "json_invalid":
        return Problem("malformed", first["msg"], hint="the body must be one JSON object in UTF-8")
    errors = [{"field": _path(e["loc"]), "message": e["msg"]} for e in found[:20]]
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    field = errors[0]["field"] or "body"
    hint = DOCUMENT
    if first["type"] == "extra_forbidden" and len(first["loc"]) == 1:
        hint = f"the fields are: {', '.join(model.model_fields)}"
    return Problem("invalid", f"{field}: {first['msg']}{more}", hint=hint, errors=errors)


def _path(place: Iterable[int | str]) -> str:
    """Where in a body an error is."""
    return ".".join(str(part) for part in place if not str(part).startswith(TAG))


def at_most(
    field: str, value: int, limit: int, unit: str = "items", hint: str = "GET /v1/index lists the limits"
) -> None:
    if value > limit:
        raise Problem("invalid", f"{field}: at most {limit} {unit}".rstrip() + f", got {value}", hint=hint)


def search_of(body: SearchQueries, settings: Settings, index: ServedIndex) -> Search:
    """A search request, held against the limits of the service."""
    given = [queries for queries in (body.queries, body.codes, body.vectors) if queries]
    if len(given) != 1:
        raise Problem(
            "invalid",
            "exactly one of queries, codes and vectors must be given",
            hint="leave the others out",
        )
    request, count = body.request(), len(given[0])
    if request.k is None:  # the largest page; its cursor continues
        request = replace(request, k=max(1, min(settings.max_k, settings.max_hits // count)))
    k = request.k or 0
    for number, text in enumerate(body.queries):
        at_most(f"queries.{number}", len(text), settings.max_text_chars, "characters")
    at_most("queries", count, settings.max_queries)
    if request.after is not None:
        Cursor.read(request.after, count)
    for name, limit in number_limits(settings).items():
        at_most(name, getattr(request, name) or 0, limit, "")
    at_most("queries times k", count * k, settings.max_hits, "hits")
    at_most("queries times candidates", count * (request.candidates or 0), settings.max_hits, "candidates")
    sizes = {"allow": 0, "deny": 0}
    texts: dict[tuple[str, str], None] = {}  # the different filters
    for filters in request.each_filter(count if request.filters_each else 1) if request.filtered else ():
        for name, words in (("where", filters["where"]), ("must", filters["must"])):
            at_most(name, len(str(words or "")), settings.max_where_chars, "characters")
            texts[name, str(words or "")] = None
        for name, ids in (("allow", filters["allow"]), ("deny", filters["deny"])):
            sizes[name] += 0 if ids is None else len(ids)
            at_most(name, sizes[name], settings.max_keywords)
    slow = slow_tests_of(texts, settings, index) if texts else 0
    if body.explain:
        at_most("queries times k with explain", count * k, settings.max_explained, "hits")
    if body.codes:
        return Search(request, values=code_values(body.codes, index.info()["n"]), slow_tests=slow)
    if body.vectors:
        lengths = {len(vector) for vector in body.vectors}
        if len(lengths) > 1:
            raise Problem(
                "invalid",
                f"vectors: different lengths {sorted(lengths)}",
                hint="give vectors of equal length",
            )
        return Search(request, vectors=np.array(body.vectors, np.float64), slow_tests=slow)
    return Search(request, texts=body.queries, slow_tests=slow)


def slow_tests_of(texts: Iterable[tuple[str, str]], settings: Settings, index: ServedIndex) -> int:
    """The slow tests in the different filters of a request, `where` or `must`, held against the limits."""
    fewer = "use fewer or shorter filters, or several requests"
    at_most("filters", sum(len(text) for _, text in texts), settings.max_filter_chars, "characters", fewer)
    lists = any(kind.startswith("list") for kind in index.info()["attributes"].values())
    slow = sum(
        len(words_in(text)) if name == "must" else slow_tests_in(text, lists=lists) for name, text in texts
    )
    at_most("filters", slow, settings.max_slow_tests, "words or patterns to look for", fewer)
    return slow


def rows_of(
    body: UpsertBody, settings: Settings, columns: Mapping[str, str]
) -> dict[RowId, KeywordBody | None]:
    """The keywords of an upsert by id."""
    attributes_of(body, settings, columns)
    for number, keyword in enumerate(body.keywords):
        at_most(f"keywords.{number}.text", len(keyword.text), settings.max_text_chars, "characters")
    return {keyword.id: keyword for keyword in body.keywords}


def attributes_of(
    body: UpsertBody | UpdateBody, settings: Settings, columns: Mapping[str, str]
) -> dict[RowId, dict[str, Any]]:
    """The attributes of keywords by id; values of date and time columns are parsed where they stand."""
    at_most("keywords", len(body.keywords), settings.max_keywords)
    times = {name: dtype for name, dtype in columns.items() if dtype.startswith(("date", "timestamp"))}
    rows: dict[RowId, dict[str, Any]] = {}
    keywords: Sequence[KeywordBody | KeywordUpdate] = body.keywords
    for number, keyword in enumerate(keywords):
        if keyword.id in rows:
            raise Problem(
                "invalid", f"keywords.{number}.id: {keyword.id!r} is given twice", hint="give every id once"
            )
        attributes: dict[str, Any] = keyword.attributes
        for name in times.keys() & attributes.keys():
            value = attributes[name]
            if isinstance(value, str):
                attributes[name] = _moment(value, times[name], f"keywords.{number}.attributes.{name}")
        rows[keyword.id] = attributes
    return rows


def _moment(value: str, dtype: str, field: str) -> datetime.date | datetime.datetime:
    try:
        if dtype.startswith("date"):
            return datetime.date.fromisoformat(value)
        return datetime.datetime.fromisoformat(value)
    except ValueError:
        raise Problem(
            "invalid", f"{field}: not a {dtype} in ISO 8601", hint="write for example 2024-05-31T12:00:00"
        ) from None


async def unless_client_leaves(request: Request, work: asyncio.Future[Result]) -> Result:
    """The result of `work`; it is cancelled, with ClientDisconnect, when the connection goes first."""
    watch = asyncio.ensure_future(_gone(request))
    watch.add_done_callback(lambda _: work.cancel())
    try:
        return await work
    except asyncio.CancelledError:
        if watch.done() and not watch.cancelled():
            raise ClientDisconnect from None
        raise
    finally:
        watch.cancel()


async def _gone(request: Request) -> None:
    """Returns when the client has left. The body must have been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
