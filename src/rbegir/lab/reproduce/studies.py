"""Measurements on a trained network beyond its accuracy. A row names those that it is asked for.

sizes       recall@10 among ever more titles: what a larger corpus costs
selection   recall@1000 of the published selection against the exact one, on this corpus
top_five    grades of the five best titles of every judged query, for all titles or for a share of them
latency     one query at a time, two and three query planes, on the CPU

BM25 over the titles is the baseline that needs no training. Words are maximal runs of letters and digits,
lower-cased, without stop words or stemming; k1 = 1.5, b = 0.75 (bm25s). Recall is measured on a sample of
the test queries, the top five on all judged queries.
"""

from __future__ import annotations

import re
import statistics
import time
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor

from rbegir.codes.layout import pack
from rbegir.codes.planes import Codes
from rbegir.encode.clsm.twotower import TwoTower, unit
from rbegir.errors import needing
from rbegir.evaluate.groups import distinct
from rbegir.evaluate.retrieval import CUTOFFS, ranks, recalls
from rbegir.lab.bench.quantizers import top
from rbegir.lab.markdown import Json
from rbegir.lab.reproduce.dataset import Dataset, headline, sample_rows
from rbegir.lab.reproduce.testbed import Testbed, Vectors
from rbegir.search.backend import Partition
from rbegir.search.cpu import CpuBackend
from rbegir.search.partition import recall_of

SIZES = (10_000, 100_000, 1_000_000)
SELECTION_QUERIES, TOP, PER_THREAD = 500, 1000, 256
LATENCY_QUERIES = 50
FLOAT_BYTES, CODE_BYTES = 256, 16  # a title of m_1 and of rbe*
GRADES = ("bad", "fair", "good")


def sizes(bed: Testbed, vectors: Vectors) -> Json:
    """Recall@10 in random parts of the corpus that hold every target.  {titles: recall}"""
    found: Json = {}
    for size in (*SIZES, len(vectors.corpus)):
        if len(bed.target) < size <= len(vectors.corpus):
            kept, place = bed.part(size)
            rank = ranks(vectors.queries, vectors.corpus[kept], bed.query, place, exact=vectors.codes)
            found[str(size)] = float(recalls(rank, bed.query, len(bed.queries), [10])[10].mean())
    return found


def selection(bed: Testbed, vectors: Vectors, network: TwoTower) -> Json:
    """Recall@1000 of local selection with a queue of one, beside its certificate."""
    backend, part, values = _searchable(vectors, network)
    chosen = values[sample_rows(len(values), SELECTION_QUERIES, 0)]
    top = min(TOP, part.count)
    exact = backend.search([part], chosen, top).positions
    published, promise = backend.search_paper([part], chosen, top, per_thread=PER_THREAD, queue=1)
    shared = [recall_of(a[None], b[None]) for a, b in zip(published.positions, exact, strict=True)]
    return {
        "queries": len(chosen),
        "keywords": part.count,
        "top": top,
        "recall": float(np.mean(shared)),
        "std": float(np.std(shared) / np.sqrt(len(shared))),
        "expected": promise.expected_recall,
    }


def latency(bed: Testbed, vectors: Vectors, network: TwoTower) -> Json:
    """Milliseconds of one exact search, one query at a time, by the number of query planes."""
    backend, part, values = _searchable(vectors, network)
    chosen = values[sample_rows(len(values), LATENCY_QUERIES, 1)]
    by_planes = {"3": chosen, "2": Codes.from_values(chosen, 3).first_planes(2).values()}
    times: dict[str, list[float]] = {planes: [] for planes in by_planes}
    for row in range(len(chosen)):
        for planes, asked in by_planes.items():
            began = time.perf_counter()
            backend.search([part], asked[row : row + 1], min(TOP, part.count))
            times[planes].append(1e3 * (time.perf_counter() - began))
    return {"keywords": part.count, "ms": {planes: statistics.median(t) for planes, t in times.items()}}


def _searchable(vectors: Vectors, network: TwoTower) -> tuple[CpuBackend, Partition, Any]:
    """The corpus and the queries as a search has them: (backend, keywords, values of queries)."""
    config = network.config

    def values(x: Tensor, planes: int) -> Any:
        return (x * 2 ** (planes - 1)).round().to(torch.int16).cpu().numpy()

    codes = Codes.from_values(values(vectors.corpus, config.keyword_planes), config.keyword_planes)
    backend = CpuBackend(config.n, config.keyword_planes)
    return backend, Partition(pack(codes), len(codes)), values(vectors.queries, config.query_planes)


def top_five(bed: Testbed, vectors: Vectors, network: TwoTower) -> Json:
    """Grades of the first five among all titles; for float keywords also among those of equal memory.

    Judged titles that are not in the corpus are added to it, as a judge found them somewhere.
    """
    judgements = Judgements(bed.data.labels["all"], bed.data.corpus)
    queries = bed.embed(network, "query", bed.tokens(judgements.queries)).cpu().numpy()
    more = bed.embed(network, "keyword", bed.tokens(judgements.added))
    keywords = unit(torch.cat([vectors.corpus, more])).cpu().numpy()
    found = {"all titles": judgements.count(top(queries, keywords, 5))}
    if not vectors.codes:
        share = sample_rows(len(keywords), len(keywords) * CODE_BYTES // FLOAT_BYTES, 0)
        found["the same memory"] = judgements.count(share[top(queries, keywords[share], 5)])
    head = headline(bed.data.labels)
    return {"found": found, "queries": len(judgements.queries), "slice": head}


class Judgements:
    """Grades of (query, position) over the corpus with the judged titles added at its end."""

    def __init__(self, labels: pa.Table, corpus: pa.Array) -> None:
        self.queries, query = distinct(labels["query"])
        titles = labels["keyword"].combine_chunks().cast(corpus.type)
        missing = pc.invert(pc.is_in(titles, value_set=corpus))
        self.added = titles.filter(missing).unique()
        place = pc.index_in(titles, value_set=pa.concat_arrays([corpus, self.added]))
        self._grade: dict[tuple[int, int], int] = {}
        for key, grade in zip(
            zip(query.tolist(), place.to_pylist(), strict=True), labels["label"].to_pylist(), strict=True
        ):
            self._grade[key] = max(self._grade.get(key, 0), int(min(grade, len(GRADES) - 1)))

    def count(self, positions: np.ndarray[Any, np.dtype[np.int64]]) -> dict[str, int]:
        """How many of the positions [queries, k] have each grade; a negative one is no hit."""
        counts = dict.fromkeys((*GRADES, "unjudged"), 0)
        for query, row in enumerate(positions.tolist()):
            for place in filter(lambda p: p >= 0, row):
                grade = self._grade.get((query, place))
                counts["unjudged" if grade is None else GRADES[grade]] += 1
        return counts


WORD = re.compile(r"\w+")
BM25_QUERIES = 1_000


class Lexical:
    """An inverted index of titles."""

    def __init__(self, titles: pa.Array) -> None:
        with needing("BM25 needs bm25s", "pip install 'rbegir[tables]'"):
            import bm25s
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


def bm25(data: Dataset) -> Json:
    """The figures of BM25: recall, and the grades of its five best titles where there are labels."""
    result: Json = {"name": "BM25", "titles": len(data.corpus)}
    judged = Judgements(data.labels["all"], data.corpus) if data.labels else None
    titles = data.corpus if judged is None else pa.concat_arrays([data.corpus, judged.added])
    index = Lexical(titles)
    rows = sample_rows(data.test.num_rows, BM25_QUERIES, 0)
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
