"""The update of the gram tables: only rows that a batch touches, one step size a row.

A table is [V, 3c], 50 million numbers a side, and a batch of 1,024 pairs touches 6 % of its rows (16,384
pairs: 16 %). Dense Adam would move 1.4 GB a side and step; this moves the touched rows of the table and
nothing else of that size:

    v[r, part] ← β v[r, part] + (1 − β) mean(g[r, part]²)         for each of the three parts of a row
    row r      ← row r − lr · g[r] / (√(v[r] / (1 − β^steps(r))) + ε)

β^steps(r) counts the steps in which row r was touched, so a rare gram starts with an unbiased v.

Tried on the same data (losses and AUC in the project's log): Adam that skips untouched rows, Adam with the
momentum of the skipped steps made up for in closed form (= dense Adam), and both without momentum. Momentum
did not help the tables, a mean over the row did as well as one v for each number, and both cost two more
arrays as large as the table, in memory, in every step and in the file that a resumed run starts from.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

BLOCK = 512  # rows at a time on a CPU: 2 MB of gradient, which stays in the cache between the passes


class RowRMS:
    """The optimiser above for one table."""

    def __init__(
        self, table: nn.Parameter, *, distinct: bool = True, beta: float = 0.99, eps: float = 1e-10
    ) -> None:
        """`distinct`: no row occurs twice in a gradient, as long as it comes from one tower."""
        self.table, self.distinct, self.beta, self.eps = table, distinct, beta, eps
        rows, device = table.shape[0], table.device
        self.second = torch.zeros((rows, 3), device=device)  # v
        self.steps = torch.zeros(rows, device=device)  # float32 counts are exact up to 2^24

    @torch.no_grad()
    def step(self, lr: float) -> None:
        """Apply the row-sparse gradient of the table and clear it."""
        grad = self.table.grad
        assert grad is not None
        self.table.grad = None
        if not self.distinct:
            grad = grad.coalesce()  # sorts: autograd forgets that a gradient is coalesced already
        rows, values = grad._indices()[0], grad._values()  # [touched], [touched, 3c]
        block = BLOCK if values.device.type == "cpu" else max(1, len(rows))
        for low in range(0, len(rows), block):
            self._update(rows[low : low + block], values[low : low + block], lr)

    def _update(self, rows: Tensor, values: Tensor, lr: float) -> None:
        parts = values.view(len(rows), 3, -1)  # [rows, 3, c]
        mean = torch.linalg.vector_norm(parts, dim=2).square_().div_(parts.shape[2])  # [rows, 3]
        second = self.second[rows].lerp_(mean, 1 - self.beta)
        steps = self.steps[rows].add_(1)
        self.second[rows] = second
        self.steps[rows] = steps
        unbiased = second / (1 - self.beta ** steps[:, None])
        scaled = parts / unbiased.sqrt_().add_(self.eps)[:, :, None]
        self.table.index_add_(0, rows, scaled.view_as(values), alpha=-lr)

    def state(self) -> dict[str, Tensor]:
        return {"second": self.second, "steps": self.steps}
