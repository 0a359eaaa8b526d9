"""Plain tri-letter cosine: what the grams know without any learning.

A text is the vector of how often each tri-letter gram occurs in it, over the same grams and buckets as the
model's input; the score is the cosine of two such vectors. Sparse counts make it exact and quick enough for
corpora of millions. A learned model has to beat it to be worth its training.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from scipy import sparse

from rbegir.evaluate.groups import SampleGroups
from rbegir.evaluate.retrieval import BLOCK, QUERY_BLOCK, Positions, TopK
from rbegir.evaluate.scorers import Progress
from rbegir.read.tokenizer import VOCABULARY, tokenize

HASH_BUCKETS = 8192
_ROWS = 65_536  # pairs multiplied at once


def gram_vectors(texts: pa.StringArray | list[str]) -> sparse.csr_array:
    """Gram counts of texts, scaled to length 1: [texts, grams] float32."""
    batch = tokenize(texts, hash_buckets=HASH_BUCKETS)
    words, unique = len(batch.word_ids), len(batch.gram_offsets) - 1
    ones = np.ones(max(words, len(batch.gram_ids)), dtype=np.float32)
    of_text = sparse.csr_array(
        (ones[:words], batch.word_ids, batch.text_offsets), shape=(len(texts), unique)
    )  # [texts, words]
    of_word = sparse.csr_array(
        (ones[: len(batch.gram_ids)], batch.gram_ids, batch.gram_offsets),
        shape=(unique, VOCABULARY + HASH_BUCKETS),
    )  # [words, grams]; a gram or word that comes twice is stored twice, which the product adds up
    counts = (of_text @ of_word).tocsr()
    norms = np.sqrt(np.asarray(counts.multiply(counts).sum(axis=1)).ravel())
    counts.data /= np.repeat(np.where(norms > 0, norms, 1), np.diff(counts.indptr)).astype(np.float32)
    return counts


class TriletterCosine:
    """The baseline as a scorer."""

    def score(self, groups: SampleGroups, progress: Progress) -> npt.NDArray[np.float32]:
        queries, keywords = gram_vectors(groups.queries), gram_vectors(groups.keywords)
        left = np.repeat(groups.query, groups.keyword.shape[1])
        right = groups.keyword.ravel()
        out = np.empty(len(right), dtype=np.float32)
        for start in range(0, len(right), _ROWS):
            rows = slice(start, start + _ROWS)
            out[rows] = np.asarray(queries[left[rows]].multiply(keywords[right[rows]]).sum(axis=1)).ravel()
            progress(min(start + _ROWS, len(right)) / len(right))
        return out.reshape(groups.keyword.shape)

    def search(
        self, queries: pa.StringArray, corpus: pa.StringArray, k: int, progress: Progress
    ) -> Positions:
        vectors = gram_vectors(queries)
        top = TopK(len(queries), min(k, len(corpus)))
        for start in range(0, len(corpus), BLOCK):
            block = gram_vectors(corpus.slice(start, BLOCK)).T.tocsr()  # [grams, block]
            for first in range(0, len(queries), QUERY_BLOCK):
                rows = slice(first, min(first + QUERY_BLOCK, len(queries)))
                top.push(rows, (vectors[rows] @ block).toarray(), start)
            progress(min(start + BLOCK, len(corpus)) / len(corpus))
        return top.positions()
