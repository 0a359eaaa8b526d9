"""The peers of the benchmarks of scans and of the service, each in a process of its own.

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
| usearch      | usearch.index.search, exact, 128 bits                      | 16                |
| numkong      | NumKong's packed Hamming distances alone, without a top k  | 16                |

    python -m rbegir.lab.bench.peers NAME FOLDER SECONDS K WRITES

stores the vectors of FOLDER (the values of the codes, so that hits are equal), runs the same mix of searches
and writes in a closed loop, and prints one JSON object. These peers run in the process itself, without HTTP.

| name        | what it is                                                                  |
|-------------|-----------------------------------------------------------------------------|
| qdrant_edge | Qdrant's embedded core, on disk, exact; every write flushed                 |
| lancedb     | LanceDB on disk, exhaustive, as many threads as cores                       |
| lancedb_ivf | LanceDB with its default index, IVF_PQ, and default settings: approximate   |
| rbegir      | rbegir.Index, one query at a time, every write durable                      |
"""

import json
import multiprocessing
import os
import random
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rbegir.base.devices import cpu_count
from rbegir.errors import RbegirError
from rbegir.lab.bench.host import milliseconds
from rbegir.lab.figures import Json

DIMENSIONS = 64
SCAN_CHUNK = 500_000
TRAIN = 65_536
USEARCH_QUERIES = 8  # at a time

Find = Callable[[Any, int], object]  # (queries, k) → hits


def _floats(rng: np.random.Generator, count: int) -> Any:
    return rng.standard_normal((count, DIMENSIONS), dtype=np.float32)


def _bits(rng: np.random.Generator, count: int) -> Any:
    return rng.integers(0, 256, (count, 16), dtype=np.uint8)


def _fill(index: Any, keywords: int, draw: Callable[..., Any] = _floats) -> None:
    """Add random keywords to an index."""
    rng = np.random.default_rng(1)
    for start in range(0, keywords, SCAN_CHUNK):
        index.add(draw(rng, min(SCAN_CHUNK, keywords - start)))


# https://github.com/facebookresearch/faiss/wiki/Fast-accumulation-of-PQ-and-AQ-codes-(FastScan): 4 bits per
# part in blocks of 32. IndexFastScan lists implementations 12 to 15, with a heap or a reservoir; which one is
# fastest depends on the batch and on k, so the first search of each size, which is not timed, tries them all.
def faiss_pq(keywords: int) -> Find:
    import faiss

    index = faiss.IndexPQFastScan(DIMENSIONS, 32, 4, faiss.METRIC_INNER_PRODUCT)
    index.train(_floats(np.random.default_rng(1), TRAIN))
    _fill(index, keywords)
    best: dict[tuple[int, int], int] = {}

    def find(queries: Any, k: int) -> object:
        asked = len(queries), k
        if asked not in best:
            times = {}
            for implementation in (12, 13, 14, 15):
                index.implem = implementation
                times[implementation] = min(milliseconds(lambda: index.search(queries, k)) for _ in range(2))
            best[asked] = min(times, key=lambda implementation: times[implementation])
        index.implem = best[asked]
        return index.search(queries, k)

    return find


# https://github.com/facebookresearch/faiss/wiki/Binary-Indexes: the default batch sizes "were found to be
# close to optimal for a large range of settings".
def faiss_bin(keywords: int) -> Find:
    import faiss

    index = faiss.IndexBinaryFlat(128)
    _fill(index, keywords, _bits)
    return index.search


# https://github.com/facebookresearch/faiss/pull/4595: the faster form of IndexRaBitQ, 32 vectors at a time.
def faiss_rabitq(keywords: int) -> Find:
    import faiss

    index = faiss.IndexRaBitQFastScan(DIMENSIONS, faiss.METRIC_INNER_PRODUCT)
    index.train(_floats(np.random.default_rng(1), TRAIN))
    _fill(index, keywords)
    return index.search


# https://github.com/RyanCodrai/turbovec: `prepare` builds what the first search would otherwise build.
# Calibration changes recall, not speed.
def turbovec(keywords: int) -> Find:
    from turbovec import TurboQuantIndex

    index = TurboQuantIndex(dim=DIMENSIONS, bit_width=2)
    _fill(index, keywords)
    index.prepare()
    return index.search  # type: ignore[no-any-return]


# https://github.com/google-research/google-research/blob/master/scann/docs/algorithms.md: two dimensions per
# block. A tree would not scan everything, and reordering needs the float vectors.
def scann(keywords: int) -> Find:
    import scann

    vectors = _floats(np.random.default_rng(1), keywords)
    builder = scann.scann_ops_pybind.builder(vectors, 10, "dot_product")
    searcher = builder.score_ah(2, training_sample_size=TRAIN, hash_type="lut16").build()

    def find(queries: Any, k: int) -> object:
        if len(queries) == 1:
            return searcher.search(queries[0], final_num_neighbors=k)
        return searcher.search_batched(queries, final_num_neighbors=k)

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
    return lambda queries, k: index.search(queries, k, nprobe=16, num_threads=1)


# https://github.com/unum-cloud/usearch#exact-vs-approximate-search: `search` with `exact=True` scans without
# an index. It keeps the distances of all pairs at once, so large batches are searched in parts.
def usearch(keywords: int) -> Find:
    from usearch.compiled import MetricKind
    from usearch.index import search

    codes = _bits(np.random.default_rng(1), keywords)

    def find(queries: Any, k: int) -> None:
        for part in np.split(queries, range(USEARCH_QUERIES, len(queries), USEARCH_QUERIES)):
            search(codes, part, k, MetricKind.Hamming, exact=True, threads=1)

    return find


# https://github.com/ashvardanian/NumKong: `hammings_pack` prepares a matrix once for many `hammings_packed`.
def numkong(keywords: int) -> Find:
    import numkong as nk

    rng = np.random.default_rng(1)
    step = 1 << 16  # keywords per block: the distances of a query stay in the cache
    blocks = [nk.hammings_pack(_bits(rng, min(step, keywords - at))) for at in range(0, keywords, step)]

    def find(queries: Any, k: int) -> None:
        for block in blocks:
            nk.hammings_packed(queries, block)

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


Floats = npt.NDArray[np.float32]
Search = Callable[[int], list[int]]  # number of a query → ids of its hits
Write = Callable[[int], None]  # number of a new keyword
Database = tuple[Search, Write, int]  # the last: threads that search it
SERVE_PACKAGES = ("qdrant-edge-py", "lancedb")
ROWS = 50_000
POINTS = 5_000  # that Qdrant takes at once
ASKED = 100  # queries whose recall is measured


# https://qdrant.tech/documentation/edge/edge-api: an exact query scans all vectors and needs no HNSW index;
# `flush` makes a write durable.
def qdrant_edge(folder: Path, vectors: Floats, queries: Floats, texts: list[str], k: int) -> Database:
    import qdrant_edge as qdrant

    space = qdrant.EdgeVectorParams(vectors.shape[1], qdrant.Distance.Cosine)
    shard = qdrant.EdgeShard.create(str(folder / "qdrant"), qdrant.EdgeConfig(vectors=space))

    def add(first: int, rows: Floats, names: list[str]) -> None:
        points = [
            qdrant.Point(first + at, row, {"text": name})
            for at, (row, name) in enumerate(zip(rows.tolist(), names, strict=True))
        ]
        shard.update(qdrant.UpdateOperation.upsert_points(points))

    for start in range(0, len(vectors), POINTS):
        add(start, vectors[start : start + POINTS], texts[start : start + POINTS])
    exact = qdrant.SearchParams(exact=True)

    def search(number: int) -> list[int]:
        wanted = qdrant.Query.Nearest(queries[number].tolist())
        request = qdrant.QueryRequest(limit=k, query=wanted, with_payload=True, params=exact)
        return [int(point.id) for point in shard.query(request)]

    def write(number: int) -> None:
        at = number % len(queries)
        add(len(vectors) + number, queries[at : at + 1], ["new"])
        shard.flush()

    return search, write, cpu_count()


# https://docs.lancedb.com/indexing/vector-index: without an index, a search is exhaustive. With one, LanceDB
# tunes the number of probes itself, and `ef` is 1.5 k. A scalar index on the key speeds up writes, as
# https://lancedb.github.io/lancedb/guides/tables/merge_insert recommends.
def lancedb(
    folder: Path, vectors: Floats, queries: Floats, texts: list[str], k: int, indexed: bool = False
) -> Database:
    import lancedb as lance
    import pyarrow as pa
    from lancedb.index import BTree

    def batches() -> Any:
        for start in range(0, len(vectors), ROWS):
            part = vectors[start : start + ROWS]
            flat = pa.FixedSizeListArray.from_arrays(pa.array(part.ravel()), part.shape[1])
            yield pa.record_batch(
                {
                    "id": pa.array(np.arange(start, start + len(part))),
                    "vector": flat,
                    "text": pa.array(texts[start : start + len(part)]),
                }
            )

    schema = next(batches()).schema
    table = lance.connect(folder / "lance").create_table(
        "keywords", batches(), schema=schema, mode="overwrite"
    )
    table.create_index("id", config=BTree())
    if indexed:
        table.create_index("cosine")  # IVF_PQ, its default; IVF_HNSW_SQ of a million took over 5 minutes here

    def search(number: int) -> list[int]:
        query: Any = table.search(queries[number])
        found = query.distance_type("cosine").limit(k).select(["id", "text", "_distance"]).to_arrow()
        ids: list[int] = found["id"].to_pylist()
        return ids

    def write(number: int) -> None:
        row = {"id": len(vectors) + number, "vector": queries[number % len(queries)], "text": "new"}
        table.merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute([row])

    return search, write, cpu_count()


def rbegir(folder: Path, vectors: Floats, queries: Floats, texts: list[str], k: int) -> Database:
    from rbegir.index.store import Index

    index = Index.open(folder / "peer.rbe")
    asked = (folder / "queries.txt").read_text().splitlines()

    def search(number: int) -> list[int]:
        ids: list[int] = index.search(asked[number], k=k, rerank=False).ids[0].tolist()
        return ids

    def write(number: int) -> None:
        index.upsert([f"{asked[number % len(asked)]} {number}"], ids=[10**15 + number])

    return search, write, 1


SERVE_PEERS: dict[str, Callable[[Path, Floats, Floats, list[str], int], Database]] = {
    "qdrant_edge": qdrant_edge,
    "lancedb": lancedb,
    "lancedb_ivf": partial(lancedb, indexed=True),
    "rbegir": rbegir,
}


def loop(search: Search, write: Write, seconds: float, writes: float, queries: int, threads: int) -> Json:
    """Run the mix in a closed loop on `threads` threads."""
    latencies: list[float] = []
    wrote: list[float] = []
    lock = threading.Lock()
    until = time.perf_counter() + seconds
    began = time.perf_counter()

    def work(number: int) -> None:
        rng = random.Random(number)
        done = 0
        while (now := time.perf_counter()) < until:
            if rng.random() < writes:
                with lock:  # one writer at a time, as in the service
                    write(number * 10**6 + done)
                done += 1
                wrote.append((time.perf_counter() - now) * 1e3)
            else:
                search(rng.randrange(queries))
                latencies.append((time.perf_counter() - now) * 1e3)

    with ThreadPoolExecutor(threads) as pool:
        for finished in [pool.submit(work, number) for number in range(threads)]:
            finished.result()
    took = time.perf_counter() - began
    return {
        "searches_per_s": len(latencies) / took,
        "p50_ms": float(np.percentile(latencies, 50)),
        "p99_ms": float(np.percentile(latencies, 99)),
        "write_p50_ms": float(np.percentile(wrote, 50)) if wrote else None,
        "threads": threads,
        "seconds": took,
    }


def serve_peer(name: str, folder: Path, seconds: float, k: int, writes: float) -> None:
    """Load one database and print its figures as one JSON object."""
    vectors, queries = np.load(folder / "vectors.npy", mmap_mode="r"), np.load(folder / "queries.npy")
    texts = (folder / "texts.txt").read_text().splitlines()
    began = time.perf_counter()
    search, write, threads = SERVE_PEERS[name](folder, vectors, queries, texts, k)
    load_s = time.perf_counter() - began
    found = recall(search, vectors, queries[:ASKED], k)
    figures = loop(search, write, seconds, writes, len(queries), threads)
    print(json.dumps({"keywords": len(vectors), **figures, "load_s": load_s, "recall": found}))


def recall(search: Search, vectors: Floats, queries: Floats, k: int) -> float:
    """The share of hits whose cosine is at least that of the exact k-th hit, so that ties do not count."""
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    good = 0
    for number, query in enumerate(queries):
        cosines = unit @ query
        least = np.partition(cosines, -k)[-k]
        good += int(np.count_nonzero(cosines[search(number)] >= least - 1e-5 * abs(least)))
    return good / (k * len(queries))


if __name__ == "__main__":
    name, folder, seconds, k, writes = sys.argv[1:]
    serve_peer(name, Path(folder), float(seconds), int(k), float(writes))
