"""The float guide and feature dropout: what they do to a step, and that a model keeps nothing of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from rbegir.encode.clsm import checkpoint
from rbegir.encode.clsm.binarize import Draw
from rbegir.encode.clsm.twotower import FeatureDropout, TwoTower
from rbegir.errors import InputError
from rbegir.read.pairs import read_pairs
from rbegir.training.batches import StepBatch, build
from rbegir.training.config import TrainConfig
from rbegir.training.data import TrainingData
from rbegir.training.loop import Validation
from rbegir.training.loss import group_loss
from rbegir.training.step import Learner
from rbegir.training.trainer import TrainResult, fit, run

from .conftest import SMALL

PLAIN = TrainConfig(epochs=2, batch_size=200, feature_dropout=0.0, word_dropout=0.0)


class Watched(Learner):
    """Keeps the gradients of a step instead of applying them."""

    def _update(self, lr_scale: float) -> None:
        self.seen = {name: p.grad.to_dense().clone() for name, p in self.model.named_parameters()}


def some_batch(pairs_file: Path) -> StepBatch:
    table = read_pairs(pairs_file).read_all()
    (chunk,) = TrainingData(read_pairs(table), hash_buckets=SMALL.hash_buckets).chunks()
    return build(chunk, np.arange(60), replace(PLAIN, gram_dropout=0.0), (0, 0, 0)).to(torch.device("cpu"))


def test_stochastic_bits_are_compared_with_the_mean_of_earlier_losses(pairs_file: Path) -> None:
    batch = some_batch(pairs_file)
    learner = Learner(TwoTower(replace(SMALL, estimator="stochastic")), PLAIN, torch.device("cpu"))
    losses = [float(learner.step(batch, lr_scale=1.0, progress=0.0)) for _ in range(3)]
    learner.close()
    mean = losses[0]
    for loss in losses[1:]:
        mean = 0.9 * mean + 0.1 * loss
    assert len(set(losses)) == 3
    assert learner.baseline == pytest.approx(mean)


@pytest.mark.parametrize("shared", [False, True])
def test_the_gradient_is_that_of_both_losses(pairs_file: Path, shared: bool) -> None:
    batch = some_batch(pairs_file)
    torch.manual_seed(3)
    model = TwoTower(replace(SMALL, share_towers=shared, query_planes=2, keyword_planes=0))
    learner = Watched(model, replace(PLAIN, guide=0.7, guide_dims=19), torch.device("cpu"))
    learner.step(batch, lr_scale=1.0, progress=0.0)
    learner.close()

    model.zero_grad(set_to_none=True)
    assert learner.guide is not None
    groups = (
        batch.target.long(),
        torch.stack([batch.known_rows, batch.known_columns]).long(),
        batch.negatives.long(),
        batch.weight,
    )
    query, keyword = model.embed("query", batch.query), model.embed("keyword", batch.keyword)
    codes, _ = group_loss(query.vector, keyword.vector, learner.gamma(), *groups)
    left = torch.tanh(learner.guide.query(query.features))
    right = torch.tanh(learner.guide.keyword(keyword.features))
    beside, _ = group_loss(left, right, learner.guide.gamma(), *groups)
    (codes + 0.7 * beside).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        torch.testing.assert_close(learner.seen[name], parameter.grad.to_dense(), rtol=1e-4, atol=1e-7)


def test_no_weight_no_guide() -> None:
    learner = Learner(TwoTower(SMALL), TrainConfig(guide=0.0), torch.device("cpu"))
    learner.close()
    assert learner.guide is None


def test_nothing_of_it_is_in_the_checkpoint(trained: tuple[TrainResult, Path]) -> None:
    _, tensors, extra = checkpoint.read(trained[1])
    assert extra["training"]["guide"] > 0
    assert set(tensors) == set(TwoTower(SMALL).state_dict())


def test_features_are_left_out_in_training_alone() -> None:
    layer, f = FeatureDropout(), torch.ones(400, 50)
    layer.share = 0.25
    draws = []
    for seed in (1, 1, 2):
        layer.draw = Draw(torch.Generator().manual_seed(seed))
        draws.append(layer(f))
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])
    assert sorted(draws[0].unique().tolist()) == pytest.approx([0, 4 / 3])
    assert (draws[0] == 0).double().mean() == pytest.approx(0.25, abs=0.02)
    layer.eval()
    assert layer(f) is f
    layer.train()
    layer.share = 0.0
    assert layer(f) is f


def test_fitting_tokenised_pairs_is_training_a_file(pairs_file: Path) -> None:
    table = read_pairs(pairs_file).read_all()
    settings = replace(PLAIN, feature_dropout=0.1, word_dropout=0.2, seed=4)
    validation = Validation(table)
    data = TrainingData(read_pairs(table), hash_buckets=SMALL.hash_buckets)
    other = replace(SMALL, query_planes=1), replace(settings, guide=0.0)
    models = [(SMALL, settings), other]
    fitted, beside = fit(data, models, validation=validation, device="cpu")
    assert beside.history == fit(data, [other], validation=validation, device="cpu")[0].history
    assert beside.history != fitted.history
    trained = run(pairs_file, config=SMALL, settings=settings, valid=pairs_file, device="cpu", rerank=False)
    assert fitted.history == trained.history
    assert fitted.best_epoch == trained.best_epoch
    assert fitted.gamma == trained.gamma
    assert fitted.pairs_per_s > 0
    for wrong in (replace(settings, seed=5), replace(settings, epochs=3)):
        with pytest.raises(InputError, match="need the same batches and epochs"):
            fit(data, [(SMALL, settings), (SMALL, wrong)], validation=validation, device="cpu")


def test_a_preset_shares_its_towers_unless_told_otherwise(
    pairs_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rbegir.encode.clsm import presets

    monkeypatch.setitem(presets.PRESETS, "rbe_star", SMALL)
    quick = {"device": "cpu", "epochs": 1, "batch_size": 500, "valid": False}
    assert run(pairs_file, **quick).model.config.share_towers
    assert not run(pairs_file, **quick, share_towers=False).model.config.share_towers
    assert not run(pairs_file, **quick, config=SMALL).model.config.share_towers
