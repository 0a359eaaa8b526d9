"""The packed layout of keyword codes: what a segment stores and the scan reads.

    packed[plane, group, row, lane]          # [planes, groups, n / 8, 64] uint8, C order

A group is 64 keywords; row r of a group is byte r of each of them (dimensions 8r … 8r + 7, bit 0 the lowest)
side by side, so that one vector register holds the same eight dimensions of 64 keywords. The last group is
padded with zeros. Planes are stored one after the other, the base vectors of all groups first, as in the
paper: a search with the base vector alone reads only the first part, and because the dot product is linear
in the bits, all planes share one set of lookup tables.

Rejected: two bits of a dimension in one byte (the norm becomes linear too, but a query needs twice the
tables and no longer fits in registers), and the plain [count, words] order (every kernel would transpose
first).
"""

import numpy as np
import numpy.typing as npt

from rbegir.codes.planes import MAX_KEYWORD_PLANES, WORD, Codes, check_dimension
from rbegir.errors import whole_number

GROUP = 64
LAYOUT_VERSION = 1


def check_keyword_planes(planes: int) -> None:
    """Refuse a number of keyword planes that the scan does not support."""
    whole_number("keyword planes", planes, 1, MAX_KEYWORD_PLANES)


def groups(count: int) -> int:
    """The number of groups of `count` keywords."""
    return -(-count // GROUP)


def packed_bytes(count: int, n: int, planes: int) -> int:
    """Size of `count` packed keywords in bytes."""
    check_dimension(n)
    check_keyword_planes(planes)
    whole_number("count", count, 0)
    return planes * groups(count) * GROUP * (n // 8)


def pack(codes: Codes) -> npt.NDArray[np.uint8]:
    """Codes in the packed layout, as one flat array."""
    planes, count = codes.plane_count, len(codes)
    rows = codes.n // 8
    padded = np.zeros((planes, groups(count) * GROUP, codes.n // WORD), dtype="<u8")
    padded[:, :count] = codes.planes
    lanes = padded.view(np.uint8).reshape(planes, groups(count), GROUP, rows)
    return np.ascontiguousarray(lanes.transpose(0, 1, 3, 2)).reshape(-1)  # [planes · groups · rows · 64]


def unpack(
    packed: npt.NDArray[np.uint8],
    count: int,
    n: int,
    planes: int,
    positions: npt.NDArray[np.integer] | None = None,
) -> Codes:
    """The inverse of `pack`, for all keywords or those at `positions`."""
    rows = packed.reshape(planes, groups(count), n // 8, GROUP)
    if positions is None:
        flat = rows.transpose(0, 1, 3, 2).reshape(planes, groups(count) * GROUP, n // 8)[:, :count]
    else:
        # advanced indices come first: [positions, planes, rows]
        flat = rows[:, positions // GROUP, :, positions % GROUP].transpose(1, 0, 2)
    words = np.ascontiguousarray(flat).view("<u8").astype(np.uint64, copy=False)
    return Codes(words.reshape(planes, -1, n // WORD), n)
