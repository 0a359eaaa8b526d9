"""Messages in plain values come back as they were, and only what must be is left to Ray."""

from __future__ import annotations

import datetime
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from rbegir.cluster.shard import Failure, Found, Scan, pack, unpack
from rbegir.errors import BusyError
from rbegir.search.request import SearchRequest

COLUMNS = (
    np.array([3, 1], np.int64),
    np.array(["a", "ü"], object),
    {"tags": np.array([["x", "y"], None], object), "at": np.array([datetime.date(2020, 1, 2), None], object)},
)
MESSAGES = [
    Scan(np.array([[1, -3]], np.int16), SearchRequest(5, "price < 3"), 1, 2.5, ("text", "price")),
    Scan(np.zeros((0, 64), np.int16), SearchRequest(1)),
    Found(np.array([[9, 7]]), np.array([[0, 5]]), None, 12, COLUMNS),
    Found(np.zeros((2, 0), np.int64), np.zeros((2, 0), np.int64), np.zeros((2, 0), np.int64)),
    COLUMNS,
    {0: True, 3: False},
    [(256, np.array([1, 2], np.uint32))],
    [None, {"id": 1, "text": "t", "price": 2.5, "at": datetime.datetime(2020, 1, 2)}],
]


def same(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray):
        return (
            isinstance(b, np.ndarray)
            and (a.dtype, a.shape) == (b.dtype, b.shape)
            and all(map(same, a.ravel().tolist(), b.ravel().tolist()))
        )
    if is_dataclass(a):
        return type(a) is type(b) and all(same(getattr(a, f.name), getattr(b, f.name)) for f in fields(a))
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and (a == b or a != a)


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_message_comes_back(message: Any) -> None:
    assert same(message, unpack(pack(message)))


@given(arrays.arrays(st.sampled_from(["<i2", "<i8", "<u8", "<f4", "|b1"]), arrays.array_shapes(min_side=0)))
def test_arrays_come_back(array: np.ndarray[Any, Any]) -> None:
    assert same(array, unpack(pack(array)))
    assert same(array[::2], unpack(pack(array[::2])))


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text() | st.binary(), st.lists))
def test_lists_are_not_taken_for_messages(value: Any) -> None:
    assert unpack(pack(value)) == value
    assert unpack(pack(["message", "SearchRequest", value])) == ["message", "SearchRequest", value]


def test_a_question_is_plain_values_only() -> None:
    def leaves(plain: Any) -> set[type]:
        return set().union(*map(leaves, plain)) if type(plain) is list else {type(plain)}

    assert leaves(pack(MESSAGES[0])) <= {type(None), bool, int, float, str, bytes}


def test_what_has_no_plain_form_stays_itself() -> None:
    allowed, where = pa.array([1, 2]), pc.field("price") < 3
    query = unpack(pack(SearchRequest(1, where, allowed)))
    assert query.where is where
    assert query.allow.equals(allowed)
    failure = Failure(BusyError("full"), "node")
    assert unpack(pack(failure)).error is failure.error
