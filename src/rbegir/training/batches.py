"""From tokenised pairs to the batches of an epoch, built ahead of the training step by a few threads.

    chunk (read and tokenised in the background) ─ permutation by (seed, epoch, chunk) ─ batches, in order

A `Chunk` is as many pairs as the shuffle buffer holds, tokenised once. It is divided into equal batches near
the wanted size. The native module cuts a batch out of it, without holding the interpreter's lock:

    pairs → texts → words (dropout) → distinct words of the batch → their grams (dropout) → the transposed bag

Everything random is a function of (seed, epoch, step) and of the pair's place in the batch. So several
threads can build batches in any order, a resumed run skips to its step, and each of several processes builds
only its share of a batch (see `distributed.py`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rbegir._native import _core
from rbegir.base.devices import ahead, prompt_threads
from rbegir.encode.clsm.clsm import TowerBatch, tower_batch
from rbegir.read.tokenizer import GramBatch
from rbegir.training.config import TrainConfig
from rbegir.training.distributed import OwnRows
from rbegir.training.loss import Ints, group

# With the usual 5 ms, a GPU that takes 12 ms per step would wait whenever a builder is busy while the next
# kernels should be launched.
SWITCH_SECONDS = 1e-4  # of `prompt_threads`


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
    """One step's input. Pairs are this process's share of the batch."""

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

    def each(self, change: Callable[[Tensor], Tensor]) -> StepBatch:
        """With every tensor changed in the same way."""

        def changed(part: Any) -> Any:
            if isinstance(part, TowerBatch):
                return TowerBatch(*map(change, part))
            return change(part) if isinstance(part, Tensor) else part

        return StepBatch(*map(changed, self))

    def to(self, device: torch.device) -> StepBatch:
        """Copied to the device, asynchronously from pinned memory."""
        return self.each(lambda tensor: tensor.to(device, non_blocking=True))


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
) -> StepBatch:
    """The batch of the given pairs of a chunk, or this process's share; `key` seeds what is random in it."""
    rng = np.random.default_rng(key)
    negatives = 0 if settings.negatives == "in_batch" else settings.negatives  # drawn; 0: all other keywords
    keys = rng.integers(0, 2**63, size=2)  # of the dropout on either side
    weight = chunk.weight[pairs]
    weight = (weight / weight.sum(dtype=np.float64)).astype(np.float32)  # a float32 sum could overflow
    if chunk.own is None:
        groups = group(chunk.query[pairs], chunk.keyword[pairs], negatives=negatives, rng=rng)
        rows: npt.NDArray[np.int64] = np.arange(len(pairs))
        of_query, of_keyword = pairs, pairs[groups.first]  # pairs that texts are taken from
        query_rows = keyword_rows = np.zeros(0, np.int32)
        owned: tuple[int, ...] = (len(groups.first),)
    else:
        own = chunk.own
        groups = group(own.query_keys[pairs], own.keyword_keys[pairs], negatives=negatives, rng=rng)
        rows, keyword_rows, owned, groups = own.of_batch(pairs, groups)
        of_query, of_keyword = own.local(pairs[rows]), own.local(pairs[groups.first])
        weight, query_rows = weight[rows], rows.astype(np.int32)

    def side(texts: GramBatch, items: Ints, places: npt.NDArray[np.int64], key: int) -> TowerBatch:
        dropout, gram_dropout = settings.word_dropout, settings.gram_dropout
        grams = cut(texts, items, dropout=dropout, gram_dropout=gram_dropout, key=key, places=places)
        return tower_batch(grams, gradient=True)

    query_texts, keyword_texts = chunk.query[of_query], chunk.keyword[of_keyword]
    rest = (*groups[1:], weight, query_rows, keyword_rows, query_texts, keyword_texts)  # from `target` on
    fields = (
        side(chunk.query_texts, query_texts, rows, int(keys[0])),
        side(chunk.keyword_texts, keyword_texts, groups.first.astype(np.int64), int(keys[1])),
        *map(torch.from_numpy, rest),
        len(pairs),
        owned,
    )
    batch = StepBatch._make(fields)
    return batch.each(Tensor.pin_memory) if pin else batch


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
) -> Iterator[StepBatch]:
    """The batches of one epoch after the first `skip`; `pin`: in pinned memory."""
    assert settings.batch_size is not None
    pool = ThreadPoolExecutor(threads, thread_name_prefix="rbegir-batches")
    waiting: deque[Future[StepBatch]] = deque()
    step = 0
    with prompt_threads(SWITCH_SECONDS):
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
