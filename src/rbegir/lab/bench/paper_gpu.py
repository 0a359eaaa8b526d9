"""The published algorithm beside the exact one, on a GPU: time, and recall beside what its certificate says.

A row is a queue length. `ms` is `mode="paper"`: queues that start at a floor. `exact_ms` is the exact search
in turns with it, and `as_printed_ms` Algorithm 1 to the letter: every queue is written and sorted. Recall is
counted against the exact top k of the same queries.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from rbegir.lab.bench.device import in_turns
from rbegir.search.backend import Partition
from rbegir.search.gpu import local
from rbegir.search.gpu.card import Batch
from rbegir.search.gpu.replay import Replays
from rbegir.search.gpu.slab import SlabSearch
from rbegir.search.paper import BLOCK, plan, queue_heads, thread_of

PER_THREAD = 256
QUEUES = (1, 2, 8)


def run(
    replays: Replays, pieces: list[SlabSearch], k: int, rounds: int, values: npt.NDArray[np.int16]
) -> list[dict[str, Any]]:
    """A row for each of QUEUES."""
    card = replays.card
    keywords = sum(piece.slab.count for piece in pieces)
    partitions = [Partition(np.zeros(0, np.uint8), keywords)]  # only counts matter
    exact = replays.begin(pieces, Batch(values, card.device), k).result()[1]
    one = Batch(values[:1], card.device)
    rows = []
    for queue in QUEUES:
        geometry = local.SelectionGeometry(BLOCK, PER_THREAD, queue)
        wanted = plan(partitions, k, PER_THREAD, queue, BLOCK)
        asked = (wanted.length, wanted.length, geometry)
        row: dict[str, Any] = {"keywords": keywords, "k": k, "per_thread": PER_THREAD, "queue": queue}
        calls: list[Callable[[], object]] = [
            partial(replays.begin_queues, pieces, one, *asked),
            partial(replays.begin, pieces, one, k),
        ]
        if len(pieces) == 1:
            calls.append(partial(local.as_printed, card, pieces[0], one, k, geometry))
        paper, same, *printed = in_turns(calls, rounds, warm=3)
        row |= {**paper, "exact_ms": same["ms"], **({"as_printed_ms": printed[0]["ms"]} if printed else {})}
        hits = 0
        for query, best in zip(values, exact, strict=True):
            queues = replays.begin_queues(pieces, Batch(query[None], card.device), *asked)
            found = queues.result()[0][1]
            heads = found[queue_heads(thread_of(found, PER_THREAD), queue)]
            hits += len(np.intersect1d(best, heads[:k]))
        expected = wanted.certificate.expected_recall
        row |= {
            "queries": len(values),
            "measured_recall": hits / exact.size,
            "expected_recall": expected,
            "sampling_error": float(np.sqrt(expected * (1 - expected) / exact.size)),
        }
        rows.append(row)
    return rows
