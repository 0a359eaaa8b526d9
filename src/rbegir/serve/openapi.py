"""The OpenAPI document: every route with its bodies, responses, limits and examples.

It is made from the models that validate requests (`wire.schema`) and describes this service, not services in
general: limits are those of its settings, and codes have the dimension of its index.
"""

import ast
import json
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, TypeVar

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

import rbegir
from rbegir.base.arguments import can_name
from rbegir.codes.planes import MAX_PLANES
from rbegir.search.request import CONFLICTS
from rbegir.serve.settings import Settings, number_limits
from rbegir.wire import schema
from rbegir.wire.problems import KINDS
from rbegir.wire.problems import MEDIA_TYPE as PROBLEM
from rbegir.wire.search import JSON, named_path

REF = "#/components/schemas/{model}"
NDJSON = "application/x-ndjson"
TEXT, INTEGER = {"type": "string"}, {"type": "integer"}
BINARY = {"type": "string", "format": "binary"}
MAX_LIMIT = 2**53 - 1
Facts = dict[str, Any]  # what an index says of itself
Access = Literal["all", "read", "write"]
Function = TypeVar("Function", bound=Callable[..., Any])


def parameter(name: str, place: str, description: str, example: Any = None, **schema: Any) -> dict[str, Any]:
    """A parameter of a route; `place` is path, query or header."""
    said = {"name": name, "in": place, "required": place == "path", "description": description}
    return {**said, "schema": schema, **({} if example is None else {"example": example})}


ID = parameter(
    "id",
    "path",
    "The id; an integer or a text, as the ids of the index are.",
    "7",
    type="string",
    minLength=1,
)
LIMIT = parameter(
    "limit",
    "query",
    "At most this many keywords, in the order of their rows.",
    100,
    type="integer",
    minimum=1,
    maximum=MAX_LIMIT,
)
AFTER = parameter(
    "after",
    "query",
    "A page: the next keywords behind this row, at most about 8 MiB, each with its `row`. Begin with -1 and "
    "continue with the last row until a page is empty.",
    -1,
    type="integer",
    minimum=-1,
    maximum=MAX_LIMIT,
)
WHERE = parameter(
    "where", "query", "A filter, as in a search.", "id > 10", type="string", format="rbegir-filter"
)
NAME = parameter(
    "name",
    "path",
    "The name, as it stands in the path of other requests.",
    "shop",
    type="string",
    pattern="^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$",
)
TIMEOUT = parameter(
    "X-Timeout-Ms",
    "header",
    "Milliseconds after which the response is of no use; at most what the service allows.",
    1000,
    type="integer",
    minimum=1,
    maximum=999_999_999,
)


class Operation(NamedTuple):
    """A route: who may call it, what it reads and responds with, and the problems that only it has."""

    name: str
    description: str | None
    access: Access
    method: str
    path: str
    request: type[BaseModel] | None
    response: type[BaseModel] | None  # None: not JSON of a model
    problems: tuple[int, ...]
    media: Mapping[str, dict[str, str]] = MappingProxyType({})  # other types of response, and their schemas
    parameters: Sequence[dict[str, Any]] = ()

    @property
    def statuses(self) -> set[int]:
        guarded = {"all": (), "read": (401, 429), "write": (401, 403, 429, 503, 507)}[self.access]
        return {400, 500, 504, *guarded, *((408, 413, 415, 422) if self.request else ()), *self.problems}


def operation(
    access: Access,
    route: str,
    request: type[BaseModel] | None,
    response: type[BaseModel] | None,
    *problems: int,
    **more: Any,
) -> Callable[[Function], Function]:
    """Make a handler the one of a route. Its docstring is the description in the document."""

    method, path = route.split()

    def decorate(handler: Any) -> Any:
        name, description = handler.__name__, handler.__doc__
        about = Operation(name, description, access, method, path, request, response, problems, **more)
        handler.operation = about
        return handler

    return decorate


def document(
    operations: Sequence[Operation], settings: Settings, info: Facts, encodes: str, indexes: list[str] | None
) -> dict[str, Any]:
    """The document of a service whose default index encodes texts, vectors or nothing; `indexes` are the
    names that may stand in a path. None: for someone who may not read, so without any names of indexes and
    attributes."""
    paths: dict[str, Any] = {}
    for one in operations:
        said = {"summary": one.name.title(), "description": one.description, **_operation(one, info)}
        paths.setdefault(one.path.replace(":path}", "}"), {})[one.method.lower()] = said
        if (named := named_path(one.path, "{index}")) is not None:
            said = {**said, **_operation(one, info, indexes or []), "operationId": f"{one.name}_named"}
            said["summary"] += " by name"
            paths.setdefault(named.replace(":path}", "}"), {})[one.method.lower()] = said
    bearer = {"type": "http", "scheme": "bearer", "description": "Needed where tokens are configured."}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "rbegir",
            "description": "Exhaustive, exact search over learned binary embeddings.",
            "version": rbegir.__version__,
        },
        "paths": paths,
        "components": {
            "schemas": _schemas(operations, settings, info, encodes, names=indexes is not None),
            "securitySchemes": {"bearer": bearer},
        },
    }


def _operation(one: Operation, info: Facts, indexes: list[str] | None = None) -> dict[str, Any]:
    """What a handler reads and responds with; `indexes` are the names that may stand in its path, [] if they
    are not told."""
    schemas = one.media if one.response is None else {JSON: _ref(one.response), **one.media}
    content = {kind: {"schema": found} for kind, found in schemas.items()}
    responses: dict[str, dict[str, Any]] = {"200": {"description": "Done", "content": content}}
    for status in sorted(one.statuses if indexes is None else one.statuses | {404}):
        titles = [kind.title for kind in KINDS.values() if kind.status == status]
        responses[str(status)] = {
            "description": "; ".join(titles),
            "content": {PROBLEM: {"schema": _ref(schema.ProblemDocument)}},
        }
        if status in (429, 503):
            wait = {"description": "Seconds to wait.", "schema": INTEGER | {"minimum": 1}}
            responses[str(status)]["headers"] = {"Retry-After": wait}
    parameters = [*one.parameters, TIMEOUT]
    if WHERE in one.parameters and "tenant" in info:
        tenant = parameter("tenant", "query", "Only keywords of this tenant.", type=_tenant_type(info))
        parameters.append(tenant)
    if indexes is not None:
        description = (
            "A name that GET /v1/indexes lists. Shapes in this document, such as the number of dimensions, "
            "are those of the default index."
        )
        names = {"enum": indexes} if indexes else {"pattern": NAME["schema"]["pattern"]}
        parameters.append(parameter("index", "path", description, *indexes[:1], type="string", **names))
    said: dict[str, Any] = {"operationId": one.name, "parameters": parameters, "responses": responses}
    if one.request is not None:
        said["requestBody"] = {"required": True, "content": {JSON: {"schema": _ref(one.request)}}}
    if one.access != "all":
        said["security"] = [{"bearer": []}, {}]
    return said


def _tenant_type(info: Facts) -> str:
    return "string" if info["attributes"].get(info["tenant"], "string") == "string" else "integer"


def _ref(model: type[BaseModel]) -> dict[str, str]:
    return {"$ref": REF.format(model=model.model_config.get("title"))}


def _schemas(
    operations: Sequence[Operation], settings: Settings, info: Facts, encodes: str, *, names: bool
) -> dict[str, Any]:
    """The schemas of all bodies, under their titles; with the names of attributes if `names`."""
    used: set[type[BaseModel]] = {schema.ProblemDocument}
    used |= {model for one in operations for model in (one.request, one.response) if model is not None}
    models = sorted(used, key=lambda model: model.__name__)
    _, definitions = models_json_schema([(model, "validation") for model in models], ref_template=REF)
    text = json.dumps(definitions["$defs"])
    titles = {name: found["title"] for name, found in definitions["$defs"].items()}
    for name, title in titles.items():
        text = text.replace(json.dumps(REF.format(model=name)), json.dumps(REF.format(model=title)))
    schemas = {titles[name]: found for name, found in json.loads(text).items()}
    _narrow(schemas, settings, info, encodes)
    item = schemas["SearchRequest"]["properties"].get("item")
    if item is not None and not names:
        del item["anyOf"][0]["enum"]
    return schemas


def _narrow(schemas: dict[str, Any], settings: Settings, info: Facts, encodes: str) -> None:
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
        for words in _for_all_and_each(search[name]):
            words.update(maxLength=settings.max_where_chars, format=form)
    id_lists = [ids for name in ("allow", "deny") for ids in _for_all_and_each(search[name])]
    for ids in id_lists:
        ids["maxItems"] = settings.max_keywords
    search["planes"]["anyOf"][0]["maximum"] = info["keyword_planes"]
    if encodes != "vectors":
        del search["vectors"]
    names = [name for name in ("queries", "codes", "vectors") if name in search]
    schemas["SearchRequest"]["oneOf"] = [{"required": [name]} for name in names]
    deleted = schemas["DeleteRequest"]["properties"]
    schemas["DeleteRequest"]["oneOf"] = [{"required": [name]} for name in ("ids", "where")]
    if "tenant" in info:
        kinds = search["tenant"]["anyOf"][0]["oneOf"]
        search["tenant"]["anyOf"][0] = next(one for one in kinds if one["type"] == _tenant_type(info))
        deleted["tenant"]["anyOf"][0] = search["tenant"]["anyOf"][0]
        neither = {"not": {"anyOf": [{"required": ["ids"]}, {"required": ["where"]}]}}
        schemas["DeleteRequest"]["oneOf"].append({"required": ["tenant"], **neither})
    else:
        del search["tenant"], deleted["tenant"]
    columns = [name for name, kind in info["attributes"].items() if can_name(kind)]
    if columns:
        search["item"]["anyOf"][0]["enum"] = columns
    else:
        del search["item"]
    search["after"]["anyOf"][0].update(format="rbegir-cursor")
    apart = [  # pairs of options that cannot be combined
        *(pair for one, other, _ in CONFLICTS for pair in product(_given(one), _given(other))),
        ({"codes": {}}, {"rerank": {"const": True}}),
    ]
    schemas["SearchRequest"]["not"] = {"anyOf": [_having(one | other) for one, other in apart]}
    schemas["SearchRequest"]["if"] = _having({"k": {"type": "null"}})
    schemas["SearchRequest"]["then"] = _having({"min_score": {"type": "number"}})
    schemas["Keyword"]["properties"]["text"].update(text)
    if info["keywords"]:  # the kind of ids is decided
        number, string = schemas["Keyword"]["properties"]["id"]["oneOf"]
        kind = string if info["id_type"] == "string" else number
        for name in ("Keyword", "KeywordUpdate"):
            schemas[name]["properties"]["id"] = kind
        for ids in (schemas["DeleteRequest"]["properties"]["ids"], *id_lists):
            ids["items"] = kind
    for name, field in (
        ("UpsertRequest", "keywords"),
        ("UpdateRequest", "keywords"),
        ("DeleteRequest", "ids"),
    ):
        schemas[name]["properties"][field]["maxItems"] = settings.max_keywords
    deleted["where"].update(maxLength=settings.max_where_chars, format="rbegir-filter")


def _for_all_and_each(option: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The schemas of an option that is given once for all queries, and once per query."""
    for_all, each = option["anyOf"][0]["oneOf"]
    return for_all, each["items"]["anyOf"][0]


def _given(option: str) -> list[dict[str, Any]]:
    """The ways in which a side of `CONFLICTS` may be given, as properties and their schemas."""
    if option == "a filter per query":
        lists = {"type": "array", "contains": {"type": ["array", "null"]}}
        return [{name: {"type": "array"}} for name in ("where", "must")] + [{"allow": lists}, {"deny": lists}]
    name, _, value = option.partition("=")
    return [{name: {"const": ast.literal_eval(value)} if value else {"type": ["number", "string"]}}]


def _having(properties: dict[str, Any]) -> dict[str, Any]:
    """The schema of an object that has these properties."""
    return {"properties": properties, "required": list(properties)}
