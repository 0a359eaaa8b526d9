"""Streaming builds: bounded, complete, and nothing visible before the end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from rbegir.base import disk
from rbegir.errors import FileError, InputError, LockedError
from rbegir.index import format as file_format
from rbegir.index import segment
from rbegir.index.creation import fill
from rbegir.index.store import Index
from rbegir.read.pairs import read_texts
from tests.index.fakes import HashEncoder

ENCODER = HashEncoder()


def _batches(sizes: list[int]) -> Iterator[pa.RecordBatch]:
    start = 0
    for size in sizes:
        numbers = range(start, start + size)
        prices = pa.array([float("nan") if i % 5 == 0 else i / 2 for i in numbers], pa.float64())
        yield pa.RecordBatch.from_arrays(
            [pa.array([f"t{i}" for i in numbers]), pa.array([f"k{i}" for i in numbers]), prices],
            names=["text", "id", "price"],
        )
        start += size


@pytest.mark.parametrize("segment_rows", [1, 7, 64, 1000])
def test_all_rows_arrive(tmp_path: Path, segment_rows: int) -> None:
    with Index.build(
        tmp_path / "x.rbe", ENCODER, _batches([3, 0, 20, 1, 40]), segment_rows=segment_rows
    ) as index:
        assert len(index) == 64
        records = index.get([f"k{i}" for i in range(64)])
        assert [record["text"] for record in records if record] == [f"t{i}" for i in range(64)]
        assert [record["price"] for record in records if record] == [
            None if i % 5 == 0 else i / 2 for i in range(64)
        ]
        index.verify()
        index.add(["more"], ["more"])  # the writer is ours
    assert os.listdir(tmp_path) == ["x.rbe"]


def test_a_build_that_fails_leaves_nothing(tmp_path: Path) -> None:
    def broken() -> Iterator[pa.RecordBatch]:
        yield from _batches([10])
        raise RuntimeError("the source broke")

    with pytest.raises(RuntimeError, match="the source broke"):
        Index.build(tmp_path / "x.rbe", ENCODER, broken(), segment_rows=4)
    with pytest.raises(InputError, match="id 'k0' is in the index already"):
        Index.build(tmp_path / "x.rbe", ENCODER, [*_batches([5]), *_batches([5])], segment_rows=5)
    with pytest.raises(InputError, match="batches must have a column 'text', got word"):
        Index.build(tmp_path / "x.rbe", ENCODER, [pa.record_batch({"word": ["a"]})])
    with pytest.raises(InputError, match="segment_rows must be a whole number of at least 1, got 0"):
        Index.build(tmp_path / "x.rbe", ENCODER, _batches([5]), segment_rows=0)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("segment_rows", [1, 4, 100])
def test_of_an_id_that_comes_again_the_last_row_counts(tmp_path: Path, segment_rows: int) -> None:
    keys = [f"k{i * i % 7}" for i in range(30)]
    batches = [
        pa.record_batch({"text": [f"t{i}" for i in part], "id": [keys[i] for i in part]})
        for part in (range(13), range(13, 30))
    ]
    wanted = {key: f"t{i}" for i, key in enumerate(keys)}
    with Index.build(tmp_path / "x.rbe", ENCODER, batches, upsert=True, segment_rows=segment_rows) as index:
        assert len(index) == len(wanted)
        assert [record["text"] for record in index.get(list(wanted)) if record] == list(wanted.values())
    with pytest.raises(InputError, match="ids holds 'k0' more than once") as caught:
        Index.build(tmp_path / "y.rbe", ENCODER, batches, segment_rows=100)
    assert caught.value.hint == "remove all but one, or keep the last with --upsert (upsert=True in Python)"
    with pytest.raises(InputError, match="upsert needs ids"):
        Index.build(tmp_path / "y.rbe", ENCODER, [pa.record_batch({"text": ["a"]})], upsert=True)


def test_a_build_does_not_touch_what_is_there(tmp_path: Path) -> None:
    Index.build(tmp_path / "x.rbe", ENCODER, _batches([5])).close()
    with pytest.raises(FileError, match=r"x\.rbe exists already"):
        Index.build(tmp_path / "x.rbe", ENCODER, _batches([6]))
    with pytest.raises(RuntimeError, match="stop"):
        Index.build(tmp_path / "x.rbe", ENCODER, _stopping(), overwrite=True)
    assert len(Index.open(tmp_path / "x.rbe")) == 5
    with Index.build(tmp_path / "x.rbe", ENCODER, _batches([6]), overwrite=True) as index:
        assert len(index) == 6
        with pytest.raises(LockedError):
            Index.build(tmp_path / "x.rbe", ENCODER, _batches([7]), overwrite=True)
    assert os.listdir(tmp_path) == ["x.rbe"]


def _stopping() -> Iterator[pa.RecordBatch]:
    yield from _batches([3])
    raise RuntimeError("stop")


def test_an_index_is_replaced_through_a_link(tmp_path: Path) -> None:
    target, link = tmp_path / "version 1" / "ads.rbe", tmp_path / "ads.rbe"
    link.symlink_to(target)  # to nothing yet
    for text in ("first", "second"):
        with Index.create(link, HashEncoder(), overwrite=True) as index:
            index.add([text])
        with Index.build(link, HashEncoder(), [pa.record_batch({"text": [text]})], overwrite=True) as index:
            index.add(["more"])
        assert [row["text"] for row in Index.open(target).rows()] == [text, "more"]
    assert link.is_symlink()
    assert [path.name for path in target.parent.iterdir()] == ["ads.rbe"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ads.rbe", "version 1"]


def test_a_link_that_a_build_has_left_is_removed(tmp_path: Path) -> None:
    other = tmp_path / "other.rbe"
    with Index.create(other, HashEncoder()) as index:
        index.add(["kept"])
    for name, target in (("1", other), ("2", tmp_path / "nothing")):
        (tmp_path / f".x.rbe.new-{name}").symlink_to(target)
    Index.create(tmp_path / "x.rbe", HashEncoder()).close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other.rbe", "x.rbe"]
    assert [row["text"] for row in Index.open(other).rows()] == ["kept"]


def test_a_killed_build_leaves_nothing_visible_and_is_tidied_up(tmp_path: Path) -> None:
    script = """
import os, sys
from rbegir.index.store import Index
from tests.index.fakes import HashEncoder
from tests.index.test_build import _batches
def batches():
    yield from _batches([100, 100])
    print("half-way", flush=True)
    sys.stdin.read()
Index.build(sys.argv[1], HashEncoder(), batches(), segment_rows=50)
"""
    command = [sys.executable, "-c", script, str(tmp_path / "x.rbe")]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stdout.readline() == b"half-way\n"
    with Index.build(tmp_path / "y.rbe", ENCODER, _batches([1])):
        pass  # another build in the same place leaves it alone
    left = {name for name in os.listdir(tmp_path) if name != "y.rbe"}
    assert left == {f".x.rbe.new-{child.pid}"}
    with Index.build(tmp_path / "x.rbe", ENCODER, _batches([2])):
        pass  # and so does one of the same name, while it lives
    assert left < set(os.listdir(tmp_path))
    child.send_signal(signal.SIGKILL)
    child.communicate()
    with Index.build(tmp_path / "x.rbe", ENCODER, _batches([3]), overwrite=True) as index:
        assert len(index) == 3
    assert sorted(os.listdir(tmp_path)) == ["x.rbe", "y.rbe"]


def test_adding_from_a_stream(tmp_path: Path) -> None:
    with Index.build(tmp_path / "x.rbe", ENCODER, _batches([5])) as index:
        with pytest.raises(InputError, match="id 'k0' is in the index already"):
            fill(index, _batches([8]))
        assert fill(index, _batches([8]), 3, upsert=True) == 8
        assert len(index) == 8


def test_memory_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten times the rows, merges included, do not take ten times the memory."""
    monkeypatch.setattr(segment, "CHUNK", 1024)
    monkeypatch.setattr(file_format, "BUFFER", 16 * file_format.BLOCK)

    class Zeros(HashEncoder):
        def _encode(self, texts: list[str], planes: int) -> object:  # type: ignore[override]
            from rbegir.codes.planes import Codes

            return Codes(np.zeros((planes, len(texts), 1), np.uint64), 64)

    def batches(count: int) -> Iterator[pa.RecordBatch]:
        for _ in range(count):
            yield pa.record_batch({"text": ["some text"] * 1000})

    peaks: list[int] = []
    for count in (8, 80):
        arrow = pa.total_allocated_bytes()
        tracemalloc.start()
        Index.build(tmp_path / f"{count}.rbe", Zeros(), batches(count), segment_rows=4000).close()
        peaks.append(tracemalloc.get_traced_memory()[1] + pa.total_allocated_bytes() - arrow)
        tracemalloc.stop()
    assert peaks[1] < 2 * peaks[0]


class InTens(HashEncoder):
    """Encodes ten texts at a time."""

    encode_rows = 10


@pytest.mark.parametrize("segment_rows", [20, 1000])
def test_progress_counts_what_is_encoded(tmp_path: Path, segment_rows: int) -> None:
    """The file is read at once; the keywords are not done before they are encoded."""
    lines = tmp_path / "lines.txt"
    lines.write_text("".join(f"text {i}\n" for i in range(35)))
    reports: list[tuple[int, int]] = []

    def report(done: int, total: int) -> None:
        reports.append((done, total))

    with Index.build(
        tmp_path / "x.rbe", InTens(), read_texts(lines), segment_rows=segment_rows, progress=report
    ) as index:
        assert sorted(set(reports)) == [(10, 35), (20, 35), (30, 35), (35, 35)]
        assert reports == sorted(reports)
        reports.clear()
        index.add([f"more {i}" for i in range(21)], progress=report)
        assert reports == [(10, 21), (20, 21), (21, 21)]
        reports.clear()
        unknown = [pa.record_batch({"text": [f"last {i}" for i in range(12)]})]
        fill(index, unknown, progress=report)  # nobody knows how many are to come
    assert reports == [(10, None), (12, None), (12, None)]


def test_a_long_file_is_copied_and_synced_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A change beside a compaction waits for one piece at most, and not for a whole segment."""
    monkeypatch.setattr(file_format, "BUFFER", 2 * file_format.BLOCK)
    monkeypatch.setattr(file_format, "SYNC_BYTES", 8 * file_format.BLOCK)
    write, sync = disk.write, disk.sync
    turns: list[str] = []
    writes: list[int] = []
    unsynced: list[int] = [0]  # bytes at every moment

    def counted(descriptor: int, data: disk.Buffer) -> None:
        writes.append(len(data))
        unsynced.append(unsynced[-1] + len(data))
        write(descriptor, data)

    def synced(descriptor: int) -> None:
        turns.append("sync")
        unsynced.append(0)
        sync(descriptor)

    @contextmanager
    def turn() -> Iterator[None]:
        turns.append("begin")
        yield
        turns.append("end")

    monkeypatch.setattr(disk, "write", counted)
    monkeypatch.setattr(disk, "sync", synced)
    given = np.random.default_rng(1).integers(0, 256, 100 * file_format.BLOCK + 5, np.uint8)
    with file_format.FileWriter(tmp_path / "x", file_format.FileKind.SEGMENT, turn) as writer:
        writer.section("long", given)
        stamp = writer.finish({})
    assert max(writes) <= 3 * file_format.BLOCK
    assert max(unsynced) <= 10 * file_format.BLOCK
    assert unsynced[-1] == 0
    assert turns == ["begin", "sync", "end"] * (len(turns) // 3)
    assert len(turns) > 30
    file = file_format.File(tmp_path / "x", file_format.FileKind.SEGMENT, stamp)
    assert not [*file.damage()]
    assert np.array_equal(file.section("long").view(np.uint8, given.size), given)
