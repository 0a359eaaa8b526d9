"""Random searches, and whether a backend equals the reference in them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rbegir.base import masks
from rbegir.codes.layout import pack
from rbegir.codes.planes import Codes
from rbegir.search.backend import Backend, Partition
from rbegir.search.reference import ReferenceBackend


class Case(NamedTuple):
    n: int
    planes: int
    parts: list[Partition]
    values: npt.NDArray[np.int16]
    k: int


def make_case(
    rng: np.random.Generator,
    n: int,
    planes: int,
    *,
    top: int = 7,
    odd: bool = True,
    queries: int = 1,
    k: int = 10,
    counts: tuple[int, ...] = (300,),
    density: float | None = None,
    copies: int | None = None,
) -> Case:
    """`density`: the share of candidates; `copies`: only so many different keywords, so that ties abound."""
    if odd:
        values = 2 * rng.integers(0, top + 1, (queries, n)) - top
    else:
        values = rng.integers(-top, top + 1, (queries, n))
    parts = []
    for count in counts:
        codes = Codes.from_signs(rng.random((planes, count, n)) < 0.5)
        if copies is not None and count:
            codes = codes[rng.integers(0, min(copies, count), count)]
        mask = None if density is None else masks.from_bools(rng.random(count) < density)
        parts.append(Partition(pack(codes), count, mask))
    return Case(n, planes, parts, values.astype(np.int16), k)


def assert_equal_to_reference(backend: Backend, case: Case) -> None:
    found = backend.search(case.parts, case.values, case.k)
    wanted = ReferenceBackend(case.n, case.planes).search(case.parts, case.values, case.k)
    np.testing.assert_array_equal(found.keys, wanted.keys)
    np.testing.assert_array_equal(found.positions, wanted.positions)
