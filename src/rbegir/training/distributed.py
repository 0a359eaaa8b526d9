"""Several processes, one batch: which rows each of them owns, and what they exchange.

torchrun starts one process per GPU (or several on CPUs, with gloo). Each process reads its part of the file,
embeds the queries and distinct keywords of a batch that it owns, and compares its queries with the keywords
of all. Pair weights sum to 1 over all processes, so the sums of losses and gradients are those of one process
with the whole batch.

    keywords   gathered with a gradient: what all losses say about a keyword comes back to its owner
    heads      one all-reduce of all small gradients laid end to end
    tables     one all-reduce of a dense [V, 3c] gradient each. Gathering the touched rows of each process
               would move more from three processes on: most are the same frequent grams

*Who owns what.* The order of the pairs is a function of the seed and the file, whatever the number of
processes:

    chunk     rows [c·R, (c+1)·R) of the file, R as many as the shuffle buffer holds
    batch     a run of the permutation of the chunk's usable pairs by (seed, epoch, chunk)
    owner     Parquet: each chunk is cut into `world` runs of rows, and a process does not read row groups
              without a row of its own. Text formats: RUN rows per process in turn, since the number of rows
              is not known before they are read

A process reads, tokenises and keeps the rows it owns, and computes their pairs in every batch: of 16,384
pairs and 8 processes 2,048 ± 42. Of the other pairs of a chunk it keeps the owner, the weight and 64-bit
hashes of query and keyword, 22 bytes in all, from which it builds the same groups as one process would.

Rejected: equal slices of every batch. The permutation differs from epoch to epoch, so that every process
would need the texts of every pair sooner or later.
"""

import atexit
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from rbegir.encode.clsm.clsm import row_sparse
from rbegir.errors import RbegirError
from rbegir.training.loss import Groups, Ints

RUN = 256  # consecutive rows of a text format that one process owns
T = TypeVar("T")
Places = npt.NDArray[np.int64]
_data_group: dist.ProcessGroup | None = None  # of `Exchange`, which is used while training communicates, too

# what all processes know about a pair
KEY = np.dtype([("row", "<i8"), ("query", "<u8"), ("keyword", "<u8"), ("weight", "<f4")])
Keys = npt.NDArray[np.void]


@dataclass(frozen=True)
class Rank:
    """The number of this process, and how many there are."""

    number: int = 0
    world: int = 1


@dataclass(frozen=True)
class RowPlan:
    """Who reads which rows of a file of `total` rows (None: not known beforehand), `chunk` rows per chunk."""

    rank: Rank
    chunk: int
    total: int | None

    def owners(self, start: int, stop: int) -> Places:
        """The rank of each row from start to stop."""
        numbers = np.arange(start, stop)
        if self.total is None:
            return numbers // RUN % self.rank.world
        begin = numbers // self.chunk * self.chunk
        length = np.minimum(self.chunk, self.total - begin)
        return (numbers - begin) * self.rank.world // length

    def wanted(self, start: int, stop: int) -> npt.NDArray[np.bool_]:
        """Mask of the rows that belong to this process."""
        return np.asarray(self.owners(start, stop) == self.rank.number)


@dataclass(frozen=True)
class OwnRows:
    """The pairs of a chunk that are this process's, and whose the others are."""

    rank: Rank
    owner: npt.NDArray[np.int16]  # [pairs of the chunk]
    mine: Places  # [own] their numbers in the chunk, ascending
    query_keys: npt.NDArray[np.uint64]  # [pairs of the chunk] equal where the texts are
    keyword_keys: npt.NDArray[np.uint64]

    def local(self, pairs: Places) -> Places:
        """Numbers among the own pairs of some own pairs of the chunk."""
        return np.searchsorted(self.mine, pairs)

    def of_batch(self, pairs: Places, groups: Groups) -> tuple[Places, Ints, tuple[int, ...], Groups]:
        """This process's part of a batch. A keyword belongs to the owner of the first pair that has it.

        rows           [own] which pairs of the batch
        keyword rows   [owned keywords] which of the batch's, in order of first occurrence
        owned          distinct keywords of each process
        groups         of the own pairs; columns go by rank, then by first occurrence, as `gather` puts them
        """
        owner = self.owner[pairs]
        of_keyword = owner[groups.first]  # [distinct]
        rows = np.flatnonzero(owner == self.rank.number)
        columns = np.flatnonzero(of_keyword == self.rank.number)
        moved = np.empty(len(of_keyword), np.int32)  # old column → new column
        moved[np.argsort(of_keyword, kind="stable")] = np.arange(len(of_keyword), dtype=np.int32)
        known = owner[groups.known_rows] == self.rank.number
        mine = Groups(
            first=groups.first[columns],
            target=moved[groups.target[rows]],
            known_rows=np.searchsorted(rows, groups.known_rows[known]).astype(np.int32),
            known_columns=moved[groups.known_columns[known]],
            negatives=moved[groups.negatives[rows]],
        )
        owned = tuple(np.bincount(of_keyword, minlength=self.rank.world).tolist())
        return rows, columns.astype(np.int32), owned, mine


def join(rank: Rank, found: list[Keys]) -> tuple[OwnRows, npt.NDArray[np.float32]]:
    """The results of all processes for a chunk in the order of the file, and all weights."""
    keys = np.concatenate(found)
    owner = np.repeat(np.arange(rank.world, dtype=np.int16), [len(some) for some in found])
    order = np.argsort(keys["row"], kind="stable")
    owner = owner[order]
    part = OwnRows(
        rank, owner, np.flatnonzero(owner == rank.number), keys["query"][order], keys["keyword"][order]
    )
    return part, keys["weight"][order]


def join_processes(device: torch.device) -> Rank:
    """Join the group that torchrun describes, if there is one; returns which process this is.

    The group lives as long as the process, since a second one would find the addresses of the first in the
    store. Processes that torchrun restarts would, too, so every attempt has its own part of the store.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return Rank()
    global _data_group
    if not dist.is_initialized():
        store, number, world = next(iter(rendezvous("env://")))
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        dist.init_process_group(
            "nccl" if device.type == "cuda" else "gloo",
            store=PrefixStore(f"attempt-{attempt}", store),
            rank=number,
            world_size=world,
        )
        _data_group = dist.new_group(backend="gloo")
        atexit.register(dist.destroy_process_group)
    return Rank(dist.get_rank(), dist.get_world_size())


class Exchange:
    """Gives an object of every process to every process while the file is read, in one thread of each.

    A process that cannot read on sends its error instead, and all processes raise that error.
    """

    def __init__(self, rank: Rank | None = None) -> None:
        self.rank = rank or Rank()
        self._received: RbegirError | None = None

    def __call__(self, own: T) -> list[T]:
        """The objects of all processes, by rank."""
        if self.rank.world == 1:
            return [own]
        answers = self._all(own)
        for answer in answers:
            if isinstance(answer, RbegirError):
                self._received = answer
                raise answer
        return answers

    @contextmanager
    def failing_together(self) -> Iterator[None]:
        """Send an error that occurs inside to the other processes, in place of the next object."""
        try:
            yield
        except RbegirError as error:
            if self.rank.world > 1 and error is not self._received:
                self._all(error)
            raise

    def _all(self, own: Any) -> list[Any]:
        answers: list[Any] = [None] * self.rank.world
        dist.all_gather_object(answers, own, group=_data_group)
        return answers


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


def gather(mine: Tensor, owned: tuple[int, ...], rank: Rank) -> Tensor:
    """The rows of all processes, in order of rank; `owned` says how many each has.  [Σ owned, n]"""
    if rank.world == 1:
        return mine
    return _Gather.apply(mine, owned, rank.number)  # type: ignore[no-any-return, no-untyped-call]


@torch.no_grad()
def sum_gradients(dense: Iterable[nn.Parameter], tables: Iterable[nn.Parameter], rank: Rank) -> None:
    """Replace each gradient by the sum over the processes."""
    if rank.world == 1:
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
        table.grad = row_sparse(rows, total[rows[0]], table.shape)


def wait_for_all(rank: Rank) -> None:
    """Wait until every process has come this far."""
    if rank.world > 1:
        dist.barrier()


def of_the_first(values: Sequence[float], device: torch.device, rank: Rank) -> list[float]:
    """The numbers of the first process, for decisions that all processes must take alike."""
    if rank.world == 1:
        return list(values)
    numbers = torch.tensor(values, dtype=torch.float64, device=device)
    dist.broadcast(numbers, 0)
    return numbers.tolist()


def sum_scalar(value: Tensor, rank: Rank) -> Tensor:
    """The sum of a number over the processes."""
    if rank.world > 1:
        dist.all_reduce(value)
    return value
