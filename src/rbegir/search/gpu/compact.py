"""Few candidates among many keywords: gathered into a slab of their own, which is then searched (Triton).

With a filter that keeps 1 %, batch kernels, which read the mask last, stop at every other tile for keywords
that are not candidates, and a search for one query still reads every keyword. Instead:

    mask → bits of each block of words → where its list begins → positions → codes

The list is in the order of positions, so that the order of hits is the order of list entries, ties included.
Fetching reads whole 32-byte sectors, but at 1 % that is a tenth of a scan. `worth` says when it pays.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
import torch
import triton
import triton.language as tl

from rbegir.search.gpu import words
from rbegir.search.gpu.words import SlabSearch, popcount, with_sample

BLOCK = 1024  # words of a mask, or positions, per program
# milliseconds on one H200 (dev/LOG.md): listing 10⁹ keywords, fetching 10⁹ candidates, starting the kernels
LIST, FETCH, LAUNCHES = 0.35, 47.0, 0.3
FREE_SHARE = 4  # a gathered copy may take 1 / FREE_SHARE of the free memory


@triton.jit
def bits_of(mask, word, count, MASKED: tl.constexpr):
    """Words of a mask as unsigned numbers, bits from `count` on clear."""
    inside = word * 32 < count
    if MASKED:
        bits = tl.load(mask + word, mask=inside, other=0).to(tl.uint32, bitcast=True)
    else:
        bits = tl.where(inside, 0xFFFFFFFF, 0).to(tl.uint32)
    left = tl.minimum(tl.maximum(count - word * 32, 0), 32)  # keywords of the word
    return tl.where(left < 32, bits & ((1 << (left & 31)) - 1).to(tl.uint32), bits)


@triton.jit(do_not_specialize=["count"])
def count_bits(mask, count, totals, MASKED: tl.constexpr, BLOCK: tl.constexpr):
    """Candidates in each block of mask words: totals [blocks] int32."""
    word = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(totals + tl.program_id(0), tl.sum(popcount(bits_of(mask, word, count, MASKED)), 0))


@triton.jit(do_not_specialize=["count", "base", "first"])
def list_bits(
    mask, count, base: tl.int64, first: tl.int64, ends, totals, rows,
    MASKED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Positions of the candidates, in order: rows[first …]; ends are running totals [blocks] int64.

    A lane takes a word and writes its bits one after the other, the lowest first.
    """
    program = tl.program_id(0)
    word = program * BLOCK + tl.arange(0, BLOCK)
    bits = bits_of(mask, word, count, MASKED)
    own = popcount(bits)
    slot = first + tl.load(ends + program) - tl.load(totals + program)
    slot += (tl.cumsum(own, 0) - own).to(tl.int64)
    position = base + word.to(tl.int64) * 32
    while tl.max(bits.to(tl.int64), 0) > 0:
        left = bits != 0
        lowest = popcount((bits ^ (bits - 1)) >> 1)  # zeros below the lowest bit
        tl.store(rows + slot, position + lowest.to(tl.int64), mask=left)
        slot += left.to(tl.int64)
        bits = bits & (bits - left.to(tl.uint32))


@triton.jit(do_not_specialize=["base", "first", "count"])
def fetch(
    source, stride, base: tl.int64, rows, first: tl.int64, count, to, to_stride, STREAMS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Codes of the positions rows[first : first + count] → to[:, first : first + count]."""
    stride = stride.to(tl.int64)
    to_stride = to_stride.to(tl.int64)
    offset = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = offset < count
    at = tl.load(rows + first + offset, mask=inside, other=0) - base
    for stream in range(STREAMS):
        value = tl.load(source + stream * stride + at, mask=inside, other=0)
        tl.store(to + stream * to_stride + first + offset, value, mask=inside)


def gather(pieces: list[SlabSearch]) -> tuple[SlabSearch, torch.Tensor]:
    """All candidates as one slab, in the order of their positions, and these positions [count]."""
    total = sum(piece.candidates for piece in pieces)
    streams, device = pieces[0].slab.words.shape[0], pieces[0].slab.words.device
    rows = torch.empty(total, dtype=torch.int64, device=device)
    codes = torch.empty(streams, words.stride_of(total), dtype=torch.int32, device=device)
    first = 0
    for piece in sorted(pieces, key=lambda piece: piece.base):
        slab, masked = piece.slab, int(piece.mask is not None)
        blocks = -(-slab.count // (32 * BLOCK))
        totals = torch.empty(blocks, dtype=torch.int32, device=device)
        count_bits[(blocks,)](piece.mask, slab.count, totals, masked, BLOCK)
        list_bits[(blocks,)](
            piece.mask, slab.count, piece.base, first, totals.cumsum(0), totals, rows, masked, BLOCK
        )
        fetch[(-(-piece.candidates // BLOCK),)](
            slab.words, slab.words.shape[1], piece.base, rows, first, piece.candidates,
            codes, codes.shape[1], streams, BLOCK,
        )  # fmt: skip
        first += piece.candidates
    return SlabSearch(with_sample(codes, total), 0, None, total), rows


def room_for(pieces: list[SlabSearch]) -> bool:
    """Whether a gathered copy is small compared with the free memory."""
    slab = pieces[0].slab
    if slab.words.device.type != "cuda":
        return True
    size = sum(piece.candidates for piece in pieces) * (4 * slab.words.shape[0] + 16)
    free, _ = torch.cuda.mem_get_info(slab.words.device)
    cached = torch.cuda.memory_reserved(slab.words.device) - torch.cuda.memory_allocated(slab.words.device)
    return size < (free + cached) // FREE_SHARE


def worth(pieces: list[SlabSearch], scan_ms: float) -> bool:
    """Whether gathering the candidates first is faster than scanning everything, which takes `scan_ms` for
    10⁹ keywords of 64 dimensions and two planes (`dispatch`); both scale alike with longer codes."""
    if all(piece.mask is None for piece in pieces):
        return False
    keywords = sum(piece.slab.count for piece in pieces)
    share = sum(piece.candidates for piece in pieces) / keywords
    saved = scan_ms - (LIST + share * (FETCH + scan_ms))
    return saved * keywords / 1e9 > LAUNCHES and room_for(pieces)
