"""One search: check the arguments, filter, scan, and look up the hits.

The scan reads only codes and masks. Ids, texts and attributes are read by position and only for the hits, so
their cost does not depend on the size of the index.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypedDict

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rbegir.base.checks import describe, whole_number
from rbegir.codes.planes import Codes
from rbegir.codes.score import QUERY_LIMIT, cosine, norm_squared
from rbegir.errors import InputError, MismatchError
from rbegir.index.filter import Filter
from rbegir.index.keywords import check_ids
from rbegir.index.manifest import Manifest
from rbegir.index.snapshot import Snapshot
from rbegir.search.backend import Candidates, Partition
from rbegir.search.hits import Hits
from rbegir.search.progressive import check_planes, coarse
from rbegir.search.registry import open_backend

MODES = ("exact", "paper")
_watcher: ContextVar[Callable[[str], None] | None] = ContextVar("watcher", default=None)


class Filters(TypedDict, total=False):
    """Which keywords may be found."""

    where: str | pc.Expression | None  # text such as "price < 10 and not sold", or an expression
    allow: Any  # only these ids
    deny: Any  # not these ids


class SearchOptions(Filters, total=False):
    """What `Index.search` and `Index.search_codes` take besides the queries and k."""

    mode: str  # "exact" (the default), or "paper": the published algorithm with its miss certificate
    per_thread: int  # of "paper": keywords that a thread sees …
    queue: int  # … and how many of them it may keep
    planes: int | None  # search with this many planes first, refine the best with the others
    candidates: int | None  # of `planes`: how many are refined
    measure: bool  # of `planes`: measure the recall instead of estimating it
    texts: bool  # False leaves the texts out of the hits, which is faster for large batches
    attributes: bool  # likewise


@dataclass(frozen=True)
class Query:
    """What is asked, apart from the codes."""

    k: int
    where: str | pc.Expression | None = None
    allow: pa.Array | None = None
    deny: pa.Array | None = None
    mode: str = "exact"
    planes: int | None = None
    candidates: int | None = None
    measure: bool = False
    per_thread: int = 256
    queue: int = 1
    texts: bool = True
    attributes: bool = True

    @classmethod
    def check(
        cls,
        k: Any,
        *,
        where: str | pc.Expression | None = None,
        allow: Any = None,
        deny: Any = None,
        mode: str = "exact",
        planes: int | None = None,
        candidates: int | None = None,
        measure: bool = False,
        per_thread: int = 256,
        queue: int = 1,
        texts: bool = True,
        attributes: bool = True,
    ) -> Query:
        """The same, or an error that names the argument."""
        numbers = {
            "k": k,
            "per_thread": per_thread,
            "queue": queue,
            "planes": planes,
            "candidates": candidates,
        }
        for name, value in numbers.items():
            if value is None and name in ("planes", "candidates"):
                continue
            whole_number(name, value)
        if mode not in MODES:
            raise InputError(f"mode must be one of {', '.join(MODES)}, got {mode!r}")
        if mode == "paper" and planes is not None:
            raise InputError("planes and mode='paper' cannot be combined", hint="leave one of them out")
        return cls(
            int(k),
            where,
            None if allow is None else check_ids(allow, "allow"),
            None if deny is None else check_ids(deny, "deny"),
            mode,
            planes,
            candidates,
            measure,
            per_thread,
            queue,
            texts,
            attributes,
        )


class Searcher:
    """Runs queries over any snapshot of one index on its devices."""

    def __init__(
        self,
        device: str | Sequence[str],
        n: int,
        planes: int,
        threads: int | None,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        self._backend = open_backend(device, n, planes, threads, progress)

    def search(self, snapshot: Snapshot, queries: Codes | npt.NDArray[Any], query: Query) -> Hits:
        """The hits of every query among the keywords of a snapshot."""
        values = query_values(queries, snapshot.manifest)  # [Q, n] int16
        numbers, partitions = candidates(snapshot, query)
        certificate = recall = None
        if not len(values) or not partitions:
            found = Candidates.none(len(values))
        elif query.mode == "paper":
            found, certificate = self._backend.search_paper(
                partitions, values, query.k, per_thread=query.per_thread, queue=query.queue
            )
        elif query.planes is not None:
            found, recall, _ = self._backend.search_progressive(
                partitions,
                values,
                query.k,
                planes=query.planes,
                candidates=query.candidates,
                measure=query.measure,
            )
        else:
            found = self._backend.search(partitions, values, query.k)
        stage_done("scan")
        places = snapshot.locate(numbers, found.positions.ravel())
        shape = found.positions.shape  # [Q, k]
        names = snapshot.manifest.columns if query.attributes else ()
        columns = {name: snapshot.column(name, places) for name in names}
        hits = Hits(
            ids=snapshot.ids(places).reshape(shape),
            scores=cosine(found.keys, norm_squared(values)),
            texts=snapshot.column("text", places).reshape(shape) if query.texts else None,
            keys=found.keys,
            rows=snapshot.rows(places).reshape(shape),
            attributes=attribute_rows(columns, shape),
            certificate=certificate,
            recall=recall,
        )
        snapshot.check_mapped()
        stage_done("fetch")
        return hits

    def coarse_rows(
        self, snapshot: Snapshot, queries: Codes | npt.NDArray[Any], query: Query, planes: int
    ) -> npt.NDArray[np.int64]:
        """The rows [queries, k] of the best keywords by their first planes alone; always on the CPU."""
        n, all_planes = snapshot.manifest.shape
        values = query_values(queries, snapshot.manifest)  # [Q, n] int16
        numbers, partitions = candidates(snapshot, query)
        if not len(values) or not partitions:
            return np.zeros((len(values), 0), np.int64)
        backend = open_backend("cpu", n, check_planes(planes, all_planes))
        found = backend.search(coarse(partitions, n, planes), values, query.k)
        places = snapshot.locate(numbers, found.positions.ravel())
        rows = snapshot.rows(places).reshape(found.positions.shape)
        snapshot.check_mapped()
        return rows


def candidates(snapshot: Snapshot, query: Query) -> tuple[list[int], list[Partition]]:
    """The numbers of the segments that may hold hits, and their partitions for a backend."""
    where = None if query.where is None else Filter(query.where, snapshot.types())
    return snapshot.candidates(where, query.allow, query.deny)


def query_values(queries: Any, manifest: Manifest) -> npt.NDArray[np.int16]:
    """Check queries and convert them, codes or integer vectors, to int16 [queries, n]."""
    if isinstance(queries, Codes):
        if queries.n != manifest.n:
            raise MismatchError(f"queries have n = {queries.n}, the index holds n = {manifest.n}")
        return queries.values()
    if not isinstance(queries, np.ndarray) or queries.dtype not in (np.int8, np.int16) or queries.ndim != 2:
        came = describe(queries)
        raise InputError(f"queries must be rbegir.Codes or an int8 or int16 array [queries, n], got {came}")
    if queries.shape[1] != manifest.n:
        raise MismatchError(f"queries have n = {queries.shape[1]}, the index holds n = {manifest.n}")
    values = np.ascontiguousarray(queries, np.int16)
    if values.size and (int(values.max()) > QUERY_LIMIT or int(values.min()) < -QUERY_LIMIT):
        raise InputError(f"integer queries must lie within ±{QUERY_LIMIT}")
    return values


def attribute_rows(
    columns: dict[str, npt.NDArray[Any]], shape: tuple[int, ...]
) -> list[list[dict[str, Any]]] | None:
    """Attributes as one dict per hit, grouped by query; None if the index has no attributes."""
    if not columns:
        return None
    names = list(columns)
    flat = [dict(zip(names, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    return (
        [flat[start : start + shape[1]] for start in range(0, len(flat), shape[1])]
        if flat
        else [[]] * shape[0]
    )


def stage_done(stage: str) -> None:
    """Tell whoever watches that a stage ended: "scan" (filter, score, select) or "fetch" (what is stored of
    the hits). Arguments and results of a search stay free of clocks."""
    watcher = _watcher.get()
    if watcher is not None:
        watcher(stage)


@contextmanager
def watching(watcher: Callable[[str], None]) -> Iterator[None]:
    """Call `watcher` at the end of each stage of the searches that this thread or task makes inside."""
    token = _watcher.set(watcher)
    try:
        yield
    finally:
        _watcher.reset(token)
