"""Group commit: changes that arrive while one is being written are made durable together by the next.

A durable write costs a few syncs of the disk, however many keywords it holds. Waiting changes are merged into
at most one upsert and one delete, as if they had been made one after the other (the last change of an id
wins). If the merged write is refused, halves are tried, so that a bad request fails alone. Deletions by a
filter or of a tenant, updates of attributes, and requests that would make a new attribute column (whose type
the first value decides) are written alone, in their turn.

Fair: if more waits than fits into a write, its places are divided among the clients. Each client's changes
are made in the order in which they came.

Deleted and replaced keywords stay in large segments, masked but scanned, until a compaction. That is started
here, after a write, when a quarter of the rows is dead: rows are then rewritten at most once for every third
of the index that changes. It has a thread of its own, so searches and changes continue.
"""

import asyncio
import contextlib
import heapq
import time
from collections import deque
from collections.abc import Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from rbegir.errors import FullError, InputError
from rbegir.search.request import Tenant
from rbegir.serve.batcher import REFUSALS, BatchLoop, by_halves, settle
from rbegir.serve.monitor import IndexMetrics, RequestLog
from rbegir.serve.served import ServedIndex
from rbegir.serve.settings import Settings
from rbegir.wire.problems import overloaded
from rbegir.wire.schema import KeywordBody

RowId = int | str


@dataclass(frozen=True)
class Change:
    """The changes of one request: rows by id; None deletes. With `fresh`, existing ids are refused.

    Or else: `where` selects the keywords to delete, `update` holds new attributes by id. With `tenant`, only
    keywords of that tenant are deleted.
    """

    rows: dict[RowId, KeywordBody | None] = field(default_factory=dict)
    fresh: bool = False
    where: str | None = None
    tenant: Tenant = None
    update: dict[RowId, dict[str, Any]] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Keywords that it names; at least 1."""
        return max(1, len(self.rows) + len(self.update))

    @property
    def merges(self) -> bool:
        """Whether it can be written together with other changes."""
        return self.where is None and self.tenant is None and not self.update

    @property
    def columns(self) -> set[str]:
        return {name for row in self.rows.values() if row is not None for name in row.attributes}


@dataclass(eq=False)
class _QueuedChange:
    change: Change
    future: asyncio.Future[int]
    arrived: float
    client: Hashable = None

    @property
    def left(self) -> int:
        return self.change.size


class Committer(BatchLoop[_QueuedChange, _QueuedChange]):
    """The queue of changes and the one loop that writes them."""

    def __init__(
        self, index: ServedIndex, metrics: IndexMetrics, log: RequestLog, settings: Settings
    ) -> None:
        super().__init__("rbegir-write")
        self._index = index
        self._metrics = metrics
        self._log = log
        self._settings = settings
        self._turns: list[Hashable] = []  # clients whose changes the last write did not all take, in turn
        self._write_seconds = 0.01
        self._compactor = ThreadPoolExecutor(1, "rbegir-compact")
        self._housekeeping: asyncio.Future[None] | None = None
        self.failure: str | None = None  # of the last write, if the disk refused it

    async def commit(self, change: Change, client: Hashable = None) -> int:
        """Make a change durable. Returns how many keywords were upserted or deleted."""
        if not self._admits(change.size, client, self._settings.max_waiting_writes):
            raise overloaded(f"{self.waiting} keywords are waiting to be written", self._write_seconds)
        job = _QueuedChange(change, asyncio.get_running_loop().create_future(), time.perf_counter(), client)
        self._queue(job)
        try:
            return await job.future
        finally:
            self.forget(job)

    async def compact(self) -> None:
        """Compact the index; a second compaction waits for the first."""
        await asyncio.get_running_loop().run_in_executor(self._compactor, self._compact)

    async def stop(self) -> None:
        await super().stop()
        await asyncio.to_thread(self._compactor.shutdown, cancel_futures=True)

    async def _work(self, batch: list[_QueuedChange]) -> None:
        began = time.perf_counter()
        for job in batch:
            self._metrics.write_stage["queue"].observe(began - job.arrived)
        outcomes = await self._in_thread(self._write, batch)
        took = time.perf_counter() - began
        self._write_seconds += (took - self._write_seconds) / 8
        self._metrics.write_stage["commit"].observe(took)
        self._metrics.write_requests.observe(len(batch))
        for job, outcome in zip(batch, outcomes, strict=True):
            settle(job.future, outcome)
        if self._housekeeping is None or self._housekeeping.done():
            loop = asyncio.get_running_loop()
            self._housekeeping = loop.run_in_executor(self._compactor, self._keep_house)

    def _take(self) -> list[_QueuedChange]:
        """The next write: again and again the oldest change of the client that has the fewest keywords in it,
        if it fits. The changes of a client keep their order."""
        of_client: dict[Hashable, deque[_QueuedChange]] = {client: deque() for client in self._turns}
        for job in self._jobs:
            of_client.setdefault(job.client, deque()).append(job)
        heap = [(0, turn, own) for turn, own in enumerate(of_client.values()) if own]
        chosen: set[_QueuedChange] = set()
        size = 0
        while heap:
            taken, turn, own = heapq.heappop(heap)
            if chosen and size + own[0].left > self._settings.max_write_batch:
                continue
            chosen.add(own[0])
            size += own[0].left
            taken += own.popleft().left
            if own:
                heapq.heappush(heap, (taken, turn, own))
        served = {job.client for job in chosen}
        left = [client for client, own in of_client.items() if own]
        self._turns = sorted(left, key=served.__contains__)  # those that got nothing come first
        batch = [job for job in self._jobs if job in chosen]
        for job in batch:
            del self._jobs[job]
        self.waiting -= size
        return batch

    def _write(self, batch: list[_QueuedChange]) -> list[int | BaseException]:
        """In the thread: one outcome per job."""
        known = set(self._index.info()["attributes"])
        outcomes: list[int | BaseException] = []
        together: list[Change] = []
        for job in batch:
            if job.change.merges and job.change.columns <= known:
                together.append(job.change)
                continue
            outcomes += by_halves(self._write_as_one, together)
            outcomes += by_halves(self._write_as_one, [job.change])
            together = []
            known = set(self._index.info()["attributes"])
        return outcomes + by_halves(self._write_as_one, together)

    def _write_as_one(self, changes: list[Change]) -> list[int]:
        """Make changes in one write, and note whether the disk took it."""
        try:
            counts = self._apply(changes)
        except REFUSALS:
            raise
        except Exception as error:
            # a full disk is no reason to send searches elsewhere, and the next change may fit
            self.failure = None if isinstance(error, FullError) else str(error)
            self._log.error("write failed", error)
            raise
        self.failure = None
        return counts

    def _apply(self, changes: Sequence[Change]) -> list[int]:
        alone = changes[0]
        if alone.where is not None or alone.tenant is not None:
            ids = list(alone.rows) or None
            return [self._index.delete(ids, where=alone.where, tenant=alone.tenant)]
        if alone.update:
            return [self._index.update(list(alone.update), list(alone.update.values()))]
        asked = [key for one in changes for key, row in one.rows.items() if row is None or one.fresh]
        there = zip(asked, self._index.get(asked) if asked else [], strict=True)
        after, counts = merge_changes(changes, {key: found is not None for key, found in there})
        upserts = {i: row for i, row in after.items() if row is not None}
        deletes = [i for i, row in after.items() if row is None]
        if upserts:
            rows = list(upserts.values())
            has_attributes = any(row.attributes for row in rows)
            self._index.upsert(
                [row.text for row in rows],
                list(upserts),
                [row.attributes for row in rows] if has_attributes else None,
            )
        if deletes:
            self._index.delete(deletes)
        return counts

    def _compact(self) -> None:
        """In the thread of compactions."""
        try:
            self._index.compact()
        except Exception as error:
            self._log.error("compaction failed", error)
            raise
        self._metrics.compactions.inc()

    def _keep_house(self) -> None:
        """In the thread of compactions: compact if enough is deleted; a failure is logged."""
        with contextlib.suppress(Exception):
            info = self._index.info()
            dead, rows = info["deleted"], info["deleted"] + info["keywords"]
            share, least = self._settings.compact_deleted, self._settings.compact_min_deleted
            if share and dead >= least and dead >= share * rows:
                began = time.perf_counter()
                self._compact()
                self._log.event("compacted", deleted=dead, seconds=round(time.perf_counter() - began, 3))


def merge_changes(
    changes: Sequence[Change], there: dict[RowId, bool]
) -> tuple[dict[RowId, KeywordBody | None], list[int]]:
    """The result of changes made one after the other, and how many keywords each upserts or deletes.

    `there` says which of the ids exist that are deleted or must be new.
    """
    after: dict[RowId, KeywordBody | None] = {}
    counts: list[int] = []
    now = dict(there)
    for change in changes:
        count = 0
        for key, row in change.rows.items():
            if change.fresh and now[key]:
                raise InputError(f"id {key!r} is in the index already", hint="use upsert to replace keywords")
            count += row is not None or now[key]
            now[key] = row is not None
            after.pop(key, None)  # so that rows stand in the order of the last change
            after[key] = row
        counts.append(count)
    return after, counts
