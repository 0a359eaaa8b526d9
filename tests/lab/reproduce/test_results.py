"""Means, spreads, lifts and verdicts from runs with known figures."""

from __future__ import annotations

import pytest

from rbegir.lab.reproduce.results import Results, stat


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


def test_lift_is_the_share_of_the_gap() -> None:
    assert RESULTS.lift("rbe_star") == pytest.approx(80.0)
    assert RESULTS.lift("m_2") == pytest.approx(-110.0)
    assert RESULTS.lift("rbe_9") is None


@pytest.mark.parametrize(
    ("better", "worse", "verdict"),
    [
        ("m_1", "m_3", "held"),
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


def test_intervals_and_studies() -> None:
    assert RESULTS.interval("m_1", "roc_auc") == pytest.approx([0.89, 0.91])
    assert RESULTS.interval("rbe_9", "roc_auc") is None
    assert RESULTS.study("m_1", "sizes") == [{"10": 0.92}]
    assert RESULTS.compare("m_1", "rbe_9") is None
