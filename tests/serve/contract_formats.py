"""What schemathesis must be taught: formats that no schema can say. It imports this file as its hooks."""

import string
from typing import Any

import schemathesis
from hypothesis import strategies as st

from rbegir.search.hits import Cursor

WORDS = st.text(string.ascii_letters + string.digits + " éßж中", max_size=20)
FILTERS = ["price < 10", "lang = 'en' or lang is null", "not (price >= 3)", "id in (1, 2, 3)"]

schemathesis.openapi.format("text-with-a-word", WORDS.map(lambda text: f"a{text}"))
schemathesis.openapi.format("rbegir-filter", st.sampled_from(FILTERS))
schemathesis.openapi.format("rbegir-cursor", st.just(Cursor.start(1).text()))


def _of_a_query(name: str, entry: Any) -> bool:
    return name in ("where", "must") or entry is None or isinstance(entry, list)


@schemathesis.hook
def before_call(context: schemathesis.HookContext, case: schemathesis.Case, kwargs: dict[str, Any]) -> None:
    """What no schema can say: a cursor and filters per query have as many entries as there are queries.

    A valid deadline becomes a long one: what milliseconds lead to is chance, and tested elsewhere.
    """
    body = case.body
    if isinstance(body, dict):
        asked = [body[name] for name in ("queries", "codes", "vectors") if isinstance(body.get(name), list)]
        count = len(asked[0]) if asked else 1
        each = {
            name: [*body[name], *[None] * count][:count]
            for name in ("where", "must", "allow", "deny")
            if isinstance(body.get(name), list) and any(_of_a_query(name, one) for one in body[name][:1])
        }
        if body.get("after") == Cursor.start(1).text():
            each["after"] = Cursor.start(count).text()
        if each:
            kwargs["json"] = {**body, **each}
    given = str((case.headers or {}).get("X-Timeout-Ms", ""))
    if given.isdecimal() and 0 < int(given) < 10**9:
        case.headers["X-Timeout-Ms"] = "30000"
