"""Changes go on while an index is compacted, and the result is that of a compaction with changes blocked."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rbegir.base import disk, freeing, masks
from rbegir.errors import FileError, InputError, LockedError
from rbegir.index import format, store, writer
from rbegir.index.manifest import NAME, UNNAMED, read_manifest
from rbegir.index.store import Index
from tests.index.fakes import HashEncoder

ENCODER = HashEncoder()
IDS = list(range(40))


@pytest.fixture(autouse=True)
def _no_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.fixture
def index(local_path: Path) -> Iterator[Index]:
    """Four segments of ten keywords, some of them deleted."""
    with Index.create(local_path / "x.rbe", ENCODER) as index:
        for start in range(0, 40, 10):
            ids = IDS[start : start + 10]
            index.add([f"t{i % 7}" for i in ids], ids, {"price": ids})
        index.delete([0, 5, 11, 39])
        yield index


@contextmanager
def meanwhile(monkeypatch: pytest.MonkeyPatch, *changes: Callable[[], Any]) -> Iterator[None]:
    """Make changes during a compaction, in turn before and after each new segment is written."""
    left = list(changes)

    def interrupted(path: Path, *arguments: Any) -> Any:
        if not UNNAMED.fullmatch(path.name):
            return write(path, *arguments)
        if left:
            left.pop(0)()
        entry = write(path, *arguments)
        if left:
            left.pop(0)()
        return entry

    write = writer.write_segment
    with monkeypatch.context() as patch:
        patch.setattr(writer, "write_segment", interrupted)
        yield
    assert not left


def everything(index: Index) -> list[Any]:
    """All keywords in the order of a search, with rows and scores."""
    hits = index.search("t3", k=1000)
    assert hits.texts is not None
    found = zip(hits.ids[0], hits.rows[0], hits.keys[0], hits.texts[0], strict=True)
    return [*found, *index.rows()]


def names(index: Index) -> None:
    """There are no files but those of the state."""
    there = {*read_manifest(index.path).files, NAME, writer.LOCK}
    assert set(os.listdir(index.path)) == there


CHANGES: dict[str, list[Callable[[Index], Any]]] = {
    "a delete": [lambda index: index.delete([1, 12, 38])],
    "after the segment is written": [lambda index: None, lambda index: index.delete([1, 12, 38])],
    "an upsert of old keywords": [lambda index: index.upsert(["new", "new"], [2, 13], {"price": [1, 2]})],
    "an update": [lambda index: index.update([3, 30], {"price": [7, 8]})],
    "an add": [lambda index: index.add(["t3"], [50], {"price": [1]})],
    "an add and its delete": [lambda index: index.add(["t3"], [50]), lambda index: index.delete([50])],
    "a whole segment": [lambda index: index.delete(range(10, 20))],
    "everything": [lambda index: index.delete(where="id >= 0")],
    "everything, then more": [
        lambda index: index.delete(where="id >= 0"),
        lambda index: index.add(["t3"], [7], {"price": [1]}),
    ],
    "a keyword twice": [lambda index: index.upsert(["u"], [4]), lambda index: index.upsert(["v"], [4])],
    "many": [
        lambda index: [index.upsert([f"t{i}"], [i]) for i in range(25)],
        lambda index: index.delete([3, 30]),
    ],
}  # fmt: skip


@pytest.mark.parametrize("most", [1000, 20, 5], ids=lambda most: f"segments of {most}")
@pytest.mark.parametrize("name", CHANGES)
def test_the_result_is_that_of_changes_before_the_compaction(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, most: int
) -> None:
    index.backup(tmp_path / "other.rbe")
    monkeypatch.setattr(writer, "MAX_ROWS", most)
    with Index.open(tmp_path / "other.rbe", model=ENCODER) as other:
        for change in CHANGES[name]:
            change(other)
        other.compact()
        wanted = everything(other)
    reader = Index.open(index.path, model=ENCODER, read_only=True)
    before = everything(reader)
    with meanwhile(monkeypatch, *(lambda change=change: change(index) for change in CHANGES[name])):  # type: ignore[misc]
        index.compact()
    assert everything(index) == wanted
    assert everything(reader) == before
    reader.refresh()
    assert everything(reader) == wanted
    index.verify()
    names(index)
    index.compact()
    assert everything(index) == wanted
    assert index.info()["deleted"] == 0


def test_rows_are_not_merged_while_they_are_rewritten(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "FAN", 2)
    files = {entry.file for entry in read_manifest(index.path).segments}

    def add() -> None:
        for i in range(50, 60):
            index.add([f"t{i}"], [i])
        now = {entry.file for entry in read_manifest(index.path).segments}
        assert files < now
        assert len(now - files) == 1  # they are merged among themselves

    with meanwhile(monkeypatch, add):
        index.compact()
    assert index.info()["segments"] == 2
    index.add(["t60"], [60])
    assert index.info()["segments"] == 1


def test_columns_that_are_used_meanwhile_stay(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    index.update(IDS[20:22], {"size": [1, 2], "colour": ["red", None]})
    index.update(IDS[20:22], {"size": [None, None], "colour": [None, None]})
    with meanwhile(monkeypatch, lambda: index.update([21], {"size": [5], "weight": [1.5]})):
        index.compact()
    assert index.info()["attributes"] == {"price": "int64", "size": "int64", "weight": "double"}
    assert index.get([21]) == [{"id": 21, "text": "t0", "price": 21, "size": 5, "weight": 1.5}]
    index.verify()


def test_deletes_of_a_segment_that_need_not_be_rewritten(
    index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "MAX_ROWS", 10)  # the third segment has no deletes and stays
    with meanwhile(monkeypatch, lambda: index.delete([20, 25])):
        index.compact()
    assert [(entry.count, entry.deleted) for entry in read_manifest(index.path).segments] == [
        (8, 0), (9, 0), (10, 2), (9, 0)
    ]  # fmt: skip
    index.verify()


def test_threads_change_the_index_while_it_is_compacted(
    index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compaction after compaction, each held until some changes are made meanwhile."""
    state = {row["id"]: row["text"] for row in index.rows()}
    begun, changed, stop = threading.Event(), threading.Event(), threading.Event()
    failures: list[BaseException] = []
    write = writer.write_segment

    def held(path: Path, *arguments: Any) -> Any:
        entry = write(path, *arguments)
        if UNNAMED.fullmatch(path.name):
            changed.clear()
            begun.set()
            assert changed.wait(60)
        return entry

    def compact() -> None:
        try:
            while not stop.is_set():
                index.compact()
        except BaseException as error:
            failures.append(error)
            begun.set()

    monkeypatch.setattr(writer, "write_segment", held)
    monkeypatch.setattr(writer, "TIER_ROWS", 4)
    rng = np.random.default_rng(1)
    index.delete([])
    thread = threading.Thread(target=compact)
    thread.start()
    try:
        for step in range(25):
            assert begun.wait(60)
            begun.clear()
            assert not failures
            for _ in range(int(rng.integers(1, 4))):
                ids = rng.choice(60, 6, replace=False).tolist()
                index.upsert([f"step {step}"] * 3, ids[:3])
                index.delete(ids[3:])
                state.update(dict.fromkeys(ids[:3], f"step {step}"))
                for key in ids[3:]:
                    state.pop(key, None)
            if step == 24:
                stop.set()
            changed.set()
    finally:
        stop.set()
        changed.set()
        thread.join()
    assert not failures
    assert {row["id"]: row["text"] for row in index.rows()} == state
    index.verify()
    names(index)


def test_old_segments_are_given_up_before_a_compaction_ends(
    index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = [weakref.ref(one.segment) for one in index._state().segments]
    left = []
    forget = writer.Compaction.forget

    def watched(compaction: writer.Compaction) -> None:
        forget(compaction)
        left.append([segment() is None for segment in old])

    monkeypatch.setattr(writer.Compaction, "forget", watched)
    index.compact()
    assert left == [[True] * len(old)]


def test_large_old_segments_are_truncated_unless_they_are_read(
    index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Readers of the old state, in this process and another, read the same as before."""
    monkeypatch.setattr(freeing, "LARGE", 0)
    monkeypatch.setattr(freeing, "PATIENCE", 0.0)
    monkeypatch.setattr(freeing, "STEP", 512)
    truncate, cut, before = disk.truncate_unused, [], everything(index)

    def noted(descriptor: int, size: int) -> bool:
        cut.append(truncate(descriptor, size))
        return cut[-1]

    monkeypatch.setattr(disk, "truncate_unused", noted)
    code = "from tests.index.test_compaction import *; watch(sys.argv[1])"
    command = [sys.executable, "-c", code, str(index.path)]
    with (
        Index.open(index.path, model=ENCODER, read_only=True) as reader,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other,
    ):
        assert other.stdout is not None
        assert other.stdout.readline() == "ready\n"
        index.compact()
        assert cut == [False] * 4
        assert everything(reader) == before
        assert other.communicate("go\n")[0] == f"{before}\n"
    index.delete([1])
    index.compact()
    assert all(cut[4:])
    assert len(cut) > 5
    index.verify()
    names(index)


def watch(path: str) -> None:
    """Of the other process: read the state from before a compaction after it."""
    with Index.open(path, model=ENCODER, read_only=True) as reader:
        print("ready", flush=True)
        input()
        print(everything(reader))


def test_a_reader_that_meets_a_segment_just_being_freed_reads_the_next_state(
    index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    map_file, met = format.map_file, []

    def freed(path: Path, *arguments: Any) -> Any:
        if path.suffix == ".rbs" and not met:
            met.append(path)
            with monkeypatch.context() as patch:
                patch.setattr(format, "map_file", map_file)
                index.compact()
            raise BlockingIOError(errno.EWOULDBLOCK, os.strerror(errno.EWOULDBLOCK), str(path))
        return map_file(path, *arguments)

    monkeypatch.setattr(format, "map_file", freed)
    with Index.open(index.path, model=ENCODER, read_only=True) as reader:
        assert met
        assert reader.info()["segments"] == 1
        assert everything(reader) == everything(index)


def test_a_second_compaction_waits_for_the_first(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go, order = threading.Event(), threading.Event(), []
    write = writer.write_segment

    def held(path: Path, *arguments: Any) -> Any:
        order.append("begin")
        begun.set()
        assert go.wait(60)
        order.append("end")
        return write(path, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(writer, "write_segment", held)
        threads = [threading.Thread(target=index.compact) for _ in range(2)]
        for thread in threads:
            thread.start()
        assert begun.wait(60)
        assert index.delete([1]) == 1  # in a segment that is being rewritten, so the second has work to do
        go.set()
        for thread in threads:
            thread.join()
    assert order == ["begin", "end"] * 2
    assert (index.info()["segments"], index.info()["deleted"]) == (1, 0)


@pytest.mark.parametrize("paused", [True, False], ids=["between changes", "without a pause"])
def test_pieces_are_synced_between_changes(
    index: Index, monkeypatch: pytest.MonkeyPatch, paused: bool
) -> None:
    """A sync of the compaction keeps changes out; if they leave no pause, it happens all the same."""
    monkeypatch.setattr(store, "TURN_SECONDS", 60.0 if paused else 0.001)
    kept_out, changing, done = [], threading.Event(), threading.Event()

    def change() -> None:
        with index._mutex:
            changing.set()
            assert done.wait(60)

    def synced(descriptor: int) -> None:
        def tries() -> None:
            kept_out.append(not index._mutex.acquire(blocking=False))
            if not kept_out[-1]:
                index._mutex.release()

        if threading.current_thread() is compaction:
            thread = threading.Thread(target=tries)
            thread.start()
            thread.join()
            if os.readlink(f"/proc/self/fd/{descriptor}").split("/")[-1].startswith("unnamed"):
                done.set()  # the change ends; before, the compaction got no turn
        sync(descriptor)

    sync = disk.sync
    compaction = threading.Thread(target=index.compact)
    change_thread = threading.Thread(target=change)
    write = writer.write_segment

    def beside_a_change(path: Path, *arguments: Any) -> Any:
        if not paused and not changing.is_set():
            change_thread.start()
            assert changing.wait(60)
        return write(path, *arguments)

    monkeypatch.setattr(disk, "sync", synced)
    monkeypatch.setattr(writer, "write_segment", beside_a_change)
    compaction.start()
    compaction.join()
    if not paused:
        change_thread.join()
    assert kept_out
    assert all(kept_out)
    assert index.info()["deleted"] == 0


def _until_one_waits(index: Index) -> None:
    while not index._next.locked():
        os.sched_yield()


def test_a_change_waits_for_one_piece_of_a_compaction(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "TURN_SECONDS", 60.0)
    pieces, begins = 1, []
    create = disk.create

    def created(path: Path) -> int:
        begins.append(pieces)
        return create(path)

    monkeypatch.setattr(disk, "create", created)
    change = threading.Thread(target=index.delete, args=([1],))
    with index._turn():  # a piece is being synced
        change.start()
        _until_one_waits(index)
    for _ in range(1000):
        with index._turn():
            pieces += 1
    change.join()
    assert begins[0] == 1


def test_a_piece_of_a_compaction_waits_for_one_change(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "TURN_SECONDS", 60.0)
    order: list[str] = []

    def piece() -> None:
        with index._turn():
            order.append("piece")

    waiting = threading.Thread(target=piece)
    with index._writing():  # a change is being made
        waiting.start()
        _until_one_waits(index)
    for number in range(1000):
        with index._writing():
            order.append(f"change {number}")
    waiting.join()
    assert order[0] == "piece"


def test_a_compaction_inside_a_compaction_is_refused(index: Index) -> None:
    with pytest.raises(InputError, match="called by the progress function of a compaction"):
        index.compact(lambda done, total: index.compact())
    names(index)
    index.compact()
    assert index.info()["segments"] == 1


def test_an_index_that_is_closed_during_its_compaction(index: Index) -> None:
    before = everything(index)
    with pytest.raises(InputError, match="has been closed"):
        index.compact(lambda done, total: index.close())
    with Index.open(index.path, model=ENCODER) as again:
        assert everything(again) == before
        names(again)


def test_close_waits_for_the_compaction_of_another_thread(
    index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    closing = threading.Thread(target=index.close)
    with meanwhile(monkeypatch, closing.start):
        index.compact()
    closing.join()
    with Index.open(index.path, model=ENCODER) as again:
        assert (again.info()["segments"], again.info()["deleted"]) == (1, 0)


class Stopped(BaseException):
    """Such as KeyboardInterrupt."""


@pytest.mark.parametrize("error", [Stopped(), OSError(errno.ENOSPC, "No space left on device")])
def test_a_compaction_that_fails_leaves_nothing_and_changes_continue(
    index: Index, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    index.backup(index.path.with_name("other.rbe"))
    calls = 0

    def failing(descriptor: int) -> None:
        nonlocal calls
        calls += 1
        if calls == 3:  # after the two of a delete
            raise error

    def delete() -> None:
        monkeypatch.setattr(disk, "sync", failing)
        index.delete([1])

    with pytest.raises((Stopped, FileError)), meanwhile(monkeypatch, delete):
        index.compact()
    assert calls == 3
    names(index)
    assert index.delete([1, 2]) == 1
    monkeypatch.setattr(disk, "sync", lambda descriptor: None)
    with Index.open(index.path.with_name("other.rbe"), model=ENCODER) as other:
        other.delete([1, 2])
        assert everything(index) == everything(other)
    index.compact()
    assert index.info()["segments"] == 1


def test_what_a_failed_compaction_cannot_remove_goes_with_the_next_change(
    index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(disk, "sync", full)
        patch.setattr(disk, "unlink", full)
        with pytest.raises(FileError):
            index.compact()
    assert any(UNNAMED.fullmatch(path.name) for path in index.path.iterdir())
    index.delete([1])
    names(index)


def test_a_change_that_fails_ends_the_compaction_beside_it(
    index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The failed change has given up the lock, so another process may have changed the index."""
    seen: list[Any] = []

    def fail() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(disk, "rename", _full)
            with pytest.raises(FileError, match="no space left"):
                index.delete([1])
        with Index.open(index.path, model=ENCODER) as rival:
            rival.delete([2])
            rival.compact()
            rival.upsert(["theirs"], [3])
            seen.extend(everything(rival))

    with (
        meanwhile(monkeypatch, fail),
        pytest.raises(
            LockedError, match="was not compacted: a change failed meanwhile and released the lock"
        ),
    ):
        index.compact()
    assert everything(index) == seen
    names(index)
    index.compact()
    assert everything(index) == seen


def _full(old: Path, new: Path) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_what_a_killed_compaction_leaves_is_removed_by_the_next_writer(index: Index) -> None:
    before = everything(index)
    index.close()
    left = index.path / f"unnamed-{'0a' * 8}.rbs"
    left.write_bytes(b"half of a segment")
    with Index.open(index.path, model=ENCODER, read_only=True) as reader:
        assert everything(reader) == before
        assert left.exists()
    with Index.open(index.path, model=ENCODER) as again:
        again.delete([])
        assert not left.exists()
        names(again)


@pytest.mark.parametrize("count", [1, 63, 64, 65, 200])
def test_ranks(count: int) -> None:
    rng = np.random.default_rng(count)
    flags = rng.random(count) < 0.5
    positions = np.arange(count)
    wanted = [int(flags[:at].sum()) for at in positions]
    assert masks.ranks(masks.from_bools(flags), positions).tolist() == wanted
