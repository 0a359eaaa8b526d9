"""Settings: their defaults by size, and every refusal."""

from __future__ import annotations

from typing import Any

import pytest

from rbegir.errors import InputError
from rbegir.training.config import RECIPES, TrainConfig, recipe


@pytest.mark.parametrize(
    ("pairs", "batch_size", "epochs"),
    [
        (2, 512, 100),
        (2_000, 512, 100),
        (5_000, 512, 82),
        (10_000, 512, 41),
        (12_000, 512, 40),
        (20_000, 512, 31),
        (150_000, 1024, 8),
        (300_000, 2048, 8),
        (1_333_000, 16384, 15),
        (10**8, 16384, 5),
    ],
)
def test_settings_by_size(pairs: int, batch_size: int, epochs: int) -> None:
    config = TrainConfig().for_pairs(pairs)
    assert (config.batch_size, config.epochs) == (batch_size, epochs)
    assert TrainConfig().for_pairs(pairs, most_epochs=40).epochs == min(40, epochs)
    chosen = TrainConfig(batch_size=77, epochs=3).for_pairs(pairs)
    assert (chosen.batch_size, chosen.epochs) == (77, 3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epochs": 0}, "epochs must be a whole number of at least 1, got 0"),
        ({"epochs": 1.5}, "epochs must be a whole number of at least 1, got 1.5"),
        ({"batch_size": 1}, "batch_size must be a whole number of at least 2, got 1"),
        ({"patience": True}, "patience must be a whole number of at least 1, got True"),
        ({"seed": -1}, "seed must be a whole number from 0 to 9223372036854775807, got -1"),
        (
            {"seed": 2**64},
            "seed must be a whole number from 0 to 9223372036854775807, got 18446744073709551616",
        ),
        ({"buffer_pairs": 0}, "buffer_pairs must be a whole number of at least 2, got 0"),
        ({"lr": 0}, "lr must be a positive number, got 0"),
        ({"lr": float("nan")}, "lr must be a positive number, got nan"),
        ({"table_lr": "x"}, "table_lr must be a positive number, got 'x'"),
        ({"word_dropout": 1.0}, "word_dropout must be a share from 0 to below 1, got 1.0"),
        ({"gram_dropout": 2}, "gram_dropout must be a share from 0 to below 1, got 2"),
        ({"feature_dropout": -0.1}, "feature_dropout must be a share from 0 to below 1, got -0.1"),
        ({"guide": -1}, "guide must be a number of 0 or more, got -1"),
        ({"tolerance": "x"}, "tolerance must be a number of 0 or more, got 'x'"),
        ({"share_towers": 1}, "share_towers must be True or False, got 1"),
        ({"negatives": 0}, "negatives must be 'in_batch' or a positive integer, got 0"),
        ({"negatives": "all"}, "negatives must be 'in_batch' or a positive integer, got 'all'"),
        ({"gamma": 41.0}, "gamma must be 'learned' or a number above 0 and at most 40, got 41.0"),
        ({"gamma": "big"}, "gamma must be 'learned' or a number above 0 and at most 40, got 'big'"),
        ({"precision": "fp8"}, "precision must be auto, float32 or bfloat16, got 'fp8'"),
        ({"colour": "red"}, "unknown training settings: colour"),
    ],
)
def test_refusals(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        recipe("default", **changes)
    assert caught.value.message == message


def test_recipes() -> None:
    paper = recipe("paper")
    assert (paper.negatives, paper.guide) == (10, 0)
    assert (paper.word_dropout, paper.gram_dropout, paper.feature_dropout) == (0, 0, 0)
    assert not paper.share_towers
    assert recipe("default").share_towers
    assert recipe("paper", negatives=None, lr=0.5) == TrainConfig(**{**RECIPES["paper"].to_dict(), "lr": 0.5})
    with pytest.raises(InputError, match="unknown recipe 'best'") as caught:
        recipe("best")
    assert caught.value.hint == "choose one of default, paper"
