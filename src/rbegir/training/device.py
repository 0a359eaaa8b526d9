"""What training runs on: the device, its precision, and how many threads feed it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from rbegir.errors import DeviceError, InputError
from rbegir.training.config import TrainConfig


def cpu_count() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))


def resolve_device(name: str) -> torch.device:
    """auto, cpu, cuda or cuda:N as a device that is there; under torchrun cuda is the process's own GPU."""
    available = torch.cuda.is_available()
    if name == "auto":
        name = "cuda" if available else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise InputError(f"device must be auto, cpu, cuda or cuda:N, got {name!r}") from None
    if device.type == "cpu":
        return device
    if device.type != "cuda":
        raise InputError(f"device must be auto, cpu, cuda or cuda:N, got {name!r}")
    if not available:
        raise DeviceError("device cuda was asked for, but torch finds no GPU", hint="use --device cpu")
    index = int(os.environ.get("LOCAL_RANK", "0")) if device.index is None else device.index
    if index >= torch.cuda.device_count():
        raise DeviceError(
            f"device cuda:{index} was asked for, but there are {torch.cuda.device_count()} GPUs"
        )
    device = torch.device("cuda", index)
    torch.cuda.set_device(device)
    return device


@contextmanager
def matmul_precision(device: torch.device, settings: TrainConfig) -> Iterator[None]:
    """TF32 products on a GPU unless float32 is asked for. Codes are exact in TF32: few bits a number."""
    before = torch.get_float32_matmul_precision()
    if device.type == "cuda" and settings.precision != "float32":
        torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def batch_threads(device: torch.device) -> int:
    """Threads that build batches: a GPU trains faster than one thread can build."""
    return 1 if device.type == "cpu" else max(1, min(6, cpu_count() - 2))
