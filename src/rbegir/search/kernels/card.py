"""Exact top-k on one device: threshold by sample, one scan, proof by count, final order.

    sample → histogram of cosines → threshold → scan: append what passes → count → sort

The scan counts everything that passes, stored or not, so the count is a proof: with a threshold that at least k
keywords pass, and all of them stored, the best k of the stored ones are the best k of all. If too few passed, the
threshold is lowered; if more passed than there is room for, it is raised to the k-th best of those stored. Only ties
can defeat that: when more keywords than there is room for share the k-th score, those above it are found with a strict
threshold, and the ties among the lowest positions by scanning ranges in order.

Nothing waits for the device between the query and the result, so that the launches of the last steps hide behind the
scan.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from rbegir.search.kernels import popcount, product, tensorcore, threshold
from rbegir.search.kernels.threshold import BINS, EVERYTHING, UNIT
from rbegir.search.kernels.words import query_planes

Method = Literal["popcount", "product", "mma", "wgmma", "float8"]
EMPTY = -(1 << 63)  # a key below all keys
DENSE_ONE, DENSE_MANY = 1 << 20, 1 << 16  # sample keywords a shard that the first threshold is taken from
SURVIVOR_BYTES = 64  # a slot of survivors, with what sorting needs


@dataclass(frozen=True, eq=False)
class Shard:
    """Keywords on a device, and a random sample of them in random order."""

    words: torch.Tensor  # [streams, stride] int32
    count: int
    sample: torch.Tensor  # [streams, sample stride] int32
    places: torch.Tensor  # [drawn] int32: where the sample was drawn
    drawn: int


class Piece(NamedTuple):
    """A shard in a search: where it stands, and which of its keywords are candidates."""

    shard: Shard
    base: int  # position of its first keyword
    mask: torch.Tensor | None  # [ceil(count / 32)] int32
    density: float  # share of candidates


class Survivors(NamedTuple):
    """What passed: counts [width] may exceed the room; slots beyond a count hold nothing."""

    counts: torch.Tensor  # [width] int32
    positions: torch.Tensor  # [width, room] int64
    dots: torch.Tensor  # [width, room] int32
    norms: torch.Tensor  # [width, room] int32


def power_of_two(x: float) -> int:
    return 1 << max(0, math.ceil(math.log2(max(1.0, x))))


class Batch:
    """Queries on a device, in the forms that the kernels take."""

    def __init__(self, values: npt.NDArray[np.int16], device: torch.device) -> None:
        words, self.planes, self.mixed = query_planes(values)
        self.queries, self.n = values.shape
        wide = values.astype(np.int64)
        norms = np.maximum(np.einsum("qd,qd->q", wide, wide), 1)
        scales = (1.0 / np.sqrt(norms)).astype(np.float32)
        sums = wide.sum(axis=1).astype(np.int32)
        self.largest = int(np.abs(values).max(initial=0))
        flat = np.concatenate([words.reshape(-1), scales.view(np.int32), sums])
        on_device = torch.from_numpy(flat).to(device, non_blocking=True)  # one copy for all three
        cut = words.size
        self.words = on_device[:cut].view(words.shape)  # [Q, planes + mixed, n/32] int32
        self.scales = on_device[cut : cut + self.queries].view(torch.float32)  # [Q] 1/‖q‖
        self.sums = on_device[cut + self.queries :]  # [Q] int32
        self.values = values
        self.device = device

    @property
    def wide(self) -> bool:
        return self.largest > 127


class Card:
    """The kernels of one shape on one device."""

    def __init__(self, n: int, planes: int, device: torch.device) -> None:
        self.n, self.planes, self.device = n, planes, device
        self.force: Method | None = None  # for tests and benchmarks

    # ---- the steps

    def method(self, batch: Batch) -> Method:
        """Which scan is fastest for a batch; see benchmarks/results for the measurements."""
        if self.force:
            return self.force
        return "popcount"

    def first_limits(self, pieces: list[Piece], batch: Batch, k: int) -> tuple[torch.Tensor, float]:
        """limits [Q, 3] from the sample, and how many survivors a query to expect."""
        limits = torch.empty(batch.queries, 3, dtype=torch.int64, device=self.device)
        dense = DENSE_ONE if batch.queries == 1 else DENSE_MANY
        weight = max(p.shard.count / max(1, min(p.shard.drawn, dense)) for p in pieces)
        expected = enough(k, weight)
        bins = torch.zeros(batch.queries, BINS, dtype=torch.float32, device=self.device)
        for piece in pieces:
            shard, drawn = piece.shard, min(piece.shard.drawn, dense)
            if drawn:
                threshold.histogram[(-(-drawn // 1024), batch.queries)](
                    shard.sample, shard.sample.shape[1], drawn, piece.mask, shard.places, batch.words,
                    batch.scales, shard.count / drawn, bins, self.n, self.planes, batch.planes, batch.mixed,
                    int(piece.mask is not None), BINS, 1024,
                )  # fmt: skip
        threshold.choose[(batch.queries,)](bins, batch.scales, expected, limits, BINS, UNIT, EVERYTHING)
        finest = max(p.shard.count / max(1, p.shard.drawn) for p in pieces)
        if finest < weight:  # scan the whole sample with this threshold, and take a better one from what passes
            room = power_of_two(2 * expected / finest + 1024)
            found = self.survivors(batch, room)
            for piece in pieces:
                self.scan(sample_of(piece), batch, limits, found)
            expected = enough(k, finest)
            bins.zero_()
            threshold.histogram_survivors[(-(-room // 1024), batch.queries)](
                found.counts, found.dots, found.norms, room, batch.scales, finest, bins, BINS, 1024
            )
            threshold.choose[(batch.queries,)](bins, batch.scales, expected, limits, BINS, UNIT, EVERYTHING)
        return limits, expected

    def survivors(self, batch: Batch, room: int) -> Survivors:
        """Empty survivors for a batch."""
        width = -(-batch.queries // 64) * 64 if batch.queries > 1 else 1
        empty = {"device": self.device}
        return Survivors(
            torch.zeros(width, dtype=torch.int32, **empty),
            torch.empty(width, room, dtype=torch.int64, **empty),
            torch.empty(width, room, dtype=torch.int32, **empty),
            torch.empty(width, room, dtype=torch.int32, **empty),
        )

    def scan(
        self, piece: Piece, batch: Batch, limits: torch.Tensor, found: Survivors, begin: int = 0, end: int | None = None
    ) -> None:
        """Append what passes `limits` [Q, 3] among keywords [begin, end) of a piece; begin is a multiple of 64."""
        end = piece.shard.count if end is None else end
        if end <= begin:
            return
        method = self.method(batch)
        if method == "popcount":
            self._scan_popcount(piece, batch, limits, found, begin, end)
        elif method == "product":
            self._scan_product(piece, batch, limits, found, begin, end)
        else:
            self._scan_tensorcore(method, piece, batch, limits, found, begin, end)

    def _scan_popcount(
        self, piece: Piece, batch: Batch, limits: torch.Tensor, found: Survivors, begin: int, end: int
    ) -> None:
        words, room = piece.shard.words, found.positions.shape[1]
        masked = 0 if piece.mask is None else 1 if piece.density > 0.25 else 2
        block, steps, warps = 1024, 4, 4
        grid = (-(-(end - begin) // (block * steps)),)
        for q in range(batch.queries):
            popcount.scan[grid](
                words, words.shape[1], begin, end, piece.base, piece.mask, q, batch.words, limits,
                found.counts, found.positions, found.dots, found.norms, room,
                self.n, self.planes, batch.planes, batch.mixed, masked, block, steps, num_warps=warps,
            )  # fmt: skip

    def _scan_product(
        self, piece: Piece, batch: Batch, limits: torch.Tensor, found: Survivors, begin: int, end: int
    ) -> None:
        words, room = piece.shard.words, found.positions.shape[1]
        rows, columns = 128, 16 if batch.queries <= 16 else 32 if batch.queries <= 32 else 64
        width = -(-batch.queries // columns) * columns
        full = np.zeros((width, self.n), dtype=np.int16)
        full[: batch.queries] = batch.values
        parts = np.stack([full >> 1, full & 1]) if batch.wide else full[None]  # [1 + wide, width, n]
        operand = torch.from_numpy(parts.astype(np.int8).transpose(0, 2, 1).copy()).to(self.device)
        grid = (-(-(end - begin) // rows) * (width // columns),)
        product.scan[grid](
            words, words.shape[1], begin, end, piece.base, piece.mask, operand, width, padded(limits, width),
            padded(batch.sums, width), found.counts, found.positions, found.dots, found.norms, room,
            self.n, self.planes, int(batch.wide), int(piece.mask is not None), rows, columns, num_warps=4,
        )  # fmt: skip

    def _scan_tensorcore(
        self, kind: tensorcore.Kind, piece: Piece, batch: Batch, limits: torch.Tensor, found: Survivors,
        begin: int, end: int,
    ) -> None:  # fmt: skip
        shape = tensorcore.shape_for(kind, self.n, self.planes, batch.wide)
        group = tensorcore.group_size(shape)
        values = torch.from_numpy(batch.values).to(self.device)
        for first in range(0, batch.queries, group):
            part = slice(first, min(batch.queries, first + group))
            count = part.stop - part.start
            width = tensorcore.padded(kind, count)
            half = kind == "float8"
            floors = torch.empty(
                shape.buckets, width, dtype=torch.float16 if half else torch.int32, device=self.device
            )
            threshold.floors[(shape.buckets, -(-width // 256))](
                limits[part], batch.sums[part], floors, count, width, shape.shift, self.n, self.planes, half, 256
            )
            tensorcore.launch(
                shape, piece.shard.words, begin, end, piece.base, piece.mask,
                tensorcore.arrange(values[part], kind, batch.wide), floors, padded(limits[part], width),
                padded(batch.sums[part], width), found.counts[first:], found.positions[first:],
                found.dots[first:], found.norms[first:],
            )  # fmt: skip

    def ordered(self, found: Survivors, queries: int, k: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The best k stored survivors of each query: keys and positions [Q, k]; EMPTY where there are fewer."""
        room = found.positions.shape[1]
        keys = torch.empty(queries, room, dtype=torch.int64, device=self.device)
        threshold.order_keys[(-(-room // 1024), queries)](found.counts, found.dots, found.norms, room, keys, EMPTY, 1024)
        positions, by_position = torch.sort(found.positions[:queries], dim=1)
        keys, by_key = torch.sort(keys.gather(1, by_position), dim=1, descending=True, stable=True)
        k = min(k, room)
        return keys[:, :k], positions.gather(1, by_key[:, :k])

    # ---- the search

    def begin(self, pieces: list[Piece], batch: Batch, k: int, candidates: int) -> Pending:
        """Enqueue a search of min(k, candidates) hits; nothing waits."""
        k = min(k, candidates)
        limits, expected = self.first_limits(pieces, batch, k)
        room = power_of_two(min(candidates, max(4096.0, 2 * expected)))
        found = self.survivors(batch, room)
        for piece in pieces:
            self.scan(piece, batch, limits, found)
        keys, positions = self.ordered(found, batch.queries, k)
        return Pending(self, pieces, batch, k, limits, found, keys, positions)


def sample_of(piece: Piece) -> Piece:
    """The sample of a piece as a piece of its own; only the scores of what passes are used."""
    shard, mask = piece.shard, None
    if piece.mask is not None:
        bits = piece.mask[shard.places >> 5] >> (shard.places & 31) & 1
        full = torch.zeros(-(-shard.drawn // 32) * 32, dtype=torch.int32, device=bits.device)
        full[: shard.drawn] = bits
        mask = (full.view(-1, 32) << torch.arange(32, dtype=torch.int32, device=bits.device)).sum(1, dtype=torch.int32)
    return Piece(Shard(shard.sample, shard.drawn, shard.sample, shard.places, shard.drawn), 0, mask, piece.density)


def enough(k: int, weight: float) -> float:
    """Survivors to aim at when a sampled keyword stands for `weight`: fewer than k then pass once in 10⁵ searches."""
    return float(k) if weight <= 1 else k + 4 * math.sqrt(k * weight) + 8 * weight


def padded(tensor: torch.Tensor, width: int) -> torch.Tensor:
    """Rows up to `width`, the new ones with limits that nothing passes (or zero sums)."""
    if len(tensor) == width:
        return tensor.contiguous()
    full = torch.zeros(width, *tensor.shape[1:], dtype=tensor.dtype, device=tensor.device)
    full[: len(tensor)] = tensor
    if tensor.dim() == 2:
        full[len(tensor) :, 0], full[len(tensor) :, 1] = 1 << 44, 1
    return full


@dataclass(eq=False)
class Pending:
    """A search on its way; `result` waits for it, checks the proof and repairs what fails."""

    card: Card
    pieces: list[Piece]
    batch: Batch
    k: int
    limits: torch.Tensor
    found: Survivors
    keys: torch.Tensor
    positions: torch.Tensor

    def result(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Keys and positions [Q, k], proven."""
        queries, room = self.batch.queries, self.found.positions.shape[1]
        together = torch.cat([self.found.counts[:queries, None].long(), self.keys, self.positions], dim=1).cpu().numpy()
        counts, keys = together[:, 0], together[:, 1 : 1 + self.k]
        positions = together[:, 1 + self.k :]
        for q in np.flatnonzero((counts < self.k) | (counts > room)):
            keys[q], positions[q] = self._repair(int(q), int(counts[q]))
        return keys, positions

    def _repair(self, q: int, count: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """One query whose threshold let too few or too many pass."""
        card, k = self.card, self.k
        batch = Batch(self.batch.values[q : q + 1], card.device)
        limits = self.limits[q : q + 1].clone()
        room = power_of_two(max(1 << 16, 4 * k))
        if count < k:
            limits[0, 0] = EVERYTHING
        while True:
            found = card.survivors(batch, room)
            for piece in self.pieces:
                card.scan(piece, batch, limits, found)
            keys, positions = (t[0] for t in card.ordered(found, 1, k))
            if int(found.counts[0]) <= room:
                return keys.cpu().numpy(), positions.cpu().numpy()
            tighter = limit_at(found, positions[k - 1])
            if above(tighter, limits[0]):
                limits[0] = tighter
                continue
            strict = tighter.clone()
            strict[2] = 1
            higher = card.survivors(batch, room)
            for piece in self.pieces:
                card.scan(piece, batch, strict[None], higher)
            passed = int(higher.counts[0])
            if passed >= k:
                limits[0] = strict
                if passed > room:
                    keys, positions = (t[0] for t in card.ordered(higher, 1, k))
                    limits[0] = limit_at(higher, positions[k - 1])
                continue
            return self._ties(batch, tighter, higher, passed, room)

    def _ties(
        self, batch: Batch, limits: torch.Tensor, higher: Survivors, passed: int, room: int
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """`passed` keywords are above the limit and more than enough on it: the lowest positions of those win."""
        card = self.card
        keys, positions = (t[0].cpu().numpy() for t in card.ordered(higher, 1, max(passed, 1)))
        keys, positions = keys[:passed], positions[:passed]
        wanted = self.k - passed
        tied: list[npt.NDArray[np.int64]] = []
        for piece in self.pieces:
            for begin in range(0, piece.shard.count, room):
                found = card.survivors(batch, room)
                card.scan(piece, batch, limits[None], found, begin, min(piece.shard.count, begin + room))
                there = np.sort(found.positions[0, : int(found.counts[0])].cpu().numpy())
                tied.append(np.setdiff1d(there, positions, assume_unique=True)[:wanted])
                wanted -= len(tied[-1])
                if not wanted:
                    key = tie_key(limits)
                    ties = np.concatenate(tied)
                    return np.concatenate([keys, np.full(len(ties), key)]), np.concatenate([positions, ties])
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


def tie_key(limits: torch.Tensor) -> int:
    """The order key of keywords exactly on a threshold taken from one of them."""
    square, norm, _ = limits.tolist()
    key = (abs(square) << 36) // norm
    return -key if square < 0 else key
