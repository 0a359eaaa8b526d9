"""The paper's objective: the probability of the positive in its sample group.

    P(S) = exp(γ cos(b_q, b_k⁺)) / Σ_{k ∈ S} exp(γ cos(b_q, b_k))        loss = −Σ_S w_S log P(S),  Σ w = 1

γ is a fixed number or learned (as its logarithm, so that it stays positive). Scores are float32 whatever the
towers run in: γ ≈ 20 times a cosine in bfloat16 would be off by 0.1.

With in-batch negatives the scores are a [pairs, columns] matrix, a gigabyte for 16,384 pairs, and its passes
through memory are most of the cost of a step on a GPU. Three facts cut them down:

- a cosine is at most 1, so exp(γ cos − γ) cannot overflow and the softmax needs no search for the row
  maximum;
- the gradient of the loss is known as soon as the row sums are, so it is computed together with the loss,
  block by block of rows, and the matrix is never kept for a backward pass:
      E = exp(Q Kᵀ − γ),  s = E 1                     Q = γ · unit queries, K = unit keywords
      ∂Q = (w/s) ∘ (E K) − w ∘ K[target]              ∂K = Eᵀ ((w/s) ∘ Q) − Σ_i w_i Q_i at row target_i
- the division by s is applied to the [pairs, n] products, not to E.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from rbegir.encode.clsm.twotower import unit

MAX_GAMMA = 40.0  # exp(−2γ) must stay a normal float32
BLOCK = 1 << 25  # scores at a time: 128 MB


class Gamma(nn.Module):
    """The smoothing factor γ."""

    def __init__(self, value: float, *, learned: bool) -> None:
        super().__init__()
        self.log = nn.Parameter(torch.tensor(float(value)).log(), requires_grad=learned)

    def forward(self) -> Tensor:
        return self.log.exp().clamp(max=MAX_GAMMA)


class _InBatch(torch.autograd.Function):
    """(Σ w_i loss_i, the losses) for scaled queries [pairs, n] and unit keywords [columns, n]."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, keyword: Tensor, shift: Tensor, target: Tensor, known: Tensor, weight: Tensor
    ) -> tuple[Tensor, Tensor]:
        rows = max(1, BLOCK // max(1, len(keyword)))
        losses, grad_query, grad_keyword = [], [], torch.zeros_like(keyword)
        for low in range(0, max(1, len(query)), rows):  # once even for a process without pairs
            part = query[low : low + rows]  # [block, n]
            e = torch.addmm(-shift, part, keyword.T).exp_()  # [block, columns]
            if known.shape[1]:
                inside = (known[0] >= low) & (known[0] < low + len(part))
                at = (torch.where(inside, known[0] - low, 0), torch.where(inside, known[1], 0))
                # e − e is 0; places of other blocks add 0 to wherever they point
                e.index_put_(at, torch.where(inside, -e[at], 0.0), accumulate=True)
            total = e.sum(dim=1)  # [block]
            positive = keyword[target[low : low + rows]]  # [block, n]
            losses.append(total.log() + shift - (part * positive).sum(dim=1))
            share = (weight[low : low + rows] / total)[:, None]
            grad_query.append(share * (e @ keyword) - weight[low : low + rows, None] * positive)
            grad_keyword.addmm_(e.T, part * share)
        grad_keyword.index_add_(0, target, query * weight[:, None], alpha=-1)
        ctx.save_for_backward(torch.cat(grad_query), grad_keyword)
        loss = torch.cat(losses)
        ctx.mark_non_differentiable(loss)
        return (loss * weight).sum(), loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        query, keyword = ctx.saved_tensors
        return grad * query, grad * keyword, None, None, None, None


def group_loss(
    query: Tensor,
    keyword: Tensor,
    gamma: Tensor,
    target: Tensor,
    known: Tensor,
    negatives: Tensor,
    weight: Tensor,
) -> tuple[Tensor, Tensor]:
    """(the loss, −log P(S) of each pair without gradient).

    query [pairs, n] and keyword [columns, n] are embeddings of any length; target int64 [pairs] the column
    of the positive, known int64 [2, any] (row, column) of further positives to leave out, negatives int64
    [pairs, count] columns to compare with (count 0: all), weight float32 [pairs].
    """
    scaled, other = unit(query) * gamma, unit(keyword)
    if not negatives.shape[1]:
        return _InBatch.apply(scaled, other, gamma.detach(), target, known, weight)  # type: ignore[no-any-return, no-untyped-call]
    columns = torch.cat([target[:, None], negatives], dim=1)  # [pairs, 1 + count], the positive first
    scores = torch.einsum("pn,pcn->pc", scaled, other[columns])
    losses = torch.logsumexp(scores, dim=1) - scores[:, 0]
    return (losses * weight).sum(), losses.detach()


class Baseline:
    """A running mean of the loss, with which the stochastic estimator compares an outcome for less variance.

    Any number that does not depend on the outcome leaves the gradient unbiased, since E[∂ log P] = 0.
    """

    def __init__(self) -> None:
        self.value: float | None = None

    def advance(self, loss: float) -> float:
        """The mean before this loss (the loss itself at first), then take it in."""
        before = loss if self.value is None else self.value
        self.value = 0.9 * before + 0.1 * loss
        return before


def score_function_term(
    advantage: Tensor, weight: Tensor, total: float, query: Tensor | None, keyword: Tensor | None
) -> Tensor:
    """The term whose gradient is that of the stochastic bits; its value means nothing.

    The bits of a query enter the loss of its own pair only: its factor is that loss less the baseline
    (`advantage`). Those of a keyword enter every loss of the batch: their factor is the whole loss less the
    baseline (`total`). query, keyword: log P of the rows, None for a side without stochastic bits.
    """
    term = advantage.new_zeros(())
    if query is not None:
        term = term + (advantage * weight * query).sum()
    if keyword is not None:
        term = term + total * keyword.sum()
    return term
