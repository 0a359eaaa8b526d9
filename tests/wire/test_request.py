"""The definition of a search request, and everything that follows from it."""

from __future__ import annotations

import inspect
from dataclasses import MISSING, fields, replace
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import rbegir
from rbegir.errors import InputError
from rbegir.search.hits import Cursor
from rbegir.search.request import OPTIONS, SearchOptions, SearchRequest
from rbegir.wire.schema import SearchBody
from rbegir.wire.search import NOT_SENT, options_body

SEARCHED = (rbegir.Index, rbegir.Generations, rbegir.Cluster, rbegir.Client, rbegir.AsyncClient)
CHANGED: dict[str, Any] = {
    "k": 3,
    "where": "price < 3",
    "allow": [1, 2],
    "deny": ["a"],
    "must": "red shoes",
    "tenant": "a",
    "item": "document",
    "min_score": 0.5,
    "after": Cursor.start(1).text(),
    "mode": "paper",
    "per_thread": 8,
    "queue": 2,
    "planes": 1,
    "rerank": False,
    "candidates": 9,
    "measure": True,
    "why": True,
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


def test_methods_of_the_same_name_take_the_same_arguments() -> None:
    """Besides `progress`, which only an index reports, and vectors, which a service does not store."""
    index = rbegir.Index
    for cls in SEARCHED[1:]:
        for name, method in vars(cls).items():
            if name.startswith("_") or name == "open" or not inspect.isfunction(getattr(index, name, None)):
                continue
            ours, wanted = (
                inspect.signature(method).parameters,
                inspect.signature(getattr(index, name)).parameters,
            )
            compared = [one for one in wanted.values() if one.name != "progress"]
            if cls in (rbegir.Client, rbegir.AsyncClient):
                compared = [
                    one.replace(annotation="Sequence[str]") if one.name == "texts" else one
                    for one in compared
                ]
            assert list(ours.values()) == compared, (cls, name)
    shared = {
        "search",
        "search_codes",
        "get",
        "info",
        "add",
        "upsert",
        "update",
        "delete",
        "count",
        "compact",
    }
    assert all(shared <= set(vars(cls)) for cls in SEARCHED)


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
def test_requests_share_a_scan_only_if_they_differ_in_k_and_filters(name: str) -> None:
    plain, other = SearchRequest(), SearchRequest(**{name: CHANGED[name]})
    assert plain.share_key() == SearchRequest(99).share_key()
    assert (plain.share_key() == other.share_key()) is (name in ("where", "allow", "deny", "must"))
    alone = name == "planes"  # the recall of a whole batch
    assert (other.share_key() == replace(other).share_key()) is not alone


def test_a_certificate_is_of_one_k_and_one_filter() -> None:
    def key(k: int = 3, **options: Any) -> Any:
        return SearchRequest(k, mode="paper", **options).share_key()

    assert key() == key()
    assert key() != key(4)
    assert key(where="a < 1") == key(where="a < 1")
    assert key(where="a < 1") != key(where="a < 2")
    assert key(allow=[1]) == key(allow=[1])
    assert key(allow=[1]) != key(allow=[1, 2])
    expression = pc.field("price") < 3
    assert key(where=expression) != key(where=expression)


def test_requests_are_joined_and_taken_apart() -> None:
    one = SearchRequest(3, where="a < 1", deny=[7])
    each = SearchRequest(5, where=["a < 2", None], allow=[None, [1, 2]])
    both = SearchRequest.joined([one, each], [2, 2])
    assert both.k == 5
    assert both.where == ["a < 1", "a < 1", "a < 2", None]
    assert [ids and ids.to_pylist() for ids in both.allow] == [None, None, None, [1, 2]]
    assert [ids and ids.to_pylist() for ids in both.deny] == [[7], [7], None, None]
    last = both.part(3, 1)
    assert (last.where, last.allow[0].to_pylist(), last.deny) == ([None], [1, 2], [None])
    same = SearchRequest.joined([SearchRequest(1, where="b"), SearchRequest(2, where="b")], [1, 1])
    assert (same.k, same.where) == (2, "b")
    pages = [SearchRequest(k, after=Cursor(np.array(keys), np.array(keys) + 1).text()) for k, keys in
             ((3, [5, 6]), (2, [7]))]  # fmt: skip
    page = SearchRequest.joined(pages, [2, 1])
    assert [page.k, *(array.tolist() for array in Cursor.read(page.after))] == [3, [5, 6, 7], [6, 7, 8]]
    with pytest.raises(InputError, match="after is a cursor of 1 queries, got 2"):
        SearchRequest.joined(pages, [2, 2])
    plain = SearchRequest.joined([SearchRequest(1), SearchRequest(2)], [1, 1])
    assert (plain.where, plain.allow, plain.deny) == (None, None, None)


def test_ids_for_all_queries_and_ids_for_each() -> None:
    assert SearchRequest(allow=[1, 2]).allow.to_pylist() == [1, 2]
    assert SearchRequest(allow=[]).allow.to_pylist() == []
    assert SearchRequest(allow=np.array([1, 2])).allow.to_pylist() == [1, 2]
    for given in ([[1], None], ([1], None), [np.array([1]), None], [pa.array([1]), None]):
        (first, second) = SearchRequest(allow=given).allow
        assert (first.to_pylist(), second) == ([1], None)
    assert SearchRequest(deny=[None, None]).deny == [None, None]
    assert SearchRequest(deny=[[]]).deny[0].to_pylist() == []


@pytest.mark.parametrize("name", ["where", "allow", "deny"])
def test_a_filter_per_query_travels_to_the_service_and_back(name: str) -> None:
    given = ["a < 1", None] if name == "where" else [None, [1, 2]] if name == "allow" else [["a"], []]
    body = options_body(SearchRequest(**{name: given}))
    assert body[name] == given
    got = SearchBody.model_validate({"queries": ["a", "b"], **body}).request()
    assert getattr(got, name) == getattr(SearchRequest(**{name: given}), name)
    with pytest.raises(InputError, match=f"{name} has 2 entries for 3 queries"):
        got.each_filter(3)


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
        ({"k": None}, "k=None needs a min_score: it asks for all hits that reach one"),
        ({"min_score": "high"}, "min_score must be a finite number, got 'high'"),
        ({"min_score": float("nan")}, "min_score must be a finite number, got nan"),
        ({"min_score": True}, "min_score must be a finite number, got True"),
        ({"min_score": 0.5, "rerank": True}, "min_score and rerank=True cannot be combined"),
        ({"min_score": 0.5, "mode": "paper"}, "min_score and mode='paper' cannot be combined"),
        ({"min_score": 0.5, "planes": 1}, "min_score and planes cannot be combined"),
        ({"after": Cursor.start(1).text(), "rerank": True}, "after and rerank=True cannot be combined"),
        ({"after": Cursor.start(1).text(), "planes": 1}, "after and planes cannot be combined"),
        ({"after": 7}, "after must be the cursor of a result, got '7'"),
        ({"after": "AAAA"}, "after must be the cursor of a result, got 'AAAA'"),
        ({"after": "not base64!"}, "after must be the cursor of a result"),
        ({"planes": True}, "planes must be a whole number of at least 1, got True"),
        ({"candidates": 1.5}, "candidates must be a whole number of at least 1, got 1.5"),
        ({"queue": 0}, "queue must be a whole number of at least 1, got 0"),
        ({"measure": None}, "measure must be True or False, got None"),
        ({"allow": 7}, "allow must be a list of int or str, got int"),
        ({"deny": [1, None]}, "deny[1] is None, expected an id"),
        ({"deny": [[1], 2]}, "deny[1] is 2, but other entries are lists"),
        ({"deny": [[1], [None]]}, "deny[1] must be 64-bit integers or strings, got null"),
        ({"where": ["a", None], "mode": "paper"}, "a filter per query and mode='paper' cannot be combined"),
        ({"allow": [[1], None], "planes": 1}, "a filter per query and planes cannot be combined"),
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
