"""CRC-32C and the id hash against plain Python."""

from __future__ import annotations

import mmap
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rbegir._native._core import crc32c, crc32c_blocks, hash_strings

SIZES = [
    0,
    1,
    7,
    8,
    9,
    63,
    64,
    65,
    383,
    384,
    385,
    4079,
    4080,
    4081,
    4095,
    4096,
    4097,
    24575,
    24576,
    24577,
    40_003,
]


def _plain(data: bytes, start: int = 0) -> int:
    crc = ~start & 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return ~crc & 0xFFFFFFFF


def test_published_values() -> None:
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(bytes(32)) == 0x8A9136AA
    assert crc32c(b"\xff" * 32) == 0x62A8AB43
    assert crc32c(bytes(range(32))) == 0x46DD794E


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("portable", [False, True])
def test_all_lengths(size: int, portable: bool) -> None:
    data = np.random.default_rng(size).bytes(size)
    assert crc32c(data, portable=portable) == _plain(data)


@given(data=st.binary(max_size=600), cut=st.integers(0, 600), portable=st.booleans())
def test_it_continues_where_it_stopped(data: bytes, cut: int, portable: bool) -> None:
    assert crc32c(data[cut:], crc32c(data[:cut], portable=portable), portable) == _plain(data)


def test_buffers_of_all_kinds() -> None:
    numbers = np.arange(1000, dtype=np.float64)
    wanted = _plain(numbers.tobytes())
    mapped = mmap.mmap(-1, numbers.nbytes)
    mapped.write(numbers.tobytes())
    for buffer in (numbers, numbers.tobytes(), bytearray(numbers.tobytes()), memoryview(numbers), mapped):
        assert crc32c(buffer) == wanted
    with pytest.raises(TypeError):
        crc32c("text")  # type: ignore[arg-type]
    with pytest.raises((BufferError, ValueError)):
        crc32c(numbers[::2])


def test_blocks() -> None:
    data = np.random.default_rng(1).bytes(10_000)
    for block in (1, 64, 4096, 9_999, 10_000, 20_000):
        count = -(-len(data) // block)
        picks = np.array(sorted({0, count // 2, count - 1}), np.int64)[::-1].copy()
        wanted = [_plain(data[i * block : (i + 1) * block]) for i in picks]
        assert crc32c_blocks(data, block, picks).tolist() == wanted
    assert crc32c_blocks(b"", 64, np.zeros(0, np.int64)).tolist() == []
    for outside in (-1, 3):
        with pytest.raises(IndexError, match="outside the buffer"):
            crc32c_blocks(data, 4096, np.array([outside]))
    with pytest.raises(ValueError, match="block must be positive"):
        crc32c_blocks(data, 0, np.zeros(0, np.int64))


def test_threads_agree() -> None:
    data = np.random.default_rng(2).bytes(1 << 20)
    sums: list[int] = []
    threads = [threading.Thread(target=lambda: sums.append(crc32c(data))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sums == [crc32c(data, portable=True)] * 8


def _plain_hash(data: bytes) -> int:
    h = 14695981039346656037
    for byte in data:
        h = (h ^ byte) * 1099511628211 % 2**64
    h = (h ^ h >> 33) * 0xFF51AFD7ED558CCD % 2**64
    h = (h ^ h >> 33) * 0xC4CEB9FE1A85EC53 % 2**64
    return h ^ h >> 33


@given(texts=st.lists(st.binary(max_size=20), max_size=20))
def test_hashes(texts: list[bytes]) -> None:
    offsets = np.cumsum([0, *map(len, texts)], dtype=np.int64)
    data = np.frombuffer(b"".join(texts), np.uint8)
    assert hash_strings(offsets, data).tolist() == [_plain_hash(text) for text in texts]


@pytest.mark.parametrize("offsets", [[], [-1, 0], [2, 1], [0, 6]])
def test_offsets_outside_the_data(offsets: list[int]) -> None:
    with pytest.raises(ValueError, match="offsets must"):
        hash_strings(np.array(offsets, np.int64), np.zeros(5, np.uint8))
