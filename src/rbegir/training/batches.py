"""From tokenised pairs to the batches of an epoch, built ahead of the training step by a few threads.

    chunk (read and tokenised in the background) ─ permutation by (seed, epoch, chunk) ─ batches, in order

A `Chunk` is as many pairs as the shuffle buffer holds, tokenised once: every distinct query and keyword
text, every distinct word, and each pair as two text numbers. It is divided into equal batches near the wanted
size, so there is no small last one. A batch is cut out of it by the native module, without holding the
interpreter's lock:

    pairs → texts → words (dropout) → distinct words of the batch → their grams (dropout) → the transposed bag

All the arrays of a batch live in one int32 buffer, each aligned to 64 bytes, so that a step needs a single
copy from (pinned) host memory to the device; there the arrays are views of the copy.

Everything random is a function of (seed, epoch, step) and of the pair's place in the batch: no state is
carried from batch to batch. Batches can be built by several threads in any order and are handed out in order,
a resumed run skips to its step, and each of several processes builds its share of a batch and nothing else
(see `distributed.py`).
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

# A thread may have to wait this long for the interpreter's lock. The usual 5 ms would let a GPU that takes
# 12 ms per step run dry whenever a builder is busy while the next kernels should be launched.
SWITCH_SECONDS = 1e-4
ALIGN = 16  # int32 values: 64 bytes
QUERY, KEYWORD = 0, 1


@dataclass(frozen=True)
class Chunk:
    """Tokenised pairs: pair i is (query[i], keyword[i]), numbers of texts in the two gram batches."""

    query_texts: GramBatch
    keyword_texts: GramBatch
    query: Ints  # [pairs], or those of this process
    keyword: Ints  # [pairs], likewise
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
            query_rows=rest[5],
            keyword_rows=rest[6],
            query_texts=rest[7],
            keyword_texts=rest[8],
            pairs=self.pairs,
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
    buffer, lengths = _pack(arrays, pin=pin)
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
