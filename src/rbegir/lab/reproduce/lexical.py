"""BM25 over the same titles: the baseline that needs no training, and as many keywords as ours.

Words are maximal runs of letters and digits, lower-cased, no stop words, no stemming; k1 = 1.5, b = 0.75
(bm25s). Recall is measured on a sample of the test queries, the top five on all judged queries.
"""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rbegir.errors import MissingExtraError
from rbegir.evaluate.retrieval import CUTOFFS
from rbegir.lab.reproduce.dataset import Dataset, sample_rows
from rbegir.lab.reproduce.studies import Judgements
from rbegir.lab.reproduce.testbed import Json

WORD = re.compile(r"\w+")
SAMPLE = 1_000  # queries


class Lexical:
    """An inverted index of titles."""

    def __init__(self, titles: pa.Array) -> None:
        try:
            import bm25s
        except ImportError:
            raise MissingExtraError("BM25 needs bm25s", hint="pip install 'rbegir[tables]'") from None
        self._index = bm25s.BM25(k1=1.5, b=0.75)
        self._vocabulary: dict[str, int] = {}
        ids = [self._ids(text, grow=True) for text in titles.to_pylist()]
        tokens = bm25s.tokenization.Tokenized(ids=ids, vocab=self._vocabulary)
        self._index.index(tokens, show_progress=False)

    def _ids(self, text: str, *, grow: bool = False) -> list[int]:
        words = WORD.findall(text.lower())
        if grow:
            return [self._vocabulary.setdefault(word, len(self._vocabulary)) for word in words]
        return [self._vocabulary[word] for word in words if word in self._vocabulary]

    def search(self, queries: list[str], k: int) -> npt.NDArray[np.int64]:
        """Positions of the best k titles, best first; −1 where fewer share a word.  [queries, k]"""
        found = np.full((len(queries), k), -1, dtype=np.int64)
        for row, query in enumerate(queries):
            ids = self._ids(query)
            if not ids:
                continue
            scores = self._index.get_scores_from_ids(ids)  # [titles]
            hits = np.flatnonzero(scores)
            if len(hits) > k:
                hits = hits[np.argpartition(-scores[hits], k)[:k]]
            found[row, : len(hits)] = hits[np.lexsort((hits, -scores[hits]))]
        return found


def measure(data: Dataset) -> Json:
    """The figures of BM25: recall, and the grades of its five best titles where there are labels."""
    result: Json = {"name": "BM25", "titles": len(data.corpus)}
    judged = Judgements(data.labels["all"], data.corpus) if data.labels else None
    titles = data.corpus if judged is None else pa.concat_arrays([data.corpus, judged.added])
    index = Lexical(titles)
    rows = sample_rows(data.test.num_rows, SAMPLE, 0)
    pairs = data.test.take(pa.array(rows))
    found = index.search(pairs["query"].to_pylist(), min(max(CUTOFFS), len(titles)))
    place = pc.index_in(pairs["keyword"].cast(titles.type).combine_chunks(), value_set=titles)
    there = np.asarray(place.is_valid())
    wanted = np.asarray(place.fill_null(-2))
    hit = found[there] == wanted[there][:, None]  # [pairs, k]
    result |= {f"recall@{k}": float(hit[:, :k].any(axis=1).mean()) for k in CUTOFFS}
    result["queries"] = int(there.sum())
    if judged is not None:
        best = index.search(judged.queries.to_pylist(), 5)
        result["top_five"] = judged.count(best)
    return result
