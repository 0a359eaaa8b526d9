"""Documents with free metadata, kept in an index whose attributes are typed columns.

A value of metadata that is a text, a number or a truth value becomes an attribute of its own, which filters
can test. The rest (lists, dictionaries, None, names that the index reserves) goes as JSON into one more
attribute, REST, and comes back unchanged; it cannot be filtered. One name must keep one type, as a column
does: the index refuses a second one and says so.

Ids of frameworks are texts. An index whose ids are whole numbers gets them as such: "7" is 7.
"""

from __future__ import annotations

import json
import secrets
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from rbegir.base.arguments import RESERVED
from rbegir.errors import InputError
from rbegir.search.hits import Hits

REST = "_metadata"
Metadata = dict[str, Any]


class Store(Protocol):
    """What `rbegir.Index` and `rbegir.Client` have in common, as far as it is needed here."""

    def search(self, queries: str, k: int = ..., *, where: str | None = ...) -> Hits: ...
    def upsert(self, texts: Sequence[str], ids: Any, attributes: Any = ...) -> Any: ...
    def delete(self, ids: Any) -> int: ...
    def get(self, ids: Any) -> list[dict[str, Any] | None]: ...
    def info(self) -> dict[str, Any]: ...


def pack(metadata: Mapping[str, Any]) -> Metadata:
    """Metadata → attributes."""
    attributes: Metadata = {}
    rest: Metadata = {}
    for name, value in metadata.items():
        if not isinstance(name, str):
            raise InputError(f"names in metadata must be texts, got {name!r}")
        plain = isinstance(value, (str, int, float, bool)) and value == value  # NaN is no value of a column
        (attributes if plain and name and name not in (*RESERVED, REST) else rest)[name] = value
    if rest:
        try:
            attributes[REST] = json.dumps(rest, ensure_ascii=False)
        except (TypeError, ValueError) as error:
            raise InputError(
                f"metadata must be made of what JSON knows: {error}", hint="convert it to text first"
            ) from None
    return attributes


def unpack(attributes: Mapping[str, Any] | None) -> Metadata:
    """Attributes → metadata."""
    found = {name: value for name, value in (attributes or {}).items() if value is not None}
    rest = found.pop(REST, None)
    return {**found, **json.loads(rest)} if rest is not None else found


def whole_ids(store: Store) -> bool:
    """Whether the ids of a store are numbers. An index that never held a keyword takes what comes."""
    info = store.info()
    return bool(info["id_type"] == "int64" and info["next_row"] > 0)


def stored_ids(store: Store, ids: Sequence[str]) -> list[Any]:
    """Ids of a framework as the index has them; those that it cannot have are left out."""
    if not whole_ids(store):
        return list(ids)
    return [number for number in map(_number, ids) if number is not None]


def named_ids(store: Store, count: int, given: Sequence[str | None] | None) -> list[Any]:
    """Ids for new documents: the given ones, random ones where there is None."""
    whole = whole_ids(store)
    ids: list[Any] = []
    for name in given or [None] * count:
        if name is None:
            ids.append(secrets.randbits(53) if whole else str(uuid.uuid4()))
        elif whole:
            number = _number(name)
            if number is None:
                raise InputError(
                    f"the id {name!r} is no whole number, and the ids of this index are such",
                    hint="make the index with id_type='string' to use other ids",
                )
            ids.append(number)
        else:
            ids.append(name)
    return ids


def _number(name: str) -> int | None:
    number = int(name) if name.removeprefix("-").isdecimal() and name.isascii() else None
    return number if number is not None and str(number) == name and -(2**63) <= number < 2**63 else None
