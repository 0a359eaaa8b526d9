"""The peers of the benchmarks of scans and of the service, each in a process of its own.

    python -m rbegir.lab.bench.peers scan NAME KEYWORDS THREADS

builds an index of random vectors, prints one line when it is ready, and then answers every line
{"batch": B, "k": K} with {"ms": …}. Two OpenMP runtimes do not belong into one process. Of the FAISS PQ
implementations (12 to 15) the fastest is chosen for each batch and k before anything is timed.

| name        | what                                         | bytes per keyword |
|-------------|----------------------------------------------|-------------------|
| faiss_pq    | FAISS IndexPQFastScan, 64 dimensions, 32 × 4 | 16                |
| faiss_bin   | FAISS IndexBinaryFlat, 128 bits              | 16                |
| faiss_rabitq| FAISS IndexRaBitQFastScan, 64 dimensions     | 8 and factors     |
| turbovec    | TurboQuantIndex, 64 dimensions, 2 bits       | 16 and a norm     |

    python -m rbegir.lab.bench.peers serve NAME FOLDER SECONDS K WRITES

stores the vectors of FOLDER (the values of the codes, so that hits are the same), runs the same mix of
searches and writes in a closed loop, and prints one JSON object. None of these peers uses HTTP.

| name          | what it is                                                                         |
|---------------|------------------------------------------------------------------------------------|
| qdrant_local  | qdrant-client's local mode: NumPy in memory, nothing durable. Not Qdrant's server. |
|               | Adding a million points would take a quarter of an hour: it gets the first 100,000 |
| lancedb       | LanceDB on disk, exhaustive (no ANN index), as many threads as cores               |
| rbegir        | rbegir.Index in this process, one query at a time, every write durable             |
"""

from __future__ import annotations

import json
import random
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rbegir.lab.bench.host import milliseconds
from rbegir.lab.markdown import Json

DIMENSIONS = 64
SCAN_CHUNK = 500_000
TRAIN = 65_536
SCAN_PACKAGES = {
    "faiss_pq": "faiss-cpu",
    "faiss_bin": "faiss-cpu",
    "faiss_rabitq": "faiss-cpu",
    "turbovec": "turbovec",
}

Scan = Callable[[int, int], float]  # (batch, k) → milliseconds


def _chunks(keywords: int) -> Iterator[Any]:
    rng = np.random.default_rng(1)
    for start in range(0, keywords, SCAN_CHUNK):
        yield rng.standard_normal((min(SCAN_CHUNK, keywords - start), DIMENSIONS), dtype=np.float32)


def _queries(batch: int) -> Any:
    return np.random.default_rng(2).standard_normal((batch, DIMENSIONS), dtype=np.float32)


def _filled(index: Any, keywords: int) -> Any:
    for chunk in _chunks(keywords):
        index.add(chunk)
    return index


def _timing(index: Any, queries_of: Callable[[int], Any] = _queries) -> Scan:
    """Time the searches of an index; making the queries does not count."""

    def search(batch: int, k: int) -> float:
        queries = queries_of(batch)
        return milliseconds(lambda: index.search(queries, k))

    return search


def faiss_pq(keywords: int) -> Scan:
    import faiss

    index = faiss.IndexPQFastScan(DIMENSIONS, 32, 4, faiss.METRIC_INNER_PRODUCT)
    index.train(next(_chunks(TRAIN)))
    timed = _timing(_filled(index, keywords))
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

    index = faiss.IndexBinaryFlat(128)
    rng = np.random.default_rng(1)
    for start in range(0, keywords, SCAN_CHUNK):
        index.add(rng.integers(0, 256, (min(SCAN_CHUNK, keywords - start), 16), dtype=np.uint8))
    return _timing(
        index, lambda batch: np.random.default_rng(2).integers(0, 256, (batch, 16), dtype=np.uint8)
    )


def faiss_rabitq(keywords: int) -> Scan:
    import faiss

    index = faiss.IndexRaBitQFastScan(DIMENSIONS, faiss.METRIC_INNER_PRODUCT)
    index.train(next(_chunks(TRAIN)))
    return _timing(_filled(index, keywords))


def turbovec(keywords: int) -> Scan:
    from turbovec import TurboQuantIndex

    index = _filled(TurboQuantIndex(dim=DIMENSIONS, bit_width=2), keywords)
    index.prepare()
    return _timing(index)


SCAN_PEERS: dict[str, Callable[[int], Scan]] = {
    "faiss_pq": faiss_pq,
    "faiss_bin": faiss_bin,
    "faiss_rabitq": faiss_rabitq,
    "turbovec": turbovec,
}


def scan_peer(name: str, keywords: int, threads: int) -> None:
    """Serve one peer over standard input and output."""
    search = SCAN_PEERS[name](keywords)
    if name.startswith("faiss"):
        import faiss

        faiss.omp_set_num_threads(threads)  # after building, which may use all
    print(json.dumps({"ready": name}), flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        print(json.dumps({"ms": search(asked["batch"], asked["k"])}), flush=True)


Floats = npt.NDArray[np.float32]
Search = Callable[[int], int]  # number of a query → number of hits with text
Write = Callable[[int], None]  # number of a new keyword
Database = tuple[Search, Write, int]  # the last: threads that it is asked from
SERVE_PACKAGES = {"qdrant_local": "qdrant-client", "lancedb": "lancedb", "rbegir": "numpy"}
ROWS = 50_000
SERVE_MOST = {"qdrant_local": 100_000}  # keywords that a peer gets


def qdrant_local(folder: Path, vectors: Floats, queries: Floats, texts: list[str], k: int) -> Database:
    # local mode warns beyond 20,000 points; that it is local is said in the result
    warnings.simplefilter("ignore")
    from qdrant_client import QdrantClient, models

    client = QdrantClient(":memory:")
    space = models.VectorParams(size=vectors.shape[1], distance=models.Distance.COSINE)
    client.create_collection("keywords", vectors_config=space)
    for start in range(0, len(vectors), ROWS):
        stop = min(start + ROWS, len(vectors))
        client.upload_collection(
            "keywords",
            vectors=vectors[start:stop],
            ids=range(start, stop),
            payload=[{"text": text} for text in texts[start:stop]],
            batch_size=ROWS,
        )

    def search(number: int) -> int:
        found = client.query_points("keywords", query=queries[number], limit=k, with_payload=True).points
        return sum(point.payload is not None for point in found)

    def write(number: int) -> None:
        vector = queries[number % len(queries)].tolist()
        point = models.PointStruct(id=len(vectors) + number, vector=vector, payload={"text": "new"})
        client.upsert("keywords", [point])

    return search, write, 1


def lancedb(folder: Path, vectors: Floats, queries: Floats, texts: list[str], k: int) -> Database:
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
    table = lance.connect(folder / "lance").create_table("keywords", batches(), schema=schema)

    def search(number: int) -> int:
        query: Any = table.search(queries[number])
        found = query.distance_type("cosine").limit(k).select(["id", "text", "_distance"]).to_arrow()
        return int(found.num_rows)

    def write(number: int) -> None:
        row = {"id": len(vectors) + number, "vector": queries[number % len(queries)], "text": "new"}
        table.merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute([row])

    from rbegir.base.devices import cpu_count

    return search, write, cpu_count()


def rbegir(folder: Path, vectors: Floats, queries: Floats, texts: list[str], k: int) -> Database:
    from rbegir.index.store import Index

    index = Index.open(folder / "index.rbe")
    asked = (folder / "queries.txt").read_text().splitlines()

    def search(number: int) -> int:
        hits = index.search(asked[number], k=k)
        return len(hits[0])

    def write(number: int) -> None:
        index.upsert([f"{asked[number % len(asked)]} {number}"], ids=[10**15 + number])

    return search, write, 1


SERVE_PEERS = {"qdrant_local": qdrant_local, "lancedb": lancedb, "rbegir": rbegir}


def loop(search: Search, write: Write, seconds: float, writes: float, queries: int, threads: int) -> Json:
    """The mix in a closed loop on so many threads."""
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
    vectors = vectors[: SERVE_MOST.get(name)]
    texts = (folder / "texts.txt").read_text().splitlines()[: len(vectors)]
    began = time.perf_counter()
    search, write, threads = SERVE_PEERS[name](folder, vectors, queries, texts, k)
    load_s = time.perf_counter() - began
    hits = search(0)
    if hits != k:
        raise SystemExit(f"{name} gave {hits} hits instead of {k}")
    figures = loop(search, write, seconds, writes, len(queries), threads)
    print(json.dumps({"keywords": len(vectors), **figures, "load_s": load_s}))


if __name__ == "__main__":
    what, name, *rest = sys.argv[1:]
    if what == "scan":
        scan_peer(name, *map(int, rest))
    else:
        serve_peer(name, Path(rest[0]), float(rest[1]), int(rest[2]), float(rest[3]))
