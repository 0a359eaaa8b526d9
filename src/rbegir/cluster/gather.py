"""The answers of the shards merged into what one machine would find, in every mode.

exact    merges each shard's best k by (key descending, place ascending). Texts and attributes of the hits are
         fetched in a second step, or if the lists are short (ALONG) come with each shard's best k: a call
         costs a millisecond, a text that is not needed a microsecond.
item     asks for more hits until there are k items among those of all shards (`search.items`).
paper    needs an exact search of any length and the number of candidates per thread (`search.paper`). Threads
         own positions, which count through the segments that have candidates. So the shards first report
         those segments, then count the candidates of their threads.
rerank   takes the best by code and the best by lexical score of every shard. The candidates are those of one
         machine; the client fetches their texts, or with a Binarizer the codes of the best by code, and
         reranks them.
planes   takes each shard's best m by the first planes, with the keys of all planes. The best m of all by the
         first planes are the candidates of one machine, and the result is the best k of these by all planes.
"""

import time
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rbegir.base.arguments import type_named
from rbegir.cluster.fanout import Fanout, Question, State
from rbegir.cluster.shard import Columns, Found, Scan, pack
from rbegir.cluster.view import Places
from rbegir.codes.planes import Codes
from rbegir.codes.score import KeyScores, cosines
from rbegir.encode.reranker import Reranker
from rbegir.errors import ClusterError, InputError
from rbegir.search.backend import Candidates, check_candidates, check_planes, estimate_recall, on_cpu
from rbegir.search.hits import Cursor, Hits
from rbegir.search.items import best_of_items, item_numbers
from rbegir.search.paper import select_paper, whole_thread_sizes
from rbegir.search.partition import Int64s, best, merge, recall_of
from rbegir.search.request import SearchRequest, Tenant
from rbegir.search.rerank import (
    VectorReranker,
    WordHits,
    by_code_alone,
    lexical_count,
    merge_words,
    rerank,
    union,
)

SCANNING = 0.75  # of the time, where a part of the answer will do: its texts take some too
ALONG = 2048  # candidates of all shards, up to which their texts come along
Values = npt.NDArray[np.int16]
Gathered = tuple[Candidates, dict[str, Any]]
"""The best of all shards, whose positions are places, and what `Hits` is to say about them."""


class Gatherer:
    """Answers one question from one state."""

    def __init__(self, fanout: Fanout, state: State, until: float, *, partial: bool) -> None:
        self._fanout, self._state, self.view = fanout, state, state.view
        self._until, self._partial = until, partial
        now = time.monotonic()
        self._until_scanned = now + SCANNING * (until - now) if partial else until
        self._answered = set(self.view.used)  # by every step so far
        self._floors: npt.NDArray[np.int64] | None = None
        self._along: dict[int, Found] = {}  # what shards found, with what is stored of it

    def search(
        self,
        values: Values,
        request: SearchRequest,
        floors: npt.NDArray[np.int64] | None = None,
        *,
        device: str,
    ) -> Gathered:
        """The result of a query whose arguments one machine would accept; `floors`: least order keys [Q]."""
        self._floors = floors
        if request.mode == "paper":
            return self._paper(values, request)
        if request.planes is not None and on_cpu(device):
            return self._progressive(values, request)
        if request.item is not None:
            return self._items(values, request, request.item), {}
        along = request.k is not None and len(values) * request.k * len(self.view.used) <= ALONG
        found = self._exact(values, request.k, request, self._names(request) if along else None)
        if request.planes is None:
            return found, {}
        self._check_progressive(request)  # a GPU reads all planes at once: nothing to gain, nothing missed
        return found, {"recall": 1.0}

    def coarse_rows(self, values: Values, request: SearchRequest, planes: int) -> npt.NDArray[np.int64]:
        """Rows [Q, k] of the best by the first planes alone."""
        parts = self._scan(values, request.k, request, planes)
        found = merge([Candidates(part.keys, part.places) for part in parts], request.depth)
        bare = replace(request, texts=False, attributes=False)
        return self.hits(found, cosines(values), bare).rows

    def rerank(
        self, values: Values, texts: list[str], reranker: Reranker, weights: Any, request: SearchRequest
    ) -> Gathered:
        """The best k of the candidates by their texts; `weights` refers to those of the reranker's words."""
        pool = self._exact(values, request.pool, request)
        limit = lexical_count(request.pool)
        scope = request.scope(limit)
        answers = self._ask("read", "by_words", weights, texts, values, scope, last=False)
        parts = [WordHits(*found) for _, found in sorted(answers.items())]
        pooled = union(pool, merge_words(parts, limit))
        _, _, columns = self._stored(pooled.positions, ("text",))
        stored = pc.fill_null(pa.array(columns["text"], pa.string()), "")
        found, scores, why = rerank(reranker, texts, values, pooled, stored, request.depth, why=request.why)
        return found, {"scores": scores, "why": why}

    def rerank_decoded(self, values: Values, reranker: VectorReranker, request: SearchRequest) -> Gathered:
        """The best k of the candidates by the vectors that their codes stand for."""
        pool = by_code_alone(self._exact(values, request.vector_pool, request))
        flat, of_place = np.unique(pool.positions, return_inverse=True)
        wanted = self._owners(flat)
        n, planes = self.view.manifest.shape
        codes = np.zeros((planes, len(flat), n // 64), np.uint64)
        for shard, own in self._read(wanted, "codes_at", flat).items():
            codes[:, wanted[shard]] = own
        found, scores, _ = reranker.rerank(pool, Codes(codes[:, of_place], n), request.depth)
        return found, {"scores": scores}

    def _owners(self, places: Places) -> dict[int, npt.NDArray[np.int64]]:
        """The shards that own places, and the numbers of those that each owns."""
        parts = np.searchsorted(self.view.starts, places, "right") - 1
        owners = np.asarray(self.view.owners, np.int64)[parts]
        return {int(shard): np.flatnonzero(owners == shard) for shard in np.unique(owners)}

    def _read(
        self, wanted: dict[int, npt.NDArray[np.int64]], method: str, places: Places, *arguments: Any
    ) -> dict[int, Any]:
        """The values that each shard reads at its own places."""
        answers = self._ask_each(
            {
                shard: self._state.question(shard, "read", method, places[own], *arguments)
                for shard, own in wanted.items()
            }
        )
        if len(answers) < len(wanted):
            raise ClusterError("a shard that had hits was lost before they were fetched", hint="ask again")
        return answers

    def _stored(self, places: Places, names: tuple[str, ...]) -> Columns:
        """Rows, ids and columns of keywords, each from the shard that owns it."""
        manifest = self.view.manifest
        flat, of_place = np.unique(places.ravel(), return_inverse=True)  # a popular keyword is fetched once
        wanted = self._owners(flat)
        answers: dict[int, Columns] = {
            shard: pick(found, flat[wanted[shard]]) for shard, found in self._along.items() if shard in wanted
        }
        if len(answers) < len(wanted):
            answers = self._read(wanted, "columns", flat, names)
        rows = np.zeros(len(flat), np.int64)
        ids = np.zeros(len(flat), object if manifest.id_type == "string" else np.int64)
        columns = {name: np.full(len(flat), None, object) for name in names}
        for shard, (own_rows, own_ids, own_columns) in answers.items():
            rows[wanted[shard]], ids[wanted[shard]] = own_rows, own_ids
            for name in names:
                columns[name][wanted[shard]] = own_columns[name]
        return rows[of_place], ids[of_place], {name: column[of_place] for name, column in columns.items()}

    def hits(self, found: Candidates, code_scores: KeyScores, request: SearchRequest, **more: Any) -> Hits:
        """The stored values of the hits, their scores, and the share of the keywords that was searched."""
        answered = sum(self.view.keywords_of[shard] for shard in self._answered)
        searched = answered / self.view.keywords if self.view.keywords else 1.0
        rows, ids, columns = self._stored(found.positions[found.positions >= 0], self._names(request))
        texts = columns.pop("text") if request.texts else None
        types = self.view.manifest.columns
        return Hits.of(
            found,
            code_scores(found.keys),
            rows,
            ids,
            texts=texts,
            columns={name: pa.array(values, type_named(types[name])) for name, values in columns.items()},
            searched=searched,
            after=request.after,
            **more,
        )

    def records(self, ids: pa.Array) -> list[dict[str, Any] | None]:
        """Id, text and attributes of keywords; None where no shard has the id."""
        found: list[dict[str, Any] | None] = [None] * len(ids)
        for records in self._ask_ids("records", ids).values():
            found = [new or old for old, new in zip(found, records, strict=True)]
        return found

    def codes(self, ids: pa.Array) -> Codes:
        """The codes of keywords, all of which must be there."""
        n, planes = self.view.manifest.shape
        found = np.zeros(len(ids), np.bool_)
        made = np.zeros((planes, len(ids), n // 64), np.uint64)
        for here, own in self._ask_ids("codes", ids).values():
            found[here] = True
            made[:, here] = own
        if not found.all():
            raise InputError(f"id {ids[int(np.argmin(found))].as_py()!r} is not in the index")
        return Codes(made, n)

    def count(self, where: Any, tenant: Tenant) -> int:
        """How many keywords pass a filter."""
        return sum(self._ask("read", "count", where, tenant).values())

    def _ask_ids(self, method: str, ids: pa.Array) -> dict[int, Any]:
        self._state.empty.find(ids)  # refuses ids of another type
        return self._ask("read", method, ids)

    def _ask(self, method: str, *arguments: Any, last: bool = True) -> dict[int, Any]:
        """Ask all shards the same: a method of `Shard`. `last`: no other step follows in the given time."""
        questions = {shard: self._state.question(shard, method, *arguments) for shard in self.view.used}
        return self._ask_each(questions, last=last)

    def _ask_each(self, questions: dict[int, Question], *, last: bool = True) -> dict[int, Any]:
        """The results by shard, without asking shards that have failed before."""
        asked = {shard: question for shard, question in questions.items() if shard in self._answered}
        until = self._until if last else self._until_scanned
        answers = self._fanout.ask(self.view.id, asked, until, partial=self._partial)
        self._answered -= asked.keys() - answers.keys()
        return answers

    def _names(self, request: SearchRequest) -> tuple[str, ...]:
        """The columns that a question wants of its hits."""
        columns = self.view.manifest.columns if request.attributes else ()
        return (*(("text",) if request.texts else ()), *columns)

    def _scan(
        self,
        values: Values,
        k: int | None,
        request: SearchRequest,
        planes: int | None = None,
        names: tuple[str, ...] | None = None,
    ) -> list[Found]:
        seconds = max(0.0, self._until - time.monotonic())
        scan = Scan(values, request.scope(k), planes, seconds, names, self._floors)
        found: dict[int, Found] = self._ask("scan", pack(scan), last=names is not None)
        self._along = found if names is not None else {}
        return [found[shard] for shard in sorted(found)]

    def _exact(
        self, values: Values, k: int | None, request: SearchRequest, names: tuple[str, ...] | None = None
    ) -> Candidates:
        parts = self._scan(values, k, request, names=names)
        most = sum(part.keys.shape[1] for part in parts)
        return merge([Candidates(part.keys, part.places) for part in parts], most if k is None else k)

    def _items(self, values: Values, request: SearchRequest, name: str) -> Candidates:
        """The best keyword of each of the best k items; shards search all hits from the first one on."""
        cursor = Cursor.start(len(values)) if request.after is None else Cursor.read(request.after)
        dtype = type_named(self.view.manifest.columns[name])

        filters, floors = request.filters().items(), self._floors

        def find(these: Int64s, width: int | None) -> Candidates:
            own: Any = {name: [given[i] for i in these] for name, given in filters if isinstance(given, list)}
            self._floors = None if floors is None else floors[these]
            return self._exact(values[these], width, replace(request, after=None, **own))

        def look(these: Int64s, found: Candidates) -> tuple[Int64s, npt.NDArray[np.bool_]]:
            items, rows = np.full((2, *found.positions.shape), -1)
            real = found.positions >= 0
            rows[real], _, columns = self._stored(found.positions[real], (name,))
            items[real] = item_numbers(pa.array(columns[name], dtype))
            keys, last = cursor.keys[these, None], cursor.rows[these, None]
            return items, real & ((found.keys < keys) | ((found.keys == keys) & (rows > last)))

        return best_of_items(find, look, len(values), request.k)

    def _paper(self, values: Values, request: SearchRequest) -> Gathered:
        view = self.view
        whole: dict[int, bool] = {}
        for segments in self._ask("read", "whole_segments", request).values():
            whole |= segments
        numbers = sorted(whole)
        counts = np.array([view.manifest.segments[number].count for number in numbers], np.int64)
        begins = np.cumsum(counts) - counts  # positions of the search at which the segments begin
        if not numbers:
            return Candidates.none(len(values)), {}
        sizes = (
            whole_thread_sizes(int(counts.sum()), request.per_thread)
            if all(whole.values())
            else self._count_threads(dict(zip(numbers, begins.tolist(), strict=True)), request)
        )
        starts = view.starts[numbers]

        def search(some: Values, length: int) -> Candidates:
            found = self._exact(some, length, request)
            part = np.searchsorted(starts, found.positions, "right") - 1
            return Candidates(found.keys, found.positions - starts[part] + begins[part])

        found, certificate = select_paper(
            search, sizes, values, request.depth, request.per_thread, request.queue
        )
        part = np.searchsorted(begins, found.positions, "right") - 1
        places = found.positions - begins[part] + starts[part]
        return Candidates(found.keys, places), {"certificate": certificate}

    def _count_threads(self, offsets: dict[int, int], request: SearchRequest) -> dict[int, int]:
        parts = [
            part for own in self._ask("read", "thread_counts", request, offsets).values() for part in own
        ]
        of_thread = np.zeros(max(first + len(counts) for first, counts in parts), np.int64)
        for first, counts in parts:  # a thread may lie in several segments
            of_thread[first : first + len(counts)] += counts
        sizes = dict(enumerate(np.bincount(of_thread).tolist()))
        return {size: threads for size, threads in sizes.items() if size and threads}

    def _check_progressive(self, request: SearchRequest) -> tuple[int, int]:
        planes = check_planes(request.planes or 0, self.view.manifest.keyword_planes)
        return planes, check_candidates(request.candidates, request.depth)

    def _progressive(self, values: Values, request: SearchRequest) -> Gathered:
        planes, m = self._check_progressive(request)
        parts = self._scan(values, m, request, planes)
        keys = np.concatenate([part.keys for part in parts], axis=1)  # [Q, Σ m] by the first planes
        full = np.concatenate([part.full for part in parts if part.full is not None], axis=1)
        places = np.concatenate([part.places for part in parts], axis=1)
        first = best(keys, places, m)
        ranked, full = np.take_along_axis(places, first, 1), np.take_along_axis(full, first, 1)  # [Q, m]
        found = Candidates(full, ranked).best(request.depth)
        if not keys.shape[1]:
            return found, {}
        if request.measure:
            exact = self._exact(values, request.k, request)
            return found, {"recall": recall_of(found.positions, exact.positions)}
        if planes == self.view.manifest.keyword_planes:
            return found, {"recall": 1.0}
        counted = sum(part.counted for part in parts)
        return found, {"recall": estimate_recall(found.positions, ranked, counted)}


def pick(found: Found, places: Places) -> Columns:
    """The values that belong to some of the places that a shard found."""
    assert found.columns is not None
    flat, (rows, ids, columns) = found.places[found.places >= 0], found.columns
    order = np.argsort(flat, kind="stable")
    at = order[np.searchsorted(flat[order], places)]
    return rows[at], ids[at], {name: column[at] for name, column in columns.items()}
