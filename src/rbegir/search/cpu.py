"""Exact search on the CPU: a thin face of the native scan (`_native/scan_*.cpp`).

There are kernels for each instruction set of `rbegir._native.isa`. The best one that the CPU runs is chosen
when a backend is made; `isa=` or the environment variable RBEGIR_ISA forces another. Threads default to the
CPUs that this process may use.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from rbegir._native import _core
from rbegir._native.isa import choose_isa
from rbegir.codes.layout import check_keyword_planes
from rbegir.codes.planes import check_dimension
from rbegir.errors import InputError
from rbegir.search.backend import (
    Candidates,
    Partition,
    check_positions,
    check_search,
)
from rbegir.search.missrate import MissCertificate
from rbegir.search.paper import BLOCK, search_paper
from rbegir.search.progressive import Refining

MAX_THREADS = 1024
EMULATED = ("avx512-emulated",)  # slow: the AVX-512 kernels in plain C++, to test them on any CPU


def usable_cpus() -> int:
    """CPUs that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class CpuBackend(Refining):
    """Searches packed keywords of dimension n with a fixed number of planes."""

    def __init__(self, n: int, planes: int, *, threads: int | None = None, isa: str | None = None) -> None:
        check_dimension(n)
        check_keyword_planes(planes)
        if threads is None:
            threads = usable_cpus()
        if isinstance(threads, bool) or not isinstance(threads, int) or not 1 <= threads <= MAX_THREADS:
            raise InputError(f"threads must be an integer from 1 to {MAX_THREADS}, got {threads!r}")
        self.n, self.planes, self.threads, self.isa = n, planes, threads, choose_isa(isa, emulated=EMULATED)

    def search(self, partitions: Sequence[Partition], values: npt.NDArray[np.int16], k: int) -> Candidates:
        """The best k of each query, exactly."""
        parts, values, k = check_search(partitions, values, k, self.n, self.planes)
        total = sum(part.count for part in parts)
        keys, positions = _core.scan_search(
            [(part.packed, part.count, part.mask) for part in parts],
            values,
            min(k, total),
            planes=self.planes,
            threads=self.threads,
            isa=self.isa,
        )
        return Candidates(keys, positions)

    def rescore(
        self,
        partitions: Sequence[Partition],
        values: npt.NDArray[np.int16],
        positions: npt.NDArray[np.int64],
        k: int,
    ) -> Candidates:
        """The best k among the keywords at `positions` [queries, m] (masks do not matter here)."""
        parts, values, k = check_search(partitions, values, k, self.n, self.planes)
        positions = check_positions(positions, len(values), sum(part.count for part in parts))
        keys, best = _core.scan_rescore(
            [(part.packed, part.count, part.mask) for part in parts],
            values,
            positions,
            min(k, positions.shape[1]),
            planes=self.planes,
            threads=self.threads,
            isa=self.isa,
        )
        return Candidates(keys, best)

    def search_paper(
        self,
        partitions: Sequence[Partition],
        values: npt.NDArray[np.int16],
        k: int,
        *,
        per_thread: int = 256,
        queue: int = 1,
        block: int = BLOCK,
    ) -> tuple[Candidates, MissCertificate]:
        """The published selection (I = `per_thread`, q = `queue`, T_b = `block`) and what it may miss; see
        `paper`."""
        parts, values, k = check_search(partitions, values, k, self.n, self.planes)
        return search_paper(self, parts, values, k, per_thread=per_thread, queue=queue, block=block)

    def with_planes(self, planes: int) -> CpuBackend:
        """The same for codes of another number of planes."""
        return CpuBackend(self.n, planes, threads=self.threads, isa=self.isa)
