"""The OpenAPI document: every route with its bodies, responses, limits and examples.

It is made from the models that validate requests (`wire.schema`) and describes this service, not services in
general: limits are those of its settings, and codes have the dimension of its index.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

import rbegir
from rbegir.codes.planes import MAX_PLANES
from rbegir.serve.settings import Settings, number_limits
from rbegir.wire import schema
from rbegir.wire.problems import KINDS
from rbegir.wire.problems import MEDIA_TYPE as PROBLEM
from rbegir.wire.search import ARROW, JSON

REF = "#/components/schemas/{model}"
NDJSON = "application/x-ndjson"
ALWAYS = (400, 500, 504)
GUARDED = (401,)
BODY = (408, 413, 415, 422)


class RouteBodies(NamedTuple):
    """What a route reads and responds with, and its problems besides those of ALWAYS."""

    request: type[BaseModel] | None
    response: type[BaseModel] | None  # None: it is no JSON of a model
    statuses: tuple[int, ...] = ()


BODIES = {
    "search": RouteBodies(schema.SearchBody, schema.SearchResponse, (*GUARDED, *BODY, 501, 503)),
    "upsert": RouteBodies(schema.UpsertBody, schema.UpsertResponse, (*GUARDED, 403, *BODY, 501, 503, 507)),
    "delete": RouteBodies(schema.DeleteBody, schema.DeleteResponse, (*GUARDED, 403, *BODY, 503, 507)),
    "export": RouteBodies(None, None, (*GUARDED, 501)),
    "get": RouteBodies(None, schema.StoredKeyword, (*GUARDED, 404)),
    "index": RouteBodies(None, schema.IndexResponse, GUARDED),
    "compact": RouteBodies(None, schema.CompactResponse, (*GUARDED, 403, 503, 507)),
    "healthz": RouteBodies(None, schema.StatusResponse),
    "readyz": RouteBodies(None, schema.StatusResponse, (503,)),
    "metrics": RouteBodies(None, None, GUARDED),
    "openapi": RouteBodies(None, None),
}
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
    "description": "Milliseconds after which the response is of no use; at most what the service allows.",
    "schema": {"type": "integer", "minimum": 1, "maximum": 999_999_999},
    "example": 1000,
}


def document(
    routes: list[tuple[str, str, str, str | None]], settings: Settings, info: dict[str, Any], encodes: str
) -> dict[str, Any]:
    """The document of a service whose index encodes texts, vectors or nothing.

    Routes are (method, path, name, description).
    """
    paths: dict[str, Any] = {}
    for method, path, name, description in routes:
        operation = {"summary": name.title(), "description": description, **_operation(name)}
        paths.setdefault(path.replace(":path}", "}"), {})[method.lower()] = operation
    bearer = {"type": "http", "scheme": "bearer", "description": "Needed where tokens are configured."}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "rbegir",
            "description": "Exhaustive, exact search over learned binary embeddings.",
            "version": rbegir.__version__,
        },
        "paths": paths,
        "components": {"schemas": _schemas(settings, info, encodes), "securitySchemes": {"bearer": bearer}},
    }


def _operation(name: str) -> dict[str, Any]:
    """What a handler reads and responds with."""
    request, _, statuses = BODIES[name]
    responses: dict[str, dict[str, Any]] = {"200": _success(name)}
    for status in sorted((*statuses, *ALWAYS)):
        titles = [kind.title for kind in KINDS.values() if kind.status == status]
        responses[str(status)] = {
            "description": "; ".join(titles),
            "content": {PROBLEM: {"schema": _ref(schema.ProblemDocument)}},
        }
        if status == 503:
            wait = {"description": "Seconds to wait.", "schema": {"type": "integer", "minimum": 1}}
            responses[str(status)]["headers"] = {"Retry-After": wait}
    parameters = [ID_PARAMETER, TIMEOUT_PARAMETER] if name == "get" else [TIMEOUT_PARAMETER]
    operation: dict[str, Any] = {"operationId": name, "parameters": parameters, "responses": responses}
    if request is not None:
        content = {JSON: {"schema": _ref(request)}}
        operation["requestBody"] = {"required": True, "content": content}
    if 401 in statuses:
        operation["security"] = [{"bearer": []}, {}]
    return operation


def _success(name: str) -> dict[str, Any]:
    if name == "metrics":
        content: dict[str, Any] = {"text/plain": {"schema": {"type": "string"}}}
    elif name == "openapi":
        content = {JSON: {"schema": {"type": "object"}}}
    elif name == "export":
        content = {NDJSON: {"schema": {"type": "string"}}, ARROW: {"schema": _binary()}}
    else:
        response = BODIES[name].response
        assert response is not None
        content = {JSON: {"schema": _ref(response)}}
    if name == "search":
        content[ARROW] = {"schema": _binary()}
    return {"description": "Done", "content": content}


def _binary() -> dict[str, str]:
    return {"type": "string", "format": "binary"}


def _ref(model: type[BaseModel]) -> dict[str, str]:
    return {"$ref": REF.format(model=model.model_config.get("title"))}


def _schemas(settings: Settings, info: dict[str, Any], encodes: str) -> dict[str, Any]:
    """The schemas of all bodies, under their titles."""
    every = (model for bodies in BODIES.values() for model in (bodies.request, bodies.response))
    models: dict[type[BaseModel], None] = dict.fromkeys(model for model in every if model is not None)
    models[schema.ProblemDocument] = None
    _, definitions = models_json_schema([(model, "validation") for model in models], ref_template=REF)
    text = json.dumps(definitions["$defs"])
    titles = {name: found["title"] for name, found in definitions["$defs"].items()}
    for name, title in titles.items():
        text = text.replace(json.dumps(REF.format(model=name)), json.dumps(REF.format(model=title)))
    schemas = {titles[name]: found for name, found in json.loads(text).items()}
    _narrow(schemas, settings, info, encodes)
    return schemas


def _narrow(schemas: dict[str, Any], settings: Settings, info: dict[str, Any], encodes: str) -> None:
    """Write the limits of this service and the shape of its index into the schemas."""
    text = {"maxLength": settings.max_text_chars, "format": "text-with-a-word"}
    search = schemas["SearchRequest"]["properties"]
    for name, limit in number_limits(settings).items():
        search[name].get("anyOf", [search[name]])[0]["maximum"] = limit
    search["queries"]["maxItems"] = settings.max_queries
    search["queries"]["items"].update(text)
    search["codes"]["maxItems"] = search["vectors"]["maxItems"] = settings.max_queries
    planes, integers = search["codes"]["items"]["oneOf"]
    planes.update(minItems=1, maxItems=MAX_PLANES)
    planes["items"].update(minLength=info["n"] // 4, maxLength=info["n"] // 4)
    integers.update(minItems=info["n"], maxItems=info["n"])
    where = search["where"]["anyOf"][0]
    where.update(maxLength=settings.max_where_chars, format="rbegir-filter")
    for name in ("allow", "deny"):
        search[name]["anyOf"][0]["maxItems"] = settings.max_keywords
    search["planes"]["anyOf"][0]["maximum"] = info["keyword_planes"]
    if encodes != "vectors":
        del search["vectors"]
    names = [name for name in ("queries", "codes", "vectors") if name in search]
    schemas["SearchRequest"]["oneOf"] = [{"required": [name]} for name in names]
    schemas["SearchRequest"]["not"] = {
        "anyOf": [
            {"properties": {"mode": {"const": "paper"}, name: value}, "required": ["mode", name]}
            for name, value in (("planes", {"type": "integer"}), ("partial", {"const": True}))
        ]
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
