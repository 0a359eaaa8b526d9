"""The bodies of requests and responses. Unknown fields and wrong types are refused, nothing is converted.

Requests are validated by these models straight from bytes. Responses are built as plain objects and turned
into bytes once, without passing through the models again: the models describe them in the OpenAPI document,
and the tests hold every kind of response against them. The title of a model is its name in that document.

Wrong bodies must be cheap to refuse: a list ends the validation at its first wrong member and beyond
MAX_ITEMS, and a keyword with too many members is not looked into. The limits of a service are lower.
"""

from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    GetCoreSchemaHandler,
    StringConstraints,
    Tag,
    create_model,
)

from rbegir.base.arguments import MAX_COLUMNS
from rbegir.codes.planes import MAX_N
from rbegir.codes.score import QUERY_LIMIT
from rbegir.search.hits import Why
from rbegir.search.request import MODES, OPTIONS, Mode, Musts, SearchRequest, Tenant, Wheres
from rbegir.wire.search import NOT_SENT

MAX_ITEMS = 1 << 16  # of a list
MAX_CURSOR = 22 * MAX_ITEMS  # characters: 16 bytes per query in base64
MAX_MEMBERS = 16  # of a keyword; it has three
TAG = "\0"  # begins the names of alternatives, which are no members of a body


def _whole(value: Any) -> Any:
    """To JSON Schema 7.0 is an integer, so it is one here."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _few_members(keyword: Any) -> Any:
    """Refuse a keyword with so many members that reporting each as wrong would be costly."""
    if isinstance(keyword, dict):
        attributes = keyword.get("attributes")
        if len(keyword) > MAX_MEMBERS:
            raise ValueError(f"a keyword has id, text and attributes, got {len(keyword)} members")
        if isinstance(attributes, dict) and len(attributes) > MAX_COLUMNS:
            raise ValueError(f"at most {MAX_COLUMNS} attributes, got {len(attributes)}")
    return keyword


class _OneError:
    """Of a union: one error, and not one for each of its members."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> Any:
        schema: Any = handler(source)
        schema.get("schema", schema).update(
            custom_error_type="value",
            custom_error_message="Input should be a finite number, a text, a truth value, null, "
            "or a list of texts or of whole numbers",
        )
        return schema


Whole = Annotated[int, Field(ge=1), BeforeValidator(_whole)]
Id = Annotated[
    Annotated[int, Field(ge=-(2**63), le=2**63 - 1), BeforeValidator(_whole), Tag(TAG + "integer")]
    | Annotated[str, StringConstraints(max_length=1024), Tag(TAG + "string")],
    Discriminator(lambda given: TAG + ("string" if isinstance(given, str) else "integer")),
]
Ids = Annotated[list[Id], Field(fail_fast=True, max_length=MAX_ITEMS)]
Value = Annotated[bool | int | float | str | Ids | None, _OneError()]
Level = Annotated[int, Field(ge=-QUERY_LIMIT, le=QUERY_LIMIT), BeforeValidator(_whole)]
Hex = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]+$", max_length=4096)]
Code = Annotated[
    Annotated[list[Hex], Field(fail_fast=True, max_length=MAX_ITEMS), Tag(TAG + "planes")]
    | Annotated[list[Level], Field(fail_fast=True, max_length=MAX_N), Tag(TAG + "integers")],
    Discriminator(
        lambda code: (
            TAG + ("planes" if isinstance(code, list) and code and isinstance(code[0], str) else "integers")
        )
    ),
]
EXAMPLE_HIT: Any = {"id": 7, "score": 0.816, "text": "running shoes", "attributes": {"price": 89.9}}
EXAMPLE_KEYWORD: Any = {"id": 7, "text": "running shoes", "attributes": {"price": 89.9}}


def _examples(*bodies: Any) -> dict[str, Any]:
    return {"examples": list(bodies)}


def _some(description: str | None = None, **settings: Any) -> Any:
    """A list of at least one and at most MAX_ITEMS members, refused at the first wrong one."""
    limits: Any = {"fail_fast": True, "min_length": 1, "max_length": MAX_ITEMS}
    return Field(**limits, description=description, **settings)


class _Request(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class _Response(BaseModel):
    model_config = ConfigDict(extra="forbid")


class SearchQueries(
    _Request,
    title="SearchRequest",
    json_schema_extra=_examples(
        {"queries": ["shoes for running"], "k": 10},
        {"queries": ["flights", "hotels"], "k": 5, "where": "price < 100 and lang = 'en'"},
        {"queries": ["shoes"], "k": 3, "explain": True},
    ),
):
    """The queries of a search: `queries` (texts), `codes` (made elsewhere) or `vectors` (for a Binarizer)."""

    queries: list[str] = _some("Texts to search for, each with a letter or a digit.", default_factory=list)
    codes: list[Code] = _some(
        "Instead of texts, one entry per query: a list of planes, each the n bits in hexadecimal "
        "(dimension 0 is the highest bit of the first digit; a set bit means +1), or n integers within ±255.",
        default_factory=list,
    )
    vectors: list[Annotated[list[float], Field(fail_fast=True)]] = _some(
        "Instead of texts, where the index was made with a Binarizer: one vector per query.",
        default_factory=list,
    )
    explain: bool = Field(False, description="Also return codes, and ranks by fewer planes.")

    def request(self) -> SearchRequest:
        """The options, checked as an index checks them."""
        return SearchRequest(**{name: getattr(self, name) for name in self.model_fields_set & OPTIONS.keys()})


def _or_each(one: Any, is_one: Callable[[Any], bool]) -> Any:
    """One for all queries, or a list with one or null for each."""
    each = Annotated[list[one | None], Field(fail_fast=True, max_length=MAX_ITEMS), Tag(TAG + "each")]
    kind = Discriminator(lambda given: TAG + ("all" if is_one(given) else "each"))
    return Annotated[Annotated[one, Tag(TAG + "all")] | each, kind] | None


def _is_one_list(ids: Any) -> bool:
    """Whether ids are one list, and not one or null per query."""
    return not (isinstance(ids, list) and ids and (ids[0] is None or isinstance(ids[0], list)))


# How the type of an option looks as JSON.
JSON_TYPES: dict[Any, Any] = {
    int: Whole,
    int | None: Whole | None,
    bool: bool,
    bool | None: bool | None,
    Wheres: _or_each(str, lambda given: not isinstance(given, list)),
    Musts: _or_each(str, lambda given: not isinstance(given, list)),
    Tenant: Id | None,
    Mode: Literal[MODES],
    Any: _or_each(Ids, _is_one_list),
    float | None: float | None,
    str | None: Annotated[str, StringConstraints(max_length=MAX_CURSOR)] | None,
}
_options: dict[str, Any] = {
    name: (JSON_TYPES[kind], Field(getattr(SearchRequest, name), description=description))
    for name, (kind, description) in OPTIONS.items()
    if name not in NOT_SENT
}
SearchBody: type[SearchQueries] = create_model(
    "SearchBody", __base__=SearchQueries, __doc__=SearchQueries.__doc__, **_options
)


class HitBody(_Response, title="Hit", json_schema_extra=_examples(EXAMPLE_HIT)):
    id: int | str
    score: float = Field(description="What orders the hits: the reranker's score, else the code's.")
    code_score: float = Field(description="Cosine of the codes.")
    text: str | None
    attributes: dict[str, Any]
    why: Why | None = Field(
        None,
        description="With `why`, of a reranked hit: likeness in meaning, spelling and words, and the rank by "
        "code alone, null for a keyword that was found by its words.",
    )
    planes: list[str] | None = Field(
        None, description="With `explain`: the code, a hexadecimal string per plane."
    )
    ranks: list[int | None] | None = Field(
        None,
        description="With `explain`: the rank among all keywords that pass the filter when only the first "
        "1, 2, … keyword planes are scored; null beyond the depth that was looked at.",
    )


class ResultBody(_Response, title="Result"):
    query: str | None = Field(description="The text, null for a code or a vector.")
    hits: list[HitBody]
    query_planes: list[str] | None = Field(None, description="With `explain`: the code of the query.")
    recall: float | None = Field(None, description="With `planes`: the recall, estimated or measured.")
    expected_recall: float | None = Field(None, description="With mode `paper`: from its miss certificate.")
    p_miss_at_most: list[float] | None = Field(
        None, description="With mode `paper`: the probability of at most 0, 1, 2, … misses."
    )
    searched: float | None = Field(
        None, description="With `partial`: the share of the keywords that was searched, where it is not 1."
    )


class SearchResponse(
    _Response,
    title="SearchAnswer",
    json_schema_extra=_examples(
        {
            "results": [{"query": "shoes for running", "hits": [EXAMPLE_HIT]}],
            "cursor": "…",
            "took_ms": 1.2,
        }
    ),
):
    results: list[ResultBody]
    cursor: str | None = Field(
        None, description="`after` of the next page; null where hits are not in the order of their codes."
    )
    took_ms: float = Field(description="Time in the service, including the time in the queue.")


class KeywordBody(_Request, title="Keyword", json_schema_extra=_examples(EXAMPLE_KEYWORD)):
    id: Id
    text: str
    attributes: dict[str, Value] = Field(
        default_factory=dict,
        description="Values by name: scalars, or lists of strings or integers. A column gets its type from "
        "its first value; dates and timestamps are given in ISO 8601 where the column has such a type.",
    )


class UpsertBody(
    _Request, title="UpsertRequest", json_schema_extra=_examples({"keywords": [EXAMPLE_KEYWORD]})
):
    """Keywords to add, or to replace where the id is there."""

    keywords: list[Annotated[KeywordBody, BeforeValidator(_few_members)]] = _some()
    replace: bool = Field(True, description="false: refuse all of them if one of the ids is there already.")


class UpsertResponse(_Response, title="UpsertAnswer", json_schema_extra=_examples({"upserted": 1})):
    upserted: int = Field(description="Keywords that are now durable and searchable.")


class KeywordUpdate(
    _Request, title="KeywordUpdate", json_schema_extra=_examples({"id": 7, "attributes": {"price": 79.9}})
):
    id: Id
    attributes: dict[str, Value] = Field(
        min_length=1, description="New values by name; null clears one, and attributes not named stay."
    )


class UpdateBody(
    _Request,
    title="UpdateRequest",
    json_schema_extra=_examples({"keywords": [{"id": 7, "attributes": {"price": 79.9}}]}),
):
    """Attributes to change. Texts and codes stay, and every id must be there."""

    keywords: list[Annotated[KeywordUpdate, BeforeValidator(_few_members)]] = _some()


class UpdateResponse(_Response, title="UpdateAnswer", json_schema_extra=_examples({"updated": 1})):
    updated: int = Field(description="Keywords whose attributes were changed.")


class DeleteBody(
    _Request, title="DeleteRequest", json_schema_extra=_examples({"ids": [7]}, {"where": "price > 100"})
):
    """What to delete: keywords by `ids`, those that are not there being ignored, or all that pass `where`.
    With `tenant`, only keywords of that tenant, and without the others all of them."""

    ids: list[Id] = _some(default_factory=list)
    where: str = Field("", min_length=1, description="A filter, as in a search.")
    tenant: Id | None = Field(None, description="Only keywords of this tenant, where the index has tenants.")


class DeleteResponse(_Response, title="DeleteAnswer", json_schema_extra=_examples({"deleted": 1})):
    deleted: int = Field(description="Keywords that were there and are gone.")


class CountResponse(_Response, title="CountAnswer", json_schema_extra=_examples({"keywords": 1})):
    keywords: int = Field(description="Keywords that pass the filter.")


class StoredKeyword(_Response, title="StoredKeyword", json_schema_extra=_examples(EXAMPLE_KEYWORD)):
    id: int | str
    text: str | None
    attributes: dict[str, Any]


class IndexResponse(_Response, title="IndexAnswer", extra="allow"):
    """A description of the served index."""

    keywords: int
    bytes_per_keyword: int
    n: int
    keyword_planes: int
    query_planes: int
    segments: int
    deleted: int
    id_type: str
    attributes: dict[str, str] = Field(description="Columns and their types.")
    fingerprint: str = Field(description="Of the model; codes of one fingerprint can be compared.")
    devices: list[str]
    read_only: bool
    limits: dict[str, int] = Field(description="What a request may ask for.")


class NamedIndex(_Response, title="NamedIndex"):
    name: str = Field(description="As it stands in the path of a request.")
    index: str = Field(description="The index that the name stands for.")
    default: bool = Field(description="Whether routes without a name are those of this index.")
    keywords: int
    ready: bool


class IndexesResponse(_Response, title="IndexesAnswer"):
    indexes: list[NamedIndex]


class AliasBody(_Request, title="AliasRequest", json_schema_extra=_examples({"index": "shop-2"})):
    """The index that a name is to stand for."""

    index: str = Field(min_length=1, max_length=64, description="An index of the served folder.")


class AliasResponse(
    _Response, title="AliasAnswer", json_schema_extra=_examples({"name": "shop", "index": "shop-2"})
):
    name: str
    index: str | None = Field(description="Null where the name was removed.")


class CompactResponse(_Response, title="CompactAnswer"):
    keywords: int
    segments: int


class StatusResponse(_Response, title="StatusAnswer"):
    status: str


EXAMPLE_PROBLEM = {
    "type": "urn:rbegir:problem:invalid",
    "title": "The request is not valid",
    "status": 422,
    "detail": "k: Input should be greater than or equal to 1, got 0",
    "hint": "the OpenAPI document at /openapi.json describes the body",
}


class ProblemDocument(
    _Response, title="ProblemDocument", extra="allow", json_schema_extra=_examples(EXAMPLE_PROBLEM)
):
    """RFC 9457."""

    type: str
    title: str
    status: int
    detail: str
    hint: str
