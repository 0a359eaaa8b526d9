"""The interface that a served index offers, an `rbegir.Index` or `rbegir.Cluster`; explanations of hits.

All calls block and may come from several threads at once; changes come from one thread, and `compact` from
another.

`explain` shows the bits of a hit and how its rank changes plane by plane. `planes` are the bits of a code as
hexadecimal strings (see `wire.search`). `ranks[t−1]` is the rank of the keyword, among all that pass the
filter, if keywords are scored by their first t planes only. The last one is its rank by the whole code, which
is its place in the result unless hits are reranked or one per item. Ranks beyond the best DEPTH are null.
"""

from collections.abc import Sequence
from typing import Any, Protocol, Unpack

import numpy as np
import numpy.typing as npt

from rbegir.codes.planes import Codes
from rbegir.encode.encoder import Encoder
from rbegir.search.hits import Hits
from rbegir.search.request import Filters, SearchOptions, SearchRequest, Tenant, Where
from rbegir.wire.search import hex_planes

DEPTH = 10_000


class ServedIndex(Protocol):
    """The methods of `rbegir.Index` that a service needs."""

    @property
    def model(self) -> Encoder: ...
    def __len__(self) -> int: ...
    def search(
        self,
        queries: str | Sequence[str] | npt.NDArray[Any],
        k: int | None = 10,
        **options: Unpack[SearchOptions],
    ) -> Hits: ...
    def search_codes(
        self, codes: Codes | npt.NDArray[Any], k: int | None = 10, **options: Unpack[SearchOptions]
    ) -> Hits: ...
    def upsert(self, texts: Sequence[str], ids: Any, attributes: Any = None) -> npt.NDArray[Any]: ...
    def update(self, ids: Any, attributes: Any) -> int: ...
    def delete(self, ids: Any = None, *, where: Where = None, tenant: Tenant = None) -> int: ...
    def count(self, where: Where = None, *, tenant: Tenant = None) -> int: ...
    def get(self, ids: Any) -> list[dict[str, Any] | None]: ...
    def codes(self, ids: Any) -> Codes: ...
    def coarse_rows(
        self, queries: npt.NDArray[np.int16], k: int, *, planes: int, **filters: Unpack[Filters]
    ) -> npt.NDArray[np.int64]: ...
    def info(self) -> dict[str, Any]: ...
    def compact(self) -> None: ...
    def refresh(self) -> None: ...
    def close(self) -> None: ...


def explain(
    index: ServedIndex, hits: Hits, values: npt.NDArray[np.int16], request: SearchRequest
) -> list[dict[str, Any]]:
    """For each query of `values` [queries, n]: `query_planes`, and `planes` and `ranks` of its hits."""
    keyword_planes: int = index.info()["keyword_planes"]
    # whether the places of hits are their ranks in code order
    placed = not hits.reranked and request.after is None and request.item is None
    filters: Filters = {**request.filters(), "tenant": request.tenant}
    looked_up = range(1, keyword_planes + (not placed))
    coarse = [
        index.coarse_rows(values, DEPTH, planes=planes, **filters) for planes in looked_up
    ]  # each [queries, ≤ DEPTH]
    explained: list[dict[str, Any]] = []
    for number, shown in enumerate(query_planes(values)):
        ranks = [{row: rank for rank, row in enumerate(found[number].tolist(), 1)} for found in coarse]
        count = int(hits.counts[number])
        planes_of_hits = hex_planes(index.codes(hits.ids[number, :count]))
        found = [
            {"planes": planes, "ranks": [*(of.get(row) for of in ranks), *([place] if placed else [])]}
            for place, (planes, row) in enumerate(
                zip(planes_of_hits, hits.rows[number, :count].tolist(), strict=True), 1
            )
        ]
        explained.append({"query_planes": shown, "hits": found})
    return explained


def query_planes(values: npt.NDArray[np.int16]) -> list[list[str]]:
    """The planes that odd integers stand for; a query given as other integers is shown by its sign."""
    shown: list[list[str]] = []
    for row in values:
        odd = bool(np.all(row % 2 != 0))
        planes = max(1, int(np.abs(row).max()).bit_length()) if odd else 1
        codes = Codes.from_values(row[None], planes) if odd else Codes.from_signs((row > 0)[None, None])
        shown += hex_planes(codes)
    return shown
