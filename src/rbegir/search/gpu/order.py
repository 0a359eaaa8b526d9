"""The total order of survivors: exact keys, a counting pass, ranks (Triton).

The survivors of a query are a few thousand keywords in no order; the best k are wanted, sorted by (key
descending, position ascending). A counting pass does most of the work: it divides the range from the
threshold to the best possible score, ‖q‖², into BINS bins, makes a histogram, and moves every survivor to a
slot of its bin; bins that start at the k-th place or later are left out. A survivor is then compared only
with those of its own bin, about five for the usual threshold, so that ranks cost next to nothing.

A bin is a monotone function of the exact key: a conversion to single precision, a difference and a product,
each of which rounds but never swaps two numbers. Equal keys therefore share a bin, and ties are ordered
there, by position. Should all survivors be equal, one bin holds them all and each is compared with each.

With more than RANKED slots that could be too many comparisons, so the keys go through torch's radix sort, by
position and then, stably, by key. dev/LOG.md has the measurements.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
from typing import NamedTuple

import torch
import triton
import triton.language as tl

EMPTY = -(1 << 63)  # a key below all keys
BINS = 4096
RANKED = 1 << 15  # up to this many slots per query, ranks are counted


class Survivors(NamedTuple):
    """The keywords that passed a scan; counts may exceed the room, and slots beyond a count hold nothing."""

    counts: torch.Tensor  # [width] int64: a bad threshold may let more than 2^31 pass
    positions: torch.Tensor  # [width, room] int64
    dots: torch.Tensor  # [width, room] int32
    norms: torch.Tensor  # [width, room] int32


@triton.jit(do_not_specialize=["room"])
def order_keys(
    counts, dots, norms, room, limits, scales, keys, bins, totals,
    BINNED: tl.constexpr, EMPTY: tl.constexpr, BINS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The exact order key of every survivor (codes/score.py), EMPTY in unused slots: keys [Q, room] int64.

    BINNED: also the bin of every survivor, bins [Q, room], and how many each bin holds, totals [Q, BINS].
    """
    q = tl.program_id(1)
    used = tl.minimum(tl.load(counts + q), room).to(tl.int32)
    first = tl.program_id(0) * BLOCK
    if (first < used) | (BINNED == 0):
        offset = first + tl.arange(0, BLOCK)
        inside = offset < used
        at = q.to(tl.int64) * room + offset
        dot = tl.load(dots + at, mask=inside, other=0).to(tl.int64)
        norm = tl.load(norms + at, mask=inside, other=1).to(tl.int64)
        square = dot * dot
        whole = square // norm
        rest = square - whole * norm
        key = (whole << 36) + (rest << 36) // norm
        key = tl.where(dot < 0, -key, key)
        tl.store(keys + at, tl.where(inside, key, EMPTY), mask=offset < room)
        if BINNED:
            scale = tl.load(scales + q)
            high = 1.0 / (scale * scale)
            low = tl.load(limits + 3 * q).to(tl.float32) / tl.load(limits + 3 * q + 1).to(tl.float32)
            span = high - tl.maximum(low, -high)
            score = key.to(tl.float32) * (1.0 / (1 << 36))
            place = (high - score) * ((BINS - 1) / tl.maximum(span, high * 1e-6))
            bin = tl.minimum(tl.maximum(place, 0.0), BINS - 1.0).to(tl.int32)
            tl.store(bins + at, bin, mask=inside)
            tl.atomic_add(totals + q * BINS + bin, 1, mask=inside, sem="relaxed")


@triton.jit(do_not_specialize=["k"])
def starts_of(totals, starts, kept, k, BINS: tl.constexpr):
    """Where each bin begins: starts [Q, BINS], also written over totals. kept [Q]: the number of slots in
    bins that begin before k."""
    q = tl.program_id(0)
    at = q * BINS + tl.arange(0, BINS)
    total = tl.load(totals + at)
    start = tl.cumsum(total, 0) - total
    tl.store(starts + at, start)
    tl.store(totals + at, start)
    tl.store(kept + q, tl.sum(tl.where(start < k, total, 0), 0))


@triton.jit(do_not_specialize=["room", "k"])
def into_bins(
    counts, keys, positions, bins, room, k, starts, ends, to_keys, to_positions, to_bins,
    BINS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Move every survivor to a slot of its bin, to_… [Q, room]; `ends` begins as `starts` and advances."""
    q = tl.program_id(1)
    used = tl.minimum(tl.load(counts + q), room).to(tl.int32)
    first = tl.program_id(0) * BLOCK
    if first < used:
        offset = first + tl.arange(0, BLOCK)
        row = q.to(tl.int64) * room
        inside = offset < used
        bin = tl.load(bins + row + offset, mask=inside, other=0)
        inside = inside & (tl.load(starts + q * BINS + bin, mask=inside, other=0) < k)
        slot = tl.atomic_add(ends + q * BINS + bin, 1, mask=inside, sem="relaxed")
        key = tl.load(keys + row + offset, mask=inside, other=0)
        position = tl.load(positions + row + offset, mask=inside, other=0)
        tl.store(to_keys + row + slot, key, mask=inside)
        tl.store(to_positions + row + slot, position, mask=inside)
        tl.store(to_bins + row + slot, bin, mask=inside)


@triton.jit(do_not_specialize=["room", "k"])
def place(
    keys, positions, bins, room, k, starts, ends, kept, best_keys, best_positions,
    BINS: tl.constexpr, BLOCK: tl.constexpr, OTHERS: tl.constexpr,
):  # fmt: skip
    """Move every binned survivor to its place in the total order: the start of its bin plus the number of
    survivors of the bin that precede it. best [Q, k]."""
    q = tl.program_id(1)
    used = tl.load(kept + q)
    first = tl.program_id(0) * BLOCK
    if first < used:
        keys += q.to(tl.int64) * room
        positions += q.to(tl.int64) * room
        bins += q.to(tl.int64) * room
        offset = first + tl.arange(0, BLOCK)
        inside = offset < used
        key = tl.load(keys + offset, mask=inside, other=0)
        position = tl.load(positions + offset, mask=inside, other=0)
        # the bins that a program touches are neighbours, from its first survivor's to its last one's
        start = tl.load(starts + q * BINS + tl.load(bins + first))
        end = tl.load(ends + q * BINS + tl.load(bins + tl.minimum(first + BLOCK, used) - 1))
        rank = start + tl.zeros([BLOCK], tl.int32)
        while start < end:
            other = start + tl.arange(0, OTHERS)
            there = other < end
            other_key = tl.load(keys + other, mask=there, other=0)[None, :]
            other_position = tl.load(positions + other, mask=there, other=0)[None, :]
            before = (other_key > key[:, None]) | (
                (other_key == key[:, None]) & (other_position < position[:, None])
            )
            rank += tl.sum((before & there[None, :]).to(tl.int32), 1)
            start += OTHERS
        to = q.to(tl.int64) * k + rank
        tl.store(best_keys + to, key, mask=inside & (rank < k))
        tl.store(best_positions + to, position, mask=inside & (rank < k))


def ordered(
    found: Survivors, limits: torch.Tensor, scales: torch.Tensor, queries: int, k: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and positions [Q, k] of the best k stored survivors; undefined where there are fewer.

    limits [Q, 3] are those that the survivors passed, scales [Q] are 1 / ‖q‖; they bound the bins.
    """
    room, device = found.positions.shape[1], found.positions.device
    k = min(k, room)
    binned = room <= RANKED
    keys = torch.empty(queries, room, dtype=torch.int64, device=device)
    bins = torch.empty(2, queries, room if binned else 0, dtype=torch.int32, device=device)
    totals = torch.zeros(queries, BINS if binned else 0, dtype=torch.int32, device=device)
    blocks = (-(-room // 1024), queries)
    order_keys[blocks](
        found.counts, found.dots, found.norms, room, limits, scales, keys, bins[0], totals,
        int(binned), EMPTY, BINS, 1024,
    )  # fmt: skip
    if not binned:
        positions, by_position = torch.sort(found.positions[:queries], dim=1)
        keys, by_key = torch.sort(keys.gather(1, by_position), dim=1, descending=True, stable=True)
        return keys[:, :k], positions.gather(1, by_key[:, :k])
    starts = torch.empty_like(totals)
    kept = torch.empty(queries, dtype=torch.int32, device=device)
    starts_of[(queries,)](totals, starts, kept, k, BINS)
    in_bins = torch.empty(2, queries, room, dtype=torch.int64, device=device)  # keys, positions
    into_bins[blocks](
        found.counts, keys, found.positions, bins[0], room, k, starts, totals,
        in_bins[0], in_bins[1], bins[1], BINS, 1024,
    )  # fmt: skip
    best = torch.empty(2, queries, k, dtype=torch.int64, device=device)
    place[(-(-room // 32), queries)](
        in_bins[0], in_bins[1], bins[1], room, k, starts, totals, kept, best[0], best[1], BINS, 32, 32,
        num_warps=2,
    )  # fmt: skip
    return best[0], best[1]
