"""Algorithm 1 of the paper on a device: local selection in priority queues, global selection (Triton).

A block of T_b threads takes T_b·I consecutive positions; thread y scores every T_b-th of them, starting with
the y-th, and keeps the best q in a queue in registers. Global selection takes the best k of all queues.

Queues start at a floor, the threshold that the exact search takes from its sample. What is below the floor
cannot be among the best k, so a queue changes once in about 10⁵ keywords, and a few thousand entries are left
to sort. If too few are above the floor, it is lowered. Rejected: queues that start empty, all written and
sorted (dev/LOG.md).

The steps of a thread are spread over several programs, each with a queue of its own, because short programs
read neighbouring memory (4.2 ms instead of 4.4). Only two places of a queue are registers; what falls off the
end of a longer queue is appended like an entry. A thread may also lie on several slabs or devices. So more
than q entries of a thread may arrive, but all of its best q do, and the merge on the host drops the rest.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator,assignment,misc"
# ruff: noqa: RUF005 (Triton has no unpacking of tuples)
from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
import triton
import triton.language as tl

from rbegir.search.gpu.card import Batch, Card, arrived, power_of_two
from rbegir.search.gpu.order import Survivors, ordered
from rbegir.search.gpu.scans import allowed, append, hold, score, threshold_of
from rbegir.search.gpu.threshold import EVERYTHING
from rbegir.search.gpu.words import SlabSearch
from rbegir.search.paper import SelectionGeometry

HELD = 2  # places of a queue that are registers
# keywords and threads per program; with 256 threads, loads wait for each other
SPAN, LANES = 1 << 13, 128


@triton.jit
def enter(dots, norms, steps, dot, norm, step, hit, QUEUE: tl.constexpr, WIDE: tl.constexpr):
    """Put what hits into sorted queues, after its equals: QUEUE tensors each, a norm of 0 for nothing.

    The last three of what is returned fell off the end."""
    new_dots = ()
    new_norms = ()
    new_steps = ()
    moving = hit & (norm < 0)  # false: once a place was taken, all after it move down by one
    for j in tl.static_range(QUEUE):
        if WIDE:  # dot² · ‖k‖² beyond 31 bits
            better = (dot.to(tl.int64) * tl.abs(dot)) * norms[j] > (
                dots[j].to(tl.int64) * tl.abs(dots[j])
            ) * norm
        else:
            better = dot * tl.abs(dot) * norms[j] > dots[j] * tl.abs(dots[j]) * norm
        moving = moving | (hit & (better | (norms[j] == 0)))
        new_dots = new_dots + (tl.where(moving, dot, dots[j]),)
        new_norms = new_norms + (tl.where(moving, norm, norms[j]),)
        new_steps = new_steps + (tl.where(moving, step, steps[j]),)
        dot = tl.where(moving, dots[j], dot)
        norm = tl.where(moving, norms[j], norm)
        step = tl.where(moving, steps[j], step)
    return new_dots, new_norms, new_steps, dot, norm, step


@triton.jit(do_not_specialize=["count", "base", "block0", "q", "each", "split", "splits", "room"])
def select(
    words, stride, count, base: tl.int64, block0: tl.int64, mask, q, query, limits,
    each: tl.int64, split, splits, counts, positions, dots, norms, room,
    N: tl.constexpr, P: tl.constexpr, B: tl.constexpr, MIXED: tl.constexpr, MASKED: tl.constexpr,
    THREADS: tl.constexpr, LANES: tl.constexpr, QUEUE: tl.constexpr, LONGER: tl.constexpr,
    WIDE: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """The best QUEUE keywords of each thread; a program takes LANES threads of a block and `split` steps of
    them. LONGER: what falls off the end of a queue is appended, too.

    WHOLE: base is a multiple of THREADS and THREADS of LANES, so that all lanes read inside the padded
    streams. Only what passes `limits` enters a queue; entries are appended to positions, dots, norms
    [Q, room].
    """
    stride = stride.to(tl.int64)
    limit0, limit1, limit2, floor = threshold_of(limits, q)
    query += q * ((B + MIXED) * (N // 32))
    held = hold(query, B + MIXED, N // 32)
    row = q.to(tl.int64) * room
    PARTS: tl.constexpr = (THREADS + LANES - 1) // LANES
    part = tl.program_id(0) % PARTS
    block = tl.program_id(0) // PARTS // splits
    share = (tl.program_id(0) // PARTS % splits).to(tl.int64)
    lane = part * LANES + tl.arange(0, LANES)
    # steps of this block that touch the piece: offsets start + i · THREADS + lane
    start = (block0 + block) * each * THREADS - base
    first = tl.maximum(tl.maximum(-start, 0) // THREADS, share * split)
    last = tl.minimum((count - start + THREADS - 1) // THREADS, tl.minimum(share * split + split, each))
    begin = (start + first * THREADS).to(tl.int32)
    steps = (last - first).to(tl.int32)
    none = tl.zeros([LANES], tl.int32)
    best_dots = ()
    best_norms = ()
    best_steps = ()
    for _ in tl.static_range(QUEUE):
        best_dots = best_dots + (none,)
        best_norms = best_norms + (none,)
        best_steps = best_steps + (none,)
    step = steps * 0
    while step < steps:
        offset = begin + step * THREADS + lane
        if WHOLE:
            offset = tl.multiple_of(tl.max_contiguous(offset, LANES), LANES)
        good = (offset >= 0) & (offset < count) & (lane < THREADS)
        inside = None
        if WHOLE == 0:
            inside = good
        dot, norm = score(words, stride, query, held, offset, inside, N, P, B, MIXED)
        f = dot.to(tl.float32)
        hit = f * tl.abs(f) >= floor * norm.to(tl.float32)
        if tl.max(hit.to(tl.int32), 0) > 0:
            wide = dot.to(tl.int64)
            square = wide * tl.abs(wide)
            hit = hit & good & (square * limit1 >= limit0 * norm.to(tl.int64) + limit2)
            if MASKED:
                hit = hit & allowed(mask, offset, hit)
            best_dots, best_norms, best_steps, dot, norm, at = enter(
                best_dots, best_norms, best_steps, dot, norm, none + step, hit, QUEUE, WIDE
            )
            if LONGER:
                rest = hit & (norm > 0)
                if tl.max(rest.to(tl.int32), 0) > 0:
                    position = base + (begin + at * THREADS + lane).to(tl.int64)
                    append(counts, positions, dots, norms, row, room, q, position, dot, norm, rest)
        step += 1
    if tl.max(best_norms[0], 0) > 0:
        for j in tl.static_range(QUEUE):
            position = base + (begin + best_steps[j] * THREADS + lane).to(tl.int64)
            hit = best_norms[j] > 0
            append(counts, positions, dots, norms, row, room, q, position, best_dots[j], best_norms[j], hit)


def launch(
    card: Card, piece: SlabSearch, batch: Batch, limits: torch.Tensor, found: Survivors,
    geometry: SelectionGeometry,
) -> None:  # fmt: skip
    """Local selection in a slab for every query of a batch."""
    threads, per_thread, queue = geometry
    words, room = piece.slab.words, found.positions.shape[1]
    lanes = min(LANES, power_of_two(threads))
    split, places = SPAN // lanes, min(queue, HELD)
    top = 2**card.planes - 1
    wide = (card.n * top * batch.largest) ** 2 * card.n * top**2 >= 2**31
    whole = threads % lanes == 0 and piece.base % threads == 0
    masked = int(piece.mask is not None)
    size = threads * per_thread
    first = piece.base // size
    blocks = -(-(piece.base + piece.slab.count) // size) - first  # those that touch the slab
    each = min(per_thread, -(-(piece.base + piece.slab.count) // threads))  # the rest has no keywords
    splits = -(-each // split)
    for q in range(batch.queries):
        select[(blocks * splits * -(-threads // lanes),)](
            words, words.shape[1], piece.slab.count, piece.base, first, piece.mask, q, batch.words, limits,
            each, split, splits, found.counts, found.positions, found.dots, found.norms, room,
            card.n, card.planes, batch.planes, batch.mixed, masked, threads, lanes, places,
            int(queue > places), int(wide), int(whole), num_warps=1,
        )  # fmt: skip


def begin(
    card: Card, pieces: list[SlabSearch], batch: Batch, want: int, geometry: SelectionGeometry
) -> Queues:
    """Enqueue Algorithm 1 for the best `want` entries of all queues."""
    candidates = sum(piece.candidates for piece in pieces)
    limits, expected = card.first_limits(pieces, batch, min(want, candidates))
    room = power_of_two(min(candidates, max(4096.0, 2 * expected)))
    found = card.survivors(batch, room)
    for piece in pieces:
        launch(card, piece, batch, limits, found, geometry)
    want = min(want, room)
    keys, positions = ordered(found, limits, batch.scales, batch.queries, want)
    answer = torch.cat([found.counts[: batch.queries, None], keys, positions], dim=1)
    return Queues(card, pieces, batch, want, geometry, limits, found, answer)


@dataclass(eq=False)
class Queues:
    """An enqueued selection; `result` waits for it, and lowers a floor that was too high."""

    card: Card
    pieces: list[SlabSearch]
    batch: Batch
    want: int
    geometry: SelectionGeometry
    limits: torch.Tensor
    found: Survivors
    answer: torch.Tensor  # [Q, 1 + 2 · want] int64: entries, keys, positions; pinned where a graph copied it

    def result(self) -> list[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
        """Keys and positions of each query: the best `want` entries, or all if there are fewer."""
        room, answer = self.found.positions.shape[1], arrived(self.answer).copy()
        keys, positions = answer[:, 1 : 1 + self.want], answer[:, 1 + self.want :]
        return [
            (keys[q], positions[q]) if self.want <= count <= room else self._repair(q, count)
            for q, count in enumerate(answer[:, 0].tolist())
        ]

    def _repair(self, q: int, count: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Select again for one query whose floor let too few or too many entries pass."""
        batch = Batch(self.batch.host[q : q + 1], self.card.device)
        limits, boost = self.limits[q : q + 1], 1.0
        candidates = sum(piece.candidates for piece in self.pieces)
        while True:
            if count < self.want and int(limits[0, 0]) != EVERYTHING:
                boost *= 8
                limits, _ = self.card.first_limits(self.pieces, batch, min(self.want, candidates), boost)
            room = power_of_two(max(4096, 2 * count))
            found = self.card.survivors(batch, room)
            for piece in self.pieces:
                launch(self.card, piece, batch, limits, found, self.geometry)
            count = int(found.counts[0])
            enough = count >= self.want or int(limits[0, 0]) == EVERYTHING
            if enough and count <= room:
                want = min(self.want, count)
                keys, positions = (t[0, :want] for t in ordered(found, limits, batch.scales, 1, max(want, 1)))
                return keys.cpu().numpy(), positions.cpu().numpy()
