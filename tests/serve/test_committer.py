"""Group commit: merged changes come to what single ones would, and errors stay separate."""

from __future__ import annotations

import asyncio
import io
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import rbegir
from rbegir.errors import FileError, FilterError, InputError, MismatchError
from rbegir.serve.committer import Change, Committer, merge_changes
from rbegir.serve.monitor import Metrics, RequestLog
from rbegir.serve.settings import Settings
from rbegir.wire.problems import Problem
from rbegir.wire.schema import KeywordBody
from tests.serve.conftest import PATIENT, TEXTS


class Gated:
    """An index whose writes wait for `gate`, and which notes them."""

    def __init__(self, index: rbegir.Index) -> None:
        self._index = index
        self.gate = threading.Event()
        self.compaction = threading.Event()  # set: compactions need not wait
        self.compacting = threading.Event()  # set: one has begun
        self.started = threading.Semaphore(0)
        self.writes: list[tuple[str, int]] = []
        self.failing = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._index, name)

    def __len__(self) -> int:
        return len(self._index)

    def _pass(self, what: str, count: int) -> None:
        self.writes.append((what, count))
        self.started.release()
        assert self.gate.wait(PATIENT)
        if self.failing:
            raise FileError("cannot write: disk full")

    def upsert(self, texts: Any, ids: Any, attributes: Any = None) -> Any:
        self._pass("upsert", len(texts))
        return self._index.upsert(texts, ids, attributes)

    def delete(self, ids: Any = None, *, where: Any = None, tenant: Any = None) -> int:
        self._pass("delete", -1 if ids is None else len(ids))
        return self._index.delete(ids, where=where, tenant=tenant)

    def compact(self) -> None:
        self.writes.append(("compact", 0))
        self.compacting.set()
        assert self.compaction.wait(PATIENT)
        self._index.compact()


def run(
    path: Path, work: Callable[[Gated, Committer], Awaitable[None]], **settings: Any
) -> list[tuple[str, int]]:
    """Run `work` with a committer over a gated index, the gate closed; returns the writes."""
    chosen = {
        "max_write_batch": 100,
        "max_waiting_writes": 1000,
        "compact_deleted": 0.0,
        "compact_min_deleted": 1,
        **settings,
    }

    async def main(gated: Gated) -> None:
        committer = Committer(gated, Metrics().of(), RequestLog(io.StringIO()), Settings(**chosen))
        committer.start()
        try:
            await asyncio.wait_for(work(gated, committer), PATIENT)
        finally:
            gated.gate.set()
            gated.compaction.set()
            await committer.stop()

    with rbegir.Index.open(path) as index:
        gated = Gated(index)
        asyncio.run(main(gated))
    return gated.writes


def upsert(*rows: tuple[Any, str], **attributes: Any) -> Change:
    return Change({key: KeywordBody(id=key, text=text, attributes=attributes) for key, text in rows})


def delete(*ids: Any) -> Change:
    return Change(dict.fromkeys(ids))


async def together(gated: Gated, committer: Committer, *changes: Change) -> list[Any]:
    """Commit changes that arrive while another write is running."""
    first = asyncio.ensure_future(committer.commit(upsert((999, "first"))))
    assert await asyncio.to_thread(gated.started.acquire, timeout=PATIENT)
    tasks = []
    for change in changes:
        tasks.append(asyncio.ensure_future(committer.commit(change)))
        await asyncio.sleep(0)
    gated.gate.set()
    await first
    return list(await asyncio.gather(*tasks, return_exceptions=True))


def test_a_deletion_by_filter_and_an_update_keep_their_turn(index_path: Path) -> None:
    async def work(gated: Gated, committer: Committer) -> None:
        outcomes = await together(
            gated,
            committer,
            upsert((1000, "old"), price=1e6),
            Change(where="price = 1000000"),  # of the one before
            upsert((1001, "new"), price=1e6),
            Change(update={1001: {"price": 2.0}, 3: {"lang": "fr"}}),
            Change(where="prise < 3"),
            upsert((1002, "last")),
        )
        assert outcomes[:4] == [1, 1, 1, 2]
        assert isinstance(outcomes[4], FilterError)
        assert outcomes[5] == 1
        old, new, third, last = gated.get([1000, 1001, 3, 1002])
        assert old is None
        assert new["price"] == 2.0
        assert (third["price"], third["lang"]) == (3.0, "fr")
        assert last["text"] == "last"

    assert [size for _, size in run(index_path, work)] == [1, 1, -1, 1, -1, 1]


def test_changes_that_gather_are_one_write(index_path: Path) -> None:
    async def work(gated: Gated, committer: Committer) -> None:
        changes = [
            upsert((1, "one"), (2, "two")),
            upsert((3, "three")),
            delete(4, 5, 123456),
            upsert((5, "five")),
        ]
        assert await together(gated, committer, *changes) == [2, 1, 2, 1]
        texts = [k and k["text"] for k in gated.get([1, 2, 3, 4, 5])]
        assert texts == ["one", "two", "three", None, "five"]

    assert run(index_path, work) == [("upsert", 1), ("upsert", 4), ("delete", 2)]
    with rbegir.Index.open(index_path) as reopened:
        assert reopened.get([5])[0]["text"] == "five"  # type: ignore[index]
        assert len(reopened) == len(TEXTS)


@given(
    st.lists(
        st.one_of(
            st.dictionaries(st.integers(0, 6), st.sampled_from("abc"), min_size=1).map(
                lambda rows: {key: KeywordBody(id=key, text=text) for key, text in rows.items()}
            ),
            st.sets(st.integers(0, 6), min_size=1).map(dict.fromkeys),
        ),
        min_size=1,
        max_size=8,
    ),
    st.dictionaries(st.integers(0, 6), st.just("old")),
)
def test_merging_is_what_one_after_the_other_does(
    changes: list[dict[int, Any]], before: dict[int, str]
) -> None:
    serial, counts = dict(before), []
    for rows in changes:
        count = 0
        for key, row in rows.items():
            found = serial.pop(key, None) is not None
            if row is None:
                count += found
            else:
                serial[key] = row.text  # at the end: a new row number
                count += 1
        counts.append(count)
    made = [Change(rows) for rows in changes]
    after, merged_counts = merge_changes(made, {key: key in before for rows in changes for key in rows})
    merged = {key: text for key, text in before.items() if key not in after}
    merged.update((key, row.text) for key, row in after.items() if row is not None)
    assert list(merged.items()) == list(serial.items())
    assert merged_counts == counts


def test_a_bad_change_fails_alone(index_path: Path) -> None:
    async def work(gated: Gated, committer: Committer) -> None:
        changes = [
            upsert((1, "one")),
            upsert((2, "!!")),
            upsert(("three", "three")),
            upsert((4, "four"), price="dear"),
            delete(5),
            delete("six"),
        ]
        found = await together(gated, committer, *changes)
        kinds = [int, InputError, MismatchError, MismatchError, int, MismatchError]
        assert all(isinstance(answer, kind) for answer, kind in zip(found, kinds, strict=True)), found
        texts = [k and k["text"] for k in gated.get([1, 2, 4, 5])]
        assert texts == ["one", TEXTS[2], TEXTS[4], None]

    run(index_path, work)


def test_a_new_column_is_written_alone(index_path: Path) -> None:
    async def work(gated: Gated, committer: Committer) -> None:
        changes = [
            upsert((1, "one")),
            upsert((2, "two"), size=7),
            upsert((3, "three"), size=7.5),
            upsert((4, "four")),
        ]
        found = await together(gated, committer, *changes)
        assert found[:2] == [1, 1]
        # as it would be, had it come later: size is a column of integers
        assert isinstance(found[2], InputError)
        assert found[3] == 1
        assert gated.info()["attributes"]["size"] == "int64"

    run(index_path, work)


def test_one_change_a_write_when_batching_is_off(index_path: Path) -> None:
    async def work(gated: Gated, committer: Committer) -> None:
        assert await together(gated, committer, upsert((1, "one")), upsert((2, "two"), (3, "three"))) == [
            1,
            2,
        ]

    assert run(index_path, work, max_write_batch=1) == [("upsert", 1), ("upsert", 1), ("upsert", 2)]


def test_nothing_is_acknowledged_when_the_disk_fails(index_path: Path) -> None:
    async def work(gated: Gated, committer: Committer) -> None:
        gated.failing = True
        task = asyncio.ensure_future(committer.commit(upsert((1, "one"))))
        gated.gate.set()
        with pytest.raises(FileError, match="disk full"):
            await task
        assert committer.failure == "cannot write: disk full"
        gated.failing = False
        assert await committer.commit(upsert((1, "one"))) == 1
        assert committer.failure is None

    run(index_path, work)


def test_the_queue_is_bounded_and_can_be_left(index_path: Path) -> None:
    async def work(gated: Gated, committer: Committer) -> None:
        first = asyncio.ensure_future(committer.commit(upsert((1, "one"))))
        assert await asyncio.to_thread(gated.started.acquire, timeout=PATIENT)
        waiting = asyncio.ensure_future(committer.commit(upsert((2, "two"), (3, "three"))))
        await asyncio.sleep(0)
        with pytest.raises(Problem) as refused:
            await committer.commit(upsert((4, "four"), (5, "five")))
        assert refused.value.detail == "2 keywords are waiting to be written; nothing was done"
        waiting.cancel()
        await asyncio.wait([waiting])
        assert committer.waiting == 0
        gated.gate.set()
        await first

    assert run(index_path, work, max_waiting_writes=3) == [("upsert", 1)]


def test_a_client_that_fills_the_queue_does_not_keep_others_out(index_path: Path) -> None:
    async def work(gated: Gated, committer: Committer) -> None:
        tasks = [asyncio.ensure_future(committer.commit(upsert((1, "one")), "greedy"))]
        assert await asyncio.to_thread(gated.started.acquire, timeout=PATIENT)
        done: list[str] = []

        async def change(client: str, *keys: int) -> None:
            await committer.commit(upsert(*((key, f"{client} {key}") for key in keys)), client)
            done.append(f"{client} {keys[0]}")

        greedy = [("greedy", (2, 3)), ("greedy", (4, 5)), ("greedy", (2, 6))]
        for client, keys in (*greedy, ("modest", (2,)), ("modest", (7,))):
            tasks.append(asyncio.ensure_future(change(client, *keys)))  # type: ignore[arg-type]
            await asyncio.sleep(0)
        for client in ("greedy", "another"):
            with pytest.raises(Problem, match="8 keywords are waiting to be written; nothing was done"):
                await committer.commit(upsert(*((key, "late") for key in range(10, 13))), client)
        gated.gate.set()
        await asyncio.gather(*tasks)
        # of four places half for each client while it wants them, and changes of a client in their order
        assert done == ["greedy 2", "modest 2", "modest 7", "greedy 4", "greedy 2"]
        assert gated.get([2])[0]["text"] == "greedy 2"

    writes = run(index_path, work, max_waiting_writes=6, max_write_batch=4)
    assert writes == [("upsert", 1), ("upsert", 3), ("upsert", 4)]


def test_a_change_larger_than_a_write_has_its_turn(index_path: Path) -> None:
    async def work(gated: Gated, committer: Committer) -> None:
        tasks = [asyncio.ensure_future(committer.commit(upsert((1, "one")), "modest"))]
        assert await asyncio.to_thread(gated.started.acquire, timeout=PATIENT)
        changes = [("modest", 1), ("modest", 1), ("large", 5), ("modest", 1)]
        for number, (client, count) in enumerate(changes):
            rows = [(10 * number + place, "text") for place in range(count)]
            tasks.append(asyncio.ensure_future(committer.commit(upsert(*rows), client)))
            await asyncio.sleep(0)
        gated.gate.set()
        await asyncio.gather(*tasks)

    writes = run(index_path, work, max_write_batch=2)
    assert [size for _, size in writes] == [1, 2, 5, 1]


def test_compaction_when_enough_is_deleted(index_path: Path) -> None:
    async def work(gated: Gated, committer: Committer) -> None:
        gated.gate.set()
        await committer.commit(delete(*range(30)))
        await committer.commit(upsert((500, "next")))
        assert gated.info()["deleted"] == 30
        await committer.commit(delete(*range(30, 60)))
        assert await asyncio.to_thread(gated.compacting.wait, PATIENT)
        await committer.commit(upsert((501, "meanwhile")))
        asked = asyncio.ensure_future(committer.compact())
        await asyncio.sleep(0)
        assert gated.info()["deleted"] == 60
        gated.compaction.set()
        await asked  # made after the first, by the same thread
        assert gated.info()["deleted"] == 0
        assert len(gated._index) == len(TEXTS) - 58

    writes = run(index_path, work, compact_deleted=0.25)
    assert [what for what, _ in writes] == ["delete", "upsert", "delete", "compact", "upsert", "compact"]


def test_a_compaction_that_fails_is_logged_and_reported(index_path: Path) -> None:
    async def work(gated: Gated, committer: Committer) -> None:
        gated.gate.set()
        gated.compaction.set()
        gated._index.compact = failing  # type: ignore[method-assign]
        await committer.commit(delete(*range(100)))  # starts one that nobody waits for
        with pytest.raises(FileError, match="disk full"):
            await committer.compact()
        assert await committer.commit(upsert((1, "one"))) == 1
        assert committer.failure is None
        assert committer._log._stream.getvalue().count("compaction failed") >= 2  # type: ignore[attr-defined]

    def failing() -> None:
        raise FileError("cannot write: disk full")

    run(index_path, work, compact_deleted=0.25)
