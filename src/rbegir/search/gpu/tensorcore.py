"""Batches on tensor cores: the launcher of tensorcore.cu, and the layouts that it and its kernels agree on.

Queries become the B operand of the 8-bit products, in the order in which the unpacked keywords arrive. Of
every 32-dimension block a lane t < 4 unpacks four bytes twice. In half 0 byte b is dimension 8b + 2t + 1,
in half 1 dimension 8b + 2t (float8: 16·(t / 2) + 4b + 2·(t % 2) + 1 − half). Position 16·half + 4t + b of a
product's 32 stands for it:

    mma            [tile of 8][pair of steps][lane = 4·query + t][step of the pair, half][b]  # 16 bytes each
    wgmma, float8  [chunk][step][eight queries][half][query of the eight][t][b]               # 128-byte cores

Three kernels, best first: `float8` (sums in half precision: |q·k| ≤ 2048 and |q| ≤ 15 only), `wgmma` (8-bit
integers), both for Hopper, and `mma` (any card since Ampere). Queries beyond ±127 are split in (2u)·⌊q/2⌋ +
u·(q mod 2).

The threshold of a pair is proportional to ‖k‖. The Hopper kernels test just that, sum + slope·‖k‖ ≥ 0 with
a slope for each query: `float8` tests two pairs with one fused multiply-add that cuts off what is negative,
and half a logic instruction gathers the results; `wgmma` takes a multiply-add and half a maximum a pair.
Slopes and norms are rounded so that nothing is lost, and the few pairs that pass are tested again, exactly.
`mma` takes one floor a query for the least norm of a warp's keywords, which lets twenty times as many
through. Measured with that floor in all kernels: the three spent half their time on pairs that failed the
exact test. Rejected: keywords sorted by norm, which needs a permutation of 4 bytes a keyword.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal, NamedTuple

import torch

from rbegir.search.gpu import threshold
from rbegir.search.gpu.nvrtc import CompileError, Kernel, available, compile_cubin

Kind = Literal["mma", "wgmma", "float8"]
KINDS: tuple[Kind, ...] = ("mma", "wgmma", "float8")
_NUMBER: dict[Kind, int] = {"mma": 1, "wgmma": 2, "float8": 3}
_CHUNK: dict[Kind, int] = {"mma": 8, "wgmma": 32, "float8": 64}
MAX_N = 256
SHARED_LIMIT = 227 * 1024
FINE = 4  # of tensorcore.cu


class _Scan(ctypes.Structure):
    """`struct Scan` of tensorcore.cu."""

    _fields_ = (
        [("words", ctypes.c_void_p)]
        + [(name, ctypes.c_int64) for name in ("stride", "begin", "end", "base")]
        + [
            (name, ctypes.c_void_p)
            for name in ("mask", "queries", "floors", "slopes", "centres", "limits", "sums")
        ]
        + [(name, ctypes.c_void_p) for name in ("counts", "positions", "dots", "norms")]
        + [(name, ctypes.c_int) for name in ("room", "tiles", "width", "shift")]
    )


@dataclass(frozen=True)
class Shape:
    """What a kernel is compiled for."""

    n: int
    planes: int
    kind: Kind
    wide: bool = False
    rows: int = 4  # 16-row tiles a warp holds
    threads: int = 256
    blocks: int = 2

    @property
    def shift(self) -> int:
        """Norm buckets are 2^shift wide, at most 65 of them."""
        span, shift = self.n * ((1 << self.planes) * ((1 << self.planes) - 2)), 0
        while span >> shift > 64:
            shift += 1
        return shift

    @property
    def buckets(self) -> int:
        return (self.n * ((1 << self.planes) * ((1 << self.planes) - 2)) >> self.shift) + 1

    @property
    def unit(self) -> int:
        """A sum of the `wgmma` kernel is 2^unit · u·q."""
        return 8 - self.planes - self.wide

    def shared(self, width: int) -> int:
        """Bytes of shared memory for a batch padded to `width` queries."""
        test = {"float8": 2, "wgmma": 8, "mma": 4 * self.buckets}[self.kind]
        return width * (self.n * (2 if self.wide else 1) + test)


def fits(kind: Kind, n: int, planes: int, largest: int) -> bool:
    """Whether a kernel is right for a shape and queries of values up to `largest`."""
    if kind == "float8":
        return planes <= 3 and largest <= 15 and n * (2**planes - 1) * largest <= 2048
    return n <= MAX_N


def kinds_of(device: torch.device) -> tuple[Kind, ...]:
    """The kernels that a device should run; whether they compile is seen at first use."""
    if device.type != "cuda" or not available():
        return ()
    capability = torch.cuda.get_device_capability(device)
    if capability < (8, 0):
        return ()
    return ("float8", "wgmma", "mma") if capability == (9, 0) else ("mma",)


def shape_for(kind: Kind, n: int, planes: int, wide: bool) -> Shape:
    """The settings that measured best."""
    if kind == "mma":
        return Shape(n, planes, kind, wide, 2, 256, 4 if n <= 64 and not wide else 2)
    size = n * (1 + wide)
    rows = 4 if kind == "float8" and size <= 64 else 2
    return Shape(n, planes, kind, wide, rows, 512 if size <= 128 else 256, 1)


def group_size(shape: Shape) -> int:
    """The largest batch for which queries and floors fit into shared memory."""
    size = 256 if shape.kind == "mma" else 1024
    while shape.shared(size) * shape.blocks > SHARED_LIMIT and size > 64:
        size //= 2
    return size


def padded(kind: Kind, queries: int) -> int:
    """The batch size that a kernel works with."""
    chunk = _CHUNK[kind]
    return -(-queries // chunk) * chunk


def arrange(values: torch.Tensor, kind: Kind, wide: bool) -> torch.Tensor:
    """Queries int16 [Q, n] as the B operand, uint8."""
    count, n = values.shape
    width = padded(kind, count)
    full = torch.zeros(width, n, dtype=torch.int16, device=values.device)
    full[:count] = values
    if wide:
        full = torch.cat([full >> 1, full & 1], dim=1)  # [width, 2n]: floor(q / 2), q mod 2
    if kind == "float8":
        raw = (full.to(torch.float32) * 16).to(torch.float8_e4m3fn).view(torch.uint8)
    else:
        raw = full.to(torch.int8).view(torch.uint8)
    steps = full.shape[1] // 32
    # the dimensions of each step → [width, step, half, t, b]
    if kind == "float8":
        parts = (
            raw.view(width, steps, 2, 4, 2, 2)
            .flip(5)
            .permute(0, 1, 5, 2, 4, 3)
            .reshape(width, steps, 2, 4, 4)
        )
    else:
        parts = raw.view(width, steps, 4, 4, 2).flip(4).permute(0, 1, 4, 3, 2)
    if kind == "mma":  # [tile, query, pair, step, half, t, b] → [tile, pair, query, t, step, half, b]
        return parts.reshape(width // 8, 8, steps // 2, 2, 2, 4, 4).permute(0, 2, 1, 5, 3, 4, 6).contiguous()
    chunk = _CHUNK[kind]  # [chunk, eight, query, step, half, t, b] → [chunk, step, eight, half, query, t, b]
    return (
        parts.reshape(width // chunk, chunk // 8, 8, steps, 2, 4, 4).permute(0, 3, 1, 4, 2, 5, 6).contiguous()
    )


@cache
def cubin(shape: Shape, capability: tuple[int, int]) -> bytes:
    if shape.kind != "mma" and capability != (9, 0):
        raise CompileError(f"{shape.kind} kernels need a Hopper card, this one is of capability {capability}")
    architecture = "sm_90a" if capability == (9, 0) else f"sm_{capability[0]}{capability[1]}"
    defines = [
        f"RBE_N={shape.n}",
        f"RBE_P={shape.planes}",
        f"RBE_KERNEL={_NUMBER[shape.kind]}",
        f"RBE_WIDE={int(shape.wide)}",
        f"RBE_MT={shape.rows}",
        f"RBE_THREADS={shape.threads}",
        f"RBE_MINBLOCKS={shape.blocks}",
    ]
    source = Path(__file__).with_name("tensorcore.cu").read_text(encoding="utf-8")
    return compile_cubin(source, architecture, defines)


@cache
def kernel(shape: Shape, width: int, device: int) -> Kernel:
    """The compiled kernel for a shape and a padded batch, loaded on a device."""
    code = cubin(shape, torch.cuda.get_device_capability(device))
    with torch.cuda.device(device):
        return Kernel(code, "scan", shape.shared(width))


class Test(NamedTuple):
    """What a kernel compares sums with: floors [buckets, width], or slopes [width] and centres [width]."""

    width: int
    floors: torch.Tensor
    slopes: torch.Tensor
    centres: torch.Tensor


def make_test(shape: Shape, limits: torch.Tensor, sums: torch.Tensor, width: int) -> Test:
    """From limits [Q, 3] and Σq [Q] of the queries of a batch padded to `width`."""
    queries, device = len(limits), limits.device
    none = torch.empty(0, dtype=torch.int32, device=device)
    if shape.kind == "mma":
        floors = torch.empty(shape.buckets, width, dtype=torch.int32, device=device)
        threshold.floors[(shape.buckets, -(-width // 256))](
            limits, sums, floors, queries, width, shape.shift, shape.n, shape.planes, 256
        )
        return Test(width, floors, none, none)
    half = shape.kind == "float8"
    slopes = torch.empty(width, dtype=torch.float16 if half else torch.int32, device=device)
    centres = none if half else torch.empty(width, dtype=torch.int32, device=device)
    threshold.slopes[(-(-width // 256),)](
        limits, sums, slopes, centres, queries, width, shape.planes, shape.unit, FINE, half, 256
    )
    return Test(width, none, slopes, centres)


def launch(
    shape: Shape,
    words: torch.Tensor,  # [streams, stride] int32
    begin: int,
    end: int,
    base: int,
    mask: torch.Tensor | None,  # [ceil(count / 32)] int32
    operand: torch.Tensor,  # from `arrange`
    test: Test,
    limits: torch.Tensor,  # [width, 3] int64
    sums: torch.Tensor,  # [width] int32
    counts: torch.Tensor,  # [width] int64
    positions: torch.Tensor,  # [width, room] int64
    dots: torch.Tensor,
    norms: torch.Tensor,
    grid: int | None = None,
) -> None:
    """Append what passes of keywords [begin, end) to the survivors of every query."""
    width = test.width
    device = words.device.index
    compiled = kernel(shape, width, device)
    if grid is None:
        multiprocessors = torch.cuda.get_device_properties(device).multi_processor_count
        grid = multiprocessors * max(1, compiled.blocks_per_multiprocessor(shape.threads))
    argument = _Scan(
        words.data_ptr(), words.shape[1], begin, end, base, None if mask is None else mask.data_ptr(),
        operand.data_ptr(), test.floors.data_ptr(), test.slopes.data_ptr(),
        test.centres.data_ptr(), limits.data_ptr(), sums.data_ptr(),
        counts.data_ptr(), positions.data_ptr(), dots.data_ptr(), norms.data_ptr(),
        positions.shape[1], width // 8, width, shape.shift,
    )  # fmt: skip
    compiled.launch(grid, shape.threads, argument)
