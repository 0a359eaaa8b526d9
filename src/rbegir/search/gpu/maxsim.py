"""MaxSim on GPUs: every item is scored in float32, and those that may be among the best again, exactly.

    score of all items, float32 → the k-th best, less what rounding may do → items that reach it
                                → their maxima in float64 → the same sums as on the CPU

The products and sums of float64 would take several times as long for all items. A float32 score is off by at
most `slack`: so the k-th best of them, less `slack`, is a lower bound of the k-th best score, and an item
more than twice `slack` below cannot be among the best. Ties pass, however many there are.

Keywords of an item that lie one after the other in a slab, as they do when they were added together, are read
as they lie. Others are gathered through a list of their addresses, 8 bytes each on the device. Where an
item's keywords lie is worked out once for an index and where its slabs are (`Plan`). Items with keywords on
several devices are always scored exactly; there are few, unless items are scattered over segments.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from rbegir.codes.score import QUERY_LIMIT
from rbegir.search.gpu.card import Card
from rbegir.search.gpu.device import Worker
from rbegir.search.gpu.matches import NEVER, ROWS, SLAB_BITS, columns_of, match_items, operand_of
from rbegir.search.gpu.words import SlabSearch
from rbegir.search.items import Floats, ItemHits, ItemOrder, add_up, best_items, inverse_norms
from rbegir.search.partition import Int64s, Values

LONG = 1 << 14  # keywords of an item from which its pieces are matched side by side
CELLS = (4, 8, 16, 32, 64)
SPANS = 1 << 12  # spans of a slab that are worth a launch; fewer are gathered
EXACT_KEYWORDS, LEAST = 1 << 23, 64  # matched exactly at a time; a shorter item counts as LEAST
PROGRAMS, TURNS = 1 << 14, 32  # at least so many programs, of at most so many turns


class Spans(NamedTuple):
    """Spans of keywords of one slab, or of the list of addresses (`match_items`)."""

    slab: int | None  # None: of the list
    wheres: torch.Tensor  # [spans] int64
    lengths: torch.Tensor  # [spans] int32
    places: torch.Tensor  # [spans] int64: whose span it is
    cells: int
    long: torch.Tensor | None = None  # pieces of these items, which `places` counts; None: whole items


@dataclass(frozen=True, eq=False)
class Share:
    """The part of the items that one device scores."""

    addresses: torch.Tensor  # [gathered keywords] int64
    spans: list[Spans]


@dataclass(frozen=True, eq=False)
class Plan:
    """Where the keywords of each item are."""

    slabs: Slabs
    shares: list[Share]
    divided: Int64s  # items with keywords on several devices


class Slabs(NamedTuple):
    """The slabs of all devices in the order of their positions."""

    bases: Int64s
    ends: Int64s
    devices: Int64s  # on which device a slab is, …
    numbers: Int64s  # … and its number there

    @classmethod
    def of(cls, pieces: Sequence[Sequence[SlabSearch]]) -> Slabs:
        rows = sorted(
            (piece.base, piece.base + piece.slab.count, device, number)
            for device, own in enumerate(pieces)
            for number, piece in enumerate(own)
        )
        return cls(*np.array(rows, np.int64).reshape(-1, 4).T)

    def at(self, positions: Int64s) -> Int64s:
        """The slab of each position, in this order; −1 where there is none."""
        found = np.searchsorted(self.ends, positions, "right")
        known = np.minimum(found, len(self.ends) - 1)
        return np.where((found < len(self.ends)) & (self.bases[known] <= positions), found, -1)

    def addresses(self, positions: Int64s, found: Int64s, device: int) -> Int64s:
        """Addresses on a device of positions in the slabs `found`; −1 for what is not there."""
        here = (found >= 0) & (self.devices[found] == device)
        return np.where(here, (self.numbers[found] << SLAB_BITS) | (positions - self.bases[found]), -1)


def plan(order: ItemOrder, pieces: Sequence[Sequence[SlabSearch]], workers: Sequence[Worker]) -> Plan:
    """The plan for these slabs of each device."""
    slabs, lengths = Slabs.of(pieces), np.diff(order.starts)
    begins = order.positions[np.minimum(order.starts[:-1], max(0, len(order.positions) - 1))]
    first = slabs.at(begins)
    direct = (lengths > 0) & (first >= 0) & (begins + lengths <= slabs.ends[first]) & consecutive(order)
    direct &= np.bincount(first[direct], minlength=len(slabs.ends))[first] >= SPANS
    shares, other = [], np.flatnonzero(~direct & (lengths > 0))
    positions = order.positions[entries(order, other)[0]]
    found = slabs.at(positions)
    homes = np.zeros((len(workers), len(other)), np.bool_)  # whether an item has keywords on a device
    whose = np.repeat(np.arange(len(other)), lengths[other])
    for device, home in enumerate(homes):
        home[whose[(found >= 0) & (slabs.devices[found] == device)]] = True
    undivided = homes.sum(axis=0) == 1
    for device, worker in enumerate(workers):
        mine = np.flatnonzero(homes[device] & undivided)
        kept = np.isin(whose, mine)
        addresses = slabs.addresses(positions[kept], found[kept], device)
        starts = np.cumsum(lengths[other[mine]]) - lengths[other[mine]]
        with worker.active():
            spans = spans_of(None, starts, lengths[other[mine]], other[mine], worker.device)
            for slab in np.flatnonzero(slabs.devices == device).tolist():
                own = np.flatnonzero(direct & (first == slab))
                wheres = begins[own] - slabs.bases[slab]
                spans += spans_of(int(slabs.numbers[slab]), wheres, lengths[own], own, worker.device)
            shares.append(Share(torch.from_numpy(addresses).to(worker.device), spans))
    return Plan(slabs, shares, other[homes.sum(axis=0) > 1])


def consecutive(order: ItemOrder) -> npt.NDArray[np.bool_]:
    """Whether the keywords of each item have consecutive positions."""
    whole = np.ones(len(order.starts) - 1, np.bool_)
    step = 1 << 24
    for begin in range(0, len(order.positions) - 1, step):
        breaks = begin + 1 + np.flatnonzero(np.diff(order.positions[begin : begin + step + 1]) != 1)
        item = np.searchsorted(order.starts, breaks, "right") - 1
        whole[item[order.starts[item] != breaks]] = False
    return whole


def entries(order: ItemOrder, items: Int64s) -> tuple[Int64s, Int64s]:
    """The keywords of some items, as places in the order, and where those of each item begin in this list."""
    lengths = order.starts[items + 1] - order.starts[items]
    begins = np.cumsum(lengths) - lengths
    return np.arange(lengths.sum()) + np.repeat(order.starts[items] - begins, lengths), begins


def spans_of(
    slab: int | None, wheres: Int64s, lengths: Int64s, items: Int64s, device: torch.device
) -> list[Spans]:
    """Spans of whole items, the longest first, and pieces of long items."""

    def spans(wheres: Int64s, lengths: Int64s, places: Int64s, long: Int64s | None) -> Spans:
        rows = {cells: int((-(-lengths // cells) * cells).sum()) for cells in CELLS}
        cells = min(reversed(CELLS), key=rows.__getitem__)
        longest_first = np.argsort(lengths // -cells, kind="stable")
        columns = wheres[longest_first], lengths[longest_first].astype(np.int32), places[longest_first]
        where, length, place = (torch.from_numpy(column).to(device) for column in columns)
        which = None if long is None else torch.from_numpy(long).to(device)
        return Spans(slab, where, length, place, cells, which)

    found, short, long = [], np.flatnonzero(lengths <= LONG), np.flatnonzero(lengths > LONG)
    if short.size:
        found.append(spans(wheres[short], lengths[short], items[short], None))
    if long.size:
        which, at, size = cuts_of(lengths[long])
        found.append(spans(wheres[long][which] + at, size, which, items[long]))
    return found


def cuts_of(lengths: Int64s) -> tuple[Int64s, Int64s, Int64s]:
    """Spans of these lengths cut into pieces: whose piece it is, where in the span it begins, its length."""
    count = np.maximum(1, -(-lengths // LONG))
    which = np.repeat(np.arange(len(lengths)), count)
    at = LONG * (np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count))
    return which, at, np.minimum(LONG, lengths[which] - at)


class ItemScan:
    """The kernel's arguments for one query on one device."""

    def __init__(self, card: Card, share: Share, pieces: Sequence[SlabSearch], values: Values) -> None:
        n, planes = self.n, self.planes = card.n, card.planes
        assert n * (2**planes - 1) * QUERY_LIMIT < 1 << 22  # a bound of |dot|, see FLOAT in `match_items`
        self.device, self.share, self.pieces = card.device, share, pieces
        self.vectors, self.columns = len(values), columns_of(len(values))
        operand, sums = operand_of(values, planes)
        scales = np.zeros(sums.shape, np.float32)
        scales.ravel()[: len(values)] = inverse_norms(values)
        self.wide = operand.shape[1] - 1
        self.operand, self.sums, self.scales = (self._send(one) for one in (operand, sums, scales))
        squares = n * (2**planes - 1) ** 2 - 8.0 * np.arange(((2**planes - 1) ** 2 - 1) // 8 * n + 1)
        self.inverse = self._send(1 / np.sqrt(squares))
        self.shifts = self._send((2 if planes == 2 else 1) * np.arange(8, dtype=np.int32))
        self.masked = any(piece.mask is not None for piece in pieces)
        self._masks = [self._mask(piece) for piece in pieces]  # the table has addresses only
        origin = pieces[0].slab.words.data_ptr()
        table = [
            [(piece.slab.words.data_ptr() - origin) // 4, piece.slab.words.shape[1], (at - origin) // 4]
            for piece, at in zip(pieces, (mask.data_ptr() for mask in self._masks), strict=True)
        ]
        self.table = self._send(np.array(table, np.int64))

    def _send(self, array: npt.NDArray[Any]) -> torch.Tensor:
        return torch.from_numpy(array).to(self.device)

    def _mask(self, piece: SlabSearch) -> torch.Tensor:
        """The mask for the table: where only some slabs have one, a full one for the others."""
        if piece.mask is not None or not self.masked:
            return piece.slab.words if piece.mask is None else piece.mask
        words = -(-piece.slab.count // 32)
        return torch.full((words,), -1, dtype=torch.int32, device=self.device)

    def _launch(
        self, spans: Spans, block: int, out: torch.Tensor, *, addresses: torch.Tensor,
        firsts: torch.Tensor | None = None, exact: bool = False,
    ) -> None:  # fmt: skip
        piece = self.pieces[spans.slab or 0]
        masked = self.masked if spans.slab is None else piece.mask is not None
        groups = -(-len(spans.wheres) * spans.cells // ROWS)
        programs = min(groups, max(PROGRAMS, -(-groups // TURNS)))
        match_items[(programs,)](
            piece.slab.words, piece.slab.words.shape[1], self.table, piece.mask, addresses,
            spans.wheres, spans.lengths, spans.places, len(spans.wheres), programs,
            self.operand[block], self.sums[block], self.scales[block], self.inverse, out, firsts, self.shifts,
            self.n, self.planes, self.wide, int(masked), int(spans.slab is None), int(exact),
            int(not exact and spans.long is None), int(block > 0), spans.cells, ROWS,
            self.columns, SLAB_BITS, NEVER,
            num_warps=4 if exact else 1,
        )  # fmt: skip

    def scores(self, items: int) -> torch.Tensor:
        """float32 scores [items]; −∞ for items without candidates and for those of other devices."""
        scores = torch.full((items,), -torch.inf, dtype=torch.float32, device=self.device)
        for spans in self.share.spans:
            if spans.slab is not None and not self.pieces[spans.slab].candidates:
                continue
            for block in range(len(self.operand)):
                if spans.long is None:
                    self._launch(spans, block, scores, addresses=self.share.addresses)
                else:
                    own = (len(spans.wheres), self.columns)
                    maxima = torch.empty(own, dtype=torch.float32, device=self.device)
                    self._launch(spans, block, maxima, addresses=self.share.addresses)
                    size = (len(spans.long), self.columns)
                    best = torch.full(size, -torch.inf, dtype=torch.float32, device=self.device)
                    best.scatter_reduce_(0, spans.places[:, None].expand(own), maxima, "amax")
                    score = torch.where(best > -torch.inf, best * self.scales[block], -torch.inf).sum(1)
                    scores[spans.long] = score + (scores[spans.long] if block else 0)
        return scores

    def reaching(self, scores: torch.Tensor, k: int) -> Int64s:
        """The items that may be among the best k."""
        least = scores.new_tensor(-torch.inf)
        if k < len(scores):
            least = torch.topk(scores, k, sorted=False).values.min() - 2 * slack(self.vectors)
        found = torch.nonzero((scores >= least) & (scores > -torch.inf))
        return found[:, 0].cpu().numpy()

    def maxima(self, addresses: Int64s, wheres: Int64s, lengths: Int64s) -> tuple[Floats, Int64s]:
        """For each span of these addresses the maxima of q·k / ‖k‖ [spans, vectors], and its first candidate
        as an entry of the list; NEVER if there is none."""
        start, length = self._send(wheres), self._send(lengths.astype(np.int32))
        spans = Spans(None, start, length, start, max(CELLS))
        firsts = torch.empty(len(wheres), dtype=torch.int64, device=self.device)
        found, there = [], self._send(addresses)
        for block in range(len(self.operand)):
            out = torch.empty(len(wheres), self.columns, dtype=torch.float64, device=self.device)
            self._launch(spans, block, out, addresses=there, firsts=firsts, exact=True)
            found.append(out.cpu().numpy())
        return np.concatenate(found, axis=1)[:, : self.vectors], firsts.cpu().numpy()


def slack(vectors: int) -> float:
    """By how much a float32 score may be off. With u = 2⁻²⁴ and V vectors of cosines of at most 1:

    rsqrt ≤ 4u, its product, the rounding of 1/‖q‖ and its product     7u < 10⁻⁶ for each cosine
    adding a block of up to 32, in any order                            < 17u for each of them
    adding block after block                                            < u·V/32 for each of the V
    """
    return vectors * (1e-6 + 2.0**-23 * (vectors / 16 + 9))


def search(
    order: ItemOrder, plan: Plan, workers: Sequence[Worker], pieces: Sequence[Sequence[SlabSearch]],
    values: Values, k: int,
) -> ItemHits:  # fmt: skip
    """The best k items; `pieces` are the slabs of each worker that the plan was made for."""
    scans: list[ItemScan | None] = []
    started: list[tuple[Worker, ItemScan, torch.Tensor]] = []
    for worker, share, own in zip(workers, plan.shares, pieces, strict=True):
        scans.append(None)
        if own:
            with worker.active():
                scan = scans[-1] = ItemScan(worker.card, share, own, values)
                started.append((worker, scan, scan.scores(len(order.starts) - 1)))
    chosen = [plan.divided]
    for worker, scan, scores in started:
        with worker.active():
            chosen.append(scan.reaching(scores, k))
    best = ItemHits(np.zeros(0, np.int64), np.zeros(0), np.zeros(0, np.int64))
    for hits in exact(order, plan, workers, scans, np.unique(np.concatenate(chosen)), values):
        items, totals, firsts = (np.concatenate(columns) for columns in zip(best, hits, strict=True))
        by_item = np.argsort(items)
        best = best_items(items[by_item], totals[by_item], firsts[by_item], k)
    return best


def exact(
    order: ItemOrder, plan: Plan, workers: Sequence[Worker], scans: Sequence[ItemScan | None], chosen: Int64s,
    values: Values,
) -> Iterator[ItemHits]:  # fmt: skip
    """Some items, in parts, with their exact scores, in the order of items."""
    ends = np.cumsum(np.maximum(order.starts[chosen + 1] - order.starts[chosen], LEAST))
    parts = np.flatnonzero(np.diff(ends // EXACT_KEYWORDS)) + 1
    for items in np.split(chosen, parts) if chosen.size else ():
        at, begins = entries(order, items)
        which, offsets, sizes = cuts_of(order.starts[items + 1] - order.starts[items])
        positions = order.positions[at]
        found = plan.slabs.at(positions)
        best, first = np.full((len(which), len(values)), -np.inf), np.full(len(which), NEVER)
        for device, (worker, scan) in enumerate(zip(workers, scans, strict=True)):
            addresses = plan.slabs.addresses(positions, found, device)
            if scan is not None and np.any(addresses >= 0):
                with worker.active():
                    maxima, firsts = scan.maxima(addresses, begins[which] + offsets, sizes)
                best, first = np.maximum(best, maxima), np.minimum(first, firsts)
        starts = np.flatnonzero(np.diff(which, prepend=-1))
        best, first = np.maximum.reduceat(best, starts), np.minimum.reduceat(first, starts)
        some = first < NEVER
        yield ItemHits(items[some], add_up(best[some], values), positions[first[some]])
