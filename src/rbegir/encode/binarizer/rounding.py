"""Real vectors → odd integers whose direction is nearest.

A code counts by its direction alone (the score divides by ‖b‖), so the best code of y maximises

    cos(y, b) = y·b / (‖y‖ ‖b‖)                       b ∈ {±1, ±3, … ±(2^P − 1)}^n

For one plane that is the sign. For more planes b is the rounding of y/s to odd integers for some step s,
and which s is best differs from row to row: several are tried, spread around the one that suits a Gaussian,
and each row keeps its best. Rejected: one step for all rows, which is what scalar quantisers do; rows with
long tails lose by it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from rbegir._native import _core
from rbegir._native.isa import choose_isa
from rbegir.base.devices import cpu_count
from rbegir.codes.planes import Codes
from rbegir.encode.binarizer.vectors import Floats, dots

# The step of a uniform quantiser with 2^P levels that suits a unit Gaussian best, in units of half a level.
GAUSSIAN_STEP = {1: 0.798, 2: 0.498, 3: 0.293, 4: 0.1676, 5: 0.0943, 6: 0.0524, 7: 0.0288, 8: 0.0157}
SPREAD = 2.0 ** np.linspace(-0.6, 0.6, 13)


def odd(y: Floats, planes: int) -> Floats:
    """y rounded to the nearest odd integers within ±(2^planes − 1), as floats; 0 becomes +1."""
    limit = float(2**planes - 1)
    rounded: Floats = np.clip(2.0 * np.floor(y * 0.5) + 1.0, -limit, limit).astype(np.float32, copy=False)
    return rounded


def rounded(y: Floats, planes: int) -> Floats:
    """y rounded with the step that suits a Gaussian of each row's spread: a start for a search."""
    spread = np.sqrt(dots(y, y) / np.float32(y.shape[1])) * np.float32(GAUSSIAN_STEP[planes])
    return odd(y / np.maximum(spread, np.float32(1e-30))[:, None], planes)


def packed(values: npt.NDArray[Any], planes: int) -> Codes:
    """Odd numbers [count, n], known to be within the limits, as codes; plane 0 is the highest bit."""
    bits = ((values.astype(np.int8) + np.int8(2**planes - 1)) >> 1).view(np.uint8)  # [count, n] in 0 .. limit
    signs = [(bits >> (planes - 1 - plane)) & 1 for plane in range(planes)]
    words = [
        np.packbits(sign, axis=1, bitorder="little").view("<u8") for sign in signs
    ]  # [count, words] each
    return Codes(np.stack(words).astype(np.uint64, copy=False), values.shape[1])


def nearest(y: Floats, planes: int) -> npt.NDArray[np.int16]:
    """The odd integers [count, n] whose direction is nearest to y [count, n], of the steps tried."""
    if planes == 1:
        return np.where(y >= 0, np.int16(1), np.int16(-1))
    steps = (GAUSSIAN_STEP[planes] * SPREAD).astype(np.float32)
    return _core.nearest(np.ascontiguousarray(y, np.float32), planes, steps, cpu_count(), choose_isa())
