"""`rbegir.Client` and `rbegir.AsyncClient`: a search service with the methods of an index.

    with rbegir.Client("http://127.0.0.1:8080") as client:
        client.upsert(["running shoes"], ids=[7], attributes={"price": [89.9]})
        client.search("shoes for running", k=10, where="price < 100").texts

    async with rbegir.AsyncClient("http://127.0.0.1:8080") as client:
        hits = await client.search("shoes for running", k=10)

Every method hands its plan (`calls`) to `_run`, which blocks in one client and is awaited in the other. A
Client may be used by several threads, an AsyncClient belongs to one event loop. Many searches awaited
together share scans in the service, which is how it is fastest.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Unpack

import numpy.typing as npt
import pyarrow as pa

from rbegir.client import calls
from rbegir.client.calls import Call, Ids, Plan, Record, T
from rbegir.client.transport import Connection
from rbegir.codes.planes import Codes
from rbegir.search.hits import Hits
from rbegir.search.request import (
    Filters,
    SearchOptions,
    Tenant,
    Where,
    filter_request,
    search_request,
    with_options,
)

if TYPE_CHECKING:
    import httpx

EXPORT_ROWS = 1 << 14  # keywords of a batch, as of an index
TOGETHER = 16  # requests of one `AsyncClient.get` in flight at once
P = ParamSpec("P")


class Client(Connection):
    """A search service. A context manager that closes its connections.

    `token` is sent as a bearer token, `index` names one of several indexes (the default one if not given),
    `timeout_s` limits each attempt of a call, `retries` is how often a call is tried again. `transport` is
    httpx's, for special networks: TLS settings, proxies, sockets.
    """

    _kind = "Client"
    _http: httpx.Client

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def __len__(self) -> int:
        return int(self.info()["keywords"])

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    @with_options
    def search(
        self,
        queries: str | Sequence[str] | npt.NDArray[Any],
        k: int | None = 10,
        **options: Unpack[SearchOptions],
    ) -> Hits:
        """The best k keywords for each text, or vector, as `Index.search` gives them.

        `where` must be a text; `deadline` replaces the client's timeout_s.
        """
        return self._run(calls.search(queries, search_request(k, options)))

    @with_options
    def search_codes(
        self, codes: Codes | npt.NDArray[Any], k: int | None = 10, **options: Unpack[SearchOptions]
    ) -> Hits:
        """The best k keywords for each code, or for each integer vector (int8 or int16 [queries, n])."""
        return self._run(calls.search_codes(codes, search_request(k, options)))

    def scan(
        self, queries: Any, min_score: float, *, rows: int = EXPORT_ROWS, **filters: Unpack[Filters]
    ) -> Iterator[pa.RecordBatch]:
        """Stream all hits whose code score is at least `min_score`, as `Index.scan` does: query by query.

        Each batch is a page, read when it is needed from the index as it is then.
        """
        request = filter_request("scan", None, filters, min_score=min_score)
        at: calls.At = None
        while True:
            page, at = self._run(calls.scan(queries, request, rows, at))
            yield from page
            if at is None:
                return

    def get(self, ids: Any) -> list[Record | None]:
        """The keywords with these ids, one request each; None where there is none. Dates come as texts."""
        return self._run(calls.get(ids))

    def info(self) -> Record:
        """A description of the served index: size, shape, columns, limits."""
        return self._run(calls.info())

    def add(self, texts: Sequence[str], ids: Any = None, attributes: Any = None) -> Ids:
        """Add keywords; returns their ids (random ones if none are given). An id that is there is refused."""
        return self._run(calls.put(texts, ids, attributes, replace=False))

    def upsert(self, texts: Sequence[str], ids: Any, attributes: Any = None) -> Ids:
        """Add keywords, replacing those with the same ids. Durable and searchable when it returns."""
        return self._run(calls.put(texts, ids, attributes, replace=True))

    def update(self, ids: Any, attributes: Any) -> int:
        """Change attributes of keywords, all of which must exist, and return how many were changed.

        Texts and other attributes stay, and nothing is encoded. None clears a value.
        """
        return self._run(calls.update(ids, attributes))

    def delete(self, ids: Any = None, *, where: Where = None, tenant: Tenant = None) -> int:
        """Delete keywords by id, or all that pass a filter, and return how many; unknown ids are ignored.

        With `tenant`, only keywords of that tenant are deleted; without ids and filter, all of them. If the
        first response was lost and the call was repeated, those it had deleted are not counted.
        """
        return self._run(calls.delete(ids, where, tenant))

    def count(self, where: Where = None, *, tenant: Tenant = None) -> int:
        """How many keywords pass a filter."""
        return self._run(calls.count(where, tenant))

    def batches(
        self, rows: int = EXPORT_ROWS, *, where: Where = None, tenant: Tenant = None
    ) -> Iterator[pa.RecordBatch]:
        """The keywords that pass, ordered by row: batches of id, text and attributes; the last one is empty.

        Each is read when it is needed, so keywords that change meanwhile may be missed, or come twice.
        """
        after: int | None = -1
        while after is not None:
            batch, after = self._run(calls.page(rows, where, tenant, after))
            yield batch

    def rows(self, where: Where = None, *, tenant: Tenant = None) -> Iterator[Record]:
        """The keywords that pass, ordered by row, each as a dict of id, text and attributes."""
        for batch in self.batches(where=where, tenant=tenant):
            yield from batch.to_pylist()

    def indexes(self) -> list[Record]:
        """The indexes of the service: name, index, default, keywords, ready."""
        return self._run(calls.indexes())

    def alias(self, name: str, index: str | None) -> None:
        """Let a name stand for an index of the folder that is served; None removes the name."""
        return self._run(calls.alias(name, index))

    def compact(self) -> None:
        """Rewrite the index of the service without what was deleted."""
        return self._run(calls.compact())

    def _run(self, plan: Plan[T]) -> T:
        try:
            step = next(plan)
            while True:
                step = plan.send([self._send(call) for call in step])
        except StopIteration as done:
            result: T = done.value
            return result

    def _send(self, call: Call[T]) -> T:
        exchange = self._exchange(call)
        while True:
            with exchange.attempt() as request, self._http.stream(**request) as exchange.response:
                for part in exchange.response.iter_bytes():
                    exchange.take(part)
            if exchange.wait is None:
                return exchange.result()
            time.sleep(exchange.wait)


def awaited(
    method: Callable[Concatenate[Client, P], T],
) -> Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, T]]:
    """A method of Client as a coroutine of AsyncClient, whose `_run` has to be awaited."""

    @wraps(method)
    async def call(client: Any, /, *arguments: P.args, **named: P.kwargs) -> T:
        running: Any = method(client, *arguments, **named)
        result: T = await running
        return result

    return call


class AsyncClient(Connection):
    """A search service, for asyncio. Arguments, methods and results as those of `Client`, awaited.

    `get` has up to TOGETHER requests in flight at once.
    """

    _kind = "AsyncClient"
    _http: httpx.AsyncClient

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    search = awaited(Client.search)
    search_codes = awaited(Client.search_codes)
    get = awaited(Client.get)
    info = awaited(Client.info)
    add = awaited(Client.add)
    upsert = awaited(Client.upsert)
    update = awaited(Client.update)
    delete = awaited(Client.delete)
    count = awaited(Client.count)
    indexes = awaited(Client.indexes)
    alias = awaited(Client.alias)

    async def scan(
        self, queries: Any, min_score: float, *, rows: int = EXPORT_ROWS, **filters: Unpack[Filters]
    ) -> AsyncIterator[pa.RecordBatch]:
        """The hits of `Client.scan`, for `async for`."""
        request = filter_request("scan", None, filters, min_score=min_score)
        at: calls.At = None
        while True:
            page, at = await self._run(calls.scan(queries, request, rows, at))
            for batch in page:
                yield batch
            if at is None:
                return

    async def batches(
        self, rows: int = EXPORT_ROWS, *, where: Where = None, tenant: Tenant = None
    ) -> AsyncIterator[pa.RecordBatch]:
        """The batches of `Client.batches`, for `async for`."""
        after: int | None = -1
        while after is not None:
            batch, after = await self._run(calls.page(rows, where, tenant, after))
            yield batch

    async def rows(self, where: Where = None, *, tenant: Tenant = None) -> AsyncIterator[Record]:
        """The rows of `Client.rows`, for `async for`."""
        async for batch in self.batches(where=where, tenant=tenant):
            for row in batch.to_pylist():
                yield row

    compact = awaited(Client.compact)

    async def _run(self, plan: Plan[T]) -> T:
        limit = asyncio.Semaphore(TOGETHER)

        async def one(call: Call[Any]) -> Any:
            async with limit:
                return await self._send(call)

        try:
            step = next(plan)
            while True:
                step = plan.send(list(await asyncio.gather(*map(one, step))))
        except StopIteration as done:
            result: T = done.value
            return result

    async def _send(self, call: Call[T]) -> T:
        exchange = self._exchange(call)
        while True:
            with exchange.attempt() as request:
                async with self._http.stream(**request) as exchange.response:
                    async for part in exchange.response.aiter_bytes():
                        exchange.take(part)
            if exchange.wait is None:
                return exchange.result()
            await asyncio.sleep(exchange.wait)
