"""A search on the wire: the request as JSON, the hits as JSON or as an Arrow stream.

    options      the fields of `SearchRequest` under their own names; what has its default is left out
    codes        a list of planes, each the n bits as a hexadecimal string, or n integers
    hits         JSON for people and other languages, Arrow for our clients

Planes are hexadecimal with dimension 0 first: it is the highest bit of the first digit; a set bit means +1.

An Arrow stream has one row per hit: `query` (its number in the request), `rank` (from 1), `id`, `score`,
`key` and `row` (the exact order: key descending, row ascending), `text`, and the attributes as columns of the
types that they have in the index. Reranked hits also have a `code_score`. The metadata of its schema holds
what concerns all hits: `recall` of a search by planes, the `certificate` of mode paper as JSON, and
`searched`, the share of the keywords that a cluster searched, where that is not all.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rbegir.base.arguments import type_named
from rbegir.codes.planes import MAX_PLANES, Codes
from rbegir.errors import InputError
from rbegir.search.hits import Hits
from rbegir.search.missrate import MissCertificate
from rbegir.search.request import OPTIONS, SearchRequest

JSON = "application/json"
ARROW = "application/vnd.apache.arrow.stream"
NOT_SENT = ("deadline",)  # options that are no field of the body: the deadline is the header X-Timeout-Ms
OWN = {
    "query": pa.int64(),
    "rank": pa.int64(),
    "id": None,  # int64 or string, as the ids of the index are
    "score": pa.float64(),
    "code_score": pa.float64(),  # of reranked hits only
    "key": pa.int64(),
    "row": pa.int64(),
    "text": pa.string(),
}  # columns of a stream that are no attributes
PREFIX = "attribute_"  # of an attribute that is called like one of them, or like one with the prefix
_TAKEN = re.compile(f"({PREFIX})*({'|'.join(OWN)})")


def options_body(request: SearchRequest) -> dict[str, Any]:
    """The options of a request as fields of the body."""
    if request.where is not None and not isinstance(request.where, str):
        raise InputError(
            f"where must be a text, got {type(request.where).__name__}",
            hint="expressions of pyarrow cannot be sent to a service; write the filter as text",
        )
    body: dict[str, Any] = {"k": request.k}
    for name in OPTIONS:
        value = getattr(request, name)
        if name not in NOT_SENT and value != getattr(SearchRequest, name):
            body[name] = value.to_pylist() if isinstance(value, pa.Array) else value
    return body


def codes_body(codes: Codes | npt.NDArray[Any]) -> list[Any]:
    """Codes or integer vectors as the field `codes`."""
    if isinstance(codes, Codes):
        return hex_planes(codes)
    if isinstance(codes, np.ndarray) and codes.ndim == 2 and codes.dtype in (np.int8, np.int16):
        integers: list[Any] = codes.tolist()
        return integers
    raise InputError(
        f"codes must be rbegir.Codes or an int8 or int16 array [queries, n], got {type(codes).__name__}"
    )


def hex_planes(codes: Codes) -> list[list[str]]:
    """[count][planes] hexadecimal strings of n / 4 digits."""
    packed = np.packbits(codes.signs(), axis=2)  # [planes, count, n / 8], the highest bit first
    planes = [[row.tobytes().hex() for row in plane] for plane in packed]
    return [list(of_code) for of_code in zip(*planes, strict=True)]


def code_values(given: Sequence[list[str] | list[int]], n: int) -> npt.NDArray[np.int16]:
    """The field `codes` → values [count, n]."""
    return np.concatenate([_values_of(code, n, f"codes.{number}") for number, code in enumerate(given)])


def _values_of(code: list[str] | list[int], n: int, argument: str) -> npt.NDArray[np.int16]:
    if not code or not isinstance(code[0], str):
        if len(code) != n:
            raise InputError(f"{argument} has {len(code)} integers, expected n = {n}")
        return np.array([code], np.int16)
    if len(code) > MAX_PLANES:
        raise InputError(f"{argument} has {len(code)} planes, expected 1 to {MAX_PLANES}")
    planes = [str(plane) for plane in code]
    for t, plane in enumerate(planes):
        if len(plane) != n // 4:
            raise InputError(f"{argument}.{t} has {len(plane)} digits, expected {n // 4} for n = {n}")
    raw = np.frombuffer(bytes.fromhex("".join(planes)), np.uint8).reshape(len(planes), 1, n // 8)
    return Codes.from_signs(np.unpackbits(raw, axis=2).astype(np.bool_)).values()


def json_results(parts: Sequence[Hits], texts: Sequence[str] | None) -> list[dict[str, Any]]:
    """One result per query of the request, whose hits came in parts; `texts` are its queries."""
    results: list[dict[str, Any]] = []
    for hits in parts:
        common: dict[str, Any] = {}
        if hits.recall is not None:
            common["recall"] = hits.recall
        if hits.certificate is not None:
            common["expected_recall"] = hits.certificate.expected_recall
            common["p_miss_at_most"] = hits.certificate.p_miss_at_most
        if hits.searched < 1:
            common["searched"] = hits.searched
        for query in range(len(hits)):
            ids, scores = hits.ids[query].tolist(), hits.scores[query].tolist()
            codes = hits.code_scores[query].tolist()
            found = [None] * hits.k if hits.texts is None else hits.texts[query].tolist()
            attributes = [{}] * hits.k if hits.attributes is None else hits.attributes[query]
            shown = [
                {"id": i, "score": s, "code_score": c, "text": t, "attributes": a}
                for i, s, c, t, a in zip(ids, scores, codes, found, attributes, strict=True)
            ]
            results.append({"query": None, "hits": shown, **common})
    if texts is not None:
        for result, text in zip(results, texts, strict=True):
            result["query"] = text
    return results


def write_hits(parts: Sequence[Hits], info: Mapping[str, Any], *, attributes: bool = True) -> bytes:
    """The hits of a request as an Arrow stream of one batch per part; `info` describes the index."""
    types = {**OWN, "id": pa.string() if info["id_type"] == "string" else pa.int64()}
    if parts[0].texts is None:
        del types["text"]
    if not parts[0].reranked:
        del types["code_score"]
    names = list(info["attributes"]) if attributes else []
    columns = {f"{PREFIX}{name}" if _TAKEN.fullmatch(name) else name: name for name in names}
    types |= {column: type_named(info["attributes"][name]) for column, name in columns.items()}
    schema = pa.schema(list(types.items()), metadata=_about(parts))
    sink = pa.BufferOutputStream()
    query = 0
    with pa.ipc.new_stream(sink, schema) as writer:
        for hits in parts:
            count, k = len(hits), hits.k
            found = [] if hits.attributes is None else [hit for row in hits.attributes for hit in row]
            values: dict[str, Any] = {
                "query": np.repeat(np.arange(query, query + count), k),
                "rank": np.tile(np.arange(1, k + 1), count),
                "id": hits.ids.ravel().tolist(),
                "score": hits.scores.ravel(),
                "code_score": hits.code_scores.ravel(),
                "key": hits.keys.ravel(),
                "row": hits.rows.ravel(),
                "text": None if hits.texts is None else hits.texts.ravel().tolist(),
                **{column: [hit.get(name) for hit in found] or None for column, name in columns.items()},
            }
            arrays = [
                pa.nulls(count * k, dtype) if values[name] is None else pa.array(values[name], dtype)
                for name, dtype in types.items()
            ]
            writer.write_batch(pa.record_batch(arrays, schema=schema))
            query += count
    stream: bytes = sink.getvalue().to_pybytes()
    return stream


def _about(parts: Sequence[Hits]) -> dict[str, str]:
    """What is known of a result as a whole."""
    first, about = parts[0], {}
    if first.recall is not None:
        about["recall"] = repr(first.recall)
    if first.certificate is not None:
        about["certificate"] = json.dumps(asdict(first.certificate))
    searched = min(hits.searched for hits in parts)
    if searched < 1:
        about["searched"] = repr(searched)
    return about


def read_hits(raw: bytes, queries: int) -> Hits:
    """The hits in an Arrow stream, as an index returns them.

    Nothing is believed before its shape has been checked: what stands behind an address may be anything.
    """
    table = pa.ipc.open_stream(raw).read_all()
    table.validate(full=True)
    asked = table["query"].to_numpy()
    if len(asked) and not 0 <= asked.min() <= asked.max() < queries:
        raise ValueError(f"hits of query {asked.max()}, {queries} were asked")
    # Several scans may have answered the queries of one request, and the index may have shrunk between them.
    k = int(np.bincount(asked, minlength=queries).min())
    table = table.filter(pa.array(table["rank"].to_numpy() <= k))
    shape = (queries, k)
    columns = {name: table[name].combine_chunks() for name in table.column_names}
    own = {
        name: columns.pop(name).to_numpy(zero_copy_only=False).reshape(shape)  # [queries, k]
        for name in OWN
        if name not in ("text", "code_score") or name in columns
    }
    number, rank = np.indices(shape)
    if not (np.array_equal(own["query"], number) and np.array_equal(own["rank"], rank + 1)):
        raise ValueError("hits do not stand in the order of queries and ranks")
    about = table.schema.metadata or {}
    certificate, recall = about.get(b"certificate"), about.get(b"recall")
    if certificate is not None:
        said = json.loads(certificate)
        certificate = MissCertificate(**{**said, "p_miss_at_most": tuple(said["p_miss_at_most"])})
    return Hits(
        ids=own["id"],
        scores=_typed(own["score"], np.float64),
        code_scores=_typed(own.get("code_score", own["score"]), np.float64),
        reranked="code_score" in own,
        keys=_typed(own["key"], np.int64),
        rows=_typed(own["row"], np.int64),
        texts=_typed(own["text"], np.object_) if "text" in own else None,
        attributes=_attributes(columns, shape),
        certificate=certificate,
        recall=None if recall is None else float(recall),
        searched=float(about.get(b"searched", 1.0)),
    )


def _typed(array: npt.NDArray[Any], dtype: Any) -> npt.NDArray[Any]:
    if array.dtype != dtype:
        raise TypeError(f"a column is {array.dtype}, expected {np.dtype(dtype)}")
    return array


def _attributes(columns: Mapping[str, pa.Array], shape: tuple[int, int]) -> list[list[dict[str, Any]]] | None:
    """One dict per hit, by query; None where there are no attributes, as in the hits of an index."""
    if not columns:
        return None
    names = [name.removeprefix(PREFIX) if _TAKEN.fullmatch(name) else name for name in columns]
    values = zip(*(column.to_pylist() for column in columns.values()), strict=True)
    flat = [dict(zip(names, row, strict=True)) for row in values]
    queries, k = shape
    return [flat[q * k : (q + 1) * k] for q in range(queries)]
