"""The published search: local selection, global selection, merge (Algorithm 1), and its certificate.

A block of T_b threads works on T_b·I consecutive keywords; thread y of it takes every T_b-th, starting with
the y-th, and keeps the best q of its I in a priority queue. The best k of all queues are the result. So a
keyword at position z belongs to thread (z div T_b·I)·T_b + z mod T_b.

`reference` does just that. Here the same result comes from exact searches, at their speed: in a list of the
best k' keywords in total order, the first q of each thread are the top of its queue, as nothing outside the
list precedes anything in it. If k of them remain, they are the result; if not, a longer list is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rbegir.errors import InputError
from rbegir.search.backend import Backend, Candidates, Partition, read_mask
from rbegir.search.missrate import MissCertificate, certificate_of_threads

BLOCK = 256  # T_b, threads of a block, unless said


def check_settings(per_thread: int, queue: int, block: int) -> None:
    """Refuse an I, a q or a T_b that is not a positive integer."""
    for name, value in (("per_thread", per_thread), ("queue", queue), ("block", block)):
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
            raise InputError(f"{name} must be a positive integer, got {value!r}")


def thread_of(positions: npt.NDArray[np.int64], per_thread: int, block: int = BLOCK) -> npt.NDArray[np.int64]:
    """The thread that works on each position."""
    return positions // (block * per_thread) * block + positions % block


def thread_sizes(partitions: Sequence[Partition], per_thread: int, block: int = BLOCK) -> dict[int, int]:
    """{candidates of a thread: number of such threads}, empty threads left out."""
    if all(part.mask is None for part in partitions):
        return whole_thread_sizes(sum(part.count for part in partitions), per_thread, block)
    passes = np.concatenate([read_mask(part.mask, part.count) for part in partitions])
    of_thread = np.bincount(thread_of(np.flatnonzero(passes), per_thread, block))
    sizes = dict(enumerate(np.bincount(of_thread).tolist())) if of_thread.size else {}
    return {size: count for size, count in sizes.items() if size and count}


def whole_thread_sizes(keywords: int, per_thread: int, block: int = BLOCK) -> dict[int, int]:
    """The same where every keyword is a candidate."""
    blocks, rest = divmod(keywords, block * per_thread)
    deep, wide = divmod(rest, block)  # of the last block: `wide` threads have one more than the others
    sizes = {per_thread: blocks * block}
    for size, count in ((deep + 1, wide), (deep, block - wide)):
        sizes[size] = sizes.get(size, 0) + count
    return {size: count for size, count in sizes.items() if size and count}


def queue_heads(threads: npt.NDArray[np.int64], queue: int) -> npt.NDArray[np.bool_]:
    """Which hits of one query, given by their threads in total order, head the queue of their thread."""
    order = np.argsort(threads, kind="stable")
    ranked = threads[order]
    starts = np.flatnonzero(np.concatenate([[True], ranked[1:] != ranked[:-1]]))
    rank = np.arange(len(ranked)) - np.repeat(starts, np.diff(np.append(starts, len(ranked))))
    heads = np.empty(len(threads), dtype=np.bool_)
    heads[order] = rank < queue
    return heads


class Plan(NamedTuple):
    """What is known of a paper-mode search before it starts."""

    candidates: int
    kept: int  # hits of a query: k, or all entries of all queues if they are fewer
    length: int  # of a list of the best keywords in which `kept` heads of queues should be found
    certificate: MissCertificate


def plan(partitions: Sequence[Partition], k: int, per_thread: int, queue: int, block: int) -> Plan:
    """What follows from the sizes of the threads of these partitions."""
    check_settings(per_thread, queue, block)
    return plan_threads(thread_sizes(partitions, per_thread, block), k, per_thread, queue)


def plan_threads(sizes: dict[int, int], k: int, per_thread: int, queue: int) -> Plan:
    """The same, given the sizes."""
    candidates = sum(size * count for size, count in sizes.items())
    kept = min(k, sum(min(size, queue) * count for size, count in sizes.items()))
    certificate = certificate_of_threads(sizes, min(k, candidates), per_thread, queue)
    length = kept + 16 + 2 * round(kept * (1 - certificate.expected_recall))
    return Plan(candidates, kept, min(length, candidates), certificate)


def search_paper(
    backend: Backend,
    partitions: Sequence[Partition],
    values: npt.NDArray[np.int16],
    k: int,
    *,
    per_thread: int,
    queue: int,
    block: int = BLOCK,
) -> tuple[Candidates, MissCertificate]:
    """The published search on top of an exact backend. The caller has checked partitions, values and k."""
    check_settings(per_thread, queue, block)
    return select_paper(
        partial(backend.search, partitions),
        thread_sizes(partitions, per_thread, block),
        values,
        k,
        per_thread=per_thread,
        queue=queue,
        block=block,
    )


def select_paper(
    search: Callable[[npt.NDArray[np.int16], int], Candidates],
    sizes: dict[int, int],
    values: npt.NDArray[np.int16],
    k: int,
    *,
    per_thread: int,
    queue: int,
    block: int = BLOCK,
) -> tuple[Candidates, MissCertificate]:
    """The same, given an exact search (queries, how many) and the candidates of threads (`thread_sizes`)."""
    candidates, kept, length, certificate = plan_threads(sizes, k, per_thread, queue)
    keys = np.zeros((len(values), kept), dtype=np.int64)
    positions = np.zeros((len(values), kept), dtype=np.int64)
    waiting = np.arange(len(values)) if kept else np.arange(0)  # queries without a result
    while waiting.size:
        found = search(values[waiting], min(length, candidates))
        short = []
        for query, row_keys, row_positions in zip(waiting.tolist(), *found, strict=True):
            heads = np.flatnonzero(queue_heads(thread_of(row_positions, per_thread, block), queue))[:kept]
            if len(heads) < kept:
                short.append(query)
            else:
                keys[query], positions[query] = row_keys[heads], row_positions[heads]
        waiting = np.array(short, dtype=np.intp)
        length *= 4
    return Candidates(keys, positions), certificate
