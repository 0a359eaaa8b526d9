"""The peers of the benchmarks of scans and of the service, each in a process of its own.

Two OpenMP runtimes do not belong in one process, so a `ScanPeer` builds and searches its index of random
vectors in another one. Of the FAISS PQ implementations (12 to 15) the fastest is chosen for each batch and k
before anything is timed.

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
and writes in a closed loop, and prints one JSON object. All of these peers run in this process, without HTTP.

| name        | what it is                                                                  |
|-------------|-----------------------------------------------------------------------------|
| qdrant_edge | Qdrant's embedded core, on disk, exact; every write flushed                 |
| lancedb     | LanceDB on disk, exhaustive, as many threads as cores                       |
| lancedb_ivf | LanceDB with its IVF_HNSW_SQ index and default settings: approximate        |
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
from rbegir.lab.markdown import Json

DIMENSIONS = 64
SCAN_CHUNK = 500_000
TRAIN = 65_536
USEARCH_QUERIES = 8  # at a time

Scan = Callable[[int, int], float]  # (batch, k) → milliseconds


def _floats(rng: np.random.Generator, count: int) -> Any:
    return rng.standard_normal((count, DIMENSIONS), dtype=np.float32)


def _bits(rng: np.random.Generator, count: int) -> Any:
    return rng.integers(0, 256, (count, 16), dtype=np.uint8)


def _timing(index: Any, keywords: int, draw: Callable[..., Any] = _floats) -> Scan:
    """Fill an index with random keywords and time its searches; making the queries does not count."""
    rng = np.random.default_rng(1)
    for start in range(0, keywords, SCAN_CHUNK):
        index.add(draw(rng, min(SCAN_CHUNK, keywords - start)))

    def search(batch: int, k: int) -> float:
        queries = draw(np.random.default_rng(2), batch)
        return milliseconds(lambda: index.search(queries, k))

    return search


def faiss_pq(keywords: int) -> Scan:
    import faiss

    index = faiss.IndexPQFastScan(DIMENSIONS, 32, 4, faiss.METRIC_INNER_PRODUCT)
    index.train(_floats(np.random.default_rng(1), TRAIN))
    timed = _timing(index, keywords)
    best: dict[tuple[int, int], int] = {}

    def search(batch: int, k: int) -> float:
        if (batch, k) not in best:
            times = {}
            for implementation in (12, 13, 14, 15):
                index.implem = implementation
                times[implementation] = min(timed(batch, k) for _ in range(2))
            best[batch, k] = min(times, key=lambda implementation: times[implementation])
        index.implem = best[batch, k]
        return timed(batch, k)

    return search


def faiss_bin(keywords: int) -> Scan:
    import faiss

    return _timing(faiss.IndexBinaryFlat(128), keywords, _bits)


def faiss_rabitq(keywords: int) -> Scan:
    import faiss

    index = faiss.IndexRaBitQFastScan(DIMENSIONS, faiss.METRIC_INNER_PRODUCT)
    index.train(_floats(np.random.default_rng(1), TRAIN))
    return _timing(index, keywords)


def turbovec(keywords: int) -> Scan:
    from turbovec import TurboQuantIndex

    index = TurboQuantIndex(dim=DIMENSIONS, bit_width=2)
    timed = _timing(index, keywords)
    index.prepare()
    return timed


def scann(keywords: int) -> Scan:
    import scann

    # two dimensions per block and 4 bits: https://github.com/google-research/google-research/blob/master/scann/docs/algorithms.md
    vectors = _floats(np.random.default_rng(1), keywords)
    builder = scann.scann_ops_pybind.builder(vectors, 10, "dot_product")
    searcher = builder.score_ah(2, training_sample_size=TRAIN, hash_type="lut16").build()

    def search(batch: int, k: int) -> float:
        queries = _floats(np.random.default_rng(2), batch)
        if batch == 1:
            return milliseconds(lambda: searcher.search(queries[0], final_num_neighbors=k))
        return milliseconds(lambda: searcher.search_batched(queries, final_num_neighbors=k))

    return search


def rabitqlib(keywords: int) -> Scan:
    import rabitqlib

    vectors = _floats(np.random.default_rng(1), keywords)
    clusters = rabitqlib.RaBitQKMeans(DIMENSIONS, 16, num_threads=cpu_count())
    clusters.train(vectors)
    index = rabitqlib.IvfIndex(DIMENSIONS, keywords, 16, 2, metric="ip")
    index.build(vectors, clusters.centroids, clusters.assignments, num_threads=cpu_count())

    def search(batch: int, k: int) -> float:
        queries = _floats(np.random.default_rng(2), batch)
        return milliseconds(lambda: index.search(queries, k, nprobe=16, num_threads=1))

    return search


def usearch(keywords: int) -> Scan:
    from usearch.index import MetricKind, search

    codes = _bits(np.random.default_rng(1), keywords)

    def timed(batch: int, k: int) -> float:
        queries = _bits(np.random.default_rng(2), batch)

        def in_parts() -> None:  # it keeps the distances of all pairs at once
            for part in np.split(queries, range(USEARCH_QUERIES, batch, USEARCH_QUERIES)):
                search(codes, part, k, MetricKind.Hamming, exact=True, threads=1)

        return milliseconds(in_parts)

    return timed


def numkong(keywords: int) -> Scan:
    import numkong as nk

    rng = np.random.default_rng(1)
    step = 1 << 16  # keywords per block: the distances of a batch stay in the cache
    blocks = [nk.hammings_pack(_bits(rng, min(step, keywords - at))) for at in range(0, keywords, step)]

    def search(batch: int, k: int) -> float:
        queries = _bits(np.random.default_rng(2), batch)

        def distances() -> None:
            for block in blocks:
                nk.hammings_packed(queries, block)

        return milliseconds(distances)

    return search


SCAN_PEERS: dict[str, Callable[[int], Scan]] = {
    "faiss_pq": faiss_pq,
    "faiss_bin": faiss_bin,
    "faiss_rabitq": faiss_rabitq,
    "turbovec": turbovec,
    "scann": scann,
    "rabitqlib": rabitqlib,
    "usearch": usearch,
    "numkong": numkong,
}
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
        return self._wait(self._pool.submit(_search, batch, k))

    def _wait(self, result: Future[float]) -> float:
        try:
            return result.result()
        except BrokenProcessPool as error:
            raise RbegirError(f"the process of the peer {self.name} ended") from error

    def close(self) -> None:
        self._pool.shutdown()


_scan: Scan  # of a peer's process


def _start(name: str, keywords: int, threads: int) -> None:
    global _scan
    os.environ["RAYON_NUM_THREADS"] = str(threads)
    _scan = SCAN_PEERS[name](keywords)
    if name.startswith("faiss"):
        import faiss

        faiss.omp_set_num_threads(threads)  # after building, which may use all


def _search(batch: int, k: int) -> float:
    return _scan(batch, k)


Floats = npt.NDArray[np.float32]
Search = Callable[[int], list[int]]  # number of a query → ids of its hits
Write = Callable[[int], None]  # number of a new keyword
Database = tuple[Search, Write, int]  # the last: threads that search it
SERVE_PACKAGES = {"qdrant_edge": "qdrant-edge-py", "lancedb": "lancedb", "rbegir": "numpy"}
ROWS = 50_000
POINTS = 5_000  # that Qdrant takes at once
ASKED = 100  # queries whose recall is measured


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
        return [point.id for point in shard.query(request)]

    def write(number: int) -> None:
        at = number % len(queries)
        add(len(vectors) + number, queries[at : at + 1], ["new"])
        shard.flush()

    return search, write, cpu_count()


def lancedb(
    folder: Path, vectors: Floats, queries: Floats, texts: list[str], k: int, indexed: bool = False
) -> Database:
    import lancedb as lance
    import pyarrow as pa

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
    if indexed:
        table.create_index("cosine", index_type="IVF_HNSW_SQ")

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

    index = Index.open(folder / "index.rbe")
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
