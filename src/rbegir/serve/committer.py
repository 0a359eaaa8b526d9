"""Group commit: changes that arrive while one is being written are made durable together by the next.

A durable write costs a few syncs of the disk, however many keywords it holds. Changes that gather are merged
as if they had come one after the other (the last one to touch an id wins) into at most one upsert and one
delete. If the merged write is refused, halves are tried, so that a bad request fails alone. A request that
would make a new attribute column is written alone, because the first value decides the type of a column.

Deleted and replaced keywords stay in large segments, masked but scanned, until a compaction. That is made
here, after a write, when a quarter of the rows is dead: rows are then rewritten at most once for every third
of the index that changes. Searches go on meanwhile, changes wait.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rbegir.errors import FullError, InputError, MismatchError, RbegirError
from rbegir.serve.batcher import BatchLoop
from rbegir.serve.monitor import Metrics, RequestLog
from rbegir.serve.served import ServedIndex
from rbegir.serve.settings import Settings
from rbegir.wire.problems import overloaded

RowId = int | str


@dataclass(frozen=True)
class KeywordChange:
    """The new text and attributes of a keyword."""

    text: str
    attributes: dict[str, Any]


@dataclass(frozen=True)
class Change:
    """What one request changes: rows by id; None deletes. A fresh one refuses ids that are there."""

    rows: dict[RowId, KeywordChange | None]
    fresh: bool = False

    @property
    def columns(self) -> set[str]:
        return {name for row in self.rows.values() if row is not None for name in row.attributes}


@dataclass(eq=False)
class _QueuedChange:
    change: Change | None  # None: compact
    future: asyncio.Future[int]
    arrived: float


class Committer(BatchLoop[_QueuedChange, _QueuedChange]):
    """The queue of changes and the one loop that writes them."""

    def __init__(self, index: ServedIndex, metrics: Metrics, log: RequestLog, settings: Settings) -> None:
        super().__init__("rbegir-write")
        self._index = index
        self._metrics = metrics
        self._log = log
        self._settings = settings
        self._jobs: dict[_QueuedChange, None] = {}
        self._write_seconds = 0.01
        self.failure: str | None = None  # of the last write, if the disk refused it

    async def commit(self, change: Change) -> int:
        """Make a change durable. Returns how many keywords were upserted or deleted."""
        size = len(change.rows)
        if self.waiting and self.waiting + size > self._settings.max_waiting_writes:
            raise overloaded(f"{self.waiting} keywords are waiting to be written", self._write_seconds)
        return await self._enqueue(change, size)

    async def compact(self) -> None:
        await self._enqueue(None, 0)

    async def _enqueue(self, change: Change | None, size: int) -> int:
        job = _QueuedChange(change, asyncio.get_running_loop().create_future(), time.perf_counter())
        self._jobs[job] = None
        self.waiting += size
        self._arrival.set()
        try:
            return await job.future
        finally:
            if job in self._jobs:
                del self._jobs[job]
                self.waiting -= size

    def _queued(self) -> Iterable[_QueuedChange]:
        return self._jobs

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
            if job.future.done():
                continue
            if isinstance(outcome, BaseException):
                job.future.set_exception(outcome)
            else:
                job.future.set_result(outcome)
        for error in (await self._in_thread(self._keep_house, batch))[:1]:
            self._log.error("write failed", error)

    def _take(self) -> list[_QueuedChange]:
        """The oldest changes that fit into one write; a compaction is a batch of its own."""
        batch: list[_QueuedChange] = []
        size = 0
        for job in self._jobs:
            more = 0 if job.change is None else len(job.change.rows)
            if batch and (job.change is None or size + more > self._settings.max_write_batch):
                break
            batch.append(job)
            size += more
            if job.change is None:
                break
        for job in batch:
            del self._jobs[job]
        self.waiting -= size
        return batch

    def _write(self, batch: list[_QueuedChange]) -> list[int | BaseException]:
        """In the thread: one outcome per job."""
        if batch[0].change is None:
            return [self._compact()]
        known = set(self._index.info()["attributes"])
        outcomes: list[int | BaseException] = []
        together: list[Change] = []
        for job in batch:
            assert job.change is not None
            if job.change.columns <= known:
                together.append(job.change)
                continue
            outcomes += self._merged(together)
            outcomes += self._merged([job.change])
            together = []
            known = set(self._index.info()["attributes"])
        return outcomes + self._merged(together)

    def _merged(self, changes: Sequence[Change]) -> list[int | BaseException]:
        """Write changes as one; one outcome per change."""
        if not changes:
            return []
        try:
            counts = self._apply(changes)
        except (InputError, MismatchError) as error:
            if len(changes) == 1:
                return [error]
            half = len(changes) // 2
            return self._merged(changes[:half]) + self._merged(changes[half:])
        except Exception as error:  # of the disk: nobody's change is acknowledged
            # a full disk is no reason to send searches elsewhere, and the next change may fit
            self.failure = None if isinstance(error, FullError) else str(error)
            self._log.error("write failed", error)
            return [error] * len(changes)
        self.failure = None
        return list(counts)

    def _apply(self, changes: Sequence[Change]) -> list[int]:
        after, asked = merge_changes(changes)
        there: dict[RowId, bool] = {}
        if asked:
            ids = list(asked)
            there = {i: found is not None for i, found in zip(ids, self._index.get(ids), strict=True)}
        counts = counts_of(changes, there)
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

    def _compact(self) -> int | BaseException:
        try:
            self._index.compact()
        except RbegirError as error:
            self._log.error("compaction failed", error)
            return error
        self._metrics.compactions.inc()
        return 0

    def _keep_house(self, batch: list[_QueuedChange]) -> list[BaseException]:
        """Compact if enough is deleted; nothing comes back."""
        info = self._index.info()
        dead, rows = info["deleted"], info["deleted"] + info["keywords"]
        share, least = self._settings.compact_deleted, self._settings.compact_min_deleted
        if share and dead >= least and dead >= share * rows:
            began = time.perf_counter()
            self._compact()
            self._log.event("compacted", deleted=dead, seconds=round(time.perf_counter() - began, 3))
        return []


def merge_changes(changes: Sequence[Change]) -> tuple[dict[RowId, KeywordChange | None], set[RowId]]:
    """What changes come to one after the other, and the ids of which it must be known if they were there."""
    after: dict[RowId, KeywordChange | None] = {}
    asked: set[RowId] = set()
    for change in changes:
        for key, row in change.rows.items():
            if (row is None or change.fresh) and key not in after:
                asked.add(key)
            after.pop(key, None)  # so that rows stand in the order of the last change
            after[key] = row
    return after, asked


def counts_of(changes: Sequence[Change], there: dict[RowId, bool]) -> list[int]:
    """How many keywords each change upserts, or finds and deletes."""
    now = dict(there)
    counts: list[int] = []
    for change in changes:
        count = 0
        for key, row in change.rows.items():
            if change.fresh and now[key]:
                raise InputError(f"id {key!r} is in the index already", hint="use upsert to replace keywords")
            count += row is not None or now[key]
            now[key] = row is not None
        counts.append(count)
    return counts
