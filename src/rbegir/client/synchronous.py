"""`rbegir.Client`: a search service with the methods of an index.

    with rbegir.Client("http://127.0.0.1:8080") as client:
        client.upsert(["running shoes"], ids=[7], attributes={"price": [89.9]})
        client.search("shoes for running", k=10, where="price < 100").texts

What is tried again after a failure, and what is not, stands in `retry.py`. A client may be used by several
threads.
"""

from __future__ import annotations

import time
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


class Client:
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
        check_settings(url, token, timeout_s, retries)
        library = load_httpx()
        self._url, self._timeout_s, self._retries = url, timeout_s, retries
        self._http: httpx.Client = library.Client(transport=transport, **settings(url, token, timeout_s))
        self._failure = library.RequestError

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def __len__(self) -> int:
        return int(self.info()["keywords"])

    def __repr__(self) -> str:
        return f"Client({self._url!r})"

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    # ---- ask ----

    def search(self, queries: str | Sequence[str], k: int = 10, **options: Unpack[SearchOptions]) -> Hits:
        """The best k keywords for a text or for each of a list of texts, as `Index.search` gives them.

        Options: where, allow, deny, mode, planes, as `Index.search_codes` explains them.
        """
        return self._run(calls.search(queries, k, options))

    def search_codes(
        self, codes: Codes | npt.NDArray[Any], k: int = 10, **options: Unpack[SearchOptions]
    ) -> Hits:
        """The best k keywords for each code, or for each integer vector (int8 or int16 [queries, n])."""
        return self._run(calls.search_codes(codes, k, options))

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

        If the first answer was lost and the call was repeated, those it had deleted are not counted.
        """
        call = calls.delete(ids)
        return self._run(call) if call.body["ids"] else 0

    def compact(self) -> None:
        """Rewrite the index of the service without what was deleted."""
        self._run(calls.compact())

    # ---- inside ----

    def _run(self, call: Call[T]) -> T:
        attempts = Attempts(call.repeatable, self._retries)
        content, headers = call.content(), call.headers()
        while True:
            bounded = Bounded(self._timeout_s)
            try:
                with self._http.stream(call.method, call.path, content=content, headers=headers) as answer:
                    for part in answer.iter_bytes():
                        bounded.take(part)
            except self._failure as error:
                wait = wait_after(error, call, attempts, self._timeout_s)
            else:
                again = attempts.after_answer(answer.status_code, answer.headers.get("retry-after"))
                if again is None:
                    media = answer.headers.get("content-type", "")
                    return call.answer(answer.status_code, media, bounded.body())
                wait = again
            time.sleep(wait)
