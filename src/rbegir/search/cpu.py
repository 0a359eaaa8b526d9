"""Exact search on the CPU: the Python side of the native scan (`_native/scan_*.cpp`).

There are kernels for each instruction set of `rbegir._native.isa`. A backend uses the best one that the CPU
supports; `isa=` or the environment variable RBEGIR_ISA forces another. The number of threads defaults to the
number of CPUs that this process may use.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Self

from rbegir._native import _core
from rbegir._native.isa import choose_isa
from rbegir.base.checks import whole_number
from rbegir.base.devices import cpu_count
from rbegir.errors import InputError
from rbegir.search.backend import Backend, Progress
from rbegir.search.partition import Candidates, Int64s, Partition, Values, check_search

MAX_THREADS = 1024
EMULATED = ("avx512-emulated",)  # slow: the AVX-512 kernels in plain C++, to test them on any CPU


class CpuBackend(Backend):
    """Searches with the native scan on the threads of this process."""

    def __init__(self, n: int, planes: int, *, threads: int | None = None, isa: str | None = None) -> None:
        super().__init__(n, planes)
        self.threads = whole_number("threads", cpu_count() if threads is None else threads, 1, MAX_THREADS)
        self.isa = choose_isa(isa, emulated=EMULATED)

    @classmethod
    def open(
        cls, devices: Sequence[str], n: int, planes: int, *, threads: int | None, progress: Progress | None
    ) -> Self:
        if len(devices) > 1:
            raise InputError("device 'cpu' must stand alone", hint="bound its threads with threads=")
        return cls(n, planes, threads=threads)

    def with_planes(self, planes: int) -> CpuBackend:
        return CpuBackend(self.n, planes, threads=self.threads, isa=self.isa)

    def search(self, partitions: Sequence[Partition], values: Values, k: int) -> Candidates:
        parts, values, k = check_search(partitions, values, k, self.n, self.planes)
        total = sum(part.count for part in parts)
        return self._run(_core.scan_search, parts, values, min(k, total))

    def _rescore(self, parts: list[Partition], values: Values, positions: Int64s, k: int) -> Candidates:
        return self._run(_core.scan_rescore, parts, values, positions, min(k, positions.shape[1]))

    def _run(self, scan: Callable[..., Any], parts: list[Partition], *arguments: Any) -> Candidates:
        packed = [(part.packed, part.count, part.mask) for part in parts]
        return Candidates(*scan(packed, *arguments, planes=self.planes, threads=self.threads, isa=self.isa))
