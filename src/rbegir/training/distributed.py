"""Several processes, one batch: started by torchrun, one process a GPU (or on CPUs, with gloo).

Each process reads its part of the file (`sharing.py`), embeds what it has of the pairs of a batch and of its
distinct keywords, and compares its queries with the keywords of all. The sum over processes of losses and
gradients is then that of one process with the whole batch, because pair weights sum to 1 over all of them.

    keywords   gathered with a gradient: what all losses say about a keyword comes back to its owner
    heads      one all-reduce of all small gradients laid end to end
    tables     one all-reduce of a dense [V, 3c] gradient each. Gathering the touched rows of each process
               would move more from three processes on: most are the same frequent grams
"""

from __future__ import annotations

import atexit
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from rbegir import errors
from rbegir.errors import RbegirError
from rbegir.training.sharing import Share

Bytes = npt.NDArray[np.uint8]
GOOD, BAD = 0, 1  # behind what a process gives to `Exchange`, or behind why it cannot
_data_group: dist.ProcessGroup | None = None  # of `Exchange`: reading goes on beside training


def join_processes(device: torch.device) -> Share:
    """This process's share of the work, after joining the group that torchrun describes, if there is one.

    The group lives as long as the process: a second one under the same torchrun would meet the first one's
    addresses in its store. So would processes that torchrun starts again after one was lost: every attempt
    has a part of the store to itself.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return Share()
    global _data_group
    if not dist.is_initialized():
        store, rank, world = next(iter(rendezvous("env://")))
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        dist.init_process_group(
            "nccl" if device.type == "cuda" else "gloo",
            store=PrefixStore(f"attempt-{attempt}", store),
            rank=rank,
            world_size=world,
        )
        _data_group = dist.new_group(backend="gloo")
        atexit.register(dist.destroy_process_group)
    return Share(dist.get_rank(), dist.get_world_size())


class Exchange:
    """Bytes of every process to every process [size], while the file is read; in turn, in one thread of each.

    Who cannot read on says so in place of what the others wait for, and all end with the same error.
    """

    def __init__(self, share: Share | None = None) -> None:
        self.share = share or Share()
        self._received: RbegirError | None = None

    def __call__(self, payload: Bytes) -> list[Bytes]:
        """What each process gave, by rank."""
        if self.share.world == 1:
            return [payload]
        answers = self._all(payload, GOOD)
        for answer in answers:
            if answer[-1] == BAD:
                kind, message, hint = json.loads(answer[:-1].tobytes())
                self._received = getattr(errors, kind)(message, hint=hint)
                raise self._received
        return [answer[:-1] for answer in answers]

    @contextmanager
    def failing_together(self) -> Iterator[None]:
        """Tell the others of an error on the way to the next exchange."""
        try:
            yield
        except RbegirError as error:
            if self.share.world > 1 and error is not self._received:
                about = json.dumps([type(error).__name__, error.message, error.hint])
                self._all(np.frombuffer(about.encode(), np.uint8), BAD)
            raise

    def _all(self, mine: Bytes, mark: int) -> list[Bytes]:
        """Every process's payload and mark. Payloads are large: they are copied once, into what is sent."""
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.share.world)]
        dist.all_gather(sizes, torch.tensor([len(mine) + 1]), group=_data_group)
        padded = np.zeros(max(int(size) for size in sizes), np.uint8)
        padded[: len(mine)] = mine
        padded[len(mine)] = mark
        found = [torch.empty(len(padded), dtype=torch.uint8) for _ in sizes]
        dist.all_gather(found, torch.from_numpy(padded), group=_data_group)
        return [part.numpy()[: int(size)] for part, size in zip(found, sizes, strict=True)]


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, mine: Tensor, owned: tuple[int, ...], rank: int) -> Tensor:
        ctx.owned, ctx.rank = owned, rank
        padded = mine.new_zeros((max(owned), mine.shape[1]))
        padded[: len(mine)] = mine
        parts = [torch.empty_like(padded) for _ in owned]
        dist.all_gather(parts, padded)
        return torch.cat([part[:count] for part, count in zip(parts, owned, strict=True)])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        total = grad.contiguous().clone()
        dist.all_reduce(total)
        return torch.split(total, ctx.owned)[ctx.rank], None, None


def gather(mine: Tensor, owned: tuple[int, ...], share: Share) -> Tensor:
    """The rows of all processes, in order of rank; `owned` says how many each has.  [Σ owned, n]"""
    if share.world == 1:
        return mine
    return _Gather.apply(mine, owned, share.rank)  # type: ignore[no-any-return, no-untyped-call]


@torch.no_grad()
def sum_gradients(dense: Iterable[nn.Parameter], tables: Iterable[nn.Parameter], share: Share) -> None:
    """Replace each gradient by the sum over the processes."""
    if share.world == 1:
        return
    parameters = list(dense)
    # a process whose share is empty has no gradients: it adds zeros
    flat = torch.cat([(p.grad if p.grad is not None else torch.zeros_like(p)).flatten() for p in parameters])
    dist.all_reduce(flat)
    for parameter, part in zip(parameters, torch.split(flat, [p.numel() for p in parameters]), strict=True):
        parameter.grad = part.view_as(parameter)
    for table in tables:
        total = torch.zeros_like(table) if table.grad is None else table.grad.to_dense()
        touched = torch.zeros(len(table), device=table.device)
        if table.grad is not None:
            touched[table.grad.coalesce().indices()[0]] = 1
        dist.all_reduce(total)
        dist.all_reduce(touched)
        rows = touched.nonzero().T  # [1, touched]
        table.grad = torch.sparse_coo_tensor(
            rows, total[rows[0]], table.shape, is_coalesced=True, check_invariants=False
        )


def wait_for_all(share: Share) -> None:
    """Go on when every process has come this far."""
    if share.world > 1:
        dist.barrier()


def of_the_first(values: Sequence[float], device: torch.device, share: Share) -> list[float]:
    """The numbers of the first process, where all have to decide alike."""
    if share.world == 1:
        return list(values)
    numbers = torch.tensor(values, dtype=torch.float64, device=device)
    dist.broadcast(numbers, 0)
    return numbers.tolist()


def sum_scalar(value: Tensor, share: Share) -> Tensor:
    """The sum of a number over the processes."""
    if share.world > 1:
        dist.all_reduce(value)
    return value
