"""The requests that the methods of a client send, and how responses are read. No I/O happens here.

There is a function for every method of `Client`, which documents it. It returns a *plan*: a generator that
yields lists of calls, is sent the list of their results, and returns the result of the method. The blocking
and the asynchronous client carry out the same plans. Arguments are checked as an index checks them, before
anything is sent. A call that the service limits is not split: a change is made as a whole or not at all.
"""

import datetime
import json
import secrets
import uuid
from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, TypeVar
from urllib.parse import quote, urlencode

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rbegir.base.arguments import (
    as_batch,
    check_attributes,
    check_deletion,
    check_ids,
    check_queries,
    check_texts,
    named_values,
    one_tenant,
    refuse_repeats,
    type_named,
)
from rbegir.codes.planes import Codes
from rbegir.errors import InputError, RbegirError, ServiceError, whole_number
from rbegir.search.hits import PREFIX, Hits, attribute_column, merge
from rbegir.search.request import SearchRequest, Tenant
from rbegir.wire.problems import kind_of, raise_problem
from rbegir.wire.search import ARROW, JSON, check_where, codes_body, options_body, read_hits

T = TypeVar("T")
Ids = npt.NDArray[Any]  # int64, or str objects
Record = dict[str, Any]
Plan = Generator[list["Call[Any]"], list[Any], T]
# what is raised where a response is read that has not the expected form
NOT_UNDERSTOOD = (
    LookupError, ValueError, TypeError, AttributeError, OverflowError, RecursionError, OSError,
    pa.ArrowException,
)  # fmt: skip


@dataclass(frozen=True)
class Call(Generic[T]):
    """One request, and what its response means."""

    method: str
    path: str
    read: Callable[[bytes], T]
    body: Any = None
    accept: str = JSON
    repeatable: bool = True
    missing: Callable[[], T] | None = None  # the result where the service says "not found"
    timeout_s: float | None = None  # None: that of the client

    def plan(self) -> Plan[T]:
        """The plan that makes this one call."""
        results: list[T] = yield [self]
        return results[0]

    def content(self) -> bytes | None:
        """The body as it is sent."""
        if self.body is None:
            return None
        try:
            return json.dumps(self.body, ensure_ascii=False, allow_nan=False).encode()
        except UnicodeEncodeError as error:
            raise InputError("a text holds a lone surrogate, which UTF-8 cannot encode") from error
        except ValueError as error:
            raise InputError("NaN and infinity cannot be sent to a service") from error

    def result(self, status: int, media: str, body: bytes) -> T:
        """The result, or the error that the service reports."""
        if status == 404 and self.missing is not None and kind_of(body) == "not-found":
            return self.missing()
        if not 200 <= status < 300:
            raise_problem(status, body)
        came = media.partition(";")[0].strip()
        if came != self.accept:
            raise self._not_understood(f"it is {came or 'of no type'}, expected {self.accept}")
        try:
            return self.read(body)
        except RbegirError as error:
            raise self._not_understood(error.message) from error
        except NOT_UNDERSTOOD as error:
            lines = str(error).splitlines() or [type(error).__name__]
            raise self._not_understood(lines[0][:200]) from error

    def _not_understood(self, why: str) -> ServiceError:
        return ServiceError(
            f"the response to {self.method} {self.path} cannot be understood: {why}",
            hint="is this the address of an rbegir service of this version?",
        )


def read_json(raw: bytes) -> Record:
    """A response in JSON, which is always an object."""
    said = json.loads(raw)
    if not isinstance(said, dict):
        raise ValueError(f"expected an object, got {type(said).__name__}")
    return said


def read_info(raw: bytes) -> Record:
    """What a service says of its index, of which the plans need the limits and the types."""
    said = read_json(raw)
    whole_number("keywords", said["keywords"], 0)
    for name in ("max_k", "max_hits"):
        whole_number(name, said["limits"][name])
    if said["id_type"] not in ("int64", "string") or None in map(type_named, said["attributes"].values()):
        raise ValueError("it names types that no index has")
    return said


def search(queries: Any, request: SearchRequest) -> Plan[Hits]:
    """A search for texts, or for vectors where the index was made with a Binarizer."""
    vectors = as_batch(queries)
    if isinstance(vectors, np.ndarray) and vectors.ndim == 2 and vectors.dtype.kind in "fiub":
        return _search("vectors", vectors.tolist(), request)
    return _search("queries", [queries] if isinstance(queries, str) else check_queries(queries), request)


def search_codes(codes: Codes | npt.NDArray[Any], request: SearchRequest) -> Plan[Hits]:
    return _search("codes", codes_body(codes), request)


def _search(field: str, queries: list[Any], request: SearchRequest) -> Plan[Hits]:
    if not queries:
        raise InputError("queries must hold at least one query")
    page = request
    if request.k is None:  # all hits, in the largest pages that the service allows
        limits = (yield from info())["limits"]
        page = replace(request, k=max(1, min(limits["max_k"], limits["max_hits"] // len(queries))))
    pages: list[Hits] = []
    while not pages or (request.k is None and pages[-1].counts.max() == page.k):
        after = pages[-1].cursor if pages else request.after
        body = {field: queries, **options_body(replace(page, after=after))}
        read = partial(read_hits, queries=len(queries), after=after)
        pages += yield [Call("POST", "/v1/search", read, body, accept=ARROW, timeout_s=request.deadline)]
    return pages[0] if len(pages) == 1 else merge(pages, None)


At = tuple[int, str | None, int] | None  # a query, its cursor, and hits per page; None: behind the last


def scan(queries: Any, request: SearchRequest, rows: int, at: At) -> Plan[tuple[list[pa.RecordBatch], At]]:
    """A page of the hits of one query, if it has any, and where the next page begins."""
    given: Any = [queries] if isinstance(queries, str) else as_batch(queries)
    coded = isinstance(given, Codes) or getattr(given, "dtype", None) in (np.int8, np.int16)
    if at is None:
        request.each_filter(len(given))  # refuses filters of another number of queries
        limits = (yield from info())["limits"]
        at = 0, None, min(whole_number("rows", rows), limits["max_k"], limits["max_hits"])
    number, after, k = at
    asked = replace(request.part(number, 1), k=k, after=after)
    hits = yield from (search_codes if coded else search)(given[number : number + 1], asked)
    table = hits.to_arrow()
    own, columns = table.column_names[:5], table.column_names[5:]
    names = [one.removeprefix(PREFIX) if attribute_column(one, own) != one else one for one in columns]
    kept = ["query", "score", "id", "text"]  # without the rank, whose name an attribute may have then
    renamed = [*kept, *(attribute_column(name, kept) for name in names)]
    table = table.select([*kept, *columns]).rename_columns(renamed)
    page = table.set_column(0, "query", pa.array(np.full(hits.k, number))).combine_chunks().to_batches()
    if hits.k == k:
        return page, (number, hits.cursor, k)
    return page, (number + 1, None, k) if number + 1 < len(given) else None


def get(ids: Any) -> Plan[list[Record | None]]:
    """The keywords of these ids, as `Index.get` lists them; one call each."""

    def read(raw: bytes) -> Record:
        said = read_json(raw)
        return {"id": said["id"], "text": said["text"], **said["attributes"]}

    # httpx would resolve the ids . and .. as parts of a path
    names = [quote(str(given), safe="").replace(".", "%2E") for given in check_ids(ids).to_pylist()]
    return (yield [Call("GET", f"/v1/keywords/{name}", read, missing=lambda: None) for name in names])


def info() -> Plan[Record]:
    return Call("GET", "/v1/index", read_info).plan()


def put(texts: Any, ids: Any, attributes: Any, *, replace: bool) -> Plan[Ids]:
    """Store keywords; returns their ids. Without `replace` ids may be None, and existing ones are refused."""
    given = check_texts(texts, vectors="a service takes texts; add vectors with Index.add or Cluster.add")
    if ids is None and not replace:  # random ones, which no other keyword has
        text = (yield from info())["id_type"] == "string"
        ids = [str(uuid.uuid4()) if text else secrets.randbits(53) for _ in given]
    named = check_ids(ids)
    if len(named) != len(given):
        raise InputError(f"ids has {len(named)} values for {len(given)} keywords")
    refuse_repeats(named)
    columns = check_attributes(attributes, len(given), {})
    values = {name: column.to_pylist() for name, column in columns.items()}
    keywords = [
        {
            "id": key,
            "text": text,
            "attributes": {name: _plain(of[i]) for name, of in values.items() if of[i] is not None},
        }
        for i, (key, text) in enumerate(zip(named.to_pylist(), given.to_pylist(), strict=True))
    ]
    body = {"keywords": keywords} if replace else {"keywords": keywords, "replace": False}
    if keywords:
        yield [Call("POST", "/v1/keywords", lambda raw: read_json(raw)["upserted"], body, repeatable=replace)]
    stored: Ids = named.to_numpy(zero_copy_only=False)
    return stored


def update(ids: Any, attributes: Any) -> Plan[int]:
    named = check_ids(ids)
    refuse_repeats(named)
    columns = check_attributes(attributes, len(named), (yield from info())["attributes"])
    if not len(named) or not columns:
        return 0
    values = named_values(attributes, columns, len(named))
    keywords = [
        {"id": key, "attributes": {name: _plain(value.as_py()) for name, value in own.items()}}
        for key, own in zip(named.to_pylist(), values, strict=True)
        if own
    ]
    return (yield from _number("PATCH", "/v1/keywords", "updated", {"keywords": keywords}))


def delete(ids: Any, where: Any, tenant: Tenant) -> Plan[int]:
    check_deletion(ids, where, tenant)
    body: Record = {} if ids is None else {"ids": check_ids(ids).to_pylist()}
    body |= {} if where is None else {"where": check_where(where)}
    body |= {} if tenant is None else {"tenant": one_tenant(tenant)}
    if body.get("ids") == []:
        return 0
    return (yield from _number("DELETE", "/v1/keywords", "deleted", body))


def count(where: Any, tenant: Tenant) -> Plan[int]:
    return _number("GET", f"/v1/keywords:count{_selection(where, tenant)}", "keywords")


def page(rows: int, where: Any, tenant: Tenant, after: int) -> Plan[tuple[pa.RecordBatch, int | None]]:
    """A page of keywords behind a row, and the row of the last one; None if there is none."""

    def read(raw: bytes) -> tuple[pa.RecordBatch, int | None]:
        (batch,) = pa.ipc.open_stream(raw)
        batch.validate(full=True)
        last = batch["row"].to_pylist()[-1] if batch.num_rows else None
        if last is not None and last <= after:
            raise ValueError(f"a page behind row {after} ends with row {last}")
        return batch.drop_columns(["row"]), last

    asked = _selection(where, tenant, limit=whole_number("rows", rows), after=after)
    return Call("GET", f"/v1/keywords{asked}", read, accept=ARROW).plan()


def _selection(where: Any, tenant: Tenant, **others: int) -> str:
    """The parameters of a request about some of the keywords."""
    given: Record = {} if where is None else {"where": check_where(where)}
    given |= {} if tenant is None else {"tenant": one_tenant(tenant)}
    return "?" + urlencode(given | others, quote_via=quote) if given or others else ""


def _number(method: str, path: str, name: str, body: Any = None) -> Plan[int]:
    """A call whose response is one whole number."""
    return Call(method, path, lambda raw: whole_number(name, read_json(raw)[name], 0), body).plan()


def indexes() -> Plan[list[Record]]:
    return Call("GET", "/v1/indexes", lambda raw: [dict(one) for one in read_json(raw)["indexes"]]).plan()


def alias(name: str, index: str | None) -> Plan[None]:
    for argument, value in (("name", name), ("index", name if index is None else index)):
        if not (isinstance(value, str) and value):
            raise InputError(f"{argument} must be a text, got {value!r}")
    path = f"/v1/aliases/{quote(name, safe='')}"
    if index is None:
        yield [Call("DELETE", path, read_json, repeatable=False)]
    else:
        yield [Call("PUT", path, read_json, {"index": index})]


def compact() -> Plan[None]:
    yield [Call("POST", "/v1/index:compact", read_json, repeatable=False)]


def _plain(value: Any) -> Any:
    """A value as JSON has it: dates and times in ISO 8601."""
    return value.isoformat() if isinstance(value, (datetime.date, datetime.datetime)) else value
