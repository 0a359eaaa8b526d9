"""Which backend answers for a device: the one place that knows."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from rbegir.errors import InputError
from rbegir.search.cpu import CpuBackend

if TYPE_CHECKING:
    from rbegir.search.gpu.backend import GpuBackend


def open_backend(
    device: str | Sequence[str],
    n: int,
    planes: int,
    threads: int | None,
    progress: Callable[[int, int], None] | None = None,
) -> CpuBackend | GpuBackend:
    """The backend for codes of this shape on a device, or on several: 'cpu', 'cuda', 'cuda:1', a list.

    "interpreter" runs the GPU kernels on the CPU, slowly, under Triton's interpreter: for tests and for
    finding faults where there is no card. It needs TRITON_INTERPRET=1 in the environment.
    `progress` is called with (keywords uploaded, of how many) while keywords go to a GPU.
    """
    names = [device] if isinstance(device, str) else device
    if not isinstance(names, Sequence) or not names or not all(isinstance(name, str) for name in names):
        raise InputError(f"device must be a name such as 'cpu' or a list of such names, got {device!r}")
    if list(names) == ["cpu"]:
        return CpuBackend(n, planes, threads=threads)
    if "interpreter" in names:
        if os.environ.get("TRITON_INTERPRET") != "1":
            raise InputError("device 'interpreter' needs TRITON_INTERPRET=1 in the environment")
        names = ["cpu" if name == "interpreter" else name for name in names]
    elif "cpu" in names:
        raise InputError("device 'cpu' cannot be mixed with others", hint="name GPUs only, or 'cpu' alone")
    from rbegir.search.gpu.backend import GpuBackend

    return GpuBackend(n, planes, names, progress=progress)
