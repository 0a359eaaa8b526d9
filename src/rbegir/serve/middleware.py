"""The edge of the application: one plain ASGI layer around everything.

It checks the Host header, gives the request an id and a deadline, turns every exception into a problem
document, adds the security headers, and counts and logs what was answered.

/v1/indexes/NAME/… are the routes of one index; without a name they are those of the default index. The name
is taken out of the path, so that there is one table of routes.

Requests are dispatched here. Starlette's router would find the same handlers, but its layers take as long as
the scan of a million keywords in a batch.
"""

from __future__ import annotations

import asyncio
import itertools
import re
import secrets
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable, Iterable
from typing import TYPE_CHECKING, Any

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rbegir.wire.problems import MEDIA_TYPE, Problem, from_error

if TYPE_CHECKING:
    from rbegir.serve.catalog import Catalog
    from rbegir.serve.openapi import Operation

Handler = Callable[[Request], Awaitable[Response]]

SECURITY = [
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
]
PAGE = [
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    (b"x-frame-options", b"DENY"),
    (b"cache-control", b"no-cache"),
]
INDEXED = re.compile(r"/v1/indexes/([^/:]+)(|:compact|/search|/keywords(?:[:/].*)?)", re.DOTALL)
IN_FULL = ("internal", "storage", "device", "locked")  # kinds whose cause is in the log only


class Edge:
    """The layer. A path that is not one of the routes is a file of `page`."""

    def __init__(
        self, app: ASGIApp, catalog: Catalog, routes: Iterable[tuple[Operation, Handler]], page: ASGIApp
    ) -> None:
        self._app = app
        self._catalog = catalog
        self._page = page
        self._handlers: dict[str, dict[str, Handler]] = {}  # path → method → handler
        for route, handler in routes:
            self._handlers.setdefault(route.path, {})[route.method] = handler
        self._under_way: Counter[Hashable] = Counter()  # requests by client
        self._prefix = secrets.token_hex(4)
        self._numbers = itertools.count(1)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.perf_counter()
        request_id = f"{self._prefix}-{next(self._numbers):x}"
        status = 499  # the client left before there was a response
        headers = [*SECURITY, (b"x-request-id", request_id.encode())]

        async def respond(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                given = message["headers"]
                html = any(v.startswith(b"text/html") for name, v in given if name == b"content-type")
                message["headers"] = [*given, *headers, *(PAGE if html else ())]
            await send(message)

        head = dict(scope["headers"])
        scope["state"] = state = {**scope.get("state", {}), "head": head, "log": {}, "route": "other"}
        try:
            response = await self._respond(scope, receive, respond)
            if response is not None:
                await response(scope, receive, respond)
        except ClientDisconnect:
            pass
        except Exception as error:
            problem = page_problem(error) if isinstance(error, HTTPException) else from_error(error)
            if problem.kind in IN_FULL:
                self._catalog.log.error("request failed", error, id=request_id)
            if status != 499:  # the response has begun and can only be broken off
                raise
            body, more = problem.document(), problem.headers
            answer = Response(body, problem.status, headers=more, media_type=MEDIA_TYPE)
            del problem  # its trace leads back to this frame: until a collection it would keep the body alive
            await answer(scope, receive, respond)
        finally:
            if "service" in state:
                state.pop("service").leave()  # the connection keeps the state until its next request
            if "client" in state:
                self._under_way[state["client"]] -= 1
                if not self._under_way[state["client"]]:
                    del self._under_way[state["client"]]
            if "large" in state:
                self._catalog.trim_soon()
            self._tell(scope, request_id, state["log"], status, time.perf_counter() - began)

    async def _respond(self, scope: Scope, receive: Receive, respond: Send) -> Response | None:
        """The response, or None if it has been sent already."""
        head = scope["state"]["head"]
        self._catalog.guard.check_host([value for name, value in scope["headers"] if name == b"host"])
        seconds = deadline_of(head.get(b"x-timeout-ms"), self._catalog.settings.timeout_s)
        if named := INDEXED.fullmatch(scope["path"]):
            scope["state"]["index"] = scope["state"]["log"]["index"] = named[1]
            scope["path"] = f"/v1{named[2]}" if named[2].startswith("/") else f"/v1/index{named[2]}"
        method, path = scope["method"], scope["path"]
        if path.startswith("/v1/"):
            self._admit(scope)
        route, scope["path_params"] = self._route(path)
        if route is not None:
            if method not in self._handlers[route]:
                raise method_not_allowed(self._handlers[route])
            scope["state"]["route"] = route
        try:
            async with asyncio.timeout(seconds) as clock:
                scope["state"]["clock"] = clock  # an export restarts it with every chunk
                if route is None:
                    await self._page(scope, receive, respond)
                    return None
                response = await self._handlers[route][method](Request(scope, receive))
                if not isinstance(response, StreamingResponse):
                    return response
                await response(scope, receive, respond)
                return None
        except TimeoutError:
            if not clock.expired():
                raise
            raise Problem(
                "deadline",
                f"the request was not answered within {seconds * 1000:.0f} ms",
                hint="ask for fewer hits, or allow more time with the header X-Timeout-Ms",
            ) from None

    def _route(self, path: str) -> tuple[str | None, dict[str, str]]:
        """The route of a path, if it has one, and the value of its parameter, the last part of the path."""
        if path in self._handlers:
            return path, {}
        for route in self._handlers:
            start, _, name = route.rstrip("}").partition("{")
            value = path.removeprefix(start)
            if name and value != path and (name.endswith(":path") or (value and "/" not in value)):
                return route, {name.removesuffix(":path"): value}
        return None, {}

    def _admit(self, scope: Scope) -> None:
        """Note whose request it is; refuse it if that client has too many under way."""
        state, address = scope["state"], (scope.get("client") or ("",))[0]
        authorization = state["head"].get(b"authorization", b"").decode("latin-1")
        client = self._catalog.guard.client(authorization, address)
        most = self._catalog.settings.max_client_requests
        if most and self._under_way[client] >= most:
            raise Problem(
                "too-many-requests",
                f"{most} requests of this client are under way; nothing was done",
                hint="wait for their responses, or try again after the time in Retry-After",
                headers={"Retry-After": "1"},
            )
        state["client"] = client
        self._under_way[client] += 1

    def _tell(
        self, scope: Scope, request_id: str, details: dict[str, Any], status: int, seconds: float
    ) -> None:
        route = scope["state"]["route"]
        self._catalog.metrics.request(route, status, seconds)
        if self._catalog.settings.access_log:
            client = scope.get("client")
            self._catalog.log.event(
                "request",
                id=request_id,
                client=client[0] if client else None,
                method=scope["method"],
                route=route,
                status=status,
                ms=round(seconds * 1000, 2),
                **details,
            )


def header(request: Request, name: bytes) -> str | None:
    """A header of a request that came through the edge, which has put them all in one dictionary."""
    value: bytes | None = request.scope["state"]["head"].get(name)
    return None if value is None else value.decode("latin-1")


def deadline_of(header: bytes | None, most: float) -> float:
    """Seconds that a request may take: what its header asks for, at most what the service allows."""
    if header is None:
        return most
    if not (header.isdigit() and len(header) <= 9 and int(header) > 0):
        raise Problem(
            "bad-header",
            "X-Timeout-Ms must be a positive whole number of milliseconds",
            hint="write for example: X-Timeout-Ms: 250",
        )
    return min(int(header) / 1000, most)


def method_not_allowed(methods: Iterable[str]) -> Problem:
    """405 with the methods that there are."""
    allowed = ", ".join(sorted(methods))
    return Problem(
        "method-not-allowed",
        "this method is not allowed here",
        hint=f"use {allowed}",
        headers={"Allow": allowed},
    )


def page_problem(error: HTTPException) -> Problem:
    """Why there is no file of the page at a path."""
    if error.status_code == 405:
        return method_not_allowed(["GET"])
    kind = "not-found" if error.status_code == 404 else "internal"
    hint = "the OpenAPI document at /openapi.json lists what there is"
    return Problem(kind, str(error.detail), hint=hint, headers=error.headers)
