"""A search of one snapshot: encode the queries, filter, scan, look up the hits.

The scan reads only codes and masks. Ids, texts and attributes are read by position and only for the hits, so
their cost does not depend on the size of the index.
"""

import functools
import itertools
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rbegir.base.arguments import as_batch, check_queries, words_in
from rbegir.base.devices import cpu_count, names_of
from rbegir.base.masks import Mask, both, empty
from rbegir.codes.planes import Codes
from rbegir.codes.score import QUERY_LIMIT, KeyScores, cosines, least_keys
from rbegir.encode.encoder import Encoder, decoder, key_scores, takes_vectors
from rbegir.encode.reranker import Reranker
from rbegir.errors import InputError, MismatchError, describe
from rbegir.index.columns import check_item
from rbegir.index.filter import Filter, found_together
from rbegir.index.manifest import Manifest
from rbegir.index.snapshot import Snapshot
from rbegir.index.tenant import within
from rbegir.search.backend import Backend, Candidates, Partition, check_planes, coarse, on_cpu, open_backend
from rbegir.search.hits import Cursor, Hits, attribute_column
from rbegir.search.items import best_of_items, item_numbers
from rbegir.search.partition import Int64s, Limits, all_pairs
from rbegir.search.request import QueryFilters, SearchRequest, Where
from rbegir.search.rerank import VectorReranker, by_code_alone, find_candidates, rerank

SCANNED = 64  # queries whose hits are found together …
SCANNED_HITS = 1 << 20  # … unless they have more hits than this; a single query may have more


class Caller(NamedTuple):
    """What a search tells and asks the code that runs it, while it runs."""

    # called at the end of a stage: "scan" (filter, score, select) or "fetch" (read ids, texts, attributes)
    stage_done: Callable[[str], None] = lambda stage: None
    # called with the bytes [queries] of the texts and attributes of hits before these are read; may raise
    weigh: Callable[[npt.NDArray[np.int64]], None] | None = None
    # called before a block of keywords is filtered: whether anybody waits for a query, by number; a query for
    # which nobody waits gets no hits
    awaited: Callable[[int], bool] | None = None


NOBODY = Caller()
_caller = ContextVar("caller", default=NOBODY)


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
        self._of_gathered = open_backend("cpu", n, planes, threads)
        self.accelerated = not on_cpu(names_of(device)[0])
        self.threads = threads or cpu_count()

    def backend(self, snapshot: Snapshot) -> Backend:
        """The backend that scans the codes of a snapshot."""
        return self._of_gathered if snapshot.gathered else self._backend

    def search(
        self,
        snapshot: Snapshot,
        queries: Codes | npt.NDArray[Any],
        request: SearchRequest,
        texts: list[str] | None = None,
        reranker: Reranker | VectorReranker | None = None,
        scorer: Encoder | None = None,
    ) -> Hits:
        """The hits of every query among the keywords of a snapshot; a Reranker needs the queries' `texts`.

        `scorer` is the encoder that turns order keys into scores (`key_scores`).
        """
        values = query_values(queries, snapshot.manifest)  # [Q, n] int16
        reranks = wants_rerank(request, texts, reranker)
        if request.item is not None:
            check_item(request.item, snapshot.columns)
        code_scores = key_scores(scorer, values)
        snapshot, partitions, limits = asked(snapshot, request, len(values), code_scores)
        backend = self.backend(snapshot)
        certificate = recall = scores = why = None
        if not len(values) or not partitions:
            found = Candidates.none(len(values))
        elif isinstance(reranker, VectorReranker):
            pool = by_code_alone(backend.search(partitions, values, request.vector_pool, limits))
            codes = snapshot.codes(pool.positions)
            found, scores, why = reranker.rerank(pool, codes, request.depth)
        elif reranks:
            assert texts is not None
            assert reranker is not None
            pool = find_candidates(
                backend,
                partitions,
                [one.segment.words(reranker.spelling) for one in snapshot.segments],
                values,
                texts,
                request.pool,
                limits=limits,
                threads=self.threads,
            )
            stored = snapshot.array("text", pool.positions).fill_null("")
            found, scores, why = rerank(reranker, texts, values, pool, stored, request.depth, why=request.why)
        elif request.mode == "paper":
            found, certificate = backend.search_paper(
                partitions, values, request.depth, per_thread=request.per_thread, queue=request.queue
            )
        elif request.planes is not None:
            found, recall = backend.search_progressive(
                partitions,
                values,
                request.depth,
                planes=request.planes,
                candidates=request.candidates,
                measure=request.measure,
            )
        elif request.item is not None:
            found = _search_items(backend, snapshot, partitions, values, request, limits)
        else:
            found = backend.search(partitions, values, request.k, limits)
        caller = _caller.get()
        caller.stage_done("scan")
        positions = found.positions[found.positions >= 0]
        names = snapshot.columns if request.attributes else ()
        if caller.weigh is not None:
            sizes = snapshot.sizes([*names, *(["text"] if request.texts else [])], positions)
            of_queries = np.bincount(np.nonzero(found.positions >= 0)[0], sizes, len(values))
            caller.weigh(of_queries.astype(np.int64))
        hits = Hits.of(
            found,
            code_scores(found.keys),
            snapshot.rows(positions),
            snapshot.ids(positions),
            {name: snapshot.array(name, positions) for name in names},
            texts=snapshot.column("text", positions) if request.texts else None,
            scores=scores,
            why=why,
            certificate=certificate,
            recall=recall,
            after=request.after,
        )
        caller.stage_done("fetch")
        return hits

    def scan(
        self,
        snapshot: Snapshot,
        queries: Codes | npt.NDArray[Any],
        request: SearchRequest,
        rows: int,
        scorer: Encoder | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """All hits of every query as batches of query, score, id, text and attributes."""
        values = query_values(queries, snapshot.manifest)  # [Q, n] int16
        snapshot, partitions, limits = asked(snapshot, request, len(values), key_scores(scorer, values))
        limits = limits or Limits.none(len(values))  # without queries there are none
        backend = self.backend(snapshot)
        types = snapshot.types()
        own = {"query": pa.int64(), "score": pa.float64()}
        named = [(attribute_column(name, own), kind) for name, kind in types.items()]
        schema = pa.schema([*own.items(), *named])

        search, scores = partial(backend.search, partitions), partial(key_scores, scorer)

        def batches() -> Iterator[pa.RecordBatch]:
            for first in range(0, len(values), SCANNED):
                these = np.arange(first, min(first + SCANNED, len(values)))
                for pairs in all_pairs(search, values[these], scores, limits.of(these), SCANNED_HITS):
                    snapshot.check_mapped()  # also if there is no hit to read
                    for start in range(0, pairs.query.size, rows):
                        part = slice(start, start + rows)
                        own = [pa.array(these[pairs.query[part]]), pa.array(pairs.scores[part])]
                        columns = [snapshot.array(name, pairs.positions[part]) for name in types]
                        yield pa.record_batch([*own, *columns], schema=schema)

        return batches()

    def coarse_rows(
        self, snapshot: Snapshot, queries: Codes | npt.NDArray[Any], request: SearchRequest, planes: int
    ) -> npt.NDArray[np.int64]:
        """The rows [queries, k] of the best keywords by their first planes only, found on the CPU.

        −1 fills the lines of queries with fewer hits than others.
        """
        n, all_planes = snapshot.manifest.shape
        values = query_values(queries, snapshot.manifest)  # [Q, n] int16
        snapshot, partitions, limits = asked(snapshot, request, len(values), cosines(values))
        if not len(values) or not partitions:
            return np.zeros((len(values), 0), np.int64)
        backend = open_backend("cpu", n, check_planes(planes, all_planes))
        rows = backend.search(coarse(partitions, n, planes), values, request.k, limits).positions.copy()
        rows[rows >= 0] = snapshot.rows(rows[rows >= 0])
        return rows


def _search_items(
    backend: Backend,
    snapshot: Snapshot,
    partitions: list[Partition],
    values: npt.NDArray[np.int16],
    request: SearchRequest,
    limits: Limits | None,
) -> Candidates:
    """The best keyword of each of the best k items."""
    name, open_limits = request.item or "", None if limits is None else limits.from_start()

    def find(these: Int64s, width: int | None) -> Candidates:
        return backend.search(partitions, values[these], width, open_limits and open_limits.of(these))

    def look(these: Int64s, found: Candidates) -> tuple[Int64s, npt.NDArray[np.bool_]]:
        items = np.full(found.positions.shape, -1)
        real = found.positions >= 0
        items[real] = item_numbers(snapshot.array(name, found.positions[real]))
        return items, real if limits is None else limits.of(these).passes(*found)

    return best_of_items(find, look, len(values), request.k)


def wants_rerank(
    request: SearchRequest, texts: list[str] | None, reranker: Reranker | VectorReranker | None
) -> bool:
    """Whether to rerank; raise InputError if reranking is requested but impossible."""
    able = isinstance(reranker, VectorReranker) or (texts is not None and reranker is not None)
    if request.rerank and not able:
        raise InputError(
            "rerank=True needs queries that are texts, or vectors for a Binarizer"
            if texts is None
            else "rerank=True needs a model with a reranker, which the model of this index lacks",
            hint="leave rerank out to order hits by their codes",
        )
    reranks = request.may_rerank and able
    if reranks and request.candidates is not None and request.candidates < request.depth:
        raise InputError(
            f"candidates must be at least k = {request.k}, got {request.candidates}",
            hint="the hits are the best of the candidates",
        )
    return reranks


def query_texts(queries: Any) -> list[str] | None:
    """Queries as a list of texts; None if they are vectors."""
    if isinstance(queries, str):
        return [queries]
    if isinstance(queries, np.ndarray) and queries.ndim == 1 and queries.dtype.kind in "OUT":
        queries = queries.tolist()
    if isinstance(queries, (list, tuple)) and all(isinstance(query, str) for query in queries):
        return list(queries)
    return None


class Scope(NamedTuple):
    """The scope of a search: segments with candidates, their partitions, and the filter of each query."""

    snapshot: Snapshot  # of these segments
    partitions: list[Partition]
    filters: npt.NDArray[np.int64]  # [queries] the number of the filter in the partitions; −1: none


def scope(snapshot: Snapshot, request: SearchRequest, queries: int) -> Scope:
    """The scope of a request with this many queries. Equal filters are evaluated once."""
    numbers, different = np.full(queries, -1), different_filters(request, queries)
    bound = bind(snapshot, different)

    @functools.cache
    def lacking() -> list[int]:
        """The queries whose filters are not all known."""
        return [
            query
            for (_, having), each in zip(different, bound, strict=True)
            if any(one.known(part.segment) is None for one in each for part in snapshot.segments)
            for query in having
        ]

    known = []  # held until the filters have been evaluated, so that these masks are not made again
    for step in together(snapshot, bound):
        if step is None and not _waiting(lacking()):
            break
        known.append(step)
    masks: list[list[Mask | None]] = []
    for (filters, having), each in zip(different, bound, strict=True):
        numbers[having] = len(masks)
        masks.append(_passing(snapshot, filters, each, having))
    del known
    if len(masks) == 1 and np.all(numbers == 0):
        return Scope(*snapshot.candidates(masks[0]), np.full(queries, -1))
    if not masks:
        return Scope(*snapshot.candidates(), numbers)
    parts = [
        Partition(one.segment.packed(), one.entry.count, one.live, passing)
        for one, passing in zip(snapshot.segments, zip(*masks, strict=True), strict=True)
    ]
    return Scope(snapshot, parts, numbers)


def different_filters(request: SearchRequest, queries: int) -> list[tuple[QueryFilters, list[int]]]:
    """The different filters of a request, and the queries that have each."""
    if not request.filters_each:
        return [(request.filters(), list(range(queries)))] if request.filtered else []
    known: dict[Any, tuple[QueryFilters, list[int]]] = {}
    for query, each in enumerate(request.each_filter(queries)):
        where, *ids = each["where"], each["allow"], each["deny"]
        key = (where if isinstance(where, str) else id(where), each["must"], *map(id, ids))
        if any(value is not None for value in each.values()):
            known.setdefault(key, (each, []))[1].append(query)
    return list(known.values())


def bind(snapshot: Snapshot, different: Sequence[tuple[QueryFilters, list[int]]]) -> list[list[Filter]]:
    """The tests of columns in each of the different filters of a request."""
    types = snapshot.types()

    def tests(filters: QueryFilters) -> list[Filter]:
        where, must = cast(tuple[Where, str | None], (filters["where"], filters["must"]))
        phrase = None if must is None else f"contains(text, '{' '.join(words_in(must))}')"
        return [Filter.of(one, types) for one in (where, phrase) if one is not None]

    return [tests(filters) for filters, _ in different]


def together(snapshot: Snapshot, bound: Sequence[list[Filter]]) -> Iterator[Mask | None]:
    """Evaluate alike filters in one pass, with the steps of `evaluation`, which then knows their masks."""
    filters = itertools.chain.from_iterable(bound)
    return found_together(filters, [one.segment for one in snapshot.segments])


def evaluation(
    snapshot: Snapshot, filters: QueryFilters, bound: Sequence[Filter]
) -> Generator[Mask | None, None, list[Mask | None]]:
    """What passes filters, with their bound tests, in each segment, None: everything. Each step ends before a
    block of keywords or, with the mask, when a filter is known of a segment. Masks that the caller holds need
    not be made again."""
    found = snapshot.named(filters["allow"], filters["deny"])
    for each in bound:
        for number, one in enumerate(snapshot.segments):
            before = found[number]
            if before is None or np.any(before):
                mask = yield from each.evaluation(one.segment)
                yield mask
                found[number] = both(before, mask)
    return found


def _passing(
    snapshot: Snapshot, filters: QueryFilters, bound: Sequence[Filter], having: Sequence[int]
) -> list[Mask | None]:
    """What passes the filters of some queries in each segment: nothing if no one waits for those queries."""
    steps = evaluation(snapshot, filters, bound)
    while True:
        try:
            step = next(steps)
        except StopIteration as end:
            passing: list[Mask | None] = end.value
            return passing
        if step is None and not _waiting(having):
            return [empty(one.entry.count) for one in snapshot.segments]


def _waiting(queries: Sequence[int]) -> bool:
    """Whether somebody waits for one of these queries."""
    awaited = _caller.get().awaited
    return awaited is None or any(map(awaited, queries))


def asked(
    snapshot: Snapshot, request: SearchRequest, queries: int, scores: KeyScores
) -> tuple[Snapshot, list[Partition], Limits | None]:
    """What a request searches: a snapshot of the segments with candidates, their partitions, and limits."""
    searched = scope(within(snapshot, request.tenant), request, queries)
    limits = limits_of(searched, request, floors_of(request, scores, queries))
    return searched.snapshot, searched.partitions, limits


def floors_of(request: SearchRequest, scores: KeyScores, queries: int) -> npt.NDArray[np.int64] | None:
    """The lowest order key [queries] of a hit, if the request has a minimum score."""
    return None if request.min_score is None else least_keys(request.min_score, scores, queries)


def limits_of(searched: Scope, request: SearchRequest, floors: npt.NDArray[np.int64] | None) -> Limits | None:
    """The limits of a request on the hits of each query, besides the candidates; None: no limits."""
    queries = len(searched.filters)
    limits = Limits.none(queries)._replace(filters=searched.filters)
    if floors is not None:
        limits = limits._replace(floors=floors)
    if request.after is not None:
        keys, rows = Cursor.read(request.after, queries)
        limits = limits._replace(keys=keys, positions=searched.snapshot.last_positions(rows))
    return limits if limits.bounds_keys or np.any(searched.filters >= 0) else None


def encoded(
    model: Encoder, queries: Any, request: SearchRequest
) -> tuple[Codes, list[str] | None, Reranker | VectorReranker | None]:
    """The codes of texts or vectors, the texts, and what may order the hits of this request again.

    Hits of a Binarizer are reranked only if that is asked for, and if there is no reranker for texts.
    """
    texts = query_texts(queries)
    reranker = getattr(model, "reranker", None) if request.may_rerank else None
    binarizer = decoder(model) if request.rerank and (reranker is None or texts is None) else None
    if binarizer is None:
        return encode_queries(model, queries), texts, reranker
    if binarizer.metric == "ip":
        raise InputError(
            "rerank=True changes nothing for metric='ip': hits are in the order of the decoded vectors",
            hint="leave rerank out",
        )
    given: Any = _checked(model, queries)
    vectors = given if takes_vectors(model) else cast(Any, model).vectors(given, "query")
    return binarizer.encode_queries(vectors), texts, VectorReranker(binarizer, vectors)


def encode_queries(model: Encoder, queries: Any) -> Codes:
    """The codes of texts, or of the vectors that a Binarizer takes; one query needs no list around it."""
    return model.encode_queries(_checked(model, queries))


def _checked(model: Encoder, queries: Any) -> Any:
    """Queries as a list of texts, or as the vectors that a Binarizer takes."""
    texts = query_texts(queries)
    given = queries if texts is None else texts
    if not takes_vectors(model):
        return check_queries(given)
    if isinstance(given, (list, tuple)) and any(isinstance(query, str) for query in given):
        raise InputError(
            "an index made with a Binarizer is searched with vectors, got a text",
            hint="encode the text with the encoder whose vectors it holds",
        )
    return as_batch(given)


def is_code(queries: Any) -> bool:
    """Whether queries are codes or integers, which need no encoder."""
    return isinstance(queries, Codes) or getattr(queries, "dtype", None) in (np.int8, np.int16)


def query_values(queries: Any, manifest: Manifest) -> npt.NDArray[np.int16]:
    """Check queries and convert them, codes or integer vectors, to int16 [queries, n]."""
    if isinstance(queries, Codes):
        if queries.n != manifest.n:
            raise MismatchError(f"queries have n = {queries.n}, the index holds n = {manifest.n}")
        return queries.values()
    if is_code(queries):
        queries = as_batch(queries)
    if not isinstance(queries, np.ndarray) or queries.dtype not in (np.int8, np.int16) or queries.ndim != 2:
        came = describe(queries)
        raise InputError(f"queries must be rbegir.Codes or an int8 or int16 array [queries, n], got {came}")
    if queries.shape[1] != manifest.n:
        raise MismatchError(f"queries have n = {queries.shape[1]}, the index holds n = {manifest.n}")
    values = np.ascontiguousarray(queries, np.int16)
    if values.size and (int(values.max()) > QUERY_LIMIT or int(values.min()) < -QUERY_LIMIT):
        raise InputError(f"integer queries must lie within ±{QUERY_LIMIT}")
    return values


@contextmanager
def calling(caller: Caller) -> Iterator[None]:
    """Let searches that this thread or task runs in the block call these functions."""
    token = _caller.set(caller)
    try:
        yield
    finally:
        _caller.reset(token)
