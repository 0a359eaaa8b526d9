"""The definition of a search request, and everything that follows from it."""

from __future__ import annotations

import inspect
from dataclasses import MISSING, fields, replace
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import pyarrow.compute as pc
import pytest

import rbegir
from rbegir.errors import InputError
from rbegir.search.request import OPTIONS, SearchOptions, SearchRequest
from rbegir.wire.schema import SearchBody
from rbegir.wire.search import NOT_SENT, options_body

SEARCHED = (rbegir.Index, rbegir.Generations, rbegir.Cluster, rbegir.Client, rbegir.AsyncClient)
CHANGED: dict[str, Any] = {
    "k": 3,
    "where": "price < 3",
    "allow": [1, 2],
    "deny": ["a"],
    "mode": "paper",
    "per_thread": 8,
    "queue": 2,
    "planes": 1,
    "rerank": False,
    "candidates": 9,
    "measure": True,
    "texts": False,
    "attributes": False,
    "partial": True,
    "deadline": 2.0,
}


@pytest.mark.parametrize("method", ["search", "search_codes"])
def test_everything_that_can_be_searched_takes_the_same_arguments(method: str) -> None:
    first, *others = (inspect.signature(getattr(cls, method)) for cls in SEARCHED)
    for other in others:
        assert other == first  # names, order, kinds, defaults and annotations
    assert list(first.parameters)[2:] == ["k", "options"]
    assert first.parameters["k"].default == SearchRequest.k
    assert first.parameters["options"].annotation == "Unpack[SearchOptions]"


def test_type_checkers_know_every_option() -> None:
    hints = {name: kind for name, (kind, _) in OPTIONS.items() if name != "k"}
    assert get_type_hints(SearchOptions) == hints


def test_every_option_has_a_default_and_a_description() -> None:
    for field in fields(SearchRequest):
        assert field.default is not MISSING
        assert OPTIONS[field.name][1].endswith((".", "sold"))


def test_every_option_but_the_deadline_is_a_field_of_the_body() -> None:
    assert set(SearchBody.model_fields) == {*OPTIONS, "queries", "codes", "vectors", "explain"} - {"deadline"}
    assert NOT_SENT == ("deadline",)


@pytest.mark.parametrize("name", [name for name in OPTIONS if name != "deadline"])
def test_an_option_travels_to_the_service_and_back(name: str) -> None:
    asked = SearchRequest(**{name: CHANGED[name]})
    body = options_body(asked)
    assert set(body) == {"k", name}
    got = SearchBody.model_validate({"queries": ["a"], **body}).request()
    for option in OPTIONS:
        assert getattr(got, option) == getattr(asked, option)


@pytest.mark.parametrize("name", [name for name in OPTIONS if name not in ("k", "deadline")])
def test_requests_share_a_scan_only_if_they_differ_in_k(name: str) -> None:
    plain, other = SearchRequest(), SearchRequest(**{name: CHANGED[name]})
    assert plain.share_key() == SearchRequest(99).share_key()
    assert plain.share_key() != other.share_key()
    alone = name == "planes"  # its recall is of a whole batch
    assert (other.share_key() == replace(other).share_key()) is not alone


def test_certificates_and_expressions_do_not_share() -> None:
    assert SearchRequest(3, mode="paper").share_key() != SearchRequest(4, mode="paper").share_key()
    expression = SearchRequest(where=pc.field("price") < 3)
    assert expression.share_key() != expression.share_key()


def test_an_index_on_this_machine_takes_no_deadline(tmp_path: Path) -> None:
    with (
        rbegir.Index.create(tmp_path / "a.rbe", n=64, keyword_planes=1) as index,
        pytest.raises(InputError, match="cannot interrupt a search, so it takes no deadline"),
    ):
        index.search_codes(np.ones((1, 64), np.int8), deadline=1.0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"k": 0}, "k must be a whole number of at least 1, got 0"),
        ({"k": None}, "k must be a whole number of at least 1, got None"),
        ({"planes": True}, "planes must be a whole number of at least 1, got True"),
        ({"candidates": 1.5}, "candidates must be a whole number of at least 1, got 1.5"),
        ({"queue": 0}, "queue must be a whole number of at least 1, got 0"),
        ({"measure": None}, "measure must be True or False, got None"),
        ({"allow": 7}, "allow must be a list of int or str, got int"),
        ({"deny": [None]}, "deny must be 64-bit integers or strings, got null"),
        ({"mode": "fast"}, "mode must be one of exact, paper, got 'fast'"),
        ({"mode": "paper", "planes": 1}, "planes and mode='paper' cannot be combined"),
        ({"mode": "paper", "partial": True}, "partial=True and mode='paper' cannot be combined"),
        ({"deadline": -1}, "deadline must be a positive number of seconds, got -1"),
    ],
    ids=str,
)
def test_a_wrong_option_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        SearchRequest(**options)
    assert message in str(caught.value)
