"""Reranked search: the best candidates, put in order by a better score.

    the best `count` by code ┐
                             ├─ each once ─ texts ─ features ─ score ─ the best k by (score, position)
    the best lexical ones   ─┘

    the best `count` by code ─ codes ─ vectors ─ score ─ the best k by (score, position)

The first way needs texts and a model's reranker. The second is for codes of a Binarizer (`VectorReranker`): a
code b stands for the vector x̂ = centre + A·b/‖b‖. The scan scores it by q·x̂, in which the length of x̂, an
accident of the rounding, counts too. Decoding the candidates gives the score that the metric has for q and
x̂: their cosine, or their distance. It reads no further byte. Recall@10 of 16-byte codes of GloVe rises from
.764 to .780. For the inner product, q·x̂ is that score already.

Rejected: a nonlinear decoder (a small network), which added .000 to .007 and took several times as long to
learn as everything else.

Candidates are found per partition and merged in total orders, so the result does not depend on how keywords
are divided among segments, devices or shards.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rbegir._native import _core
from rbegir.base.devices import cpu_count
from rbegir.codes.layout import pack
from rbegir.codes.planes import Codes
from rbegir.codes.score import cosine, norm_squared
from rbegir.encode.binarizer import Binarizer
from rbegir.encode.encoder import Encoder, encode_keywords
from rbegir.encode.reranker import FEATURES, Reranker
from rbegir.read.tokenizer import text_views
from rbegir.search.backend import Backend, Candidates, Partition
from rbegir.search.cpu import CpuBackend
from rbegir.search.hits import Why
from rbegir.search.partition import NO_KEY, Int64s, Limits, Values
from rbegir.search.request import CANDIDATES, SearchRequest

if TYPE_CHECKING:
    import pyarrow as pa

    from rbegir.read.tokenizer import TextInput


MEASURES = [FEATURES.index(name) for name in ("guide", "letters alike", "query words alike")]  # of a Why
LEXICAL_SHARE = 2  # one lexical candidate for this many by code


class CandidatePool(NamedTuple):
    """The candidates of several queries end to end; those of query i are offsets[i] up to offsets[i + 1]."""

    keys: Int64s  # [all] exact order keys of the codes
    positions: Int64s  # [all]
    offsets: Int64s  # [queries + 1]
    by_code: Int64s  # [queries] how many of them are by code: the first, best first


class Reranked(NamedTuple):
    """The best of the candidates of each query."""

    found: Candidates
    scores: npt.NDArray[np.float64]  # [queries, k] NaN behind the last hit
    why: npt.NDArray[np.object_] | None  # [queries, k] Why, where it was asked for


class VectorReranker(NamedTuple):
    """Scores candidates by the vectors that their codes stand for."""

    binarizer: Binarizer
    queries: Any  # [queries, dims] numbers

    def rerank(self, found: CandidatePool, codes: Codes, k: int) -> Reranked:
        """The best k of the candidates with these `codes`."""
        sizes = np.diff(found.offsets)
        of = np.repeat(np.arange(len(sizes)), sizes)
        best, scores, _ = best_of(found, self.binarizer.decoded_scores(self.queries, codes, of), k)
        return Reranked(best, scores, None)


class TextSearch:
    """Reranked search of texts in memory: for evaluation, and for fitting what an index then uses."""

    def __init__(self, model: Encoder, reranker: Reranker, texts: pa.Array) -> None:
        self._model, self.reranker, self._texts = model, reranker, texts
        codes = encode_keywords(model, texts)
        self._partitions = [Partition(pack(codes), len(codes))]
        self._backend = CpuBackend(codes.n, codes.plane_count)
        self._lexical = [reranker.spelling.lexical_index(texts)]

    def find(self, queries: list[str], count: int = CANDIDATES) -> tuple[CandidatePool, Values, TextInput]:
        """The candidates, the queries' codes as integers, and the candidates' texts."""
        values = self._model.encode_queries(queries).values()
        found = find_candidates(
            self._backend, self._partitions, self._lexical, values, queries, count, threads=cpu_count()
        )
        return found, values, self._texts.take(found.positions)

    def search(self, queries: list[str], request: SearchRequest) -> Int64s:
        """Positions [queries, ≤ k] of the best texts: what an index finds for a request without filters."""
        found, values, texts = self.find(queries, request.pool)
        return rerank(self.reranker, queries, values, found, texts, request.depth).found.positions


def find_candidates(
    backend: Backend,
    partitions: Sequence[Partition],
    lexical: Sequence[_core.LexicalIndex],
    values: Values,
    queries: list[str],
    count: int = CANDIDATES,
    *,
    limits: Limits | None = None,
    threads: int = 1,
) -> CandidatePool:
    """The candidates of each query, those by code first; `lexical` has the words of each partition."""
    by_code = backend.search(partitions, values, count, limits)
    filters = np.full(len(queries), -1) if limits is None else limits.filters
    limit = lexical_count(count)
    return union(
        by_code, find_by_words(backend, partitions, lexical, values, queries, limit, filters, threads=threads)
    )


def lexical_count(count: int) -> int:
    """The number of lexical candidates beside `count` candidates by code."""
    return -(-count // LEXICAL_SHARE)


class WordHits(NamedTuple):
    """The best by lexical score, in the order (score descending, position ascending)."""

    positions: Int64s  # [queries, limit], −1 where no further text has a word of the query
    scores: npt.NDArray[np.float32]  # [queries, limit] lexical
    keys: Int64s  # [queries, limit] order keys of the codes


def find_by_words(
    backend: Backend,
    partitions: Sequence[Partition],
    lexical: Sequence[_core.LexicalIndex],
    values: Values,
    queries: list[str],
    limit: int,
    filters: Int64s,
    *,
    threads: int = 1,
) -> WordHits:
    """The best texts of all partitions by lexical score; queries with one filter are searched together."""
    groups = [np.flatnonzero(filters == number) for number in np.unique(filters)]
    asked = [text_views([queries[i] for i in group]) for group in groups]
    shape, start, parts = (len(queries), limit), 0, []
    for part, words in zip(partitions, lexical, strict=True):
        rows, scores = np.empty(shape, np.int64), np.empty(shape, np.float32)
        for group, texts in zip(groups, asked, strict=True):
            found = np.empty((len(group), limit), np.int64), np.empty((len(group), limit), np.float32)
            words.search(texts, part.under(int(filters[group[0]])).mask, *found, threads)
            rows[group], scores[group] = found
        parts.append(WordHits(np.where(rows >= 0, rows + start, -1), scores, rows))
        start += part.count
    best = merge_words(parts, limit)
    return best._replace(keys=backend.keys_at(partitions, values, np.maximum(best.positions, 0)))


def merge_words(parts: Sequence[WordHits], limit: int) -> WordHits:
    """The best of several parts of the keywords."""
    if len(parts) == 1:
        return parts[0]
    joined: list[Any] = [np.concatenate(arrays, axis=1) for arrays in zip(*parts, strict=True)]
    positions, scores, _ = joined
    order = np.lexsort((positions, -scores, positions < 0), axis=1)[:, :limit]
    picked: list[Any] = [np.take_along_axis(array, order, axis=1) for array in joined]
    return WordHits(*picked)


def union(by_code: Candidates, by_words: WordHits) -> CandidatePool:
    """The candidates of each query, each once."""
    keys, positions = [], []
    for i, count in enumerate(by_code.counts):
        known = by_code.positions[i, :count]
        new = (by_words.positions[i] >= 0) & ~np.isin(by_words.positions[i], known)
        keys.append(np.concatenate([by_code.keys[i, :count], by_words.keys[i][new]]))
        positions.append(np.concatenate([known, by_words.positions[i][new]]))
    none, offsets = np.zeros(0, np.int64), np.cumsum([0, *map(len, keys)], dtype=np.int64)
    return CandidatePool(
        np.concatenate([none, *keys]), np.concatenate([none, *positions]), offsets, by_code.counts
    )


def by_code_alone(by_code: Candidates) -> CandidatePool:
    """The candidates of each query, without any by words."""
    real, offsets = by_code.positions >= 0, np.append(0, np.cumsum(by_code.counts))
    return CandidatePool(by_code.keys[real], by_code.positions[real], offsets, by_code.counts)


def rerank(
    reranker: Reranker,
    queries: list[str],
    values: Values,
    found: CandidatePool,
    texts: TextInput,
    k: int,
    *,
    why: bool = False,
) -> Reranked:
    """The best k of the candidates with these `texts`; with `why`, also the reasons."""
    features = reranker.features(queries, texts, found.offsets, code_scores(found, values))
    score = reranker.combination(features).astype(np.float64)
    best, scores, chosen = best_of(found, score, k)
    if not why:
        return Reranked(best, scores, None)
    reasons = np.full(chosen.shape, None, object)
    for i, place in np.argwhere(chosen >= 0).tolist():
        meaning, spelling, words = features[chosen[i, place], MEASURES].astype(np.float64).round(4).tolist()
        rank = int(chosen[i, place] - found.offsets[i] + 1)
        by_code = rank if rank <= found.by_code[i] else None
        reasons[i, place] = Why(meaning, spelling, words, by_code)
    return Reranked(best, scores, reasons)


def best_of(
    found: CandidatePool, score: npt.NDArray[np.float64], k: int
) -> tuple[Candidates, npt.NDArray[np.float64], Int64s]:
    """The best k by these scores [all], their scores, and their numbers among all candidates (−1: none)."""
    counts = np.minimum(np.diff(found.offsets), k)
    shape = (len(counts), int(counts.max(initial=0)))
    best = Candidates(np.full(shape, NO_KEY), np.full(shape, -1))
    scores, chosen = np.full(shape, np.nan), np.full(shape, -1)
    for i, count in enumerate(counts):
        begin, end = found.offsets[i], found.offsets[i + 1]
        here = begin + np.lexsort((found.positions[begin:end], -score[begin:end]))[:count]
        best.keys[i, :count], best.positions[i, :count] = found.keys[here], found.positions[here]
        scores[i, :count], chosen[i, :count] = score[here], here
    return best, scores, chosen


def code_scores(found: CandidatePool, values: Values) -> npt.NDArray[Any]:
    """The cosines of the candidates' codes with those of their queries."""
    norms = np.repeat(norm_squared(values), np.diff(found.offsets))
    return cosine(found.keys[:, None], norms)[:, 0]
