"""Reading the body of a request: bounded in size and time, then validated from bytes.

The limit holds while bytes arrive, whatever Content-Length says or leaves out, and the time limit covers the
whole body, so a client that sends a byte a second does not keep a handler for long.
"""

from __future__ import annotations

import asyncio
from typing import TypeVar

from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect, Request

from rbegir.serve.middleware import header
from rbegir.serve.problems import Problem
from rbegir.serve.settings import Settings

Model = TypeVar("Model", bound=BaseModel)
DOCUMENT = "the OpenAPI document at /openapi.json describes the body"


async def read_body(request: Request, settings: Settings) -> bytes:
    """The whole body, or a Problem."""
    media = (header(request, b"content-type") or "").partition(";")[0].strip().lower()
    if media != "application/json":
        raise Problem(
            "unsupported-media-type",
            f"the content type is {media[:100] or 'missing'}",
            hint="send JSON with the header: Content-Type: application/json",
        )
    limit = settings.max_body_bytes
    length = header(request, b"content-length") or ""
    if length.isdecimal() and (len(length) > 18 or int(length) > limit):
        raise _too_large(limit)
    chunks: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(settings.body_timeout_s):
            while True:
                message = await request.receive()
                if message["type"] == "http.disconnect":
                    raise ClientDisconnect
                chunks.append(message.get("body", b""))
                size += len(chunks[-1])
                if size > limit:
                    raise _too_large(limit)
                if not message.get("more_body"):
                    return b"".join(chunks)
    except TimeoutError:
        raise Problem(
            "body-timeout",
            f"the body was not complete after {settings.body_timeout_s:g} s",
            hint="send it faster, or in smaller requests",
            headers={"Connection": "close"},
        ) from None


def _too_large(limit: int) -> Problem:
    return Problem(
        "too-large",
        f"the body has more than {limit} bytes",
        hint="split it into several requests",
        headers={"Connection": "close"},
    )


def parse(model: type[Model], body: bytes) -> Model:
    """The body as a model, or a Problem that names the field."""
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        raise _explained(error) from None


def _explained(error: ValidationError) -> Problem:
    found = error.errors(include_url=False, include_context=False)
    first = found[0]
    if first["type"] == "json_invalid":
        return Problem("malformed", first["msg"], hint="the body must be one JSON object in UTF-8")
    errors = [{"field": ".".join(str(part) for part in e["loc"]), "message": e["msg"]} for e in found[:20]]
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    field = errors[0]["field"] or "body"
    return Problem("invalid", f"{field}: {first['msg']}{more}", hint=DOCUMENT, errors=errors)
