"""Tests on metadata, as frameworks write them, as one `where` text.

    {"lang": "en", "price": {"$lt": 10}}    →    ("lang" = 'en' and "price" < 10)

Frameworks let "not equal" and "not in" pass where there is no value; SQL, and `where`, do not. So both become
`… or "name" is null` here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rbegir.errors import FilterError

COMPARE = {"$eq": "=", "$ne": "!=", "$gt": ">", "$gte": ">=", "$lt": "<", "$lte": "<="}
_KNOWN = "known are " + ", ".join([*COMPARE, "$in", "$nin", "$exists", "$and", "$or", "$not"])


def column(name: Any) -> str:
    """A name as `where` quotes it."""
    if not isinstance(name, str) or not name:
        raise FilterError(f"the name of an attribute must be a text, got {name!r}")
    return '"' + name.replace('"', '""') + '"'


def value(given: Any) -> str:
    """A value as `where` writes it."""
    if isinstance(given, bool):
        return "true" if given else "false"
    if isinstance(given, str):
        return "'" + given.replace("'", "''") + "'"
    if isinstance(given, (int, float)) and math.isfinite(given):
        return repr(given)
    raise FilterError(
        f"a filter compares with texts, numbers and truth values, got {given!r}", hint="use $exists for null"
    )


def compare(name: str, operator: str, given: Any) -> str:
    """One test of one attribute."""
    test = f"{column(name)} {COMPARE[operator]} {value(given)}"
    return f"({test} or {column(name)} is null)" if operator == "$ne" else test


def within(name: str, given: Any, *, inside: bool) -> str:
    """Whether an attribute is one of several values, or none of them."""
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise FilterError(f"the values for {name!r} must be a list, got {type(given).__name__}")
    if not given:
        return NOTHING if inside else EVERYTHING
    values = ", ".join(value(one) for one in given)
    return (
        f"{column(name)} in ({values})"
        if inside
        else f"({column(name)} not in ({values}) or {column(name)} is null)"
    )


EVERYTHING = "(text is null or text is not null)"
NOTHING = "(text is null and text is not null)"


def join(parts: Sequence[str], word: str) -> str:
    """Tests, all or any of which must hold."""
    if not parts:
        return EVERYTHING if word == "and" else NOTHING
    return "(" + f" {word} ".join(parts) + ")" if len(parts) > 1 else parts[0]


def where(given: Mapping[str, Any] | str | None) -> str | None:
    """A filter as a dictionary in the usual notation, or as `where` text already."""
    if given is None or isinstance(given, str):
        return given
    if not isinstance(given, Mapping):
        raise FilterError(f"filter must be a dictionary or a text, got {type(given).__name__}")
    return _every(given) if given else None


def _every(given: Mapping[str, Any]) -> str:
    parts: list[str] = []
    for name, wanted in given.items():
        if name in ("$and", "$or"):
            if not isinstance(wanted, Sequence) or not all(isinstance(one, Mapping) for one in wanted):
                raise FilterError(f"{name} needs a list of dictionaries")
            parts.append(join([_every(one) for one in wanted], name[1:]))
        elif name == "$not":
            if not isinstance(wanted, Mapping):
                raise FilterError("$not needs a dictionary")
            parts.append(f"not {_every(wanted)}")
        elif isinstance(name, str) and name.startswith("$"):
            raise FilterError(f"{name} is no operator", hint=_KNOWN)
        elif isinstance(wanted, Mapping):
            parts += [_test(name, operator, operand) for operator, operand in wanted.items()]
        else:
            parts.append(compare(name, "$eq", wanted))
    return join(parts, "and")


def _test(name: str, operator: str, operand: Any) -> str:
    if operator in COMPARE:
        return compare(name, operator, operand)
    if operator in ("$in", "$nin"):
        return within(name, operand, inside=operator == "$in")
    if operator == "$exists":
        return f"{column(name)} is {'not ' if operand else ''}null"
    raise FilterError(f"{operator} is no operator", hint=_KNOWN)
