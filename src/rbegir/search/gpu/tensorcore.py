"""Batches on tensor cores: compiling and launching tensorcore.cu, and the layouts that both sides agree on.

Queries become the B operand of the 8-bit products, in the order in which the unpacked keywords arrive. Of
every 32-dimension block a lane t < 4 unpacks four bytes twice. In half 0 byte b is dimension 8b + 2t + 1,
in half 1 dimension 8b + 2t (float8: 16·(t / 2) + 4b + 2·(t % 2) + 1 − half). Position 16·half + 4t + b of a
product's 32 stands for it:

    mma            [tile of 8][pair of steps][lane = 4·query + t][step of the pair, half][b]  # 16 bytes each
    wgmma, float8  [chunk][step][eight queries][half][query of the eight][t][b]               # 128-byte cores

Three kernels, best first: `float8` (sums in half precision: |q·k| ≤ 2048 and |q| ≤ 15 only), `wgmma` (8-bit
integers), both for Hopper, and `mma` (any card since Ampere). Queries beyond ±127 are split in (2u)·⌊q/2⌋ +
u·(q mod 2).

The threshold of a pair is proportional to ‖k‖. The Hopper kernels test sum + slope·‖k‖ ≥ 0 with a slope for
each query, rounded so that nothing is lost, and the few pairs that pass are tested again, exactly. `mma`
takes one floor per query for the least norm of a warp's keywords, which lets twenty times as many through.
Rejected: keywords sorted by norm, which needs a permutation of 4 bytes per keyword.

The CUDA C++ is compiled at run time with the libnvrtc that torch ships, called through ctypes. Rejected:
`torch.cuda._compile_kernel` (private, only since 2.9), cupy and cuda.core (one more dependency each),
shipping compiled binaries (one per GPU generation).
"""

import ctypes
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal, NamedTuple

import torch

from rbegir.errors import DeviceError
from rbegir.search.gpu import threshold
from rbegir.search.gpu.order import Survivors
from rbegir.search.gpu.words import SlabSearch

Kind = Literal["mma", "wgmma", "float8"]
_NUMBER: dict[Kind, int] = {"mma": 1, "wgmma": 2, "float8": 3}
CHUNK: dict[str, int] = {"mma": 8, "wgmma": 32, "float8": 64}  # queries that a kernel takes together
MAX_N = 256
SHARED_LIMIT = 227 * 1024
FINE, KEPT_BYTES = 4, 4 + 12 * 96  # of tensorcore.cu: FINE, sizeof(Kept)
_MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES


class CompileError(DeviceError):
    """A kernel could not be compiled or loaded for this GPU."""


@cache
def _nvrtc() -> ctypes.CDLL:
    major = (torch.version.cuda or "12").split(".")[0]
    name = f"libnvrtc.so.{major}"
    roots = {Path(torch.__file__).parents[1], Path(sysconfig.get_paths()["purelib"])}
    found = [str(p) for root in sorted(roots) for p in sorted((root / "nvidia").glob(f"*/lib/{name}"))]
    for candidate in [name, *found, f"/usr/local/cuda/lib64/{name}"]:
        try:
            return ctypes.CDLL(candidate)
        except OSError:
            continue
    raise CompileError(f"{name} was not found", hint="install the CUDA build of torch, which brings it")


def available() -> bool:
    """Whether NVRTC can be loaded."""
    try:
        _nvrtc()
    except CompileError:
        return False
    return True


def compile_cubin(source: str, architecture: str, defines: Sequence[str]) -> bytes:
    """Machine code for an architecture such as sm_90a; needs no GPU."""
    nvrtc = _nvrtc()
    program = ctypes.c_void_p()
    if nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"scan.cu", 0, None, None):
        raise CompileError("NVRTC refused the kernel source")
    try:
        options = [f"--gpu-architecture={architecture}", "--std=c++17", *(f"-D{d}" for d in defines)]
        array = (ctypes.c_char_p * len(options))(*(o.encode() for o in options))
        failed = nvrtc.nvrtcCompileProgram(program, len(options), array)
        size = ctypes.c_size_t()
        if failed:
            nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
            log = ctypes.create_string_buffer(size.value)
            nvrtc.nvrtcGetProgramLog(program, log)
            first = next((line for line in log.value.decode().splitlines() if "error" in line), "no message")
            raise CompileError(f"the kernel does not compile for {architecture}: {first}")
        nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size))
        cubin = ctypes.create_string_buffer(size.value)
        nvrtc.nvrtcGetCUBIN(program, cubin)
        return cubin.raw
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


class Kernel:
    """A function of a cubin, loaded on the current device of torch."""

    def __init__(self, cubin: bytes, name: str, shared: int) -> None:
        self._cuda = ctypes.CDLL("libcuda.so.1")
        module, self._function = ctypes.c_void_p(), ctypes.c_void_p()
        torch.cuda.current_stream()  # makes the primary context current
        self._check(self._cuda.cuModuleLoadData(ctypes.byref(module), cubin))
        self._check(self._cuda.cuModuleGetFunction(ctypes.byref(self._function), module, name.encode()))
        self.shared = shared
        self._check(self._cuda.cuFuncSetAttribute(self._function, _MAX_DYNAMIC_SHARED, shared))

    def blocks_per_multiprocessor(self, threads: int) -> int:
        count = ctypes.c_int()
        self._check(
            self._cuda.cuOccupancyMaxActiveBlocksPerMultiprocessor(
                ctypes.byref(count), self._function, threads, ctypes.c_size_t(self.shared)
            )
        )
        return count.value

    def launch(self, grid: int, threads: int, argument: ctypes.Structure) -> None:
        """Run on torch's current stream with one struct as the only argument."""
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        parameters = (ctypes.c_void_p * 1)(ctypes.addressof(argument))
        status = self._cuda.cuLaunchKernel(
            self._function, grid, 1, 1, threads, 1, 1, self.shared, stream, parameters, None
        )
        if status:  # not a CompileError: there is no other kernel to fall back to
            raise DeviceError(f"the driver did not start a kernel: {self._text(status)}")

    def _check(self, status: int) -> None:
        if status:
            raise CompileError(f"the driver refused a kernel: {self._text(status)}")

    def _text(self, status: int) -> str:
        text = ctypes.c_char_p()
        self._cuda.cuGetErrorString(status, ctypes.byref(text))
        return (text.value or b"unknown error").decode()


class _Scan(ctypes.Structure):
    """`struct Scan` of tensorcore.cu."""

    _fields_ = [
        (name, kind)
        for kind, names in (
            (ctypes.c_void_p, "words"),
            (ctypes.c_int64, "stride begin end base"),
            (ctypes.c_void_p, "mask queries floors slopes centres limits sums counts positions dots norms"),
            (ctypes.c_int, "room tiles width shift kept"),
        )
        for name in names.split()
    ]


@dataclass(frozen=True)
class KernelShape:
    """The constants that a kernel is compiled with."""

    n: int
    planes: int
    kind: Kind
    wide: bool = False
    rows: int = 4  # 16-row tiles per warp
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

    def queries_bytes(self, width: int) -> int:
        """Bytes of shared memory for `width` queries and what their sums are compared with."""
        test = {"float8": 2, "wgmma": 8, "mma": 4 * self.buckets}[self.kind]
        return width * (self.n * (2 if self.wide else 1) + test)

    def shared(self, width: int) -> int:
        """Bytes of shared memory for a batch padded to `width` queries."""
        kept = 0 if self.kind == "mma" else self.threads // 32 * KEPT_BYTES
        return self.queries_bytes(width) + kept


def fits(kind: Kind, n: int, planes: int, largest: int) -> bool:
    """Whether a kernel supports a shape and queries of values up to `largest`."""
    if kind == "float8":
        return planes <= 3 and largest <= 15 and n * (2**planes - 1) * largest <= 2048
    return n <= MAX_N


def kinds_of(device: torch.device) -> tuple[Kind, ...]:
    """The kernels for a device; whether they compile is known at first use."""
    if device.type != "cuda" or not available():
        return ()
    capability = torch.cuda.get_device_capability(device)
    if capability < (8, 0):
        return ()
    return ("float8", "wgmma", "mma") if capability == (9, 0) else ("mma",)


def shape_for(kind: Kind, n: int, planes: int, wide: bool, queries: int) -> KernelShape:
    """The settings of a kernel that measured fastest."""
    if kind == "mma":
        return KernelShape(n, planes, kind, wide, 2, 256, 4 if n <= 64 and not wide else 2)
    size = n * (1 + wide)
    if kind == "float8" and size <= 64:
        return KernelShape(n, planes, kind, wide, 4, 384 if queries >= 256 else 512, 1)
    return KernelShape(n, planes, kind, wide, 2, 512 if size <= 128 else 256, 1)


def group_size(shape: KernelShape) -> int:
    """The largest batch for which queries and floors fit into shared memory."""
    size = 256 if shape.kind == "mma" else 1024
    while shape.shared(size) * shape.blocks > SHARED_LIMIT and size > 64:
        size //= 2
    return size


def padded(kind: Kind, queries: int) -> int:
    """The number of queries padded to what a kernel works with."""
    chunk = CHUNK[kind]
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
        parts = raw.view(width, steps, 2, 4, 2, 2).flip(5).permute(0, 1, 5, 2, 4, 3)
    else:
        parts = raw.view(width, steps, 4, 4, 2).flip(4).permute(0, 1, 4, 3, 2)
    if kind == "mma":  # [tile, query, pair, step, half, t, b] → [tile, pair, query, t, step, half, b]
        return parts.reshape(width // 8, 8, steps // 2, 2, 2, 4, 4).permute(0, 2, 1, 5, 3, 4, 6).contiguous()
    chunk = CHUNK[kind]  # [chunk, eight, query, step, half, t, b] → [chunk, step, eight, half, query, t, b]
    parts = parts.reshape(width // chunk, chunk // 8, 8, steps, 2, 4, 4)
    return parts.permute(0, 3, 1, 4, 2, 5, 6).contiguous()


@cache
def cubin(shape: KernelShape, capability: tuple[int, int]) -> bytes:
    if shape.kind != "mma" and capability != (9, 0):
        raise CompileError(f"{shape.kind} kernels need a Hopper GPU, this one has capability {capability}")
    architecture = "sm_90a" if capability == (9, 0) else f"sm_{capability[0]}{capability[1]}"
    names = ("N", "P", "KERNEL", "WIDE", "MT", "THREADS", "MINBLOCKS")
    number, wide = _NUMBER[shape.kind], int(shape.wide)
    values = (shape.n, shape.planes, number, wide, shape.rows, shape.threads, shape.blocks)
    defines = [f"RBE_{name}={value}" for name, value in zip(names, values, strict=True)]
    source = Path(__file__).with_name("tensorcore.cu").read_text(encoding="utf-8")
    return compile_cubin(source, architecture, defines)


@cache
def kernel(shape: KernelShape, width: int, device: int) -> Kernel:
    """The compiled kernel for a shape and a padded batch, loaded on a device."""
    code = cubin(shape, torch.cuda.get_device_capability(device))
    with torch.cuda.device(device):
        return Kernel(code, "scan", shape.shared(width))


class PassTest(NamedTuple):
    """The numbers that a kernel compares sums with: floors [buckets, width], or slopes, centres [width]."""

    width: int
    floors: torch.Tensor
    slopes: torch.Tensor
    centres: torch.Tensor


def make_test(shape: KernelShape, limits: torch.Tensor, sums: torch.Tensor, width: int) -> PassTest:
    """The test for limits [Q, 3] and Σq [Q] of the queries of a batch padded to `width`."""
    queries, device = len(limits), limits.device
    none = torch.empty(0, dtype=torch.int32, device=device)
    if shape.kind == "mma":
        floors = torch.empty(shape.buckets, width, dtype=torch.int32, device=device)
        threshold.floors[(shape.buckets, -(-width // 256))](
            limits, sums, floors, queries, width, shape.shift, shape.n, shape.planes, 256
        )
        return PassTest(width, floors, none, none)
    half = shape.kind == "float8"
    slopes = torch.empty(width, dtype=torch.float16 if half else torch.int32, device=device)
    centres = none if half else torch.empty(width, dtype=torch.int32, device=device)
    threshold.slopes[(-(-width // 256),)](
        limits, sums, slopes, centres, queries, width, shape.planes, shape.unit, FINE, half, 256
    )
    return PassTest(width, none, slopes, centres)


def launch(
    shape: KernelShape,
    piece: SlabSearch,
    begin: int,
    end: int,
    operand: torch.Tensor,  # from `arrange`
    test: PassTest,
    limits: torch.Tensor,  # [width, 3] int64
    sums: torch.Tensor,  # [width] int32
    found: Survivors,
) -> None:
    """Append the keywords of [begin, end) that pass to the survivors of every query."""
    words, mask, width = piece.slab.words, piece.mask, test.width
    device = words.device.index
    compiled = kernel(shape, width, device)
    multiprocessors = torch.cuda.get_device_properties(device).multi_processor_count
    grid = multiprocessors * max(1, compiled.blocks_per_multiprocessor(shape.threads))
    argument = _Scan(
        words.data_ptr(), words.shape[1], begin, end, piece.base, None if mask is None else mask.data_ptr(),
        operand.data_ptr(), test.floors.data_ptr(), test.slopes.data_ptr(),
        test.centres.data_ptr(), limits.data_ptr(), sums.data_ptr(),
        found.counts.data_ptr(), found.positions.data_ptr(), found.dots.data_ptr(), found.norms.data_ptr(),
        found.positions.shape[1], width // 8, width, shape.shift, shape.queries_bytes(width),
    )  # fmt: skip
    compiled.launch(grid, shape.threads, argument)
