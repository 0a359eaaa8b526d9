"""The front door, for a few tries, and that it notices when it is not shut."""

from __future__ import annotations

import itertools
import random
import threading
from math import inf
from pathlib import Path
from typing import Any

import pytest

from rbegir.index.store import Index
from torture import frontdoor
from torture.limits import Limits
from torture.server import Server


def test_a_service_stands_its_attacks() -> None:
    found = frontdoor.run(Limits(points=len(frontdoor.KINDS), seconds=inf))
    assert found["first_losses"] == []
    assert found["tries"] == dict.fromkeys(frontdoor.KINDS, 1)
    assert found["slowest_health_cpu_s"] <= frontdoor.HEALTH_CPU
    assert found["memory_growth_mb"] << 20 <= frontdoor.MEMORY
    assert found["memory_peak_mb"] << 20 <= frontdoor.PEAK_MEMORY


def one_body(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The losses of one attack, by the first kind alone."""
    monkeypatch.setattr(frontdoor, "make_encoder", lambda path: path)
    return list(frontdoor.run(Limits(points=1, seconds=inf))["first_losses"])


def test_a_slow_health_check_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    spent = itertools.count(0, 0.3)
    monkeypatch.setattr(frontdoor.Witness, "cpu", lambda self: next(spent))
    (loss,) = one_body(monkeypatch)
    assert "a health check waited for 0.30 s of CPU time" in loss


def test_memory_that_is_not_freed_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    attacked = threading.Event()
    attack, memory = frontdoor.Attacks.body, Server.memory

    def leaking(self: frontdoor.Attacks) -> None:
        attack(self)
        attacked.set()

    monkeypatch.setattr(frontdoor, "SETTLE_S", 0.0)
    monkeypatch.setattr(frontdoor.Attacks, "body", leaking)
    monkeypatch.setattr(Server, "memory", lambda self: memory(self) + attacked.is_set() * frontdoor.MEMORY)
    (loss,) = one_body(monkeypatch)
    assert "MB more than at the start" in loss
    assert "during the attack" not in loss


def test_memory_during_an_attack_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, seen = threading.Event(), threading.Event()
    memory = Server.memory

    def bloated(self: Server) -> int:
        if not begun.is_set() or self.over:  # type: ignore[attr-defined]
            return memory(self)
        seen.set()
        return memory(self) + frontdoor.PEAK_MEMORY

    def attack(self: frontdoor.Attacks) -> None:
        begun.set()
        assert seen.wait(60)
        self.server.over = True  # type: ignore[attr-defined]

    monkeypatch.setattr(Server, "over", False, raising=False)
    monkeypatch.setattr(Server, "memory", bloated)
    monkeypatch.setattr(frontdoor.Attacks, "body", attack)
    (loss,) = one_body(monkeypatch)
    assert "more than at the start during the attack" in loss


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
