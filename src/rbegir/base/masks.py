"""Sets of positions as bits: bit i % 64 of word i // 64 is set when position i is in the set.

    mask: uint64 [⌈count / 64⌉], bits from `count` on are clear

A backend takes the candidates of a partition in this form.
"""

import numpy as np
import numpy.typing as npt

Mask = npt.NDArray[np.uint64]


def empty(count: int) -> Mask:
    """The empty set."""
    return np.zeros(-(-count // 64), np.uint64)


def from_bools(flags: npt.NDArray[np.bool_]) -> Mask:
    """[count] flags → mask."""
    packed = np.packbits(flags, bitorder="little")
    return np.pad(packed, (0, -packed.size % 8)).view("<u8").astype(np.uint64, copy=False)


def from_bytes(raw: npt.NDArray[np.uint8], offset: int, count: int) -> Mask:
    """`count` bits from bit `offset` on, lowest bit of a byte first, as Arrow stores flags → mask."""
    if offset:
        every = np.unpackbits(raw, count=offset + count, bitorder="little")
        return from_bools(every[offset:].view(np.bool_))
    size = -(-count // 8)
    mask = empty(count)
    inside = mask.view(np.uint8)
    inside[:size] = raw[:size]
    if count % 8:  # the bits behind the last one may hold anything
        inside[size - 1] &= (1 << count % 8) - 1
    return mask.view("<u8").astype(np.uint64, copy=False)


def to_bools(mask: Mask | None, count: int) -> npt.NDArray[np.bool_]:
    """Mask → [count] flags; None is the set of all positions."""
    if mask is None:
        return np.ones(count, np.bool_)
    raw = mask.astype("<u8", copy=False).view(np.uint8)
    return np.unpackbits(raw, count=count, bitorder="little").view(np.bool_)


def from_positions(positions: npt.NDArray[np.int64], count: int) -> Mask:
    """Positions in any order, repeats allowed → mask."""
    mask = empty(count)
    add(mask, positions)
    return mask


def add(mask: Mask, positions: npt.NDArray[np.int64]) -> None:
    """Add positions to a mask, in place."""
    np.bitwise_or.at(mask, positions >> 6, np.uint64(1) << (positions & 63).astype(np.uint64))


def to_positions(mask: Mask, count: int) -> npt.NDArray[np.int64]:
    """Mask → ascending positions; only words that are not empty take memory, if they are few."""
    words = np.flatnonzero(mask)
    if words.size > mask.size // 8:
        return np.flatnonzero(to_bools(mask, count))
    inside = np.flatnonzero(to_bools(mask[words], 64 * words.size))
    found: npt.NDArray[np.int64] = (words[inside >> 6] << 6) + (inside & 63)
    return found


def complement(mask: Mask, count: int) -> Mask:
    """The positions below `count` that are not in the set."""
    flipped = ~mask
    if count % 64:
        flipped[-1] &= np.uint64((1 << count % 64) - 1)
    return flipped


def both(one: Mask | None, other: Mask | None) -> Mask | None:
    """The positions in both sets; None is the set of all positions."""
    return other if one is None else one if other is None else one & other


def size(mask: Mask) -> int:
    """The number of positions in the set."""
    return int(np.bitwise_count(mask).sum())


def contains(mask: Mask, positions: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Whether each position is in the set."""
    bits = mask[positions >> 6] >> (positions & 63).astype(np.uint64)
    return np.asarray(bits & np.uint64(1), np.bool_)


def ranks(mask: Mask, positions: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """For each position, the number of smaller positions in the set."""
    sizes = np.bitwise_count(mask)
    before = np.cumsum(sizes, dtype=np.int64) - sizes  # by word
    words = positions >> 6
    smaller = (np.uint64(1) << (positions & 63).astype(np.uint64)) - np.uint64(1)
    inside: npt.NDArray[np.int64] = before[words] + np.bitwise_count(mask[words] & smaller)
    return inside


def freeze(mask: Mask) -> Mask:
    """Make a mask and the arrays that it is a view of read-only, so that devices may cache a copy."""
    owner: object = mask
    while isinstance(owner, np.ndarray):
        owner.flags.writeable = False
        owner = owner.base
    return mask


def is_frozen(mask: Mask) -> bool:
    """Whether a mask and all arrays that it is a view of are read-only."""
    owner: object = mask
    while isinstance(owner, np.ndarray):
        if owner.flags.writeable:
            return False
        owner = owner.base
    return owner is None
