"""ρ, the step from real numbers to ±1, and four ways to send a gradient through it.

    ρ(x) = +1 if x > 0 else −1          # 0 is −1: `torch.sign` has a third value, which is no bit

The derivative of ρ is 0 almost everywhere, so training replaces it by an estimate ρ′(x):

| estimator                | ρ′(x)                | forward while training   |
|--------------------------|----------------------|--------------------------|
| straight_through         | 1                    | ρ(x)                     |
| straight_through_variant | 1 if |x| ≤ 1 else 0  | ρ(x)                     |
| annealing_tanh           | α (1 − tanh²(αx))    | ρ(x)                     |
| stochastic               | none: see below      | +1 with probability σ(x) |

The slope α of annealing tanh starts at 1 and is raised by the trainer (`slope_at`).

The stochastic estimator is the unbiased one of Bengio, Léonard and Courville (2013): a unit fires with
probability p = σ(x), and (h − p)·L, with h ∈ {0, 1} the outcome and L the loss, has the expectation
∂E[L]/∂x. A backward pass knows ∂L/∂h but not L, so this cannot be written as a ρ′. What can be written is the
same thing seen from the loss: ∂ log P(h) / ∂x = h − p, hence

    surrogate = L + (L detached) · Σ log P(h)

has exactly that gradient, and through L itself the ordinary one for everything after the units. `binarize`
therefore also returns log P(h) summed over the units of a row; `rbegir.training.loss` adds the second term.
Outside of training every estimator is the deterministic ρ.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from rbegir.encode.clsm.presets import ESTIMATORS, Estimator
from rbegir.errors import InputError

FINAL_SLOPE = 10.0


@dataclass(frozen=True)
class Draw:
    """Random numbers for the rows of a batch that do not depend on how many processes share the batch.

    A row's numbers must not depend on which process computes it, or two processes would learn something else
    than one. So the numbers of the whole batch are drawn from one generator, and each process takes its rows:

        draw   [rows of the whole batch, …]  →  [rows of this process, …]

    Rejected: a hash of (step, row, column), which draws the own rows alone but takes ten integer operations
    per number; from about ten processes on it would be cheaper on CPUs.
    """

    generator: torch.Generator
    rows: Tensor | None = None  # [rows] of the batch that are computed here; None: all of them
    total: int = 0  # rows of the whole batch

    def __call__(self, like: Tensor, fill: Callable[..., Tensor]) -> Tensor:
        """A tensor in the form of `like`: rows of a whole batch filled by `fill(whole, generator=…)`."""
        if self.rows is None:
            return fill(torch.empty_like(like), generator=self.generator)
        whole = like.new_empty((self.total, *like.shape[1:]))
        return fill(whole, generator=self.generator)[self.rows]


def rho(x: Tensor) -> Tensor:
    """+1 where x > 0, else −1, in the dtype of x."""
    return (x > 0).to(x.dtype).mul_(2).sub_(1)


def slope_at(progress: float) -> float:
    """The annealing slope α after a share `progress` (0 to 1) of the training: from 1 straight to 10."""
    return 1.0 + (FINAL_SLOPE - 1.0) * min(max(progress, 0.0), 1.0)


class _Rho(torch.autograd.Function):
    """ρ(x), with a derivative that is given."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, derivative: Tensor) -> Tensor:
        ctx.save_for_backward(derivative)
        return rho(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (derivative,) = ctx.saved_tensors
        return torch.mul(grad, derivative), None


@torch.no_grad()
def _derivative(x: Tensor, estimator: Estimator, slope: float) -> Tensor:
    """ρ′(x) of the table above."""
    if estimator == "straight_through":
        return torch.ones((), dtype=x.dtype, device=x.device)
    if estimator == "straight_through_variant":
        return x.abs() <= 1
    if estimator == "annealing_tanh":
        return slope * (1 - torch.tanh(slope * x) ** 2)
    raise InputError(f"estimator must be one of {', '.join(ESTIMATORS)}, got {estimator!r}")


def _draw(x: Tensor, draw: Draw | None) -> tuple[Tensor, Tensor]:
    """Stochastic units: ±1 with P(+1) = σ(x), no gradient, and log P of each row's outcome, with gradient."""
    with torch.no_grad():
        p = torch.sigmoid(x)
        fires = (torch.rand_like(p) if draw is None else draw(p, torch.Tensor.uniform_)) < p
        units = fires.to(x.dtype) * 2 - 1
    return units, torch.nn.functional.logsigmoid(units * x).sum(dim=-1)


def binarize(
    x: Tensor,
    estimator: Estimator,
    *,
    training: bool,
    slope: float = 1.0,
    draw: Draw | None = None,
) -> tuple[Tensor, Tensor | None]:
    """ρ(x) with the estimator's gradient, and log P of each row where the units are stochastic."""
    if not training:
        return rho(x), None
    if estimator == "stochastic":
        return _draw(x, draw)
    return _Rho.apply(x, _derivative(x, estimator, slope)), None  # type: ignore[no-untyped-call]
