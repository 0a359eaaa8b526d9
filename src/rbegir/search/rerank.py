"""Reranked search: candidates by code and by lexical score, put in order by a model's reranker.

    the best `count` by code ┐
                             ├─ each once ─ texts ─ features ─ score ─ the best k by (score, position)
    the best lexical ones   ─┘

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
from rbegir.codes.score import cosine, norm_squared
from rbegir.encode.encoder import Encoder, encode_keywords
from rbegir.encode.reranker import Reranker
from rbegir.read.tokenizer import text_views
from rbegir.search.backend import Backend, Candidates, Partition
from rbegir.search.cpu import CpuBackend
from rbegir.search.request import CANDIDATES

if TYPE_CHECKING:
    import pyarrow as pa

    from rbegir.read.tokenizer import TextInput



LEXICAL_SHARE = 2  # one lexical candidate for this many by code


class Reranked(NamedTuple):
    """The candidates of several queries end to end; those of query i are offsets[i] up to offsets[i + 1]."""

    keys: npt.NDArray[np.int64]  # [all] exact order keys of the codes
    positions: npt.NDArray[np.int64]  # [all]
    offsets: npt.NDArray[np.int64]  # [queries + 1]


class TextSearch:
    """Reranked search of texts in memory: for evaluation, and for fitting what an index then uses."""

    def __init__(self, model: Encoder, reranker: Reranker, texts: pa.Array) -> None:
        self._model, self.reranker, self._texts = model, reranker, texts
        codes = encode_keywords(model, texts)
        self._partitions = [Partition(pack(codes), len(codes))]
        self._backend = CpuBackend(codes.n, codes.plane_count)
        self._lexical = [reranker.lexical_index(texts)]

    def find(
        self, queries: list[str], count: int = CANDIDATES
    ) -> tuple[Reranked, npt.NDArray[np.int16], TextInput]:
        """The candidates, the queries' codes as integers, and the candidates' texts."""
        values = self._model.encode_queries(queries).values()
        found = find_candidates(
            self._backend, self._partitions, self._lexical, values, queries, count, threads=cpu_count()
        )
        return found, values, self._texts.take(found.positions)

    def search(self, queries: list[str], k: int, count: int = CANDIDATES) -> npt.NDArray[np.int64]:
        """Positions [queries, ≤ k] of the best texts."""
        found, values, texts = self.find(queries, count)
        return rerank(self.reranker, queries, values, found, texts, k)[0].positions


def find_candidates(
    backend: Backend,
    partitions: Sequence[Partition],
    lexical: Sequence[_core.LexicalIndex],
    values: npt.NDArray[np.int16],
    queries: list[str],
    count: int = CANDIDATES,
    *,
    threads: int = 1,
) -> Reranked:
    """The candidates of each query, those by code first; `lexical` has the words of each partition."""
    by_code = backend.search(partitions, values, count)
    by_words = best_by_words(partitions, lexical, queries, -(-count // LEXICAL_SHARE), threads=threads)
    new = [np.setdiff1d(row[row >= 0], known) for row, known in zip(by_words, by_code.positions, strict=True)]
    padded = np.repeat(by_code.positions[:, :1], max(map(len, new), default=0), axis=1)
    for row, some in zip(padded, new, strict=True):
        row[: len(some)] = some
    keys, positions = list(by_code.keys), list(by_code.positions)
    if padded.size:
        scored = backend.rescore(partitions, values, padded, padded.shape[1])
        for i, some in enumerate(new):
            kept = np.isin(scored.positions[i], some)  # not the padding, a candidate by code
            keys[i] = np.concatenate([keys[i], scored.keys[i][kept]])
            positions[i] = np.concatenate([positions[i], scored.positions[i][kept]])
    return Reranked(
        np.concatenate([np.zeros(0, np.int64), *keys]),
        np.concatenate([np.zeros(0, np.int64), *positions]),
        np.concatenate([[0], np.cumsum([len(row) for row in keys])]).astype(np.int64),
    )


def best_by_words(
    partitions: Sequence[Partition],
    lexical: Sequence[_core.LexicalIndex],
    queries: list[str],
    limit: int,
    *,
    threads: int = 1,
) -> npt.NDArray[np.int64]:
    """Positions [queries, limit] by (lexical score descending, position ascending); −1 where there is none."""
    asked = text_views(queries)
    rows, scores = [], []
    start = 0
    for part, words in zip(partitions, lexical, strict=True):
        found = np.empty((len(queries), limit), np.int64)
        score = np.empty((len(queries), limit), np.float32)
        words.search(asked, part.mask, found, score, threads)
        rows.append(np.where(found >= 0, found + start, -1))
        scores.append(score)
        start += part.count
    if len(rows) == 1:
        return rows[0]
    every, value = np.concatenate(rows, axis=1), np.concatenate(scores, axis=1)
    order = np.lexsort((every, -value, every < 0), axis=1)[:, :limit]
    return np.take_along_axis(every, order, axis=1)


def rerank(
    reranker: Reranker,
    queries: list[str],
    values: npt.NDArray[np.int16],
    found: Reranked,
    texts: TextInput,
    k: int,
) -> tuple[Candidates, npt.NDArray[np.float64]]:
    """The best k of the candidates whose `texts` are given, and their scores.

    All queries get as many hits: k, or as many as the query with the fewest candidates has.
    """
    code = code_scores(found, values)
    score = reranker.scores(queries, texts, found.offsets, code).astype(np.float64)
    k = min(k, int(np.diff(found.offsets).min(initial=k)))
    chosen = np.empty((len(queries), k), np.int64)
    for i in range(len(queries)):
        begin, end = found.offsets[i], found.offsets[i + 1]
        order = np.lexsort((found.positions[begin:end], -score[begin:end]))[:k]
        chosen[i] = begin + order
    return Candidates(found.keys[chosen], found.positions[chosen]), score[chosen]


def code_scores(found: Reranked, values: npt.NDArray[np.int16]) -> npt.NDArray[Any]:
    """The cosines of the candidates' codes with those of their queries."""
    norms = np.repeat(norm_squared(values), np.diff(found.offsets))
    return cosine(found.keys[:, None], norms)[:, 0]
