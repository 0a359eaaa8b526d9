"""One index as it is served: its batcher, its committer, and what keeps it current."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import numpy as np

from rbegir.encode.encoder import takes_vectors
from rbegir.errors import FileError
from rbegir.serve.batcher import Batcher, FilterQueue, cancelled
from rbegir.serve.committer import Committer
from rbegir.serve.monitor import Metrics, RequestLog
from rbegir.serve.served import ServedIndex
from rbegir.serve.settings import Settings

READERS = 2


class Service:
    """The parts that serve one index: started together, and stopped in order when no request uses them."""

    def __init__(
        self, index: ServedIndex, settings: Settings, log: RequestLog, metrics: Metrics, name: str
    ) -> None:
        self.index = index
        self.settings = settings
        self.log = log
        self.name = name
        self.metrics = metrics.of(name)
        self.encodes: Literal["texts", "vectors", "nothing"] = "nothing"
        self.ready = False
        self._users = 0  # requests that are being answered
        self._idle = asyncio.Event()
        self._idle.set()
        self._refresh_failure: str | None = None
        self._refresher: asyncio.Task[None] | None = None
        self.filters = FilterQueue(index, settings)
        self.batcher = Batcher(index, self.metrics, settings)
        self.committer = Committer(index, self.metrics, log, settings)
        # for what reads much of the index, so that it does not keep short work from the threads of the loop
        self.readers = ThreadPoolExecutor(READERS, "rbegir-read")
        gauges: dict[str, Callable[[], float]] = {
            "queue_depth": lambda: self.batcher.waiting + self.filters.waiting,
            "write_queue_depth": lambda: self.committer.waiting,
            "keywords": lambda: len(index),
            "segments": lambda: index.info()["segments"],
            "deleted": lambda: index.info()["deleted"],
        }
        for gauge, read in gauges.items():
            self.metrics.gauges[gauge].set_function(read)

    def enter(self) -> None:
        """A request uses this service until `leave`."""
        self._users += 1
        self._idle.clear()

    def leave(self) -> None:
        self._users -= 1
        if not self._users:
            self._idle.set()

    async def retire(self) -> None:
        """Stop when the last request has been answered."""
        await self._idle.wait()
        await self.stop()

    def prepare(self) -> None:
        """Load the model, check the codes, and become the writer of the index; an error says who else is.

        If hits are reranked, the words of all texts are read too. Searches of a tenant do not need them.
        """
        self.encodes = self._encodes()
        info = self.index.info()
        self.index.search_codes(np.ones((1, info["n"]), np.int16), 1)
        reranked = self.encodes == "texts" and getattr(self.index.model, "reranker", None) is not None
        if reranked and "tenant" not in info:
            self.index.search("a", 1)
        if not self.settings.read_only:
            self.index.delete([])  # takes the lock and changes nothing

    def _encodes(self) -> Literal["texts", "vectors", "nothing"]:
        try:
            return "vectors" if takes_vectors(self.index.model) else "texts"
        except FileError:
            if self.index.info()["has_model"]:  # it is there and cannot be loaded
                raise
            return "nothing"

    async def start(self) -> None:
        await asyncio.to_thread(self.prepare)
        if self.settings.read_only:
            self._refresher = asyncio.create_task(self._refresh(), name="rbegir-refresh")
        for loop in (self.filters, self.batcher, self.committer):
            loop.start()
        self.ready = True

    async def stop(self) -> None:
        """Finish what is running and close the index."""
        self.ready = False
        await cancelled(self._refresher)
        for loop in (self.filters, self.batcher, self.committer):
            await loop.stop()
        await asyncio.to_thread(self.readers.shutdown)
        self.metrics.remove()
        await asyncio.to_thread(self.index.close)

    def not_ready(self) -> str | None:
        """Why requests should go elsewhere, if they should."""
        if not self.ready:
            return "the service is starting"
        if self.committer.failure is not None:
            return "the last change could not be written"
        if self._refresh_failure is not None:
            return "the index could not be refreshed"
        return None

    def info(self) -> dict[str, Any]:
        """The body of GET /v1/index; the path of the index is not disclosed."""
        settings = self.settings
        known = {key: value for key, value in self.index.info().items() if key != "path"}
        limits = (
            "max_queries", "max_k", "max_hits", "max_keywords", "max_text_chars", "max_body_bytes",
            "max_search_bytes", "max_client_requests",
        )  # fmt: skip
        return {
            **known,
            "has_model": self.encodes == "texts",
            "devices": list(settings.devices),
            "read_only": settings.read_only,
            "limits": {name: getattr(settings, name) for name in limits},
        }

    async def _refresh(self) -> None:
        """Follow the writer of the index."""
        while True:
            await asyncio.sleep(self.settings.refresh_s)
            try:
                await asyncio.to_thread(self.index.refresh)
                self.encodes = await asyncio.to_thread(self._encodes)  # the index may have been replaced
                self._refresh_failure = None
            except Exception as error:  # the loop must go on
                if self._refresh_failure is None:
                    self.log.error("refresh failed", error)
                self._refresh_failure = str(error)
