"""The parts of a running service and their life: started together, drained, stopped in order."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import numpy as np

from rbegir.encode.encoder import takes_vectors
from rbegir.errors import FileError, RbegirError
from rbegir.serve.auth import Guard
from rbegir.serve.batcher import Batcher
from rbegir.serve.committer import Committer
from rbegir.serve.engine import Engine, Refreshing
from rbegir.serve.logs import Log
from rbegir.serve.metrics import Metrics
from rbegir.serve.settings import Settings


class Service:
    """What the routes share."""

    def __init__(self, engine: Engine, settings: Settings, log: Log) -> None:
        self.engine = engine
        self.settings = settings
        self.log = log
        self.guard = Guard(settings)
        self.metrics = Metrics()
        self.has_model = True
        self.draining = False
        self.ready = False
        self._refresh_failure: str | None = None
        self._refresher: asyncio.Task[None] | None = None
        self.batcher = Batcher(
            engine, self.metrics, max_batch=settings.max_batch, max_waiting=settings.max_waiting
        )
        self.committer = Committer(
            engine,
            self.metrics,
            log,
            max_batch=settings.max_write_batch,
            max_waiting=settings.max_waiting_writes,
            compact_deleted=settings.compact_deleted,
            compact_min_deleted=settings.compact_min_deleted,
        )
        gauges = [
            ("queue_depth", "Queries that wait for a scan.", lambda: self.batcher.waiting),
            ("write_queue_depth", "Keywords that wait to be written.", lambda: self.committer.waiting),
            ("keywords", "Keywords that are searched.", lambda: len(engine)),
            ("segments", "Segments of the index.", lambda: engine.info()["segments"]),
            ("deleted", "Rows that are deleted and not yet compacted.", lambda: engine.info()["deleted"]),
        ]
        for name, text, read in gauges:
            self.metrics.gauge(name, text, read)

    def prepare(self) -> None:
        """Load the model, check the codes, and become the writer of the index, or say who is."""
        info = self.engine.info()
        try:
            self.has_model = not takes_vectors(self.engine.model)
        except FileError:
            if info["has_model"]:  # it is there and cannot be loaded
                raise
            self.has_model = False
        self.engine.search_codes(np.ones((1, info["n"]), np.int16), 1)
        if not self.settings.read_only:
            self.engine.delete([])  # takes the lock and changes nothing

    async def start(self) -> None:
        """Begin to answer."""
        await asyncio.to_thread(self.prepare)
        if self.settings.read_only and isinstance(self.engine, Refreshing):
            self._refresher = asyncio.create_task(self._refresh(self.engine), name="rbegir-refresh")
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
        await asyncio.to_thread(self.engine.close)

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
        known = {key: value for key, value in self.engine.info().items() if key != "path"}
        limits = ("max_queries", "max_k", "max_hits", "max_keywords", "max_text_chars", "max_body_bytes")
        return {
            **known,
            "has_model": self.has_model,
            "devices": list(settings.devices),
            "read_only": settings.read_only,
            "limits": {name: getattr(settings, name) for name in limits},
        }

    async def _refresh(self, engine: Refreshing) -> None:
        """Follow the writer of the index."""
        while True:
            await asyncio.sleep(self.settings.refresh_s)
            try:
                await asyncio.to_thread(engine.refresh)
                self._refresh_failure = None
            except RbegirError as error:
                if self._refresh_failure is None:
                    self.log.error("refresh failed", error)
                self._refresh_failure = error.message
