"""A search of one snapshot: encode the queries, filter, scan, look up the hits.

The scan reads only codes and masks. Ids, texts and attributes are read by position and only for the hits, so
their cost does not depend on the size of the index.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np
import numpy.typing as npt

from rbegir.base.arguments import check_queries
from rbegir.base.checks import describe
from rbegir.base.devices import cpu_count
from rbegir.codes.planes import Codes
from rbegir.codes.score import QUERY_LIMIT, cosine, norm_squared
from rbegir.encode.encoder import Encoder, takes_vectors
from rbegir.encode.reranker import Reranker
from rbegir.errors import InputError, MismatchError
from rbegir.index.filter import Filter
from rbegir.index.manifest import Manifest
from rbegir.index.snapshot import Snapshot
from rbegir.search.backend import Candidates, Partition, check_planes, coarse, open_backend
from rbegir.search.hits import Hits
from rbegir.search.request import SearchRequest
from rbegir.search.rerank import find_candidates, rerank

_watcher: ContextVar[Callable[[str], None] | None] = ContextVar("watcher", default=None)


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
        self._threads = threads or cpu_count()

    def search(
        self,
        snapshot: Snapshot,
        queries: Codes | npt.NDArray[Any],
        request: SearchRequest,
        texts: list[str] | None = None,
        reranker: Reranker | None = None,
    ) -> Hits:
        """The hits of every query among the keywords of a snapshot; a reranker needs the queries' `texts`."""
        values = query_values(queries, snapshot.manifest)  # [Q, n] int16
        reranks = wants_rerank(request, texts, reranker)
        numbers, partitions = candidates(snapshot, request)
        certificate = recall = scores = None
        if not len(values) or not partitions:
            found = Candidates.none(len(values))
        elif reranks:
            assert texts is not None
            assert reranker is not None
            pool = find_candidates(
                self._backend,
                partitions,
                [snapshot.segments[number].segment.words(reranker.spelling) for number in numbers],
                values,
                texts,
                request.pool,
                threads=self._threads,
            )
            stored = snapshot.texts(snapshot.locate(numbers, pool.positions))
            found, scores = rerank(reranker, texts, values, pool, stored, request.k)
        elif request.mode == "paper":
            found, certificate = self._backend.search_paper(
                partitions, values, request.k, per_thread=request.per_thread, queue=request.queue
            )
        elif request.planes is not None:
            found, recall, _ = self._backend.search_progressive(
                partitions,
                values,
                request.k,
                planes=request.planes,
                candidates=request.candidates,
                measure=request.measure,
            )
        else:
            found = self._backend.search(partitions, values, request.k)
        stage_done("scan")
        places = snapshot.locate(numbers, found.positions.ravel())
        shape = found.positions.shape  # [Q, k]
        names = snapshot.manifest.columns if request.attributes else ()
        columns = {name: snapshot.column(name, places) for name in names}
        code_scores = cosine(found.keys, norm_squared(values))
        hits = Hits(
            ids=snapshot.ids(places).reshape(shape),
            scores=code_scores if scores is None else scores,
            code_scores=code_scores,
            reranked=scores is not None,
            texts=snapshot.column("text", places).reshape(shape) if request.texts else None,
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
        self, snapshot: Snapshot, queries: Codes | npt.NDArray[Any], request: SearchRequest, planes: int
    ) -> npt.NDArray[np.int64]:
        """The rows [queries, k] of the best keywords by their first planes alone; always on the CPU."""
        n, all_planes = snapshot.manifest.shape
        values = query_values(queries, snapshot.manifest)  # [Q, n] int16
        numbers, partitions = candidates(snapshot, request)
        if not len(values) or not partitions:
            return np.zeros((len(values), 0), np.int64)
        backend = open_backend("cpu", n, check_planes(planes, all_planes))
        found = backend.search(coarse(partitions, n, planes), values, request.k)
        places = snapshot.locate(numbers, found.positions.ravel())
        rows = snapshot.rows(places).reshape(found.positions.shape)
        snapshot.check_mapped()
        return rows


def wants_rerank(request: SearchRequest, texts: list[str] | None, reranker: Reranker | None) -> bool:
    """Whether to rerank; raise InputError if that is asked for and cannot be done."""
    if request.rerank and (texts is None or reranker is None):
        raise InputError(
            "rerank=True needs queries that are texts"
            if texts is None
            else "rerank=True needs a model with a reranker, which the model of this index lacks",
            hint="leave rerank out to order hits by their codes",
        )
    reranks = request.may_rerank and texts is not None and reranker is not None
    if reranks and request.candidates is not None and request.candidates < request.k:
        raise InputError(
            f"candidates must be at least k = {request.k}, got {request.candidates}",
            hint="the hits are the best of the candidates",
        )
    return reranks


def query_texts(queries: Any) -> list[str] | None:
    """Queries as a list of texts; None if they are vectors."""
    if isinstance(queries, str):
        return [queries]
    if isinstance(queries, (list, tuple)) and all(isinstance(query, str) for query in queries):
        return list(queries)
    return None


def candidates(snapshot: Snapshot, request: SearchRequest) -> tuple[list[int], list[Partition]]:
    """The numbers of the segments that may hold hits, and their partitions for a backend."""
    where = None if request.where is None else Filter(request.where, snapshot.types())
    return snapshot.candidates(where, request.allow, request.deny)


def _check_vectors(queries: Any) -> Any:
    """Raise InputError for texts where vectors are expected; the Binarizer checks everything else."""
    if isinstance(queries, (list, tuple)) and any(isinstance(query, str) for query in queries):
        raise InputError(
            "an index made with a Binarizer is searched with vectors, got a text",
            hint="encode the text with the encoder whose vectors it holds",
        )
    return queries


def encode_queries(model: Encoder, queries: Any) -> Codes:
    """The codes of a text, of a list of texts, or of the vectors [queries, dims] that a Binarizer takes."""
    asked: Any = [queries] if isinstance(queries, str) else queries
    return model.encode_queries(_check_vectors(asked) if takes_vectors(model) else check_queries(asked))


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
