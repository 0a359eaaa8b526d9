"""A writer that is killed or refused at any of its calls to the disk loses nothing acknowledged.

At every single call of a scripted session a real process ends with os._exit before the call, or with half of
a write done, or the call fails as on a full disk. What was written before stays in the system's cache, so
this tests the order of steps; `tests/torture/test_powerloss.py` tests the syncs.

After each death the index opens, holds exactly the keywords of the last acknowledged step or of the one in
flight, verifies, takes new keywords, and has no left-over files.

The processes that die are forks of a small one. A fork of the process that runs the tests would copy the page
tables of all that other tests have imported, hundreds of times.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from rbegir.base import disk
from rbegir.errors import FileError
from rbegir.index import manifest, writer
from rbegir.index.store import Index
from tests.index.fakes import HashEncoder
from torture.simdisk import CALLS

ENCODER = HashEncoder()
ROOT = Path(__file__).parents[2]
State = dict[int, str]  # id → text


def _session() -> list[tuple[Callable[[Index], Any], Callable[[State], Any]]]:
    """Steps, each as what it does to an index and to a dict."""

    def add(ids: list[int], mark: str) -> tuple[Callable[[Index], Any], Callable[[State], Any]]:
        texts = [f"{mark}{i}" for i in ids]
        attributes = {"price": ids, "lang": [None if i % 2 else "en" for i in ids]}
        return (
            lambda index: index.upsert(texts, ids, attributes),
            lambda state: state.update(zip(ids, texts, strict=True)),
        )

    def delete(ids: list[int]) -> tuple[Callable[[Index], Any], Callable[[State], Any]]:
        return lambda index: index.delete(ids), lambda state: [state.pop(i, None) for i in ids]

    return [
        add([0, 1, 2], "a"),
        add([3], "a"),
        delete([1]),
        add([4, 5], "a"),
        add([0, 4, 6], "b"),  # takes the place of two, and merges
        delete([5, 6]),
        add([7], "c"),
        (lambda index: index.compact(), lambda state: None),
        add([0, 8], "d"),
        delete([0, 8, 2, 3, 4, 7]),  # nothing is left
        add([9], "e"),
    ]


STEPS = _session()
STATES: list[State] = [{}]
for _, _change in STEPS:
    STATES.append(dict(STATES[-1]))
    _change(STATES[-1])


def _contents(index: Index) -> State:
    if not len(index):
        return {}
    hits = index.search("x", k=1000)
    return dict(zip(hits.ids[0].tolist(), hits.texts[0].tolist(), strict=True))


def _check_survivor(path: Path, acknowledged: int) -> None:
    """The index is in the state of the last acknowledged step, or of the next, and goes on working."""
    with Index.open(path, model=ENCODER, threads=1) as index:
        found = _contents(index)
        assert found in STATES[acknowledged : acknowledged + 2]
        index.verify()
        index.upsert(["later"], [100], {"price": [1]})
        assert _contents(index) == {**found, 100: "later"}
        names = {*manifest.read_manifest(path).files, manifest.NAME, writer.LOCK}
        assert set(os.listdir(path)) == names
    with Index.open(path, model=ENCODER, read_only=True, threads=1) as index:
        assert _contents(index) == {**found, 100: "later"}
        index.verify()


def _merge_early_and_sync_for_show(patch: Callable[[Any, str, Any], None]) -> None:
    patch(writer, "TIER_ROWS", 2)
    patch(writer, "FAN", 2)
    patch(os, "fsync", lambda descriptor: None)  # no power is cut in earnest: only slow


@pytest.fixture(autouse=True)
def _here_too(monkeypatch: pytest.MonkeyPatch) -> None:
    _merge_early_and_sync_for_show(monkeypatch.setattr)


Die = Callable[..., tuple[int, int]]


@pytest.fixture(scope="module")
def die() -> Iterator[Die]:
    """`die(work, victim, *arguments)` works in a child that dies at its `victim`-th call to the disk.

    It returns how many steps the child acknowledged, and its exit status.
    """
    command = [sys.executable, "-c", "from tests.index import test_crash; test_crash.serve()"]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as small:

        def ask(work: Callable[..., None], victim: int, *arguments: Any) -> tuple[int, int]:
            print(json.dumps([work.__name__, victim, *arguments]), file=small.stdin, flush=True)
            done, status = json.loads(small.stdout.readline())  # type: ignore[union-attr]
            return done, status

        yield ask


def serve() -> None:
    """Read what to do, one line each, do it in a fork, and print how that ended."""
    _merge_early_and_sync_for_show(setattr)
    with tempfile.TemporaryDirectory() as folder:  # or each fork would import what is imported when needed
        Index.create(f"{folder}/x.rbe", ENCODER).close()
        run_session(lambda: None, f"{folder}/x.rbe")
        Index.build(f"{folder}/y.rbe", ENCODER, _batches()).backup(f"{folder}/z.rbe")
    for line in sys.stdin:
        name, victim, *arguments = json.loads(line)
        print(json.dumps(_run_and_kill(globals()[name], victim, arguments)), flush=True)


def run_session(acknowledge: Callable[[], Any], path: str) -> None:
    with Index.open(path, model=ENCODER) as index:
        for step, _ in STEPS:
            step(index)
            acknowledge()


def test_a_killed_process_loses_nothing(tmp_path: Path, die: Die) -> None:
    Index.create(tmp_path / "empty.rbe", ENCODER).close()
    deaths = 0
    for victim in range(1, 10_000):
        path = tmp_path / "x.rbe"
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(tmp_path / "empty.rbe", path)
        done, status = die(run_session, victim, str(path))
        if status == 0:
            assert done == len(STEPS)
            break
        assert status == 9
        deaths += 1
        _check_survivor(path, done)
    assert deaths > 100


def _run_and_kill(work: Callable[..., None], victim: int, arguments: list[Any]) -> tuple[int, int]:
    reader, notes = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            _install_killer(victim)
            work(lambda: os.write(notes, b"."), *arguments)
            status = 0
        finally:
            os._exit(status)
    os.close(notes)
    with os.fdopen(reader, "rb") as stream:
        done = len(stream.read())
    return done, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _install_killer(victim: int) -> None:
    left = victim
    for name in CALLS:
        original = getattr(disk, name)

        def wrapped(*arguments: Any, _name: str = name, _original: Any = original) -> Any:
            nonlocal left
            left -= 1
            if left == 0:
                if _name == "write":
                    os.write(arguments[0], bytes(arguments[1])[: len(arguments[1]) // 2])
                os._exit(9)
            return _original(*arguments)

        setattr(disk, name, wrapped)


def _batches() -> Iterator[pa.RecordBatch]:
    for start in (0, 3, 6):
        yield pa.record_batch({"text": [f"new {i}" for i in range(start, start + 3)]})


def _cannot_swap(patch: Callable[[Any, str, Any], None]) -> None:
    patch(disk, "exchange", lambda one, other: False)


def build(acknowledge: Callable[[], Any], path: str, overwrite: bool, swaps: bool) -> None:
    if not swaps:
        _cannot_swap(setattr)
    Index.build(path, ENCODER, _batches(), segment_rows=4, overwrite=overwrite)
    acknowledge()


@pytest.mark.parametrize("swaps", [True, False])
@pytest.mark.parametrize("overwrite", [True, False])
def test_a_killed_build_is_all_or_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, die: Die, overwrite: bool, swaps: bool
) -> None:
    """Killed at any call, a build leaves the old index (or none) or the new one; the next build tidies up.

    Where directories cannot be swapped, between two renames the old one is aside: nothing is visible then.
    """
    if not swaps:
        _cannot_swap(monkeypatch.setattr)
    seen: set[int | None] = set()
    path = tmp_path / "folder" / "x.rbe"
    for victim in range(1, 1000):
        shutil.rmtree(path.parent, ignore_errors=True)
        if overwrite:
            with Index.create(path, ENCODER) as index:
                index.add(["old"])
        done, status = die(build, victim, str(path), overwrite, swaps)
        found = len(Index.open(path)) if path.exists() else None
        seen.add(found)
        if status == 0:
            break
        assert (done, status) == (0, 9)
        assert found in ({1, 9} if overwrite and swaps else {1, 9, None} if overwrite else {None, 9})
        with Index.build(path, ENCODER, _batches(), overwrite=True) as index:
            assert len(index) == 9
            index.verify()
        assert os.listdir(path.parent) == ["x.rbe"]
    assert seen >= ({1, 9} if overwrite else {None, 9})


def back_up(acknowledge: Callable[[], Any], source: str, out: str) -> None:
    with Index.open(source, read_only=True) as index:
        assert index.backup(out)["unchanged"] in (1, 2)
    acknowledge()


def test_a_killed_backup_is_all_or_nothing(tmp_path: Path, die: Die) -> None:
    """Killed at any call, a backup leaves the earlier one or the new one; the next one tidies up."""
    source, earlier, folder = tmp_path / "x.rbe", tmp_path / "earlier", tmp_path / "folder"
    with Index.create(source, ENCODER) as index:
        index.add(["a", "b", "c"])
        index.backup(earlier / "x.rbe")
        index.delete([1])
    seen = []
    where = str(source), str(folder / "x.rbe")
    for victim in range(1, 1000):
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(earlier, folder)
        done, status = die(back_up, victim, *where)
        with Index.open(folder / "x.rbe", model=ENCODER, read_only=True) as copy:
            copy.verify()
            seen.append(_contents(copy))
        if status == 0:
            break
        assert (done, status) == (0, 9)
        back_up(lambda: None, *where)
        with Index.open(folder / "x.rbe", model=ENCODER, read_only=True) as copy:
            assert _contents(copy) == {0: "a", 2: "c"}
        assert os.listdir(folder) == ["x.rbe"]
    swapped = seen.index({0: "a", 2: "c"})
    assert seen[:swapped] == [{0: "a", 1: "b", 2: "c"}] * swapped
    assert seen[swapped:] == [{0: "a", 2: "c"}] * (len(seen) - swapped)
    assert 10 < swapped < len(seen) - 1


def write_too_much(acknowledge: Callable[[], Any], path: str) -> None:
    with Index.open(path, model=ENCODER) as index:
        index.add(["a"])
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
        with pytest.raises(FileError, match="file too large") as caught:
            index.add([f"t{i}" for i in range(2000)])
        assert "raise the limit" in caught.value.hint
        index.add(["b"])
        acknowledge()


def test_a_limit_on_the_size_of_files(tmp_path: Path, die: Die) -> None:
    """The system itself refuses to write on: nothing is lost, and the reason is said."""
    path = tmp_path / "x.rbe"
    Index.create(path, ENCODER).close()
    assert die(write_too_much, 0, str(path)) == (1, 0)
    with Index.open(path, model=ENCODER) as index:
        assert _contents(index) == {0: "a", 1: "b"}
        index.verify()


def test_a_full_disk_at_any_call_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call in turn fails once with ENOSPC: the step says so, and the next try goes through."""
    path = tmp_path / "x.rbe"
    index = Index.create(path, ENCODER)
    messages: set[tuple[str, str]] = set()
    for number, (step, _) in enumerate(STEPS):
        for victim in range(1, 1000):
            with monkeypatch.context() as patch:
                _fail_once(patch, victim)
                try:
                    step(index)
                    break  # it did not get as far as its victim, or only failed to tidy up
                except FileError as error:
                    messages.add((error.message, error.hint))
            assert _contents(index) in STATES[number : number + 2]
            index.verify()
        assert _contents(index) == STATES[number + 1]
    index.close()
    _check_survivor(path, len(STEPS))
    hint = "free some space and try again; what was acknowledged before is still there"
    assert messages == {(f"cannot write to {path}: no space left on device", hint)}


def _fail_once(patch: pytest.MonkeyPatch, victim: int) -> None:
    left = victim
    for name in CALLS:
        original = getattr(disk, name)

        def wrapped(*arguments: Any, _original: Any = original) -> Any:
            nonlocal left
            left -= 1
            if left == 0:
                raise OSError(28, "No space left on device")
            return _original(*arguments)

        patch.setattr(disk, name, wrapped)
