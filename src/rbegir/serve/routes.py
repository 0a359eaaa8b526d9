"""The routes under /v1 and beside it: one method each."""

from __future__ import annotations

import asyncio
import re
from typing import Any

from fastapi import FastAPI, Request, Response
from pydantic_core import to_json
from starlette.exceptions import HTTPException
from starlette.responses import StreamingResponse

from rbegir.errors import InputError
from rbegir.serve import answers, explain, export, openapi, schema
from rbegir.serve.arrow import MEDIA_TYPE as ARROW
from rbegir.serve.arrow import hits_stream
from rbegir.serve.batcher import Piece, Search
from rbegir.serve.body import parse, read_body
from rbegir.serve.committer import Change
from rbegir.serve.disconnect import unless_client_leaves
from rbegir.serve.engine import Explaining, Exporting
from rbegir.serve.limits import at_most, rows_of, search_of
from rbegir.serve.middleware import Handler, header, http_problem
from rbegir.serve.problems import Problem
from rbegir.serve.service import Service

JSON = "application/json"
EXPLAIN_TRIES = 3
INT64 = re.compile(r"0|-?[1-9][0-9]{0,18}")


def install(app: FastAPI, service: Service) -> dict[tuple[str, str], Handler]:
    """Add the routes of a service to its application. Returns those without parameters."""
    handlers = Routes(service)
    direct: dict[tuple[str, str], Handler] = {}

    async def on_http_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return http_problem(error).response()

    app.add_exception_handler(HTTPException, on_http_error)
    for method, path, handler in (
        ("POST", "/v1/search", handlers.search),
        ("POST", "/v1/keywords", handlers.upsert),
        ("DELETE", "/v1/keywords", handlers.delete),
        ("GET", "/v1/keywords", handlers.export),
        ("GET", "/v1/keywords/{id:path}", handlers.get),
        ("GET", "/v1/index", handlers.index),
        ("POST", "/v1/index:compact", handlers.compact),
        ("GET", "/healthz", handlers.healthz),
        ("GET", "/readyz", handlers.readyz),
        ("GET", "/metrics", handlers.metrics),
        ("GET", "/openapi.json", handlers.openapi),
    ):
        described = openapi.describe(handler.__name__)
        app.add_api_route(path, handler, methods=[method], response_model=None, **described)
        if "{" not in path:
            direct[method, path] = handler
    return direct


class Routes:
    """The handlers."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._engine = service.engine
        self._settings = service.settings

    async def search(self, request: Request) -> Response:
        """Search: every keyword is scored, the best k of each query come back."""
        service = self._service
        clock = answers.Clock()
        self._check_read(request)
        asked = parse(schema.SearchRequest, await read_body(request, self._settings))
        search = search_of(asked, self._settings, self._engine)
        if search.texts is not None:
            self._check_model("search by codes")
        request.scope["state"]["log"].update(queries=search.count, k=search.k)
        if service.log.queries:
            request.scope["state"]["log"]["texts"] = search.texts
        pieces = await self._pieces(request, search)
        explained: list[dict[str, Any]] = []
        if asked.explain:
            pieces, explained = await self._explained(request, search, pieces)
        with service.metrics.search_stage["serialise"].time():
            if wants_arrow(request):
                return Response(hits_stream(pieces, self._engine.info()), media_type=ARROW)
            body = answers.search_body(search.texts, pieces, explained, clock)
        return Response(body, media_type=JSON)

    async def upsert(self, request: Request) -> Response:
        """Add keywords, or replace those with the same ids. Durable and searchable when it answers."""
        self._check_write(request)
        self._check_model("add keywords by codes with the library")
        asked = parse(schema.UpsertRequest, await read_body(request, self._settings))
        rows = rows_of(asked, self._settings, self._engine.info()["attributes"])
        request.state.log["keywords"] = len(rows)
        count = await self._committed(request, Change(rows, fresh=not asked.replace))
        return Response(to_json({"upserted": count}), media_type=JSON)

    async def delete(self, request: Request) -> Response:
        """Delete keywords by id. Durable when it answers; ids that are not there are ignored."""
        self._check_write(request)
        asked = parse(schema.DeleteRequest, await read_body(request, self._settings))
        at_most("ids", len(asked.ids), self._settings.max_keywords)
        request.state.log["ids"] = len(asked.ids)
        count = await self._committed(request, Change(dict.fromkeys(asked.ids)))
        return Response(to_json({"deleted": count}), media_type=JSON)

    async def export(self, request: Request) -> Response:
        """All keywords of one state of the index: a JSON object a line, or an Arrow IPC stream."""
        self._check_read(request)
        if not isinstance(self._engine, Exporting):
            raise Problem("not-supported", "this index cannot be exported", hint="export its shards")
        request.state.clock.reschedule(None)  # from here on it runs anew for every chunk
        batches = await asyncio.to_thread(self._engine.batches)
        chunks = export.arrow(batches) if wants_arrow(request) else export.lines(batches)
        kept_alive = export.within(chunks, request.state.clock, self._settings.timeout_s)
        return StreamingResponse(kept_alive, media_type=ARROW if wants_arrow(request) else openapi.NDJSON)

    async def get(self, request: Request) -> Response:
        """One keyword by its id."""
        self._check_read(request)
        given: str = request.path_params["id"]
        missing = Problem("not-found", "no keyword has this id", hint="ids are those given when adding")
        key: int | str = given
        if self._engine.info()["id_type"] == "int64":
            if INT64.fullmatch(given) is None or not -(2**63) <= int(given) < 2**63:
                raise missing
            key = int(given)
        (found,) = await asyncio.to_thread(self._engine.get, [key])
        if found is None:
            raise missing
        return Response(answers.to_bytes(answers.keyword(found)), media_type=JSON)

    async def index(self, request: Request) -> Response:
        """What is served: size, model, devices, segments, limits."""
        self._check_read(request)
        return Response(answers.to_bytes(self._service.info()), media_type=JSON)

    async def compact(self, request: Request) -> Response:
        """Rewrite the index without what was deleted. Searches go on, changes wait."""
        self._check_write(request)
        await self._service.committer.compact()
        info = self._engine.info()
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
        return Response(to_json(request.scope["app"].openapi()), media_type=JSON)

    # ---- inside ----

    def _check_read(self, request: Request) -> None:
        self._service.guard.check(header(request, b"authorization"), write=False)

    def _check_write(self, request: Request) -> None:
        self._service.guard.check(header(request, b"authorization"), write=True)
        if self._settings.read_only:
            raise Problem(
                "read-only", "this service does not change its index", hint="send changes to the writer"
            )

    def _check_model(self, instead: str) -> None:
        if not self._service.has_model:
            detail = "this index has no model of texts, so they cannot be encoded"
            raise Problem("not-supported", detail, hint=instead)

    async def _committed(self, request: Request, change: Change) -> int:
        """Keywords changed, unless the client leaves while the change still waits."""
        work = asyncio.ensure_future(self._service.committer.commit(change))
        return await unless_client_leaves(request, work)

    async def _pieces(self, request: Request, search: Search) -> list[Piece]:
        """The hits, unless the client leaves first."""
        job = self._service.batcher.submit(search)
        try:
            return await unless_client_leaves(request, job.future)
        finally:
            self._service.batcher.forget(job)

    async def _explained(
        self, request: Request, search: Search, pieces: list[Piece]
    ) -> tuple[list[Piece], list[dict[str, Any]]]:
        """The hits with their codes and ranks; searched again if one of them is deleted meanwhile."""
        engine = self._engine
        if not isinstance(engine, Explaining):
            raise Problem("not-supported", "this index cannot explain hits", hint="leave explain out")
        planes = engine.info()["keyword_planes"]
        for _ in range(EXPLAIN_TRIES):
            try:
                parts = [
                    await asyncio.to_thread(explain.explain, engine, piece, planes, search.filters())
                    for piece in pieces
                ]
            except InputError:
                pieces = await self._pieces(request, search)
            else:
                return pieces, [result for part in parts for result in part]
        raise Problem(
            "overloaded",
            "the hits changed faster than they could be explained",
            hint="try again",
            headers={"Retry-After": "1"},
        )


def wants_arrow(request: Request) -> bool:
    """Whether an Arrow stream was asked for; anything else is answered with JSON."""
    return ARROW in (header(request, b"accept") or "")
