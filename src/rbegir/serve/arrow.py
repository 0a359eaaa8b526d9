"""Answers as Arrow IPC streams, for clients that say `Accept: application/vnd.apache.arrow.stream`.

One row a hit: `query` (its number in the request), `rank` (from 1), `id`, `score`, `key` and `row` (the exact
order: key descending, row ascending), `text`, and the attributes as columns of the types that they have in
the index. The metadata of the schema holds what concerns all hits: `recall` of a search by planes, and the
`certificate` of mode paper as JSON.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import pyarrow as pa

from rbegir.index.columns import type_named
from rbegir.search.hits import Hits
from rbegir.serve.batcher import Piece

MEDIA_TYPE = "application/vnd.apache.arrow.stream"


def hits_schema(info: dict[str, Any]) -> pa.Schema:
    """The columns of a stream of hits; attributes that bear a name of ours get a prefix."""
    id_type = pa.string() if info["id_type"] == "string" else pa.int64()
    plain = [
        ("query", pa.int64()),
        ("rank", pa.int64()),
        ("id", id_type),
        ("score", pa.float64()),
        ("key", pa.int64()),
        ("row", pa.int64()),
        ("text", pa.string()),
    ]
    names = {name for name, _ in plain}
    attributes = [
        (f"attribute_{name}" if name in names else name, type_named(dtype))
        for name, dtype in info["attributes"].items()
    ]
    return pa.schema([*plain, *attributes])


def _about(hits: Hits) -> dict[str, str]:
    """What is known of a result as a whole."""
    about: dict[str, str] = {}
    if hits.recall is not None:
        about["recall"] = repr(hits.recall)
    if hits.certificate is not None:
        about["certificate"] = json.dumps(asdict(hits.certificate))
    return about


def hits_stream(pieces: list[Piece], info: dict[str, Any]) -> bytes:
    """The hits of a request as one stream of one batch a piece."""
    schema = hits_schema(info).with_metadata(_about(pieces[0].hits))
    attributes = list(info["attributes"])
    sink = pa.BufferOutputStream()
    query = 0
    with pa.ipc.new_stream(sink, schema) as writer:
        for piece in pieces:
            hits, rows = piece.hits, slice(piece.start, piece.start + piece.count)
            k = min(piece.k, hits.k)
            numbers = [q for q in range(query, query + piece.count) for _ in range(k)]
            flat: list[Any] = [
                numbers,
                [*range(1, k + 1)] * piece.count,
                hits.ids[rows, :k].ravel().tolist(),
                hits.scores[rows, :k].ravel(),
                hits.keys[rows, :k].ravel(),
                hits.rows[rows, :k].ravel(),
                None if hits.texts is None else hits.texts[rows, :k].ravel().tolist(),
            ]
            found = [] if hits.attributes is None else [a for row in hits.attributes[rows] for a in row[:k]]
            flat += [[a.get(name) for a in found] or None for name in attributes]
            count = len(numbers)
            arrays = [
                pa.nulls(count, field.type) if values is None else pa.array(values, field.type)
                for values, field in zip(flat, schema, strict=True)
            ]
            writer.write_batch(pa.record_batch(arrays, schema=schema))
            query += piece.count
    stream: bytes = sink.getvalue().to_pybytes()
    return stream
