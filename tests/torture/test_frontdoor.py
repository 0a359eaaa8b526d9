"""The front door, for a few tries, and that it notices when it is not shut."""

from __future__ import annotations

import random
from math import inf
from pathlib import Path
from typing import Any

import pytest

from rbegir.index.store import Index
from torture import frontdoor
from torture.limits import Limits


def test_a_service_stands_its_attacks() -> None:
    kinds = ["body", "pipeline", "trailers", "readers", "unfinished", "filters", "models", "files"]
    found = frontdoor.run(Limits(points=len(kinds), seconds=inf))
    assert found["first_losses"] == []
    assert found["tries"] == dict.fromkeys(kinds, 1)
    assert found["slowest_health_cpu_s"] <= frontdoor.HEALTH_CPU


def test_a_stale_model_would_be_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = Index._encoding
    first: dict[int, Any] = {}

    def stale(self: Index) -> Any:
        state, model = original(self)
        return state, first.setdefault(id(self), model)

    monkeypatch.setattr(Index, "_encoding", stale)
    with pytest.raises(AssertionError, match="of 30 queries find other keywords"):
        frontdoor.replaced_model(tmp_path, random.Random(1))


def test_a_foreign_error_would_be_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def careless(self: Index) -> Any:
        raise KeyError("weights")

    monkeypatch.setattr(Index, "_encoding", careless)
    with pytest.raises(KeyError):
        frontdoor.hostile_model(tmp_path, random.Random(1))
