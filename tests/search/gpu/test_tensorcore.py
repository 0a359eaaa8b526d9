"""The layouts and bounds that the tensor-core kernels rely on, emulated lane by lane in NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rbegir.codes.planes import Codes
from rbegir.search.gpu import tensorcore

TABLE = {1: [0x81, 0x01], 2: [0x83, 0x81, 0x01, 0x03], 3: [0x87, 0x85, 0x83, 0x81, 0x01, 0x03, 0x05, 0x07]}


def rotate(word: int, by: int) -> int:
    """To the right."""
    return ((word >> by) | (word << (32 - by))) & 0xFFFFFFFF if by else word


def streams_of(codes: Codes) -> np.ndarray:
    """Words uint32 [planes · n/32, count] as the kernels read them."""
    planes = codes.planes.view("<u4").reshape(codes.plane_count, len(codes), codes.n // 32)
    plain = planes.transpose(0, 2, 1)  # [planes, n/32, count]
    if codes.plane_count != 2:
        return np.ascontiguousarray(plain.reshape(-1, len(codes)))
    x, y = plain[0], (plain[1] >> 1) | (plain[1] << 31)
    odd, even = np.uint32(0xAAAAAAAA), np.uint32(0x55555555)
    return np.concatenate([(x & odd) | (y & even), (x & even) | (y & odd)])


def unpack(kind: str, words: list[int], half: int, t: int) -> list[int]:
    """Four bytes of a lane, as `unpack` of tensorcore.cu makes them."""
    planes = len(words)
    if kind == "float8":
        s = (t >> 1) * 16 + (t & 1) * 2
        if planes == 2:
            selector = (words[0] >> s if half == 0 else rotate(words[1], (s + 31) & 31)) & 0x3333
        else:
            selector = 0
            for word in words:
                selector = 2 * selector + ((word >> (s + 1 - half)) & 0x1111)
        return [TABLE[planes][(selector >> 4 * b) & 7] for b in range(4)]
    lift = 8 - planes if kind == "wgmma" else 0
    if planes == 2:
        value = rotate(words[half], (2 * t + 32 - half - lift) & 31) & (0x03030303 << lift)
    else:
        value = 0
        for word in words:
            value = 2 * value + ((word >> (2 * t + 1 - half)) & 0x01010101)
        value <<= lift
    return [(value >> 8 * b) & 255 for b in range(4)]


@pytest.mark.parametrize("kind", ["mma", "wgmma", "float8"])
@pytest.mark.parametrize(("n", "planes"), [(64, 1), (64, 2), (128, 2), (64, 3), (64, 4)])
@pytest.mark.parametrize("wide", [False, True])
def test_unpacked_keywords_meet_their_query_dimensions(kind: str, n: int, planes: int, wide: bool) -> None:
    if kind == "float8" and (planes == 4 or wide):
        assert not tensorcore.fits("float8", n, planes, 255 if wide else 4)
        return
    rng = np.random.default_rng(n + planes)
    codes = Codes.from_signs(rng.random((planes, 3, n)) < 0.5)
    top = 255 if wide else 4
    queries = rng.integers(-top, top + 1, (5, n)).astype(np.int16)
    operand = tensorcore.arrange(torch.from_numpy(queries), kind, wide)
    steps = n // 32 * (1 + wide)
    width = tensorcore.padded(kind, 5)
    if kind == "mma":  # [tile, pair, query, t, step, half, b]
        parts = operand.permute(0, 2, 1, 4, 5, 3, 6).reshape(width, steps, 2, 4, 4)
    else:  # [chunk, step, eight, half, query, t, b]
        parts = operand.permute(0, 2, 4, 1, 3, 5, 6).reshape(width, steps, 2, 4, 4)
    if kind == "float8":
        b_values = parts.contiguous().view(torch.float8_e4m3fn).to(torch.float32).numpy() / 16
    else:
        b_values = parts.contiguous().view(torch.int8).numpy().astype(np.float64)
    streams = streams_of(codes)
    exact = queries.astype(np.int64) @ codes.values().astype(np.int64).T
    for keyword in range(3):
        a_values = np.zeros((steps, 2, 4, 4))
        for step in range(steps):
            block = step % (n // 32)
            words = [int(streams[p * (n // 32) + block, keyword]) for p in range(planes)]
            for half in range(2):
                for t in range(4):
                    raw = unpack(kind, words, half, t)
                    if kind == "float8":
                        a_values[step, half, t] = [(v & 127) * (-1 if v & 128 else 1) for v in raw]
                    elif kind == "wgmma":
                        a_values[step, half, t] = [v >> (step >= n // 32) for v in raw]
                    else:
                        a_values[step, half, t] = [v << (wide and step < n // 32) for v in raw]
        sums = (b_values[:5] * a_values).sum(axis=(1, 2, 3, 4))
        if kind != "float8":
            unit = 8 - planes - wide if kind == "wgmma" else 0
            top_value = 2**planes - 1
            sums = 2 * (sums / 2**unit) - top_value * queries.astype(np.int64).sum(axis=1)
        np.testing.assert_array_equal(sums, exact[:, keyword])


@pytest.mark.parametrize("kind", ["wgmma", "float8"])
@pytest.mark.parametrize("planes", [1, 2, 3])
def test_the_rounded_test_lets_everything_through_that_passes(kind: str, planes: int) -> None:
    rng = np.random.default_rng(planes)
    n, top = 64, 2**planes - 1
    largest = 4
    shape = tensorcore.shape_for(kind, n, planes, False, 64)
    values = rng.integers(-largest, largest + 1, (40, n))
    sums = values.sum(axis=1).astype(np.int32)
    norms = np.unique(n * top**2 - 2 ** (2 * planes - 1) * rng.integers(0, n + 1, 200)) if planes > 1 else [n]
    norms = np.array([norm for norm in norms if norm >= n], dtype=np.int64)
    limit0 = rng.integers(-(1 << 26), 1 << 26, 40)
    limit0[:3] = 0, -(1 << 44), 1 << 44
    device = "cuda" if torch.cuda.is_available() else "cpu"  # the interpreter works on the CPU
    limits = torch.from_numpy(np.stack([limit0, np.full(40, 1 << 17), np.zeros(40, int)], axis=1)).to(device)
    test = tensorcore.make_test(shape, limits, torch.from_numpy(sums).to(device), 64)
    roots = np.sqrt(norms).astype(np.float32) * np.float32(0.9999)
    dots = np.arange(-(n * top * largest), n * top * largest + 1)
    loose = 0
    for q in range(64):
        square = dots * np.abs(dots)
        if kind == "float8":
            half = (roots.view(np.uint32) & 0xFFFFE000).view(np.float32)  # rounded towards zero to 11 bits
            over = dots[:, None] / 32 + float(test.slopes[q]) * half[None, :].astype(np.float64) > 2.0**-20
        else:
            root = (roots * tensorcore.FINE).astype(np.int64)
            u_dot_q = dots + top * (int(sums[q]) if q < 40 else 0)  # twice u·q
            scaled = u_dot_q * 2 ** (shape.unit - 1)
            over = scaled[:, None] + int(test.slopes[q]) * root[None, :] - int(test.centres[q]) >= 0
        if q >= 40:
            assert not over[n * top * largest].any()  # the sum of a padding query is that of q·k = 0
            continue
        passes = square[:, None] * (1 << 17) >= limit0[q] * norms[None, :]
        assert not (passes & ~over).any()
        loose += int((over & ~passes).sum())
    assert loose < 0.05 * 40 * len(dots) * len(norms)
