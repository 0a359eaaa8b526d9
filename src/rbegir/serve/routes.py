"""The routes under /v1 and beside it: one method each.

An export sends the whole content of an index as a stream. Its batches belong to one state of the index,
whatever is changed while they are sent. Reading and encoding happen in a thread, one batch at a time, and
only when the client has taken the one before. A client that takes nothing until the deadline is dropped.
"""

from __future__ import annotations

import asyncio
import io
import re
import time
from collections.abc import AsyncIterator, Iterator
from itertools import chain
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pydantic_core import to_json
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from rbegir.errors import InputError
from rbegir.serve.batcher import BatchSlice, Search
from rbegir.serve.body import at_most, received, rows_of, search_of, unless_client_leaves
from rbegir.serve.committer import Change
from rbegir.serve.middleware import Handler, header
from rbegir.serve.openapi import NDJSON, document
from rbegir.serve.served import Explaining, Exporting, explain
from rbegir.wire.problems import Problem
from rbegir.wire.schema import DeleteBody, SearchBody, UpsertBody
from rbegir.wire.search import ARROW, JSON, json_results, write_hits

if TYPE_CHECKING:
    from rbegir.serve.app import Service

EXPLAIN_TRIES = 3
LARGE_HITS = 2000  # more than these become bytes in a thread, while the event loop goes on
INT64 = re.compile(r"0|-?[1-9][0-9]{0,18}")


class Handlers:
    """The handler of each route. The docstring of a handler is its description in the OpenAPI document."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._index = service.index
        self._settings = service.settings
        self._openapi: tuple[Any, bytes] = None, b""  # the document, and the facts that it was made from

    def routes(self) -> list[tuple[str, str, Handler]]:
        return [
            ("POST", "/v1/search", self.search),
            ("POST", "/v1/keywords", self.upsert),
            ("DELETE", "/v1/keywords", self.delete),
            ("GET", "/v1/keywords", self.export),
            ("GET", "/v1/keywords/{id:path}", self.get),
            ("GET", "/v1/index", self.index),
            ("POST", "/v1/index:compact", self.compact),
            ("GET", "/healthz", self.healthz),
            ("GET", "/readyz", self.readyz),
            ("GET", "/metrics", self.metrics),
            ("GET", "/openapi.json", self.openapi),
        ]

    async def search(self, request: Request) -> Response:
        """Search: every keyword is scored, the best k of each query come back."""
        service, began = self._service, time.perf_counter()
        self._check_read(request)
        body = await received(SearchBody, request, self._settings)
        search = search_of(body, self._settings, self._index)
        if search.values is None:
            self._check_encodes("vectors" if search.texts is None else "texts", "search by codes")
        request.scope["state"]["log"].update(queries=search.count, k=search.request.k)
        if service.log.queries:
            request.scope["state"]["log"]["texts"] = search.texts
        slices = await self._slices(request, search)
        explained: list[dict[str, Any]] = []
        if body.explain:
            slices, explained = await self._explained(request, search, slices)
        if search.count * search.request.k <= LARGE_HITS:
            return self._found(request, search, slices, explained, began)
        request.scope["state"]["large"] = True
        return await asyncio.to_thread(self._found, request, search, slices, explained, began)

    def _found(
        self,
        request: Request,
        search: Search,
        slices: list[BatchSlice],
        explained: list[dict[str, Any]],
        began: float,
    ) -> Response:
        """The hits as bytes."""
        parts, service = [slice_.hits for slice_ in slices], self._service
        with service.metrics.search_stage["serialise"].time():
            if wants_arrow(request):
                stream = write_hits(parts, self._index.info(), attributes=search.request.attributes)
                return Response(stream, media_type=ARROW)
            results = json_results(parts, search.texts)
            for result, more in zip(results, explained, strict=False):
                result["query_planes"] = more["query_planes"]
                for hit, details in zip(result["hits"], more["hits"], strict=True):
                    hit.update(details)
            took_ms = round((time.perf_counter() - began) * 1000, 3)
            return Response(to_bytes({"results": results, "took_ms": took_ms}), media_type=JSON)

    async def upsert(self, request: Request) -> Response:
        """Add keywords, or replace those with the same ids. Durable and searchable when it responds."""
        self._check_write(request)
        self._check_encodes("texts", "add keywords by codes with the library")
        body = await received(UpsertBody, request, self._settings)
        rows = rows_of(body, self._settings, self._index.info()["attributes"])
        request.state.log["keywords"] = len(rows)
        count = await self._committed(request, Change(rows, fresh=not body.replace))
        return Response(to_json({"upserted": count}), media_type=JSON)

    async def delete(self, request: Request) -> Response:
        """Delete keywords by id. Durable when it responds; ids that are not there are ignored."""
        self._check_write(request)
        body = await received(DeleteBody, request, self._settings)
        at_most("ids", len(body.ids), self._settings.max_keywords)
        request.state.log["ids"] = len(body.ids)
        count = await self._committed(request, Change(dict.fromkeys(body.ids)))
        return Response(to_json({"deleted": count}), media_type=JSON)

    async def export(self, request: Request) -> Response:
        """All keywords of one state of the index: a JSON object per line, or an Arrow IPC stream."""
        self._check_read(request)
        if not isinstance(self._index, Exporting):
            raise Problem("not-supported", "this index cannot be exported", hint="export its shards")
        request.state.clock.reschedule(None)  # from here on it runs anew for every chunk
        batches = await asyncio.to_thread(self._index.batches)
        chunks = arrow_stream(batches) if wants_arrow(request) else json_lines(batches)
        kept_alive = within(chunks, request.state.clock, self._settings.timeout_s)
        return StreamingResponse(kept_alive, media_type=ARROW if wants_arrow(request) else NDJSON)

    async def get(self, request: Request) -> Response:
        """One keyword by its id."""
        self._check_read(request)
        given: str = request.path_params["id"]
        missing = Problem("not-found", "no keyword has this id", hint="ids are those given when adding")
        key: int | str = given
        if self._index.info()["id_type"] == "int64":
            if INT64.fullmatch(given) is None or not -(2**63) <= int(given) < 2**63:
                raise missing
            key = int(given)
        (found,) = await asyncio.to_thread(self._index.get, [key])
        if found is None:
            raise missing
        return Response(to_bytes(keyword_body(found)), media_type=JSON)

    async def index(self, request: Request) -> Response:
        """What is served: size, model, devices, segments, limits."""
        self._check_read(request)
        return Response(to_bytes(self._service.info()), media_type=JSON)

    async def compact(self, request: Request) -> Response:
        """Rewrite the index without what was deleted. Searches go on, changes wait."""
        self._check_write(request)
        await self._service.committer.compact()
        info = self._index.info()
        body = {"keywords": info["keywords"], "segments": info["segments"]}
        return Response(to_json(body), media_type=JSON)

    async def healthz(self, request: Request) -> Response:
        """The process is alive."""
        return Response(to_json({"status": "alive"}), media_type=JSON)

    async def readyz(self, request: Request) -> Response:
        """Requests can be sent here."""
        reason = self._service.not_ready()
        if reason is not None:
            raise Problem("not-ready", reason, hint="send requests elsewhere", headers={"Retry-After": "1"})
        return Response(to_json({"status": "ready"}), media_type=JSON)

    async def metrics(self, request: Request) -> Response:
        """For Prometheus."""
        self._check_read(request)
        metrics = self._service.metrics
        return Response(metrics.page(), headers={"Content-Type": metrics.content_type})

    async def openapi(self, request: Request) -> Response:
        """This document."""
        info, encodes = self._index.info(), self._service.encodes
        key = (encodes, info["n"], info["keyword_planes"], info["id_type"], bool(info["keywords"]))
        if self._openapi[0] != key:
            routes = [
                (method, path, handler.__name__, handler.__doc__) for method, path, handler in self.routes()
            ]
            self._openapi = key, to_json(document(routes, self._settings, info, encodes))
        return Response(self._openapi[1], media_type=JSON)

    def _check_read(self, request: Request) -> None:
        self._service.guard.check(header(request, b"authorization"), write=False)

    def _check_write(self, request: Request) -> None:
        self._service.guard.check(header(request, b"authorization"), write=True)
        self._service.guard.check_origin(request.scope["state"]["head"])
        if self._settings.read_only:
            raise Problem(
                "read-only", "this service does not change its index", hint="send changes to the writer"
            )

    def _check_encodes(self, given: str, instead: str) -> None:
        if self._service.encodes != given:
            detail = f"this index has no model of {given}, so they cannot be encoded"
            raise Problem("not-supported", detail, hint=instead)

    async def _committed(self, request: Request, change: Change) -> int:
        """Keywords changed, unless the client leaves while the change still waits."""
        work = asyncio.ensure_future(self._service.committer.commit(change))
        return await unless_client_leaves(request, work)

    async def _slices(self, request: Request, search: Search) -> list[BatchSlice]:
        """The hits, unless the client leaves first."""
        job = self._service.batcher.submit(search)
        try:
            return await unless_client_leaves(request, job.future)
        finally:
            self._service.batcher.forget(job)

    async def _explained(
        self, request: Request, search: Search, slices: list[BatchSlice]
    ) -> tuple[list[BatchSlice], list[dict[str, Any]]]:
        """The hits with their codes and ranks; searched again if one of them is deleted meanwhile."""
        index = self._index
        if not isinstance(index, Explaining):
            raise Problem("not-supported", "this index cannot explain hits", hint="leave explain out")
        filters = search.request.filters()
        for _ in range(EXPLAIN_TRIES):
            try:
                parts = [await asyncio.to_thread(explain, index, s.hits, s.values, filters) for s in slices]
            except InputError:
                slices = await self._slices(request, search)
            else:
                return slices, [result for part in parts for result in part]
        raise Problem(
            "overloaded",
            "the hits changed faster than they could be explained",
            hint="try again",
            headers={"Retry-After": "1"},
        )


def wants_arrow(request: Request) -> bool:
    """Whether an Arrow stream was asked for; anything else is answered with JSON."""
    return ARROW in (header(request, b"accept") or "")


def to_bytes(value: Any) -> bytes:
    """JSON; dates and times in ISO 8601. pydantic's Rust core is four times as fast as the json module."""
    return to_json(value, fallback=str)


def keyword_body(found: dict[str, Any]) -> dict[str, Any]:
    """A stored keyword as the API shows it."""
    attributes = {name: value for name, value in found.items() if name not in ("id", "text")}
    return {"id": found["id"], "text": found["text"], "attributes": attributes}


def json_lines(batches: Iterator[pa.RecordBatch]) -> Iterator[bytes]:
    """{"id", "text", "attributes"} per line."""
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


async def within(chunks: Iterator[bytes], clock: asyncio.Timeout, seconds: float) -> AsyncIterator[bytes]:
    """The chunks, made in a thread; the deadline begins anew with each."""
    loop = asyncio.get_running_loop()
    while True:
        clock.reschedule(loop.time() + seconds)
        chunk = await asyncio.to_thread(next, chunks, None)
        if chunk is None:
            return
        yield chunk
