"""The options of a search besides its queries: their one definition, and the one place that checks them.

    SearchRequest      names, types, defaults and descriptions of the options
      ├─ arguments     of `search` and `search_codes` of Index, Generations, Cluster, Client and AsyncClient
      ├─ JSON          `wire.schema` makes the HTTP body and its OpenAPI schema from the fields
      ├─ batches       `share_key` says which requests a service or a shard may answer by one scan, for which
      │                `part` and `joined` take them apart and put them together
      └─ messages      the clients and shards of a cluster exchange it as it is

It stands in `search`, below the index, so that the index and everything above it use the same class. A new
option is one field here, its line in `SearchOptions` for type checkers, and the code that acts on it.
"""

import math
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Annotated, Any, Literal, TypeAlias, TypedDict, TypeVar, cast, get_args, get_type_hints

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rbegir.base.arguments import check_ids, one_tenant, words_pattern
from rbegir.errors import InputError, whole_number
from rbegir.search.hits import Cursor

CANDIDATES = 500  # by code, of a reranked search
VECTOR_CANDIDATES = 100  # by code, of one reranked by vectors
MODES = ("exact", "paper")
CONFLICTS = (  # two options, and why they cannot be combined
    *(
        (name, other, f": {name} refers to exact code scores")
        for name in ("min_score", "after", "item")
        for other in ("rerank=True", "mode='paper'", "planes")
    ),
    ("a filter per query", "mode='paper'", ""),
    ("a filter per query", "planes", ""),
    ("tenant", "mode='paper'", ": the published search reads every keyword"),
    ("planes", "mode='paper'", ""),
    ("rerank=True", "mode='paper'", ""),
    ("rerank=True", "planes", ""),
    ("partial=True", "mode='paper'", ": a certificate is of a whole search"),
)
F = TypeVar("F", bound=Callable[..., Any])
Where: TypeAlias = str | pc.Expression | None
Wheres: TypeAlias = Where | Sequence[Where]
Musts: TypeAlias = str | Sequence[str | None] | None
Tenant: TypeAlias = str | int | None
Mode: TypeAlias = Literal["exact", "paper"] | str  # one of MODES


class QueryFilters(TypedDict, total=False):
    """The options that say which keywords may be found, and may differ from query to query."""

    where: Wheres
    allow: Any
    deny: Any
    must: Musts


class Filters(QueryFilters, total=False):
    """The options that say which keywords may be found."""

    tenant: Tenant


class SearchOptions(Filters, total=False):
    """The fields of `SearchRequest` after k, for type checkers."""

    item: str | None
    min_score: float | None
    after: str | None
    mode: Mode
    per_thread: int
    queue: int
    planes: int | None
    rerank: bool | None
    candidates: int | None
    measure: bool
    why: bool
    texts: bool
    attributes: bool
    partial: bool
    deadline: float | None


@dataclass(frozen=True, eq=False)
class SearchRequest:
    """The options of a search. Making one checks it; an InputError names the argument that is wrong."""

    k: Annotated[int | None, "The most hits per query; null with `min_score`: all of them."] = 10
    where: Annotated[
        Wheres, "A filter, such as: price < 10 and lang = 'en' and not sold; a list: one per query."
    ] = None
    allow: Annotated[Any, "Only keywords with these ids; a list of lists: one per query."] = None
    deny: Annotated[Any, "No keywords with these ids; a list of lists: one per query."] = None
    must: Annotated[
        Musts, "Only keywords whose text has these words side by side; a list: one entry per query."
    ] = None
    tenant: Annotated[Tenant, "Only keywords of this tenant, where the index has tenants."] = None
    item: Annotated[
        str | None, "One hit per item: the best keyword for each value of this attribute; nulls stay apart."
    ] = None
    min_score: Annotated[float | None, "Only hits whose code score is at least this."] = None
    after: Annotated[str | None, "The cursor of a page of hits: continue behind its last hits."] = None
    mode: Annotated[Mode, "`paper` is the published algorithm, with its miss certificate."] = "exact"
    per_thread: Annotated[int, "With mode `paper`: keywords that each thread sees."] = 256
    queue: Annotated[int, "With mode `paper`: how many of them each thread may keep."] = 1
    planes: Annotated[int | None, "Search with this many planes first, refine the best with the others."] = (
        None
    )
    rerank: Annotated[
        bool | None,
        "Order the first candidates by their texts; by default where the model can and queries are texts. "
        "With a Binarizer, only if true: by the vectors that their codes stand for.",
    ] = None
    candidates: Annotated[
        int | None,
        "How many keywords get a second look: with `planes` by their codes, reranked by texts or vectors.",
    ] = None
    measure: Annotated[bool, "With `planes`: measure the recall instead of estimating it."] = False
    why: Annotated[bool, "Whether reranked hits say why they are there, in a few numbers."] = False
    texts: Annotated[bool, "Whether hits have their texts; leaving them out saves time."] = True
    attributes: Annotated[bool, "Whether hits have their attributes; leaving them out saves time."] = True
    partial: Annotated[bool, "If shards of a cluster fail: what the others found, not an error."] = False
    deadline: Annotated[float | None, "Seconds that a cluster or a service may take for this search."] = None

    def __post_init__(self) -> None:
        for name, (kind, default) in NUMBERS_AND_FLAGS.items():
            value = getattr(self, name)
            if value is default or (value is None and kind == int | None):
                continue
            if kind in (int, int | None):
                object.__setattr__(self, name, whole_number(name, value))
            elif not isinstance(value, bool):
                raise InputError(f"{name} must be True or False, got {value!r}")
        object.__setattr__(self, "where", _listed(self.where))
        object.__setattr__(self, "must", _check_must(_listed(self.must)))
        for name in ("allow", "deny"):
            object.__setattr__(self, name, _check_ids(name, getattr(self, name)))
        if self.mode not in MODES:
            raise InputError(f"mode must be one of {', '.join(MODES)}, got {self.mode!r}")
        if self.min_score is not None:
            object.__setattr__(self, "min_score", _finite("min_score", self.min_score))
        if self.after is not None:
            Cursor.read(self.after)
        if self.k is None and self.min_score is None:
            raise InputError(
                "k=None needs a min_score: it asks for all hits that reach one",
                hint="give min_score, or the number of hits k",
            )
        if self.item is not None and not isinstance(self.item, str):
            raise InputError(f"item must be the name of an attribute, got {self.item!r}")
        if self.tenant is not None:
            object.__setattr__(self, "tenant", one_tenant(self.tenant))
        if self.deadline is not None:
            object.__setattr__(self, "deadline", positive_seconds("deadline", self.deadline))
        self._check_combinations()

    def _check_combinations(self) -> None:
        """Refuse options that contradict each other."""
        names = ("min_score", "after", "item", "planes", "tenant")
        given = {name: getattr(self, name) is not None for name in names}
        given |= {"rerank=True": bool(self.rerank), "mode='paper'": self.mode == "paper"}
        given |= {"partial=True": self.partial, "a filter per query": self.filters_each}
        for first, second, reason in CONFLICTS:
            if given[first] and given[second]:
                alone = first == "a filter per query"
                raise InputError(
                    f"{first} and {second} cannot be combined{reason}",
                    hint="search the queries one by one" if alone else "leave one of them out",
                )

    @property
    def depth(self) -> int:
        """k of a request that is not for all hits above a score."""
        assert self.k is not None
        return self.k

    @property
    def may_rerank(self) -> bool:
        """Whether hits are to be reranked if queries are texts and the model has a reranker."""
        by_code = self.mode == "exact" and self.planes is None and self.min_score is None
        return self.rerank is not False and by_code and self.after is None and self.item is None

    @property
    def pool(self) -> int:
        """Candidates by code of a reranked search: the same for all requests that share a scan."""
        return self.candidates or max(CANDIDATES, 4 ** k_group(self.depth))

    @property
    def vector_pool(self) -> int:
        """Candidates by code where they are reranked by vectors, which needs fewer."""
        return self.candidates or max(VECTOR_CANDIDATES, 2 * 4 ** k_group(self.depth))

    def filters(self) -> QueryFilters:
        """The filters: which keywords of the tenant may be found."""
        return {"where": self.where, "allow": self.allow, "deny": self.deny, "must": self.must}

    @property
    def filtered(self) -> bool:
        """Whether there is any filter but the tenant."""
        return any(value is not None for value in self.filters().values())

    @property
    def filters_each(self) -> bool:
        """Whether queries have filters of their own."""
        return any(isinstance(value, list) for value in self.filters().values())

    def each_filter(self, queries: int) -> list[QueryFilters]:
        """The filter of each query."""
        columns = []
        for name, value in self.filters().items():
            if isinstance(value, list) and len(value) != queries:
                raise InputError(
                    f"{name} has {len(value)} entries for {queries} queries",
                    hint="give one entry per query, None for no filter",
                )
            columns.append(value if isinstance(value, list) else [value] * queries)
        each = (dict(zip(self.filters(), values, strict=True)) for values in zip(*columns, strict=True))
        return cast(list[QueryFilters], list(each))

    def part(self, start: int, count: int) -> "SearchRequest":
        """The request for some of its queries."""
        changed: dict[str, Any] = {
            name: value[start : start + count]
            for name, value in self.filters().items()
            if isinstance(value, list)
        }
        if self.after is not None:
            keys, rows = (array[start : start + count] for array in Cursor.read(self.after))
            changed["after"] = Cursor(keys, rows).text()
        return replace(self, **changed) if changed else self

    @staticmethod
    def joined(requests: Sequence["SearchRequest"], counts: Sequence[int]) -> "SearchRequest":
        """One request for the queries of several that may share a scan, with the largest k of them."""
        first, *others = requests
        k = max(request.depth for request in requests) if others else first.k
        if others and first.after is not None:  # then all of them continue a page
            pages = [Cursor.read(one.after, count) for one, count in zip(requests, counts, strict=True)]
            first = replace(first, after=Cursor.join(pages).text())
        if first.filters_each or any(one.filter_key() != first.filter_key() for one in others):
            parts = zip(requests, counts, strict=True)
            each = [filters for request, count in parts for filters in request.each_filter(count)]
            columns = {name: [filters.get(name) for filters in each] for name in first.filters()}
            given = {name: any(v is not None for v in values) for name, values in columns.items()}
            changed: dict[str, Any] = {name: columns[name] if given[name] else None for name in columns}
            return replace(first, k=k, **changed)
        return replace(first, k=k)

    def filter_key(self) -> Hashable:
        """Requests with equal keys have the same filter for all queries."""
        if self.filters_each or isinstance(self.where, pc.Expression):
            return object()
        ids = (None if given is None else tuple(given.to_pylist()) for given in (self.allow, self.deny))
        return (self.where, self.must, *ids)

    def scope(self, k: int | None) -> "SearchRequest":
        """The options that decide which k hits are found, without those of their presentation."""
        return SearchRequest(
            k, min_score=self.min_score, after=self.after, tenant=self.tenant, **self.filters()
        )

    def options(self) -> SearchOptions:
        """All options but k, as the methods of an index take them."""
        return cast(SearchOptions, {name: getattr(self, name) for name in OPTIONS if name != "k"})

    def share_key(self) -> Hashable:
        """Requests with equal keys can be answered by one scan with the largest k of them.

        They may differ in their filters, except with mode paper, whose certificate holds for one filter and
        one k. Further pages share with each other. Searches by planes, which report the recall of their
        batch, and for all hits never share.
        """
        if self.planes is not None or self.k is None:
            return object()
        key = (*_shared(self), self.after is None)
        return (*key, self.k, self.filter_key()) if self.mode == "paper" else key


def k_group(k: int) -> int:
    """Requests with k in the same power of four may share a scan: ten hits do not wait for ten thousand."""
    return (k - 1).bit_length() + 1 >> 1


OPTIONS: dict[str, tuple[Any, str]] = {  # name: (type, description)
    name: get_args(hint) for name, hint in get_type_hints(SearchRequest, include_extras=True).items()
}
NUMBERS_AND_FLAGS = {  # name: (type, default)
    name: (kind, getattr(SearchRequest, name))
    for name, (kind, _) in OPTIONS.items()
    if kind in (int, int | None, bool, bool | None)
}
_shared = attrgetter(
    *(name for name in OPTIONS if name not in ("k", "deadline", "where", "allow", "deny", "must", "after"))
)


def _listed(given: Any) -> Any:
    """A tuple or an array, with one entry per query, as a list; anything else as it is."""
    if isinstance(given, (pa.Array, pa.ChunkedArray)):
        return given.to_pylist()
    return (
        given.tolist()
        if isinstance(given, np.ndarray)
        else list(given)
        if isinstance(given, tuple)
        else given
    )


def _check_must(given: Any) -> Any:
    """A phrase for all queries, or a list with a phrase or None for each query."""
    for phrase in given if isinstance(given, list) else [given]:
        if phrase is not None and not (isinstance(phrase, str) and words_pattern(phrase)):
            raise InputError(
                f"must is a text with a word in it, got {phrase!r}", hint="write for example must='red shoes'"
            )
    return given


def _check_ids(name: str, given: Any) -> Any:
    """Ids for all queries as an array, or a list with an array or None for each query."""
    if given is None:
        return None
    nested = (list, tuple, np.ndarray, pa.Array, pa.ChunkedArray)
    each = isinstance(given, (list, tuple)) and any(isinstance(one, nested) for one in given)
    if not each and not (isinstance(given, (list, tuple)) and given and all(one is None for one in given)):
        return check_ids(given, name)
    for place, one in enumerate(given):
        if one is not None and not isinstance(one, nested):
            raise InputError(
                f"{name}[{place}] is {one!r}, but other entries are lists",
                hint=f"write {name}=[id, id, …] for all queries, or one list of ids or None per query",
            )
    return [None if one is None else check_ids(one, f"{name}[{place}]") for place, one in enumerate(given)]


def _finite(name: str, value: Any) -> float:
    """A number as a float, or an error that names the argument."""
    if isinstance(value, bool) or not isinstance(value, (int, float, np.number)) or not math.isfinite(value):
        raise InputError(f"{name} must be a finite number, got {value!r}")
    return float(value)


def positive_seconds(name: str, value: Any) -> float:
    """A time limit as a float, or an error that names the argument."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
        raise InputError(f"{name} must be a positive number of seconds, got {value!r}")
    return float(value)


def search_request(k: int | None, options: SearchOptions) -> SearchRequest:
    """The request of `search` or `search_codes` with these options."""
    _refuse_unknown("search", options, OPTIONS)
    return SearchRequest(k, **options)


def filter_request(method: str, k: int | None, filters: Filters, **own: Any) -> SearchRequest:
    """The request of a method that takes filters only, with what the method itself sets."""
    _refuse_unknown(method, filters, get_type_hints(Filters))
    return SearchRequest(k, **own, **filters)


def _refuse_unknown(method: str, given: Iterable[str], known: Collection[str]) -> None:
    for name in given:
        if name not in known:
            raise InputError(f"{method} has no option {name!r}", hint=f"its options are {', '.join(known)}")


def local_request(k: int | None, options: SearchOptions) -> SearchRequest:
    """The request of a search on this machine, which cannot be interrupted and so takes no deadline."""
    request = search_request(k, options)
    if request.deadline is not None:
        raise InputError(
            "an index on this machine cannot interrupt a search, so it takes no deadline",
            hint="leave deadline out, or search through rbegir.Client or rbegir.Cluster",
        )
    return request


def with_options(search: F) -> F:
    """Add the options to the docstring of a method that searches, for `help`."""
    listed = [f"            {name}: {text}" for name, (_, text) in OPTIONS.items() if name != "k"]
    search.__doc__ = "\n".join([f"{(search.__doc__ or '').rstrip()}\n\n        Options:", *listed, ""])
    return search
