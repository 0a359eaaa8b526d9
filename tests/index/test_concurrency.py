"""Readers beside a writer, two writers, threads, forks."""

from __future__ import annotations

import gc
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rbegir.base import disk
from rbegir.errors import CorruptError, FileError, LockedError
from rbegir.index import writer
from rbegir.index.snapshot import Snapshot
from rbegir.index.store import Index
from tests.index.fakes import HashEncoder

ENCODER = HashEncoder()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "x.rbe"
    with Index.create(path, ENCODER) as index:
        index.add([f"t{i}" for i in range(100)])
    return path


def _in_child(work: Callable[[], Any]) -> Any:
    """What a function returns in a forked child, as JSON."""
    reader, output = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.write(output, json.dumps(work()).encode())
            status = 0
        finally:
            os._exit(status)
    os.close(output)
    with os.fdopen(reader, "rb") as stream:
        answer = stream.read()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    return json.loads(answer)


def _refusal(use: Callable[[], Any]) -> str:
    with pytest.raises(LockedError) as caught:
        use()
    return caught.value.message


def test_the_second_writer_is_refused_and_told_who_holds_it(path: Path) -> None:
    with Index.open(path, model=ENCODER) as first, Index.open(path, model=ENCODER) as second:
        first.add(["first"])
        message = _refusal(lambda: second.add(["second"]))
        assert (
            f"{path} is being written by process {os.getpid()} on {os.uname().nodename} since 20" in message
        )
        assert _in_child(lambda: _refusal(lambda: Index.open(path).delete([1]))) == message
        assert len(second) == 100  # reading goes on
        second.refresh()
        assert len(second) == 101
        first.close()
        assert second.add(["second"]).tolist() == [101]


def test_a_copy_of_a_live_index_is_one_state_of_it_or_is_refused(path: Path, tmp_path: Path) -> None:
    """What the page about indexes promises of a backup; keyword 0 says in which state it was taken."""
    stop, copies, whole = threading.Event(), 0, 0

    def work() -> None:
        with Index.open(path, model=ENCODER) as index:
            step = 0
            while not stop.is_set():
                step += 1
                index.upsert([f"step {step}", f"step {step}"], [0, 1])
                if step % 7 == 0:
                    index.compact()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        while whole < 5:
            copies += 1
            copy = tmp_path / f"copy-{copies}.rbe"
            try:
                shutil.copytree(path, copy)
                with Index.open(copy, model=ENCODER) as index:
                    index.verify()
                    first, second, third = index.get([0, 1, 2])
            except (shutil.Error, OSError, FileError):
                continue  # a file was gone: copy again
            assert first is not None
            assert second is not None
            assert first["text"] == second["text"] or (first["text"], second["text"]) == ("t0", "t1")
            assert third == {"id": 2, "text": "t2"}
            whole += 1
    finally:
        stop.set()
        thread.join()


def test_a_writer_starts_from_the_latest_state(path: Path) -> None:
    stale = Index.open(path, model=ENCODER)
    with Index.open(path, model=ENCODER) as other:
        other.delete(list(range(50)))
        other.compact()
    assert stale.add(["new"]).tolist() == [100]
    assert len(stale) == 51


def test_a_killed_writer_leaves_no_lock(path: Path) -> None:
    script = (
        "import os, sys; from rbegir.index.store import Index\n"
        "index = Index.open(sys.argv[1]); index.delete([0]); os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", script, str(path)], check=False)
    assert done.returncode == -9
    with Index.open(path, model=ENCODER) as index:
        assert index.delete([0, 1]) == 1


def test_a_forgotten_writer_leaves_no_lock(path: Path) -> None:
    Index.open(path, model=ENCODER).delete([0])
    gc.collect()
    with Index.open(path, model=ENCODER) as index:
        assert index.delete([0, 1]) == 1


def test_an_unreadable_note_does_not_matter(path: Path) -> None:
    with Index.open(path, model=ENCODER) as index:
        index.delete([0])
        (path / writer.LOCK).write_bytes(b"\xff{")
        assert "is being written by another process" in _refusal(lambda: Index.open(path).delete([1]))


def test_a_forked_child_may_read_but_not_write(path: Path) -> None:
    with Index.open(path, model=ENCODER) as index:
        index.add(["mine"])
        wanted = index.search("mine", k=3).ids.tolist()
        assert _in_child(lambda: index.search("mine", k=3).ids.tolist()) == wanted
        message = _in_child(lambda: _refusal(lambda: index.add(["the child's"])))
        assert f"is being written by process {os.getpid()}, from which this one was forked" in message
        index.add(["still mine"])
        assert len(index) == 102


def test_a_reader_keeps_its_state_while_its_files_are_removed(path: Path) -> None:
    with Index.open(path, model=ENCODER, read_only=True) as reader:
        with Index.open(path, model=ENCODER) as index:
            index.delete(list(range(0, 100, 2)))
            index.compact()
            index.delete(list(range(1, 100, 2)))
            index.add(["another"])
        assert len(reader) == 100
        hits = reader.search("t7", k=100)
        assert sorted(hits.ids[0].tolist()) == list(range(100))
        assert hits.texts[0, 0] == "t7"
        reader.refresh()
        assert reader.search("t7", k=100).texts.tolist() == [["another"]]


def test_a_reader_that_comes_too_late_for_its_manifest_reads_the_next(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between reading the manifest and opening its files, a compaction removes them."""
    import rbegir.index.snapshot as module

    original = module.read_manifest
    calls = 0

    def slow(directory: Path) -> Any:
        nonlocal calls
        manifest = original(directory)
        calls += 1
        if calls == 1:
            with monkeypatch.context() as patch:
                patch.setattr(module, "read_manifest", original)
                with Index.open(path, model=ENCODER) as index:
                    index.delete([5])
                    index.compact()
        return manifest

    monkeypatch.setattr(module, "read_manifest", slow)
    assert Snapshot.open(path).keywords == 99
    assert calls == 2


def test_a_file_that_is_lost_is_not_waited_for(path: Path) -> None:
    segment = next(file for file in path.iterdir() if file.suffix == ".rbs")
    segment.unlink()
    with pytest.raises(CorruptError, match=f"{segment.name} is missing, but the manifest names it"):
        Index.open(path)


def test_no_handles_left(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import rbegir.index.format as module

    original = module.os.open

    def few(name: Any, *arguments: Any) -> int:
        if str(name).endswith(".rbs"):
            raise OSError(24, "Too many open files", str(name))
        return original(name, *arguments)

    monkeypatch.setattr(module.os, "open", few)
    with pytest.raises(FileError, match=r"cannot read .*\.rbs: too many open files") as caught:
        Index.open(path)
    assert caught.value.hint == "raise the limit on open files (ulimit -n)"


def test_threads_search_while_one_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a search sees is one state: ids 0 … m − 1 of some m, or the same less the first half."""
    monkeypatch.setattr(disk.os, "fsync", lambda descriptor: None)
    monkeypatch.setattr(writer, "TIER_ROWS", 16)
    index = Index.create(tmp_path / "x.rbe", ENCODER)
    index.add(["t0"], attributes={"price": [0]})
    stop = threading.Event()
    wrong: list[Any] = []

    def read(own: Index) -> None:
        while not stop.is_set():
            own.refresh()
            hits = own.search("t0", k=10_000, where="price >= 0")
            ids = np.sort(hits.ids[0])
            if ids[-1] - ids[0] + 1 != len(ids) or ids[0] not in (0, 100):
                wrong.append(ids)
            if any(text != f"t{key}" for key, text in zip(hits.ids[0], hits.texts[0], strict=True)):
                wrong.append(hits.texts)

    readers = [index, index, Index.open(index.path, model=ENCODER, read_only=True)]
    threads = [threading.Thread(target=read, args=(own,)) for own in readers]
    for thread in threads:
        thread.start()
    for i in range(1, 200):
        index.add([f"t{i}"], attributes={"price": [i]})
    index.delete(list(range(100)))
    index.compact()
    stop.set()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert len(index) == 100
