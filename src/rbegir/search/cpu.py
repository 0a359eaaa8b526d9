"""Exact search on the CPU: the Python side of the native scan (`_native/scan_*.cpp`).

There are kernels for each instruction set of `rbegir._native`. A backend uses the best one that the CPU
supports; `isa=` or the environment variable RBEGIR_ISA forces another. The number of threads defaults to the
number of CPUs that this process may use.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rbegir._native import _core, choose_isa
from rbegir.base.devices import cpu_count
from rbegir.errors import whole_number
from rbegir.search.backend import Backend
from rbegir.search.items import ItemHits, ItemOrder, best_items
from rbegir.search.partition import Candidates, Int64s, Limits, Partition, Values

MAX_THREADS = 1024
FILTERED = 8  # queries per filter that are worth a scan of what the filter passes …
ALONE = 2  # … and so are so few queries
# slow: the AVX-512 kernels of the scan in plain C++, to test them on any CPU
# (MaxSim then takes the portable ones)
EMULATED = ("avx512-emulated", "avx512bw-emulated")


class CpuBackend(Backend):
    """Searches with the native scan on the threads of this process."""

    def __init__(self, n: int, planes: int, *, threads: int | None = None, isa: str | None = None) -> None:
        super().__init__(n, planes)
        self.threads = whole_number("threads", cpu_count() if threads is None else threads, 1, MAX_THREADS)
        self.isa = choose_isa(isa, emulated=EMULATED)

    def with_planes(self, planes: int) -> CpuBackend:
        return CpuBackend(self.n, planes, threads=self.threads, isa=self.isa)

    def _find(self, parts: list[Partition], values: Values, k: int, limits: Limits | None) -> Candidates:
        if limits is not None and parts and parts[0].filters:
            few_filters = FILTERED * len(parts[0].filters) <= len(values)
            if few_filters or len(values) <= ALONE:
                return self._by_filter(parts, values, k, limits)
        rows = None if limits is None else np.stack(limits, axis=1)  # [queries, 4]
        total = sum(part.count for part in parts)
        return self._run(_core.scan_search, parts, values, min(k, total), rows)

    def rescore(
        self, partitions: Sequence[Partition], values: Values, positions: Int64s, k: int
    ) -> Candidates:
        k = min(k, positions.shape[1])
        return self._run(_core.scan_rescore, list(partitions), values, positions, k)

    def _maxsim(self, parts: list[Partition], values: Values, order: ItemOrder, k: int) -> ItemHits:
        begins = np.cumsum([0, *(part.count for part in parts)]).tolist()
        listed = [
            (part.packed, part.count, part.mask, begin) for part, begin in zip(parts, begins, strict=False)
        ]
        items = len(order.starts) - 1
        scores, firsts = np.empty(items), np.empty(items, np.int64)
        isa = "portable" if self.isa in EMULATED else self.isa
        _core.maxsim(
            listed, values, order.positions, order.starts, scores, firsts,
            planes=self.planes, threads=self.threads, isa=isa,
        )  # fmt: skip
        return best_items(np.arange(items), scores, firsts, k)

    def _run(self, scan: Callable[..., Any], parts: list[Partition], *arguments: Any) -> Candidates:
        return Candidates(*scan(parts, *arguments, planes=self.planes, threads=self.threads, isa=self.isa))
