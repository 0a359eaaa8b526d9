"""Which keywords lie in the memory of which device.

A segment never changes, so its buffer is uploaded once and stays until room is needed for another. Buffers
are known by their address; the array is kept alive with them, so that an address is not used twice. New
segments and new masks reach a device without touching what is there. What was not used longest leaves first.

Masks come with every search. Those that nobody can write to (an index freezes its own) are recognised by
their address, too, and kept: the bits of 10⁹ keywords are 125 MB, more time on the bus than a scan takes.

An upload goes in chunks through two pinned buffers: while one travels, the host fills the other from the
memory-mapped file, and the device turns what arrived into streams of words (`kernels.words`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from rbegir.codes.layout import GROUP, groups
from rbegir.search.gpu import words
from rbegir.search.gpu.shard import Shard, sample_size, with_sample

MAX_SHARD = (1 << 31) - (1 << 24)  # keywords: kernels count positions inside a shard with 31 bits
CHUNK = 1 << 26  # bytes of an upload chunk
MASKS = 32  # frozen masks that are kept
Bytes = npt.NDArray[np.uint8]
Mask = npt.NDArray[np.uint64]
Value = TypeVar("Value")
Progress = Callable[[int, int], None]


def frozen(array: Mask) -> bool:
    """Whether nobody can write to an array or to what it is a view of."""
    owner: object = array
    while isinstance(owner, np.ndarray):
        if owner.flags.writeable:
            return False
        owner = owner.base
    return owner is None


class OfMasks(Generic[Value]):
    """Something of each mask, made once for frozen ones; the least recently used leave first."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[int, int], tuple[Mask, Value]] = OrderedDict()

    def get(self, mask: Mask, make: Callable[[Mask], Value]) -> Value:
        """What was made of this mask, or what `make` makes of it now."""
        if not frozen(mask):
            return make(mask)
        key = (mask.ctypes.data, len(mask))
        if key not in self._kept:
            self._kept[key] = (mask, make(mask))  # the mask, too: its address must not be used again
            if len(self._kept) > MASKS:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        return self._kept[key][1]

    def clear(self) -> None:
        self._kept.clear()


class Range(NamedTuple):
    """Keywords [begin, end) of a packed buffer; begin is a multiple of 64."""

    packed: Bytes
    count: int  # type: ignore[assignment]  # of the whole buffer; hides tuple.count
    begin: int
    end: int

    @property
    def key(self) -> tuple[int, int, int]:
        return self.packed.ctypes.data, self.begin, self.end


def shard_bytes(count: int, n: int, planes: int) -> int:
    """Device memory of `count` keywords with their sample."""
    drawn = sample_size(count)
    return 4 * (words.streams(n, planes) * (words.stride_of(count) + words.stride_of(drawn)) + drawn)


class Residency:
    """The keywords on one device."""

    def __init__(self, n: int, planes: int, device: torch.device, memory: int | None = None) -> None:
        self.n, self.planes, self.device = n, planes, device
        self._limit = memory
        self._shards: dict[tuple[int, int, int], tuple[Shard, Range]] = {}  # the least recently used first
        self._masks = OfMasks[torch.Tensor]()
        self._staging: list[tuple[torch.Tensor, torch.cuda.Event | None]] = []

    @property
    def used(self) -> int:
        """Bytes of all shards."""
        return sum(shard_bytes(shard.count, self.n, self.planes) for shard, _ in self._shards.values())

    def free(self) -> int:
        """Bytes that shards may still take: a sixteenth of what is free stays for the search itself."""
        if self._limit is not None:
            return max(0, self._limit - self.used)
        if self.device.type != "cuda":
            return 1 << 40
        available, _ = torch.cuda.mem_get_info(self.device)
        cached = torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(self.device)
        return max(0, (available + cached) * 15 // 16 - (1 << 28))

    def fits(self, count: int) -> int:
        """How many of `count` keywords fit beside what is there; a multiple of 64 unless all do."""
        free = self.free()
        if shard_bytes(count, self.n, self.planes) <= free:
            return count
        low, high = 0, count // GROUP  # groups: `low` fit, `high` do not
        while high - low > 1:
            middle = (low + high) // 2
            if shard_bytes(middle * GROUP, self.n, self.planes) <= free:
                low = middle
            else:
                high = middle
        return low * GROUP

    def get(self, wanted: Range) -> Shard:
        """A shard that is there; it counts as just used."""
        found = self._shards.pop(wanted.key)
        self._shards[wanted.key] = found
        return found[0]

    def drop(self, unwanted: Range) -> None:
        """Let go of a shard."""
        del self._shards[unwanted.key]

    def ranges_of(self, packed: Bytes) -> list[Range]:
        """The ranges of a buffer that are there."""
        return [r for _, r in self._shards.values() if r.packed.ctypes.data == packed.ctypes.data]

    def evict(self, keep: set[tuple[int, int, int]], count: int) -> None:
        """Let go of shards that are not to be kept, the longest unused first, until `count` keywords fit."""
        for key in [key for key in self._shards if key not in keep]:
            if self.fits(count) == count:
                return
            del self._shards[key]

    def clear(self) -> None:
        """Forget everything, as after a fault."""
        self._shards.clear()
        self._masks.clear()
        self._staging.clear()

    def mask(self, mask: Mask) -> torch.Tensor:
        """A mask [words] as int32 [2 · words] on the device."""
        return self._masks.get(mask, self._send)

    def _send(self, mask: Mask) -> torch.Tensor:
        return torch.from_numpy(mask.view(np.int32).copy()).to(self.device, non_blocking=True)

    def add(self, wanted: Range, progress: Progress | None = None) -> Shard:
        """Upload a range and keep it."""
        shard = self.upload(wanted, progress)
        self._shards[wanted.key] = (shard, wanted)
        return shard

    def upload(self, wanted: Range, progress: Progress | None = None) -> Shard:
        """A range as a shard that nobody keeps. `progress` gets (keywords done, of how many)."""
        count = wanted.end - wanted.begin
        stride = words.stride_of(count)
        lanes = torch.zeros(words.streams(self.n, self.planes), stride, dtype=torch.int32, device=self.device)
        row = GROUP * self.n // 8  # bytes of a group of one plane
        source = wanted.packed.reshape(self.planes, groups(wanted.count), row)
        first, last = wanted.begin // GROUP, groups(wanted.end)
        step = max(1, min(last - first, CHUNK // (self.planes * row)))  # groups a chunk
        for turn, start in enumerate(range(first, last, step)):
            stop = min(last, start + step)
            size = self.planes * (stop - start) * row
            buffer = self._buffer(turn % 2, self.planes * step * row)
            host = buffer.numpy()[:size].reshape(self.planes, stop - start, row)
            np.copyto(host, source[:, start:stop])
            there = buffer[:size].to(self.device, non_blocking=True)
            at = (start - first) * GROUP
            here = min(count - at, (stop - start) * GROUP)
            words.lay_out[(-(-here // 256), self.n // 32)](
                there, size // self.planes, here, lanes, stride, at, self.n, self.planes, 256
            )
            self._sent(turn % 2)
            if progress:
                progress(at + here, count)
        return with_sample(lanes, count)

    def _buffer(self, which: int, size: int) -> torch.Tensor:
        """A pinned buffer that nothing travels from any more."""
        if self._staging and self._staging[0][0].numel() < size:
            self._staging.clear()
        while len(self._staging) < 2:
            pin = self.device.type == "cuda"
            self._staging.append((torch.empty(size, dtype=torch.uint8, pin_memory=pin), None))
        buffer, event = self._staging[which]
        if event is not None:
            event.synchronize()
        return buffer

    def _sent(self, which: int) -> None:
        if self.device.type == "cuda":
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record(torch.cuda.current_stream(self.device))
            self._staging[which] = (self._staging[which][0], event)
