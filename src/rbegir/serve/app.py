"""The application: the routes of a service, and what is around every one of them.

Handlers are plain: read the body (bounded), validate it, hand the work to the batcher or the committer,
respond with bytes that were made once. A framework that validates and serialises bodies itself was rejected:
that costs more than a scan of a million keywords.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.staticfiles import StaticFiles

from rbegir.serve.body import received
from rbegir.serve.catalog import Catalog, IndexFolder
from rbegir.serve.middleware import Edge, Handler, header
from rbegir.serve.monitor import RequestLog
from rbegir.serve.openapi import NAME, TEXT, Operation, document, operation
from rbegir.serve.routes import Handlers, answer, to_bytes
from rbegir.serve.served import ServedIndex
from rbegir.serve.service import Service
from rbegir.serve.settings import Settings
from rbegir.wire.problems import Problem
from rbegir.wire.schema import AliasBody, AliasResponse, IndexesResponse, StatusResponse
from rbegir.wire.search import JSON

STATIC = Path(__file__).parent / "static"


class SiteHandlers:
    """The handlers of all routes: those of an index by name, and those of the service as a whole.

    Access is checked here, before the handler is called.
    """

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        # with names and without: the facts that the document was made from, and the document
        self._openapi: dict[bool, tuple[Any, bytes]] = {}

    def routes(self) -> list[tuple[Operation, Handler]]:
        """Every route, and what answers it."""
        return [
            (method.operation, self._checked(method, of_index=owner is Handlers))
            for owner in (Handlers, SiteHandlers)
            for method in vars(owner).values()
            if hasattr(method, "operation")
        ]

    def _checked(self, method: Any, *, of_index: bool) -> Handler:
        """A method as the handler of its route."""

        async def handle(request: Request) -> Response:
            owner = Handlers(self._service(request)) if of_index else self
            self._check(request, method.operation.access)
            response: Response = await method(owner, request)
            return response

        return handle

    def _service(self, request: Request) -> Service:
        """The service of the index that the request names, or else of the default one."""
        state = request.scope["state"]
        service = self._catalog.enter(state.get("index"))
        if service is None:
            self._check(request, "read")  # only those who may read learn which names exist
            raise Problem("not-found", "there is no index of this name", hint="GET /v1/indexes lists them")
        state["service"] = service  # the edge leaves it when the response has been sent
        return service

    def _check(self, request: Request, access: str) -> None:
        """Refuse a request that may not be made."""
        if access == "all":
            return
        self._catalog.guard.check(header(request, b"authorization"), write=access == "write")
        if access == "write":
            self._catalog.guard.check_origin(request.scope["state"]["head"])
            if self._catalog.settings.read_only:
                raise Problem(
                    "read-only", "this service does not change its index", hint="send changes to the writer"
                )

    def _may_read(self, request: Request) -> bool:
        try:
            self._check(request, "read")
        except Problem:
            return False
        return True

    @operation("read", "GET /v1/indexes", None, IndexesResponse)
    async def indexes(self, request: Request) -> Response:
        """The indexes by name; the routes without a name are those of the default one."""
        return answer({"indexes": self._catalog.listed()})

    @operation("write", "PUT /v1/aliases/{name}", AliasBody, AliasResponse, 404, 501, parameters=[NAME])
    async def alias(self, request: Request) -> Response:
        """Let a name stand for an index of the served folder. Requests that have begun finish on the old one;
        durable when it responds."""
        body = await received(AliasBody, request, self._catalog.settings)
        return await self._pointed(request, body.index)

    @operation("write", "DELETE /v1/aliases/{name}", None, AliasResponse, 404, 422, 501, parameters=[NAME])
    async def unalias(self, request: Request) -> Response:
        """Remove a name. The files of the index stay; it is closed unless another name stands for it."""
        return await self._pointed(request, None)

    async def _pointed(self, request: Request, index: str | None) -> Response:
        name = request.path_params["name"]
        await self._catalog.point(name, index)
        return answer({"name": name, "index": index})

    @operation("all", "GET /healthz", None, StatusResponse)
    async def healthz(self, request: Request) -> Response:
        """The process is alive."""
        return answer({"status": "alive"})

    @operation("all", "GET /readyz", None, StatusResponse, 503)
    async def readyz(self, request: Request) -> Response:
        """Requests can be sent here."""
        reason = self._catalog.not_ready()
        if reason is not None:
            raise Problem("not-ready", reason, hint="send requests elsewhere", headers={"Retry-After": "1"})
        return answer({"status": "ready"})

    @operation("read", "GET /metrics", None, None, media={"text/plain": TEXT})
    async def metrics(self, request: Request) -> Response:
        """For Prometheus."""
        metrics = self._catalog.metrics
        return Response(metrics.page(), headers={"Content-Type": metrics.content_type})

    @operation("all", "GET /openapi.json", None, None, media={JSON: {"type": "object"}})
    async def openapi(self, request: Request) -> Response:
        """This document. Names of indexes and attributes are only in it for those who may read them."""
        told = self._may_read(request)
        service = self._catalog.default
        info, encodes = service.index.info(), service.encodes
        names = list(self._catalog.services)
        facts = [info.get(name) for name in ("n", "keyword_planes", "id_type", "attributes", "tenant")]
        key = (encodes, facts, bool(info["keywords"]), names)
        if told not in self._openapi or self._openapi[told][0] != key:
            every = [operation for operation, _ in self.routes()]
            if self._catalog.folder is None:
                every = [operation for operation in every if "/v1/aliases/" not in operation.path]
            made = document(every, self._catalog.settings, info, encodes, names if told else None)
            self._openapi[told] = key, to_bytes(made)
        return Response(self._openapi[told][1], media_type=JSON)


def create_app(
    index: ServedIndex | Mapping[str, ServedIndex] | IndexFolder,
    settings: Settings | None = None,
    *,
    log: RequestLog | None = None,
) -> Starlette:
    """The service over an index, several by name, or a folder of them. It closes them when it shuts down."""
    settings = settings or Settings()
    catalog = Catalog(index, settings, log or RequestLog())

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        await catalog.start()
        try:
            yield
        finally:
            await asyncio.shield(catalog.stop())

    app = Starlette(lifespan=lifespan)
    app.state.catalog = catalog
    page = StaticFiles(directory=STATIC, html=True)
    app.add_middleware(Edge, catalog=catalog, routes=SiteHandlers(catalog).routes(), page=page)
    if settings.cors_origins:  # around the edge, so that problems can be read across origins too
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(settings.cors_origins),
            allow_methods=["GET", "POST", "PUT", "PATCH", "DELETE"],
            allow_headers=["Authorization", "Content-Type", "X-Timeout-Ms"],
            expose_headers=["Retry-After", "X-Request-Id"],
        )
    return app
