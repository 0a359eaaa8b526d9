"""The OpenAPI document: every route with its bodies, responses, limits and examples.

It is made from the models that validate requests (`wire.schema`) and describes this service, not services in
general: limits are those of its settings, and codes have the dimension of its index.
"""

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

import rbegir
from rbegir.codes.planes import MAX_PLANES
from rbegir.serve.settings import Settings, number_limits
from rbegir.wire import schema
from rbegir.wire.problems import KINDS
from rbegir.wire.problems import MEDIA_TYPE as PROBLEM
from rbegir.wire.search import ARROW, JSON, named_path

REF = "#/components/schemas/{model}"
NDJSON = "application/x-ndjson"
ALWAYS = (400, 500, 504)
GUARDED = (401, 429)
BODY = (408, 413, 415, 422)
TEXT = {"type": "string"}
BINARY = {"type": "string", "format": "binary"}


class RouteBodies(NamedTuple):
    """What a route reads and responds with, and its problems besides those of ALWAYS."""

    request: type[BaseModel] | None
    response: type[BaseModel] | None  # None: it is no JSON of a model
    statuses: tuple[int, ...] = ()
    media: Mapping[str, dict[str, str]] = MappingProxyType({})  # other types of response, and their schemas


BODIES = {
    "search": RouteBodies(
        schema.SearchBody, schema.SearchResponse, (*GUARDED, *BODY, 501, 503), {ARROW: BINARY}
    ),
    "upsert": RouteBodies(schema.UpsertBody, schema.UpsertResponse, (*GUARDED, 403, *BODY, 501, 503, 507)),
    "update": RouteBodies(schema.UpdateBody, schema.UpdateResponse, (*GUARDED, 403, *BODY, 503, 507)),
    "delete": RouteBodies(schema.DeleteBody, schema.DeleteResponse, (*GUARDED, 403, *BODY, 503, 507)),
    "export": RouteBodies(None, None, (*GUARDED, 422, 501), {NDJSON: TEXT, ARROW: BINARY}),
    "count": RouteBodies(None, schema.CountResponse, (*GUARDED, 422, 501)),
    "get": RouteBodies(None, schema.StoredKeyword, (*GUARDED, 404)),
    "index": RouteBodies(None, schema.IndexResponse, GUARDED),
    "compact": RouteBodies(None, schema.CompactResponse, (*GUARDED, 403, 503, 507)),
    "indexes": RouteBodies(None, schema.IndexesResponse, GUARDED),
    "alias": RouteBodies(schema.AliasBody, schema.AliasResponse, (*GUARDED, 403, 404, *BODY, 501, 503, 507)),
    "unalias": RouteBodies(None, schema.AliasResponse, (*GUARDED, 403, 404, 422, 501, 507)),
    "healthz": RouteBodies(None, schema.StatusResponse),
    "readyz": RouteBodies(None, schema.StatusResponse, (503,)),
    "metrics": RouteBodies(None, None, GUARDED, {"text/plain": TEXT}),
    "openapi": RouteBodies(None, None, (), {JSON: {"type": "object"}}),
}
ID_PARAMETER = {
    "name": "id",
    "in": "path",
    "required": True,
    "description": "The id; an integer or a text, as the ids of the index are.",
    "schema": {"type": "string", "minLength": 1},
    "example": "7",
}
MAX_LIMIT = 2**53 - 1
LIMIT_PARAMETER = {
    "name": "limit",
    "in": "query",
    "required": False,
    "description": "At most this many keywords, in the order of their rows.",
    "schema": {"type": "integer", "minimum": 1, "maximum": MAX_LIMIT},
    "example": 100,
}
WHERE_PARAMETER = {
    "name": "where",
    "in": "query",
    "required": False,
    "description": "A filter, as in a search.",
    "schema": {"type": "string", "format": "rbegir-filter"},
    "example": "id > 10",
}
ALIAS_PARAMETER = {
    "name": "name",
    "in": "path",
    "required": True,
    "description": "The name, as it stands in the path of other requests.",
    "schema": {"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"},
    "example": "shop",
}
TENANT_PARAMETER = {
    "name": "tenant",
    "in": "query",
    "required": False,
    "description": "Only keywords of this tenant.",
}
PARAMETERS: dict[str, list[dict[str, Any]]] = {
    "alias": [ALIAS_PARAMETER],
    "unalias": [ALIAS_PARAMETER],
    "get": [ID_PARAMETER],
    "export": [LIMIT_PARAMETER, WHERE_PARAMETER],
    "count": [WHERE_PARAMETER],
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
    routes: list[tuple[str, str, str, str | None]],
    settings: Settings,
    info: dict[str, Any],
    encodes: str,
    indexes: list[str],
) -> dict[str, Any]:
    """The document of a service whose default index encodes texts, vectors or nothing.

    Routes are (method, path, name, description); `indexes` are the names that may stand in a path.
    """
    paths: dict[str, Any] = {}
    for method, path, name, description in routes:
        operation = {"summary": name.title(), "description": description, **_operation(name, info)}
        paths.setdefault(path.replace(":path}", "}"), {})[method.lower()] = operation
        if (named := named_path(path, "{index}")) is not None:
            operation = {**_operation(name, info, indexes), "operationId": f"{name}_named"}
            operation |= {"summary": f"{name.title()} by name", "description": description}
            paths.setdefault(named.replace(":path}", "}"), {})[method.lower()] = operation
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


def _operation(name: str, info: dict[str, Any], indexes: list[str] | None = None) -> dict[str, Any]:
    """What a handler reads and responds with; `indexes` are the names that may stand in its path."""
    request, response, statuses, media = BODIES[name]
    statuses = statuses if indexes is None else tuple({*statuses, 404})
    schemas = media if response is None else {JSON: _ref(response), **media}
    content = {kind: {"schema": found} for kind, found in schemas.items()}
    responses: dict[str, dict[str, Any]] = {"200": {"description": "Done", "content": content}}
    for status in sorted((*statuses, *ALWAYS)):
        titles = [kind.title for kind in KINDS.values() if kind.status == status]
        responses[str(status)] = {
            "description": "; ".join(titles),
            "content": {PROBLEM: {"schema": _ref(schema.ProblemDocument)}},
        }
        if status in (429, 503):
            wait = {"description": "Seconds to wait.", "schema": {"type": "integer", "minimum": 1}}
            responses[str(status)]["headers"] = {"Retry-After": wait}
    parameters = [*PARAMETERS.get(name, []), TIMEOUT_PARAMETER]
    if name in ("export", "count"):
        parameters += _tenant_parameters(info)
    if indexes is not None:
        parameters.append(
            {
                "name": "index",
                "in": "path",
                "required": True,
                "description": "A name that GET /v1/indexes lists. Shapes in this document, such as the "
                "number of dimensions, are those of the default index.",
                "schema": {"type": "string", "enum": indexes},
                "example": indexes[0],
            }
        )
    operation: dict[str, Any] = {"operationId": name, "parameters": parameters, "responses": responses}
    if request is not None:
        operation["requestBody"] = {"required": True, "content": {JSON: {"schema": _ref(request)}}}
    if 401 in statuses:
        operation["security"] = [{"bearer": []}, {}]
    return operation


def _tenant_parameters(info: dict[str, Any]) -> list[dict[str, Any]]:
    return [{**TENANT_PARAMETER, "schema": {"type": _tenant_type(info)}}] if "tenant" in info else []


def _tenant_type(info: dict[str, Any]) -> str:
    """The JSON type of a tenant."""
    return "string" if info["attributes"].get(info["tenant"], "string") == "string" else "integer"


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
    for name, form in (("where", "rbegir-filter"), ("must", "text-with-a-word")):
        for_all, each_own = search[name]["anyOf"][0]["oneOf"]
        for one in (for_all, each_own["items"]["anyOf"][0]):
            one.update(maxLength=settings.max_where_chars, format=form)
    id_lists = [
        ids
        for name in ("allow", "deny")
        for one, each in [search[name]["anyOf"][0]["oneOf"]]
        for ids in (one, each["items"]["anyOf"][0])
    ]
    for ids in id_lists:
        ids["maxItems"] = settings.max_keywords
    search["planes"]["anyOf"][0]["maximum"] = info["keyword_planes"]
    if encodes != "vectors":
        del search["vectors"]
    names = [name for name in ("queries", "codes", "vectors") if name in search]
    schemas["SearchRequest"]["oneOf"] = [{"required": [name]} for name in names]
    if "tenant" in info:
        kinds = search["tenant"]["anyOf"][0]["oneOf"]
        search["tenant"]["anyOf"][0] = next(one for one in kinds if one["type"] == _tenant_type(info))
    else:
        del search["tenant"]
    search["after"]["anyOf"][0].update(format="rbegir-cursor")
    paper, planes_first, reranked = {"const": "paper"}, {"type": "integer"}, {"const": True}
    least, page = ("min_score", {"type": "number"}), ("after", {"type": "string"})
    apart: list[tuple[tuple[str, Any], tuple[str, Any]]] = [
        (("mode", paper), ("planes", planes_first)),
        *(((name, {}), ("rerank", reranked)) for name in names if name != "queries"),
        (("mode", paper), ("partial", {"const": True})),
        (("mode", paper), ("tenant", {"type": ["string", "integer"]})),
        *(
            (bound, other)
            for bound in (least, page)
            for other in (("mode", paper), ("planes", planes_first), ("rerank", reranked))
        ),
    ]
    each = {"type": "array", "contains": {"type": ["array", "null"]}}
    apart += [
        (one, (name, value))
        for one in (("mode", paper), ("planes", planes_first))
        for name, value in (
            ("where", {"type": "array"}),
            ("must", {"type": "array"}),
            ("allow", each),
            ("deny", each),
        )
    ]
    schemas["SearchRequest"]["not"] = {
        "anyOf": [{"properties": dict(two), "required": list(dict(two))} for two in apart]
    }
    schemas["SearchRequest"]["if"] = {"properties": {"k": {"type": "null"}}, "required": ["k"]}
    schemas["SearchRequest"]["then"] = {"properties": dict([least]), "required": ["min_score"]}
    schemas["Keyword"]["properties"]["text"].update(text)
    if info["keywords"]:  # the kind of ids is decided
        number, string = schemas["Keyword"]["properties"]["id"]["oneOf"]
        kind = string if info["id_type"] == "string" else number
        schemas["Keyword"]["properties"]["id"] = kind
        schemas["KeywordUpdate"]["properties"]["id"] = kind
        schemas["DeleteRequest"]["properties"]["ids"]["items"] = kind
        for ids in id_lists:
            ids["items"] = kind
    for name, field in (
        ("UpsertRequest", "keywords"),
        ("UpdateRequest", "keywords"),
        ("DeleteRequest", "ids"),
    ):
        schemas[name]["properties"][field]["maxItems"] = settings.max_keywords
    schemas["DeleteRequest"]["oneOf"] = [{"required": [name]} for name in ("ids", "where")]
    deleted = schemas["DeleteRequest"]["properties"]["where"]
    deleted.update(maxLength=settings.max_where_chars, format="rbegir-filter")
