"""The optimiser of the tables against its formula, number by number."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from rbegir._native import _core
from rbegir.training.step import RowRMS


@pytest.mark.parametrize("threads", [None, 1, 2, 5])
@pytest.mark.parametrize("width", [1, 4, 9])
def test_formula_and_untouched_rows(threads: int | None, width: int) -> None:
    """By the native kernel with some threads, or in tensor operations (None), as on a GPU."""
    rng = np.random.default_rng(0)
    rows, beta, eps, lr = 7, 0.9, 1e-10, 0.01
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
        if threads is None:
            with torch.no_grad():
                optimiser._update(torch.tensor(touched), torch.from_numpy(values), lr)
        else:
            optimiser.threads = threads
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
    """Two backward passes, as of the two sides, give what the sum of their losses gives."""
    rng = np.random.default_rng(1)
    start = torch.from_numpy(rng.normal(size=(50, 6)).astype(np.float32))
    sides = [torch.from_numpy(rng.permutation(50)[:30]) for _ in range(2)]
    weights = [torch.from_numpy(rng.normal(size=(30, 6)).astype(np.float32)) for _ in range(2)]
    tables = []
    for threads in (1, 3, 64):
        table = nn.Parameter(start.clone())
        optimiser = RowRMS(table, distinct=False)
        optimiser.threads = threads
        for rows, weight in zip(sides, weights, strict=True):
            (nn.functional.embedding(rows, table, sparse=True) * weight).sum().backward()
        optimiser.step(0.1)
        tables.append(table.detach())
    whole = nn.Parameter(start.clone())
    total = torch.zeros_like(start)
    for rows, weight in zip(sides, weights, strict=True):
        total.index_add_(0, rows, weight)
    touched = torch.cat(sides).unique()
    with torch.no_grad():
        RowRMS(whole)._update(touched, total[touched], 0.1)
    for table in tables:
        torch.testing.assert_close(table, whole.detach())
        assert torch.equal(table, tables[0])


def test_repeated_rows_of_one_gradient_are_added() -> None:
    table = nn.Parameter(torch.zeros(2, 3))
    optimiser = RowRMS(table, distinct=False)
    table.grad = torch.sparse_coo_tensor(
        torch.tensor([[1, 1]]), torch.tensor([[3.0, 1, 1], [-1.0, 1, 1]]), (2, 3), check_invariants=True
    )
    optimiser.step(0.1)
    assert table.detach()[1].tolist() == pytest.approx([-0.1, -0.1, -0.1])
    assert optimiser.steps.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("row", "width", "message"), [(2, 3, "out of range"), (-1, 3, "out of range"), (0, 6, r"\[rows, 3c\]")]
)
def test_gradients_that_do_not_fit_are_refused(row: int, width: int, message: str) -> None:
    table, second, steps = np.zeros((2, 3), np.float32), np.zeros((2, 3), np.float32), np.zeros(2, np.float32)
    rows, values = np.array([row]), np.zeros((1, width), np.float32)
    with pytest.raises(ValueError, match=message):
        _core.update_rows(table, second, steps, rows, values, 0.1, 0.9, 1e-10, 1)


@pytest.mark.parametrize("wrong", ["dtype", "stride"])
@pytest.mark.parametrize("output", ["table", "second", "steps"])
def test_tables_that_cannot_be_updated_in_place_are_refused(output: str, wrong: str) -> None:
    """A copy would be updated, and thrown away."""
    shapes = {"table": (4, 3), "second": (4, 3), "steps": (4,)}
    outputs = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
    given = outputs[output]
    outputs[output] = given.astype(np.float64) if wrong == "dtype" else np.repeat(given, 2, axis=0)[::2]
    rows, values = np.array([1]), np.ones((1, 3), np.float32)
    with pytest.raises(TypeError, match="incompatible function arguments"):
        _core.update_rows(*outputs.values(), rows, values, 0.1, 0.9, 1e-10, 1)
    assert not any(np.any(one) for one in outputs.values())
