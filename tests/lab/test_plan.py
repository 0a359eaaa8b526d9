"""The planner: its answers move the right way, its simulation agrees with theory, its figures are current."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rbegir.errors import InputError
from rbegir.lab import plan as planning
from rbegir.lab.plan import ImpossibleError, Planner, Wish, load, plan

ROOT = Path(__file__).resolve().parents[2]
# the measured machines with a network that costs little and is never late: what follows is then plain to see
CALM = {
    **load(),
    "call": {"value": 0.5, "unit": "ms", "source": "test"},
    "merge": {"value": 20.0, "unit": "ns", "source": "test"},
    "spread": {"quantiles": [0.0, 0.0, 0.0], "source": "test"},
}
BASE = Wish(keywords=10**10, latency_ms=100.0, qps=1000.0)


def machines(**changes: Any) -> int:
    return int(plan(replace(BASE, **changes), CALM)["machines"])


def test_the_command_answers_the_question_of_the_readme() -> None:
    command = [sys.executable, "-m", "rbegir", "plan", "--keywords", "1e11", "--latency-ms", "50", "--qps"]
    done = subprocess.run([*command, "10000", "--json"], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["machines"] >= 1e11 * 16 / 128e9
    assert found["bound_by"] in ("memory", "latency", "throughput", "nothing")
    assert all(constant["source"] for constant in found["constants"].values())
    assert found["latency_ms"]["p99"] <= 50
    shown = subprocess.run([*command, "10"], capture_output=True, text=True, cwd=ROOT)
    assert shown.returncode == 0
    assert "bound by" in shown.stdout


@settings(max_examples=25)
@given(st.integers(10**5, 10**11), st.floats(0.0, 1e5), st.floats(5, 5000), st.floats(1.0, 4.0))
def test_more_never_needs_less(keywords: int, qps: float, latency: float, more: float) -> None:
    """More keywords or load never take fewer machines, more time never more."""
    planner = Planner(CALM, CALM["machines"][0])

    def count(wish: Wish) -> float:
        try:
            return planner.fewest(wish).machines
        except ImpossibleError:
            return math.inf

    wish = Wish(keywords, latency, qps)
    base = count(wish)
    assert count(Wish(math.ceil(keywords * more), latency, qps)) >= base
    assert count(Wish(keywords, latency, qps * more)) >= base
    assert count(Wish(keywords, latency * more, qps)) <= base


def test_what_binds() -> None:
    assert plan(Wish(10**11, 1e6, 0.0), CALM)["bound_by"] == "memory"
    assert plan(Wish(10**8, 1000.0, 1e6), CALM)["bound_by"] == "throughput"
    assert plan(Wish(8 * 10**9, 20.0, 1.0), CALM)["bound_by"] == "latency"
    assert plan(Wish(1000, 1000.0, 1.0), CALM)["bound_by"] == "nothing"
    assert plan(Wish(1000, 1000.0, 1.0), CALM)["machines"] == 1
    assert machines(replicas=3) >= 3


def test_what_was_measured_comes_back() -> None:
    """Without load a plan for a measured size takes the measured time."""
    results = json.loads((ROOT / "benchmarks" / "results" / "scan-gpu.json").read_text())
    (cell,) = [c for c in results["cells"] if (c["keywords"], c["batch"]) == (1_200_000_000, 1)]
    found = plan(Wish(1_200_000_000, 1e6, 0.0), machine=results["host"]["device"])
    assert found["options"][0]["scan_ms"] == pytest.approx(cell["ms"], rel=1e-3)


def test_the_impossible_is_explained() -> None:
    with pytest.raises(
        InputError, match=r"no number of machines answers .* within 0\.01 ms: .*network"
    ) as caught:
        plan(Wish(10**9, 0.01, 1.0))
    assert "allow more latency" in caught.value.hint
    with pytest.raises(
        InputError, match=r"at best, (\d+) shards take [5-9]\.\d+ ms .* merge [0-3]\."
    ) as caught:
        plan(Wish(10**11, 5.0, 10_000.0), CALM, CALM["machines"][0]["name"])
    with pytest.raises(InputError, match="machine must be one of 'NVIDIA H200', "):
        plan(BASE, machine="abacus")
    for name, value in (
        ("keywords", 0),
        ("latency_ms", 0.0),
        ("qps", math.nan),
        ("k", 0),
        ("replicas", True),
    ):
        with pytest.raises(InputError, match=f"{name} must be"):
            machines(**{name: value})


def test_the_slowest_of_many_agrees_with_theory() -> None:
    """Uniform times: the slowest of S has the median 2^(−1/S); one draw in the tail becomes the rule."""
    for shards in (1, 4, 64):
        times = planning.slowest(np.linspace(0, 1, 101).tolist(), shards)
        assert np.median(times) == pytest.approx(0.5 ** (1 / shards), abs=0.01)
    rare = np.ones(10_001)
    rare[9901:] = 10.0  # one answer in a hundred takes ten times as long
    found = [np.mean(planning.slowest(rare.tolist(), shards) > 5) for shards in (1, 100)]
    assert found[0] == pytest.approx(0.01, abs=0.006)
    assert found[1] == pytest.approx(1 - 0.99**100, abs=0.03)


def test_hedging_cuts_the_tail_and_draws_are_fixed() -> None:
    late = np.zeros(10_001)
    late[9951:] = 10.0  # one answer in two hundred is 10 ms late
    table = {
        (tail["shards"], tail["hedged"]): tail["p99_ms"]
        for tail in planning.tails(late.tolist(), usual_ms=2.0)
    }
    for shards in planning.SHARDS:
        assert table[shards, True] <= table[shards, False]
    assert table[64, False] == 10.0
    assert table[64, True] == pytest.approx(2.0)  # asked again elsewhere, which takes the usual time
    assert planning.tails(late.tolist(), 2.0) == planning.tails(late.tolist(), 2.0)


def test_hedging_agrees_with_a_simulation() -> None:
    quantiles = -np.log(1 - np.linspace(0, 0.999, 1001))
    grid, rng = np.linspace(0, 1, 1001), np.random.default_rng(1)
    first, second = np.interp(rng.random((2, 8, 50_000)), grid, quantiles)  # [8 shards, searches] each
    hedged = np.minimum(first, np.interp(0.95, grid, quantiles) + 0.5 + second).max(axis=0)
    found = planning.slowest(quantiles.tolist(), 8, usual_ms=0.5)
    for share in (0.1, 0.5, 0.9, 0.99):
        assert np.quantile(found, share) == pytest.approx(np.quantile(hedged, share), rel=0.04)
