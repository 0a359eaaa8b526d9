"""What is sent for each method of a client. No input or output happens here.

Arguments are checked as an index checks them, before anything is sent, so a mistake costs no round trip and
reads the same on both sides. A call that the service limits (10,000 keywords, 1,024 queries a request by
default) is not split: a change is one change, there or not there as a whole.
"""

from __future__ import annotations

import datetime
import json
import secrets
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypedDict, TypeVar
from urllib.parse import quote

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rbegir.base.checks import whole_number
from rbegir.client.answers import fail, kind_of, read_hits, read_json
from rbegir.codes.planes import Codes
from rbegir.errors import InputError, RbegirError, ServiceError
from rbegir.index.keywords import check_attributes, check_ids, check_queries, check_texts, refuse_repeats
from rbegir.search.hits import Hits

ARROW = "application/vnd.apache.arrow.stream"
JSON = "application/json"

T = TypeVar("T")
Ids = npt.NDArray[Any]  # int64, or str objects
Record = dict[str, Any]


@dataclass(frozen=True)
class Call(Generic[T]):
    """One request, and what its answer means."""

    method: str
    path: str
    read: Callable[[bytes], T]
    body: Any = None
    accept: str = JSON
    repeatable: bool = True
    missing: Callable[[], T] | None = None  # the result where the service says that there is no such thing

    def content(self) -> bytes | None:
        """The body as it is sent."""
        if self.body is None:
            return None
        try:
            return json.dumps(self.body, ensure_ascii=False, allow_nan=False).encode()
        except UnicodeEncodeError as error:
            raise InputError("a text holds a lone surrogate, which UTF-8 cannot express") from error

    def headers(self) -> dict[str, str]:
        sent = {"Accept": self.accept}
        return sent if self.body is None else {**sent, "Content-Type": JSON}

    def answer(self, status: int, media: str, body: bytes) -> T:
        """The result, or the error that the service reports."""
        if status == 404 and self.missing is not None and kind_of(body) == "not-found":
            return self.missing()
        if not 200 <= status < 300:
            fail(status, body)
        came = media.partition(";")[0].strip()
        if came != self.accept:
            raise self._not_understood(f"it is {came or 'of no type'}, expected {self.accept}")
        try:
            return self.read(body)
        except RbegirError as error:
            raise self._not_understood(error.message) from error
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError, pa.ArrowException) as error:
            lines = str(error).splitlines() or [type(error).__name__]
            raise self._not_understood(lines[0][:200]) from error

    def _not_understood(self, why: str) -> ServiceError:
        return ServiceError(
            f"the answer to {self.method} {self.path} cannot be understood: {why}",
            hint="is the address that of a rbegir service of this version?",
        )


# ---- ask ----


class SearchOptions(TypedDict, total=False):
    """What the searches of a client take besides the queries and k: a part of what those of an index take."""

    where: str | None  # a filter: text such as "price < 10 and not sold"
    allow: Any  # only these ids
    deny: Any  # not these ids
    mode: str  # "exact" (the default), or "paper": the published algorithm with its miss certificate
    planes: int | None  # search with this many planes first, refine the best with the others


def search(queries: str | Sequence[str], k: int, options: SearchOptions) -> Call[Hits]:
    """A search for texts."""
    texts = [queries] if isinstance(queries, str) else check_queries(queries)
    return _search({"queries": texts}, len(texts), k, **options)


def search_codes(codes: Codes | npt.NDArray[Any], k: int, options: SearchOptions) -> Call[Hits]:
    """A search for codes made elsewhere."""
    if isinstance(codes, Codes):
        packed = np.packbits(codes.signs(), axis=2)  # [planes, count, n / 8] uint8, dimension 0 highest
        sent: list[Any] = [[plane.tobytes().hex() for plane in packed[:, i]] for i in range(len(codes))]
    elif isinstance(codes, np.ndarray) and codes.ndim == 2 and codes.dtype in (np.int8, np.int16):
        sent = codes.tolist()
    else:
        raise InputError(
            f"codes must be rbegir.Codes or an int8 or int16 array [queries, n], got {type(codes).__name__}"
        )
    return _search({"codes": sent}, len(sent), k, **options)


def _search(
    asked: Record,
    count: int,
    k: int,
    *,
    where: str | None = None,
    allow: Any = None,
    deny: Any = None,
    mode: str = "exact",
    planes: int | None = None,
) -> Call[Hits]:
    if not count:
        raise InputError("queries must hold at least one query")
    if where is not None and not isinstance(where, str):
        raise InputError(
            f"where must be a text, got {type(where).__name__}",
            hint="expressions of pyarrow cannot be sent to a service; write the filter as text",
        )
    body = {**asked, "k": whole_number("k", k), "where": where, "mode": mode}
    for name, ids in (("allow", allow), ("deny", deny)):
        if ids is not None:
            body[name] = check_ids(ids, name).to_pylist()
    if planes is not None:
        body["planes"] = whole_number("planes", planes)
    return Call("POST", "/v1/search", lambda raw: read_hits(raw, count), body, accept=ARROW)


def get(given: int | str) -> Call[Record | None]:
    """The keyword of one id, as `Index.get` lists it."""

    def read(raw: bytes) -> Record:
        said = read_json(raw)
        return {"id": said["id"], "text": said["text"], **said["attributes"]}

    return Call("GET", f"/v1/keywords/{quote(str(given), safe='')}", read, missing=lambda: None)


def info() -> Call[Record]:
    return Call("GET", "/v1/index", read_json)


# ---- change ----


def put(texts: Any, ids: Any, attributes: Any, *, replace: bool) -> tuple[Call[int], Ids]:
    """The call that stores keywords, and their ids. Without `replace`, ids that are there are refused."""
    given, named = check_texts(texts), check_ids(ids)
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
    call = Call("POST", "/v1/keywords", lambda raw: int(read_json(raw)["upserted"]), body, repeatable=replace)
    return call, named.to_numpy(zero_copy_only=False)


def fresh_ids(count: int, id_type: str) -> list[Any]:
    """Ids that no other keyword has: random ones, of the type of the index."""
    if id_type == "string":
        return [str(uuid.uuid4()) for _ in range(count)]
    return [secrets.randbits(53) for _ in range(count)]


def delete(ids: Any) -> Call[int]:
    """The call that deletes keywords by id."""
    body = {"ids": check_ids(ids).to_pylist()}
    return Call("DELETE", "/v1/keywords", lambda raw: int(read_json(raw)["deleted"]), body)


def compact() -> Call[Record]:
    return Call("POST", "/v1/index:compact", read_json, repeatable=False)


def _plain(value: Any) -> Any:
    """A value as JSON has it: dates and times in ISO 8601."""
    return value.isoformat() if isinstance(value, (datetime.date, datetime.datetime)) else value
