"""The fault harness and the timed parts run and count; how fast they are is not asked here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rbegir.errors import InputError
from rbegir.lab.bench import cluster as bench


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bench") / "small.rbe"
    bench.make_index(path, 5000)
    return path


def test_killed_under_load(nodes: Any, small: Path) -> None:
    seen: list[float] = []
    found = bench.faults(
        small,
        replicas=2,
        seconds=2.0,
        every=0.7,
        clients=2,
        progress=lambda share, what: seen.append(share),
    )
    assert found["kills"] >= 1
    assert found["asked"] > 0
    assert (found["wrong"], found["failed"], found["errors"]) == (0, 0, {})
    assert seen == sorted(seen)


def test_the_timed_parts(nodes: Any, small: Path) -> None:
    overhead = bench.overhead(small, 3)
    assert overhead["cluster_ms"]["median"] > 0
    scaling = bench.scaling(small, 2, batch=2)
    assert scaling["efficiency"]["median"] == pytest.approx(scaling["speedup"]["median"] / 2)
    spread = bench.spread(small, 5)
    assert spread["over_median_ms"] == sorted(spread["over_median_ms"])
    assert spread["over_median_ms"][bench.QUANTILES // 2] == pytest.approx(0, abs=1e-6)
    assert bench.merge_cost(2)["median"] > 0


def test_refusals() -> None:
    for name in ("keywords", "rounds"):
        with pytest.raises(InputError, match=f"{name} must be a whole number of at least 1, got 0"):
            bench.speed(**{name: 0})  # type: ignore[arg-type]
    with pytest.raises(InputError, match="clients must be a whole number of at least 1, got 0"):
        bench.survival(clients=0)
    for wrong in ({"seconds": 0.0}, {"every": float("nan")}):
        with pytest.raises(InputError, match="seconds and every must be more than 0, got"):
            bench.survival(**wrong)  # type: ignore[arg-type]
