"""The stored layout against its definition, byte by byte."""

import numpy as np
import pytest

from rbegir.codes.layout import GROUP, LAYOUT_VERSION, groups, pack, packed_bytes, unpack
from rbegir.codes.planes import Codes
from rbegir.errors import InputError


def random_codes(count: int, n: int, planes: int, seed: int = 0) -> Codes:
    rng = np.random.default_rng(seed)
    return Codes(rng.integers(0, 2**64, (planes, count, n // 64), dtype=np.uint64), n)


@pytest.mark.parametrize("count", [0, 1, 63, 64, 65, 200])
@pytest.mark.parametrize(("n", "planes"), [(64, 1), (64, 2), (192, 3), (1024, 4)])
def test_round_trip(count: int, n: int, planes: int) -> None:
    codes = random_codes(count, n, planes)
    packed = pack(codes)
    assert packed.dtype == np.uint8
    assert packed.shape == (packed_bytes(count, n, planes),)
    assert unpack(packed, count, n, planes) == codes


def test_a_byte_lies_where_the_docstring_says() -> None:
    codes = random_codes(130, 128, 2)
    packed = pack(codes)
    signs = codes.signs()  # [planes, count, n]
    rows = 128 // 8
    for plane, keyword, dimension in [(0, 0, 0), (0, 63, 127), (1, 64, 9), (1, 129, 64), (0, 100, 77)]:
        group, lane = divmod(keyword, GROUP)
        at = ((plane * groups(130) + group) * rows + dimension // 8) * GROUP + lane
        assert bool(packed[at] >> (dimension % 8) & 1) == signs[plane, keyword, dimension]


def test_padding_is_zero() -> None:
    ones = Codes(np.full((2, 65, 1), 2**64 - 1, dtype=np.uint64), 64)
    packed = pack(ones).reshape(2, 2, 8, GROUP)
    assert (packed[:, 1, :, 1:] == 0).all()
    assert int(packed.astype(bool).sum()) == 2 * 65 * 8


def test_unpack_some() -> None:
    codes = random_codes(300, 128, 3)
    at = np.array([299, 0, 64, 64, 130])
    assert unpack(pack(codes), 300, 128, 3, at) == codes[at]
    assert len(unpack(pack(codes), 300, 128, 3, np.array([], dtype=np.int64))) == 0


def test_layout_is_the_stored_one() -> None:
    """Segments on disk hold this layout; a change needs a new LAYOUT_VERSION."""
    assert LAYOUT_VERSION == 1
    packed = pack(Codes(np.arange(3, dtype=np.uint64).reshape(1, 3, 1) << 8, 64))
    assert packed[64:67].tolist() == [0, 1, 2]
    assert int(packed.astype(np.int64).sum()) == 3


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: packed_bytes(1, 65, 1), "n must be a multiple of 64"),
        (lambda: packed_bytes(1, 64, 5), "keyword planes must be a whole number from 1 to 4, got 5"),
        (lambda: packed_bytes(1, 64, True), "keyword planes must be a whole number from 1 to 4, got True"),
        (lambda: packed_bytes(-1, 64, 1), "count must be a whole number of at least 0, got -1"),
    ],
)
def test_refuses(call, message: str) -> None:
    with pytest.raises(InputError, match=message):
        call()
