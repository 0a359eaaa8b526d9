"""A search on the wire: the request as JSON, the hits as JSON or as an Arrow stream.

    options      the fields of `SearchRequest` under their own names; what has its default is left out
    codes        a list of planes, each the n bits as a hexadecimal string, or n integers
    hits         JSON for people and other languages, Arrow for our clients

Planes are hexadecimal with dimension 0 first: it is the highest bit of the first digit; a set bit means +1.

An Arrow stream has one row per hit: `query` (its number in the request), `rank` (from 1), `id`, `score`,
`key` and `row` (the exact order: key descending, row ascending), `text`, and the attributes as columns of the
types that they have in the index. Reranked hits also have a `code_score`, and `why` where it was asked for.
The metadata of its schema holds what concerns all hits: `recall` of a search by planes, the `certificate` of
mode paper as JSON, and `searched`, the share of the keywords that a cluster searched, where that is not all.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rbegir.base.arguments import as_batch, type_named
from rbegir.codes.planes import MAX_PLANES, Codes
from rbegir.errors import InputError
from rbegir.search.hits import PREFIX, Cursor, Hits, Why, attribute_column, hit_fields
from rbegir.search.missrate import MissCertificate
from rbegir.search.partition import NO_KEY, Candidates
from rbegir.search.request import OPTIONS, SearchRequest

JSON = "application/json"
ARROW = "application/vnd.apache.arrow.stream"
NOT_SENT = ("deadline",)  # options that are not in the body: the deadline is the header X-Timeout-Ms
OWN = {
    "query": pa.int64(),
    "rank": pa.int64(),
    "id": None,  # int64 or string, as the ids of the index are
    "score": pa.float64(),
    "code_score": pa.float64(),  # of reranked hits only
    "key": pa.int64(),
    "row": pa.int64(),
    "text": pa.string(),
    "why": pa.struct(
        {"meaning": pa.float64(), "spelling": pa.float64(), "words": pa.float64(), "code_rank": pa.int64()}
    ),  # of reranked hits, where it was asked for
}  # columns of a stream that are not attributes


def named_path(path: str, index: str) -> str | None:
    """The path of a route of an index under the name of the index; None for other routes.

    /v1/search → /v1/indexes/NAME/search and /v1/index:compact → /v1/indexes/NAME:compact
    """
    for start, end in (("/v1/search", "/search"), ("/v1/keywords", "/keywords")):
        if path.startswith(start):
            return f"/v1/indexes/{index}{end}{path.removeprefix(start)}"
    if path in ("/v1/index", "/v1/index:compact"):
        return f"/v1/indexes/{index}{path.removeprefix('/v1/index')}"
    return None


def options_body(request: SearchRequest) -> dict[str, Any]:
    """The options of a request as fields of the body."""
    for where in request.where if isinstance(request.where, list) else [request.where]:
        if where is not None:
            check_where(where)
    body: dict[str, Any] = {"k": request.k}
    for name in OPTIONS:
        value = getattr(request, name)
        if name not in NOT_SENT and value != getattr(SearchRequest, name):
            body[name] = [_plain(one) for one in value] if isinstance(value, list) else _plain(value)
    return body


def check_where(where: Any) -> str:
    """A filter that can be sent."""
    if not isinstance(where, str):
        raise InputError(
            f"where must be a text, got {type(where).__name__}",
            hint="expressions of pyarrow cannot be sent to a service; write the filter as text",
        )
    return where


def _plain(value: Any) -> Any:
    return value.to_pylist() if isinstance(value, pa.Array) else value


def codes_body(codes: Codes | npt.NDArray[Any]) -> list[Any]:
    """Codes or integer vectors as the field `codes`."""
    if isinstance(codes, Codes):
        return hex_planes(codes)
    rows = as_batch(codes)
    if isinstance(rows, np.ndarray) and rows.ndim == 2 and rows.dtype in (np.int8, np.int16):
        integers: list[Any] = rows.tolist()
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
            shown = [
                {"id": id_, "score": score, "code_score": code, "text": text, "attributes": attributes or {}}
                for id_, score, text, attributes, code, _ in hit_fields(hits, query)
            ]
            if hits.why is not None:
                for hit, why in zip(shown, hits.why[query], strict=False):  # nothing behind the last hit
                    hit["why"] = asdict(why)
            results.append({"query": None, "hits": shown, **common})
    if texts is not None:
        for result, text in zip(results, texts, strict=True):
            result["query"] = text
    return results


def cursor_of(parts: Sequence[Hits]) -> str | None:
    """The cursor of a result whose hits came in parts; None where hits are not in the order of the codes."""
    try:
        pages = [hits.cursor for hits in parts]
    except InputError:
        return None
    return pages[0] if len(pages) == 1 else Cursor.join([Cursor.read(page) for page in pages]).text()


def write_hits(parts: Sequence[Hits], info: Mapping[str, Any], *, attributes: bool = True) -> bytes:
    """The hits of a request as an Arrow stream of one batch per part; `info` describes the index."""
    types = {**OWN, "id": pa.string() if info["id_type"] == "string" else pa.int64()}
    if parts[0].texts is None:
        del types["text"]
    if not parts[0].reranked:
        del types["code_score"]
    if parts[0].why is None:
        del types["why"]
    names = list(info["attributes"]) if attributes else []
    columns = {attribute_column(name, OWN): name for name in names}
    types |= {column: type_named(info["attributes"][name]) for column, name in columns.items()}
    schema = pa.schema(list(types.items()), metadata=_about(parts))
    sink = pa.BufferOutputStream()
    query = 0
    with pa.ipc.new_stream(sink, schema) as writer:
        for hits in parts:
            places = hits.places
            found = [] if hits.attributes is None else [hit for row in hits.attributes for hit in row]
            values: dict[str, Any] = {
                "query": query + places[0],
                "rank": places[1] + 1,
                "id": hits.ids[places].tolist(),
                "score": hits.scores[places],
                "code_score": hits.code_scores[places],
                "key": hits.keys[places],
                "row": hits.rows[places],
                "text": None if hits.texts is None else hits.texts[places].tolist(),
                "why": None if hits.why is None else [asdict(why) for why in hits.why[places]],
                **{column: [hit.get(name) for hit in found] or None for column, name in columns.items()},
            }
            arrays = [
                pa.nulls(len(places[0]), dtype) if values[name] is None else pa.array(values[name], dtype)
                for name, dtype in types.items()
            ]
            writer.write_batch(pa.record_batch(arrays, schema=schema))
            query += len(hits)
    stream: bytes = sink.getvalue().to_pybytes()
    return stream


def _about(parts: Sequence[Hits]) -> dict[str, str]:
    """The fields of a result that are not those of single hits."""
    first, about = parts[0], {}
    if first.recall is not None:
        about["recall"] = repr(first.recall)
    if first.certificate is not None:
        about["certificate"] = json.dumps(asdict(first.certificate))
    searched = min(hits.searched for hits in parts)
    if searched < 1:
        about["searched"] = repr(searched)
    return about


def read_hits(raw: bytes, queries: int, after: str | None = None) -> Hits:
    """The hits in an Arrow stream, as an index returns them; `after` is the cursor of the request.

    Nothing is believed before its shape has been checked: what stands behind an address may be anything.
    """
    table = pa.ipc.open_stream(raw).read_all()
    table.validate(full=True)
    asked = table["query"].to_numpy()
    if len(asked) and not 0 <= asked.min() <= asked.max() < queries:
        raise ValueError(f"hits of query {asked.max()}, but there are {queries} queries")
    counts = np.bincount(asked, minlength=queries)
    real = np.arange(counts.max(initial=0)) < counts[:, None]  # [queries, k]
    columns = {name: table[name].combine_chunks() for name in table.column_names}
    if columns["id"].type not in (pa.int64(), pa.string()) or columns["id"].null_count:
        raise TypeError(f"ids are {columns['id'].type}, expected int64 or string without nulls")
    own = {
        name: columns.pop(name).to_numpy(zero_copy_only=False)
        for name in OWN
        if name not in ("text", "code_score", "why") or name in columns
    }
    number, rank = np.nonzero(real)
    if not (np.array_equal(own["query"], number) and np.array_equal(own["rank"], rank + 1)):
        raise ValueError("hits are not in the order of queries and ranks")
    if np.any(_typed(own["row"], np.int64) < 0):
        raise ValueError("a row is negative")
    about = table.schema.metadata or {}
    certificate, recall = about.get(b"certificate"), about.get(b"recall")
    if certificate is not None:
        said = json.loads(certificate)
        certificate = MissCertificate(**{**said, "p_miss_at_most": tuple(said["p_miss_at_most"])})
    found = Candidates(*(np.full(real.shape, empty) for empty in (NO_KEY, -1)))
    found.keys[real], found.positions[real] = _typed(own["key"], np.int64), own["row"]
    if "code_score" not in own:
        begin = Cursor.start(queries) if after is None else Cursor.read(after, queries)
        keys, rows = (np.column_stack(pair) for pair in zip(begin, found, strict=True))
        falls, ties = keys[:, 1:] < keys[:, :-1], keys[:, 1:] == keys[:, :-1]
        if not np.all(falls | (ties & (rows[:, 1:] > rows[:, :-1])) | ~real):
            raise ValueError("hits are not in the order of their codes, or not behind the cursor")
    scores = np.full((2, *real.shape), np.nan)  # of the hits, and of their codes
    scores[0, real] = _typed(own["score"], np.float64)
    scores[1, real] = _typed(own.get("code_score", own["score"]), np.float64)
    why = None
    if "why" in own:
        if table.schema.field("why").type != OWN["why"]:
            raise TypeError(f"a column is {table.schema.field('why').type}, expected {OWN['why']}")
        why = np.full(real.shape, None, object)
        why[real] = [Why(**one) for one in own["why"]]
    names = [name.removeprefix(PREFIX) if attribute_column(name, OWN) != name else name for name in columns]
    return Hits.of(
        found,
        scores[1],
        own["row"],
        own["id"],
        dict(zip(names, columns.values(), strict=True)),
        texts=_typed(own["text"], np.object_) if "text" in own else None,
        scores=scores[0] if "code_score" in own else None,
        why=why,
        certificate=certificate,
        recall=None if recall is None else float(recall),
        searched=float(about.get(b"searched", 1.0)),
        after=after,
    )


def _typed(array: npt.NDArray[Any], dtype: Any) -> npt.NDArray[Any]:
    if array.dtype != dtype:
        raise TypeError(f"a column is {array.dtype}, expected {np.dtype(dtype)}")
    return array
