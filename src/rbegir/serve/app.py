"""The application: the routes of a service, and what is around every one of them.

Handlers are plain: read the body (bounded), validate it, hand the work to the batcher or the committer,
respond with bytes that were made once. Starlette gives the routing. A framework that validates and serialises
bodies itself was rejected: that costs more than a scan of a million keywords.
"""

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from pydantic_core import to_json
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.staticfiles import StaticFiles

from rbegir.serve.body import received
from rbegir.serve.catalog import Catalog, IndexFolder
from rbegir.serve.middleware import Edge, Handler, header, http_problem, problem_response
from rbegir.serve.monitor import RequestLog
from rbegir.serve.openapi import document
from rbegir.serve.routes import ROUTES, Handlers, check_change
from rbegir.serve.served import ServedIndex
from rbegir.serve.settings import Settings
from rbegir.wire.problems import Problem
from rbegir.wire.schema import AliasBody
from rbegir.wire.search import JSON

STATIC = Path(__file__).parent / "static"


class SiteHandlers:
    """The handlers of all routes: those of an index by name, and those of the service as a whole."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._openapi: tuple[Any, bytes] = None, b""  # the document, and the facts that it was made from

    def routes(self) -> list[tuple[str, str, Handler]]:
        return [
            *((method, path, self._of_index(handler)) for method, path, handler in ROUTES),
            ("GET", "/v1/indexes", self.indexes),
            ("PUT", "/v1/aliases/{name}", self.alias),
            ("DELETE", "/v1/aliases/{name}", self.unalias),
            ("GET", "/healthz", self.healthz),
            ("GET", "/readyz", self.readyz),
            ("GET", "/metrics", self.metrics),
            ("GET", "/openapi.json", self.openapi),
        ]

    def _of_index(self, handler: Callable[[Handlers, Request], Awaitable[Response]]) -> Handler:
        """A handler of the index that the request names, or else of the default one."""

        @functools.wraps(handler)
        async def handle(request: Request) -> Response:
            state = request.scope["state"]
            service = self._catalog.enter(state.get("index"))
            if service is None:
                self._check_read(request)  # names are told to those who may read
                raise Problem(
                    "not-found", "there is no index of this name", hint="GET /v1/indexes lists them"
                )
            state["service"] = service  # the edge leaves it when the response has been sent
            return await handler(Handlers(service), request)

        return handle

    async def indexes(self, request: Request) -> Response:
        """The indexes by name; the routes without a name are those of the default one."""
        self._check_read(request)
        return Response(to_json({"indexes": self._catalog.listed()}), media_type=JSON)

    async def alias(self, request: Request) -> Response:
        """Let a name stand for an index of the served folder. Requests that have begun finish on the old one;
        durable when it responds."""
        check_change(request, self._catalog.guard, self._catalog.settings)
        body = await received(AliasBody, request, self._catalog.settings)
        name = request.path_params["name"]
        await self._catalog.point(name, body.index)
        return Response(to_json({"name": name, "index": body.index}), media_type=JSON)

    async def unalias(self, request: Request) -> Response:
        """Remove a name. The files of the index stay; it is closed unless another name stands for it."""
        check_change(request, self._catalog.guard, self._catalog.settings)
        name = request.path_params["name"]
        await self._catalog.point(name, None)
        return Response(to_json({"name": name, "index": None}), media_type=JSON)

    async def healthz(self, request: Request) -> Response:
        """The process is alive."""
        return Response(to_json({"status": "alive"}), media_type=JSON)

    async def readyz(self, request: Request) -> Response:
        """Requests can be sent here."""
        reason = self._catalog.not_ready()
        if reason is not None:
            raise Problem("not-ready", reason, hint="send requests elsewhere", headers={"Retry-After": "1"})
        return Response(to_json({"status": "ready"}), media_type=JSON)

    async def metrics(self, request: Request) -> Response:
        """For Prometheus."""
        self._check_read(request)
        metrics = self._catalog.metrics
        return Response(metrics.page(), headers={"Content-Type": metrics.content_type})

    async def openapi(self, request: Request) -> Response:
        """This document."""
        service = self._catalog.default
        info, encodes = service.index.info(), service.encodes
        names = list(self._catalog.services)
        shape = (info["n"], info["keyword_planes"], info["id_type"], bool(info["keywords"]))
        key = (encodes, *shape, info["attributes"].get(info.get("tenant")), *names)
        if self._openapi[0] != key:
            routes = [
                (method, path, handler.__name__, handler.__doc__)
                for method, path, handler in self.routes()
                if self._catalog.in_folder or "/v1/aliases/" not in path
            ]
            self._openapi = key, to_json(document(routes, self._catalog.settings, info, encodes, names))
        return Response(self._openapi[1], media_type=JSON)

    def _check_read(self, request: Request) -> None:
        self._catalog.guard.check(header(request, b"authorization"), write=False)


def create_app(
    index: ServedIndex | Mapping[str, ServedIndex] | IndexFolder,
    settings: Settings | None = None,
    *,
    log: RequestLog | None = None,
) -> Starlette:
    """The service over an index, several by name, or a folder of them, which it closes when it shuts down."""
    settings = settings or Settings()
    log = log or RequestLog(access=settings.access_log, queries=settings.log_queries)
    catalog = Catalog(index, settings, log)

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        await catalog.start()
        try:
            yield
        finally:
            await asyncio.shield(catalog.stop())

    handlers = SiteHandlers(catalog)
    app = Starlette(
        routes=[Route(path, handler, methods=[method]) for method, path, handler in handlers.routes()],
        exception_handlers={HTTPException: on_http_error},
        lifespan=lifespan,
    )
    app.state.catalog = catalog
    app.router.redirect_slashes = False
    app.router.default = StaticFiles(directory=STATIC, html=True)  # what is no route is a file of the page
    direct = {(method, path): handler for method, path, handler in handlers.routes() if "{" not in path}
    app.add_middleware(Edge, catalog=catalog, direct=direct)
    if settings.cors_origins:  # around the edge, so that problems can be read across origins too
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(settings.cors_origins),
            allow_methods=["GET", "POST", "PUT", "PATCH", "DELETE"],
            allow_headers=["Authorization", "Content-Type", "X-Timeout-Ms"],
            expose_headers=["Retry-After", "X-Request-Id"],
        )
    return app


async def on_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return problem_response(http_problem(error, request.url.path))
