"""The scorers that can be evaluated: anything that scores pairs of texts and searches a corpus.

`ModelScorer` scores by a model's embeddings, `RerankScorer` as a search with its reranker does. Beside them,
what needs no learning and has to be beaten: `TriletterCosine`, the cosine of gram counts, and `BM25` over
words. The protocol and the groups are the same for all.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rbegir.codes.layout import pack
from rbegir.encode.encoder import Encoder, encode_keywords
from rbegir.errors import MismatchError
from rbegir.evaluate.groups import SampleGroups, unit
from rbegir.evaluate.retrieval import Positions, Scores, search_blocks
from rbegir.read.tokenizer import VOCABULARY, tokenize
from rbegir.search.backend import Partition
from rbegir.search.cpu import CpuBackend
from rbegir.search.request import CANDIDATES, SearchRequest
from rbegir.search.rerank import TextSearch

if TYPE_CHECKING:
    from scipy import sparse

    from rbegir.encode.clsm.model import Model

    _Rows = Callable[[int, int], sparse.csr_array]  # (start, end) → the vectors of the texts between them

BATCH = 65_536  # texts embedded at once
HASH_BUCKETS = 8192  # of the baseline's grams, as in the presets
RERANKED = 256 * CANDIDATES  # candidates by code reranked at once
_ROWS = 65_536  # pairs multiplied at once by the baseline

Progress = Callable[[float], None]  # called with the fraction done


@runtime_checkable
class Scorer(Protocol):
    """Scores pairs and searches a corpus."""

    def score(self, groups: SampleGroups, progress: Progress) -> npt.NDArray[np.float32]:
        """Scores of every pair of every group, shaped as `groups.keyword`."""

    def judge(self, pairs: SampleGroups, progress: Progress) -> npt.NDArray[np.float32]:
        """Scores of judged pairs, groups of one: what orders the hits of a search."""
        return self.score(pairs, progress)

    def search(
        self, queries: pa.StringArray, corpus: pa.StringArray, k: int, progress: Progress
    ) -> Positions:
        """Positions in the corpus [queries, min(k, corpus)], by (score descending, position ascending)."""


class ModelScorer(Scorer):
    """Cosine of embeddings; a corpus is searched by codes, as an index would, where the model has them.

    `keywords` encodes the keywords in place of the model, as the one that made stored codes. An encoder
    without `embed_queries` and `embed_keywords` is scored by its codes.
    """

    def __init__(self, model: Encoder, keywords: Encoder | None = None) -> None:
        self._model, self._keywords = model, keywords or model

    def score(self, groups: SampleGroups, progress: Progress) -> npt.NDArray[np.float32]:
        total = len(groups.queries) + len(groups.keywords)
        queries = _embed(self._model, "queries", groups.queries, lambda done: progress(done / total))
        keywords = _embed(
            self._keywords, "keywords", groups.keywords, lambda done: progress((len(queries) + done) / total)
        )
        return groups.scores(queries, keywords)

    def search(
        self, queries: pa.StringArray, corpus: pa.StringArray, k: int, progress: Progress
    ) -> Positions:
        try:
            asked = self._model.encode_queries(queries.to_pylist())
            codes = encode_keywords(self._keywords, corpus, lambda done, total: progress(done / total))
        except MismatchError:  # float keywords, or planes without weights: their vectors are compared
            return self._search_vectors(queries, corpus, k, progress)
        backend = CpuBackend(codes.n, codes.plane_count)
        return backend.search([Partition(pack(codes), len(codes))], asked.values(), k).positions

    def _search_vectors(
        self, queries: pa.StringArray, corpus: pa.StringArray, k: int, progress: Progress
    ) -> Positions:
        device = getattr(self._model, "device", "cpu")

        def placed(vectors: npt.NDArray[np.float32]) -> Any:
            if device == "cpu":
                return vectors
            import torch

            return torch.from_numpy(vectors).to(device)

        vectors = placed(unit(_embed(self._model, "queries", queries)))

        def scores_of(start: int, end: int) -> Callable[[slice], Scores]:
            some = _embed(self._keywords, "keywords", corpus.slice(start, end - start))
            block = placed(unit(some)).T  # [n, block]
            return lambda rows: vectors[rows] @ block

        return search_blocks(len(queries), len(corpus), k, scores_of, progress)


class RerankScorer(ModelScorer):
    """A model as an index searches with it: candidates by code and words, ordered by the reranker.

    The reranker compares the candidates of one query; scores of random pairs (`score`) are the codes'.
    """

    def __init__(self, model: Model) -> None:
        super().__init__(model)
        if model.reranker is None:
            raise MismatchError(
                "this model has no reranker", hint="evaluate it without one, or train it with this version"
            )
        self._encoder, self._reranker = model, model.reranker

    def judge(self, pairs: SampleGroups, progress: Progress) -> npt.NDArray[np.float32]:
        scores = self.score(pairs, progress)  # [pairs, 1] by code
        order = np.argsort(pairs.query, kind="stable")
        asked = np.bincount(pairs.query, minlength=len(pairs.queries))
        offsets = np.concatenate([[0], np.cumsum(asked)]).astype(np.int64)
        texts = pairs.keywords.take(pa.array(pairs.keyword[order, 0]))
        found = self._reranker.scores(pairs.queries.to_pylist(), texts, offsets, scores[order, 0])
        scores[order, 0] = found
        return scores

    def search(
        self, queries: pa.StringArray, corpus: pa.StringArray, k: int, progress: Progress
    ) -> Positions:
        search, request = TextSearch(self._encoder, self._reranker, corpus), SearchRequest(k)
        positions = np.full((len(queries), min(k, len(corpus))), -1)
        step = max(1, RERANKED // request.pool)
        for start in range(0, len(queries), step):
            found = search.search(queries.slice(start, step).to_pylist(), request)
            positions[start : start + step, : found.shape[1]] = found
            progress(min(1.0, (start + step) / len(queries)))
        return positions


def _embed(
    encoder: Any, side: str, texts: pa.StringArray, done: Callable[[int], None] = lambda count: None
) -> npt.NDArray[np.float32]:
    """The embeddings [texts, n] of queries or keywords, one batch at a time, or their codes as vectors."""
    embed: Any = getattr(encoder, f"embed_{side}", None)
    encode: Any = getattr(encoder, f"encode_{side}", None)
    parts = []
    for start in range(0, len(texts), BATCH):
        block = texts.slice(start, BATCH)
        parts.append(embed(block) if embed else encode(block.to_pylist()).values().astype(np.float32))
        done(start + len(block))
    return np.concatenate(parts)


def gram_vectors(texts: pa.StringArray | list[str]) -> sparse.csr_array:
    """How often each gram occurs in each text, rows scaled to length 1: [texts, grams] float32."""
    from scipy import sparse

    batch = tokenize(texts, hash_buckets=HASH_BUCKETS)
    words, unique = len(batch.word_ids), len(batch.gram_offsets) - 1
    ones = np.ones(max(words, len(batch.gram_ids)), dtype=np.float32)
    # a gram or word that comes twice is stored twice, which the product adds up
    shape = len(texts), unique, VOCABULARY + HASH_BUCKETS
    of_text = sparse.csr_array((ones[:words], batch.word_ids, batch.text_offsets), shape=shape[:2])
    grams = ones[: len(batch.gram_ids)], batch.gram_ids, batch.gram_offsets
    counts = (of_text @ sparse.csr_array(grams, shape=shape[1:])).tocsr()
    norms = np.sqrt(np.asarray(counts.multiply(counts).sum(axis=1)).ravel())
    counts.data /= np.repeat(np.where(norms > 0, norms, 1), np.diff(counts.indptr)).astype(np.float32)
    return counts


class _SparseScorer(Scorer):
    """Exact inner products of sparse vectors."""

    @abstractmethod
    def _vectors(self, queries: pa.StringArray, texts: pa.StringArray) -> tuple[sparse.csr_array, _Rows]:
        """The vectors of the queries, and those of any run of texts."""

    def score(self, groups: SampleGroups, progress: Progress) -> npt.NDArray[np.float32]:
        queries, texts = self._vectors(groups.queries, groups.keywords)
        keywords = texts(0, len(groups.keywords))
        left, right = np.repeat(groups.query, groups.keyword.shape[1]), groups.keyword.ravel()
        out = np.empty(len(right), dtype=np.float32)
        for start in range(0, len(right), _ROWS):
            rows = slice(start, start + _ROWS)
            out[rows] = np.asarray(queries[left[rows]].multiply(keywords[right[rows]]).sum(axis=1)).ravel()
            progress(min(start + _ROWS, len(right)) / len(right))
        return out.reshape(groups.keyword.shape)

    def search(
        self, queries: pa.StringArray, corpus: pa.StringArray, k: int, progress: Progress
    ) -> Positions:
        asked, texts = self._vectors(queries, corpus)

        def scores_of(start: int, end: int) -> Callable[[slice], Scores]:
            block = texts(start, end).T.tocsr()  # [words or grams, block]
            return lambda rows: (asked[rows] @ block).toarray().astype(np.float32, copy=False)

        return search_blocks(len(queries), len(corpus), k, scores_of, progress)


class TriletterCosine(_SparseScorer):
    """The cosine of gram counts, over the grams and buckets that a model sees."""

    def _vectors(self, queries: pa.StringArray, texts: pa.StringArray) -> tuple[sparse.csr_array, _Rows]:
        return gram_vectors(queries), lambda start, end: gram_vectors(texts.slice(start, end - start))


class BM25(_SparseScorer):
    """BM25 (Robertson's k1 = 1.2, b = 0.75) over the words of the tokeniser."""

    K1, B = 1.2, 0.75

    def _vectors(self, queries: pa.StringArray, texts: pa.StringArray) -> tuple[sparse.csr_array, _Rows]:
        """Counts [queries, words] and weights [texts, words] whose products are the scores."""
        from scipy import sparse

        both = pa.concat_arrays([part.cast(pa.large_string()) for part in (queries, texts)])
        batch = tokenize(both, hash_buckets=HASH_BUCKETS)
        ones = np.ones(len(batch.word_ids))
        shape = (len(both), len(batch.gram_offsets) - 1)
        counts = sparse.csr_array((ones, batch.word_ids, batch.text_offsets), shape=shape)
        counts.sum_duplicates()
        asked, held = counts[: len(queries)], counts[len(queries) :]
        found = np.bincount(held.indices, minlength=shape[1])
        idf = np.log1p((len(texts) - found + 0.5) / (found + 0.5))
        length = np.asarray(held.sum(axis=1)).ravel()
        share = self.K1 * (1 - self.B + self.B * length / max(length.mean(), 1e-9))
        norm = np.repeat(share, np.diff(held.indptr))
        held.data = idf[held.indices] * held.data * (self.K1 + 1) / (held.data + norm)
        return asked, lambda start, end: held[start:end]
