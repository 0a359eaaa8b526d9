"""The comparison of all features with plain NumPy, shortly, and that it notices a mistake in each of them."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any

import numpy as np
import pytest

from rbegir.index import join, maxsim, query, segment
from rbegir.search import items
from rbegir.search.hits import Cursor
from rbegir.search.request import SearchRequest
from torture import features
from torture.limits import Limits


def test_every_feature_for_a_while() -> None:
    found = features.compare(Limits(points=600, seconds=inf, seed=2, processes=1))
    assert found["first_losses"] == []
    assert min(found["by_way"].values()) >= 600
    assert found["worlds"] > 1


def _after(owner: Any, name: str, change: Callable[[Any], Any]) -> Callable[[pytest.MonkeyPatch], None]:
    """A fault: what this function returns is changed."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        real = getattr(owner, name)
        patch.setattr(owner, name, lambda *given, **named: change(real(*given, **named)))

    return plant


FAULTS = {
    "filters": _after(SearchRequest, "each_filter", lambda each: [*each[1:], each[0]]),
    "must": _after(SearchRequest, "filters", lambda given: {**given, "must": None}),
    "tenant": _after(segment.Segment, "of_tenant", lambda positions: positions[:-1]),
    "item": _after(items, "first_of_items", lambda first: np.ones_like(first)),
    "min_score": _after(query, "least_keys", lambda keys: keys + 1),
    "pages": _after(Cursor, "read", lambda cursor: Cursor(cursor.keys, cursor.rows - 1)),
    "maxsim": _after(maxsim, "item_numbers", lambda numbers: np.minimum(numbers, 20)),
    "neighbors": _after(join, "_ranks", lambda ranks: ranks + (ranks > 2)),
    "join": _after(join, "key_scores", lambda scores: lambda keys: np.nextafter(scores(keys), 2)),
    "duplicates": _after(join, "_first_of_equals", lambda first: np.arange(first.size)),
}


@pytest.mark.parametrize("way", features.WAYS)
def test_a_fault_is_noticed(monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    FAULTS[way](monkeypatch)
    monkeypatch.setattr(features, "WAYS", (way,))
    found = features.compare(Limits(points=20_000, seconds=inf, seed=1, processes=1))
    assert found["losses"] == 1
    assert f", {way}: " in found["first_losses"][0]
