"""Power cuts lose nothing, and the harness that says so finds every fault that is put in on purpose."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from rbegir.base import disk
from torture import powerloss
from torture.mutants import MUTANTS
from torture.simdisk import SECTOR, Recorder, SimDisk


def test_a_power_cut_loses_nothing() -> None:
    tally = powerloss.attempt("tests", points=1000)
    assert tally.losses == []
    assert tally.cuts > 4 * tally.crash_points > 4000
    assert min(tally.saw[kind] for kind in ("nothing yet", "one possible", "either")) > 10


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_every_mutant_is_caught(mutant: Callable[[], AbstractContextManager[None]]) -> None:
    assert len(powerloss.attempt("mutants", points=3000, sabotage=mutant).losses) == 1


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
