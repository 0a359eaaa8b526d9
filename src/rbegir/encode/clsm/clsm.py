"""The CLSM tower on sparse input: tri-letter grams → words → windows of three words → one vector.

    e_w = Σ_{grams of w} conv.weight[gram]            a word's vector, three parts of width c: L | C | R
    a_t = L(w_{t−1}) + C(w_t) + R(w_{t+1})            the window of the t-th word; missing neighbours add 0
    f   = tanh(max_t a_t + bias)                      and through the hidden layers, each tanh(H f + b)

A convolution over three concatenated bags of grams is linear in each of its words, so a word's share of
every window it takes part in is a sum of rows of one [V, 3c] table, computed once for each *unique* word of
the batch. The bias is constant over t and can be added after the maximum.

Gradients stay sparse as well. Both steps are hand-written autograd functions:

- `gram_sum`: the gradient of a table row is the sum over the words that hold its gram. `TowerBatch` carries
  that transposed order, so the backward pass is again one embedding bag (no atomics, no sort) and yields a
  row-sparse tensor. The dense gradient of `nn.EmbeddingBag` would write 200 MB per side and step.
- `window_max`: keeps the position of each maximum and sends the gradient to the three words of that window.
  Both directions are one kernel, of `kernels.py` on a GPU and of the native module (`learn.cpp`) on a CPU.
"""

from functools import cache, partial
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from rbegir._native import _core
from rbegir.read.tokenizer import GramBatch

INITIAL_STD = 0.05  # some 20 rows meet in a window: their sum starts well inside the linear part of tanh


class TowerBatch(NamedTuple):
    """A `GramBatch` as tensors (int32), with the transposed bag that the gradient of the table needs.

    `rows` are the distinct grams in ascending order; the words that hold `rows[i]` are
    `row_words[row_offsets[i]:row_offsets[i + 1]]`. Without gradients the three are empty.
    """

    text_offsets: Tensor  # [texts + 1]
    word_ids: Tensor  # [words]
    gram_offsets: Tensor  # [unique words + 1]
    gram_ids: Tensor  # [grams]
    rows: Tensor  # [distinct grams]
    row_offsets: Tensor  # [distinct grams + 1]
    row_words: Tensor  # [grams]

    def __len__(self) -> int:
        return int(self.text_offsets.shape[0]) - 1


def tower_batch(batch: GramBatch, *, gradient: bool = False) -> TowerBatch:
    """Tensors on the CPU that share memory with the arrays."""
    empty = np.zeros(0, dtype=np.int32)
    transposed = (empty, empty, empty)
    if gradient:
        transposed = _core.transpose_grams(batch.gram_offsets, batch.gram_ids)
    return TowerBatch(*(torch.from_numpy(np.ascontiguousarray(a)) for a in (*batch, *transposed)))


def without_sparse_checks() -> None:
    """Tell torch not to check sparse gradients; some releases warn if they are told nothing."""
    invariants = torch.sparse.check_sparse_tensor_invariants
    if not invariants.is_enabled():  # type: ignore[no-untyped-call]
        invariants.disable()  # type: ignore[no-untyped-call]


_bag_sums = partial(F.embedding_bag, mode="sum", include_last_offset=True)
row_sparse = partial(torch.sparse_coo_tensor, is_coalesced=True, check_invariants=False)


class _GramSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, table: Tensor, batch: TowerBatch) -> Tensor:
        ctx.batch, ctx.shape = batch, table.shape
        return _bag_sums(batch.gram_ids, table, batch.gram_offsets)  # [unique words, 3c]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        batch = ctx.batch
        values = _bag_sums(batch.row_words, grad.contiguous(), batch.row_offsets)  # [distinct grams, 3c]
        return row_sparse(batch.rows.to(torch.int64)[None], values, ctx.shape), None


def window_max_forward(words: Tensor, text_offsets: Tensor, word_ids: Tensor) -> tuple[Tensor, Tensor]:
    """(max over the windows of each text, place of that window in `word_ids` as int32), both [texts, c]."""
    best = torch.empty((len(text_offsets) - 1, words.shape[1] // 3), dtype=words.dtype)
    where = torch.empty(best.shape, dtype=torch.int32)
    _core.window_max(*(x.cpu().numpy() for x in (words, text_offsets, word_ids, best, where)))
    return best.to(words.device), where.to(words.device)


def window_max_backward(
    grad: Tensor, where: Tensor, text_offsets: Tensor, word_ids: Tensor, count: int
) -> Tensor:
    """The gradient of the word vectors [count, 3c] from the gradient of the maxima [texts, c]."""
    total = torch.empty((count, 3 * grad.shape[1]), dtype=grad.dtype)
    _core.window_max_gradient(*(x.cpu().numpy() for x in (grad, where, text_offsets, word_ids, total)))
    return total.to(grad.device)


class _WindowMax(torch.autograd.Function):
    """By the Triton kernels of `kernels.py` on a GPU, by the native module elsewhere."""

    @staticmethod
    def forward(ctx: Any, words: Tensor, batch: TowerBatch) -> Tensor:
        ctx.batch, ctx.count = batch, len(words)
        forward = window_max_forward
        if words.is_cuda and _has_triton():
            from rbegir.encode.clsm.kernels import window_max_forward as forward
        best, where = forward(words.contiguous(), batch.text_offsets, batch.word_ids)
        ctx.save_for_backward(where)
        return best

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        backward = window_max_backward
        if grad.is_cuda and _has_triton():
            from rbegir.encode.clsm.kernels import window_max_backward as backward
        (where,) = ctx.saved_tensors
        offsets, ids = ctx.batch.text_offsets, ctx.batch.word_ids
        return backward(grad.contiguous(), where, offsets, ids, ctx.count), None


@cache
def _has_triton() -> bool:
    return find_spec("triton") is not None


def window_max(words: Tensor, batch: TowerBatch) -> Tensor:
    """max_t a_t of each text, from the vectors of the unique words.  [unique words, 3c] → [texts, c]"""
    return _WindowMax.apply(words, batch)  # type: ignore[no-any-return, no-untyped-call]


def gram_sum(table: Tensor, batch: TowerBatch) -> Tensor:
    """The vectors of the unique words of a batch: sums of rows of the table.  [V, 3c] → [unique words, 3c]"""
    return _GramSum.apply(table, batch)  # type: ignore[no-any-return, no-untyped-call]


class Conv(nn.Module):
    """The [V, 3c] gram table and its bias."""

    def __init__(self, rows: int, width: int, *, bias: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(rows, 3 * width).normal_(std=INITIAL_STD))
        self.bias = nn.Parameter(torch.zeros(width)) if bias else None

    def forward(self, batch: TowerBatch) -> Tensor:
        """f of the paper before the hidden layers. Every text must have a word.  [texts, c]"""
        pooled = window_max(gram_sum(self.weight, batch), batch)
        return torch.tanh(pooled if self.bias is None else pooled + self.bias)
