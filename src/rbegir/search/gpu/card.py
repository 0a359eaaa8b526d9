"""The steps of exact top-k on one device: threshold by sample, one scan, final order.

    sample → histogram of cosines → threshold → scan: append what passes → order

These are the steps; `proof` puts them together. Nothing waits for the device between the query and the
result, so the last steps are launched while the scan runs.
"""

import math
from functools import cache, cached_property

import numpy as np
import numpy.typing as npt
import torch

from rbegir.search.gpu import dispatch, scans, tensorcore, threshold
from rbegir.search.gpu.dispatch import Method
from rbegir.search.gpu.order import Survivors
from rbegir.search.gpu.tensorcore import CompileError
from rbegir.search.gpu.threshold import BINS, EVERYTHING, UNIT
from rbegir.search.gpu.words import INTERPRETED, MANY, SlabSearch, lay_out_queries, sample_of, sample_size

DENSE = 1 << 16  # sample keywords per slab for the first threshold of few queries; for many a quarter of it
SURVIVOR_BYTES = 64  # per slot of survivors, with what sorting needs
BLOCK, WARPS = 256, 1  # of the popcount scan: see dev/LOG.md
STEPS, LONG_STEPS, LONG = 4, 32, 1 << 27  # blocks per program, and those from LONG keywords on
RISK = 1e-5  # the probability that a threshold lets fewer than k keywords pass


def power_of_two(x: float) -> int:
    """The least power of two that is at least x."""
    return 1 << max(0, math.ceil(math.log2(max(1.0, x))))


class Batch:
    """Queries int16 [Q, n] in the forms that the kernels take, made on the device when they are first used.

    `source` holds the queries on the host; what is captured as a graph reads it again at every replay.
    """

    def __init__(self, values: npt.NDArray[np.int16], device: torch.device, *, pinned: bool = False) -> None:
        self.host, self.device = values, device
        self.queries, self.n = values.shape
        self.largest = max(int(values.max(initial=0)), -int(values.min(initial=0)))
        self.mixed = int(not np.bitwise_and.reduce(values, axis=None) & 1)  # has even entries
        self.planes = max(1, (2 * self.largest + 1 if self.mixed else self.largest).bit_length())
        self.source = torch.from_numpy(values)
        if pinned:
            self.source = self.source.pin_memory()
        self._operands: dict[tuple[tensorcore.Kind, int], torch.Tensor] = {}

    @cached_property
    def values(self) -> torch.Tensor:  # [Q, n] int16
        return self.source.to(self.device, non_blocking=True)

    @cached_property
    def _forms(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        words = torch.empty(
            self.queries, self.planes + self.mixed, self.n // 32, dtype=torch.int32, device=self.device
        )
        scales = torch.empty(self.queries, dtype=torch.float32, device=self.device)
        sums = torch.empty(self.queries, dtype=torch.int32, device=self.device)
        lay_out_queries[(self.queries,)](
            self.values, words, scales, sums, self.n, self.planes, self.mixed, power_of_two(self.n // 32)
        )
        return words, scales, sums

    @property
    def words(self) -> torch.Tensor:  # [Q, planes + mixed, n/32] int32: sign planes
        return self._forms[0]

    @property
    def scales(self) -> torch.Tensor:  # [Q] float32: 1/‖q‖
        return self._forms[1]

    @property
    def sums(self) -> torch.Tensor:  # [Q] int32: Σq
        return self._forms[2]

    def operand(self, kind: tensorcore.Kind, part: slice) -> torch.Tensor:
        """Some of the queries as the operand of a tensor-core kernel, made once."""
        if (kind, part.start) not in self._operands:
            self._operands[kind, part.start] = tensorcore.arrange(self.values[part], kind, self.wide)
        return self._operands[kind, part.start]

    @property
    def wide(self) -> bool:
        return self.largest > 127


class Card:
    """The kernels of one shape on one device."""

    def __init__(self, n: int, planes: int, device: torch.device) -> None:
        self.n, self.planes, self.device = n, planes, device
        self.kinds = tensorcore.kinds_of(device)
        self.force: Method | None = None  # for tests and benchmarks

    def method(self, batch: Batch) -> Method:
        """The fastest scan for a batch, by the costs of `dispatch`."""
        return self.force or dispatch.choose(self._shape(batch), batch.queries, batch.largest, self.kinds)

    def cost(self, batch: Batch) -> float:
        """The expected milliseconds of a scan of 10⁹ keywords, by the costs of `dispatch`."""
        return dispatch.cost(self.method(batch), self._shape(batch), batch.queries)

    def _shape(self, batch: Batch) -> dispatch.ScanShape:
        return dispatch.ScanShape(self.n, self.planes, batch.planes + batch.mixed, batch.wide)

    def first_limits(
        self, pieces: list[SlabSearch], batch: Batch, k: int, boost: float = 1.0
    ) -> tuple[torch.Tensor, float]:
        """limits [Q, 3] from the sample, and the number of survivors per query aimed at, times `boost`."""
        limits = torch.empty(batch.queries, 3, dtype=torch.int64, device=self.device)
        dense = DENSE // 4 if batch.queries >= MANY else DENSE
        weight = max(p.slab.count / max(1, min(p.slab.drawn, dense)) for p in pieces)
        finest = max(p.slab.count / max(1, sampled(p, batch)) for p in pieces)
        refine = finest < weight and boost == 1
        final = boost * enough(k, finest if refine else weight)
        # enough must pass the first threshold for the second to lie among them
        first = enough(math.ceil(final), weight) if refine else final
        bins = torch.zeros(batch.queries, BINS, dtype=torch.float32, device=self.device)
        for piece in pieces:
            slab, drawn = piece.slab, min(piece.slab.drawn, dense)
            if drawn:
                threshold.histogram[(-(-drawn // 1024), batch.queries)](
                    slab.sample, slab.sample.shape[1], drawn, piece.mask, slab.places, batch.words,
                    batch.scales, slab.count / drawn, bins, self.n, self.planes, batch.planes, batch.mixed,
                    int(piece.mask is not None), BINS, 1024,
                )  # fmt: skip
        self._choose(bins, batch, first, weight, limits, False)
        if refine:
            self._refine(pieces, batch, first, final, finest, bins, limits)
        return limits, final

    def _refine(
        self, pieces: list[SlabSearch], batch: Batch, first: float, final: float, finest: float,
        bins: torch.Tensor, limits: torch.Tensor,
    ) -> None:  # fmt: skip
        """Replace the threshold by a better one, from what passes it in the whole sample. That is cheaper
        than a histogram of the whole sample, whose additions wait for each other. Where too little passed,
        the first threshold stays."""
        bins.zero_()
        room = power_of_two(2 * first / finest + 1024)
        found = self.survivors(batch, room)
        for piece in pieces:
            drawn = sampled(piece, batch)
            if not drawn:
                continue
            found.counts.zero_()
            self.scan(sample_of(piece, drawn), batch, limits, found)
            threshold.histogram_survivors[(-(-room // 1024), batch.queries)](
                found.counts, found.dots, found.norms, room, batch.scales,
                piece.slab.count / drawn, bins, BINS, 1024,
            )  # fmt: skip
        self._choose(bins, batch, final, finest, limits, True)

    def _choose(
        self, bins: torch.Tensor, batch: Batch, target: float, weight: float, limits: torch.Tensor, keep: bool
    ) -> None:
        target -= weight / 2  # half a keyword less, because float sums are not exact
        threshold.choose[(batch.queries,)](bins, batch.scales, target, limits, keep, BINS, UNIT, EVERYTHING)

    def survivors(self, batch: Batch, room: int) -> Survivors:
        """Empty survivors for a batch."""
        width = -(-batch.queries // 64) * 64 if batch.queries > 1 else 1
        return Survivors(
            torch.zeros(width, dtype=torch.int64, device=self.device),
            torch.empty(width, room, dtype=torch.int64, device=self.device),
            torch.empty(width, room, dtype=torch.int32, device=self.device),
            torch.empty(width, room, dtype=torch.int32, device=self.device),
        )

    def scan(
        self, piece: SlabSearch, batch: Batch, limits: torch.Tensor, found: Survivors,
        begin: int = 0, end: int | None = None,
    ) -> None:  # fmt: skip
        """Append what passes `limits` [Q, 3] among keywords [begin, end) of a slab; 64 divides begin."""
        end = piece.slab.count if end is None else end
        if end <= begin:
            return
        while (method := self.method(batch)) != "popcount" and method != "product":
            try:
                self._scan_tensorcore(method, piece, batch, limits, found, begin, end)
            except CompileError:
                if self.force:
                    raise
                self.kinds = tuple(kind for kind in self.kinds if kind != method)  # do without it
            else:
                return
        if method == "popcount":
            self._scan_popcount(piece, batch, limits, found, begin, end)
        else:
            self._scan_product(piece, batch, limits, found, begin, end)

    def _scan_popcount(
        self, piece: SlabSearch, batch: Batch, limits: torch.Tensor, found: Survivors, begin: int, end: int
    ) -> None:
        words, room = piece.slab.words, found.positions.shape[1]
        masked = int(piece.mask is not None)
        steps = LONG_STEPS if end - begin >= LONG else STEPS
        grid = (-(-(end - begin // BLOCK * BLOCK) // (BLOCK * steps)),)
        for q in range(batch.queries):
            scans.popcount_scan[grid](
                words, words.shape[1], begin, end, piece.base, piece.mask, q, batch.words, limits,
                found.counts, found.positions, found.dots, found.norms, room,
                self.n, self.planes, batch.planes, batch.mixed, masked, BLOCK, steps, num_warps=WARPS,
            )  # fmt: skip

    def _scan_product(
        self, piece: SlabSearch, batch: Batch, limits: torch.Tensor, found: Survivors, begin: int, end: int
    ) -> None:
        words, room = piece.slab.words, found.positions.shape[1]
        rows, columns = 128, 16 if batch.queries <= 16 else 32 if batch.queries <= 32 else 64
        width = -(-batch.queries // columns) * columns
        full = torch.zeros(width, self.n, dtype=torch.int16, device=self.device)
        full[: batch.queries] = batch.values
        parts = torch.stack([full >> 1, full & 1]) if batch.wide else full[None]  # [1 + wide, width, n]
        operand = parts.to(torch.int8).transpose(1, 2).contiguous()
        grid = (-(-(end - begin) // rows) * (width // columns),)
        scans.product_scan[grid](
            words, words.shape[1], begin, end, piece.base, piece.mask, operand, width, padded(limits, width),
            padded(batch.sums, width), found.counts, found.positions, found.dots, found.norms, room,
            self.n, self.planes, int(batch.wide), int(piece.mask is not None), rows, columns, num_warps=4,
        )  # fmt: skip

    def _scan_tensorcore(
        self, kind: tensorcore.Kind, piece: SlabSearch, batch: Batch, limits: torch.Tensor, found: Survivors,
        begin: int, end: int,
    ) -> None:  # fmt: skip
        shape = tensorcore.shape_for(kind, self.n, self.planes, batch.wide, batch.queries)
        group = tensorcore.group_size(shape)
        parts = [slice(q, min(batch.queries, q + group)) for q in range(0, batch.queries, group)]
        widths = [tensorcore.padded(kind, part.stop - part.start) for part in parts]
        for width in widths:  # compile all before any runs: after a failure nothing was appended
            tensorcore.kernel(shape, width, piece.slab.words.device.index)
        for part, width in zip(parts, widths, strict=True):
            test = tensorcore.make_test(shape, limits[part], batch.sums[part], width)
            tensorcore.launch(
                shape, piece, begin, end, batch.operand(kind, part), test, padded(limits[part], width),
                padded(batch.sums[part], width), Survivors(*(tensor[part.start :] for tensor in found)),
            )  # fmt: skip


def sampled(piece: SlabSearch, batch: Batch) -> int:
    """How many sampled keywords of a slab the thresholds of a batch come from."""
    return min(piece.slab.drawn, sample_size(piece.slab.count, batch.queries))


def arrived(answer: torch.Tensor) -> npt.NDArray[np.int64]:
    """An answer on the host: copied there, or waited for where a graph copies it to pinned memory.

    Take copies of what must last: the next replay of the graph writes to the same memory.
    """
    if answer.is_cuda:
        there, answer = answer, torch.empty(answer.shape, dtype=answer.dtype, pin_memory=True)
        answer.copy_(there, non_blocking=True)
    if not INTERPRETED:
        torch.cuda.current_stream().synchronize()
    return answer.numpy()


@cache
def enough(k: int, weight: float) -> float:
    """The number of survivors to aim at when a sampled keyword stands for `weight` keywords.

    The threshold is the m-th best of the sample. Fewer than k keywords pass it when the sample holds m or
    more of the best k, a Poisson number of mean k / weight; m is the least number that makes this improbable.
    """
    if weight <= 1:
        return float(k)
    mean = k / weight
    if mean > 1000:
        return weight * (mean + 4.3 * math.sqrt(mean) + 4)
    m, tail, term = 0, 1.0, math.exp(-mean)
    while tail > RISK:  # P(Poisson ≥ m)
        tail, m = tail - term, m + 1
        term *= mean / m
    return m * weight


def padded(tensor: torch.Tensor, width: int) -> torch.Tensor:
    """A tensor with rows up to `width`; new rows are limits that nothing passes, or zero sums."""
    if len(tensor) == width:
        return tensor.contiguous()
    full = torch.zeros(width, *tensor.shape[1:], dtype=tensor.dtype, device=tensor.device)
    full[: len(tensor)] = tensor
    if tensor.dim() == 2:
        full[len(tensor) :, 0], full[len(tensor) :, 1] = 1 << 44, 1
    return full
