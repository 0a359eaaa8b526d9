"""What the service says, as the values and errors of this package.

Searches answer in Arrow: ids, scores, order keys and attributes arrive in the types that they have in the
index, dates included, and become the same `Hits` that an index returns. Nothing is believed before its shape
has been checked: what stands behind an address may be anything.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rbegir.errors import AccessError, BusyError, RbegirError, ServiceError
from rbegir.search.hits import Hits
from rbegir.search.missrate import MissCertificate
from rbegir.wire.problems import KINDS, URN

BY_STATUS: dict[int, type[RbegirError]] = {401: AccessError, 403: AccessError, 503: BusyError}  # of others
OWN = ("query", "rank", "id", "score", "text", "key", "row")  # columns of a stream that are no attributes
LONGEST = 500  # of a message that came from elsewhere


def problem(body: bytes) -> dict[str, Any]:
    """The problem document in a body; empty where there is none."""
    try:
        said = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return said if isinstance(said, dict) else {}


def kind_of(body: bytes) -> str:
    """The last part of the type of a problem, such as `not-found`."""
    kind = problem(body).get("type")
    return kind.removeprefix(URN) if isinstance(kind, str) and kind.startswith(URN) else ""


def fail(status: int, body: bytes) -> NoReturn:
    """Raise the error that an answer reports: the class that the index itself would have raised."""
    said, kind = problem(body), KINDS.get(kind_of(body))
    cls = BY_STATUS.get(status, ServiceError) if kind is None else kind.error
    words = {name: said.get(name) for name in ("detail", "title", "hint")}
    detail, title, hint = (w[:LONGEST] if isinstance(w, str) else "" for w in words.values())
    if detail or title:
        raise cls(detail or title, hint=hint)
    raise cls(
        f"the service answered {status} and no reason",
        hint="check the token" if cls is AccessError else "is the address that of a rbegir service?",
    )


def read_json(raw: bytes) -> dict[str, Any]:
    """An answer in JSON, which is always an object."""
    said = json.loads(raw)
    if not isinstance(said, dict):
        raise ValueError(f"expected an object, got {type(said).__name__}")
    return said


def read_hits(raw: bytes, queries: int) -> Hits:
    """The Arrow stream of a search: one row a hit, ordered by query and rank, the same number a query."""
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
    }
    number, rank = np.indices(shape)
    if not (np.array_equal(own["query"], number) and np.array_equal(own["rank"], rank + 1)):
        raise ValueError("hits do not stand in the order of queries and ranks")
    said = table.schema.metadata or {}
    certificate, recall = said.get(b"certificate"), said.get(b"recall")
    return Hits(
        ids=own["id"],
        scores=_typed(own["score"], np.float64),
        keys=_typed(own["key"], np.int64),
        rows=_typed(own["row"], np.int64),
        texts=_typed(own["text"], np.object_),
        attributes=_attributes(columns, shape),
        certificate=None if certificate is None else _certificate(json.loads(certificate)),
        recall=None if recall is None else float(recall),
    )


def _typed(array: npt.NDArray[Any], dtype: Any) -> npt.NDArray[Any]:
    if array.dtype != dtype:
        raise TypeError(f"a column is {array.dtype}, expected {np.dtype(dtype)}")
    return array


def _attributes(columns: Mapping[str, pa.Array], shape: tuple[int, int]) -> list[list[dict[str, Any]]] | None:
    """One dict a hit, by query; None where the index has no attributes, as an index does it."""
    if not columns:
        return None
    # An attribute that is called like one of our columns came with a prefix.
    prefixed = {f"attribute_{name}": name for name in OWN}
    names = [prefixed.get(name, name) for name in columns]
    values = zip(*(column.to_pylist() for column in columns.values()), strict=True)
    flat = [dict(zip(names, row, strict=True)) for row in values]
    queries, k = shape
    return [flat[q * k : (q + 1) * k] for q in range(queries)]


def _certificate(said: Mapping[str, Any]) -> MissCertificate:
    return MissCertificate(**{**said, "p_miss_at_most": tuple(said["p_miss_at_most"])})
