"""The OpenAPI document: the routes that FastAPI knows, with bodies, answers, limits and examples.

Handlers take plain requests (see `app.py`), so what they read and answer is told here, from the same models
that validate it. The document is of this service, not of services in general: limits are those of its
settings, and codes have the dimension of its index.
"""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from rbegir.serve import schema
from rbegir.serve.arrow import MEDIA_TYPE as ARROW
from rbegir.serve.problems import MEDIA_TYPE as PROBLEM
from rbegir.serve.service import Service
from rbegir.wire.problems import KINDS

REF = "#/components/schemas/{model}"
JSON = "application/json"
NDJSON = "application/x-ndjson"
REQUESTS: dict[str, type[BaseModel]] = {
    "search": schema.SearchRequest,
    "upsert": schema.UpsertRequest,
    "delete": schema.DeleteRequest,
}
ANSWERS: dict[str, type[BaseModel]] = {
    "search": schema.SearchAnswer,
    "upsert": schema.UpsertAnswer,
    "delete": schema.DeleteAnswer,
    "get": schema.StoredKeyword,
    "index": schema.IndexAnswer,
    "compact": schema.CompactAnswer,
    "healthz": schema.StatusAnswer,
    "readyz": schema.StatusAnswer,
}
ALWAYS = (400, 500, 504)
GUARDED = (401,)
BODY = (408, 413, 415, 422)
STATUSES: dict[str, tuple[int, ...]] = {
    "search": (*GUARDED, *BODY, 501, 503),
    "upsert": (*GUARDED, 403, *BODY, 501, 503, 507),
    "delete": (*GUARDED, 403, *BODY, 503, 507),
    "export": (*GUARDED, 501),
    "get": (*GUARDED, 404),
    "index": GUARDED,
    "compact": (*GUARDED, 403, 503, 507),
    "readyz": (503,),
    "metrics": GUARDED,
}
PUBLIC = ("healthz", "readyz", "openapi")
ID_PARAMETER = {
    "name": "id",
    "in": "path",
    "required": True,
    "description": "The id; an integer or a text, as the ids of the index are.",
    "schema": {"type": "string", "minLength": 1},
    "example": "7",
}
TIMEOUT_PARAMETER = {
    "name": "X-Timeout-Ms",
    "in": "header",
    "required": False,
    "description": "Milliseconds after which the answer is of no use; at most what the service allows.",
    "schema": {"type": "integer", "minimum": 1, "maximum": 999_999_999},
    "example": 1000,
}


def describe(name: str) -> dict[str, Any]:
    """What `add_api_route` is told about the route of a handler."""
    responses: dict[int | str, dict[str, Any]] = {200: _success(name)}
    for status in (*STATUSES.get(name, ()), *ALWAYS):
        titles = [kind.title for kind in KINDS.values() if kind.status == status]
        responses[status] = {
            "description": "; ".join(titles),
            "content": {PROBLEM: {"schema": {"$ref": REF.format(model="ProblemDocument")}}},
        }
        if status == 503:
            wait = {"description": "Seconds to wait.", "schema": {"type": "integer", "minimum": 1}}
            responses[status]["headers"] = {"Retry-After": wait}
    extra: dict[str, Any] = {"parameters": [TIMEOUT_PARAMETER]}
    if name == "get":
        extra["parameters"] = [ID_PARAMETER, TIMEOUT_PARAMETER]
    if name in REQUESTS:
        ref = {"$ref": REF.format(model=REQUESTS[name].__name__)}
        extra["requestBody"] = {"required": True, "content": {JSON: {"schema": ref}}}
    if name not in PUBLIC:
        extra["security"] = [{"bearer": []}, {}]
    return {"responses": responses, "openapi_extra": extra, "operation_id": name}


def _success(name: str) -> dict[str, Any]:
    if name == "metrics":
        content: dict[str, Any] = {"text/plain": {"schema": {"type": "string"}}}
    elif name == "openapi":
        content = {JSON: {"schema": {"type": "object"}}}
    elif name == "export":
        content = {NDJSON: {"schema": {"type": "string"}}, ARROW: {"schema": _binary()}}
    else:
        content = {JSON: {"schema": {"$ref": REF.format(model=ANSWERS[name].__name__)}}}
    if name == "search":
        content[ARROW] = {"schema": _binary()}
    return {"description": "Done", "content": content}


def _binary() -> dict[str, str]:
    return {"type": "string", "format": "binary"}


def install(app: FastAPI, service: Service) -> None:
    """Give the application its document."""

    def document() -> dict[str, Any]:
        made = get_openapi(
            title=app.title, version=app.version, description=app.description, routes=app.routes
        )
        models: dict[type[BaseModel], None] = dict.fromkeys(
            [*REQUESTS.values(), *ANSWERS.values(), schema.ProblemDocument]
        )
        _, definitions = models_json_schema([(model, "validation") for model in models], ref_template=REF)
        schemas = definitions["$defs"]
        _narrow(schemas, service)
        bearer = {"type": "http", "scheme": "bearer", "description": "Needed where tokens are configured."}
        made["components"] = {"schemas": schemas, "securitySchemes": {"bearer": bearer}}
        for operations in made["paths"].values():
            for operation in operations.values():
                operation["responses"].pop("422", None) if _added(operation) else None
        return made

    app.openapi = document  # type: ignore[method-assign]


def _added(operation: dict[str, Any]) -> bool:
    """Whether 422 was put there by FastAPI for a parameter, not by us."""
    return JSON in operation["responses"].get("422", {}).get("content", {})


def _narrow(schemas: dict[str, Any], service: Service) -> None:
    """Write the limits of this service and the shape of its index into the schemas."""
    settings, info = service.settings, service.engine.info()
    text = {"maxLength": settings.max_text_chars, "format": "text-with-a-word"}
    search = schemas["SearchRequest"]["properties"]
    search["k"]["maximum"] = settings.max_k
    search["queries"]["maxItems"] = settings.max_queries
    search["queries"]["items"].update(text)
    search["codes"]["maxItems"] = settings.max_queries
    planes, integers = search["codes"]["items"]["oneOf"]
    planes.update(minItems=1, maxItems=schema.MAX_QUERY_PLANES)
    planes["items"].update(minLength=info["n"] // 4, maxLength=info["n"] // 4)
    integers.update(minItems=info["n"], maxItems=info["n"])
    where = search["where"]["anyOf"][0]
    where.update(maxLength=settings.max_where_chars, format="rbegir-filter")
    for name in ("allow", "deny"):
        search[name]["anyOf"][0]["maxItems"] = settings.max_keywords
    search["planes"]["anyOf"][0]["maximum"] = info["keyword_planes"]
    schemas["SearchRequest"]["oneOf"] = [{"required": ["queries"]}, {"required": ["codes"]}]
    schemas["SearchRequest"]["not"] = {
        "properties": {"mode": {"const": "paper"}, "planes": {"type": "integer"}},
        "required": ["mode", "planes"],
    }
    schemas["Keyword"]["properties"]["text"].update(text)
    if info["keywords"]:  # the kind of ids is decided
        number, string = schemas["Keyword"]["properties"]["id"]["oneOf"]
        kind = string if info["id_type"] == "string" else number
        schemas["Keyword"]["properties"]["id"] = kind
        schemas["DeleteRequest"]["properties"]["ids"]["items"] = kind
        for name in ("allow", "deny"):
            search[name]["anyOf"][0]["items"] = kind
    schemas["UpsertRequest"]["properties"]["keywords"]["maxItems"] = settings.max_keywords
    schemas["DeleteRequest"]["properties"]["ids"]["maxItems"] = settings.max_keywords
