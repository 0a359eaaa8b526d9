"""From a valid body to work: the limits of the service, and what the index knows about its columns."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any

from rbegir.serve import explain, schema
from rbegir.serve.batcher import Search
from rbegir.serve.committer import Row, RowId
from rbegir.serve.engine import Engine
from rbegir.serve.problems import Problem
from rbegir.serve.settings import Settings


def at_most(field: str, value: int, limit: int, unit: str = "items") -> None:
    """Refuse what is beyond a limit."""
    if value > limit:
        raise Problem(
            "invalid",
            f"{field}: at most {limit} {unit}".rstrip() + f", got {value}",
            hint="GET /v1/index lists the limits",
        )


def search_of(asked: schema.SearchRequest, settings: Settings, engine: Engine) -> Search:
    """A search request, checked against the limits and the index."""
    if bool(asked.queries) == bool(asked.codes):
        raise Problem("invalid", "exactly one of queries and codes must be given", hint="leave one out")
    for number, text in enumerate(asked.queries):
        at_most(f"queries.{number}", len(text), settings.max_text_chars, "characters")
    count = len(asked.queries or asked.codes)
    at_most("queries", count, settings.max_queries)
    at_most("k", asked.k, settings.max_k, "")
    at_most("queries times k", count * asked.k, settings.max_hits, "hits")
    at_most("where", len(asked.where or ""), settings.max_where_chars, "characters")
    for name, ids in (("allow", asked.allow), ("deny", asked.deny)):
        at_most(name, len(ids or ()), settings.max_keywords)
    if asked.explain:
        at_most("queries times k with explain", count * asked.k, settings.max_explained, "hits")
    if asked.mode == "paper" and asked.planes is not None:
        raise Problem("invalid", "planes and mode 'paper' cannot be combined", hint="leave one of them out")
    values = explain.query_values(asked.codes, engine.info()["n"]) if asked.codes else None
    texts = None if asked.codes else asked.queries
    allow, deny = (None if ids is None else tuple(ids) for ids in (asked.allow, asked.deny))
    return Search(texts, values, asked.k, asked.where, allow, deny, asked.mode, asked.planes)


def rows_of(
    asked: schema.UpsertRequest, settings: Settings, columns: Mapping[str, str]
) -> dict[RowId, Row | None]:
    """The keywords of an upsert by id, dates and times read where a column holds such."""
    at_most("keywords", len(asked.keywords), settings.max_keywords)
    times = {name: dtype for name, dtype in columns.items() if dtype.startswith(("date", "timestamp"))}
    rows: dict[RowId, Row | None] = {}
    for number, keyword in enumerate(asked.keywords):
        at_most(f"keywords.{number}.text", len(keyword.text), settings.max_text_chars, "characters")
        if keyword.id in rows:
            raise Problem(
                "invalid", f"keywords.{number}.id: {keyword.id!r} is given twice", hint="give every id once"
            )
        attributes: dict[str, Any] = keyword.attributes
        for name in times.keys() & attributes.keys():
            value = attributes[name]
            if isinstance(value, str):
                attributes[name] = _moment(value, times[name], f"keywords.{number}.attributes.{name}")
        rows[keyword.id] = Row(keyword.text, attributes)
    return rows


def _moment(value: str, dtype: str, field: str) -> datetime.date | datetime.datetime:
    try:
        if dtype.startswith("date"):
            return datetime.date.fromisoformat(value)
        return datetime.datetime.fromisoformat(value)
    except ValueError:
        raise Problem(
            "invalid", f"{field}: not a {dtype} in ISO 8601", hint="write for example 2024-05-31T12:00:00"
        ) from None
