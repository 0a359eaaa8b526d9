"""The scans for any GPU (Triton): by popcounts for one query, by 8-bit products for batches.

One query is scanned at the speed of memory. A keyword plane x and a query plane q of signs have the inner
product n − 2·popcount(x XOR q), so for a keyword of P planes and a query whose integers are Σ_b weight_b ·
sign_b

    q·k = Σ_b Σ_p weight_b · 2^(P−1−p) · (n − 2·popcount(x_p XOR q_b))
    ‖k‖² = n·(2^P − 1)² − Σ_{i<j} 2^(2P−i−j) · popcount(x_i XOR x_j)

Odd queries of B planes have weights 2^(B−1) … 1. A query with even entries is doubled, 2v = (2v − 1) + 1:
the planes of the odd vector 2v − 1 and one plane of ones, of weight 1; the sum is halved at the end
(`MIXED`).

A GPU reads 16-byte keywords about as fast as it can count bits: 14 popcounts per keyword (12 for 3 × 2
planes of two words, 2 for the norm) at 16 per clock and multiprocessor take 4.0 ms for 1.2·10⁹ keywords on an
H200, reading takes 4.2 ms. The usual shape, two keyword planes and a three-plane query, therefore adds
words of equal weight in carry-save form before counting: three words become a sum word and a carry word of
twice the weight, two logic instructions instead of one popcount, and 12 popcounts become 8.

What passes the threshold is appended through one atomic counter. The test has two steps: a single-precision
one that can only err by letting too much through, and, where a block of keywords holds a survivor, the
exact one in 64-bit integers: dot·|dot|·limit₁ ≥ limit₀·‖k‖² + limit₂, a rational threshold, strict when
limit₂ is 1.

Batches of any shape on any GPU are 8-bit products. The keyword value is 2·u − (2^P − 1), u in 0 … 2^P − 1, so
q·k = 2·(u·q) − (2^P − 1)·Σq and the product needs no signs. Queries beyond ±127 come as two rows, ⌊q/2⌋ and
q mod 2: u·q = (2u)·⌊q/2⌋ + u·(q mod 2). A block of keywords whose best sum cannot reach a query's threshold
at the block's least norm is skipped; the others are tested pair by pair, exactly. The tensor-core kernels in
CUDA C++ are several times as fast for the shapes they know; this one takes over for n > 256, on GPUs older
than Ampere, and where NVRTC is missing.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator,assignment"
# ruff: noqa: RUF005 (Triton has no unpacking of tuples)
import triton
import triton.language as tl

from rbegir.search.gpu.words import majority, odd_even, parity, popcount, rotate_left, rotate_right


@triton.jit
def word(pointer, offset, inside):
    """32 bits of every keyword of a block (all if `inside` is None); read once, so not worth caching."""
    if inside is None:
        value = tl.load(pointer + offset, eviction_policy="evict_first")
    else:
        value = tl.load(pointer + offset, mask=inside, other=0, eviction_policy="evict_first")
    return value.to(tl.uint32, bitcast=True)


@triton.jit
def hold(query, B: tl.constexpr, BLOCKS: tl.constexpr):
    """The words of a short query, to stay in registers: the compiler would read them again in every turn of a
    loop that also writes. Nothing for a long query, whose words are read where they are used."""
    held = ()
    if B * BLOCKS <= 24:
        for word in tl.static_range(B * BLOCKS):
            held = held + (tl.load(query + word).to(tl.uint32, bitcast=True),)
    return held


@triton.jit
def query_word(query, held, plane: tl.constexpr, block, BLOCKS: tl.constexpr):
    if len(held) > 0:
        return held[plane * BLOCKS + block]
    else:
        return tl.load(query + plane * BLOCKS + block).to(tl.uint32, bitcast=True)


@triton.jit
def mismatches_woven_3(words, stride, query, held, offset, inside, block, BLOCKS: tl.constexpr):
    """Two planes against three, two blocks at once: (weighted mismatches, 8·popcount(x₀ XOR x₁))."""
    step = BLOCKS * stride
    u0 = word(words + block * stride, offset, inside)
    v0 = word(words + block * stride + stride, offset, inside)
    u1 = word(words + block * stride + step, offset, inside)
    v1 = word(words + block * stride + step + stride, offset, inside)
    x0, y0 = odd_even(u0, u1), odd_even(u1, u0)  # y rotated right by one
    x1, y1 = odd_even(v0, v1), odd_even(v1, v0)
    a0 = query_word(query, held, 0, block, BLOCKS)
    a1 = query_word(query, held, 0, block + 1, BLOCKS)
    b0 = query_word(query, held, 1, block, BLOCKS)
    b1 = query_word(query, held, 1, block + 1, BLOCKS)
    c0 = query_word(query, held, 2, block, BLOCKS)
    c1 = query_word(query, held, 2, block + 1, BLOCKS)
    ra0, ra1 = rotate_right(a0), rotate_right(a1)
    rb0, rb1 = rotate_right(b0), rotate_right(b1)
    rc0, rc1 = rotate_right(c0), rotate_right(c1)
    # weight 2: four words become two and a carry
    p, q, r = y0 ^ rb0, y1 ^ rb1, x0 ^ c0
    two = parity(p, q, r)
    four = majority(p, q, r)
    # weight 4: four words and that carry become one and two carries
    p, q, r = y0 ^ ra0, y1 ^ ra1, x0 ^ b0
    s = parity(p, q, r)
    eight = majority(p, q, r)
    p = x1 ^ b1
    carry = majority(s, p, four)
    four = parity(s, p, four)
    # weight 8: two words and two carries become two and a carry
    p = x0 ^ a0
    sixteen = majority(p, eight, carry)
    eight = parity(p, eight, carry)
    total = 16 * popcount(sixteen) + 8 * (popcount(eight) + popcount(x1 ^ a1)) + 4 * popcount(four)
    total += 2 * (popcount(two) + popcount(x1 ^ c1)) + popcount(y0 ^ rc0) + popcount(y1 ^ rc1)
    spread = 8 * (popcount(x0 ^ rotate_left(y0)) + popcount(x1 ^ rotate_left(y1)))
    return total, spread


@triton.jit
def plane_words(pointer, step, offset, inside, P: tl.constexpr):
    """A 32-dimension block of every plane, unwoven. Planes lie `step` apart; x0 stands in for absent ones."""
    x0 = word(pointer, offset, inside)
    x1 = x0
    x2 = x0
    x3 = x0
    if P > 1:
        x1 = word(pointer + step, offset, inside)
    if P > 2:
        x2 = word(pointer + 2 * step, offset, inside)
    if P > 3:
        x3 = word(pointer + 3 * step, offset, inside)
    if P == 2:
        u = x0
        x0 = odd_even(u, x1)
        x1 = rotate_left(odd_even(x1, u))
    return x0, x1, x2, x3


@triton.jit
def norm_loss(x0, x1, x2, x3, P: tl.constexpr):
    """The difference between the largest norm, n·(2^P − 1)², and that of a block."""
    spread = tl.zeros_like(x0).to(tl.int32)
    if P > 1:
        spread += (1 << (2 * P - 1)) * popcount(x0 ^ x1)
    if P > 2:
        spread += (1 << (2 * P - 2)) * popcount(x0 ^ x2) + (1 << (2 * P - 3)) * popcount(x1 ^ x2)
    if P > 3:
        spread += (1 << (2 * P - 3)) * popcount(x0 ^ x3) + (1 << (2 * P - 4)) * popcount(x1 ^ x3)
        spread += (1 << (2 * P - 5)) * popcount(x2 ^ x3)
    return spread


@triton.jit
def mismatches(
    words, stride, query, held, offset, inside, block,
    P: tl.constexpr, B: tl.constexpr, MIXED: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    """Any number of planes, one 32-dimension block: (weighted mismatches, what the norm loses)."""
    x0, x1, x2, x3 = plane_words(words + block * stride, BLOCKS * stride, offset, inside, P)
    total = tl.zeros_like(x0).to(tl.int32)
    for b in tl.static_range(B + MIXED):
        q = query_word(query, held, b, block, BLOCKS)
        count = popcount(x0 ^ q)
        if P > 1:
            count = 2 * count + popcount(x1 ^ q)
        if P > 2:
            count = 2 * count + popcount(x2 ^ q)
        if P > 3:
            count = 2 * count + popcount(x3 ^ q)
        if b < B:
            total += (1 << (B - 1 - b)) * count
        else:
            total += count
    return total, norm_loss(x0, x1, x2, x3, P)


@triton.jit
def score(
    words, stride, query, held, offset, inside,
    N: tl.constexpr, P: tl.constexpr, B: tl.constexpr, MIXED: tl.constexpr,
):  # fmt: skip
    """(q·k, ‖k‖²) of a block of keywords, exact, int32; `held` comes from `hold`."""
    BLOCKS: tl.constexpr = N // 32
    TOP: tl.constexpr = (1 << P) - 1
    WOVEN: tl.constexpr = P == 2 and B == 3 and MIXED == 0
    total = tl.zeros_like(offset)
    spread = tl.zeros_like(offset)
    if len(held) > 0:
        for block in tl.static_range(0, BLOCKS, 2 if WOVEN else 1):
            if WOVEN:
                t, s = mismatches_woven_3(words, stride, query, held, offset, inside, block, BLOCKS)
            else:
                t, s = mismatches(words, stride, query, held, offset, inside, block, P, B, MIXED, BLOCKS)
            total += t
            spread += s
    else:
        for block in tl.range(0, BLOCKS, 2 if WOVEN else 1):
            if WOVEN:
                t, s = mismatches_woven_3(words, stride, query, held, offset, inside, block, BLOCKS)
            else:
                t, s = mismatches(words, stride, query, held, offset, inside, block, P, B, MIXED, BLOCKS)
            total += t
            spread += s
    dot = (N * TOP * ((1 << B) - 1 + MIXED) - 2 * total) >> MIXED
    return dot, N * TOP * TOP - spread


@triton.jit
def allowed(mask, offset, inside):
    """The mask bit of every keyword of a block: 1 for a candidate."""
    bits = tl.load(mask + (offset >> 5), mask=inside, other=0)
    return ((bits >> (offset & 31)) & 1) != 0


@triton.jit(do_not_specialize=["end", "base", "q", "room"])
def popcount_scan(
    words, stride, begin, end, base: tl.int64, mask, q, query, limits, counts, positions, dots, norms, room,
    N: tl.constexpr, P: tl.constexpr, B: tl.constexpr, MIXED: tl.constexpr, MASKED: tl.constexpr,
    BLOCK: tl.constexpr, STEPS: tl.constexpr,
):  # fmt: skip
    """Append every keyword of [begin, end) that passes for query q; BLOCK divides the padding of streams.

    words [streams, stride], query [Q, planes, n/32], limits [Q, 3] int64, counts [Q]; positions, dots,
    norms [Q, room].

    MASKED: only keywords whose bit in `mask` is set; the mask is read only where something passes.
    """
    stride = stride.to(tl.int64)
    limit0 = tl.load(limits + 3 * q)
    limit1 = tl.load(limits + 3 * q + 1)
    limit2 = tl.load(limits + 3 * q + 2)
    floor = limit0.to(tl.float32) / limit1.to(tl.float32)
    floor = floor - tl.abs(floor) * 1e-5  # lets a little more through
    query += q * ((B + MIXED) * (N // 32))
    held = hold(query, B + MIXED, N // 32)
    row = q.to(tl.int64) * room
    first = begin // BLOCK * BLOCK + tl.program_id(0) * (BLOCK * STEPS)
    last = tl.minimum(first + BLOCK * STEPS, end)
    while first < last:  # whole blocks: streams are padded
        offset = first + tl.arange(0, BLOCK)
        dot, norm = score(words, stride, query, held, offset, None, N, P, B, MIXED)
        f = dot.to(tl.float32)
        hit = f * tl.abs(f) >= floor * norm.to(tl.float32)
        if tl.max(hit.to(tl.int32), 0) > 0:
            wide = dot.to(tl.int64)
            square = wide * tl.abs(wide)
            hit = hit & (offset >= begin) & (offset < end)
            if MASKED:
                hit = hit & allowed(mask, offset, hit)
            hit = hit & (square * limit1 >= limit0 * norm.to(tl.int64) + limit2)
            slot = tl.atomic_add(counts + q + tl.zeros_like(dot), 1, mask=hit, sem="relaxed")
            keep = hit & (slot < room)
            tl.store(positions + row + slot, base + offset.to(tl.int64), mask=keep)
            tl.store(dots + row + slot, dot, mask=keep)
            tl.store(norms + row + slot, norm, mask=keep)
        first += BLOCK


@triton.jit(do_not_specialize=["end", "base", "room"])
def product_scan(
    words, stride, begin, end, base: tl.int64, mask, operand, width, limits, sums,
    counts, positions, dots, norms, room,
    N: tl.constexpr, P: tl.constexpr, WIDE: tl.constexpr, MASKED: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Append what passes in [begin, end): operand int8 [1 + WIDE, n, width], limits int64 [width, 3]."""
    BLOCKS: tl.constexpr = N // 32
    TOP: tl.constexpr = (1 << P) - 1
    stride = stride.to(tl.int64)
    tiles = width // COLUMNS
    offset = begin + (tl.program_id(0) // tiles) * ROWS + tl.arange(0, ROWS)
    column = (tl.program_id(0) % tiles) * COLUMNS + tl.arange(0, COLUMNS)
    inside = offset < stride
    bit = tl.arange(0, 32)
    acc = tl.zeros([ROWS, COLUMNS], tl.int32)
    spread = tl.zeros([ROWS], tl.int32)
    for block in range(BLOCKS):
        x0, x1, x2, x3 = plane_words(words + block * stride, BLOCKS * stride, offset, inside, P)
        spread += norm_loss(x0, x1, x2, x3, P)
        u = (x0[:, None] >> bit[None, :]) & 1
        if P > 1:
            u = 2 * u + ((x1[:, None] >> bit[None, :]) & 1)
        if P > 2:
            u = 2 * u + ((x2[:, None] >> bit[None, :]) & 1)
        if P > 3:
            u = 2 * u + ((x3[:, None] >> bit[None, :]) & 1)
        rows = operand + (block * 32 + bit[:, None]) * width + column[None, :]
        if WIDE:
            acc = tl.dot((2 * u).to(tl.int8), tl.load(rows), acc, out_dtype=tl.int32)
            acc = tl.dot(u.to(tl.int8), tl.load(rows + N * width), acc, out_dtype=tl.int32)
        else:
            acc = tl.dot(u.to(tl.int8), tl.load(rows), acc, out_dtype=tl.int32)
    norm = N * TOP * TOP - spread
    dot = 2 * acc - TOP * tl.load(sums + column)[None, :]
    limit0 = tl.load(limits + 3 * column)
    limit1 = tl.load(limits + 3 * column + 1)
    floor = limit0.to(tl.float32) / limit1.to(tl.float32)
    extreme = tl.where(floor >= 0, tl.min(norm, 0), tl.max(norm, 0)).to(tl.float32)
    root = tl.sqrt(tl.abs(floor) * extreme)
    root = tl.where(floor >= 0, root * 0.99999, root * -1.00001) - 0.5
    if tl.max((tl.max(dot, 0).to(tl.float32) >= root).to(tl.int32), 0) > 0:
        wide = dot.to(tl.int64)
        need = limit0[None, :] * norm.to(tl.int64)[:, None] + tl.load(limits + 3 * column + 2)[None, :]
        good = (offset >= begin) & (offset < end)
        if MASKED:
            good = good & allowed(mask, offset, offset < end)
        hit = (wide * tl.abs(wide) * limit1[None, :] >= need) & good[:, None]
        slot = tl.atomic_add(counts + column[None, :] + tl.zeros_like(acc), 1, mask=hit, sem="relaxed")
        keep = hit & (slot < room)
        to = column[None, :].to(tl.int64) * room + slot
        tl.store(positions + to, base + offset.to(tl.int64)[:, None] + tl.zeros_like(to), mask=keep)
        tl.store(dots + to, dot, mask=keep)
        tl.store(norms + to, norm[:, None] + tl.zeros_like(acc), mask=keep)
