"""The peers of the benchmark of scans, each in a process of its own.

Two OpenMP runtimes do not belong in one process, so a `ScanPeer` builds and searches its index of random
vectors in another one. Comments cite the peer's own documentation for every setting.

| name         | what                                                       | bytes per keyword |
|--------------|------------------------------------------------------------|-------------------|
| faiss_pq     | FAISS IndexPQFastScan, 64 dimensions, 32 × 4               | 16                |
| faiss_bin    | FAISS IndexBinaryFlat, 128 bits                            | 16                |
| faiss_rabitq | FAISS IndexRaBitQFastScan, 64 dimensions                   | 8 and factors     |
| turbovec     | TurboQuantIndex, 64 dimensions, 2 bits                     | 16 and a norm     |
| scann        | ScaNN without a tree: 32 × 4 bits, no reordering           | 16                |
| rabitqlib    | RaBitQ's own library: 16 clusters, all of them, 2 bits     | 16 and factors    |
| usearch      | usearch's index, exact search, 128 bits                    | 16 and a graph    |
| numkong      | NumKong's packed Hamming distances alone, without a top k  | 16                |
"""

import multiprocessing
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import product
from typing import Any

import numpy as np

from rbegir.base.devices import cpu_count
from rbegir.errors import RbegirError
from rbegir.lab.bench.host import milliseconds

DIMENSIONS = 64
SCAN_CHUNK = 500_000
TRAIN = 65_536

Find = Callable[[Any, int], Any]  # (queries, k) → rows of the hits, [queries, k]; of NumKong, distances
Setting = tuple[int, ...]


def _floats(rng: np.random.Generator, count: int) -> Any:
    return rng.standard_normal((count, DIMENSIONS), dtype=np.float32)


def _bits(rng: np.random.Generator, count: int) -> Any:
    return rng.integers(0, 256, (count, 16), dtype=np.uint8)


def _fill(index: Any, keywords: int, draw: Callable[..., Any] = _floats) -> None:
    """Add random keywords to an index."""
    rng = np.random.default_rng(1)
    for start in range(0, keywords, SCAN_CHUNK):
        index.add(draw(rng, min(SCAN_CHUNK, keywords - start)))


def _fastest(settings: Sequence[Setting], use: Callable[[Setting], None], search: Find) -> Find:
    """A search with the setting that is fastest for its batch and k.

    Which one that is depends on both, so the first search of each size, which is not timed, tries them all.
    """
    best: dict[tuple[int, int], Setting] = {}

    def find(queries: Any, k: int) -> Any:
        asked = len(queries), k
        if asked not in best:
            times = {}
            for setting in settings:
                use(setting)
                times[setting] = min(milliseconds(lambda: search(queries, k)) for _ in range(2))
            best[asked] = min(times, key=lambda setting: times[setting])
        use(best[asked])
        return search(queries, k)

    return find


# https://github.com/facebookresearch/faiss/wiki/Fast-accumulation-of-PQ-and-AQ-codes-(FastScan): 4 bits per
# part in blocks of 32. IndexFastScan lists implementations 12 to 15, with a heap or a reservoir.
def faiss_pq(keywords: int) -> Find:
    import faiss

    index = faiss.IndexPQFastScan(DIMENSIONS, 32, 4, faiss.METRIC_INNER_PRODUCT)
    index.train(_floats(np.random.default_rng(1), TRAIN))
    _fill(index, keywords)

    def use(setting: Setting) -> None:
        (index.implem,) = setting

    return _fastest([(12,), (13,), (14,), (15,)], use, lambda queries, k: index.search(queries, k)[1])


# IndexBinaryFlat.h: `use_heap` selects "between using a heap or counting", `query_batch_size` queries are
# searched at a time; they share blocks of `hamming_batch_size` keywords (utils/hamming.h), 65,536 by default.
def faiss_bin(keywords: int) -> Find:
    import faiss

    index: Any = faiss.IndexBinaryFlat(128)
    of_library: Any = faiss.cvar
    _fill(index, keywords, _bits)

    def use(setting: Setting) -> None:
        index.use_heap, index.query_batch_size, of_library.hamming_batch_size = setting

    settings = list(product((True, False), (32, 256), (1 << 16, 1 << 18)))
    return _fastest(settings, use, lambda queries, k: index.search(queries, k)[1])


# https://github.com/facebookresearch/faiss/pull/4595: the faster form of IndexRaBitQ, 32 vectors at a time.
def faiss_rabitq(keywords: int) -> Find:
    import faiss

    index = faiss.IndexRaBitQFastScan(DIMENSIONS, faiss.METRIC_INNER_PRODUCT)
    index.train(_floats(np.random.default_rng(1), TRAIN))
    _fill(index, keywords)
    return lambda queries, k: index.search(queries, k)[1]


# https://github.com/RyanCodrai/turbovec: `prepare` builds what the first search would otherwise build.
# Calibration changes recall, not speed.
def turbovec(keywords: int) -> Find:
    from turbovec import TurboQuantIndex

    index = TurboQuantIndex(dim=DIMENSIONS, bit_width=2)
    _fill(index, keywords)
    index.prepare()
    return lambda queries, k: index.search(queries, k)[1]


# https://github.com/google-research/google-research/blob/master/scann/docs/algorithms.md: two dimensions per
# block. A tree would not scan everything, and reordering needs the float vectors.
def scann(keywords: int) -> Find:
    import scann

    vectors = _floats(np.random.default_rng(1), keywords)
    builder = scann.scann_ops_pybind.builder(vectors, 10, "dot_product")
    searcher = builder.score_ah(2, training_sample_size=TRAIN, hash_type="lut16").build()

    def find(queries: Any, k: int) -> Any:
        if len(queries) == 1:
            return searcher.search(queries[0], final_num_neighbors=k)[0][None]
        return searcher.search_batched(queries, final_num_neighbors=k)[0]

    return find


# https://vectordb-ntu.github.io/RaBitQ-Library/index/ivf recommends about 4 √N clusters, of which a search
# probes few. Here all are probed, and few clusters keep the overhead per cluster small.
def rabitqlib(keywords: int) -> Find:
    import rabitqlib

    vectors = _floats(np.random.default_rng(1), keywords)
    clusters = rabitqlib.RaBitQKMeans(DIMENSIONS, 16, num_threads=cpu_count())
    clusters.train(vectors)
    index = rabitqlib.IvfIndex(DIMENSIONS, keywords, 16, 2, metric="ip")
    index.build(vectors, clusters.centroids, clusters.assignments, num_threads=cpu_count())
    return lambda queries, k: index.search(queries, k, nprobe=16, num_threads=1)[0]


# https://github.com/unum-cloud/usearch#exact-vs-approximate-search: with `exact=True` a search compares a
# query with every vector. It reads no graph, so the index has the cheapest one. The function `search`, which
# needs no index, is many times slower for one query.
def usearch(keywords: int) -> Find:
    from usearch.index import Index

    index = Index(ndim=128, metric="hamming", dtype="b1", connectivity=2, expansion_add=1, expansion_search=1)
    index.add(np.arange(keywords), _bits(np.random.default_rng(1), keywords), threads=cpu_count())
    return lambda queries, k: index.search(queries, k, exact=True, threads=1).keys.reshape(-1, k)


# https://github.com/ashvardanian/NumKong: `hammings_pack` prepares a matrix once for many `hammings_packed`.
def numkong(keywords: int) -> Find:
    import numkong as nk

    rng = np.random.default_rng(1)
    step = 1 << 16  # keywords per block: the distances of a query stay in the cache
    blocks = [nk.hammings_pack(_bits(rng, min(step, keywords - at))) for at in range(0, keywords, step)]

    def find(queries: Any, k: int) -> Any:
        for block in blocks:
            distances = nk.hammings_packed(queries, block)
        return distances  # of the last block

    return find


SCAN_PEERS: dict[str, Callable[[int], Find]] = {
    "faiss_pq": faiss_pq,
    "faiss_bin": faiss_bin,
    "faiss_rabitq": faiss_rabitq,
    "turbovec": turbovec,
    "scann": scann,
    "rabitqlib": rabitqlib,
    "usearch": usearch,
    "numkong": numkong,
}
OF_BITS = ("faiss_bin", "usearch", "numkong")  # the others are asked with float vectors
ONE_THREAD = ("scann", "rabitqlib", "usearch", "numkong")  # measured with one thread only
SCAN_PACKAGES = ("faiss-cpu", "turbovec", "scann", "rabitqlib", "usearch", "numkong")


class ScanPeer:
    """A peer in its own process, with an index of random vectors."""

    def __init__(self, name: str, keywords: int, threads: int) -> None:
        self.name = name
        spawn = multiprocessing.get_context("spawn")
        self._pool = ProcessPoolExecutor(1, spawn, _start, (name, keywords, threads))
        self._wait(self._pool.submit(float))  # until the index is built

    def search(self, batch: int, k: int) -> float:
        """Milliseconds of one search."""
        return self._wait(self._pool.submit(_search, self.name, batch, k))

    def _wait(self, result: Future[float]) -> float:
        try:
            return result.result()
        except BrokenProcessPool as error:
            raise RbegirError(f"the process of the peer {self.name} ended") from error

    def close(self) -> None:
        self._pool.shutdown()


_find: Find  # of a peer's process


def _start(name: str, keywords: int, threads: int) -> None:
    global _find
    os.environ["RAYON_NUM_THREADS"] = str(threads)
    _find = SCAN_PEERS[name](keywords)
    if name.startswith("faiss"):
        import faiss

        faiss.omp_set_num_threads(threads)  # after building, which may use all


def _search(name: str, batch: int, k: int) -> float:
    """Time a search; making the queries does not count."""
    queries = (_bits if name in OF_BITS else _floats)(np.random.default_rng(2), batch)
    return milliseconds(lambda: _find(queries, k))
