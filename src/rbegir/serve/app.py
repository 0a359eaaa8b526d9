"""The application: routes, and what is around every one of them.

Handlers are plain: read the body (bounded), validate it, hand the work to the batcher or the committer,
answer with bytes that were made once. FastAPI gives the routing and the OpenAPI document; its own validation
and serialisation of bodies are left out, because they cost more than a scan of a million keywords.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware
from starlette.staticfiles import StaticFiles

import rbegir
from rbegir.serve import openapi, routes
from rbegir.serve.engine import Engine
from rbegir.serve.logs import Log
from rbegir.serve.middleware import Edge
from rbegir.serve.service import Service
from rbegir.serve.settings import Settings

STATIC = Path(__file__).parent / "static"


def create_app(engine: Engine, settings: Settings | None = None, *, log: Log | None = None) -> FastAPI:
    """The service over an engine. It closes the engine when it shuts down."""
    settings = settings or Settings()
    service = Service(engine, settings, log or Log(access=settings.access_log, queries=settings.log_queries))

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await service.start()
        try:
            yield
        finally:
            await asyncio.shield(service.stop())

    app = FastAPI(
        title="rbegir",
        version=rbegir.__version__,
        description="Exhaustive, exact search over learned binary embeddings.",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
    )
    app.state.service = service
    direct = routes.install(app, service)
    openapi.install(app, service)
    app.router.redirect_slashes = False
    app.router.default = StaticFiles(directory=STATIC, html=True)  # what is no route is a file of the page
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
