"""Batches on tensor cores: the launcher of tensorcore.cu, and the layouts that it and its kernels agree on.

Queries become the B operand of the 8-bit products, in the order in which the unpacked keywords arrive. Of every
32-dimension block a lane t < 4 unpacks four bytes twice: half 0 holds dimensions 8b + 2t + 1 (b = byte 0 … 3), half 1
dimensions 8b + 2t. So position 16·half + 4t + b of a product's 32 stands for dimension 8b + 2t + 1 − half:

    mma    [tile of 8][pair of steps][lane = 4·query + t][step of the pair, half][b]     # 16 bytes a lane
    wgmma  [chunk][step][eight queries][half][query of the eight][t][b]                  # 128-byte cores

Three kernels, best first: `float8` (wgmma, sums in half precision: |u·q| ≤ 2048 only), `wgmma` (8-bit integers, up to
±127), `mma` (any card since Ampere, and the only one for queries beyond ±127: those are split in (2u)·⌊q/2⌋ + u·(q mod 2)).

The threshold of a pair depends on ‖k‖, but testing that for every pair costs three times the product. A warp therefore
takes the least norm among its keywords, rounded down to one of at most 65 buckets, and one integer floor a query for
that bucket; only what reaches the floor (one warp tile in some hundred) is tested exactly. Rejected: keywords sorted by
norm, which needs a permutation of 4 bytes a keyword.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

import torch

from rbegir.search.kernels.nvrtc import CompileError, Kernel, compile_cubin

Kind = Literal["mma", "wgmma", "float8"]
_NUMBER: dict[Kind, int] = {"mma": 1, "wgmma": 2, "float8": 3}
_CHUNK: dict[Kind, int] = {"mma": 8, "wgmma": 32, "float8": 64}
MAX_N = 256
SHARED_LIMIT = 227 * 1024
_PAD = 1 << 28  # a floor that no sum reaches


class _Scan(ctypes.Structure):
    """`struct Scan` of tensorcore.cu."""

    _fields_ = (
        [("words", ctypes.c_void_p)]
        + [(name, ctypes.c_int64) for name in ("stride", "begin", "end", "base")]
        + [(name, ctypes.c_void_p) for name in ("mask", "queries", "floors", "limits", "sums")]
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
        span, shift = self.n * ((2**self.planes - 1) ** 2 - 1), 0
        while span >> shift > 64:
            shift += 1
        return shift

    @property
    def buckets(self) -> int:
        return (self.n * ((2**self.planes - 1) ** 2 - 1) >> self.shift) + 1

    def shared(self, width: int) -> int:
        """Bytes of shared memory for a batch padded to `width` queries."""
        return width * self.n * (2 if self.wide else 1) + self.buckets * width * (2 if self.kind == "float8" else 4)


def shape_for(kind: Kind, n: int, planes: int, wide: bool) -> Shape:
    """The settings that measured best."""
    rows = 4 if n <= 128 and not wide else 2
    return Shape(n, planes, kind, wide, rows, *((256, 2) if kind == "mma" else (512, 1)))


def group_size(shape: Shape) -> int:
    """The largest batch for which queries and floors fit into shared memory."""
    size = 256
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
    # dimension 8b + 2t + (1 − half) of each step → [width, step, half, t, b]
    parts = raw.view(width, steps, 4, 4, 2).flip(4).permute(0, 1, 4, 3, 2)
    if kind == "mma":  # [tile, query, pair, step, half, t, b] → [tile, pair, query, t, step, half, b]
        return parts.reshape(width // 8, 8, steps // 2, 2, 2, 4, 4).permute(0, 2, 1, 5, 3, 4, 6).contiguous()
    chunk = _CHUNK[kind]  # [chunk, eight, query, step, half, t, b] → [chunk, step, eight, half, query, t, b]
    return parts.reshape(width // chunk, chunk // 8, 8, steps, 2, 4, 4).permute(0, 3, 1, 4, 2, 5, 6).contiguous()


@cache
def _cubin(shape: Shape, capability: tuple[int, int]) -> bytes:
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
    cubin = _cubin(shape, torch.cuda.get_device_capability(device))
    with torch.cuda.device(device):
        return Kernel(cubin, "scan", shape.shared(width))


def launch(
    shape: Shape,
    words: torch.Tensor,  # [streams, stride] int32
    begin: int,
    end: int,
    base: int,
    mask: torch.Tensor | None,  # [ceil(count / 32)] int32
    operand: torch.Tensor,  # from `arrange`
    floors: torch.Tensor,  # [buckets, width]
    limits: torch.Tensor,  # [width, 3] int64
    sums: torch.Tensor,  # [width] int32
    counts: torch.Tensor,  # [width] int32
    positions: torch.Tensor,  # [width, room] int64
    dots: torch.Tensor,
    norms: torch.Tensor,
    grid: int | None = None,
) -> None:
    """Append what passes of keywords [begin, end) to the survivors of every query."""
    width = floors.shape[1]
    device = words.device.index
    compiled = kernel(shape, width, device)
    if grid is None:
        multiprocessors = torch.cuda.get_device_properties(device).multi_processor_count
        grid = multiprocessors * max(1, compiled.blocks_per_multiprocessor(shape.threads))
    argument = _Scan(
        words.data_ptr(), words.shape[1], begin, end, base, None if mask is None else mask.data_ptr(),
        operand.data_ptr(), floors.data_ptr(), limits.data_ptr(), sums.data_ptr(),
        counts.data_ptr(), positions.data_ptr(), dots.data_ptr(), norms.data_ptr(),
        positions.shape[1], width // 8, width, shape.shift,
    )  # fmt: skip
    compiled.launch(grid, shape.threads, argument)
