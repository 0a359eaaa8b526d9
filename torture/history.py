"""Random histories of an index, recorded call by call, with what a reader may see after each call.

A history is a sequence of changes (add, upsert, update, delete by id and by filter, compact, a build that
replaces the index, close and open again), some of which die half-way: the process is killed at one of its
calls, or one of its calls fails with an error of the system and the process goes on. While an index is
compacted, other changes are made: between the pieces of a new segment, before its last sync, and before the
swap. A few texts are long, so that their segments are synced in pieces. `History.allowed` is what the index
may hold if the power is cut after a step of the trace: the last acknowledged state, or that of the change in
flight; after a death either, until the next acknowledged change settles it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa

from rbegir.base import freeing
from rbegir.errors import FileError, LockedError
from rbegir.index import format, manifest, writer
from rbegir.index.store import Index
from tests.index.fakes import HashEncoder
from torture.simdisk import KilledError, Recorder, Step, no_fault

ENCODER = HashEncoder()
QUERY = ENCODER.encode_queries(["the one question"])
NAME = "x.rbe"
IDS = 24  # ids are 0 … IDS − 1, so that upserts and deletes meet what is there
KINDS = {
    "upsert": 35, "add": 10, "update": 10, "delete": 20, "where": 5, "compact": 10, "build": 5, "reopen": 12
}  # fmt: skip
MEANWHILE = ("upsert", "add", "update", "delete", "where")  # what is done during a compaction
FAULTS = (errno.ENOSPC, errno.EIO, errno.EMFILE, errno.EROFS)

Record = tuple[str, int | None, str | None]  # text, price, lang
Sabotage = Callable[[], contextlib.AbstractContextManager[Any]]
State = tuple[tuple[int, Record], ...] | None  # sorted by id; None: there is no index


@dataclass(frozen=True)
class History:
    """A trace, and after how many of its steps which states were allowed."""

    trace: list[Step]
    moments: list[tuple[int, frozenset[State]]]  # (steps done when it began to hold, states)

    def allowed(self) -> Iterator[tuple[Step, frozenset[State]]]:
        """Every step with what may be seen if the power is cut right after it."""
        moment = 0
        for done, step in enumerate(self.trace, 1):
            while moment + 1 < len(self.moments) and self.moments[moment + 1][0] < done:
                moment += 1
            follows = self.moments[moment + 1 : moment + 2]
            acknowledged = [states for begins, states in follows if begins == done and len(states) == 1]
            yield step, acknowledged[0] if acknowledged else self.moments[moment][1]


@contextlib.contextmanager
def small_sizes() -> Iterator[None]:
    """Tiers of a few rows, a sync after each block, and old segments that are freed block by block: short
    histories see merges, and files are long."""
    with (
        mock.patch.multiple(writer, TIER_ROWS=3, FAN=3),
        mock.patch.multiple(format, BUFFER=format.BLOCK, SYNC_BYTES=format.BLOCK),
        mock.patch.multiple(freeing, LARGE=0, STEP=format.BLOCK, PATIENCE=0.0),
    ):
        yield


def no_fsync() -> Any:
    return mock.patch.object(os, "fsync", _nothing)


def left_over(path: Path) -> set[str]:
    """Files in the directory of an index that nothing names, and named files that are not there."""
    named = {*manifest.read_manifest(path).files, manifest.NAME, writer.LOCK}
    return set(os.listdir(path)) ^ named


def contents(index: Index) -> State:
    """All that a search says about every keyword of an index."""
    hits = index.search_codes(QUERY, 1000)
    rows = hits.attributes[0] if hits.attributes is not None else [{}] * hits.ids.shape[1]
    found = zip(hits.ids[0].tolist(), hits.texts[0].tolist(), rows, hits.keys[0].tolist(), strict=True)
    state = []
    for key, text, row, score in found:
        assert score == _score(text), f"keyword {key} has the text {text!r} and the code of another"
        state.append((key, (text, row.get("price"), row.get("lang"))))
    return tuple(sorted(state))


_scores: dict[str, int] = {}


def _score(text: str) -> int:
    """The score of a text for the one question, from the specification."""
    from rbegir.codes import score

    if text not in _scores:
        _scores[text] = int(score.keys(QUERY.values(), ENCODER.encode_keywords([text]))[0, 0])
    return _scores[text]


def record(
    root: Path, chance: random.Random, steps: int, sabotage: Sabotage = contextlib.nullcontext
) -> History:
    """Run a random history in an empty directory, while `sabotage` puts a fault into the index."""
    recorder = Recorder(root)
    moments: list[tuple[int, frozenset[State]]] = [(0, frozenset([None]))]
    with recorder.recording(), small_sizes(), no_fsync(), sabotage():
        life = Life(root / NAME, chance, recorder, moments)
        life.begin(lambda: life.create(), lambda state: ())
        for _ in range(steps):
            act, change = life.choose(KINDS)
            if change is None:
                act()
            else:
                life.begin(act, change)
        life.close()
    return History(recorder.trace, moments)


class Life:
    """A process that uses the index, and the changes that were acknowledged to it."""

    def __init__(
        self,
        path: Path,
        chance: random.Random,
        recorder: Recorder,
        moments: list[tuple[int, frozenset[State]]],
    ) -> None:
        self.path = path
        self.chance = chance
        self.recorder = recorder
        self.moments = moments
        self.index: Index | None = None
        self.state: State = None
        self.made = 0

    def create(self) -> None:
        self.index = Index.create(self.path, ENCODER, id_type="int64", threads=1)

    def close(self) -> None:
        if self.index is not None:
            self.index.close()
            self.index = None

    def open(self) -> Index:
        if self.index is None:
            self.index = Index.open(self.path, model=ENCODER, threads=1)
        return self.index

    def begin(self, act: Callable[[], Any], change: Callable[[dict[int, Record]], Any]) -> None:
        """Make one change; some of them die at a random call."""
        if self.state is not None and self.chance.random() < 0.25:
            self._doom(self.recorder)
        try:
            self._promise(act, change)
        except (KilledError, FileError, LockedError):  # the last: a change failed while it was compacted
            self.recorder.revive()
            self.close()
            self._look()
        self.recorder.fault = no_fault

    def _promise(self, act: Callable[[], Any], change: Callable[[dict[int, Record]], Any]) -> None:
        """Note what may be seen while a change is made, and what must be seen when it is acknowledged."""
        self.moments.append((len(self.recorder.trace), self.moments[-1][1] | {self._after(change)}))
        act()
        self.state = self._after(change)
        self.moments.append((len(self.recorder.trace), frozenset([self.state])))

    def _after(self, change: Callable[[dict[int, Record]], Any]) -> State:
        wanted = dict(self.state or ())
        change(wanted)
        return tuple(sorted(wanted.items()))

    def _look(self) -> None:
        """Find out which state a failed change has left."""
        self.recorder.fault = no_fault
        with Index.open(self.path, model=ENCODER, threads=1, read_only=True) as seen:
            self.state = contents(seen)
        assert self.state in self.moments[-1][1], "a process that failed left neither state"

    def _compact(self) -> None:
        """Compact, and make other changes while each new segment is written and after it is finished."""
        index, finish, flush = self.open(), format.FileWriter.finish, format.FileWriter._flush

        def meanwhile() -> None:
            for _ in range(self.chance.choice((0, 1, 1, 2))):
                try:
                    self._promise(*self.choose(MEANWHILE))
                except FileError:  # the process goes on, and the compaction with it
                    self._look()

        def interrupted(self_: format.FileWriter, meta: dict[str, Any]) -> format.Stamp:
            if not writer.UNNAMED.fullmatch(self_.path.name):
                return finish(self_, meta)
            meanwhile()
            stamp = finish(self_, meta)
            meanwhile()
            return stamp

        def between(self_: format.FileWriter, *, everything: bool) -> None:
            flush(self_, everything=everything)
            if writer.UNNAMED.fullmatch(self_.path.name) and not everything:
                meanwhile()

        with mock.patch.multiple(format.FileWriter, finish=interrupted, _flush=between):
            index.compact()

    def _doom(self, recorder: Recorder) -> None:
        """Let one of the next calls fail: any of them, or the one after the commit, where most is open."""
        at_commit = self.chance.random() < 0.3
        victim = 0 if at_commit else recorder.calls + self.chance.randint(1, self.chance.choice((14, 60)))
        code = self.chance.choice((0, 0, 0, *FAULTS))

        def fault(name: str, number: int, arguments: tuple[Any, ...]) -> None:
            nonlocal victim
            if number == victim:
                raise OSError(code, os.strerror(code)) if code else KilledError
            if at_commit and name == "rename":
                victim = number + 1

        recorder.fault = fault

    def choose(self, kinds: Iterable[str]) -> tuple[Callable[[], Any], Any]:
        """The next step and its effect on the keywords; the effect is None for a step without a promise."""
        (kind,) = self.chance.choices([*kinds], [KINDS[kind] for kind in kinds])
        if kind == "where":
            low = self.chance.randrange(IDS)

            def delete(state: dict[int, Record]) -> None:
                for key in [key for key in state if key >= low]:
                    del state[key]

            return lambda: self.open().delete(where=f"id >= {low}"), delete
        if kind == "update" and self.state:
            prices = {key: self.made + key for key, _ in self.chance.sample(self.state, 1)}
            attributes = {"price": pa.array(prices.values(), pa.int64())}

            def update(state: dict[int, Record]) -> None:
                state.update({key: (state[key][0], price, state[key][2]) for key, price in prices.items()})

            return lambda: self.open().update([*prices], attributes), update
        if kind == "delete":
            ids = self.chance.sample(range(IDS), self.chance.choice((1, 2, 5, IDS)))
            return lambda: self.open().delete(ids), lambda state: [state.pop(i, None) for i in ids]
        if kind == "compact":
            return self._compact, lambda state: None
        if kind == "reopen":
            return self.close, None
        there = dict(self.state or ())
        free = [i for i in range(IDS) if kind != "add" or i not in there] or [IDS + self.made]
        ids = self.chance.sample(free, min(len(free), self.chance.choice((1, 1, 2, 3, 8))))
        rows = {i: self._record() for i in ids}
        texts = [row[0] for row in rows.values()]
        columns = {"price": [row[1] for row in rows.values()], "lang": [row[2] for row in rows.values()]}
        columns = {
            name: pa.array(v, {"price": pa.int64(), "lang": pa.string()}[name]) for name, v in columns.items()
        }
        if kind == "build":
            batch = pa.record_batch({"id": ids, "text": texts, **columns})

            def replace(state: dict[int, Record]) -> None:
                state.clear()
                state.update(rows)

            return lambda: self._build(batch), replace
        put = Index.add if kind == "add" else Index.upsert
        return lambda: put(self.open(), texts, ids, columns), lambda state: state.update(rows)

    def _build(self, batch: pa.RecordBatch) -> None:
        self.close()
        size = self.chance.choice((1, 2, 100))
        self.index = Index.build(self.path, ENCODER, [batch], overwrite=True, threads=1, segment_rows=size)

    def _record(self) -> Record:
        self.made += 1
        price = self.chance.choice((None, self.made))
        more = self.chance.randint(0, 9) if self.chance.random() < 0.9 else format.BLOCK
        return (
            f"text {self.made} {'é' * more}",
            price,
            self.chance.choice((None, "en", "de")),
        )


def _nothing(descriptor: int) -> None:
    """Stands in for fsync: power cuts are simulated, and syncing takes time."""
