"""`window_max` (`rbegir.encode.clsm.clsm`) on a GPU: one Triton kernel forward, one backward.

A program owns one text and BLOCK columns. Forward it walks over the text's words, adds the three parts that
meet in each window and keeps the largest sum and its place. Backward it adds the gradient of each maximum to
the three words of its window, atomically, since many texts share a word.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 128  # columns per program


@triton.jit  # type: ignore[untyped-decorator]
def _forward(words, text_offsets, word_ids, best_out, where_out, width, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    text = tl.program_id(0)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    start = tl.load(text_offsets + text)
    end = tl.load(text_offsets + text + 1)
    best = tl.full((BLOCK,), float("-inf"), dtype=tl.float32)
    where = tl.full((BLOCK,), 0, dtype=tl.int32) + start
    position = start
    while position < end:
        word = tl.load(word_ids + position).to(tl.int64) * 3 * width
        window = tl.load(words + word + width + column, mask=inside, other=0.0)
        before = tl.load(word_ids + position - 1, mask=position > start, other=0).to(tl.int64) * 3 * width
        window += tl.load(words + before + column, mask=inside & (position > start), other=0.0)
        after = tl.load(word_ids + position + 1, mask=position + 1 < end, other=0).to(tl.int64) * 3 * width
        window += tl.load(words + after + 2 * width + column, mask=inside & (position + 1 < end), other=0.0)
        better = window > best
        best = tl.where(better, window, best)
        where = tl.where(better, position, where)
        position += 1
    out = text.to(tl.int64) * width + column
    tl.store(best_out + out, best, mask=inside)
    tl.store(where_out + out, where, mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def _backward(grad_in, where_in, text_offsets, word_ids, total, width, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    text = tl.program_id(0)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    start = tl.load(text_offsets + text)
    end = tl.load(text_offsets + text + 1)
    inside = (column < width) & (start < end)
    at = text.to(tl.int64) * width + column
    grad = tl.load(grad_in + at, mask=inside, other=0.0)
    where = tl.load(where_in + at, mask=inside, other=0)
    word = tl.load(word_ids + where, mask=inside, other=0).to(tl.int64) * 3 * width
    tl.atomic_add(total + word + width + column, grad, mask=inside)
    has_before = inside & (where > start)
    before = tl.load(word_ids + where - 1, mask=has_before, other=0).to(tl.int64) * 3 * width
    tl.atomic_add(total + before + column, grad, mask=has_before)
    has_after = inside & (where + 1 < end)
    after = tl.load(word_ids + where + 1, mask=has_after, other=0).to(tl.int64) * 3 * width
    tl.atomic_add(total + after + 2 * width + column, grad, mask=has_after)


def window_max_forward(words: Tensor, text_offsets: Tensor, word_ids: Tensor) -> tuple[Tensor, Tensor]:
    """(max over the windows of each text, place of that window in `word_ids` as int32), both [texts, c]."""
    texts, width = len(text_offsets) - 1, words.shape[1] // 3
    best = words.new_empty((texts, width))
    where = torch.empty((texts, width), dtype=torch.int32, device=words.device)
    if texts:
        grid = (texts, triton.cdiv(width, BLOCK))
        _forward[grid](words, text_offsets, word_ids, best, where, width, BLOCK=BLOCK, num_warps=2)
    return best, where


def window_max_backward(
    grad: Tensor, where: Tensor, text_offsets: Tensor, word_ids: Tensor, count: int
) -> Tensor:
    """The gradient of the word vectors [count, 3c] from the gradient of the maxima [texts, c]."""
    texts, width = grad.shape
    total = grad.new_zeros((count, 3 * width))
    if texts:
        grid = (texts, triton.cdiv(width, BLOCK))
        _backward[grid](grad, where, text_offsets, word_ids, total, width, BLOCK=BLOCK, num_warps=2)
    return total
