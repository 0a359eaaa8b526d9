"""Proof by count: the threshold of a search is checked afterwards, and repaired where it was wrong.

The scan counts everything that passes, stored or not, so the count is a proof: with a threshold that at
least k keywords pass, all of them stored, the best k of the stored ones are the best k of all. If too few
passed, the threshold is lowered. If more passed than there is room for, it is raised to the k-th best of
those stored. Only ties can defeat that: when more keywords than there is room for share the k-th score,
those above it are found with a strict threshold, and the ties at the lowest positions by scanning ranges in
order.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from rbegir.search.gpu import compact
from rbegir.search.gpu.card import Batch, Card, arrived, power_of_two
from rbegir.search.gpu.order import Survivors, ordered
from rbegir.search.gpu.words import SlabSearch


def begin(card: Card, pieces: list[SlabSearch], batch: Batch, k: int) -> Pending:
    """Enqueue a search for the best k, or for all candidates if there are fewer, and return at once."""
    rows = None
    if compact.worth(pieces, card.cost(batch)):
        gathered, rows = compact.gather(pieces)
        pieces = [gathered]
    candidates = sum(piece.candidates for piece in pieces)
    k = min(k, candidates)
    limits, expected = card.first_limits(pieces, batch, k)
    room = power_of_two(min(candidates, max(4096.0, 2 * expected)))
    found = card.survivors(batch, room)
    for piece in pieces:
        card.scan(piece, batch, limits, found)
    keys, positions = ordered(found, limits, batch.scales, batch.queries, k)
    if rows is not None:  # undefined for a query with too few survivors, and replaced below
        positions = rows[positions.clamp(0, len(rows) - 1)]
    answer = torch.cat([found.counts[: batch.queries, None], keys, positions], dim=1)
    return Pending(card, pieces, batch, k, limits, found, answer, rows)


@dataclass(eq=False)
class Pending:
    """An enqueued search; `result` waits for it, checks the proof and repairs what fails."""

    card: Card
    pieces: list[SlabSearch]
    batch: Batch
    k: int
    limits: torch.Tensor
    found: Survivors
    answer: torch.Tensor  # [Q, 1 + 2k] int64: what passed, keys, positions; pinned where a graph copied it
    rows: torch.Tensor | None = None  # positions of gathered candidates

    def result(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Keys and positions [Q, k], proven."""
        room, answer = self.found.positions.shape[1], arrived(self.answer)
        passed, keys, found = answer[:, 0], answer[:, 1 : 1 + self.k].copy(), answer[:, 1 + self.k :].copy()
        for q in np.flatnonzero((passed < self.k) | (passed > room)):
            keys[q], found[q] = self._repair(int(q), int(passed[q]))
            if self.rows is not None:
                found[q] = self.rows[torch.from_numpy(found[q]).to(self.rows.device)].cpu().numpy()
        return keys, found

    def _repair(self, q: int, count: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Search again for one query whose threshold let too few or too many pass."""
        card, k = self.card, self.k
        batch = Batch(self.batch.host[q : q + 1], card.device)
        limits = self.limits[q : q + 1].clone()
        room = power_of_two(max(1 << 16, 4 * k))
        boost = 1.0
        while True:
            if count < k:  # the boost ends at a threshold that everything passes
                boost *= 8
                limits, _ = card.first_limits(self.pieces, batch, k, boost)
            found, count = self._scan(batch, limits, room)
            if count < k:
                continue
            keys, positions = (t[0] for t in ordered(found, limits, batch.scales, 1, k))
            if count <= room:
                return keys.cpu().numpy(), positions.cpu().numpy()
            tighter = limit_at(found, positions[k - 1])
            if above(tighter, limits[0]):
                limits[0] = tighter
                continue
            strict = tighter.clone()
            strict[2] = 1
            higher, passed = self._scan(batch, strict[None], room)
            if passed < k:
                return self._ties(batch, tighter, higher, passed, room)
            limits[0] = strict
            if passed > room:
                keys, positions = (t[0] for t in ordered(higher, strict[None], batch.scales, 1, k))
                limits[0] = limit_at(higher, positions[k - 1])

    def _scan(self, batch: Batch, limits: torch.Tensor, room: int) -> tuple[Survivors, int]:
        """The survivors of one query and their number; stops after the slab that fills the room."""
        found, count = self.card.survivors(batch, room), 0
        for piece in self.pieces:
            self.card.scan(piece, batch, limits, found)
            count = int(found.counts[0])
            if count > room:
                break
        return found, count

    def _ties(
        self, batch: Batch, limits: torch.Tensor, higher: Survivors, passed: int, room: int
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """The best k where `passed` keywords are above the limit and more than enough are on it."""
        card = self.card
        best = ordered(higher, limits[None], batch.scales, 1, max(passed, 1))
        keys, positions = (tensor[0, :passed].cpu().numpy() for tensor in best)
        wanted = self.k - passed
        tied: list[npt.NDArray[np.int64]] = []
        for piece in self.pieces:
            for begin in range(0, piece.slab.count, room):
                found = card.survivors(batch, room)
                card.scan(piece, batch, limits[None], found, begin, min(piece.slab.count, begin + room))
                there = np.sort(found.positions[0, : int(found.counts[0])].cpu().numpy())
                tied.append(np.setdiff1d(there, positions, assume_unique=True)[:wanted])
                wanted -= len(tied[-1])
                if not wanted:
                    square, norm = limits[:2].tolist()
                    key = (abs(square) << 36) // norm  # the order key of all ties (`codes/score.py`)
                    own = np.full(self.k - passed, -key if square < 0 else key)
                    return np.concatenate([keys, own]), np.concatenate([positions, *tied])
        raise AssertionError("the ties were counted and must be there")


def limit_at(found: Survivors, position: torch.Tensor) -> torch.Tensor:
    """The threshold [3] that the stored survivor at a position just passes."""
    slot = (found.positions[0] == position).nonzero()[0, 0]
    dot, norm = found.dots[0, slot].long(), found.norms[0, slot].long()
    return torch.stack([dot * dot.abs(), norm, torch.zeros_like(norm)])


def above(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether threshold a is above threshold b."""
    (a0, a1, _), (b0, b1, _) = a.tolist(), b.tolist()
    return bool(a0 * b1 > b0 * a1)
