"""How a model is trained: the settings, and the two recipes.

`default` is tuned for recall and AUC on unseen keywords; `paper` is the published setting (a tower for each
side with a start of its own, 10 negatives by cross sampling, fixed γ, no dropout). Two settings depend on the
number of pairs unless they are given:

    batch_size   the largest power of two up to pairs / 80, from 512 to 16,384
    epochs       as many as make STEPS steps, from 5 to 40; up to 100 where 40 make less than LEAST_STEPS

Smaller batches would make more steps of few pairs, but they have fewer negatives, and recall falls
(dev/LOG.md, H44).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal

from rbegir.errors import InputError, whole_number
from rbegir.training.loss import MAX_GAMMA

STEPS, LEAST_STEPS = 1200, 800
MOST_SEED = 2**63 - 1  # that torch takes

Precision = Literal["auto", "float32", "bfloat16"]


@dataclass(frozen=True)
class TrainConfig:
    """Everything besides the data and the model's shape that the result depends on."""

    epochs: int | None = None
    batch_size: int | None = None  # of all processes together
    lr: float = 4e-3
    table_lr: float = 1.2e-2  # of the gram tables, see step.py
    negatives: Literal["in_batch"] | int = "in_batch"
    gamma: float | Literal["learned"] = "learned"
    word_dropout: float = 0.2  # share of the words of a text
    gram_dropout: float = 0.1  # share of the grams of a word, the same wherever it stands in a batch
    feature_dropout: float = 0.1  # share of the features that a code is made from
    patience: int | None = None  # epochs without a better validation AUC before stopping; None: all of them
    guide: float = 1.0  # weight of the float head beside the codes, see loss.py; 0: none
    guide_dims: int = 256  # of that head
    teacher: float = 1.0  # weight of a teacher's vectors, where there is one, see data.py
    rerank: bool = True  # fit a reranker on the held-out pairs, which needs the guide
    share_towers: bool = True  # of a preset; a shape of its own (`config`) says so itself
    spelling_start: bool = True  # codes rank by spelling before the first step, see twotower.py
    equal_start: bool = True  # both sides start with the same parameters
    tolerance: float = 1.0  # standard errors of AUC that a later epoch may lack to be kept; 0: the best one
    precision: Precision = "auto"
    seed: int = 0
    buffer_pairs: int = 4_000_000  # shuffled together, held in memory

    def __post_init__(self) -> None:
        for name, low in LEAST.items():
            if getattr(self, name) is not None or name not in OPTIONAL:
                most = MOST_SEED if name == "seed" else None
                object.__setattr__(self, name, whole_number(name, getattr(self, name), low, most))
        for names, is_valid, expected in RANGES:
            for name in names:
                value = getattr(self, name)
                if not (_is_number(value) and is_valid(value)):
                    raise InputError(f"{name} must be {expected}, got {value!r}")
        if self.negatives != "in_batch" and not (type(self.negatives) is int and self.negatives >= 1):
            raise InputError(f"negatives must be 'in_batch' or a positive integer, got {self.negatives!r}")
        if self.gamma != "learned" and not (_is_number(self.gamma) and 0 < self.gamma <= MAX_GAMMA):
            raise InputError(
                f"gamma must be 'learned' or a number above 0 and at most {MAX_GAMMA:g}, got {self.gamma!r}"
            )
        for name in ("rerank", "share_towers", "spelling_start", "equal_start"):
            if not isinstance(getattr(self, name), bool):
                raise InputError(f"{name} must be True or False, got {getattr(self, name)!r}")
        if self.precision not in ("auto", "float32", "bfloat16"):
            raise InputError(f"precision must be auto, float32 or bfloat16, got {self.precision!r}")

    def for_pairs(self, pairs: int, *, most_epochs: int = 100) -> TrainConfig:
        """With the settings that depend on the amount of data filled in."""
        batch = self.batch_size or 2 ** int(math.log2(max(512, min(16384, pairs / 80))))
        most, least = (round(steps * batch / pairs) for steps in (STEPS, LEAST_STEPS))
        epochs = self.epochs or max(5, min(40, most), min(most_epochs, least))
        return replace(self, batch_size=batch, epochs=epochs)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


LEAST = {"epochs": 1, "batch_size": 2, "patience": 1, "buffer_pairs": 2, "guide_dims": 1, "seed": 0}
OPTIONAL = ("epochs", "batch_size", "patience")
RANGES: tuple[tuple[tuple[str, ...], Callable[[float], bool], str], ...] = (
    (("lr", "table_lr"), lambda x: x > 0, "a positive number"),
    (("word_dropout", "gram_dropout", "feature_dropout"), lambda x: 0 <= x < 1, "a share from 0 to below 1"),
    (("guide", "teacher", "tolerance"), lambda x: x >= 0, "a number of 0 or more"),
)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


RECIPES: dict[str, TrainConfig] = {
    "default": TrainConfig(),
    "paper": TrainConfig(
        negatives=10,
        gamma=10.0,
        word_dropout=0.0,
        gram_dropout=0.0,
        feature_dropout=0.0,
        guide=0.0,
        rerank=False,
        share_towers=False,
        spelling_start=False,
        equal_start=False,
    ),
}


def recipe(name: str, **changes: Any) -> TrainConfig:
    """A recipe by name with some settings changed; a change to None keeps the recipe's value."""
    if name not in RECIPES:
        raise InputError(f"unknown recipe {name!r}", hint=f"choose one of {', '.join(RECIPES)}")
    return change(RECIPES[name], **changes)


def change(settings: TrainConfig, **changes: Any) -> TrainConfig:
    """Settings with some of them changed; a change to None keeps the value."""
    known = {field.name for field in fields(TrainConfig)}
    unknown = sorted(set(changes) - known)
    if unknown:
        raise InputError(
            f"unknown training settings: {', '.join(unknown)}", hint=f"known: {', '.join(sorted(known))}"
        )
    return replace(settings, **{key: value for key, value in changes.items() if value is not None})
