"""Which backend serves which device."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import NamedTuple

from rbegir.base.devices import names_of, split_name
from rbegir.errors import InputError
from rbegir.search.backend import Backend, Progress


class BackendEntry(NamedTuple):
    """A backend class by name, imported when it is first opened."""

    module: str
    name: str
    refines: bool  # a progressive search saves time; else it is the exact search


BACKENDS = {
    "cpu": BackendEntry("rbegir.search.cpu", "CpuBackend", refines=True),
    "cuda": BackendEntry("rbegir.search.gpu.backend", "GpuBackend", refines=False),
    "interpreter": BackendEntry("rbegir.search.gpu.backend", "GpuBackend", refines=False),
}


def entry_of(device: str) -> BackendEntry:
    """The backend of a device: 'cpu', 'cuda', 'cuda:1' or 'interpreter'."""
    return BACKENDS[device if device in BACKENDS else split_name(device)[0]]


def open_backend(
    device: str | Sequence[str],
    n: int,
    planes: int,
    threads: int | None = None,
    progress: Progress | None = None,
) -> Backend:
    """The backend for codes of `planes` planes and dimension n on one device, or on a list of devices.

    "interpreter" runs the GPU kernels on the CPU, slowly, under Triton's interpreter: for tests and for
    debugging where there is no GPU. It needs TRITON_INTERPRET=1 in the environment.
    `threads` bounds the CPU threads of a search. `progress` is called with (keywords loaded, keywords to
    load) while keywords are copied to a GPU.
    """
    names = names_of(device)
    entries = {entry_of(name) for name in names}
    if len(entries) > 1:
        raise InputError("device 'cpu' cannot be mixed with others", hint="name GPUs only, or 'cpu' alone")
    entry = entries.pop()
    backend: type[Backend] = getattr(importlib.import_module(entry.module), entry.name)
    return backend.open(names, n, planes, threads=threads, progress=progress)
