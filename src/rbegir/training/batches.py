"""From tokenised pairs to the arrays of one training step.

A `Chunk` is as many pairs as the shuffle buffer holds, tokenised once: every distinct query and keyword
text, every distinct word, and each pair as two text numbers. A batch is then cut out of it by
the native module, without holding the interpreter's lock:

    pairs → texts → words (dropout) → distinct words of the batch → their grams (dropout) → the transposed bag

All the arrays of a batch live in one int32 buffer, each aligned to 64 bytes, so that a step needs a single
copy from (pinned) host memory to the device; there the arrays are views of the copy.

Everything random is a function of (seed, epoch, step) and of the pair's place in the batch: no state is
carried from batch to batch. Batches can be built by several threads in any order, a resumed run skips to its
step, and each of several processes can build its share of a batch and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rbegir._native import _core
from rbegir.model.clsm import TowerBatch, transpose
from rbegir.text.tokenizer import GramBatch
from rbegir.training.groups import Ints, group

ALIGN = 16  # int32 values: 64 bytes
QUERY, KEYWORD = 0, 1


@dataclass(frozen=True)
class Chunk:
    """Tokenised pairs: pair i is (query[i], keyword[i]), numbers of texts in the two gram batches."""

    query_texts: GramBatch
    keyword_texts: GramBatch
    query: Ints  # [pairs]
    keyword: Ints  # [pairs]
    weight: npt.NDArray[np.float32]  # [pairs]

    def __len__(self) -> int:
        return len(self.query)


@dataclass(frozen=True)
class Share:
    """Which part of each batch this process computes."""

    rank: int = 0
    world: int = 1

    def bounds(self, count: int) -> npt.NDArray[np.int64]:
        """[world + 1] borders of the ranks' pairs in a batch of `count`."""
        return np.arange(self.world + 1) * count // self.world


class StepBatch(NamedTuple):
    """One step's input. All tensors are views of one buffer; pairs are this process's share of the batch."""

    query: TowerBatch  # [pairs]
    keyword: TowerBatch  # distinct keywords owned by this process
    target: Tensor  # [pairs] int32, column of the positive among the distinct keywords of all processes
    known_rows: Tensor  # [known] int32
    known_columns: Tensor  # [known] int32
    negatives: Tensor  # [pairs, count] int32
    weight: Tensor  # [pairs] float32, sums to 1 over all processes
    owned: tuple[int, ...]  # distinct keywords of each process


class HostBatch(NamedTuple):
    """A StepBatch still on the host: the buffer and where each array lies in it."""

    buffer: Tensor  # int32 [values]
    lengths: tuple[int, ...]  # of the arrays, in order
    pairs: int  # in the batch, all processes together
    negatives: int
    owned: tuple[int, ...]

    def to(self, device: torch.device) -> StepBatch:
        """Copy to the device (asynchronously from pinned memory) and cut into views."""
        buffer = self.buffer.to(device, non_blocking=True)
        arrays, start = [], 0
        for length in self.lengths:
            arrays.append(buffer[start : start + length])
            start += -(-length // ALIGN) * ALIGN
        towers, rest = arrays[:14], arrays[14:]
        return StepBatch(
            query=TowerBatch(*towers[:7]),
            keyword=TowerBatch(*towers[7:]),
            target=rest[0],
            known_rows=rest[1],
            known_columns=rest[2],
            negatives=rest[3].view(len(rest[0]), self.negatives),
            weight=rest[4].view(torch.float32),
            owned=self.owned,
        )


def _pack(arrays: list[npt.NDArray[np.int32]], *, pin: bool) -> tuple[Tensor, tuple[int, ...]]:
    lengths = tuple(len(a) for a in arrays)
    total = sum(-(-n // ALIGN) * ALIGN for n in lengths)
    buffer = torch.empty(total, dtype=torch.int32, pin_memory=pin)
    view, start = buffer.numpy(), 0
    for array, length in zip(arrays, lengths, strict=True):
        view[start : start + length] = array
        start += -(-length // ALIGN) * ALIGN
    return buffer, lengths


def cut(
    texts: GramBatch,
    items: Ints,
    *,
    dropout: float = 0.0,
    gram_dropout: float = 0.0,
    key: int = 0,
    places: npt.NDArray[np.int64] | None = None,
) -> GramBatch:
    """The gram batch of some texts of a larger one, each word left out with probability `dropout`.

    A text keeps at least one word. The draw (SplitMix64) depends on `key`, the text's number in `places` and
    the word's place. The distinct words are numbered in the order they have in the larger batch; each of
    their grams is left out with probability `gram_dropout`, wherever the word stands, but for the last one.
    """
    if places is None:
        places = np.zeros(len(items), dtype=np.int64)
    return GramBatch(
        *_core.cut_batch(*texts, np.ascontiguousarray(items), dropout, gram_dropout, key, places)
    )


def build(
    chunk: Chunk,
    pairs: npt.NDArray[np.int64],
    *,
    key: tuple[int, int, int],
    dropout: float = 0.0,
    gram_dropout: float = 0.0,
    negatives: int = 0,
    share: Share | None = None,
    pin: bool = False,
) -> HostBatch:
    """The batch of the given pairs of a chunk; `key` is (seed, epoch, step)."""
    share = share or Share()
    rng = np.random.default_rng(key)
    keys = rng.integers(0, 2**63, size=2)  # of the dropout on either side
    query, keyword = chunk.query[pairs], chunk.keyword[pairs]
    groups = group(query, keyword, negatives=negatives, rng=rng)
    bounds = share.bounds(len(pairs))
    low, high = int(bounds[share.rank]), int(bounds[share.rank + 1])
    owners = np.searchsorted(
        groups.first, bounds
    )  # a distinct keyword belongs to the process of its first pair
    first = groups.first[owners[share.rank] : owners[share.rank + 1]]
    mine = (groups.known_rows >= low) & (groups.known_rows < high)
    weight = chunk.weight[pairs] / chunk.weight[pairs].sum()

    arrays: list[Ints] = []
    for texts, items, places, side in (
        (chunk.query_texts, query[low:high], np.arange(low, high), QUERY),
        (chunk.keyword_texts, keyword[first], first.astype(np.int64), KEYWORD),
    ):
        grams = cut(
            texts, items, dropout=dropout, gram_dropout=gram_dropout, key=int(keys[side]), places=places
        )
        arrays += [*grams, *transpose(grams)]
    arrays += [
        groups.target[low:high],
        groups.known_rows[mine] - low,
        groups.known_columns[mine],
        groups.negatives[low:high].ravel(),
        weight[low:high].view(np.int32),
    ]
    buffer, lengths = _pack(arrays, pin=pin)
    return HostBatch(buffer, lengths, len(pairs), negatives, tuple(int(n) for n in np.diff(owners)))
