"""What a search may be asked for besides its queries: the one definition, and the one place of its checks.

    SearchRequest      names, types, defaults and descriptions of the options
      ├─ arguments     of `search` and `search_codes` of Index, Generations, Cluster, Client and AsyncClient
      ├─ JSON          `wire.schema` makes the HTTP body and its OpenAPI schema from the fields
      ├─ batches       `share_key` says which requests a service or a shard may answer by one scan
      └─ messages      the clients and shards of a cluster exchange it as it is

It stands in `search`, below the index, so that the index and everything above it use the same class. A new
option is one field here, its line in `SearchOptions` for type checkers, and the code that acts on it.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from operator import attrgetter
from typing import Annotated, Any, Literal, TypeAlias, TypedDict, cast, get_args, get_type_hints

import pyarrow as pa
import pyarrow.compute as pc

from rbegir.base.arguments import check_ids
from rbegir.base.checks import whole_number
from rbegir.errors import InputError

CANDIDATES = 500  # by code, of a reranked search
MODES = ("exact", "paper")
Where: TypeAlias = str | pc.Expression | None
Mode: TypeAlias = Literal["exact", "paper"] | str  # one of MODES


class Filters(TypedDict, total=False):
    """The options that say which keywords may be found."""

    where: Where
    allow: Any
    deny: Any


class SearchOptions(Filters, total=False):
    """The fields of `SearchRequest` after k, for type checkers."""

    mode: Mode
    per_thread: int
    queue: int
    planes: int | None
    rerank: bool | None
    candidates: int | None
    measure: bool
    texts: bool
    attributes: bool
    partial: bool
    deadline: float | None


@dataclass(frozen=True, eq=False)
class SearchRequest:
    """The options of a search. Making one checks it; an InputError names the argument that is wrong."""

    k: Annotated[int, "Hits per query."] = 10
    where: Annotated[Where, "A filter, such as: price < 10 and lang = 'en' and not sold"] = None
    allow: Annotated[Any, "Only keywords with these ids."] = None
    deny: Annotated[Any, "No keywords with these ids."] = None
    mode: Annotated[Mode, "`paper` is the published algorithm, with its miss certificate."] = "exact"
    per_thread: Annotated[int, "With mode `paper`: keywords that each thread sees."] = 256
    queue: Annotated[int, "With mode `paper`: how many of them each thread may keep."] = 1
    planes: Annotated[int | None, "Search with this many planes first, refine the best with the others."] = (
        None
    )
    rerank: Annotated[
        bool | None,
        "Order the first candidates by their texts; by default where the model can and queries are texts.",
    ] = None
    candidates: Annotated[
        int | None,
        "How many keywords get a second look: with `planes` by their codes, reranked by their texts.",
    ] = None
    measure: Annotated[bool, "With `planes`: measure the recall instead of estimating it."] = False
    texts: Annotated[bool, "Whether hits have their texts; leaving them out saves time."] = True
    attributes: Annotated[bool, "Whether hits have their attributes; leaving them out saves time."] = True
    partial: Annotated[bool, "If shards of a cluster fail: what the others found, not an error."] = False
    deadline: Annotated[float | None, "Seconds that a cluster or a service may take for this search."] = None

    def __post_init__(self) -> None:
        for name, (kind, default) in NUMBERS_AND_FLAGS.items():
            value = getattr(self, name)
            if value is default:
                continue
            if kind in (int, int | None):
                object.__setattr__(self, name, whole_number(name, value))
            elif not isinstance(value, bool):
                raise InputError(f"{name} must be True or False, got {value!r}")
        for name in ("allow", "deny"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, check_ids(getattr(self, name), name))
        if self.mode not in MODES:
            raise InputError(f"mode must be one of {', '.join(MODES)}, got {self.mode!r}")
        if self.mode == "paper" and self.planes is not None:
            raise InputError("planes and mode='paper' cannot be combined", hint="leave one of them out")
        if self.rerank and (self.mode == "paper" or self.planes is not None):
            other = "mode='paper'" if self.mode == "paper" else "planes"
            raise InputError(f"rerank=True and {other} cannot be combined", hint="leave one of them out")
        if self.mode == "paper" and self.partial:
            raise InputError(
                "partial=True and mode='paper' cannot be combined: a certificate is of a whole search",
                hint="leave one of them out",
            )
        if self.deadline is not None:
            object.__setattr__(self, "deadline", positive_seconds("deadline", self.deadline))

    @property
    def may_rerank(self) -> bool:
        """Whether hits are to be reranked if queries are texts and the model has a reranker."""
        return self.rerank is not False and self.mode == "exact" and self.planes is None

    @property
    def pool(self) -> int:
        """Candidates by code of a reranked search: the same for all requests that share a scan."""
        return self.candidates or max(CANDIDATES, 4 ** k_group(self.k))

    def filters(self) -> Filters:
        """Which keywords may be found."""
        return {"where": self.where, "allow": self.allow, "deny": self.deny}

    def options(self) -> SearchOptions:
        """All options but k, as the methods of an index take them."""
        return cast(SearchOptions, {name: getattr(self, name) for name in OPTIONS if name != "k"})

    def share_key(self) -> Hashable:
        """Requests with equal keys can be answered by one scan with the largest k of them.

        A search by planes reports the recall of its whole batch, so it never shares.
        """
        if self.planes is not None or isinstance(self.where, pc.Expression):
            return object()
        key = _shared(self)
        if self.allow is not None or self.deny is not None:
            key = tuple(tuple(v.to_pylist()) if isinstance(v, pa.Array) else v for v in key)
        return (*key, self.k) if self.mode == "paper" else key  # a certificate holds for one k


def k_group(k: int) -> int:
    """Requests with k in the same power of four may share a scan: ten hits do not wait for ten thousand."""
    return (k - 1).bit_length() + 1 >> 1


def _described() -> dict[str, tuple[Any, str]]:
    hints = get_type_hints(SearchRequest, include_extras=True)
    return {name: get_args(hint) for name, hint in hints.items()}


OPTIONS: dict[str, tuple[Any, str]] = _described()  # name: (type, description)
NUMBERS_AND_FLAGS = {  # name: (type, default)
    name: (kind, getattr(SearchRequest, name))
    for name, (kind, _) in OPTIONS.items()
    if kind in (int, int | None, bool, bool | None)
}
_shared = attrgetter(*(name for name in OPTIONS if name not in ("k", "deadline")))


def positive_seconds(name: str, value: Any) -> float:
    """A time limit as a float, or an error that names the argument."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
        raise InputError(f"{name} must be a positive number of seconds, got {value!r}")
    return float(value)


def refuse_deadline(request: SearchRequest) -> None:
    """Refuse a deadline where a search cannot be interrupted: in an index on this machine."""
    if request.deadline is not None:
        raise InputError(
            "an index on this machine cannot interrupt a search, so it takes no deadline",
            hint="leave deadline out, or search through rbegir.Client or rbegir.Cluster",
        )
