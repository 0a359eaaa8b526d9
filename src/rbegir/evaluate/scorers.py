"""What can be evaluated: anything that scores pairs of texts and searches a corpus.

A trained or untrained model does so through its embeddings (`ModelScorer`), plain tri-letter cosine through
sparse counts (`baselines`); the protocol and the groups are the same for all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rbegir.codes.layout import pack
from rbegir.codes.planes import Codes
from rbegir.errors import MismatchError
from rbegir.evaluate.groups import SampleGroups, unit
from rbegir.evaluate.retrieval import Positions, search_dense
from rbegir.search.backend import Partition
from rbegir.search.cpu import CpuBackend

BATCH = 65_536  # texts embedded at once

Progress = Callable[[float], None]  # called with the fraction done


class Scorer(Protocol):
    """Scores pairs and searches a corpus."""

    def score(self, groups: SampleGroups, progress: Progress) -> npt.NDArray[np.float32]:
        """Scores of every pair of every group, shaped as `groups.keyword`."""

    def search(
        self, queries: pa.StringArray, corpus: pa.StringArray, k: int, progress: Progress
    ) -> Positions:
        """Positions in the corpus [queries, min(k, corpus)], by (score descending, position ascending)."""


class Embedder(Protocol):
    """The part of `Model` that evaluation needs; encode_* may raise MismatchError."""

    def embed_queries(self, texts: pa.StringArray) -> npt.NDArray[np.float32]: ...
    def embed_keywords(self, texts: pa.StringArray) -> npt.NDArray[np.float32]: ...
    def encode_queries(self, texts: pa.StringArray) -> Codes: ...
    def encode_keywords(self, texts: pa.StringArray) -> Codes: ...


class ModelScorer:
    """Cosine of embeddings; a corpus is searched by codes, as an index would, where the model has them."""

    def __init__(self, model: Embedder) -> None:
        self._model = model

    def score(self, groups: SampleGroups, progress: Progress) -> npt.NDArray[np.float32]:
        total = len(groups.queries) + len(groups.keywords)
        queries = _embed(self._model.embed_queries, groups.queries, 0, total, progress)
        keywords = _embed(self._model.embed_keywords, groups.keywords, len(queries), total, progress)
        return groups.scores(queries, keywords)

    def search(
        self, queries: pa.StringArray, corpus: pa.StringArray, k: int, progress: Progress
    ) -> Positions:
        try:
            asked = self._model.encode_queries(queries)
            first = self._model.encode_keywords(corpus.slice(0, BATCH))
        except MismatchError:  # float keywords, or planes without weights: their vectors are compared
            return self._search_vectors(queries, corpus, k, progress)
        parts = [first]
        for start in range(BATCH, len(corpus), BATCH):
            progress(start / len(corpus))
            parts.append(self._model.encode_keywords(corpus.slice(start, BATCH)))
        codes = Codes.concat(parts)
        backend = CpuBackend(codes.n, codes.plane_count)
        found = backend.search([Partition(pack(codes), len(codes))], asked.values(), k)
        progress(1.0)
        return found.positions

    def _search_vectors(
        self, queries: pa.StringArray, corpus: pa.StringArray, k: int, progress: Progress
    ) -> Positions:
        vectors = unit(_embed(self._model.embed_queries, queries, 0, len(queries), lambda _: None))
        return search_dense(
            vectors,
            lambda start, end: unit(self._model.embed_keywords(corpus.slice(start, end - start))),
            len(corpus),
            k,
            progress,
        )


def _embed(
    embed: Callable[[pa.StringArray], npt.NDArray[np.float32]],
    texts: pa.StringArray,
    done: int,
    total: int,
    progress: Progress,
) -> npt.NDArray[np.float32]:
    """Embeddings [texts, n], a batch at a time."""
    parts = []
    for start in range(0, len(texts), BATCH):
        parts.append(embed(texts.slice(start, BATCH)))
        progress((done + min(start + BATCH, len(texts))) / total)
    return np.concatenate(parts)
