"""Random searches, and whether a backend equals the reference in them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rbegir.base import masks
from rbegir.codes.layout import pack
from rbegir.codes.planes import Codes
from rbegir.search.backend import Backend, Partition
from rbegir.search.items import ItemOrder
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


def items_of(rng: np.random.Generator, total: int, longest: int, *, scattered: float = 0.0) -> ItemOrder:
    """Items of 1 to `longest` keywords that lie together, but for a share whose keywords lie anywhere. One
    keyword in 11 belongs to no item."""
    lengths = rng.integers(1, longest + 1, total)
    positions = np.delete(np.arange(total), np.arange(5, total, 11))
    items = np.repeat(np.arange(total), lengths)[: len(positions)]
    moved = np.flatnonzero(rng.random(len(positions)) < scattered)
    items[moved] = items[rng.permutation(moved)]
    by_item = np.argsort(items, kind="stable")
    starts = np.flatnonzero(np.diff(items[by_item], prepend=-1))
    return ItemOrder(positions[by_item], np.append(starts, len(items)))


def assert_items_equal(backend: Backend, case: Case, order: ItemOrder) -> None:
    """MaxSim: the items, scores and first keywords of the reference."""
    found = backend.maxsim(case.parts, case.values, order, case.k)
    wanted = ReferenceBackend(case.n, case.planes).maxsim(case.parts, case.values, order, case.k)
    np.testing.assert_array_equal(found.items, wanted.items)
    np.testing.assert_array_equal(found.scores, wanted.scores)
    np.testing.assert_array_equal(found.firsts, wanted.firsts)
