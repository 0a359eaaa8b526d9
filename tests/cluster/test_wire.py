"""Messages between clients and shards come back as they were."""

from __future__ import annotations

import datetime
import pickle
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from rbegir.cluster.shard import Failure, Found, Scan, pack
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
    assert same(message, pickle.loads(pack(message)))


def test_filters_and_errors_come_back() -> None:
    allowed, where = pa.array([1, 2]), pc.field("price") < 3
    query = pickle.loads(pack(SearchRequest(1, where, allowed)))
    assert query.where.equals(where)
    assert query.allow.equals(allowed)
    failure = pickle.loads(pack(Failure(BusyError("full", hint="wait"), "node")))
    assert type(failure.error) is BusyError
    assert (failure.error.message, failure.error.hint, failure.node) == ("full", "wait", "node")
