"""Work that is given up when the client leaves."""

from __future__ import annotations

import asyncio
from typing import TypeVar

from starlette.requests import ClientDisconnect, Request

Result = TypeVar("Result")


async def unless_client_leaves(request: Request, work: asyncio.Future[Result]) -> Result:
    """The result of `work`; it is cancelled, with ClientDisconnect, when the connection goes first."""
    watch = asyncio.ensure_future(_gone(request))
    watch.add_done_callback(lambda _: work.cancel())
    try:
        return await work
    except asyncio.CancelledError:
        if watch.done() and not watch.cancelled():
            raise ClientDisconnect from None
        raise
    finally:
        watch.cancel()


async def _gone(request: Request) -> None:
    """Returns when the client has left. The body must have been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
