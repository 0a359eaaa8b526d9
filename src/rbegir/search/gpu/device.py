"""One GPU of a search: its resident keywords, its kernels, its stream and its faults.

A segment never changes, so its buffer is uploaded once and stays until room is needed for another; slabs are
evicted least recently used first. A buffer is known by its address, and its array is kept alive so that the
address is not reused. New segments and masks are uploaded without touching what is resident.

Masks come with every search. Frozen ones, such as those of an index, are also known by their address and stay
on the device: the mask of 10⁹ keywords is 125 MB, which takes longer to upload than a scan takes.

An upload goes in chunks through two pinned buffers: while one is copied to the device, the host fills the
other from the memory-mapped file, and the device turns what arrived into streams of words (`words`).
"""

import os
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from triton.errors import TritonError

from rbegir.base.devices import gpu_number, names_of, split_name
from rbegir.base.masks import Mask, is_frozen
from rbegir.codes.layout import GROUP, groups
from rbegir.errors import DeviceError, InputError
from rbegir.search.backend import Progress
from rbegir.search.gpu import words
from rbegir.search.gpu.card import Card
from rbegir.search.gpu.replay import Replays
from rbegir.search.gpu.words import INTERPRETED, MANY, Slab, sample_size, with_sample

MAX_SLAB = (1 << 31) - (1 << 24)  # keywords: kernels count positions inside a slab with 31 bits
CHUNK = 1 << 26  # bytes of an upload chunk
MASKS = 32  # frozen masks that are kept
Bytes = npt.NDArray[np.uint8]
Value = TypeVar("Value")


def find_devices(names: str | Sequence[str]) -> list[torch.device]:
    """The devices of these names; "cpu" is one where Triton's interpreter runs the kernels."""
    found = []
    for name in names_of(names):
        if name == "interpreter" and os.environ.get("TRITON_INTERPRET") != "1":
            raise InputError("device 'interpreter' needs TRITON_INTERPRET=1 in the environment")
        if name in ("cpu", "interpreter") and INTERPRETED:
            found.append(torch.device("cpu"))
        elif split_name(name)[0] == "cpu":
            raise InputError(
                "device must be 'cuda' or 'cuda:N', got 'cpu'",
                hint="TRITON_INTERPRET=1 in the environment runs the kernels on the CPU, slowly",
            )
        else:
            found.append(torch.device("cuda", gpu_number(name)))
    return found


class MaskCache(Generic[Value]):
    """A value computed from each mask, kept for frozen masks; evicts the least recently used."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[int, int], tuple[Mask, Value]] = OrderedDict()

    def get(self, mask: Mask, make: Callable[[Mask], Value]) -> Value:
        """The value kept for this mask, or `make(mask)`."""
        if not is_frozen(mask):
            return make(mask)
        key = (mask.ctypes.data, len(mask))
        if key not in self._kept:
            self._kept[key] = (mask, make(mask))  # keeping the mask keeps its address from being reused
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


def slab_bytes(count: int, n: int, planes: int) -> int:
    """Bytes of device memory of `count` keywords with their sample."""
    drawn = sample_size(count, MANY)
    return 4 * (words.streams(n, planes) * (words.stride_of(count) + words.stride_of(drawn)) + drawn)


class Residency:
    """The slabs and masks that are resident on one device."""

    def __init__(self, n: int, planes: int, device: torch.device, memory: int | None = None) -> None:
        self.n, self.planes, self.device = n, planes, device
        self._limit = memory
        self._slabs: dict[tuple[int, int, int], tuple[Slab, Range]] = {}  # least recently used first
        self._masks = MaskCache[torch.Tensor]()
        self._staging: list[tuple[torch.Tensor, torch.cuda.Event | None]] = []

    @property
    def used(self) -> int:
        """Bytes of all slabs."""
        return sum(slab_bytes(slab.count, self.n, self.planes) for slab, _ in self._slabs.values())

    def free(self) -> int:
        """Bytes available to more slabs: a sixteenth of the free memory is left to the search itself."""
        if self._limit is not None:
            return max(0, self._limit - self.used)
        if self.device.type != "cuda":
            return 1 << 40
        available, _ = torch.cuda.mem_get_info(self.device)
        cached = torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(self.device)
        return max(0, (available + cached) * 15 // 16 - (1 << 28))

    def fits(self, count: int) -> int:
        """How many of `count` more keywords fit into the memory; a multiple of 64 unless all do."""
        free = self.free()
        if slab_bytes(count, self.n, self.planes) <= free:
            return count
        sizes = range(0, count // GROUP * GROUP, GROUP)
        fitting = bisect_right(sizes, free, key=lambda size: slab_bytes(size, self.n, self.planes))
        return max(0, fitting - 1) * GROUP

    def get(self, wanted: Range) -> Slab:
        """A resident slab; it counts as just used."""
        found = self._slabs.pop(wanted.key)
        self._slabs[wanted.key] = found
        return found[0]

    def drop(self, unwanted: Range) -> None:
        del self._slabs[unwanted.key]

    def ranges_of(self, packed: Bytes) -> list[Range]:
        """The ranges of a buffer that are resident."""
        return [r for _, r in self._slabs.values() if r.packed.ctypes.data == packed.ctypes.data]

    def evict(self, keep: set[tuple[int, int, int]], count: int) -> None:
        """Evict slabs that are not in `keep`, least recently used first, until `count` keywords fit."""
        for key in [key for key in self._slabs if key not in keep]:
            if self.fits(count) == count:
                return
            del self._slabs[key]

    def clear(self) -> None:
        """Evict everything, as after a fault."""
        self._slabs.clear()
        self._masks.clear()
        self._staging.clear()

    def mask(self, mask: Mask) -> torch.Tensor:
        """A mask [words] as int32 [2 · words] on the device."""
        return self._masks.get(mask, self._send)

    def _send(self, mask: Mask) -> torch.Tensor:
        return torch.from_numpy(mask.view(np.int32).copy()).to(self.device, non_blocking=True)

    def add(self, wanted: Range, progress: Progress | None = None) -> Slab:
        """Upload a range; it becomes resident."""
        slab = self.upload(wanted, progress)
        self._slabs[wanted.key] = (slab, wanted)
        return slab

    def upload(self, wanted: Range, progress: Progress | None = None) -> Slab:
        """Upload a range as a slab that does not become resident. `progress` gets (keywords done, all)."""
        count = wanted.end - wanted.begin
        stride = words.stride_of(count)
        lanes = torch.zeros(words.streams(self.n, self.planes), stride, dtype=torch.int32, device=self.device)
        row = GROUP * self.n // 8  # bytes of a group of one plane
        source = wanted.packed.reshape(self.planes, groups(wanted.count), row)
        first, last = wanted.begin // GROUP, groups(wanted.end)
        step = max(1, min(last - first, CHUNK // (self.planes * row)))  # groups per chunk
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
        """A pinned buffer from which nothing is being copied."""
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


class Worker:
    """One device: its kernels, its resident keywords, its stream."""

    def __init__(self, n: int, planes: int, device: torch.device, memory: int | None) -> None:
        self.device = device
        self.card = Card(n, planes, device)
        self.replays = Replays(self.card)
        self.resident = Residency(n, planes, device, memory)
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]

    def forget(self) -> None:
        """Drop all state after a fault."""
        self.resident.clear()
        self.replays.clear()

    @contextmanager
    def active(self) -> Iterator[None]:
        """Work on this device and its stream; faults of the device are raised as DeviceError."""
        try:
            with torch.cuda.stream(self.stream) if self.stream else nullcontext():  # and of its device
                yield
        except (RuntimeError, OSError, TritonError) as error:
            self.forget()
            reason = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
            if isinstance(error, torch.OutOfMemoryError):
                what = "ran out of memory during a search"
                hint = "search with a smaller k or fewer queries at once, or free memory on the device"
            elif isinstance(error, TritonError):  # an older GPU, or a driver too old for this Triton
                what = f"cannot run the search kernels: {reason}"
                hint = "use device='cpu', or another version of triton and of the driver"
            else:
                what = f"failed during a search: {reason}"
                hint = "open the index again, in a new process if that fails too, or use device='cpu'"
            raise DeviceError(f"{self.device} {what}", hint=hint) from error
