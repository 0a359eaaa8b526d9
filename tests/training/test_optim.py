"""The optimiser of the tables against its formula, number by number."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from rbegir.training import step
from rbegir.training.step import RowRMS


@pytest.mark.parametrize("block", [1, 2, 512])
def test_formula_and_untouched_rows(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step, "ROWS", block)
    rng = np.random.default_rng(0)
    rows, width, beta, eps, lr = 7, 4, 0.9, 1e-10, 0.01
    start = rng.normal(size=(rows, 3 * width)).astype(np.float32)
    table = nn.Parameter(torch.from_numpy(start.copy()))
    optimiser = RowRMS(table, beta=beta, eps=eps)

    wanted = start.astype(np.float64)
    second, steps = np.zeros((rows, 3)), np.zeros(rows)
    for touched in ([0, 2, 5], [2], [1, 2, 6], [0, 5]):
        values = rng.normal(size=(len(touched), 3 * width)).astype(np.float32)
        table.grad = torch.sparse_coo_tensor(
            torch.tensor([touched]),
            torch.from_numpy(values),
            table.shape,
            is_coalesced=True,
            check_invariants=True,
        )
        optimiser.step(lr)
        assert table.grad is None
        for row, g in zip(touched, values.astype(np.float64), strict=True):
            steps[row] += 1
            for part in range(3):
                piece = slice(part * width, (part + 1) * width)
                second[row, part] = beta * second[row, part] + (1 - beta) * np.mean(g[piece] ** 2)
                unbiased = second[row, part] / (1 - beta ** steps[row])
                wanted[row, piece] -= lr * g[piece] / (np.sqrt(unbiased) + eps)
    np.testing.assert_allclose(table.detach().numpy(), wanted, rtol=1e-5, atol=1e-6)
    assert np.array_equal(table.detach().numpy()[[3, 4]], start[[3, 4]])


def test_first_step_of_a_row_has_the_size_of_the_rate() -> None:
    table = nn.Parameter(torch.zeros(3, 3))
    optimiser = RowRMS(table)
    table.grad = torch.sparse_coo_tensor(
        torch.tensor([[1]]), torch.tensor([[5.0, -1e-3, 0.0]]), (3, 3), check_invariants=True
    )
    optimiser.step(0.1)
    assert table.detach()[1].tolist() == pytest.approx([-0.1, 0.1, 0.0])


def test_rows_of_two_towers_are_added_before_the_step() -> None:
    table = nn.Parameter(torch.zeros(2, 3))
    optimiser = RowRMS(table, distinct=False)
    table.grad = torch.sparse_coo_tensor(
        torch.tensor([[1, 1]]), torch.tensor([[3.0, 1, 1], [-1.0, 1, 1]]), (2, 3), check_invariants=True
    )
    optimiser.step(0.1)
    assert table.detach()[1].tolist() == pytest.approx([-0.1, -0.1, -0.1])
    assert optimiser.steps.tolist() == [0, 1]
