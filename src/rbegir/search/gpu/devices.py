"""GPUs by name, and what each brings to a search: kernels, resident keywords, a stream, clear faults."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext

import torch
from triton.errors import TritonError

from rbegir.errors import DeviceError, InputError
from rbegir.search.gpu.card import Card
from rbegir.search.gpu.replay import Replays
from rbegir.search.gpu.residency import Residency
from rbegir.search.gpu.runtime import INTERPRETED


def find_devices(names: str | Sequence[str]) -> list[torch.device]:
    """The devices of these names, or an error that says what is there."""
    listed = [names] if isinstance(names, str) else list(names)
    if not listed or not all(isinstance(name, str) for name in listed):
        raise InputError(f"device must be a name such as 'cuda' or a list of such names, got {names!r}")
    return [_find_device(name) for name in listed]


def _find_device(name: str) -> torch.device:
    kind, _, number = name.partition(":")
    if kind == "cpu" and not number and INTERPRETED:
        return torch.device("cpu")
    if kind != "cuda" or (number and not number.isdecimal()):
        raise InputError(f"device must be 'cpu', 'cuda' or 'cuda:N', got {name!r}")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not count:
        raise DeviceError(f"device {name!r} was asked for, but torch finds no GPU", hint="use device='cpu'")
    if int(number or 0) >= count:
        raise DeviceError(
            f"device {name!r} was asked for, but there are {count} GPUs",
            hint=f"they are cuda:0 … cuda:{count - 1}" if count > 1 else "it is cuda:0",
        )
    return torch.device("cuda", int(number or 0))


class Worker:
    """One device: its kernels, its keywords, its stream."""

    def __init__(self, n: int, planes: int, device: torch.device, memory: int | None) -> None:
        self.device = device
        self.card = Card(n, planes, device)
        self.replays = Replays(self.card)
        self.resident = Residency(n, planes, device, memory)
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]

    def forget(self) -> None:
        """Start afresh after a fault."""
        self.resident.clear()
        self.replays.clear()

    @contextmanager
    def active(self) -> Iterator[None]:
        """Work on this device and its stream; faults of the device become a DeviceError."""
        try:
            with (
                torch.cuda.device(self.device) if self.stream else nullcontext(),
                torch.cuda.stream(self.stream) if self.stream else nullcontext(),
            ):
                yield
        except torch.OutOfMemoryError as error:
            self.forget()
            raise DeviceError(
                f"{self.device} ran out of memory during a search",
                hint="search with a smaller k or fewer queries at once, or free memory on the device",
            ) from error
        except TritonError as error:  # an older card, or a driver that does not know this Triton
            self.forget()
            raise DeviceError(
                f"{self.device} cannot run the search kernels: {_first_line(error)}",
                hint="use device='cpu', or another version of triton and of the driver",
            ) from error
        except (RuntimeError, OSError) as error:
            self.forget()
            raise DeviceError(
                f"{self.device} failed during a search: {_first_line(error)}",
                hint="open the index again, in a new process if that fails too, or use device='cpu'",
            ) from error


def _first_line(error: Exception) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
