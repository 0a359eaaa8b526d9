"""The published search (Algorithm 1): local selection, global selection, merge.

A block of T_b threads works on T_b·I consecutive keywords. Thread y of the block takes every T_b-th of them,
starting with the y-th, and keeps the best q of its I in a priority queue. The best k of all queues are the
result. So the keyword at position z belongs to thread (z div T_b·I)·T_b + z mod T_b.

`reference` does exactly that. Here the same result comes from exact searches: in a list of the best k'
keywords in total order, the first q of each thread are the head of its queue. If these are at least k, the
best k of them are the result; otherwise a longer list is searched for.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rbegir.base import masks
from rbegir.search.missrate import MissCertificate, certificate_of_threads
from rbegir.search.partition import Candidates, Int64s, Partition, Values

BLOCK = 256  # T_b, threads per block


def thread_of(positions: Int64s, per_thread: int) -> Int64s:
    """The number of the thread that works on each position."""
    return positions // (BLOCK * per_thread) * BLOCK + positions % BLOCK


def thread_sizes(partitions: Sequence[Partition], per_thread: int) -> dict[int, int]:
    """{candidates of a thread: number of such threads}, without empty threads."""
    if all(part.mask is None for part in partitions):
        return whole_thread_sizes(sum(part.count for part in partitions), per_thread)
    passes = np.concatenate([masks.to_bools(part.mask, part.count) for part in partitions])
    of_thread = np.bincount(thread_of(np.flatnonzero(passes), per_thread))
    sizes = dict(enumerate(np.bincount(of_thread).tolist())) if of_thread.size else {}
    return {size: count for size, count in sizes.items() if size and count}


def whole_thread_sizes(keywords: int, per_thread: int) -> dict[int, int]:
    """`thread_sizes` of partitions in which every keyword is a candidate."""
    blocks, rest = divmod(keywords, BLOCK * per_thread)
    deep, wide = divmod(rest, BLOCK)  # of the last block: `wide` threads have one more than the others
    sizes = {per_thread: blocks * BLOCK}
    for size, count in ((deep + 1, wide), (deep, BLOCK - wide)):
        sizes[size] = sizes.get(size, 0) + count
    return {size: count for size, count in sizes.items() if size and count}


def queue_heads(threads: Int64s, queue: int) -> npt.NDArray[np.bool_]:
    """Mask of the hits of a query among the first `queue` of their thread; threads [hits] in total order."""
    order = np.argsort(threads, kind="stable")
    ranked = threads[order]
    starts = np.flatnonzero(np.concatenate([[True], ranked[1:] != ranked[:-1]]))
    rank = np.arange(len(ranked)) - np.repeat(starts, np.diff(np.append(starts, len(ranked))))
    heads = np.empty(len(threads), dtype=np.bool_)
    heads[order] = rank < queue
    return heads


class PaperPlan(NamedTuple):
    """The partition sizes and certificate of a paper-mode search, known before it starts."""

    candidates: int
    kept: int  # hits per query: k, or all entries of all queues if they are fewer
    length: int  # of a list of the best keywords that should contain `kept` heads of queues
    certificate: MissCertificate


def plan(sizes: dict[int, int], k: int, per_thread: int, queue: int) -> PaperPlan:
    """The plan of a paper-mode search of threads of these sizes (`thread_sizes`)."""
    candidates = sum(size * count for size, count in sizes.items())
    kept = min(k, sum(min(size, queue) * count for size, count in sizes.items()))
    certificate = certificate_of_threads(sizes, min(k, candidates), per_thread, queue)
    length = kept + 16 + 2 * round(kept * (1 - certificate.expected_recall))
    return PaperPlan(candidates, kept, min(length, candidates), certificate)


def select_paper(
    search: Callable[[Values, int], Candidates],
    sizes: dict[int, int],
    values: Values,
    k: int,
    per_thread: int,
    queue: int,
) -> tuple[Candidates, MissCertificate]:
    """The published search from an exact one: `search(values, k)` over threads of these sizes."""
    candidates, kept, length, certificate = plan(sizes, k, per_thread, queue)
    keys = np.zeros((len(values), kept), dtype=np.int64)
    positions = np.zeros((len(values), kept), dtype=np.int64)
    waiting = np.arange(len(values)) if kept else np.arange(0)  # queries without a result
    while waiting.size:
        found = search(values[waiting], min(length, candidates))
        short = []
        for query, row_keys, row_positions in zip(waiting.tolist(), *found, strict=True):
            heads = np.flatnonzero(queue_heads(thread_of(row_positions, per_thread), queue))[:kept]
            if len(heads) < kept:
                short.append(query)
            else:
                keys[query], positions[query] = row_keys[heads], row_positions[heads]
        waiting = np.array(short, dtype=np.intp)
        length *= 4
    return Candidates(keys, positions), certificate
