"""The oracle: search in plain NumPy, straight from the definitions. Slow, and equal to every other backend."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from rbegir.codes import score
from rbegir.codes.layout import check_keyword_planes, unpack
from rbegir.codes.planes import Codes, check_dimension
from rbegir.search.backend import (
    Candidates,
    Partition,
    check_k,
    check_partitions,
    check_values,
    read_mask,
)


def first_in_order(
    keys: npt.NDArray[np.int64], positions: npt.NDArray[np.int64], k: int
) -> npt.NDArray[np.intp]:
    """Indices of the best k of one query in the total order: key descending, position ascending."""
    return np.lexsort((positions, -keys))[:k]


class ReferenceBackend:
    """Scores every keyword with `codes.score` and sorts all of them."""

    def __init__(self, n: int, planes: int) -> None:
        check_dimension(n)
        check_keyword_planes(planes)
        self.n, self.planes = n, planes

    def scores(
        self, partitions: Sequence[Partition], values: npt.NDArray[np.int16], planes: int | None = None
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], int]:
        """Keys of all candidates [queries, candidates], their positions [candidates], and the keyword count."""
        values = check_values(values, self.n)
        parts = check_partitions(partitions, self.n, self.planes)
        if not parts:
            return np.zeros((len(values), 0), dtype=np.int64), np.zeros(0, dtype=np.int64), 0
        codes = Codes.concat([unpack(part.packed, part.count, self.n, self.planes) for part in parts])
        passes = np.concatenate([read_mask(part.mask, part.count) for part in parts])
        positions = np.flatnonzero(passes).astype(np.int64)
        keys = score.keys(values, codes.first_planes(planes or self.planes)[positions])
        return keys, positions, len(codes)

    def search(self, partitions: Sequence[Partition], values: npt.NDArray[np.int16], k: int) -> Candidates:
        """The best k of each query, exactly."""
        k = check_k(k)
        keys, positions, _ = self.scores(partitions, values)
        best = np.array([first_in_order(row, positions, k) for row in keys], dtype=np.intp)
        best = best.reshape(len(keys), min(k, len(positions)))
        return Candidates(np.take_along_axis(keys, best, axis=1), positions[best])
