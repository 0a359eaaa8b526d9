"""The certificate against the paper's table, exact enumeration, its closed form and simulated searches."""

import json
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from rbegir.errors import InputError
from rbegir.search import missrate
from rbegir.search.missrate import certificate, certificate_of_threads


def enumerate_misses(sizes: list[int], top: int, queue: int) -> tuple[list[float], float]:
    """P(L ≤ l) for all l, and the expected recall, in rational numbers thread by thread."""
    ways = {(0, 0): 1}  # (relevant so far, missed so far) → ways
    for size in sizes:
        more: dict[tuple[int, int], int] = {}
        for (found, missed), count in ways.items():
            for j in range(min(size, top - found) + 1):
                state = (found + j, missed + max(0, j - queue))
                more[state] = more.get(state, 0) + count * math.comb(size, j)
        ways = more
    total = math.comb(sum(sizes), top)
    law = [Fraction(ways.get((top, missed), 0), total) for missed in range(top + 1)]
    recall = 1 - sum(missed * p for missed, p in enumerate(law)) / top
    return [float(sum(law[: missed + 1])) for missed in range(top + 1)], float(recall)


def test_the_table_of_the_paper() -> None:
    found = certificate(10**9, 1000, 256)
    # The exact values, from integers of thousands of digits, are 88.0396, 99.2563 and 99.9689 %; the paper
    # prints 88.039, 99.256 and 99.969.
    for misses, exact, printed in (
        (0, 0.880396057412640, 0.88039),
        (1, 0.992562990255504, 0.99256),
        (2, 0.999689220391243, 0.99969),
    ):
        assert found.at_most(misses) == pytest.approx(exact, abs=1e-12)
        assert abs(found.at_most(misses) - printed) < 1e-5
    assert found.expected_recall == pytest.approx(0.999873, abs=5e-7)
    assert found.at_most(-1) == 0.0
    assert found.at_most(1000) == 1.0


@settings(max_examples=150, deadline=None)
@given(
    candidates=st.integers(1, 50),
    share=st.floats(0, 1),
    per_thread=st.integers(1, 20),
    queue=st.integers(1, 4),
)
def test_enumeration(candidates: int, share: float, per_thread: int, queue: int) -> None:
    top = max(1, round(share * candidates))
    sizes = [per_thread] * (candidates // per_thread) + [candidates % per_thread] * (
        candidates % per_thread > 0
    )
    at_most, recall = enumerate_misses(sizes, top, queue)
    found = certificate(candidates, top, per_thread, queue)
    assert found.expected_recall == pytest.approx(recall, abs=1e-11)
    for misses, probability in enumerate(at_most):
        assert found.at_most(misses) == pytest.approx(probability, abs=1e-10)


def test_uneven_threads() -> None:
    sizes = {7: 3, 2: 4, 1: 5}
    at_most, recall = enumerate_misses([7] * 3 + [2] * 4 + [1] * 5, 11, 2)
    found = certificate_of_threads({**sizes, 0: 9}, 11, 7, 2)
    assert (found.candidates, found.top) == (34, 11)
    assert found.expected_recall == pytest.approx(recall, abs=1e-12)
    assert [found.at_most(misses) for misses in range(12)] == pytest.approx(at_most, abs=1e-12)


def test_the_order_of_sizes_does_not_matter() -> None:
    sizes = {3: 120, 1: 130, 4: 33, 2: 190}
    assert certificate_of_threads(sizes, 100, 4, 1) == certificate_of_threads(
        dict(sorted(sizes.items())), 100, 4, 1
    )


@pytest.mark.parametrize(
    "size", [(10**9, 1000, 256), (256 * 40_000, 1000, 256), (10**6, 10**4, 64), (10**12, 10**6, 256)]
)
def test_closed_form_of_the_expectation(size: tuple[int, int, int]) -> None:
    candidates, top, per_thread = size
    threads = candidates / per_thread
    i = np.arange(per_thread)
    none = math.exp(np.log1p(-top / (candidates - i)).sum())  # C(C−I, N) / C(C, N)
    assert certificate(*size).expected_recall == pytest.approx(threads / top * (1 - none), rel=1e-9)


@pytest.mark.parametrize(
    "size", [(10**9, 10**6, 256, 1), (10**9, 10**5, 256, 2), (10**7, 10**6, 256, 3), (10**6, 999_999, 256, 1)]
)
def test_expectation_and_law_agree(size: tuple[int, int, int, int]) -> None:
    """Two independent computations: hypergeometric expectation, and Σ P(L > l) of the transform."""
    found = certificate(*size)
    missed = sum(1 - p for p in found.p_miss_at_most)
    assert 1 - missed / size[1] == pytest.approx(found.expected_recall, abs=1e-9)


def test_length_of_the_list() -> None:
    assert certificate(100, 1, 10).p_miss_at_most == (1.0,)
    assert certificate(100, 1, 10, most=3).p_miss_at_most == (1.0,) * 4
    assert len(certificate(10**9, 1000, 256, most=2).p_miss_at_most) == 3
    every = certificate(50, 50, 10, 2)  # all are relevant: exactly 5 · 8 are lost
    assert (every.at_most(39), every.at_most(40), every.expected_recall) == (0.0, 1.0, pytest.approx(0.2))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 1, 1, 1), "candidates must be a whole number of at least 1, got 0"),
        ((10, 0, 1, 1), "top must be a whole number of at least 1, got 0"),
        ((10, 1, -1, 1), "per_thread must be a whole number of at least 1, got -1"),
        ((10, 1, 1, 1.5), "queue must be a whole number of at least 1, got 1.5"),
        ((10, 11, 1, 1), "top must be at most the number of candidates 10, got 11"),
    ],
)
def test_refuses(arguments: tuple, message: str) -> None:
    with pytest.raises(InputError, match=message):
        certificate(*arguments)


def test_command() -> None:
    from rbegir.cli.research import app

    arguments = ["missrate", "--candidates", "1000000000", "--top", "1000", "--per-thread", "256"]
    result = CliRunner().invoke(app, [*arguments, "--json"])
    assert result.exit_code == 0
    printed = json.loads(result.stdout)
    assert set(printed) == {"p_miss_at_most", "expected_recall"}
    assert printed["p_miss_at_most"][:3] == pytest.approx([0.880396, 0.992563, 0.999689], abs=1e-6)
    assert printed["expected_recall"] == pytest.approx(0.999873, abs=1e-6)
    table = CliRunner().invoke(app, [*arguments, "--queue", "2", "--most", "1"])
    assert table.exit_code == 0
    assert "expected recall" in table.stdout
    assert "99.99" in table.stdout


def test_a_repeated_certificate_is_not_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    laws = []

    def law(*arguments: object) -> object:
        laws.append(arguments)
        return computed(*arguments)  # type: ignore[arg-type]

    computed = missrate._law_of_misses
    monkeypatch.setattr(missrate, "_law_of_misses", law)
    missrate._certificate.cache_clear()
    first = certificate_of_threads({64: 9, 3: 1}, 20, 64, 1)
    assert certificate_of_threads({3: 1, 64: 9}, 20, 64, 1) is first
    assert len(laws) == 1
    for other in (({64: 9, 4: 1}, 20, 64, 1), ({64: 9, 3: 1}, 21, 64, 1), ({64: 9, 3: 1}, 20, 64, 2)):
        assert certificate_of_threads(*other) != first
    assert len(laws) == 4
