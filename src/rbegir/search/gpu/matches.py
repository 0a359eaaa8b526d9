"""The best match of each query vector among the keywords of each item (Triton).

A program takes a few items at a time, CELLS keywords of each, as the rows of one 8-bit product with all
vectors:

    dot[rows, vectors] = Σ_d 2·u_d·q_d − (2^P − 1)·Σ q        u_d in 0 … 2^P − 1, int32, exact
    best[items, vectors] = max over keywords of dot · 1/‖k‖

so matches stay in registers and nothing is kept of other items. Values beyond ±63 come as two rows of the
operand, 2·u·q = 4·u·⌊q/2⌋ + u·2·(q mod 2).

Keywords are unpacked four values at a time: (x >> t) & 0x01010101 are the bits of dimensions t, t + 8, t + 16
and t + 24 as the bytes of a word, and with two planes, woven (`words`), (x >> 2t) & 0x03030303 are four 2-bit
values. `operand_of` gives the query the same order of dimensions. The compiler sees that the bytes are those
of one word, and unpacks into the registers of the product, because the shifts are loaded: shifts that it
could compute would keep the change of layout behind the unpacking, byte by byte through shared memory
(dev/LOG.md).

The kernel scores in float32, or with EXACT in float64, whose products have the bits of the CPU's: no sum
follows them that could be contracted. One warp per program keeps all rows of an item in it, so that its best
matches need no shared memory.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator,assignment"
# ruff: noqa: RUF005 (Triton has no unpacking of tuples)
import numpy as np
import numpy.typing as npt
import triton
import triton.language as tl

from rbegir.search.gpu.scans import norm_loss, plane_words, word
from rbegir.search.gpu.words import popcount, rotate_left
from rbegir.search.partition import Values

SLAB_BITS = 40  # an address is slab << SLAB_BITS | keyword
NEVER = 1 << 62  # an entry behind all others
ROWS = 64
NARROW = 63  # the largest value of a query whose double is 8 bits
FEW, MANY = 16, 32  # vectors of a launch


def columns_of(vectors: int) -> int:
    """The vectors of one launch."""
    return FEW if vectors <= FEW else MANY


def operand_of(values: Values, planes: int) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.int32]]:
    """A query [vectors, n] as int8 [blocks, 1 + wide, columns, n] and −(2^P − 1)·Σq as int32
    [blocks, columns]."""
    vectors, n = values.shape
    columns = columns_of(vectors)
    full = np.zeros((-(-vectors // columns) * columns, n), np.int16)
    full[:vectors] = values
    sums = -(2**planes - 1) * full.sum(axis=1, dtype=np.int32)
    wide = max(int(values.max()), -int(values.min())) > NARROW
    parts = np.stack([full >> 1, 2 * (full & 1)] if wide else [2 * full])  # [1 + wide, vectors, n]
    if planes == 2:  # dimension 8b + 2t + 1 − half → [half, t, b]
        parts = parts.reshape(*parts.shape[:2], n // 32, 4, 4, 2)[..., ::-1].swapaxes(-1, -3)
    else:  # 8b + t → [t, b]
        parts = parts.reshape(*parts.shape[:2], n // 32, 4, 8).swapaxes(-1, -2)
    blocks = parts.reshape(len(parts), -1, columns, n).swapaxes(0, 1)
    return np.ascontiguousarray(blocks.astype(np.int8)), sums.reshape(-1, columns)


@triton.jit
def unpacked(pointer, step, inside, shifts, P: tl.constexpr):
    """The 32 values of a block of every keyword [rows, 32] int8, and what its norm loses [rows]."""
    if P == 2:
        u = word(pointer, 0, inside)
        v = rotate_left(word(pointer + step, 0, inside))
        spread = 8 * popcount(((u ^ (u >> 1)) & 0x55555555) | ((v ^ (v << 1)) & 0xAAAAAAAA))
        shift = tl.load(shifts + tl.arange(0, 4))
        four = (tl.join(u, v)[:, :, None] >> shift[None, None, :]) & 0x03030303
    else:
        x0, x1, x2, x3 = plane_words(pointer, step, 0, inside, P)
        spread = norm_loss(x0, x1, x2, x3, P)
        shift = tl.load(shifts + tl.arange(0, 8))
        four = (x0[:, None] >> shift[None, :]) & 0x01010101
        if P > 2:
            four = 2 * four + ((x1[:, None] >> shift[None, :]) & 0x01010101)
            four = 2 * four + ((x2[:, None] >> shift[None, :]) & 0x01010101)
        if P > 3:
            four = 2 * four + ((x3[:, None] >> shift[None, :]) & 0x01010101)
    value = tl.join(tl.join(four, four >> 16), tl.join(four >> 8, four >> 24))
    return tl.reshape(value, [spread.shape[0], 32]).to(tl.int8), spread


@triton.jit
def hold_operand(rows, N: tl.constexpr, WIDE: tl.constexpr):
    """The operand of short narrow codes, to stay in registers; nothing for others."""
    held = ()
    if N <= 128 and not WIDE:
        for block in tl.static_range(N // 32):
            held = held + (tl.load(rows + block * 32),)
    return held


@triton.jit(do_not_specialize=["count", "programs"])
def match_items(
    words, stride, slabs, mask, addresses, wheres, lengths, places, count, programs,
    operand, sums, scales, inverse, out, firsts, shifts,
    N: tl.constexpr, P: tl.constexpr, WIDE: tl.constexpr, MASKED: tl.constexpr, GATHER: tl.constexpr,
    EXACT: tl.constexpr, WHOLE: tl.constexpr, MORE: tl.constexpr, CELLS: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, SLAB: tl.constexpr, NONE: tl.constexpr,
):  # fmt: skip
    """The best matches of `count` spans of keywords, each of one item, with a block of COLUMNS vectors.

    Span s has lengths[s] keywords from wheres[s] on: keywords of the slab `words`, or with GATHER entries of
    `addresses`, negative for what is not on this device. slabs [slabs, 3]: where the words of a slab are,
    counted from `words`, their stride, and where the mask is.

    WHOLE: out[places[s]] gets Σ best · scales, −∞ without a candidate; with MORE it is added. Else out
    [spans, COLUMNS] gets the best matches. EXACT: inverse[(n·(2^P − 1)² − ‖k‖²) / 8] are the factors, and
    firsts[s] gets the entry of the first candidate.
    """
    TOP: tl.constexpr = (1 << P) - 1
    BLOCKS: tl.constexpr = N // 32
    ITEMS: tl.constexpr = ROWS // CELLS
    # the bits of 3 · 2²² as float32; FLOAT + i are those of 3 · 2²² + i for |i| ≤ 2²², and |dot| is less
    FLOAT: tl.constexpr = 0x4B400000
    own_stride = stride.to(tl.int64)
    column = tl.arange(0, COLUMNS)
    cell = tl.arange(0, CELLS)
    rows = operand + tl.arange(0, 32)[:, None] + column[None, :] * N
    held = hold_operand(rows, N, WIDE)
    begin = tl.zeros([ROWS, COLUMNS], tl.int32) + tl.load(sums + column)[None, :]
    if not EXACT:
        begin += FLOAT
    group = tl.program_id(0)
    while group * ITEMS < count:
        span = group * ITEMS + tl.arange(0, ITEMS)
        real = span < count
        where = tl.load(wheres + span, mask=real, other=0)
        length = tl.load(lengths + span, mask=real, other=0)
        if EXACT:
            best = tl.full([ITEMS, COLUMNS], float("-inf"), tl.float64)
            first = tl.full([ITEMS], NONE, tl.int64)
        else:
            best = tl.full([ITEMS, COLUMNS], float("-inf"), tl.float32)
        longest = tl.max(length, 0)
        start = longest * 0
        while start < longest:
            inside = tl.reshape((start + cell)[None, :] < length[:, None], [ROWS])
            at = tl.reshape(where[:, None] + (start + cell)[None, :], [ROWS])
            if GATHER:
                address = tl.load(addresses + at, mask=inside, other=-1)
                inside = inside & (address >= 0)
                slab = tl.where(inside, address >> SLAB, 0)
                offset = tl.where(inside, address & ((1 << SLAB) - 1), 0)
                pointer = words + tl.load(slabs + 3 * slab) + offset
                step = tl.load(slabs + 3 * slab + 1)
                bits = words + tl.load(slabs + 3 * slab + 2)
            else:
                offset = at
                pointer = words + at
                step = own_stride
                bits = mask
            if MASKED:
                flags = tl.load(bits + (offset >> 5), mask=inside, other=0)
                inside = inside & (((flags >> (offset & 31).to(tl.int32)) & 1) != 0)
            dot = begin
            spread = tl.zeros([ROWS], tl.int32)
            if len(held) > 0:
                for block in tl.static_range(BLOCKS):
                    value, lost = unpacked(pointer + block * step, BLOCKS * step, inside, shifts, P)
                    spread += lost
                    dot = tl.dot(value, held[block], dot, out_dtype=tl.int32)
            else:
                for block in tl.range(0, BLOCKS):
                    value, lost = unpacked(pointer + block * step, BLOCKS * step, inside, shifts, P)
                    spread += lost
                    part = rows + block * 32
                    if WIDE:
                        dot = tl.dot((4 * value).to(tl.int8), tl.load(part), dot, out_dtype=tl.int32)
                        part += N * COLUMNS
                    dot = tl.dot(value, tl.load(part), dot, out_dtype=tl.int32)
            if EXACT:
                scale = tl.load(inverse + (spread >> 3))
                match = tl.where(inside[:, None], dot.to(tl.float64) * scale[:, None], float("-inf"))
                entry = tl.reshape(tl.where(inside, at, NONE), [ITEMS, CELLS])
                first = tl.minimum(first, tl.min(entry, 1))
            else:
                scale = tl.where(inside, tl.rsqrt((N * TOP * TOP - spread).to(tl.float32)), 0.0)
                bias = tl.where(inside, 0.0, float("-inf"))
                match = (dot.to(tl.float32, bitcast=True) - 12582912.0) * scale[:, None] + bias[:, None]
            best = tl.maximum(best, tl.max(tl.reshape(match, [ITEMS, CELLS, COLUMNS]), 1))
            start += CELLS
        if WHOLE:
            some = tl.max(best, 1) > float("-inf")
            kept = tl.where(some[:, None], best, 0.0)
            score = tl.sum(kept * tl.load(scales + column)[None, :], 1)
            score = tl.where(some, score, float("-inf"))
            place = tl.load(places + span, mask=real, other=0)
            if MORE:
                score += tl.load(out + place, mask=real, other=0.0)
            tl.store(out + place, score, mask=real)
        else:
            to = span.to(tl.int64)[:, None] * COLUMNS + column[None, :]
            tl.store(out + to, best, mask=real[:, None])
        if EXACT:
            tl.store(firsts + span, first, mask=real)
        group += programs
