"""The paper's objective: sample groups, the probability of the positive in its group, and the float guide.

*Groups.* The paper's unit of training is a group S of one positive and several negatives, the negatives taken
from the other pairs of the batch (cross sampling). Two ways to choose them:

- in batch (default): every other keyword of the batch is a negative. One matrix product gives all of them.
- a fixed number (paper: 10), drawn at random from those.

A batch holds the same keyword more than once, and the same query with more than one keyword. Neither may
turn a true positive into a negative, so

- a group is made of *distinct* keywords: column j of the scores is the j-th distinct keyword of the batch,
  and `target[i]` is the column of pair i. A duplicate has no column of its own, nothing has to be masked,
  and its tower runs once;
- for a query that occurs with several keywords, (`known_rows`, `known_columns`) lists the other positives:
  they are excluded from its group.

*Loss.*

    P(S) = exp(γ cos(b_q, b_k⁺)) / Σ_{k ∈ S} exp(γ cos(b_q, b_k))        loss = −Σ_S w_S log P(S),  Σ w = 1

γ is a fixed number or learned (as its logarithm, so that it stays positive). Scores are float32 whatever the
towers run in: γ ≈ 20 times a cosine in bfloat16 would be off by 0.1.

With in-batch negatives the scores are a [pairs, columns] matrix, a gigabyte for 16,384 pairs, and its passes
through memory are most of the cost of a step on a GPU. Three facts reduce them:

- a cosine is at most 1 and γ at most MAX_GAMMA, so exp(γ cos) cannot overflow and no row maximum is needed;
- the gradient is known as soon as the row sums are, so it is computed with the loss, block by block of rows:
      E = exp(Q Kᵀ),  s = E 1                         Q = γ · unit queries, K = unit keywords
      ∂Q = (w/s) ∘ (E K) − w ∘ K[target]              ∂K = Eᵀ ((w/s) ∘ Q) − Σ_i w_i Q_i at row target_i
- the division by s is applied to the [pairs, n] products, not to E.

*Guide.* A float head that guides the tower while codes are learned:

    L = L(codes) + weight · L(tanh(G f))         G: [dims, m] of either side, with a γ of its own

The gradient that reaches the tower through ρ is a noisy estimate. The loss of a plain float embedding of the
same features has an exact gradient and keeps the tower on course. Codes do not depend on the guide; the
reranker keeps it as one of its features (`rerank.py`). Recall@10 among 4.5 million titles, one seed each:
rbe* .5432 without, .5514 with 64 dimensions and half the weight; m_1 .5767 without, .5800 with the default.
"""

from concurrent.futures import Executor
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from rbegir.encode.clsm.presets import ModelConfig, Side
from rbegir.encode.clsm.twotower import unit
from rbegir.evaluate.groups import contains

INITIAL_GAMMA = 10.0
MAX_GAMMA = 40.0  # exp(−γ) and 10⁹ exp(γ) are normal float32 numbers
BLOCK = 1 << 25  # scores at a time: 128 MB
GPU_BLOCK = 1 << 26  # 256 MB: a GPU waits for the launches of smaller blocks
SHARED_BY = 2  # threads of a pool

Ints = npt.NDArray[np.int32]
Numbers = npt.NDArray[np.integer[Any]]


class Groups(NamedTuple):
    """The groups of a batch of pairs."""

    first: Ints  # [distinct keywords] the first pair that holds each, ascending
    target: Ints  # [pairs] column of the positive
    known_rows: Ints  # [known] pairs …
    known_columns: Ints  # [known] … and columns of further positives of their query
    negatives: Ints  # [pairs, count] columns of drawn negatives; [pairs, 0] for in-batch negatives


def group(
    query: Numbers, keyword: Numbers, *, negatives: int = 0, rng: np.random.Generator | None = None
) -> Groups:
    """Groups of the pairs (query[i], keyword[i]); `negatives` = 0 means all other keywords of the batch."""
    _, index, inverse = np.unique(keyword, return_index=True, return_inverse=True)
    order = np.argsort(index)  # distinct keywords in order of first occurrence
    column = np.empty(len(order), dtype=np.int32)
    column[order] = np.arange(len(order), dtype=np.int32)
    target = column[inverse]
    known_rows, known_columns = _other_positives(query, target)
    if negatives:
        assert rng is not None
        drawn = _draw(len(order), target, known_rows, known_columns, negatives, rng)
    else:
        drawn = np.zeros((len(target), 0), dtype=np.int32)
    return Groups(index[order].astype(np.int32), target, known_rows, known_columns, drawn)


def _other_positives(query: Numbers, target: Ints) -> tuple[Ints, Ints]:
    """(rows, columns) of keywords that occur with the same query in another pair of the batch."""
    _, inverse, counts = np.unique(query, return_inverse=True, return_counts=True)
    rows, width = np.flatnonzero(counts[inverse] > 1), len(target)
    base = inverse[rows] * width
    positives = np.unique(base + target[rows])  # (query, column), each once
    first = np.searchsorted(positives, base)  # where those of each row's query begin …
    sizes = np.searchsorted(positives, base + width) - first  # … and how many there are
    step = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    rows, columns = np.repeat(rows, sizes), positives[np.repeat(first, sizes) + step] % width
    other = columns != target[rows]
    return rows[other].astype(np.int32), columns[other].astype(np.int32)


def _draw(
    columns: int, target: Ints, known_rows: Ints, known_columns: Ints, count: int, rng: np.random.Generator
) -> Ints:
    """`count` columns per pair, drawn with replacement, none of them a positive of the pair's query.

    A draw that hits a positive moves on to the next column until it hits none. Where every keyword of the
    batch is a positive of the query there is nothing to draw: the group is then copies of the pair's own
    keyword, whose loss has no gradient.
    """
    drawn = rng.integers(0, columns, size=(len(target), count), dtype=np.int32)
    base = np.arange(len(target), dtype=np.int64)[:, None] * columns
    known = known_rows.astype(np.int64) * columns + known_columns
    taken = np.sort(np.concatenate([base[:, 0] + target, known]))
    hit = np.zeros(drawn.shape, dtype=np.bool_)
    for _ in range(columns):
        hit = contains(taken, base + drawn)  # [pairs, count]
        if not hit.any():
            break
        drawn = np.where(hit, (drawn + 1) % columns, drawn)
    else:
        drawn = np.where(hit, target[:, None], drawn)
    return drawn.astype(np.int32)


class Gamma(nn.Module):
    """The smoothing factor γ: a fixed number, or learned."""

    def __init__(self, value: float | Literal["learned"] = "learned") -> None:
        super().__init__()
        learned = value == "learned"
        start = INITIAL_GAMMA if learned else float(value)
        self.log = nn.Parameter(torch.tensor(start).log(), requires_grad=learned)

    def forward(self) -> Tensor:
        return self.log.exp().clamp(max=MAX_GAMMA)


class _InBatch(torch.autograd.Function):
    """(Σ w_i loss_i, the losses) for scaled queries [pairs, n] and unit keywords [columns, n]."""

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        keyword: Tensor,
        target: Tensor,
        known: Tensor,
        weight: Tensor,
        pool: Executor | None,
    ) -> tuple[Tensor, Tensor]:
        rows = max(1, (GPU_BLOCK if query.is_cuda else BLOCK) // max(1, len(keyword)))
        count = 1 if pool is None else max(1, min(SHARED_BY, len(query)))

        @torch.no_grad()
        def part(number: int) -> tuple[Tensor, Tensor, Tensor]:
            """Losses, query and keyword gradients of an equal share of the pairs, block by block."""
            first, end = (len(query) * i // count for i in (number, number + 1))
            losses, grad_query, grad_keyword = [], [], torch.zeros_like(keyword)
            for low in range(first, max(end, first + 1), rows):  # once even for a process without pairs
                some = slice(low, min(low + rows, end))
                asked = query[some]  # [block, n]
                e = (asked @ keyword.T).exp_()  # [block, columns]
                if known.shape[1]:
                    inside = (known[0] >= low) & (known[0] < low + len(asked))
                    at = (torch.where(inside, known[0] - low, 0), torch.where(inside, known[1], 0))
                    # e − e is 0; places of other blocks add 0 to wherever they point
                    e.index_put_(at, torch.where(inside, -e[at], 0.0), accumulate=True)
                total = e.sum(dim=1)  # [block]
                positive = keyword[target[some]]  # [block, n]
                losses.append(total.log() - (asked * positive).sum(dim=1))
                share = (weight[some] / total)[:, None]
                grad_query.append(share * (e @ keyword) - weight[some, None] * positive)
                grad_keyword.addmm_(e.T, asked * share)
            return torch.cat(losses), torch.cat(grad_query), grad_keyword

        parts = (map if pool is None else pool.map)(part, range(count))
        losses, grad_query, (grad_keyword, *others) = zip(*parts, strict=True)
        loss = torch.cat(losses)
        for other in others:
            grad_keyword += other
        grad_keyword.index_add_(0, target, query * weight[:, None], alpha=-1)
        ctx.save_for_backward(torch.cat(grad_query), grad_keyword)
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
    pool: Executor | None = None,
) -> tuple[Tensor, Tensor]:
    """(the loss, −log P(S) of each pair without gradient).

    query [pairs, n] and keyword [columns, n] are embeddings of any length; target int64 [pairs] the column
    of the positive, known int64 [2, any] (row, column) of further positives to leave out, negatives int64
    [pairs, count] columns to compare with (count 0: all), weight float32 [pairs]. Threads of `pool` share the
    pairs; the caller is none of them.
    """
    scaled, other = unit(query) * gamma, unit(keyword)
    if not negatives.shape[1]:
        return _InBatch.apply(scaled, other, target, known, weight, pool)  # type: ignore[no-any-return, no-untyped-call]
    columns = torch.cat([target[:, None], negatives], dim=1)  # [pairs, 1 + count], the positive first
    scores = torch.einsum("pn,pcn->pc", scaled, other[columns])
    losses = torch.logsumexp(scores, dim=1) - scores[:, 0]
    return (losses * weight).sum(), losses.detach()


def away(guide: Tensor, taught: Tensor) -> Tensor:
    """[texts] 1 − cosine of the guide's vectors [texts, n] and a teacher's [texts, up to n]."""
    return 1 - nn.functional.cosine_similarity(guide[:, : taught.shape[1]], taught.float())


def score_function_term(
    advantage: Tensor, weight: Tensor, total: float, query: Tensor | None, keyword: Tensor | None
) -> Tensor:
    """The term whose gradient is that of the stochastic bits; its value has no meaning.

    The bits of a query enter the loss of its own pair only: its factor is that loss less the baseline
    (`advantage`). Those of a keyword enter every loss of the batch: their factor is the whole loss less the
    baseline (`total`). query, keyword: log P of the rows, None for a side without stochastic bits. Any
    baseline that does not depend on the outcome leaves the gradient unbiased, since E[∂ log P] = 0.
    """
    term = advantage.new_zeros(())
    if query is not None:
        term = term + (advantage * weight * query).sum()
    if keyword is not None:
        term = term + total * keyword.sum()
    return term


class Guide(nn.Module):
    """The float heads of both sides, which start alike."""

    def __init__(self, config: ModelConfig, dims: int) -> None:
        super().__init__()
        self.query = nn.Linear(config.width, dims, bias=config.bias)
        self.keyword = nn.Linear(config.width, dims, bias=config.bias)
        self.keyword.load_state_dict(self.query.state_dict())
        self.gamma = Gamma()

    def forward(self, side: Side, features: Tensor) -> Tensor:  # [texts, m] → [texts, dims]
        return torch.tanh((self.query if side == "query" else self.keyword)(features))
