"""Peers of the service benchmark: vector databases that run inside this process, on the same vectors.

    python -m rbegir.lab.bench.serve_peers NAME FOLDER SECONDS K WRITES

reads `vectors.npy` (float32 [keywords, n], the values of the codes, so that cosines and therefore hits are
the same), `queries.npy` and `texts.txt` from FOLDER, stores them, and runs the same mix of searches and
writes in a closed loop. Prints one JSON object.

| name          | what it is                                                                        |
|---------------|-----------------------------------------------------------------------------------|
| qdrant_local  | qdrant-client's local mode: NumPy in this process, in memory. Not Qdrant's server. |
| lancedb       | LanceDB on disk, exhaustive (no ANN index), as many threads as cores               |
| rbegir        | rbegir.Index in this process, one query at a time, every write durable             |

None of them passes through HTTP, and Qdrant's local mode makes nothing durable: where rbegir's service is
compared with them, it carries the cost of both. Qdrant's local mode copies an array for every point that is
added, so a million would take a quarter of an hour; it gets the first hundred thousand, and its figures are
left as they are, which flatters it.
"""

from __future__ import annotations

import json
import random
import sys
import threading
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Search = Callable[[int], int]  # number of a query → number of hits with text
Write = Callable[[int], None]  # number of a new keyword
PACKAGES = {"qdrant_local": "qdrant-client", "lancedb": "lancedb", "rbegir": "numpy"}
CHUNK = 50_000
MOST = {"qdrant_local": 100_000}  # keywords that a peer gets


def qdrant_local(
    folder: Path, vectors: Floats, queries: Floats, texts: list[str], k: int
) -> tuple[Search, Write, int]:
    # local mode warns beyond 20,000 points; that it is local is said in the result
    warnings.simplefilter("ignore")
    from qdrant_client import QdrantClient, models

    client = QdrantClient(":memory:")
    space = models.VectorParams(size=vectors.shape[1], distance=models.Distance.COSINE)
    client.create_collection("keywords", vectors_config=space)
    for start in range(0, len(vectors), CHUNK):
        stop = min(start + CHUNK, len(vectors))
        client.upload_collection(
            "keywords",
            vectors=vectors[start:stop],
            ids=range(start, stop),
            payload=[{"text": text} for text in texts[start:stop]],
            batch_size=CHUNK,
        )

    def search(number: int) -> int:
        found = client.query_points("keywords", query=queries[number], limit=k, with_payload=True).points
        return sum(point.payload is not None for point in found)

    def write(number: int) -> None:
        vector = queries[number % len(queries)].tolist()
        point = models.PointStruct(id=len(vectors) + number, vector=vector, payload={"text": "new"})
        client.upsert("keywords", [point])

    return search, write, 1


def lancedb(
    folder: Path, vectors: Floats, queries: Floats, texts: list[str], k: int
) -> tuple[Search, Write, int]:
    import lancedb as lance
    import pyarrow as pa

    def batches() -> Any:
        for start in range(0, len(vectors), CHUNK):
            part = vectors[start : start + CHUNK]
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


def rbegir(
    folder: Path, vectors: Floats, queries: Floats, texts: list[str], k: int
) -> tuple[Search, Write, int]:
    from rbegir.index.store import Index

    index = Index.open(folder / "index.rbe")
    asked = (folder / "queries.txt").read_text().splitlines()

    def search(number: int) -> int:
        hits = index.search(asked[number], k=k)
        return len(hits[0])

    def write(number: int) -> None:
        index.upsert([f"{asked[number % len(asked)]} {number}"], ids=[10**15 + number])

    return search, write, 1


PEERS = {"qdrant_local": qdrant_local, "lancedb": lancedb, "rbegir": rbegir}


def loop(
    search: Search, write: Write, seconds: float, writes: float, queries: int, threads: int
) -> dict[str, Any]:
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


def main() -> None:
    name, folder, seconds, k, writes = (
        sys.argv[1],
        Path(sys.argv[2]),
        float(sys.argv[3]),
        int(sys.argv[4]),
        float(sys.argv[5]),
    )
    vectors, queries = np.load(folder / "vectors.npy", mmap_mode="r"), np.load(folder / "queries.npy")
    vectors = vectors[: MOST.get(name)]
    texts = (folder / "texts.txt").read_text().splitlines()[: len(vectors)]
    began = time.perf_counter()
    search, write, threads = PEERS[name](folder, vectors, queries, texts, k)
    load_s = time.perf_counter() - began
    hits = search(0)
    if hits != k:
        raise SystemExit(f"{name} gave {hits} hits instead of {k}")
    figures = loop(search, write, seconds, writes, len(queries), threads)
    print(json.dumps({"keywords": len(vectors), **figures, "load_s": load_s}))


if __name__ == "__main__":
    main()
