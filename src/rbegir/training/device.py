"""What training runs on: the device, its precision, and how many threads feed it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from rbegir.base.devices import cpu_count, gpu_number, split_name
from rbegir.training.config import TrainConfig


def resolve_device(name: str) -> torch.device:
    """auto, cpu, cuda or cuda:N as a device that is there; under torchrun cuda is the process's own GPU."""
    kind, _ = split_name(name, "auto")
    if kind == "auto":
        kind = name = "cuda" if torch.cuda.is_available() else "cpu"
    if kind == "cpu":
        return torch.device("cpu")
    device = torch.device("cuda", gpu_number(name, int(os.environ.get("LOCAL_RANK", "0"))))
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
