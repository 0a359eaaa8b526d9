"""The queue in front of a scan: questions of different clients share one pass over the codes.

One scan runs at a time, with all threads of the shard. What arrives meanwhile waits, and the next scan takes
as many of the waiting questions as can go together (same view, same filter), up to BATCH queries: a pass for
64 queries costs a few times that of one, so the more clients there are, the less each one costs. Nothing
waits for company: if the shard is idle a question starts at once.

The queue is bounded. A question that finds it full is refused at once rather than answered late, and one
whose client has stopped waiting is dropped before work is spent on it.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rbegir.cluster.messages import Found, Scan
from rbegir.errors import BusyError, DeadlineError

BATCH = 256  # queries a pass
QUEUE = 1024  # queries that may wait


@dataclass
class Waiting:
    """A question in the queue."""

    view: str
    state: Any  # what the scan needs to know of the view
    scan: Scan
    until: float  # monotonic
    done: Future[Found] = field(default_factory=Future)


class Batcher:
    """Runs `work(state, scan) → Found` for questions in groups, in a thread of its own."""

    def __init__(self, work: Callable[[Any, Scan], Found], *, batch: int = BATCH, queue: int = QUEUE) -> None:
        self._work, self._batch, self._limit = work, batch, queue
        self._waiting: deque[Waiting] = deque()
        self._queries = 0  # in `_waiting`
        self._wake = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="rbegir-scan", daemon=True)
        self._thread.start()

    def put(self, view: str, state: Any, scan: Scan) -> Future[Found]:
        """The future answer; BusyError if the queue is full."""
        item = Waiting(view, state, scan, time.monotonic() + scan.seconds)
        with self._wake:
            if self._queries and self._queries + len(scan.values) > self._limit:
                raise BusyError(
                    f"the queue of a shard is full: {self._queries} queries are waiting, at most "
                    f"{self._limit} may",
                    hint="ask again a little later, or add shards or replicas",
                )
            self._waiting.append(item)
            self._queries += len(scan.values)
            self._wake.notify()
        return item.done

    def close(self) -> None:
        """End the thread after what is being done; what waits is refused."""
        with self._wake:
            self._closed = True
            self._wake.notify()
        self._thread.join()

    def _run(self) -> None:
        while group := self._next():
            try:
                found = self._work(group[0].state, join([item.scan for item in group]))
            except BaseException as error:  # whoever waits must hear of it, whatever it is
                for item in group:
                    item.done.set_exception(error)
                continue
            start = 0
            for item in group:
                rows = slice(start, start + len(item.scan.values))
                item.done.set_result(cut(found, rows, item.scan.k))
                start = rows.stop

    def _next(self) -> list[Waiting]:
        """The oldest question that is still wanted and all that go with it; nothing when closed."""
        with self._wake:
            while True:
                self._drop_late()
                if self._waiting:
                    break
                if self._closed:
                    return []
                self._wake.wait()
            first = self._waiting[0]
            group: list[Waiting] = []
            rest: deque[Waiting] = deque()
            size = 0
            for item in self._waiting:
                together = item.view == first.view and item.scan.group == first.scan.group
                if item is first or (together and size + len(item.scan.values) <= self._batch):
                    group.append(item)
                    size += len(item.scan.values)
                else:
                    rest.append(item)
            self._waiting = rest
            self._queries -= size
            return group

    def _drop_late(self) -> None:
        now = time.monotonic()
        kept: deque[Waiting] = deque()
        for item in self._waiting:
            if self._closed or item.until <= now:
                self._queries -= len(item.scan.values)
                item.done.set_exception(DeadlineError("the client's deadline passed in the queue"))
            else:
                kept.append(item)
        self._waiting = kept


def join(scans: list[Scan]) -> Scan:
    """One scan for all queries, deep enough for the deepest."""
    if len(scans) == 1:
        return scans[0]
    values = np.concatenate([scan.values for scan in scans])
    first = scans[0]
    return Scan(values, max(scan.k for scan in scans), first.query, first.planes)


def cut(found: Found, rows: slice, k: int) -> Found:
    """The answer to some of the queries; the best k begin every longer list."""
    full = None if found.full is None else found.full[rows, :k]
    return Found(found.view, found.keys[rows, :k], found.places[rows, :k], full, found.counted)
