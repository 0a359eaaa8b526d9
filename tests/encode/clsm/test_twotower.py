"""The whole model against the slow equations, its tensor names, and its codes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from rbegir.encode.clsm.binarize import Draw
from rbegir.encode.clsm.clsm import tower_batch
from rbegir.encode.clsm.presets import PRESETS, ModelConfig, Side, tensor_shapes
from rbegir.encode.clsm.rbe import codes_of
from rbegir.encode.clsm.twotower import TwoTower, unit
from rbegir.read.tokenizer import tokenize

from .reference import trace

TEXTS = [
    "a",
    "new york city",
    "duran duran",
    "la la la la la",
    "Ünïcødé 東京 x1",
    "the quick brown fox",
    "fox",
]
SMALL = ModelConfig(conv=8, hash_buckets=64)
CONFIGS = {
    "star": SMALL,
    "fixed": replace(SMALL, query_planes=4, keyword_planes=3, time_varying=False),
    "unweighted": replace(SMALL, residual_weights=False),
    "hidden": replace(SMALL, hidden=(12, 5)),
    "shared": replace(SMALL, share_towers=True, hidden=(6,)),
    "no_bias": replace(SMALL, bias=False, hidden=(6,)),
    "float_query": replace(SMALL, query_planes=0),
    "float": replace(SMALL, query_planes=0, keyword_planes=0),
    "one_plane_128": replace(SMALL, n=128, query_planes=1, keyword_planes=1),
}


def model_of(config: ModelConfig, seed: int = 0) -> TwoTower:
    torch.manual_seed(seed)
    model = TwoTower(config).double().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(std=0.1)
            elif "conv" in name:
                parameter.mul_(3)
    return model


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("side", ["query", "keyword"])
def test_equations(name: str, side: Side) -> None:
    config = CONFIGS[name]
    model = model_of(config)
    embedding = model.embed(side, tower_batch(tokenize(TEXTS, hash_buckets=config.hash_buckets)))
    tensors = {key: value.numpy() for key, value in model.state_dict().items()}
    inputs = trace(config, side, tensors, TEXTS).inputs  # [planes, texts, n], what ρ or tanh is applied to
    vector = embedding.vector.detach().numpy()
    if not embedding.planes:
        np.testing.assert_allclose(vector, np.tanh(inputs[0]), atol=1e-12)
        return
    signs = np.where(inputs > 0, 1.0, -1.0)
    assert np.array_equal(torch.stack(embedding.planes).detach().numpy(), signs)
    weights = [0.5**t if config.residual_weights else 1.0 for t in range(len(signs))]
    assert np.array_equal(vector, np.tensordot(weights, signs, axes=1))


@pytest.mark.parametrize("name", CONFIGS)
def test_state_has_the_names_and_shapes_of_a_checkpoint(name: str) -> None:
    state = TwoTower(CONFIGS[name]).state_dict()
    assert {key: tuple(value.shape) for key, value in state.items()} == tensor_shapes(CONFIGS[name])


@pytest.mark.parametrize("name", PRESETS)
def test_presets_at_full_size_have_the_shapes_of_a_checkpoint(name: str) -> None:
    with torch.device("meta"):
        state = TwoTower(PRESETS[name]).state_dict()
    assert {key: tuple(value.shape) for key, value in state.items()} == tensor_shapes(PRESETS[name])


def test_codes_are_the_planes() -> None:
    embedding = model_of(SMALL).eval().embed("query", tower_batch(tokenize(TEXTS, hash_buckets=64)))
    codes = codes_of(embedding)
    assert np.array_equal(codes.signs(), torch.stack(embedding.planes).detach().numpy() > 0)
    assert np.array_equal(codes.values() / 4, embedding.vector.detach().numpy())


def test_no_text_at_all() -> None:
    model = model_of(SMALL).train()
    batch = tower_batch(tokenize([], hash_buckets=64), gradient=True)
    vector = model.embed("keyword", batch).vector
    assert vector.shape == (0, 64)
    vector.sum().backward()
    grad = model.keyword.conv.weight.grad
    assert grad is not None
    assert grad._indices().shape == (1, 0)


def test_the_unit_vector_of_zero_is_zero() -> None:
    vectors = torch.tensor([[3.0, 4.0], [0.0, 0.0]])
    torch.testing.assert_close(unit(vectors), torch.tensor([[0.6, 0.8], [0.0, 0.0]]))


def test_stochastic_log_probability_adds_up_over_planes() -> None:
    config = replace(SMALL, estimator="stochastic")
    model = model_of(config).train()
    model.query.rbe.draw = Draw(torch.Generator().manual_seed(3))
    batch = tower_batch(tokenize(TEXTS, hash_buckets=64))
    embedding = model.embed("query", batch)
    f = model.query.features(batch)
    b = embedding.planes[0]
    rbe = model.query.rbe
    total = torch.nn.functional.logsigmoid(b * rbe.W(f)).sum(dim=1)
    for t, d in enumerate(embedding.planes[1:]):
        x = rbe.R[t](f - torch.tanh(rbe.B[t](b)))
        total = total + torch.nn.functional.logsigmoid(d * x).sum(dim=1)
        b = b + d * 0.5 ** (t + 1)
    assert embedding.log_prob is not None
    torch.testing.assert_close(embedding.log_prob, total)
