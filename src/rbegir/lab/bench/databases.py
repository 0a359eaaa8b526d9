"""The vector databases that the benchmark of the service measures beside it, each in a process of its own.

    python -m rbegir.lab.bench.databases NAME FOLDER SECONDS K WRITES

stores the vectors of FOLDER (the values of the codes, so that hits are equal), runs the same mix of searches
and writes in a closed loop, and prints one JSON object. All run in the process itself, without HTTP, and keep
their data on disk. Comments cite the database's own documentation for every setting.

| name            | what it is                                                                  |
|-----------------|-----------------------------------------------------------------------------|
| qdrant_edge     | Qdrant's embedded core, exact; every write flushed                          |
| lancedb         | LanceDB, exhaustive, as many threads as cores                               |
| lancedb_ivf     | LanceDB with its default index, IVF_PQ, and default settings: approximate   |
| sqlite_vec      | sqlite-vec, exhaustive; every write a transaction with synchronous=FULL     |
| sqlite_vec_bits | sqlite-vec, exhaustive over sign bits, the best 8 k re-scored: approximate  |
| milvus_lite     | Milvus Lite's engine with a FLAT index; every write flushed                 |
| rbegir          | rbegir.Index, one query at a time, every write durable                      |
"""

import json
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rbegir.base.devices import cpu_count
from rbegir.lab.figures import Json

Floats = npt.NDArray[np.float32]
Search = Callable[[int], list[int]]  # number of a query → ids of its hits
Write = Callable[[int], None]  # number of a new keyword
PACKAGES = ("qdrant-edge-py", "lancedb", "sqlite-vec", "pysqlite3", "milvus-lite")
ASKED = 100  # queries whose recall is measured


@dataclass(frozen=True)
class Stored:
    """The data and queries of a database benchmark: the files that `serve.prepare` writes, and k."""

    folder: Path
    vectors: Floats  # [keywords, n]
    queries: Floats  # [queries, n]
    texts: list[str]
    k: int

    @classmethod
    def load(cls, folder: Path, k: int) -> "Stored":
        vectors, queries = np.load(folder / "vectors.npy", mmap_mode="r"), np.load(folder / "queries.npy")
        return cls(folder, vectors, queries, (folder / "texts.txt").read_text().splitlines(), k)

    def parts(self, rows: int) -> Iterator[tuple[int, Floats, list[str]]]:
        """The first id, the vectors and the texts of each part of so many rows; ids count from 0."""
        for start in range(0, len(self.vectors), rows):
            yield start, self.vectors[start : start + rows], self.texts[start : start + rows]

    def new(self, number: int) -> tuple[int, Floats, list[str]]:
        """A part of one new keyword: its vector is that of a query."""
        at = number % len(self.queries)
        return len(self.vectors) + number, self.queries[at : at + 1], ["new"]


# https://qdrant.tech/documentation/edge/edge-api: an exact query scans all vectors and needs no HNSW index;
# `flush` makes a write durable.
def qdrant_edge(stored: Stored) -> tuple[Search, Write]:
    import qdrant_edge as qdrant

    space = qdrant.EdgeVectorParams(stored.vectors.shape[1], qdrant.Distance.Cosine)
    shard = qdrant.EdgeShard.create(str(stored.folder / "qdrant"), qdrant.EdgeConfig(vectors=space))

    def add(first: int, rows: Floats, texts: list[str]) -> None:
        points = [
            qdrant.Point(first + at, row, {"text": text})
            for at, (row, text) in enumerate(zip(rows.tolist(), texts, strict=True))
        ]
        shard.update(qdrant.UpdateOperation.upsert_points(points))

    for part in stored.parts(5_000):  # points that Qdrant takes at once
        add(*part)
    exact = qdrant.SearchParams(exact=True)

    def search(number: int) -> list[int]:
        wanted = qdrant.Query.Nearest(stored.queries[number].tolist())
        request = qdrant.QueryRequest(limit=stored.k, query=wanted, with_payload=True, params=exact)
        return [int(point.id) for point in shard.query(request)]

    def write(number: int) -> None:
        add(*stored.new(number))
        shard.flush()

    return search, write


# https://docs.lancedb.com/indexing/vector-index: without an index, a search is exhaustive. With one, LanceDB
# tunes the number of probes itself, and `ef` is 1.5 k. A scalar index on the key speeds up writes, as
# https://lancedb.github.io/lancedb/guides/tables/merge_insert recommends.
def lancedb(stored: Stored, indexed: bool = False) -> tuple[Search, Write]:
    import lancedb as lance
    import pyarrow as pa
    from lancedb.index import BTree

    def batch(first: int, rows: Floats, texts: list[str]) -> Any:
        flat = pa.FixedSizeListArray.from_arrays(pa.array(rows.ravel()), rows.shape[1])
        ids = pa.array(np.arange(first, first + len(rows)))
        return pa.record_batch({"id": ids, "vector": flat, "text": pa.array(texts)})

    batches = (batch(*part) for part in stored.parts(50_000))
    schema = batch(*stored.new(0)).schema
    table = lance.connect(stored.folder / "lance").create_table(
        "keywords", batches, schema=schema, mode="overwrite"
    )
    table.create_index("id", config=BTree())
    if indexed:
        table.create_index("cosine")  # IVF_PQ, its default; IVF_HNSW_SQ of a million took over 5 minutes here

    def search(number: int) -> list[int]:
        query: Any = table.search(stored.queries[number])
        found = query.distance_type("cosine").limit(stored.k).select(["id", "text", "_distance"]).to_arrow()
        ids: list[int] = found["id"].to_pylist()
        return ids

    def write(number: int) -> None:
        rows = pa.Table.from_batches([batch(*stored.new(number))])
        table.merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(rows)

    return search, write


# https://alexgarcia.xyz/sqlite-vec/python.html: pysqlite3 brings a recent SQLite, which loads extensions.
# https://alexgarcia.xyz/sqlite-vec/features/vec0.html: a text that no filter needs is an auxiliary column.
# https://alexgarcia.xyz/sqlite-vec/guides/performance.html: memory mapping helped; larger pages and chunks
# gained nothing more. https://www.sqlite.org/wal.html: readers beside a writer, and a commit is durable with
# synchronous=FULL, the default. Each thread has a connection of its own, which keeps statements prepared.
# https://alexgarcia.xyz/sqlite-vec/guides/binary-quant.html: sign bits, and 8 k candidates to re-score. The
# time to find so many grows with the chunks, which are 1,024 rows by default: 64 are three times as fast. The
# index that re-scores by itself (https://github.com/asg017/sqlite-vec/pull/276) is in pre-releases only.
def sqlite_vec(stored: Stored, bits: bool = False) -> tuple[Search, Write]:
    import pysqlite3
    import sqlite_vec as extension

    path = stored.folder / ("sqlite-bits.db" if bits else "sqlite.db")
    own = threading.local()

    def database() -> Any:
        if not hasattr(own, "connection"):
            own.connection = pysqlite3.connect(path)
            own.connection.enable_load_extension(True)
            extension.load(own.connection)
            own.connection.execute("PRAGMA journal_mode = WAL")
            own.connection.execute(f"PRAGMA mmap_size = {1 << 40}")
        return own.connection

    n = stored.vectors.shape[1]
    coarse = f"bits bit[{n}], " if bits else ""
    columns = f"id integer primary key, {coarse}vector float[{n}] distance_metric=cosine, +text text"
    columns += ", chunk_size=64" if bits else ""
    insert = f"INSERT INTO keywords VALUES (?1, {'vec_quantize_binary(?2), ' if bits else ''}?2, ?3)"
    query = "SELECT id, text, distance FROM keywords WHERE vector MATCH ?1 AND k = ?2"
    if bits:
        query = """
            WITH candidates AS MATERIALIZED (
                SELECT id, text, vector FROM keywords WHERE bits MATCH vec_quantize_binary(?1) AND k = 8 * ?2
            )
            SELECT id, text, vec_distance_cosine(vector, ?1) FROM candidates ORDER BY 3 LIMIT ?2"""

    def add(first: int, rows: Floats, texts: list[str]) -> None:
        with database() as transaction:
            transaction.executemany(insert, zip(range(first, first + len(rows)), rows, texts, strict=True))

    database().execute(f"CREATE VIRTUAL TABLE keywords USING vec0({columns})")
    for part in stored.parts(len(stored.vectors)):  # one transaction
        add(*part)

    def search(number: int) -> list[int]:
        found = database().execute(query, (stored.queries[number], stored.k))
        return [key for key, _, _ in found]

    return search, lambda number: add(*stored.new(number))


# https://milvus.io/docs/flat.md: FLAT compares a query with every vector, and has no parameters.
# https://github.com/milvus-io/milvus-lite describes two ways to ask: pymilvus, over gRPC to a thread of the
# same process, and its engine itself, which searched as fast and wrote about twice as fast. `flush` puts what
# was written into files of its own and syncs the manifest that names them.
def milvus_lite(stored: Stored) -> tuple[Search, Write]:
    from milvus_lite import CollectionSchema, DataType, FieldSchema, MilvusLite

    fields = [
        FieldSchema(name="id", dtype=DataType.INT64, is_primary=True),
        FieldSchema(name="vector", dtype=DataType.FLOAT_VECTOR, dim=stored.vectors.shape[1]),
        FieldSchema(name="text", dtype=DataType.VARCHAR, max_length=65_535),
    ]
    database = MilvusLite(str(stored.folder / "milvus"))
    collection = database.create_collection("keywords", CollectionSchema(fields=fields))

    def add(first: int, rows: Floats, texts: list[str]) -> None:
        named = enumerate(zip(rows.tolist(), texts, strict=True), first)
        collection.upsert([{"id": key, "vector": row, "text": text} for key, (row, text) in named])

    for part in stored.parts(50_000):
        add(*part)
    collection.flush()
    collection.create_index("vector", {"index_type": "FLAT", "metric_type": "COSINE", "params": {}})
    collection.load()

    def search(number: int) -> list[int]:
        query = stored.queries[number].tolist()
        (found,) = collection.search([query], top_k=stored.k, metric_type="COSINE", output_fields=["text"])
        return [hit["id"] for hit in found]

    def write(number: int) -> None:
        add(*stored.new(number))
        collection.flush()

    return search, write


def rbegir(stored: Stored) -> tuple[Search, Write]:
    from rbegir.index.store import Index

    index = Index.open(stored.folder / "peer.rbe")
    asked = (stored.folder / "queries.txt").read_text().splitlines()

    def search(number: int) -> list[int]:
        ids: list[int] = index.search(asked[number], k=stored.k, rerank=False).ids[0].tolist()
        return ids

    def write(number: int) -> None:
        index.upsert([f"{asked[number % len(asked)]} {number}"], ids=[10**15 + number])

    return search, write


DATABASES: dict[str, Callable[[Stored], tuple[Search, Write]]] = {
    "qdrant_edge": qdrant_edge,
    "lancedb": lancedb,
    "lancedb_ivf": partial(lancedb, indexed=True),
    "sqlite_vec": sqlite_vec,
    "sqlite_vec_bits": partial(sqlite_vec, bits=True),
    "milvus_lite": milvus_lite,
    "rbegir": rbegir,
}
# The others are searched by as many threads as cores. Milvus Lite is Python: a second thread gains nothing.
ONE_THREAD = ("milvus_lite", "rbegir")


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
    stored = Stored.load(folder, k)
    began = time.perf_counter()
    search, write = DATABASES[name](stored)
    load_s = time.perf_counter() - began
    found = recall(search, stored)
    threads = 1 if name in ONE_THREAD else cpu_count()
    figures = loop(search, write, seconds, writes, len(stored.queries), threads)
    print(json.dumps({"keywords": len(stored.vectors), **figures, "load_s": load_s, "recall": found}))


def recall(search: Search, stored: Stored) -> float:
    """The share of hits whose cosine is at least that of the exact k-th hit, so that ties do not count."""
    unit = stored.vectors / np.linalg.norm(stored.vectors, axis=1, keepdims=True)
    asked = stored.queries[:ASKED]
    good = 0
    for number, query in enumerate(asked):
        cosines = unit @ query
        least = np.partition(cosines, -stored.k)[-stored.k]
        good += int(np.count_nonzero(cosines[search(number)] >= least - 1e-5 * abs(least)))
    return good / (stored.k * len(asked))


if __name__ == "__main__":
    name, folder, seconds, k, writes = sys.argv[1:]
    serve_peer(name, Path(folder), float(seconds), int(k), float(writes))
