"""ρ and its gradients: each estimator against its definition, the stochastic one over all outcomes."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from rbegir.encode.clsm.binarize import Draw, binarize, rho, slope_at
from rbegir.encode.clsm.presets import ESTIMATORS, Estimator
from rbegir.errors import InputError

POINTS = torch.tensor([-3.0, -1.0, -0.5, -1e-30, -0.0, 0.0, 1e-30, 0.5, 1.0, 1.0001, 3.0])


def gradient(estimator: Estimator, slope: float = 1.0) -> Tensor:
    x = POINTS.clone().requires_grad_()
    bits, log_prob = binarize(x, estimator, training=True, slope=slope)
    assert log_prob is None
    bits.backward(torch.arange(1.0, 12.0))
    assert x.grad is not None
    return x.grad / torch.arange(1.0, 12.0)


def test_rho_has_two_values_and_zero_is_minus_one() -> None:
    assert rho(POINTS).tolist() == [-1, -1, -1, -1, -1, -1, 1, 1, 1, 1, 1]


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_evaluation_is_rho(estimator: Estimator) -> None:
    bits, log_prob = binarize(POINTS, estimator, training=False)
    assert torch.equal(bits, rho(POINTS))
    assert log_prob is None


def test_an_unknown_estimator_is_refused() -> None:
    with pytest.raises(InputError, match=r"estimator must be one of straight_through, .*, got 'sign'"):
        binarize(POINTS, "sign", training=True)  # type: ignore[arg-type]


@pytest.mark.parametrize("estimator", ["straight_through", "straight_through_variant", "annealing_tanh"])
def test_forward_is_rho_in_training_too(estimator: Estimator) -> None:
    assert torch.equal(binarize(POINTS, estimator, training=True, slope=3.0)[0], rho(POINTS))


def test_straight_through_passes_everything() -> None:
    assert gradient("straight_through").tolist() == [1.0] * 11


def test_variant_passes_up_to_one_inclusive() -> None:
    assert gradient("straight_through_variant").tolist() == [0, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0]


@pytest.mark.parametrize("slope", [1.0, 4.0])
def test_annealing_has_the_gradient_of_tanh(slope: float) -> None:
    x = POINTS.clone().requires_grad_()
    torch.tanh(slope * x).sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(gradient("annealing_tanh", slope), x.grad)


def test_slope_rises_from_one_to_ten_and_stays_there() -> None:
    assert [slope_at(p) for p in (-1, 0, 0.5, 1, 2)] == [1, 1, 5.5, 10, 10]


def test_stochastic_gradient_is_unbiased() -> None:
    """Σ_outcomes P(outcome) · estimate(outcome) = ∂E[L]/∂x, for a loss without any structure."""
    units = 3
    x = torch.tensor([0.3, -1.2, 2.0], dtype=torch.float64, requires_grad=True)
    outcomes = torch.tensor(list(itertools.product([-1.0, 1.0], repeat=units)), dtype=torch.float64)
    losses = torch.randn(len(outcomes), generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    log_p = torch.nn.functional.logsigmoid(outcomes * x).sum(dim=1)
    (expected,) = torch.autograd.grad((log_p.exp() * losses).sum(), x)

    average = torch.zeros(units, dtype=torch.float64)
    seen = set()
    draw = Draw(torch.Generator().manual_seed(0))
    for _ in range(5000):  # until every outcome was seen once; each is weighted by its exact probability
        if len(seen) == len(outcomes):
            break
        bits, log_prob = binarize(x[None], "stochastic", training=True, draw=draw)
        assert log_prob is not None
        assert not bits.requires_grad
        number = int((outcomes == bits[0]).all(dim=1).nonzero())
        if number in seen:
            continue
        seen.add(number)
        (estimate,) = torch.autograd.grad(log_prob.sum() * losses[number], x)  # (h − p) · L
        average += log_p[number].exp().detach() * estimate
    assert len(seen) == len(outcomes)
    torch.testing.assert_close(average, expected)


def test_stochastic_units_fire_with_probability_sigma() -> None:
    x = torch.full((20_000,), 0.7)
    bits, _ = binarize(x[None], "stochastic", training=True, draw=Draw(torch.Generator().manual_seed(1)))
    assert set(bits.unique().tolist()) == {-1.0, 1.0}
    assert float((bits > 0).float().mean()) == pytest.approx(
        float(torch.sigmoid(torch.tensor(0.7))), abs=0.01
    )
