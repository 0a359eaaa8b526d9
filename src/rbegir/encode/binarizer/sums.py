"""Products whose bits depend on their operands alone.

A code must be a function of its vector and the Binarizer, not of the vectors that are encoded beside it. The
products of a BLAS are no such function: the order of their additions depends on the shape of the batch, the
number of threads and the CPU. These sum in one fixed order everywhere (`_native/float_kernels.hpp`).

NumPy's operations on single elements are rounded correctly, so they may stand between a vector and its code;
its sums (`@`, `einsum`, `mean`) may not.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from rbegir._native import _core
from rbegir._native.isa import choose_isa
from rbegir.base.devices import cpu_count

Array = npt.NDArray[np.float32]


def product(a: Array, b: Array) -> Array:
    """a @ b of [rows, depth] and [depth, columns]."""
    return _core.product(_plain(a), _plain(b), cpu_count(), choose_isa())


def dots(a: Array, b: Array) -> Array:
    """The inner products [rows] of the rows of a and b [rows, width]."""
    return _core.dots(_plain(a), _plain(b), choose_isa())


def lengths(a: Array) -> Array:
    """The lengths [rows] of the rows of a."""
    roots: Array = np.sqrt(dots(a, a))
    return roots


def _plain(array: Array) -> Array:
    return np.ascontiguousarray(array, np.float32)
