"""Means, spreads, lifts and verdicts from runs with known figures."""

from __future__ import annotations

import pytest
from scipy.stats import t as student

from rbegir.lab.figures import big, interval, stat
from rbegir.lab.reproduce.results import Results


def run(row: str, seed: int, auc: float) -> dict[str, object]:
    return {
        "row": row,
        "seed": seed,
        "figures": {"roc_auc": {"value": auc, "interval": [auc - 0.01, auc + 0.01]}},
        "studies": {"sizes": {"10": auc}} if seed else {},
    }


RESULTS = Results(
    [
        *(run("m_1", seed, value) for seed, value in enumerate((0.90, 0.92))),
        *(run("m_3", seed, value) for seed, value in enumerate((0.80, 0.82))),
        *(run("rbe_star", seed, value) for seed, value in enumerate((0.885, 0.895))),
        *(run("rbe_2", seed, value) for seed, value in enumerate((0.84, 0.86, 0.90))),
        run("m_2", 0, 0.7),
    ]
)


def test_mean_and_spread() -> None:
    found = RESULTS.stat("m_1", "roc_auc")
    assert found is not None
    assert found._asdict() == pytest.approx({"mean": 0.91, "std": 0.0141421, "seeds": 2}, abs=1e-6)
    one = RESULTS.stat("m_2", "roc_auc")
    assert one is not None
    assert one.std is None
    assert RESULTS.stat("m_2", "labels/all/roc_auc") is None
    assert RESULTS.stat("rbe_9", "roc_auc") is None
    assert stat([]) is None


def test_plus_minus_is_half_of_students_interval() -> None:
    three = {"mean": 0.2, "std": 0.1, "seeds": 3}
    assert interval(three) == "0.200 ± 0.248"  # 4.303 × 0.1 / √3
    assert interval({"mean": 0.2, "std": 0.1}, 2, seeds=2) == "0.20 ± 0.90"
    assert interval({"mean": 0.2, "std": None, "seeds": 1}) == "0.200"


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (0, "0"),
        (0.5, "0.5"),
        (950, "950"),
        (1234, "1.23 thousand"),
        (999_499, "999 thousand"),
        (999_999, "1 million"),
        (14_314_000_000, "14.3 billion"),
        (2.5e12, "2,500 billion"),
    ],
)
def test_large_numbers_in_words(number: float, words: str) -> None:
    assert big(number) == words


def test_lift_is_the_share_of_the_gap_seed_by_seed() -> None:
    found = RESULTS.lift("rbe_star")  # 0.085 of 0.1, then 0.075 of 0.1
    assert found is not None
    assert found._asdict() == pytest.approx({"mean": 80.0, "std": 7.0710678, "seeds": 2})
    assert RESULTS.lift("rbe_2").seeds == 2  # type: ignore[union-attr]  # the gap of the third seed is not known
    assert RESULTS.lift("m_2") == pytest.approx((-100.0, None, 1))
    assert RESULTS.lift("rbe_9") is None
    assert RESULTS.gain("rbe_star", "rbe_2") == pytest.approx((40.0, 7.0710678, 2))


@pytest.mark.parametrize(
    ("better", "worse", "verdict"),
    [
        ("m_1", "m_3", "held"),  # +0.1 for both seeds
        ("m_3", "m_1", "reversed"),
        ("m_1", "rbe_star", "held, within the spread"),
        ("rbe_star", "m_1", "reversed, within the spread"),
        ("m_1", "m_2", "held, one seed"),
    ],
)
def test_verdicts(better: str, worse: str, verdict: str) -> None:
    found = RESULTS.compare(better, worse)
    assert found is not None
    assert found["verdict"] == verdict


def test_a_difference_needs_the_interval_of_so_few_seeds() -> None:
    """Differences of .01, .02, .03 are clear by two standard errors, but not by Student's t."""
    seeds = [(0.1, 0.11), (0.2, 0.22), (0.3, 0.33)]
    runs = [
        run(row, seed, value)
        for seed, both in enumerate(seeds)
        for row, value in zip("ab", both, strict=True)
    ]
    found = Results(runs).compare("b", "a")
    assert found is not None
    assert found["difference"] == pytest.approx(0.02)
    assert found["error"] == pytest.approx(float(student.ppf(0.975, 2)) * 0.01 / 3**0.5, rel=1e-3)
    assert found["error"] > found["difference"]
    assert found["verdict"] == "held, within the spread"


def test_intervals_and_studies() -> None:
    assert RESULTS.interval("m_1", "roc_auc") == pytest.approx([0.89, 0.91])
    assert RESULTS.interval("rbe_9", "roc_auc") is None
    assert RESULTS.study("m_1", "sizes") == [{"10": 0.92}]
    assert RESULTS.compare("m_1", "rbe_9") is None
