"""Power cuts lose nothing, and the harness that says so finds every fault that is put in on purpose."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from rbegir.base import disk
from rbegir.index.format import FileWriter, Stamp
from rbegir.index.store import Index
from torture import powerloss
from torture.history import ENCODER, NAME, History, Life, State, contents, no_fsync, record
from torture.mutants import MUTANTS, SALVAGE_MUTANTS
from torture.simdisk import SECTOR, Recorder, SimDisk, Step, lay_out


def test_a_power_cut_loses_nothing() -> None:
    tally = powerloss.attempt("tests", points=1000)
    assert tally.losses == []
    assert tally.cuts > 3 * tally.crash_points > 3000  # many cuts leave equal disks
    assert min(tally.saw[kind] for kind in ("nothing yet", "one possible", "either")) > 10


def test_old_segments_are_truncated_in_the_histories(local_path: Path) -> None:
    steps: list[str] = []
    for number in range(8):
        (local_path / f"{number}").mkdir()
        history = record(local_path / f"{number}", random.Random(f"truncated/{number}"), powerloss.STEPS)
        steps += [step.kind for step in history.trace]
    assert steps.count("truncate") > 10


def test_what_is_truncated_is_gone_at_once(tmp_path: Path) -> None:
    path = tmp_path / "old"
    with Recorder(tmp_path).recording() as recorder:
        disk.write_new(path, [bytes(range(9))])
        disk.sync_directory(tmp_path)
        recorder.trace.append(Step("truncate", recorder.trace[0].change["old"] or 0, size=4))
    simulated = SimDisk()
    for step in recorder.trace:
        simulated.apply(step)
    found = [image["old"] for image in simulated.outcomes(random.Random(1), 4)]
    assert found == [bytes(range(4))] * 8


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_every_mutant_is_caught(mutant: Callable[[], AbstractContextManager[None]]) -> None:
    assert len(powerloss.attempt("mutants", points=3000, sabotage=mutant).losses) == 1


def test_a_power_cut_leaves_the_earlier_backup_or_the_new_one(tmp_path: Path) -> None:
    live, root = tmp_path / "live", tmp_path / "after"
    live.mkdir()
    done: list[tuple[int, State]] = []  # steps after which a backup was acknowledged, and what it holds
    with (
        Recorder(live).recording() as recorder,
        no_fsync(),
        Index.create(live / NAME, ENCODER, threads=1) as index,
    ):
        index.add(["a", "b", "c"])
        for gone in (9, 1):
            index.delete([gone])
            index.backup(live / "copy.rbe")
            done.append((len(recorder.trace), contents(index)))
    simulated = SimDisk()
    seen: list[int] = []
    for number, step in enumerate(recorder.trace, 1):
        simulated.apply(step)
        acknowledged = sum(number >= last for last, _ in done)
        allowed = [state for _, state in done[max(0, acknowledged - 1) : acknowledged + 1]]
        for image in simulated.outcomes(random.Random(number), 4):
            if "copy.rbe" not in image:
                assert not acknowledged
                continue
            lay_out(root, image["copy.rbe"])
            with Index.open(root, model=ENCODER, threads=1, read_only=True) as copy:
                copy.verify()
                assert contents(copy) in allowed
                seen.append(len(copy))
            shutil.rmtree(root)
    assert min(seen.count(2), seen.count(3)) > 10


def _salvage_a_cut_compaction(tmp_path: Path) -> int:
    """Cut the power at every call of a compaction during which keywords change, and lose the manifest too.

    What is salvaged is what was acknowledged, with the change in flight or without it. Cuts in the middle of
    an upsert are left out: without the manifest nothing says that its two files, the new keywords and the
    deletes of the old ones, belong together. Returns how many different disks were salvaged.
    """
    live, root, out = tmp_path / "live", tmp_path / "after", tmp_path / "saved"
    live.mkdir()
    moments: list[tuple[int, frozenset[State]]] = [(0, frozenset([None]))]
    upserts: set[int] = set()  # the calls of upserts
    finish = FileWriter.finish
    with Recorder(live).recording() as recorder, no_fsync():
        life = Life(live / NAME, random.Random(1), recorder, moments)
        life.create()
        life.state = ()
        index = life.open()

        def put(*ids: int, text: str = "old") -> None:
            rows = {i: (f"{text} {i}", None, None) for i in ids}
            texts = [row[0] for row in rows.values()]
            start = len(recorder.trace)
            life._promise(lambda: index.upsert(texts, ids), lambda state: state.update(rows))
            upserts.update(range(start, len(recorder.trace) - 1))

        def delete(*ids: int) -> None:
            life._promise(lambda: index.delete(ids), lambda state: [state.pop(i) for i in ids])

        def interrupted(self: FileWriter, meta: dict[str, Any]) -> Stamp:
            if not next(first, False):
                return finish(self, meta)
            delete(1)
            put(2, 20, text="new")
            stamp = finish(self, meta)
            delete(7, 20)
            return stamp

        put(*range(6))
        put(*range(6, 12))
        delete(0, 6)
        upserts.update(range(len(recorder.trace)))
        first = iter([True])
        with mock.patch.object(FileWriter, "finish", interrupted):
            life._promise(index.compact, lambda state: None)
        assert index.info()["segments"] == 2
        delete(3)
        index.close()
    simulated = SimDisk()
    seen: set[bytes] = set()
    for number, (step, allowed) in enumerate(History(recorder.trace, moments).allowed()):
        simulated.apply(step)
        if number in upserts:
            continue
        for image in simulated.outcomes(random.Random(number), 6):
            digest = powerloss.digest(image, allowed)
            if digest in seen:
                continue
            seen.add(digest)
            lay_out(root, {name: data for name, data in image[NAME].items() if name != "MANIFEST"})
            with no_fsync():
                Index.salvage(root, out)
            with Index.open(out, threads=1, read_only=True) as saved:
                assert contents(saved) in allowed, f"after call {number}: {sorted(image[NAME])}"
            shutil.rmtree(root)
            shutil.rmtree(out)
    return len(seen)


def test_salvage_after_a_power_cut_brings_no_deleted_keyword_back(tmp_path: Path) -> None:
    assert _salvage_a_cut_compaction(tmp_path) > 100


@pytest.mark.parametrize("mutant", SALVAGE_MUTANTS, ids=lambda mutant: mutant.__name__)
def test_salvage_notices_every_mutant(
    mutant: Callable[[], AbstractContextManager[None]], tmp_path: Path
) -> None:
    with mutant(), pytest.raises(AssertionError, match="after call"):
        _salvage_a_cut_compaction(tmp_path)


def _disk_after(tmp_path: Path, work: Callable[[Path], None]) -> SimDisk:
    with Recorder(tmp_path).recording() as recorder:
        work(tmp_path)
    simulated = SimDisk()
    for step in recorder.trace:
        simulated.apply(step)
    return simulated


def test_unsynced_sectors_are_lost_torn_or_out_of_order(tmp_path: Path) -> None:
    first, second = bytes([1]) * SECTOR, bytes([2]) * 3 * SECTOR

    def work(root: Path) -> None:
        descriptor = disk.create(root / "file")
        disk.write(descriptor, first)
        disk.sync(descriptor)
        disk.sync_directory(root)
        disk.write(descriptor, second)

    simulated = _disk_after(tmp_path, work)
    seen = {image["file"] for image in simulated.outcomes(random.Random(1), 2000)}
    assert {first, first + second, first + second[:SECTOR], first + bytes(3 * SECTOR)} <= seen
    # a hole: the later one came first
    assert first + second[:SECTOR] + bytes(SECTOR) + second[:SECTOR] in seen
    assert all(data.startswith(first) and len(data) <= len(first + second) for data in seen)


def test_unsynced_names_come_and_go_one_by_one(tmp_path: Path) -> None:
    def work(root: Path) -> None:
        for name in ("old", "new"):
            descriptor = disk.create(root / name)
            disk.write(descriptor, name.encode())
            disk.sync(descriptor)
        disk.sync_directory(root)
        disk.rename(root / "new", root / "old")
        disk.make_directory(root / "folder")

    simulated = _disk_after(tmp_path, work)
    seen = {
        (image["old"], "new" in image, "folder" in image)
        for image in simulated.outcomes(random.Random(1), 300)
    }
    kept, replaced, doubled = (b"old", True), (b"new", False), (b"new", True)
    assert seen == {(*names, folder) for names in (kept, replaced, doubled) for folder in (True, False)}


def test_a_synced_disk_has_one_outcome(tmp_path: Path) -> None:
    def work(root: Path) -> None:
        disk.make_directory(root / "folder")
        descriptor = disk.create(root / "folder" / "file")
        disk.write(descriptor, b"data")
        disk.sync(descriptor)
        disk.sync_directory(root / "folder")
        disk.sync_directory(root)
        disk.remove_tree(root / "folder")
        disk.sync_directory(root)

    simulated = _disk_after(tmp_path, work)
    assert all(image == {} for image in simulated.outcomes(random.Random(1), 50))
