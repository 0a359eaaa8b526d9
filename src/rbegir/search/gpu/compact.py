"""Few candidates among many keywords: gathered once, then searched as if there were nothing else (Triton).

A filter that keeps 1 % lowers the threshold of the best k so far that the batch kernels, which look at the
mask last, stop at every other tile for keywords that may not be found; and one query still steps over every
keyword. Instead the set bits of all masks become a list of positions, the codes there are fetched into a
shard of their own, and that is searched:

    mask → bits of each block of words → where its list begins → positions → codes

The list is in the order of positions, so that the order of hits, ties included, is the order of list
entries; the entries of the k hits are looked up at the end. Fetching reads whole 32-byte sectors, eight
words for one that is wanted, yet at 1 % that is a tenth of a scan. `worth` says when it pays.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
from __future__ import annotations

import torch
import triton
import triton.language as tl

from rbegir.search.gpu import words
from rbegir.search.gpu.bits import popcount
from rbegir.search.gpu.shard import Piece, with_sample

BLOCK = 1024  # words of a mask, or positions, that a program takes
# milliseconds on one H200 (dev/LOG.md): listing 10⁹ keywords, fetching 10⁹ candidates, starting the kernels
LIST, FETCH, LAUNCHES = 0.35, 47.0, 0.3
FREE_SHARE = 4  # a gathered copy may take this part of the free memory


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
    mask,
    count,
    base: tl.int64,
    first: tl.int64,
    ends,
    totals,
    rows,
    MASKED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Positions of the candidates, in order: rows[first …]; ends are running totals [blocks] int64.

    A lane takes a word and writes its bits one after the other, the lowest first.
    """
    program = tl.program_id(0)
    word = program * BLOCK + tl.arange(0, BLOCK)
    bits = bits_of(mask, word, count, MASKED)
    own = popcount(bits)
    slot = (
        first + tl.load(ends + program) - tl.load(totals + program) + (tl.cumsum(own, 0) - own).to(tl.int64)
    )
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


def gather(pieces: list[Piece]) -> tuple[Piece, torch.Tensor]:
    """All candidates of pieces in the order of their positions as one piece, and their positions [count]."""
    total = sum(piece.candidates for piece in pieces)
    streams, device = pieces[0].shard.words.shape[0], pieces[0].shard.words.device
    rows = torch.empty(total, dtype=torch.int64, device=device)
    codes = torch.empty(streams, words.stride_of(total), dtype=torch.int32, device=device)
    first = 0
    for piece in sorted(pieces, key=lambda piece: piece.base):
        shard, masked = piece.shard, int(piece.mask is not None)
        blocks = -(-shard.count // (32 * BLOCK))
        totals = torch.empty(blocks, dtype=torch.int32, device=device)
        count_bits[(blocks,)](piece.mask, shard.count, totals, masked, BLOCK)
        list_bits[(blocks,)](
            piece.mask, shard.count, piece.base, first, totals.cumsum(0), totals, rows, masked, BLOCK
        )
        fetch[(-(-piece.candidates // BLOCK),)](
            shard.words, shard.words.shape[1], piece.base, rows, first, piece.candidates,
            codes, codes.shape[1], streams, BLOCK,
        )  # fmt: skip
        first += piece.candidates
    return Piece(with_sample(codes, total), 0, None, total), rows


def room_for(pieces: list[Piece]) -> bool:
    """Whether a gathered copy is small beside the memory that is free."""
    shard = pieces[0].shard
    if shard.words.device.type != "cuda":
        return True
    size = sum(piece.candidates for piece in pieces) * (4 * shard.words.shape[0] + 16)
    free, _ = torch.cuda.mem_get_info(shard.words.device)
    cached = torch.cuda.memory_reserved(shard.words.device) - torch.cuda.memory_allocated(shard.words.device)
    return size < (free + cached) // FREE_SHARE


def worth(pieces: list[Piece], scan_ms: float) -> bool:
    """Whether gathering the candidates first is faster than a scan of everything, which takes `scan_ms`
    for 10⁹ keywords of 64 dimensions and two planes (`dispatch`; both scale alike with longer codes)."""
    if all(piece.mask is None for piece in pieces):
        return False
    keywords, candidates = (
        sum(each) for each in zip(*((p.shard.count, p.candidates) for p in pieces), strict=True)
    )
    share = candidates / keywords
    saved = scan_ms - (LIST + share * (FETCH + scan_ms))
    return saved * keywords / 1e9 > LAUNCHES and room_for(pieces)
