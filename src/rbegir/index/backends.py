"""Which backend answers for a device: the one place that knows."""

from __future__ import annotations

from rbegir.errors import DeviceError, InputError
from rbegir.search.cpu import CpuBackend


def open_backend(device: object, n: int, planes: int, threads: int | None) -> CpuBackend:
    """The backend for codes of this shape on a device."""
    if not isinstance(device, str):
        raise InputError(f"device must be a name such as 'cpu', got {device!r}")
    if device != "cpu":
        raise DeviceError(f"device {device!r} is not available in this installation", hint="use device='cpu'")
    return CpuBackend(n, planes, threads=threads)
