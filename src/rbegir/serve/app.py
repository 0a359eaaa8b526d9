"""The application: the parts of a running service, its routes, and what is around every one of them.

Handlers are plain: read the body (bounded), validate it, hand the work to the batcher or the committer,
respond with bytes that were made once. Starlette gives the routing. A framework that validates and serialises
bodies itself was rejected: that costs more than a scan of a million keywords.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.staticfiles import StaticFiles

from rbegir.encode.encoder import takes_vectors
from rbegir.errors import FileError, RbegirError
from rbegir.serve.auth import Guard
from rbegir.serve.batcher import Batcher
from rbegir.serve.committer import Committer
from rbegir.serve.middleware import Edge, http_problem, problem_response
from rbegir.serve.monitor import Metrics, RequestLog, trim_memory
from rbegir.serve.routes import Handlers
from rbegir.serve.served import Refreshing, ServedIndex
from rbegir.serve.settings import Settings

STATIC = Path(__file__).parent / "static"
TRIM_S = 1.0


class Service:
    """The parts of a running service: started together, drained, stopped in order."""

    def __init__(self, index: ServedIndex, settings: Settings, log: RequestLog) -> None:
        self.index = index
        self.settings = settings
        self.log = log
        self.guard = Guard(settings)
        self.metrics = Metrics()
        self.encodes: Literal["texts", "vectors", "nothing"] = "nothing"
        self.draining = False
        self.ready = False
        self._refresh_failure: str | None = None
        self._refresher: asyncio.Task[None] | None = None
        self._trimming: asyncio.TimerHandle | None = None
        self.batcher = Batcher(index, self.metrics, settings)
        self.committer = Committer(index, self.metrics, log, settings)
        gauges = [
            ("queue_depth", "Queries that wait for a scan.", lambda: self.batcher.waiting),
            ("write_queue_depth", "Keywords that wait to be written.", lambda: self.committer.waiting),
            ("keywords", "Keywords that are searched.", lambda: len(index)),
            ("segments", "Segments of the index.", lambda: index.info()["segments"]),
            ("deleted", "Rows that are deleted and not yet compacted.", lambda: index.info()["deleted"]),
        ]
        for name, text, read in gauges:
            self.metrics.gauge(name, text, read)

    def prepare(self) -> None:
        """Load the model, check the codes, and become the writer of the index, or say who is."""
        self.encodes = self._encodes()
        self.index.search_codes(np.ones((1, self.index.info()["n"]), np.int16), 1)
        if not self.settings.read_only:
            self.index.delete([])  # takes the lock and changes nothing

    def _encodes(self) -> Literal["texts", "vectors", "nothing"]:
        """What the model of the index encodes."""
        try:
            return "vectors" if takes_vectors(self.index.model) else "texts"
        except FileError:
            if self.index.info()["has_model"]:  # it is there and cannot be loaded
                raise
            return "nothing"

    async def start(self) -> None:
        """Begin to answer."""
        await asyncio.to_thread(self.prepare)
        if self.settings.read_only and isinstance(self.index, Refreshing):
            self._refresher = asyncio.create_task(self._refresh(self.index), name="rbegir-refresh")
        self.batcher.start()
        self.committer.start()
        self.ready = True

    async def stop(self) -> None:
        """Finish what is running and close the index."""
        self.ready = False
        if self._refresher is not None:
            self._refresher.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._refresher
        await self.batcher.stop()
        await self.committer.stop()
        await asyncio.to_thread(self.index.close)

    def trim_soon(self) -> None:
        """After a large request: give its memory back to the system in a moment, when it is freed."""

        def trim() -> None:
            self._trimming = None
            loop.run_in_executor(None, trim_memory)

        if self._trimming is None:
            loop = asyncio.get_running_loop()
            self._trimming = loop.call_later(TRIM_S, trim)

    def not_ready(self) -> str | None:
        """Why requests should go elsewhere, if they should."""
        if self.draining:
            return "the service is shutting down"
        if not self.ready:
            return "the service is starting"
        if self.committer.failure is not None:
            return "the last change could not be written"
        if self._refresh_failure is not None:
            return "the index could not be refreshed"
        return None

    def info(self) -> dict[str, Any]:
        """What GET /v1/index says; the path of the index is nobody's business."""
        settings = self.settings
        known = {key: value for key, value in self.index.info().items() if key != "path"}
        limits = (
            "max_queries", "max_k", "max_hits", "max_keywords", "max_text_chars", "max_body_bytes",
            "max_search_bytes",
        )  # fmt: skip
        return {
            **known,
            "has_model": self.encodes == "texts",
            "devices": list(settings.devices),
            "read_only": settings.read_only,
            "limits": {name: getattr(settings, name) for name in limits},
        }

    async def _refresh(self, index: Refreshing) -> None:
        """Follow the writer of the index."""
        while True:
            await asyncio.sleep(self.settings.refresh_s)
            try:
                await asyncio.to_thread(index.refresh)
                self.encodes = await asyncio.to_thread(self._encodes)  # the index may have been replaced
                self._refresh_failure = None
            except RbegirError as error:
                if self._refresh_failure is None:
                    self.log.error("refresh failed", error)
                self._refresh_failure = error.message


def create_app(
    index: ServedIndex, settings: Settings | None = None, *, log: RequestLog | None = None
) -> Starlette:
    """The service over an index. It closes the index when it shuts down."""
    settings = settings or Settings()
    log = log or RequestLog(access=settings.access_log, queries=settings.log_queries)
    service = Service(index, settings, log)

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        await service.start()
        try:
            yield
        finally:
            await asyncio.shield(service.stop())

    handlers = Handlers(service)
    app = Starlette(
        routes=[Route(path, handler, methods=[method]) for method, path, handler in handlers.routes()],
        exception_handlers={HTTPException: on_http_error},
        lifespan=lifespan,
    )
    app.state.service = service
    app.router.redirect_slashes = False
    app.router.default = StaticFiles(directory=STATIC, html=True)  # what is no route is a file of the page
    direct = {(method, path): handler for method, path, handler in handlers.routes() if "{" not in path}
    app.add_middleware(Edge, service=service, direct=direct)
    if settings.cors_origins:  # around the edge, so that problems can be read across origins too
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(settings.cors_origins),
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["Authorization", "Content-Type", "X-Timeout-Ms"],
            expose_headers=["Retry-After", "X-Request-Id"],
        )
    return app


async def on_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return problem_response(http_problem(error))
