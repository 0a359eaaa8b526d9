"""What schemathesis must be taught: formats that no schema can say. It imports this file as its hooks."""

import string
from typing import Any

import schemathesis
from hypothesis import strategies as st

WORDS = st.text(string.ascii_letters + string.digits + " éßж中", max_size=20)
FILTERS = ["price < 10", "lang = 'en' or lang is null", "not (price >= 3)", "id in (1, 2, 3)"]

schemathesis.openapi.format("text-with-a-word", WORDS.map(lambda text: f"a{text}"))
schemathesis.openapi.format("rbegir-filter", st.sampled_from(FILTERS))


@schemathesis.hook
def before_call(context: schemathesis.HookContext, case: schemathesis.Case, kwargs: dict[str, Any]) -> None:
    """A valid deadline becomes a long one: what milliseconds lead to is chance, and tested elsewhere."""
    given = str((case.headers or {}).get("X-Timeout-Ms", ""))
    if given.isdecimal() and 0 < int(given) < 10**9:
        case.headers["X-Timeout-Ms"] = "30000"
