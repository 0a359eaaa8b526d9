"""`Codes`, and the bit order, which only this file knows.

A code of dimension n with P planes is P binary vectors of n signs. Plane 0 is the base vector b⁰, plane t
the t-th residual, worth (½)^t. Dimension d lives in word d // 64, at bit d % 64 (bit 0 is the least
significant); a set bit is +1, a clear bit −1:

    planes[t, i, d // 64] >> (d % 64) & 1        # [planes, count, words] uint64

Scaled by 2^(P−1) a code is a vector of odd integers, which is how every backend computes with it:

    value[i, d] = Σ_t 2^(P−1−t) · sign[t, i, d]  ∈ {±1, ±3, … ±(2^P − 1)}

so three planes give ±1..±7 and two planes ±1, ±3. Integers make scores exact and ties real.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rbegir.errors import InputError, MismatchError, describe, whole_number

WORD = 64
MIN_N, MAX_N = 64, 1024
MAX_KEYWORD_PLANES = 4
MAX_PLANES = 8  # queries; keywords stop at MAX_KEYWORD_PLANES


def check_dimension(n: int) -> None:
    """Refuse a code dimension that is not a multiple of 64 between 64 and 1024."""
    if isinstance(n, bool) or not isinstance(n, (int, np.integer)) or n % WORD or not MIN_N <= n <= MAX_N:
        raise InputError(f"n must be a multiple of {WORD} from {MIN_N} to {MAX_N}, got {n!r}")


@dataclass(frozen=True, eq=False)
class Codes:
    """Packed binary codes: `planes` is uint64 [planes, count, words], `n` the dimension (words · 64)."""

    planes: npt.NDArray[np.uint64]
    n: int
    made_by: str = ""  # fingerprint of the encoder, if known

    def __post_init__(self) -> None:
        check_dimension(self.n)
        planes = self.planes
        if not isinstance(planes, np.ndarray) or planes.dtype != np.uint64:
            raise InputError(f"planes must be a uint64 array [planes, count, words], got {describe(planes)}")
        if planes.ndim != 3 or planes.shape[2] * WORD != self.n or not 1 <= planes.shape[0] <= MAX_PLANES:
            raise InputError(
                f"planes must have shape [1..{MAX_PLANES}, count, {self.n // WORD}] for n = {self.n}, "
                f"got {list(planes.shape)}"
            )

    @classmethod
    def from_signs(cls, signs: npt.NDArray[np.bool_]) -> Codes:
        """Pack signs [planes, count, n], True for +1."""
        if not isinstance(signs, np.ndarray) or signs.dtype != np.bool_ or signs.ndim != 3:
            raise InputError("signs must be a bool array [planes, count, n]")
        planes, count, n = signs.shape
        check_dimension(n)
        packed = np.packbits(signs, axis=2, bitorder="little")  # [planes, count, n / 8] uint8
        return cls(packed.view("<u8").astype(np.uint64, copy=False).reshape(planes, count, n // WORD), n)

    @classmethod
    def from_values(cls, values: npt.NDArray[np.int16], planes: int) -> Codes:
        """The inverse of `values`: odd integers [count, n] within ±(2^planes − 1)."""
        limit = 2 ** whole_number("planes", planes, 1, MAX_PLANES) - 1
        if values.ndim != 2 or not np.issubdtype(values.dtype, np.integer):
            raise InputError("values must be an integer array [count, n]")
        odd = bool((values & 1).all())
        if values.size and not (odd and values.min() >= -limit and values.max() <= limit):
            raise InputError(f"values of {planes} planes must be odd integers within ±{limit}")
        # [count, n] in 0 .. limit, plane 0 the highest bit
        bits = ((values.astype(np.int16) + np.int16(limit)) >> 1).astype(np.uint8)
        signs = np.stack([(bits >> shift) & 1 for shift in range(planes - 1, -1, -1)])  # [planes, count, n]
        return cls.from_signs(signs.view(np.bool_))

    @classmethod
    def concat(cls, parts: Sequence[Codes]) -> Codes:
        """The codes of all parts, in order; they must share n and the number of planes."""
        if not parts:
            raise InputError("nothing to concatenate: parts is empty")
        shapes = {(p.n, p.plane_count) for p in parts}
        if len(shapes) > 1:
            raise MismatchError(f"codes of different (n, planes) cannot be concatenated: {sorted(shapes)}")
        return cls(np.concatenate([p.planes for p in parts], axis=1), parts[0].n)

    @property
    def plane_count(self) -> int:
        return int(self.planes.shape[0])

    def __len__(self) -> int:
        return int(self.planes.shape[1])

    def __getitem__(self, index: slice | npt.NDArray[np.integer] | Sequence[int]) -> Codes:
        """A slice or selection of codes; always `Codes`, so a single one is `codes[i : i + 1]`."""
        return Codes(np.ascontiguousarray(self.planes[:, index]), self.n, self.made_by)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Codes) and self.n == other.n and np.array_equal(self.planes, other.planes)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Codes({len(self)} × {self.plane_count} planes × {self.n} bits)"

    def first_planes(self, count: int) -> Codes:
        """The coarser codes made of the base vector and the first count − 1 residuals."""
        if not 1 <= count <= self.plane_count:
            raise InputError(f"planes must be from 1 to {self.plane_count}, got {count}")
        return Codes(self.planes[:count], self.n)

    def signs(self) -> npt.NDArray[np.bool_]:
        """Unpack to signs [planes, count, n], True for +1."""
        raw = np.ascontiguousarray(self.planes.astype("<u8", copy=False)).view(np.uint8)
        return np.unpackbits(raw, axis=2, bitorder="little").astype(np.bool_)  # [planes, count, n]

    def values(self) -> npt.NDArray[np.int16]:
        """The odd integers [count, n] that scores are made of."""
        signs = self.signs()
        total = np.zeros(signs.shape[1:], dtype=np.int16)
        for sign in signs:
            total = (total << 1) + np.where(sign, np.int16(1), np.int16(-1))
        return total
