"""Scan for batches of any shape on any GPU: 8-bit products in Triton.

The keyword value is 2·u − (2^P − 1), u in 0 … 2^P − 1, so q·k = 2·(u·q) − (2^P − 1)·Σq and the product
needs no signs. Queries beyond ±127 come as two rows, ⌊q/2⌋ and q mod 2: u·q = (2u)·⌊q/2⌋ + u·(q mod 2).
A block of keywords whose best sum cannot reach a query's threshold at the block's least norm is skipped; the
others are tested pair by pair, exactly.

The tensor-core kernels in CUDA C++ are several times as fast for the shapes they know; this one takes over
for n > 256, on GPUs older than Ampere, and where NVRTC is missing.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl

from rbegir.search.gpu.popcount import allowed, word
from rbegir.search.gpu.words import odd_even, popcount, rotate_left


@triton.jit(do_not_specialize=["end", "base", "room"])
def scan(
    words, stride, begin, end, base: tl.int64, mask, operand, width, limits, sums,
    counts, positions, dots, norms, room,
    N: tl.constexpr, P: tl.constexpr, WIDE: tl.constexpr, MASKED: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Append what passes in [begin, end): operand int8 [1 + WIDE, n, width], limits int64 [width, 3]."""
    BLOCKS: tl.constexpr = N // 32
    TOP: tl.constexpr = (1 << P) - 1
    stride = stride.to(tl.int64)
    tiles = width // COLUMNS
    offset = begin + (tl.program_id(0) // tiles) * ROWS + tl.arange(0, ROWS)
    column = (tl.program_id(0) % tiles) * COLUMNS + tl.arange(0, COLUMNS)
    inside = offset < stride
    bit = tl.arange(0, 32)
    acc = tl.zeros([ROWS, COLUMNS], tl.int32)
    spread = tl.zeros([ROWS], tl.int32)
    for block in range(BLOCKS):
        at = words + block * stride
        step = BLOCKS * stride
        x0 = word(at, offset, inside)
        x1 = x0
        x2 = x0
        x3 = x0
        if P > 1:
            x1 = word(at + step, offset, inside)
        if P > 2:
            x2 = word(at + 2 * step, offset, inside)
        if P > 3:
            x3 = word(at + 3 * step, offset, inside)
        if P == 2:
            w = x0
            x0 = odd_even(w, x1)
            x1 = rotate_left(odd_even(x1, w))
        u = (x0[:, None] >> bit[None, :]) & 1
        if P > 1:
            u = 2 * u + ((x1[:, None] >> bit[None, :]) & 1)
            spread += (1 << (2 * P - 1)) * popcount(x0 ^ x1)
        if P > 2:
            u = 2 * u + ((x2[:, None] >> bit[None, :]) & 1)
            spread += (1 << (2 * P - 2)) * popcount(x0 ^ x2) + (1 << (2 * P - 3)) * popcount(x1 ^ x2)
        if P > 3:
            u = 2 * u + ((x3[:, None] >> bit[None, :]) & 1)
            spread += (1 << (2 * P - 3)) * popcount(x0 ^ x3) + (1 << (2 * P - 4)) * popcount(x1 ^ x3)
            spread += (1 << (2 * P - 5)) * popcount(x2 ^ x3)
        rows = operand + (block * 32 + bit[:, None]) * width + column[None, :]
        if WIDE:
            acc = tl.dot((2 * u).to(tl.int8), tl.load(rows), acc, out_dtype=tl.int32)
            acc = tl.dot(u.to(tl.int8), tl.load(rows + N * width), acc, out_dtype=tl.int32)
        else:
            acc = tl.dot(u.to(tl.int8), tl.load(rows), acc, out_dtype=tl.int32)
    norm = N * TOP * TOP - spread
    dot = 2 * acc - TOP * tl.load(sums + column)[None, :]
    limit0 = tl.load(limits + 3 * column)
    limit1 = tl.load(limits + 3 * column + 1)
    floor = limit0.to(tl.float32) / limit1.to(tl.float32)
    extreme = tl.where(floor >= 0, tl.min(norm, 0), tl.max(norm, 0)).to(tl.float32)
    root = tl.sqrt(tl.abs(floor) * extreme)
    root = tl.where(floor >= 0, root * 0.99999, root * -1.00001) - 0.5
    if tl.max((tl.max(dot, 0).to(tl.float32) >= root).to(tl.int32), 0) > 0:
        wide = dot.to(tl.int64)
        need = limit0[None, :] * norm.to(tl.int64)[:, None] + tl.load(limits + 3 * column + 2)[None, :]
        good = (offset >= begin) & (offset < end)
        if MASKED:
            good = good & allowed(mask, offset, offset < end)
        hit = (wide * tl.abs(wide) * limit1[None, :] >= need) & good[:, None]
        slot = tl.atomic_add(counts + column[None, :] + tl.zeros_like(acc), 1, mask=hit, sem="relaxed")
        keep = hit & (slot < room)
        to = column[None, :].to(tl.int64) * room + slot
        tl.store(positions + to, base + offset.to(tl.int64)[:, None] + tl.zeros_like(to), mask=keep)
        tl.store(dots + to, dot, mask=keep)
        tl.store(norms + to, norm[:, None] + tl.zeros_like(acc), mask=keep)
