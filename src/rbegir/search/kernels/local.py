"""Algorithm 1 of the paper as printed: local selection, then a radix sort of what each thread kept (Triton).

A block of T_b threads takes T_b·I consecutive keywords; thread y scores every T_b-th of them, starting with
the y-th, and keeps the best. Global selection sorts the C / I that were kept. The searches of this package
do not work this way: the exact one reads the same bytes, misses nothing and has nothing to sort but some
thousand survivors; and the published result is derived from an exact one (`search.paper`). The kernel is
here so that the two can be measured side by side.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
from __future__ import annotations

import torch
import triton
import triton.language as tl

from rbegir.search.kernels import threshold
from rbegir.search.kernels.card import EMPTY, Batch, Card, Piece
from rbegir.search.kernels.popcount import score

TIES = 1024  # equal keys around the k-th that are put in order of position


@triton.jit(do_not_specialize=["base"])
def local_selection(
    words, stride, count, base: tl.int64, query, positions, dots, norms,
    N: tl.constexpr, P: tl.constexpr, B: tl.constexpr, MIXED: tl.constexpr,
    THREADS: tl.constexpr, EACH: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """The best keyword of each thread, the earliest of equals: positions, dots, norms [blocks · THREADS]."""
    stride = stride.to(tl.int64)
    block = tl.program_id(0)
    lane = tl.arange(0, THREADS)
    best_dot = tl.zeros([THREADS], tl.int32)
    best_norm = tl.zeros([THREADS], tl.int32)  # zero: nothing yet
    best_at = tl.zeros([THREADS], tl.int32)
    for i in range(EACH):
        offset = (block * EACH + i) * THREADS + lane
        inside = offset < count
        dot, norm = score(words, stride, query, offset, inside, N, P, B, MIXED)
        if WIDE:  # dot² · ‖k‖² beyond 31 bits
            better = (dot.to(tl.int64) * tl.abs(dot)) * best_norm > (
                best_dot.to(tl.int64) * tl.abs(best_dot)
            ) * norm
        else:
            better = dot * tl.abs(dot) * best_norm > best_dot * tl.abs(best_dot) * norm
        better = inside & (better | (best_norm == 0))
        best_dot = tl.where(better, dot, best_dot)
        best_norm = tl.where(better, norm, best_norm)
        best_at = tl.where(better, offset, best_at)
    thread = block.to(tl.int64) * THREADS + lane
    tl.store(positions + thread, base + best_at.to(tl.int64))
    tl.store(dots + thread, best_dot)
    tl.store(norms + thread, tl.maximum(best_norm, 1))


def as_printed(
    card: Card,
    piece: Piece,
    batch: Batch,
    k: int,
    *,
    per_thread: int = 256,
    threads: int = 256,
    warps: int = 4,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and positions [k] of the published search of one query over one shard with queues of length 1."""
    shard, device = piece.shard, card.device
    blocks = -(-shard.count // (threads * per_thread))
    kept = blocks * threads
    positions = torch.empty(kept, dtype=torch.int64, device=device)
    dots = torch.empty(kept, dtype=torch.int32, device=device)
    norms = torch.empty(kept, dtype=torch.int32, device=device)
    top = 2**card.planes - 1
    wide = (card.n * top * batch.largest) ** 2 * card.n * top**2 >= 2**31
    local_selection[(blocks,)](
        shard.words, shard.words.shape[1], shard.count, piece.base, batch.words, positions, dots, norms,
        card.n, card.planes, batch.planes, batch.mixed, threads, per_thread, wide, num_warps=warps,
    )  # fmt: skip
    # the last block's threads beyond the keywords kept nothing; all others have kept their best
    full = blocks - 1
    rest = shard.count - full * threads * per_thread
    used = full * threads + min(threads, rest)
    counts = torch.full((1,), used, dtype=torch.int64, device=device)
    keys = torch.empty(1, kept, dtype=torch.int64, device=device)
    threshold.order_keys[(-(-kept // 1024), 1)](counts, dots, norms, kept, keys, EMPTY, 1024)
    keys, order = torch.sort(keys[0, :used], descending=True)  # cub's radix sort
    keys, order = keys[: k + TIES], order[: k + TIES]
    found, by_position = torch.sort(positions[order])
    keys, by_key = torch.sort(keys[by_position], descending=True, stable=True)
    return keys[:k], found[by_key[:k]]
