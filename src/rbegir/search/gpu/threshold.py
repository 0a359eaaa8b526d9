"""Thresholds from a random sample (Triton).

A threshold is three integers per query, `limits`: a pair passes when dot·|dot|·limits₁ ≥ limits₀·‖k‖² +
limits₂. That is the order of the exact score (the sign-preserving square of q·k/‖k‖) compared with the
rational limits₀/limits₁, and all products fit 64 bits. Any threshold gives correct results, because the scan
counts what passes; a good one lets little more than k keywords pass. It comes from a histogram of the
cosines of a random sample in BINS bins: the highest bin edge above which the weighted sample promises enough
keywords.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
import triton
import triton.language as tl

from rbegir.search.gpu.scans import allowed, hold, score

BINS = 4096
UNIT = 1 << 17  # denominator of a threshold taken from a bin edge: 2^17 · dot² < 2^61 for every shape
# a numerator that every keyword passes, for any norm and any denominator up to UNIT
EVERYTHING = -(1 << 44)


@triton.jit
def add_to_bins(cosine, inside, weight, bins, q, BINS: tl.constexpr):
    bin = tl.minimum(tl.maximum((cosine + 1.0) * (BINS // 2), 0.0), BINS - 1.0).to(tl.int32)
    tl.atomic_add(bins + q * BINS + bin, weight + tl.zeros_like(cosine), mask=inside, sem="relaxed")


@triton.jit(do_not_specialize=["count"])
def histogram(
    words, stride, count, mask, places, query, scales, weight, bins,
    N: tl.constexpr, P: tl.constexpr, B: tl.constexpr, MIXED: tl.constexpr, MASKED: tl.constexpr,
    BINS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Add `weight` to the cosine's bin of every (sample, query): query [Q, planes, n/32], bins [Q, BINS]."""
    stride = stride.to(tl.int64)
    q = tl.program_id(1)
    offset = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = offset < count
    if MASKED:
        place = tl.load(places + offset, mask=inside, other=0)
        inside = inside & allowed(mask, place, inside)
    query += q * ((B + MIXED) * (N // 32))
    held = hold(query, B + MIXED, N // 32)
    dot, norm = score(words, stride, query, held, offset, inside, N, P, B, MIXED)
    cosine = dot.to(tl.float32) / tl.sqrt(norm.to(tl.float32)) * tl.load(scales + q)
    add_to_bins(cosine, inside, weight, bins, q, BINS)


@triton.jit(do_not_specialize=["room"])
def histogram_survivors(
    counts, dots, norms, room, scales, weight, bins, BINS: tl.constexpr, BLOCK: tl.constexpr
):
    """`histogram` from the survivors [Q, room] of a scan of the sample."""
    q = tl.program_id(1)
    offset = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = offset < tl.minimum(tl.load(counts + q), room)
    at = q.to(tl.int64) * room + offset
    dot = tl.load(dots + at, mask=inside, other=0).to(tl.float32)
    norm = tl.load(norms + at, mask=inside, other=1).to(tl.float32)
    cosine = dot / tl.sqrt(norm) * tl.load(scales + q)
    add_to_bins(cosine, inside, weight, bins, q, BINS)


@triton.jit
def choose(
    bins, scales, target, limits,
    KEEP: tl.constexpr, BINS: tl.constexpr, UNIT: tl.constexpr, EVERYTHING: tl.constexpr,
):  # fmt: skip
    """limits [Q, 3] from bins [Q, BINS]: the highest bin edge with a weight of `target` or more above it.

    Where all bins together weigh less, everything passes; with KEEP, the limits stay what they were.
    """
    q = tl.program_id(0)
    index = tl.arange(0, BINS)
    above = tl.cumsum(tl.load(bins + q * BINS + index), 0, reverse=True)
    bin = tl.sum((above >= target).to(tl.int32), 0) - 1
    edge = ((bin.to(tl.float64) - 0.01) * (2.0 / BINS) - 1.0) / tl.load(scales + q).to(tl.float64)
    limit = tl.floor(edge * tl.abs(edge) * UNIT).to(tl.int64)
    changed = bin >= (0 if KEEP else -1)
    tl.store(limits + 3 * q, tl.where(bin < 0, EVERYTHING, limit), mask=changed)
    tl.store(limits + 3 * q + 1, tl.full([], UNIT, tl.int64), mask=changed)
    tl.store(limits + 3 * q + 2, tl.full([], 0, tl.int64), mask=changed)


@triton.jit(do_not_specialize=["queries", "width", "shift"])
def floors(limits, sums, out, queries, width, shift, N: tl.constexpr, P: tl.constexpr, BLOCK: tl.constexpr):
    """Minus the least u·q that may pass in each norm bucket, [buckets, width], rounded so that nothing is
    lost.

    Bucket b holds norms from N + b·2^shift on. A negative threshold is loosest at the largest norm instead.
    Columns beyond the queries pass nothing.
    """
    TOP: tl.constexpr = (1 << P) - 1
    bucket = tl.program_id(0)
    q = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    real = q < queries
    limit0 = tl.load(limits + 3 * q, mask=real, other=0).to(tl.float64)
    limit1 = tl.load(limits + 3 * q + 1, mask=real, other=1).to(tl.float64)
    norm = tl.where(limit0 >= 0, (N + (bucket << shift)).to(tl.float64), N * TOP * TOP + 0.0)
    square = limit0 * norm / limit1
    root = tl.sqrt(tl.abs(square))
    least = tl.floor(tl.where(square >= 0, root, -root)).to(tl.int32) - 1
    product = (least + TOP * tl.load(sums + q, mask=real, other=0)) >> 1
    product = tl.where(real, product, 1 << 28)
    tl.store(out + bucket * width + q, -product, mask=q < width)


@triton.jit(do_not_specialize=["queries", "width"])
def slopes(
    limits, sums, out, centres, queries, width,
    P: tl.constexpr, UNIT: tl.constexpr, FINE: tl.constexpr, HALF: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Minus the least q·k / ‖k‖ that may pass, [width], in the unit of a kernel's sums, rounded so that
    nothing is lost.

    HALF: float16, a sum is q·k / 32. Else int32, a sum is 2^UNIT · u·q, ‖k‖ comes in whole units of 1 /
    FINE, and `centres` gets what q·k = 0 gives. Norms are rounded down, so that a negative slope needs a
    margin for that too.
    """
    TOP: tl.constexpr = (1 << P) - 1
    q = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    real = q < queries
    limit0 = tl.load(limits + 3 * q, mask=real, other=0).to(tl.float64)
    limit1 = tl.load(limits + 3 * q + 1, mask=real, other=1).to(tl.float64)
    root = tl.sqrt(tl.abs(limit0) / limit1)
    if HALF:
        least = tl.where(limit0 >= 0, root * (1 - 1 / 1024), root * -(1 + 1 / 256)) - 1 / 128
        least = tl.where(real, tl.minimum(tl.maximum(least, -2048.0), 2048.0), 2048.0)
        tl.store(out + q, 0.0 - (least / 32).to(tl.float32), mask=q < width)
    else:
        least = tl.where(limit0 >= 0, root * (1 - 1e-6), root * -1.05)
        least = tl.where(real, tl.minimum(tl.maximum(least, -8192.0), 8192.0), 8192.0)
        tl.store(out + q, -tl.floor(least * ((1 << UNIT) / (2 * FINE))).to(tl.int32), mask=q < width)
        sum = tl.load(sums + q, mask=real, other=0)
        tl.store(centres + q, (TOP * sum << UNIT) >> 1, mask=q < width)
