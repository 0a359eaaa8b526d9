"""The loss against a plain computation with autograd, its masks and weights, and the unbiased term."""

from __future__ import annotations

import itertools
import math
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor

from rbegir.training import loss as module
from rbegir.training.loss import Gamma, group_loss, score_function_term


def example(pairs: int, columns: int, seed: int = 0) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(seed)
    return {
        "query": torch.randn(pairs, 6, generator=g, dtype=torch.float32, requires_grad=True),
        "keyword": torch.randn(columns, 6, generator=g, dtype=torch.float32, requires_grad=True),
        "gamma": torch.tensor(7.0, requires_grad=True),
        "target": torch.randint(0, columns, (pairs,), generator=g),
        "known": torch.empty((2, 0), dtype=torch.int64),
        "negatives": torch.empty((pairs, 0), dtype=torch.int64),
        "weight": torch.rand(pairs, generator=g),
    }


def plain(x: dict[str, Tensor]) -> Tensor:
    """−Σ w log P(S), term by term."""
    total = torch.zeros(())
    for i in range(len(x["query"])):
        known = {int(c) for r, c in x["known"].T if int(r) == i}
        positive = int(x["target"][i])
        if x["negatives"].shape[1]:
            members = [positive, *x["negatives"][i].tolist()]
        else:
            members = [c for c in range(len(x["keyword"])) if c == positive or c not in known]
        cosines = [torch.cosine_similarity(x["query"][i], x["keyword"][c], dim=0) for c in members]
        scores = torch.stack(cosines) * x["gamma"]
        own = torch.cosine_similarity(x["query"][i], x["keyword"][positive], dim=0) * x["gamma"]
        total = total - x["weight"][i] * (own - torch.logsumexp(scores, dim=0))
    return total


def assert_same(x: dict[str, Tensor]) -> None:
    """By one thread, and by those of a pool."""
    leaves = [x["query"], x["keyword"], x["gamma"]]
    wanted = plain(x)
    gradients = torch.autograd.grad(wanted, leaves)
    with ThreadPoolExecutor(2) as pool:
        for threads in (None, pool):
            found, losses = group_loss(**x, pool=threads)
            torch.testing.assert_close(found, wanted)
            torch.testing.assert_close((losses * x["weight"]).sum(), wanted.detach())
            assert not losses.requires_grad
            for a, b in zip(torch.autograd.grad(found, leaves), gradients, strict=True):
                torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("pairs", "columns"), [(1, 1), (1, 2), (7, 3), (5, 11)])
def test_in_batch(pairs: int, columns: int) -> None:
    assert_same(example(pairs, columns))


def test_a_pair_alone_with_known_positives() -> None:
    x = example(1, 4)
    x["target"], x["known"] = torch.tensor([2]), torch.tensor([[0, 0], [0, 3]])
    assert_same(x)


@pytest.mark.parametrize("block", [1, 8, 17, 10_000])
def test_in_batch_with_known_positives_in_blocks(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BLOCK", block)
    x = example(9, 8)
    x["target"] = torch.tensor([0, 1, 2, 3, 4, 5, 6, 7, 0])
    x["known"] = torch.tensor([[0, 0, 3, 8, 8], [1, 2, 0, 7, 1]])  # (0, 0) is nobody's: it must stay
    assert_same(x)


def test_fixed_number_of_negatives() -> None:
    x = example(6, 9)
    x["negatives"] = torch.randint(0, 9, (6, 4), generator=torch.Generator().manual_seed(5))
    assert_same(x)


def test_a_group_of_copies_has_no_gradient() -> None:
    x = example(1, 2)
    x["negatives"] = x["target"][:, None].repeat(1, 3)
    found, _ = group_loss(**x)
    grad_query, grad_keyword = torch.autograd.grad(found, [x["query"], x["keyword"]])
    assert float(grad_query.abs().max()) < 1e-6
    assert float(grad_keyword.abs().max()) < 1e-6


def test_largest_gamma_and_opposite_codes_stay_finite() -> None:
    x = example(2, 2)
    x["query"] = torch.tensor([[1.0, 1.0], [1.0, 1.0]], requires_grad=True)
    x["keyword"] = torch.tensor([[-1.0, -1.0], [1.0, 1.0]], requires_grad=True)
    x["target"] = torch.tensor([0, 1])
    x["gamma"] = torch.tensor(module.MAX_GAMMA, requires_grad=True)
    found, losses = group_loss(**x)
    assert losses.tolist() == pytest.approx([80.0, 0.0], abs=1e-4)
    for grad in torch.autograd.grad(found, [x["query"], x["keyword"], x["gamma"]]):
        assert bool(torch.isfinite(grad).all())


@pytest.mark.parametrize("negatives", [0, 4])
def test_a_process_without_pairs(negatives: int) -> None:
    x = example(0, 3)
    x["negatives"] = torch.empty((0, negatives), dtype=torch.int64)
    with ThreadPoolExecutor(2) as pool:
        for threads in (None, pool):
            found, losses = group_loss(**x, pool=threads)
            assert float(found.detach()) == 0
            assert losses.shape == (0,)
            for grad in torch.autograd.grad(found, [x["query"], x["keyword"]]):
                assert not grad.any()


def test_gamma_is_positive_bounded_and_optional_to_learn() -> None:
    assert float(Gamma("learned")().detach()) == pytest.approx(module.INITIAL_GAMMA)
    assert Gamma("learned").log.requires_grad
    assert not Gamma(10.0).log.requires_grad
    assert float(Gamma(1e6)()) == module.MAX_GAMMA


def test_score_function_term_is_unbiased_for_both_sides() -> None:
    """All outcomes of 2 query bits and 2 keyword bits, weighted by their probabilities."""
    x = torch.tensor([0.4, -0.9], dtype=torch.float64, requires_grad=True)  # queries
    y = torch.tensor([1.1, -0.2], dtype=torch.float64, requires_grad=True)  # keywords
    weight = torch.tensor([0.3, 0.7], dtype=torch.float64)

    def losses(q: Tensor, k: Tensor) -> Tensor:  # row i depends on its own query and on all keywords
        return torch.stack([(q[i] * 2 + k[0] - 3 * k[1] * q[i]) * (i + 1) for i in range(2)])

    expectation = torch.zeros((), dtype=torch.float64)
    estimate = torch.zeros((), dtype=torch.float64)
    for outcome in itertools.product([-1.0, 1.0], repeat=4):
        q, k = torch.tensor(outcome[:2]).double(), torch.tensor(outcome[2:]).double()
        log_q = torch.nn.functional.logsigmoid(q * x)
        log_k = torch.nn.functional.logsigmoid(k * y)
        p = (log_q.sum() + log_k.sum()).exp()
        value = losses(q, k)
        expectation = expectation + p * (value * weight).sum()
        baseline = 0.37
        term = score_function_term(
            value - baseline, weight, float((value * weight).sum()) - baseline, log_q, log_k
        )
        estimate = estimate + p.detach() * term
    found = torch.autograd.grad(estimate, [x, y], retain_graph=True)
    for a, b in zip(found, torch.autograd.grad(expectation, [x, y]), strict=True):
        torch.testing.assert_close(a, b)


def test_uniform_scores_cost_the_logarithm_of_the_group() -> None:
    x = example(3, 5)
    x["keyword"] = torch.ones(5, 6, requires_grad=True)
    _, losses = group_loss(**x)
    assert losses.tolist() == pytest.approx([math.log(5)] * 3, abs=1e-5)
