"""The routes of an index: one method each.

An export sends the whole content of an index as a stream. Its batches belong to one state of the index,
whatever is changed while they are sent. Reading and encoding happen in a thread, one batch at a time, and
only when the client has taken the one before. A client that takes nothing until the deadline is dropped.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pydantic_core import to_json
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from rbegir.base.arguments import number_named, tenant_named
from rbegir.base.masks import Mask
from rbegir.errors import InputError
from rbegir.index.store import EXPORT_ROWS, Index
from rbegir.index.tenant import within
from rbegir.search.hits import Hits
from rbegir.search.request import SearchRequest, Tenant
from rbegir.serve.batcher import LateError, Search
from rbegir.serve.body import (
    Result,
    at_most,
    attributes_of,
    received,
    rows_of,
    search_of,
    slow_tests_of,
    unless_client_leaves,
)
from rbegir.serve.committer import Change
from rbegir.serve.middleware import header
from rbegir.serve.openapi import AFTER, BINARY, ID, LIMIT, MAX_LIMIT, NDJSON, TEXT, WHERE, operation
from rbegir.serve.served import explain
from rbegir.serve.settings import Settings
from rbegir.wire import schema
from rbegir.wire.problems import Problem
from rbegir.wire.search import ARROW, JSON, cursor_of, json_results, write_hits

if TYPE_CHECKING:
    from rbegir.serve.service import Service

TRIES = 3  # if the index changes under a request
HITS = {ARROW: BINARY}  # another type of the result of a search
STREAMS = {NDJSON: TEXT, ARROW: BINARY}  # the types of an export
LARGE_HITS = 2000  # more than these become bytes in a thread, while the event loop goes on


class Handlers:
    """The handlers of one index. Access has been checked before one is called."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._index = service.index
        self._settings = service.settings

    @operation("read", "POST /v1/search", schema.SearchBody, schema.SearchResponse, 501, 503, media=HITS)
    async def search(self, request: Request) -> Response:
        """Search: every keyword is scored, the best k of each query come back."""
        began = time.perf_counter()
        body = await received(schema.SearchBody, request, self._settings)
        search = search_of(body, self._settings, self._index)
        if search.values is None:
            instead = "vectors" if self._service.encodes == "vectors" else "codes"
            self._check_encodes(
                "vectors" if search.texts is None else "texts", f"send {instead} in their place"
            )
            at_most(
                "queries times candidates",
                self._service.batcher.candidates(search),
                self._settings.max_hits,
                "candidates",
                "send fewer queries, or set rerank to false",
            )
        request.scope["state"]["log"].update(queries=search.count, k=search.request.k)
        if self._settings.log_queries:
            request.scope["state"]["log"]["texts"] = search.texts
        parts = await self._hits(request, search)
        explained: list[dict[str, Any]] = []
        if body.explain:
            parts, explained = await self._explained(request, search, parts)
        if search.count * (search.request.k or 1) <= LARGE_HITS:
            return self._found(request, search, parts, explained, began)
        request.scope["state"]["large"] = True
        return await asyncio.to_thread(self._found, request, search, parts, explained, began)

    def _found(
        self,
        request: Request,
        search: Search,
        parts: list[Hits],
        explained: list[dict[str, Any]],
        began: float,
    ) -> Response:
        with self._service.metrics.search_stage["serialise"].time():
            if wants_arrow(request):
                stream = write_hits(parts, self._index.info(), attributes=search.request.attributes)
                return Response(stream, media_type=ARROW)
            results = json_results(parts, search.texts)
            for result, more in zip(results, explained, strict=False):
                result["query_planes"] = more["query_planes"]
                for hit, details in zip(result["hits"], more["hits"], strict=True):
                    hit.update(details)
            took_ms = round((time.perf_counter() - began) * 1000, 3)
            return answer({"results": results, "cursor": cursor_of(parts), "took_ms": took_ms})

    @operation("write", "POST /v1/keywords", schema.UpsertBody, schema.UpsertResponse, 501)
    async def upsert(self, request: Request) -> Response:
        """Add keywords, or replace those with the same ids. Durable and searchable when it responds."""
        kind = "vectors" if self._service.encodes == "vectors" else "codes"
        self._check_encodes("texts", f"add {kind} with the library, while no service can write the index")
        body = await received(schema.UpsertBody, request, self._settings)
        rows = rows_of(body, self._settings, self._index.info()["attributes"])
        request.state.log["keywords"] = len(rows)
        return answer({"upserted": await self._committed(request, Change(rows, fresh=not body.replace))})

    @operation("write", "PATCH /v1/keywords", schema.UpdateBody, schema.UpdateResponse)
    async def update(self, request: Request) -> Response:
        """Change attributes of keywords, all of which must be there. Nothing is encoded; durable when it
        responds."""
        body = await received(schema.UpdateBody, request, self._settings)
        update = attributes_of(body, self._settings, self._index.info()["attributes"])
        request.state.log["keywords"] = len(update)
        return answer({"updated": await self._committed(request, Change(update=update))})

    @operation("write", "DELETE /v1/keywords", schema.DeleteBody, schema.DeleteResponse)
    async def delete(self, request: Request) -> Response:
        """Delete keywords by id, or all that pass a filter. Durable when it responds."""
        body = await received(schema.DeleteBody, request, self._settings)
        if bool(body.ids) + bool(body.where) != 1 and (body.tenant is None or body.where):
            raise Problem("invalid", "exactly one of ids and where must be given", hint="leave the other out")
        at_most("ids", len(body.ids), self._settings.max_keywords)
        at_most("where", len(body.where), self._settings.max_where_chars, "characters")
        request.state.log["ids"] = len(body.ids)
        change = Change(dict.fromkeys(body.ids), where=body.where or None, tenant=body.tenant)
        async with self._filtered(request, self._selecting(change.where, change.tenant)):
            return answer({"deleted": await self._committed(request, change)})

    @operation("read", "GET /v1/keywords:count", None, schema.CountResponse, 422, 503, parameters=[WHERE])
    async def count(self, request: Request) -> Response:
        """How many keywords there are, or how many of `tenant` pass `where`."""
        selection = self._selection(parameters(request, self._settings, "where", "tenant"))
        async with self._filtered(request, self._selecting(**selection)):
            return answer({"keywords": await self._read(lambda: self._index.count(**selection))})

    @operation(
        "read", "GET /v1/keywords", None, None, 422, 501, 503, media=STREAMS, parameters=[LIMIT, AFTER, WHERE]
    )
    async def export(self, request: Request) -> Response:
        """The keywords of one state of the index, all of them or those of `tenant` that pass `where`, at most
        `limit`: a JSON object per line, or an Arrow IPC stream. With `after`, a page of them."""
        index = self._listed()
        given = parameters(request, self._settings, "limit", "after", "where", "tenant")
        selection, limit = self._selection(given), int(given.get("limit", MAX_LIMIT))
        after = int(given["after"]) if "after" in given else None

        def begin(masks: Any) -> Iterator[pa.RecordBatch]:
            state = within(index.snapshot, selection["tenant"])
            return begun(state.batches(min(limit, EXPORT_ROWS), selection["where"], after), masks)

        async with self._filtered(request, self._selecting(**selection)) as masks:
            batches = await self._read(partial(begin, masks))
        batches = first_rows(batches, limit) if after is None else islice(batches, 1)
        request.state.clock.reschedule(None)  # `_within` restarts it for every chunk
        chunks = arrow_stream(batches) if wants_arrow(request) else json_lines(batches)
        timed = self._within(chunks, request.state.clock)
        return StreamingResponse(timed, media_type=ARROW if wants_arrow(request) else NDJSON)

    @operation("read", "GET /v1/keywords/{id:path}", None, schema.StoredKeyword, 404, parameters=[ID])
    async def get(self, request: Request) -> Response:
        """One keyword by its id."""
        given: str = request.path_params["id"]
        key = number_named(given) if self._index.info()["id_type"] == "int64" else given
        (found,) = [None] if key is None else await asyncio.to_thread(self._index.get, [key])
        if found is None:
            raise Problem("not-found", "no keyword has this id", hint="ids are those given when adding")
        return answer(keyword_body(found))

    @operation("read", "GET /v1/index", None, schema.IndexResponse)
    async def index(self, request: Request) -> Response:
        """A description of the served index: size, model, devices, segments, limits."""
        return answer(self._service.info())

    @operation("write", "POST /v1/index:compact", None, schema.CompactResponse)
    async def compact(self, request: Request) -> Response:
        """Rewrite the index without what was deleted. Searches and changes go on."""
        await self._service.committer.compact()
        info = self._index.info()
        return answer({"keywords": info["keywords"], "segments": info["segments"]})

    def _listed(self) -> Index:
        if isinstance(self._index, Index):
            return self._index
        raise Problem("not-supported", "a cluster cannot list its keywords", hint="open the index itself")

    def _selection(self, given: dict[str, str]) -> dict[str, Any]:
        """The parameters `where` and `tenant` as the index takes them."""
        return {
            "where": given.get("where"),
            "tenant": tenant_named(given.get("tenant"), self._index.info()),
        }

    def _selecting(self, where: str | None, tenant: Tenant = None) -> SearchRequest:
        """A request with a filter, held against the limits, for what is not a search."""
        slow_tests_of([("where", where or "")], self._settings, self._index)
        return SearchRequest(where=where, tenant=tenant)

    @contextlib.asynccontextmanager
    async def _filtered(
        self, request: Request, filtered: SearchRequest, queries: int = 1
    ) -> AsyncIterator[dict[int, Mask]]:
        """Wait until the filters of a request have been evaluated, in the turn of its client. They are not
        evaluated again in the block, nor while somebody holds the masks."""
        if not filtered.filtered:
            yield {}
            return
        job = self._service.filters.submit(filtered, queries, request.scope["state"]["client"])
        try:
            await unless_client_leaves(request, job.future)
            yield job.masks
        finally:
            self._service.filters.forget(job)

    async def _read(self, work: Callable[[], Result]) -> Result:
        """The result of work that reads much of the index."""
        return await asyncio.get_running_loop().run_in_executor(self._service.readers, work)

    async def _within(self, chunks: Iterator[bytes], clock: asyncio.Timeout) -> AsyncIterator[bytes]:
        """The chunks, made in a thread; the deadline restarts with each."""
        loop = asyncio.get_running_loop()
        while True:
            clock.reschedule(loop.time() + self._settings.timeout_s)
            chunk = await self._read(lambda: next(chunks, None))
            if chunk is None:
                return
            yield chunk

    def _check_encodes(self, given: str, instead: str) -> None:
        if self._service.encodes != given:
            detail = f"this index has no model of {given}, so they cannot be encoded"
            raise Problem("not-supported", detail, hint=instead)

    async def _committed(self, request: Request, change: Change) -> int:
        """Keywords changed, unless the client leaves while the change still waits."""
        client = request.scope["state"]["client"]
        work = asyncio.ensure_future(self._service.committer.commit(change, client))
        return await unless_client_leaves(request, work)

    async def _hits(self, request: Request, search: Search) -> list[Hits]:
        """The hits, unless the client leaves first. A filter that a scan does not wait for is evaluated
        before the next."""
        filtered = SearchRequest()
        for _ in range(1 + TRIES):
            async with self._filtered(request, filtered, search.count):
                job = self._service.batcher.submit(search, request.scope["state"]["client"])
                try:
                    return await unless_client_leaves(request, job.future)
                except LateError:
                    filtered, search = search.request, replace(search, slow_tests=0)
                finally:
                    self._service.batcher.forget(job)
        raise changing("the index changed faster than the filter could be evaluated")

    async def _explained(
        self, request: Request, search: Search, parts: list[Hits]
    ) -> tuple[list[Hits], list[dict[str, Any]]]:
        """The hits with their codes and ranks; searched again if one of them is deleted meanwhile."""
        for _ in range(TRIES):
            try:
                async with self._filtered(request, search.request, search.count):
                    return parts, await self._read(partial(self._explain, search, parts))
            except InputError:
                parts = await self._hits(request, search)
        raise changing("the hits changed faster than they could be explained")

    def _explain(self, search: Search, parts: list[Hits]) -> list[dict[str, Any]]:
        values = search.values
        if values is None:
            values = self._index.model.encode_queries(search.queries).values()
        explained, start = [], 0
        for hits in parts:
            request = search.request.part(start, len(hits))
            explained += explain(self._index, hits, values[start : start + len(hits)], request)
            start += len(hits)
        return explained


def wants_arrow(request: Request) -> bool:
    """Whether an Arrow stream was asked for; anything else is answered with JSON."""
    return ARROW in (header(request, b"accept") or "")


def to_bytes(value: Any) -> bytes:
    """JSON; dates and times in ISO 8601. pydantic's Rust core is four times as fast as the json module."""
    return to_json(value, fallback=str)


def answer(body: Any) -> Response:
    return Response(to_bytes(body), media_type=JSON)


def parameters(request: Request, settings: Settings, *known: str) -> dict[str, str]:
    """The parameters of a request: `limit`, `after`, `where`, `tenant`. Any but the known ones is refused."""
    given = dict(request.query_params)
    for name, _ in request.query_params.multi_items():
        if name not in known or len(request.query_params.getlist(name)) > 1:
            raise Problem(
                "invalid",
                f"the parameter {name[:40]!r} is unknown or given twice",
                hint=f"known are {', '.join(known)}",
            )
    for name, what, least in (("limit", "a whole number", 1), ("after", "a row", -1)):
        number = number_named(given[name]) if name in given else least
        if number is None or not least <= number <= MAX_LIMIT:
            detail = f"{name} must be {what} from {least} to {MAX_LIMIT}, got {given[name][:40]!r}"
            raise Problem("invalid", detail)
    at_most("where", len(given.get("where", "")), settings.max_where_chars, "characters")
    return given


def changing(detail: str) -> Problem:
    return Problem("overloaded", detail, hint="try again", headers={"Retry-After": "1"})


def begun(batches: Iterator[pa.RecordBatch], masks: Any) -> Iterator[pa.RecordBatch]:
    """The batches, of which there is always one; a filter that cannot be understood fails here. The masks of
    the filter are held until the last."""

    def with_masks(first: pa.RecordBatch, held: Any) -> Iterator[pa.RecordBatch]:
        yield first
        yield from batches

    return with_masks(next(batches), masks)


def first_rows(batches: Iterator[pa.RecordBatch], limit: int) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield batch.slice(0, limit)
        limit -= batch.num_rows
        if limit <= 0:
            return


def keyword_body(found: dict[str, Any]) -> dict[str, Any]:
    """A stored keyword as the API shows it."""
    own: dict[str, Any] = {name: found[name] for name in ("id", "text", "row") if name in found}
    return {**own, "attributes": {name: value for name, value in found.items() if name not in own}}


def json_lines(batches: Iterator[pa.RecordBatch]) -> Iterator[bytes]:
    """{"id", "text", "attributes"} per line, with `row` in a page."""
    for batch in batches:
        yield b"".join(to_bytes(keyword_body(row)) + b"\n" for row in batch.to_pylist())


def arrow_stream(batches: Iterator[pa.RecordBatch]) -> Iterator[bytes]:
    """An Arrow IPC stream with the columns id, text and the attributes."""
    sink = io.BytesIO()
    first = next(batches)  # there is always one, if only for its schema
    with pa.ipc.new_stream(pa.PythonFile(sink, "w"), first.schema) as writer:
        for batch in chain([first], batches):
            writer.write_batch(batch)
            yield sink.getvalue()
            sink.seek(0)
            sink.truncate()
    yield sink.getvalue()
