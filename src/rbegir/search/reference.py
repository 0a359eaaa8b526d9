"""The oracle: search in plain NumPy, straight from the definitions. Slow; every backend must equal it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from rbegir.base import masks
from rbegir.codes import score
from rbegir.codes.layout import unpack
from rbegir.codes.planes import Codes
from rbegir.search import paper
from rbegir.search.backend import Backend
from rbegir.search.items import ItemHits, ItemOrder, add_up, best_items
from rbegir.search.missrate import MissCertificate, certificate_of_threads
from rbegir.search.partition import Candidates, Int64s, Limits, Partition, Values


def first_in_order(keys: Int64s, positions: Int64s, k: int) -> npt.NDArray[np.intp]:
    """Indices of the best k of one query in the total order: key descending, position ascending."""
    return np.lexsort((positions, -keys))[:k]


class ReferenceBackend(Backend):
    """Scores every keyword with `codes.score` and sorts all of them."""

    def with_planes(self, planes: int) -> ReferenceBackend:
        return ReferenceBackend(self.n, planes)

    def scores(self, partitions: Sequence[Partition], values: Values) -> tuple[Int64s, Int64s]:
        """Keys of all candidates [queries, candidates] and their positions [candidates]."""
        if not partitions:
            return np.zeros((len(values), 0), dtype=np.int64), np.zeros(0, dtype=np.int64)
        codes = Codes.concat([unpack(part.packed, part.count, self.n, self.planes) for part in partitions])
        passes = np.concatenate([masks.to_bools(part.mask, part.count) for part in partitions])
        positions = np.flatnonzero(passes).astype(np.int64)
        return score.keys(values, codes[positions]), positions

    def _find(self, parts: list[Partition], values: Values, k: int, limits: Limits | None) -> Candidates:
        limits = limits or Limits.none(len(values))
        keys, positions = self.scores(parts, values)
        found = []
        for query, (row, limit) in enumerate(zip(keys, zip(*limits, strict=True), strict=True)):
            floor, before_key, before_position, number = (int(value) for value in limit)
            flags = [masks.to_bools(part.under(number).mask, part.count) for part in parts]
            passes = np.concatenate([np.zeros(0, np.bool_), *flags])[positions] & (row >= floor)
            passes &= (row < before_key) | ((row == before_key) & (positions > before_position))
            allowed = np.flatnonzero(passes)
            best = allowed[first_in_order(row[allowed], positions[allowed], k)]
            found.append((np.array([query]), Candidates(row[best][None], positions[best][None])))
        return Candidates.spread(len(values), found)

    def _maxsim(self, parts: list[Partition], values: Values, order: ItemOrder, k: int) -> ItemHits:
        """Item by item."""
        codes = Codes.concat([unpack(part.packed, part.count, self.n, self.planes) for part in parts])
        passes = np.concatenate([masks.to_bools(part.mask, part.count) for part in parts])
        keywords = codes.values().astype(np.float64)
        matches = keywords @ values.T.astype(np.float64) * (1 / np.sqrt((keywords**2).sum(axis=1)))[:, None]
        best, firsts = np.zeros((len(order.starts) - 1, len(values))), np.full(len(order.starts) - 1, -1)
        for item, (start, end) in enumerate(pairwise(order.starts)):
            own = order.positions[start:end]
            if (own := own[passes[own]]).size:
                best[item], firsts[item] = matches[own].max(axis=0), own[0]
        return best_items(np.arange(len(best)), add_up(best, values), firsts, k)

    def search_paper(
        self,
        partitions: Sequence[Partition],
        values: Values,
        k: int,
        *,
        per_thread: int = 256,
        queue: int = 1,
    ) -> tuple[Candidates, MissCertificate]:
        """Algorithm 1 of the paper, thread by thread."""
        keys, positions = self.scores(partitions, values)
        threads: dict[int, list[int]] = {}
        for index, position in enumerate(positions.tolist()):
            number, within = divmod(position, paper.BLOCK * per_thread)
            threads.setdefault(number * paper.BLOCK + within % paper.BLOCK, []).append(index)
        sizes = Counter(len(members) for members in threads.values())
        kept = min(k, sum(min(size, queue) * count for size, count in sizes.items()))
        result = Candidates(*(np.zeros((len(keys), kept), np.int64) for _ in Candidates._fields))
        for query, row in enumerate(keys):
            queues = [
                np.array(members)[first_in_order(row[members], positions[members], queue)]
                for members in threads.values()
            ]
            local = np.concatenate([np.zeros(0, np.intp), *queues])
            best = local[first_in_order(row[local], positions[local], k)]
            result.keys[query], result.positions[query] = row[best], positions[best]
        return result, certificate_of_threads(sizes, min(k, len(positions)), per_thread, queue)
