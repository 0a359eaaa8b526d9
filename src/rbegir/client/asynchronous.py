"""`rbegir.AsyncClient`: the methods of `rbegir.Client`, awaited.

    async with rbegir.AsyncClient("http://127.0.0.1:8080") as client:
        hits = await client.search("shoes for running", k=10)

Many searches awaited together share scans in the service, which is how it is fastest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Unpack

import numpy.typing as npt

from rbegir.client import calls
from rbegir.client.calls import Call, Ids, Record, SearchOptions, T
from rbegir.client.retry import Attempts
from rbegir.client.transport import Bounded, check_settings, load_httpx, settings, wait_after
from rbegir.codes.planes import Codes
from rbegir.index.keywords import check_ids
from rbegir.search.hits import Hits

if TYPE_CHECKING:
    import httpx

TOGETHER = 16  # requests of one `get` in flight at once


class AsyncClient:
    """A search service, for asyncio. Arguments as for `Client`; belongs to one event loop."""

    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        timeout_s: float = 30.0,
        retries: int = 4,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        check_settings(url, token, timeout_s, retries)
        library = load_httpx()
        self._url, self._timeout_s, self._retries = url, timeout_s, retries
        self._http: httpx.AsyncClient = library.AsyncClient(
            transport=transport, **settings(url, token, timeout_s)
        )
        self._failure = library.RequestError

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"AsyncClient({self._url!r})"

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    # ---- ask ----

    async def search(
        self, queries: str | Sequence[str], k: int = 10, **options: Unpack[SearchOptions]
    ) -> Hits:
        """The best k keywords for a text or for each of a list of texts, as `Index.search` gives them.

        Options: where, allow, deny, mode, planes, as `Index.search_codes` explains them.
        """
        return await self._run(calls.search(queries, k, options))

    async def search_codes(
        self, codes: Codes | npt.NDArray[Any], k: int = 10, **options: Unpack[SearchOptions]
    ) -> Hits:
        """The best k keywords for each code, or for each integer vector (int8 or int16 [queries, n])."""
        return await self._run(calls.search_codes(codes, k, options))

    async def get(self, ids: Any) -> list[Record | None]:
        """The keywords with these ids, one request each; None where there is none. Dates come as texts."""
        limit = asyncio.Semaphore(TOGETHER)

        async def one(given: int | str) -> Record | None:
            async with limit:
                return await self._run(calls.get(given))

        return list(await asyncio.gather(*(one(given) for given in check_ids(ids).to_pylist())))

    async def info(self) -> Record:
        """What the service serves: size, shape, columns, limits."""
        return await self._run(calls.info())

    # ---- change ----

    async def add(self, texts: Sequence[str], ids: Any = None, attributes: Any = None) -> Ids:
        """Add keywords; returns their ids (random ones if none are given). An id that is there is refused."""
        if ids is None:
            ids = calls.fresh_ids(len(texts), (await self.info())["id_type"])
        call, given = calls.put(texts, ids, attributes, replace=False)
        if len(given):
            await self._run(call)
        return given

    async def upsert(self, texts: Sequence[str], ids: Any, attributes: Any = None) -> Ids:
        """Add keywords, replacing those with the same ids. Durable and searchable when it returns."""
        call, given = calls.put(texts, ids, attributes, replace=True)
        if len(given):
            await self._run(call)
        return given

    async def delete(self, ids: Any) -> int:
        """Delete keywords by id; as `Client.delete`."""
        call = calls.delete(ids)
        return await self._run(call) if call.body["ids"] else 0

    async def compact(self) -> None:
        """Rewrite the index of the service without what was deleted."""
        await self._run(calls.compact())

    # ---- inside ----

    async def _run(self, call: Call[T]) -> T:
        attempts = Attempts(call.repeatable, self._retries)
        content, headers = call.content(), call.headers()
        while True:
            bounded = Bounded(self._timeout_s)
            try:
                async with self._http.stream(
                    call.method, call.path, content=content, headers=headers
                ) as answer:
                    async for part in answer.aiter_bytes():
                        bounded.take(part)
            except self._failure as error:
                wait = wait_after(error, call, attempts, self._timeout_s)
            else:
                again = attempts.after_answer(answer.status_code, answer.headers.get("retry-after"))
                if again is None:
                    media = answer.headers.get("content-type", "")
                    return call.answer(answer.status_code, media, bounded.body())
                wait = again
            await asyncio.sleep(wait)
