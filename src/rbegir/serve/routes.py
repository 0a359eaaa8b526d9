"""The routes under /v1 and beside it."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import numpy.typing as npt
from fastapi import FastAPI, Request, Response
from pydantic_core import to_json
from starlette.exceptions import HTTPException

from rbegir.codes.score import QUERY_LIMIT
from rbegir.serve import answers, explain, schema
from rbegir.serve.arrow import MEDIA_TYPE as ARROW
from rbegir.serve.arrow import hits_stream
from rbegir.serve.batcher import Search
from rbegir.serve.body import parse, read_body
from rbegir.serve.committer import Change, Row
from rbegir.serve.disconnect import unless_client_leaves
from rbegir.serve.engine import Explaining
from rbegir.serve.middleware import Handler, http_problem
from rbegir.serve.problems import Problem
from rbegir.serve.service import Service

JSON = "application/json"


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
        ("GET", "/v1/keywords/{id}", handlers.get),
        ("GET", "/v1/index", handlers.index),
        ("POST", "/v1/index:compact", handlers.compact),
        ("GET", "/healthz", handlers.healthz),
        ("GET", "/readyz", handlers.readyz),
        ("GET", "/metrics", handlers.metrics),
        ("GET", "/openapi.json", handlers.openapi),
    ):
        app.add_api_route(path, handler, methods=[method], response_model=None)
        if "{" not in path:
            direct[method, path] = handler
    return direct


class Routes:
    """One method a route."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._engine = service.engine
        self._settings = service.settings

    async def search(self, request: Request) -> Response:
        """Search: every keyword is scored, the best k of each query come back."""
        service = self._service
        clock = answers.Clock()
        service.guard.check(request.headers.get("authorization"), write=False)
        asked = parse(schema.SearchRequest, await read_body(request, self._settings))
        arrow = _wants_arrow(request)
        search = self._search_of(asked)
        request.state.log = {"queries": search.count, "k": search.k}
        if service.log.queries:
            request.state.log["texts"] = search.texts
        job = service.batcher.submit(search)
        try:
            pieces = await unless_client_leaves(request, job.future)
        finally:
            service.batcher.forget(job)
        explained = None
        if asked.explain:
            explained = await self._explain(pieces, asked.where)
        with service.metrics.search_stage["serialise"].time():
            if arrow:
                return Response(hits_stream(pieces, self._engine.info()), media_type=ARROW)
            body = answers.search_body(asked.queries, pieces, explained, clock)
        return Response(body, media_type=JSON)

    async def upsert(self, request: Request) -> Response:
        """Add keywords, or replace those with the same ids. Durable and searchable when it answers."""
        asked = parse(schema.UpsertRequest, await self._changing(request))
        settings = self._settings
        _at_most("keywords", len(asked.keywords), settings.max_keywords)
        rows: dict[int | str, Row | None] = {}
        for number, keyword in enumerate(asked.keywords):
            _at_most(f"keywords.{number}.text", len(keyword.text), settings.max_text_chars, "characters")
            if keyword.id in rows:
                raise Problem(
                    "invalid", f"the id {keyword.id!r} is given more than once", hint="give every id once"
                )
            rows[keyword.id] = Row(keyword.text, keyword.attributes)
        request.state.log = {"keywords": len(rows)}
        count = await self._service.committer.commit(Change(rows))
        return Response(to_json({"upserted": count}), media_type=JSON)

    async def delete(self, request: Request) -> Response:
        """Delete keywords by id. Durable when it answers; ids that are not there are ignored."""
        asked = parse(schema.DeleteRequest, await self._changing(request))
        _at_most("ids", len(asked.ids), self._settings.max_keywords)
        request.state.log = {"ids": len(asked.ids)}
        count = await self._service.committer.commit(Change(dict.fromkeys(asked.ids)))
        return Response(to_json({"deleted": count}), media_type=JSON)

    async def get(self, request: Request) -> Response:
        """One keyword by its id."""
        id = request.path_params["id"]
        self._service.guard.check(request.headers.get("authorization"), write=False)
        missing = Problem("not-found", "no keyword has this id", hint="ids are those given when adding")
        key: int | str = id
        if self._engine.info()["id_type"] == "int64":
            try:
                key = int(id)
            except ValueError:
                raise missing from None
            if not -(2**63) <= key < 2**63 or str(key) != id:
                raise missing
        (found,) = await asyncio.to_thread(self._engine.get, [key])
        if found is None:
            raise missing
        return Response(answers.to_bytes(answers.keyword(found)), media_type=JSON)

    async def index(self, request: Request) -> Response:
        """What is served: size, model, devices, segments, limits."""
        self._service.guard.check(request.headers.get("authorization"), write=False)
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
        self._service.guard.check(request.headers.get("authorization"), write=False)
        metrics = self._service.metrics
        return Response(metrics.page(), headers={"Content-Type": metrics.content_type})

    async def openapi(self, request: Request) -> Response:
        """This document."""
        return Response(to_json(request.app.openapi()), media_type=JSON)

    # ---- inside ----

    async def _changing(self, request: Request) -> bytes:
        self._check_write(request)
        return await read_body(request, self._settings)

    def _check_write(self, request: Request) -> None:
        self._service.guard.check(request.headers.get("authorization"), write=True)
        if self._settings.read_only:
            raise Problem(
                "read-only", "this service does not change its index", hint="send changes to the writer"
            )

    def _search_of(self, asked: schema.SearchRequest) -> Search:
        """The request, checked against the limits and the index."""
        settings = self._settings
        if (asked.queries is None) == (asked.codes is None):
            raise Problem("invalid", "exactly one of queries and codes must be given", hint="leave one out")
        values = None
        if asked.queries is not None:
            for number, text in enumerate(asked.queries):
                _at_most(f"queries.{number}", len(text), settings.max_text_chars, "characters")
        else:
            values = self._values_of(asked.codes or [])
        count = len(asked.queries if values is None else values)  # type: ignore[arg-type]
        _at_most("queries", count, settings.max_queries)
        _at_most("k", asked.k, settings.max_k, "")
        _at_most("queries times k", count * asked.k, settings.max_hits, "hits")
        _at_most("where", len(asked.where or ""), settings.max_where_chars, "characters")
        if asked.mode == "paper" and asked.planes is not None:
            raise Problem(
                "invalid", "planes and mode 'paper' cannot be combined", hint="leave one of them out"
            )
        return Search(asked.queries, values, asked.k, asked.where, asked.mode, asked.planes)

    def _values_of(self, codes: list[list[str]] | list[list[int]]) -> npt.NDArray[np.int16]:
        n = self._engine.info()["n"]
        if not all(codes):
            raise Problem(
                "invalid", "codes holds an empty list", hint="give planes or integers for each query"
            )
        if isinstance(codes[0][0], str):
            return explain.from_hex(codes, n)
        return explain.from_integers(codes, n, QUERY_LIMIT)

    async def _explain(self, pieces: list[Any], where: str | None) -> list[dict[str, Any]]:
        engine = self._engine
        if not isinstance(engine, Explaining):
            raise Problem("not-supported", "this index cannot explain hits", hint="leave explain out")
        planes = engine.info()["keyword_planes"]
        parts = [await asyncio.to_thread(explain.explain, engine, piece, planes, where) for piece in pieces]
        return [result for part in parts for result in part]


def _at_most(field: str, value: int, limit: int, unit: str = "items") -> None:
    if value > limit:
        raise Problem(
            "invalid",
            f"{field}: at most {limit} {unit}".rstrip() + f", got {value}",
            hint="GET /v1/index lists the limits",
        )


def _wants_arrow(request: Request) -> bool:
    return ARROW in request.headers.get("accept", "")
