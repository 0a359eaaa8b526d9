"""The batches of an epoch, built ahead of the training step by a few threads.

    chunk (read and tokenised in the background) ─ permutation by (seed, epoch, chunk) ─ batches, in order

A chunk is cut into equal batches near the wanted size, so there is no small last one. Because a batch
depends only on its (seed, epoch, step) and its pairs, the threads need no order among themselves; results
are handed out in order.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from rbegir.base.ahead import ahead
from rbegir.training.batches import Chunk, HostBatch, build

# A thread may have to wait this long for the interpreter's lock. The usual 5 ms would let a GPU that takes
# 12 ms a step run dry whenever a builder is busy while the next kernels should be launched.
SWITCH_SECONDS = 1e-4


@dataclass(frozen=True)
class BatchPlan:
    """What `build` needs to know besides the pairs."""

    batch_size: int
    seed: int
    dropout: float = 0.0  # of words
    gram_dropout: float = 0.0
    negatives: int = 0
    pin: bool = False


def steps_in(pairs: int, batch_size: int) -> int:
    """Batches that a chunk of this many pairs is cut into."""
    return max(1, round(pairs / batch_size)) if pairs else 0


def epoch_batches(
    chunks: Iterable[Chunk], plan: BatchPlan, epoch: int, *, skip: int = 0, threads: int = 1
) -> Iterator[HostBatch]:
    """The batches of one epoch after the first `skip`."""
    pool = ThreadPoolExecutor(threads, thread_name_prefix="rbegir-batches")
    switch = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_SECONDS)
    waiting: deque[Future[HostBatch]] = deque()
    step = 0
    try:
        for number, chunk in enumerate(ahead(chunks)):
            order = np.random.default_rng((plan.seed, epoch, number)).permutation(len(chunk))
            for pairs in np.array_split(order, steps_in(len(chunk), plan.batch_size)) if len(chunk) else ():
                if step >= skip:
                    if len(waiting) > 2 * threads:
                        yield waiting.popleft().result()
                    waiting.append(
                        pool.submit(
                            build,
                            chunk,
                            pairs,
                            key=(plan.seed, epoch, step),
                            dropout=plan.dropout,
                            gram_dropout=plan.gram_dropout,
                            negatives=plan.negatives,
                            pin=plan.pin,
                        )
                    )
                step += 1
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
        sys.setswitchinterval(switch)
