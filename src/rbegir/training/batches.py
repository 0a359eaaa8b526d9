"""From tokenised pairs to the batches of an epoch, built ahead of the training step by a few threads.

    chunk (read and tokenised in the background) ─ permutation by (seed, epoch, chunk) ─ batches, in order

A `Chunk` is as many pairs as the shuffle buffer holds, tokenised once. It is divided into equal batches near
the wanted size. The native module cuts a batch out of it, without holding the interpreter's lock:

    pairs → texts → words (dropout) → distinct words of the batch → their grams (dropout) → the transposed bag

All arrays of a batch are in one int32 buffer, each aligned to 64 bytes, so that a step needs a single copy
from (pinned) host memory to the device.

Everything random is a function of (seed, epoch, step) and of the pair's place in the batch. So several
threads can build batches in any order, a resumed run skips to its step, and each of several processes builds
only its share of a batch (see `distributed.py`).
"""

import sys
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rbegir._native import _core
from rbegir.base.devices import ahead
from rbegir.encode.clsm.clsm import TowerBatch, transpose
from rbegir.read.tokenizer import GramBatch
from rbegir.training.config import TrainConfig
from rbegir.training.distributed import OwnRows
from rbegir.training.loss import Ints, group

# How long a thread may wait for the interpreter's lock. With the usual 5 ms, a GPU that takes 12 ms per step
# would wait whenever a builder is busy while the next kernels should be launched.
SWITCH_SECONDS = 1e-4
ALIGN = 16  # int32 values: 64 bytes
QUERY, KEYWORD = 0, 1


@dataclass(frozen=True)
class Chunk:
    """Tokenised pairs: pair i is (query[i], keyword[i]), numbers of texts in the two gram batches."""

    query_texts: GramBatch
    keyword_texts: GramBatch
    query: Ints  # [pairs], or those of this process
    keyword: Ints  # [pairs], or those of this process
    weight: npt.NDArray[np.float32]  # [pairs]
    own: OwnRows | None = None  # which of the pairs are this process's; None: all of them

    def __len__(self) -> int:
        return len(self.weight)


class StepBatch(NamedTuple):
    """One step's input. All tensors are views of one buffer; pairs are this process's share of the batch."""

    query: TowerBatch  # [pairs]
    keyword: TowerBatch  # distinct keywords owned by this process
    target: Tensor  # [pairs] int32, column of the positive among the distinct keywords of all processes
    known_rows: Tensor  # [known] int32
    known_columns: Tensor  # [known] int32
    negatives: Tensor  # [pairs, count] int32
    weight: Tensor  # [pairs] float32, sums to 1 over all processes
    query_rows: Tensor  # [pairs] int32, which rows of the whole batch the queries are; empty if all are here
    keyword_rows: Tensor  # [keywords] int32, likewise of its distinct keywords in order of first occurrence
    query_texts: Tensor  # [pairs] int32, the queries as texts of the chunk
    keyword_texts: Tensor  # [keywords] int32, the distinct keywords as texts of the chunk
    pairs: int  # in the batch, all processes together
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
        arrays = [buffer[place] for place in _places(self.lengths)]
        query, keyword = TowerBatch(*arrays[:7]), TowerBatch(*arrays[7:14])
        rest = dict(zip(StepBatch._fields[2:11], arrays[14:], strict=True))  # from `target` on
        rest["negatives"] = rest["negatives"].view(len(rest["target"]), self.negatives)
        rest["weight"] = rest["weight"].view(torch.float32)
        return StepBatch(query, keyword, **rest, pairs=self.pairs, owned=self.owned)


def _places(lengths: Iterable[int]) -> Iterator[slice]:
    """Where arrays of these lengths are in a buffer."""
    start = 0
    for length in lengths:
        yield slice(start, start + length)
        start += -(-length // ALIGN) * ALIGN


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
    the word's place. Each gram of a distinct word is left out with probability `gram_dropout`; one stays.
    """
    if places is None:
        places = np.zeros(len(items), dtype=np.int64)
    return GramBatch(
        *_core.cut_batch(*texts, np.ascontiguousarray(items), dropout, gram_dropout, key, places)
    )


def build(
    chunk: Chunk,
    pairs: npt.NDArray[np.int64],
    settings: TrainConfig,
    key: tuple[int, ...],
    *,
    pin: bool = False,
) -> HostBatch:
    """The batch of the given pairs of a chunk, or this process's share; `key` seeds what is random in it."""
    rng, negatives = np.random.default_rng(key), settings.drawn_negatives
    keys = rng.integers(0, 2**63, size=2)  # of the dropout on either side
    weight = chunk.weight[pairs] / chunk.weight[pairs].sum()
    if chunk.own is None:
        groups = group(chunk.query[pairs], chunk.keyword[pairs], negatives=negatives, rng=rng)
        rows: npt.NDArray[np.int64] = np.arange(len(pairs))
        of_query, of_keyword = pairs, pairs[groups.first]  # pairs that texts are taken from
        query_rows = keyword_rows = np.zeros(0, np.int32)
        owned: tuple[int, ...] = (len(groups.first),)
    else:
        own = chunk.own
        groups = group(own.query_keys[pairs], own.keyword_keys[pairs], negatives=negatives, rng=rng)
        mine = own.of_batch(pairs, groups)
        groups, rows, owned = mine.groups, mine.rows, mine.owned
        of_query, of_keyword = own.local(pairs[rows]), own.local(pairs[groups.first])
        weight, query_rows, keyword_rows = weight[rows], rows.astype(np.int32), mine.keyword_rows

    arrays: list[Ints] = []
    query_texts, keyword_texts = chunk.query[of_query], chunk.keyword[of_keyword]
    for texts, items, places, side in (
        (chunk.query_texts, query_texts, rows, QUERY),
        (chunk.keyword_texts, keyword_texts, groups.first.astype(np.int64), KEYWORD),
    ):
        grams = cut(
            texts,
            items,
            dropout=settings.word_dropout,
            gram_dropout=settings.gram_dropout,
            key=int(keys[side]),
            places=places,
        )
        arrays += [*grams, *transpose(grams)]
    arrays += [
        groups.target,
        groups.known_rows,
        groups.known_columns,
        groups.negatives.ravel(),
        weight.view(np.int32),
        query_rows,
        keyword_rows,
        query_texts,
        keyword_texts,
    ]
    lengths = tuple(len(array) for array in arrays)
    total = sum(-(-length // ALIGN) * ALIGN for length in lengths)
    buffer = torch.empty(total, dtype=torch.int32, pin_memory=pin)
    for array, place in zip(arrays, _places(lengths), strict=True):
        buffer.numpy()[place] = array
    return HostBatch(buffer, lengths, len(pairs), negatives, owned)


def steps_in(pairs: int, batch_size: int) -> int:
    """Batches that a chunk of this many pairs is cut into."""
    return max(1, round(pairs / batch_size)) if pairs else 0


def epoch_batches(
    chunks: Iterable[Chunk],
    settings: TrainConfig,
    epoch: int,
    *,
    skip: int = 0,
    threads: int = 1,
    pin: bool = False,
) -> Iterator[HostBatch]:
    """The batches of one epoch after the first `skip`; `pin`: in pinned memory."""
    assert settings.batch_size is not None
    pool = ThreadPoolExecutor(threads, thread_name_prefix="rbegir-batches")
    switch = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_SECONDS)
    waiting: deque[Future[HostBatch]] = deque()
    step = 0
    try:
        for number, chunk in enumerate(ahead(chunks)):
            order = np.random.default_rng((settings.seed, epoch, number)).permutation(len(chunk))
            steps = steps_in(len(chunk), settings.batch_size)
            for pairs in np.array_split(order, steps) if steps else ():
                if step >= skip:
                    if len(waiting) > 2 * threads:
                        yield waiting.popleft().result()
                    key = (settings.seed, epoch, step)
                    waiting.append(pool.submit(build, chunk, pairs, settings, key, pin=pin))
                step += 1
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
        sys.setswitchinterval(switch)
