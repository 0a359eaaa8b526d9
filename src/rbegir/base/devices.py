"""Compute resources: the CPUs available to this process, its threads, and GPUs by name.

torch is imported only when a GPU is asked for.
"""

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

from rbegir.errors import DeviceError, InputError, needing

T = TypeVar("T")
ROUNDED = 2e-6  # seconds by which Python may round a switch interval down


def cpu_count() -> int:
    """The number of CPUs that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def ahead(items: Iterable[T]) -> Iterator[T]:
    """Yield the items in order; a thread produces the next one while the current one is used.

    This helps when producing and consuming items use different resources, or when one of them runs on a
    single core: reading while tokenizing, NumPy passes while a search uses all cores.
    """
    iterator = iter(items)
    end = object()
    with ThreadPoolExecutor(1, thread_name_prefix="rbegir-ahead") as pool:
        waiting = pool.submit(next, iterator, end)
        while (item := waiting.result()) is not end:
            waiting = pool.submit(next, iterator, end)
            yield item  # type: ignore[misc]


@contextmanager
def prompt_threads(seconds: float) -> Iterator[None]:
    """Let no thread keep the interpreter from another for longer than this; Python's default is 5 ms.

    A thread that waits for disks, devices or native code leaves the interpreter and comes back many times,
    and each return may wait behind Python code of another thread.
    """
    before = sys.getswitchinterval()
    if before <= seconds:
        yield
        return
    sys.setswitchinterval(seconds)
    try:
        yield
    finally:
        if sys.getswitchinterval() > seconds - ROUNDED:  # otherwise another thread has set a smaller one
            sys.setswitchinterval(before)


def names_of(device: object) -> list[str]:
    """The device names in an argument that is one name or a list of names."""
    names = [device] if isinstance(device, str) else device
    if not isinstance(names, Sequence) or not names or not all(isinstance(name, str) for name in names):
        raise InputError(f"device must be a name such as 'cpu' or a list of such names, got {device!r}")
    return list(names)


def split_name(name: object, *others: str) -> tuple[str, int | None]:
    """'cuda:1' → ('cuda', 1), 'cuda' → ('cuda', None), 'cpu' → ('cpu', None).

    `others` are names that the caller accepts besides these.
    """
    if isinstance(name, str):
        kind, colon, number = name.partition(":")
        if (kind in ("cpu", *others) and not colon) or (kind == "cuda" and not colon):
            return kind, None
        if kind == "cuda" and number.isascii() and number.isdecimal():
            return kind, int(number)
    known = "".join(f"{other!r}, " for other in others)
    raise InputError(f"device must be {known}'cpu', 'cuda' or 'cuda:N', got {name!r}")


def gpu_number(name: str, default: int = 0) -> int:
    """The number of the GPU called 'cuda' (the default one) or 'cuda:N'; raise if it does not exist."""
    _, number = split_name(name)
    with needing(f"device {name!r} needs torch", "pip install 'rbegir[gpu]', or use device='cpu'"):
        import torch
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not count:
        raise DeviceError(f"device {name!r} was asked for, but torch finds no GPU", hint="use device='cpu'")
    wanted = default if number is None else number
    if wanted >= count:
        found = "there is 1 GPU" if count == 1 else f"there are {count} GPUs"
        raise DeviceError(
            f"device 'cuda:{wanted}' was asked for, but {found}",
            hint="it is cuda:0" if count == 1 else f"they are cuda:0 … cuda:{count - 1}",
        )
    return wanted
