"""Random numbers for the rows of a batch, the same ones however many processes share the batch.

A row's numbers must not depend on which process computes it, or two processes would learn something else
than one. So the numbers of the whole batch are drawn from one generator, and each process takes its rows:

    draw   [rows of the whole batch, …]  →  [rows of this process, …]

Rejected: a hash of (step, row, column), which draws the own rows alone but takes ten integer operations a
number; from about ten processes on it would be cheaper on CPUs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Draw:
    """A generator, and which rows of a batch of `total` rows are computed here (None: all of them)."""

    generator: torch.Generator
    rows: Tensor | None = None  # [rows]
    total: int = 0

    def __call__(self, like: Tensor, fill: Callable[..., Tensor]) -> Tensor:
        """A tensor in the form of `like`: rows of a whole batch filled by `fill(whole, generator=…)`."""
        if self.rows is None:
            return fill(torch.empty_like(like), generator=self.generator)
        whole = like.new_empty((self.total, *like.shape[1:]))
        return fill(whole, generator=self.generator)[self.rows]
