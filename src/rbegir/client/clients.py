"""`rbegir.Client` and `rbegir.AsyncClient`: a search service with the methods of an index.

    with rbegir.Client("http://127.0.0.1:8080") as client:
        client.upsert(["running shoes"], ids=[7], attributes={"price": [89.9]})
        client.search("shoes for running", k=10, where="price < 100").texts

    async with rbegir.AsyncClient("http://127.0.0.1:8080") as client:
        hits = await client.search("shoes for running", k=10)

What is sent is decided in `calls`, what is tried again after a failure in `transport`; only waiting and
blocking stand here. A Client may be used by several threads, an AsyncClient belongs to one event loop. Many
searches awaited together share scans in the service, which is how it is fastest.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Unpack

import numpy.typing as npt

from rbegir.base.arguments import check_ids
from rbegir.client import calls
from rbegir.client.calls import Call, Ids, Record, T
from rbegir.client.transport import BoundedBody, Connection, load_httpx
from rbegir.codes.planes import Codes
from rbegir.search.hits import Hits
from rbegir.search.request import SearchOptions, SearchRequest

if TYPE_CHECKING:
    import httpx

TOGETHER = 16  # requests of one `AsyncClient.get` in flight at once


class Client(Connection):
    """A search service. A context manager that closes its connections.

    `token` is sent as a bearer token, `timeout_s` limits each attempt of a call, `retries` is how often a
    call is tried again. `transport` is httpx's, for special networks: TLS settings, proxies, sockets.
    """

    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        timeout_s: float = 30.0,
        retries: int = 4,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        super().__init__(url, token, timeout_s, retries)
        self._http: httpx.Client = load_httpx().Client(transport=transport, **self._settings(token))

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def __len__(self) -> int:
        return int(self.info()["keywords"])

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    # ---- ask ----

    def search(
        self, queries: str | Sequence[str] | npt.NDArray[Any], k: int = 10, **options: Unpack[SearchOptions]
    ) -> Hits:
        """The best k keywords for each text, or vector, as `Index.search` gives them.

        `SearchRequest` lists the options; `where` must be a text, `deadline` replaces the client's timeout_s.
        """
        return self._run(calls.search(queries, SearchRequest(k, **options)))

    def search_codes(
        self, codes: Codes | npt.NDArray[Any], k: int = 10, **options: Unpack[SearchOptions]
    ) -> Hits:
        """The best k keywords for each code, or for each integer vector (int8 or int16 [queries, n])."""
        return self._run(calls.search_codes(codes, SearchRequest(k, **options)))

    def get(self, ids: Any) -> list[Record | None]:
        """The keywords with these ids, one request each; None where there is none. Dates come as texts."""
        return [self._run(calls.get(given)) for given in check_ids(ids).to_pylist()]

    def info(self) -> Record:
        """What the service serves: size, shape, columns, limits."""
        return self._run(calls.info())

    # ---- change ----

    def add(self, texts: Sequence[str], ids: Any = None, attributes: Any = None) -> Ids:
        """Add keywords; returns their ids (random ones if none are given). An id that is there is refused."""
        if ids is None:
            ids = calls.fresh_ids(len(texts), self.info()["id_type"])
        call, given = calls.put(texts, ids, attributes, replace=False)
        if len(given):
            self._run(call)
        return given

    def upsert(self, texts: Sequence[str], ids: Any, attributes: Any = None) -> Ids:
        """Add keywords, replacing those with the same ids. Durable and searchable when it returns."""
        call, given = calls.put(texts, ids, attributes, replace=True)
        if len(given):
            self._run(call)
        return given

    def delete(self, ids: Any) -> int:
        """Delete keywords by id; ids that are not there are ignored. Returns how many were deleted.

        If the first response was lost and the call was repeated, those it had deleted are not counted.
        """
        call = calls.delete(ids)
        return self._run(call) if call.body["ids"] else 0

    def compact(self) -> None:
        """Rewrite the index of the service without what was deleted."""
        self._run(calls.compact())

    # ---- inside ----

    def _run(self, call: Call[T]) -> T:
        exchange = self._exchange(call)
        while True:
            body = BoundedBody(exchange.timeout_s)
            wait: float | None
            try:
                with self._http.stream(**exchange.request) as response:
                    for part in response.iter_bytes():
                        body.take(part)
            except self._failure as error:
                wait = exchange.wait_after_failure(error)
            else:
                wait = exchange.wait_after_response(response)
                if wait is None:
                    return exchange.result(response, body)
            time.sleep(wait)


class AsyncClient(Connection):
    """A search service, for asyncio. Arguments, methods and results as those of `Client`, awaited."""

    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        timeout_s: float = 30.0,
        retries: int = 4,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        super().__init__(url, token, timeout_s, retries)
        self._http: httpx.AsyncClient = load_httpx().AsyncClient(transport=transport, **self._settings(token))

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def search(
        self, queries: str | Sequence[str] | npt.NDArray[Any], k: int = 10, **options: Unpack[SearchOptions]
    ) -> Hits:
        """As `Client.search`."""
        return await self._run(calls.search(queries, SearchRequest(k, **options)))

    async def search_codes(
        self, codes: Codes | npt.NDArray[Any], k: int = 10, **options: Unpack[SearchOptions]
    ) -> Hits:
        """As `Client.search_codes`."""
        return await self._run(calls.search_codes(codes, SearchRequest(k, **options)))

    async def get(self, ids: Any) -> list[Record | None]:
        """As `Client.get`, with up to TOGETHER requests in flight at once."""
        limit = asyncio.Semaphore(TOGETHER)

        async def one(given: int | str) -> Record | None:
            async with limit:
                return await self._run(calls.get(given))

        return list(await asyncio.gather(*(one(given) for given in check_ids(ids).to_pylist())))

    async def info(self) -> Record:
        """As `Client.info`."""
        return await self._run(calls.info())

    async def add(self, texts: Sequence[str], ids: Any = None, attributes: Any = None) -> Ids:
        """As `Client.add`."""
        if ids is None:
            ids = calls.fresh_ids(len(texts), (await self.info())["id_type"])
        call, given = calls.put(texts, ids, attributes, replace=False)
        if len(given):
            await self._run(call)
        return given

    async def upsert(self, texts: Sequence[str], ids: Any, attributes: Any = None) -> Ids:
        """As `Client.upsert`."""
        call, given = calls.put(texts, ids, attributes, replace=True)
        if len(given):
            await self._run(call)
        return given

    async def delete(self, ids: Any) -> int:
        """As `Client.delete`."""
        call = calls.delete(ids)
        return await self._run(call) if call.body["ids"] else 0

    async def compact(self) -> None:
        """As `Client.compact`."""
        await self._run(calls.compact())

    async def _run(self, call: Call[T]) -> T:
        exchange = self._exchange(call)
        while True:
            body = BoundedBody(exchange.timeout_s)
            wait: float | None
            try:
                async with self._http.stream(**exchange.request) as response:
                    async for part in response.aiter_bytes():
                        body.take(part)
            except self._failure as error:
                wait = exchange.wait_after_failure(error)
            else:
                wait = exchange.wait_after_response(response)
                if wait is None:
                    return exchange.result(response, body)
            await asyncio.sleep(wait)
