"""The CLSM tower on sparse input: tri-letter grams → words → windows of three words → one vector.

    e_w = Σ_{grams of w} conv.weight[gram]            a word's vector, three parts of width c: L | C | R
    a_t = L(w_{t−1}) + C(w_t) + R(w_{t+1})            the window of the t-th word; missing neighbours add 0
    f   = tanh(max_t a_t + bias)                      and through the hidden layers, each tanh(H f + b)

A convolution over three concatenated bags of grams is linear in each of its words, so a word's share of
every window it takes part in is a sum of rows of one [V, 3c] table, computed once for each *unique* word of
the batch. No vector as wide as the vocabulary exists anywhere. The bias is added after the maximum, which is
the same number: it is constant over t.

Gradients stay sparse as well. Both steps are hand-written autograd functions:

- `gram_sum`: the gradient of the table touches only rows of grams in the batch. It is the transposed bag:
  for each such gram, the sum over the words that hold it. `TowerBatch` carries that transposed order, made
  on the host, so the backward pass is again one embedding bag (no atomics, no sort) and yields a coalesced
  row-sparse tensor. The dense gradient of `nn.EmbeddingBag` would write 200 MB per side and step.
- `window_max`: keeps the position of each maximum and sends the gradient to the three words of that window.
  The [words, c] array of all windows is never stored. On a GPU both directions are one kernel (see
  `kernels.py`).
"""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
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


def transpose(batch: GramBatch) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """(rows, row_offsets, row_words) of `TowerBatch`: which words hold each gram of the batch."""
    return _core.transpose_grams(batch.gram_offsets, batch.gram_ids)


def tower_batch(batch: GramBatch, *, gradient: bool = False) -> TowerBatch:
    """Tensors on the CPU that share memory with the arrays."""
    empty = np.zeros(0, dtype=np.int32)
    transposed = transpose(batch) if gradient else (empty, empty, empty)
    return TowerBatch(*(torch.from_numpy(np.ascontiguousarray(a)) for a in (*batch, *transposed)))


def without_sparse_checks() -> None:
    """Tell torch not to check sparse gradients; some releases warn if they are told nothing."""
    invariants = torch.sparse.check_sparse_tensor_invariants
    if not invariants.is_enabled():  # type: ignore[no-untyped-call]
        invariants.disable()  # type: ignore[no-untyped-call]


class _GramSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, table: Tensor, batch: TowerBatch) -> Tensor:
        ctx.batch, ctx.shape = batch, table.shape
        return F.embedding_bag(
            batch.gram_ids, table, batch.gram_offsets, mode="sum", include_last_offset=True
        )  # [unique words, 3c]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        batch = ctx.batch
        values = F.embedding_bag(
            batch.row_words, grad.contiguous(), batch.row_offsets, mode="sum", include_last_offset=True
        )  # [distinct grams, 3c]
        rows = batch.rows.to(torch.int64)[None]
        return torch.sparse_coo_tensor(
            rows, values, ctx.shape, is_coalesced=True, check_invariants=False
        ), None


class _Windows(NamedTuple):
    """The windows of a batch in time-major order: the first window of every text, then the second ones, …

    Texts are sorted by length, longest first, so the t-th windows belong to the first `active[t]` texts of
    `order`: a maximum over t is a loop over contiguous blocks. A window is a bag of two or three rows of the
    word vectors seen as [3 · unique words, c]: row 3w is L(w), 3w + 1 is C(w), 3w + 2 is R(w).
    """

    order: Tensor  # [texts]
    active: list[int]  # texts with a t-th word
    rows: Tensor  # [bag elements] rows of the word vectors, window by window
    offsets: Tensor  # [windows + 1] into rows

    @classmethod
    def of(cls, text_offsets: Tensor, word_ids: Tensor) -> _Windows:
        device = word_ids.device
        lengths = text_offsets.diff()
        order = torch.argsort(lengths, descending=True, stable=True)
        per_length = torch.bincount(lengths)  # texts of each length
        later = per_length.flip(0).cumsum(0).flip(0)[1:]  # [longest] texts with more than t words
        time = torch.repeat_interleave(torch.arange(len(later), device=device), later)  # [windows] t
        rank = (
            torch.arange(len(time), device=device) - (later.cumsum(0) - later)[time]
        )  # [windows] place in `order`
        text = order[rank]
        position = text_offsets[text] + time  # [windows] of the middle word, in word_ids
        near = (position[:, None] + torch.tensor([-1, 0, 1], device=device)).clamp(0, len(word_ids) - 1)
        rows = word_ids[near] * 3 + torch.tensor([0, 1, 2], device=device)  # [windows, 3]
        middle = torch.ones_like(time, dtype=torch.bool)
        there = torch.stack([time > 0, middle, time + 1 < lengths[text]], dim=1)  # [windows, 3]
        offsets = nn.functional.pad(there.sum(dim=1).cumsum(0), (1, 0))
        return cls(order, later.tolist(), rows[there].to(torch.int32), offsets.to(torch.int32))


def window_max_forward(words: Tensor, windows: _Windows) -> tuple[Tensor, Tensor]:
    """(max over the windows of each text, which t it was), both [texts, c] in the order of `windows`."""
    width = words.shape[1] // 3
    vectors = F.embedding_bag(
        windows.rows, words.view(-1, width), windows.offsets, mode="sum", include_last_offset=True
    )  # [windows, c]
    blocks = torch.split(vectors, windows.active)
    best = blocks[0].clone() if blocks else vectors
    which = torch.zeros(best.shape, dtype=torch.int16, device=words.device)
    for t, block in enumerate(blocks[1:], start=1):
        head = best[: len(block)]
        which[: len(block)].masked_fill_(block > head, t)
        torch.maximum(head, block, out=head)
    return best, which


def window_max_backward(grad: Tensor, which: Tensor, windows: _Windows, count: int) -> Tensor:
    """The gradient of the word vectors [count, 3c] from that of the maxima, in the order of `windows`."""
    blocks = [grad[:n] * (which[:n] == t) for t, n in enumerate(windows.active)]
    at_windows = torch.cat(blocks) if blocks else grad  # [windows, c]
    bags = torch.arange(len(windows.offsets) - 1, dtype=torch.int32, device=grad.device)
    window = torch.repeat_interleave(bags, windows.offsets.diff())  # [bag elements]
    rows, by_row = torch.sort(windows.rows, stable=True)
    borders = torch.arange(3 * count + 1, dtype=torch.int32, device=grad.device)
    offsets = torch.searchsorted(rows, borders, out_int32=True)  # [3 · count + 1]
    total = F.embedding_bag(window[by_row], at_windows, offsets, mode="sum", include_last_offset=True)
    return total.view(count, 3 * grad.shape[1])


class _WindowMax(torch.autograd.Function):
    """In torch operations, for CPUs and for GPUs without Triton."""

    @staticmethod
    def forward(ctx: Any, words: Tensor, batch: TowerBatch) -> Tensor:
        windows = _Windows.of(batch.text_offsets, batch.word_ids)
        best, which = window_max_forward(words, windows)
        ctx.windows, ctx.count = windows, len(words)
        ctx.save_for_backward(which)
        unsorted = torch.empty_like(best)
        unsorted[windows.order] = best
        return unsorted

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (which,) = ctx.saved_tensors
        return window_max_backward(grad[ctx.windows.order], which, ctx.windows, ctx.count), None


class _WindowMaxKernel(torch.autograd.Function):
    """On a GPU, with the Triton kernels of `kernels.py`."""

    @staticmethod
    def forward(ctx: Any, words: Tensor, batch: TowerBatch) -> Tensor:
        from rbegir.encode.clsm import kernels

        best, where = kernels.window_max_forward(words, batch.text_offsets, batch.word_ids)
        ctx.batch, ctx.count = batch, len(words)
        ctx.save_for_backward(where)
        return best

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        from rbegir.encode.clsm import kernels

        (where,) = ctx.saved_tensors
        batch, count = ctx.batch, ctx.count
        return kernels.window_max_backward(
            grad.contiguous(), where, batch.text_offsets, batch.word_ids, count
        ), None


@cache
def _has_triton() -> bool:
    return find_spec("triton") is not None


def window_max(words: Tensor, batch: TowerBatch) -> Tensor:
    """max_t a_t of each text, from the vectors of the unique words.  [unique words, 3c] → [texts, c]"""
    function = _WindowMaxKernel if words.is_cuda and _has_triton() else _WindowMax
    return function.apply(words, batch)  # type: ignore[no-any-return, no-untyped-call]


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
