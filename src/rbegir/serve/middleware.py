"""The edge of the application: one plain ASGI layer around everything.

It checks the Host header, gives the request an id and its deadline, turns every exception into a problem
document, adds the security headers, and counts and logs what was answered.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rbegir.serve.problems import Problem, from_error
from rbegir.serve.service import Service

SECURITY = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}
PAGE = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Frame-Options": "DENY",
    "Cache-Control": "no-cache",
}
HTTP_KINDS = {404: "not-found", 405: "method-not-allowed"}


class Edge:
    """The layer."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app = app
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.perf_counter()
        headers = Headers(scope=scope)
        request_id = uuid.uuid4().hex[:16]
        status = 499  # the client left before there was an answer
        started = False

        async def answer(message: Message) -> None:
            nonlocal status, started
            if message["type"] == "http.response.start":
                status, started = message["status"], True
                out = MutableHeaders(scope=message)
                out["X-Request-Id"] = request_id
                for name, value in SECURITY.items():
                    out[name] = value
                if out.get("content-type", "").startswith("text/html"):
                    for name, value in PAGE.items():
                        out[name] = value
            await send(message)

        state: dict[str, Any] = scope.setdefault("state", {})
        state["request_id"] = request_id
        try:
            try:
                self._service.guard.check_host(headers.get("host", ""))
                limit = deadline_of(headers.get("x-timeout-ms"), self._service.settings.timeout_s)
                async with asyncio.timeout(limit) as clock:
                    await self._app(scope, receive, answer)
            except TimeoutError:
                if not clock.expired():
                    raise
                raise Problem(
                    "deadline",
                    f"the request was not answered within {limit * 1000:.0f} ms",
                    hint="ask for fewer hits, or allow more time with the header X-Timeout-Ms",
                ) from None
        except ClientDisconnect:
            pass
        except Exception as error:
            problem = from_error(error)
            if problem.kind in ("internal", "storage", "device", "locked"):
                self._service.log.error("request failed", error)
            if started:
                raise
            await problem.response()(scope, receive, answer)
        finally:
            self._tell(scope, state, status, time.perf_counter() - began)

    def _tell(self, scope: Scope, state: dict[str, Any], status: int, seconds: float) -> None:
        route = getattr(scope.get("route"), "path", None) or "other"
        self._service.metrics.request(route, status, seconds)
        if self._service.log.access:
            client = scope.get("client")
            self._service.log.event(
                "request",
                id=state["request_id"],
                client=client[0] if client else None,
                method=scope["method"],
                route=route,
                status=status,
                ms=round(seconds * 1000, 2),
                **state.get("log", {}),
            )


def deadline_of(header: str | None, most: float) -> float:
    """Seconds that a request may take: what its header asks for, at most what the service allows."""
    if header is None:
        return most
    if not (header.isascii() and header.isdecimal() and 1 <= len(header) <= 9 and int(header) > 0):
        raise Problem(
            "bad-header",
            "X-Timeout-Ms must be a positive whole number of milliseconds",
            hint="write for example: X-Timeout-Ms: 250",
        )
    return min(int(header) / 1000, most)


def http_problem(error: HTTPException) -> Problem:
    """What the router has to say, as a problem."""
    kind = HTTP_KINDS.get(error.status_code, "internal")
    hint = "the OpenAPI document at /openapi.json lists what there is"
    return Problem(kind, str(error.detail), hint=hint, headers=error.headers)
