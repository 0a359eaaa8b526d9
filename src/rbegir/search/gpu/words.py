"""Keyword codes on the device: streams of 32-bit words, and slabs with the sample that thresholds come from.

The keywords of a slab are int32 [P · n/32, stride]: stream p·n/32 + j holds 32-dimension block j of
plane p of one keyword after the other, so that neighbouring lanes read neighbouring words, four at a time.
`stride` is count rounded up to PAD, so that kernels may read whole tiles.

Two planes x and y of a block are woven. With y′ = y rotated right by one bit, and E, O the even and odd bits,

    u = (x & O) | (y′ & E)        v = (x & E) | (y′ & O)

which the popcount scan undoes with one logic instruction per plane (x = (u & O) | (v & E), y′ likewise), and
in which the two bits of a dimension are neighbours, so that a tensor-core scan takes four 2-bit keyword
values out of a word with one shift and one mask: bits 2i + 1, 2i of u are dimension 2i + 1, bits 2i, 2i − 1
of v are dimension 2i. Plain planes would need four instructions there, plainly interleaved bits two shifts
more here.

Packed segments (`rbegir.codes.layout`: [plane, group, byte, 64 keywords]) are turned into this on the device.

The bit operations on words are one instruction each on a GPU, and plain arithmetic in Triton's interpreter.
The compiler does not always find the three-input logic instruction (`lop3` with the truth table of the
operation), and the popcount scan has little time to spare, so the compiled versions name it.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
import os
from dataclasses import dataclass
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"  # kernels run on the CPU, as in tests without a GPU
PAD = 1024
SHARE, FEW_SHARE = 64, 256  # a sample is 1 / SHARE of the keywords, for fewer than MANY queries 1 / FEW_SHARE
MANY = 16
LEAST_SAMPLE = 1 << 16  # but at least this many keywords


def streams(n: int, planes: int) -> int:
    """The number of 32-bit words per keyword."""
    return planes * n // 32


def stride_of(count: int) -> int:
    """The length of a stream of `count` keywords."""
    return -(-max(count, 1) // PAD) * PAD


@dataclass(frozen=True, eq=False)
class Slab:
    """Keywords on a device, and a random sample of them in random order."""

    words: torch.Tensor  # [streams, stride] int32
    count: int
    sample: torch.Tensor  # [streams, sample stride] int32
    places: torch.Tensor  # [drawn] int32: where the sample was drawn
    drawn: int


class SlabSearch(NamedTuple):
    """A slab in a search, and which of its keywords are candidates."""

    slab: Slab
    base: int  # position of its first keyword
    mask: torch.Tensor | None  # [ceil(count / 32)] int32
    candidates: int


def sample_size(count: int, queries: int) -> int:
    """How many sampled keywords of a slab the thresholds of a batch come from.

    With more of them, fewer keywords pass that are not among the best k. Ordering those takes time for every
    query of a batch, while the sample is scanned once.
    """
    return min(count, max(LEAST_SAMPLE, count // (SHARE if queries >= MANY else FEW_SHARE)))


def with_sample(lanes: torch.Tensor, count: int) -> Slab:
    """Words [streams, stride] of `count` keywords as a slab, with a random sample in random order."""
    drawn = sample_size(count, MANY)
    generator = torch.Generator(device=lanes.device).manual_seed(count)
    if drawn == count:
        places = torch.randperm(count, generator=generator, device=lanes.device, dtype=torch.int32)
    else:
        size = (drawn,)
        places = torch.randint(count, size, generator=generator, device=lanes.device, dtype=torch.int32)
    sample = torch.zeros(lanes.shape[0], stride_of(drawn), dtype=torch.int32, device=lanes.device)
    where = places.long()
    for stream in range(lanes.shape[0]):  # one at a time: indexing all at once would copy the indices
        sample[stream, :drawn] = lanes[stream][where]
    return Slab(lanes, count, sample, places, drawn)


def sample_of(piece: SlabSearch, drawn: int) -> SlabSearch:
    """The first of a slab's sample as a slab of its own; only the scores of what passes are used."""
    slab, mask, places = piece.slab, None, piece.slab.places[:drawn]
    if piece.mask is not None:
        bits = piece.mask[places >> 5] >> (places & 31) & 1
        full = torch.zeros(-(-drawn // 32) * 32, dtype=torch.int32, device=bits.device)
        full[:drawn] = bits
        shifts = torch.arange(32, dtype=torch.int32, device=bits.device)
        mask = (full.view(-1, 32) << shifts).sum(1, dtype=torch.int32)
    sampled = Slab(slab.sample, drawn, slab.sample, places, drawn)
    return SlabSearch(sampled, 0, mask, round(piece.candidates / slab.count * drawn))


@triton.jit
def _word_of(source, first, inside, plane_bytes, plane, block, N: tl.constexpr):
    """Bytes 4·block … 4·block + 3 of every keyword, put together."""
    group = first // 64
    at = source + plane * plane_bytes + (group * (N // 8) + 4 * block) * 64 + first % 64
    value = tl.load(at, mask=inside, other=0).to(tl.uint32)
    value |= tl.load(at + 64, mask=inside, other=0).to(tl.uint32) << 8
    value |= tl.load(at + 128, mask=inside, other=0).to(tl.uint32) << 16
    value |= tl.load(at + 192, mask=inside, other=0).to(tl.uint32) << 24
    return value


@triton.jit(do_not_specialize=["plane_bytes", "count", "start"])
def lay_out(
    source, plane_bytes, count, words, stride, start, N: tl.constexpr, P: tl.constexpr, BLOCK: tl.constexpr
):
    """Packed groups (uint8, planes `plane_bytes` apart) → words[:, start : start + count]."""
    BLOCKS: tl.constexpr = N // 32
    stride = stride.to(tl.int64)
    keyword = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    block = tl.program_id(1)
    inside = keyword < count
    first = keyword.to(tl.int64)
    to = words + block * stride + start + first
    if P == 2:
        x = _word_of(source, first, inside, plane_bytes, 0, block, N)
        y = _word_of(source, first, inside, plane_bytes, 1, block, N)
        y = (y >> 1) | (y << 31)
        u = (x & 0xAAAAAAAA) | (y & 0x55555555)
        v = (x & 0x55555555) | (y & 0xAAAAAAAA)
        tl.store(to, u.to(tl.int32, bitcast=True), mask=inside)
        tl.store(to + BLOCKS * stride, v.to(tl.int32, bitcast=True), mask=inside)
    else:
        for p in tl.static_range(P):
            x = _word_of(source, first, inside, plane_bytes, p, block, N)
            tl.store(to + p * BLOCKS * stride, x.to(tl.int32, bitcast=True), mask=inside)


@triton.jit
def lay_out_queries(
    values, words, scales, sums,
    N: tl.constexpr, PLANES: tl.constexpr, MIXED: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    """Queries [Q, N] as sign planes: words [Q, PLANES + MIXED, N / 32], scales [Q] = 1 / ‖q‖, sums [Q].

    MIXED: with even entries, so that planes are those of 2v − 1, and one more is all ones (see `scans`).
    BLOCKS: the power of two from N / 32 on.
    """
    q = tl.program_id(0)
    block = tl.arange(0, BLOCKS)
    bit = tl.arange(0, 32)
    inside = block < N // 32
    at = q * N + block[:, None] * 32 + bit[None, :]
    value = tl.load(values + at, mask=inside[:, None], other=0).to(tl.int32)
    odd = 2 * value - 1 if MIXED else value
    place = (odd + ((1 << PLANES) - 1)) >> 1  # 0 … 2^PLANES − 1
    out = words + q * ((PLANES + MIXED) * (N // 32)) + block
    for plane in tl.static_range(PLANES):
        signs = ((place >> (PLANES - 1 - plane)) & 1) << bit[None, :]
        tl.store(out + plane * (N // 32), tl.sum(signs, 1), mask=inside)
    if MIXED:
        tl.store(out + PLANES * (N // 32), tl.full([BLOCKS], -1, tl.int32), mask=inside)
    norm = tl.sum(tl.sum(value * value, 1), 0)
    tl.store(scales + q, (1.0 / tl.sqrt(tl.maximum(norm, 1).to(tl.float64))).to(tl.float32))
    tl.store(sums + q, tl.sum(tl.sum(value, 1), 0))


@triton.jit
def rotate_right(x):
    return (x >> 1) | (x << 31)


@triton.jit
def rotate_left(x):
    return (x << 1) | (x >> 31)


if INTERPRETED:

    @triton.jit
    def popcount(x):
        x = x - ((x >> 1) & 0x55555555)
        x = (x & 0x33333333) + ((x >> 2) & 0x33333333)
        x = (x + (x >> 4)) & 0x0F0F0F0F
        return ((x * 0x01010101) >> 24).to(tl.int32)

    @triton.jit
    def parity(x, y, z):
        return x ^ y ^ z

    @triton.jit
    def majority(x, y, z):
        return (x & y) | (z & (x | y))

    @triton.jit
    def odd_even(x, y):
        return (x & 0xAAAAAAAA) | (y & 0x55555555)

else:

    @triton.jit
    def popcount(x):
        return libdevice.popc(x.to(tl.int32, bitcast=True))

    @triton.jit
    def parity(x, y, z):
        return tl.inline_asm_elementwise(
            "lop3.b32 $0, $1, $2, $3, 0x96;", "=r,r,r,r", [x, y, z], dtype=tl.uint32, is_pure=True, pack=1
        )

    @triton.jit
    def majority(x, y, z):
        return tl.inline_asm_elementwise(
            "lop3.b32 $0, $1, $2, $3, 0xE8;", "=r,r,r,r", [x, y, z], dtype=tl.uint32, is_pure=True, pack=1
        )

    @triton.jit
    def odd_even(x, y):  # the odd bits of x, the even bits of y
        return tl.inline_asm_elementwise(
            "lop3.b32 $0, $1, $2, 0xAAAAAAAA, 0xE4;", "=r,r,r", [x, y], dtype=tl.uint32, is_pure=True, pack=1
        )
