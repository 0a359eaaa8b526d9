"""A writer that dies at any of its calls to the disk loses nothing acknowledged and shows nothing half-done.

Two ways to die, both at every single call of a scripted session:

- killed: a real process ends with os._exit before the call, or with half of a write done. What it wrote
  before stays in the system's cache, so this tests the order of steps.
- power cut: only what was synced is sure to survive. Bytes of a file count from its fsync on, names from the
  fsync of their directory on; the rest is lost, torn at sectors, or in any order there already. This tests
  the fsyncs. A second cut comes to a writer that took over from a killed one.

After each death the index opens, holds exactly the keywords of the last acknowledged step or of the one in
flight, verifies, takes new keywords, and has no left-over files.
"""

from __future__ import annotations

import os
import random
import resource
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from rbegir.errors import FileError
from rbegir.index import disk, lock, manifest, writer
from rbegir.index.store import Index
from tests.index.fakes import HashEncoder

ENCODER = HashEncoder()
State = dict[int, str]  # id → text
CALLS = (
    "create",
    "write",
    "sync",
    "sync_directory",
    "rename",
    "exchange",
    "unlink",
    "make_directory",
    "remove_tree",
)


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
        names = manifest.read_manifest(path).files | {manifest.NAME, lock.NAME}
        assert set(os.listdir(path)) == names
    with Index.open(path, model=ENCODER, read_only=True, threads=1) as index:
        assert _contents(index) == {**found, 100: "later"}
        index.verify()


@pytest.fixture(autouse=True)
def _merge_early_and_sync_for_show(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "TIER_ROWS", 2)
    monkeypatch.setattr(writer, "FAN", 2)
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # no power is cut in earnest: only slow


def _run(path: Path, acknowledge: Callable[[], Any]) -> None:
    with Index.open(path, model=ENCODER) as index:
        for step, _ in STEPS:
            step(index)
            acknowledge()


def test_a_killed_process_loses_nothing(tmp_path: Path) -> None:
    Index.create(tmp_path / "empty.rbe", ENCODER).close()
    deaths = 0
    for victim in range(1, 10_000):
        path = tmp_path / "x.rbe"
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(tmp_path / "empty.rbe", path)
        done, status = _run_and_kill(lambda acknowledge, path=path: _run(path, acknowledge), victim)  # type: ignore[misc]
        if status == 0:
            assert done == len(STEPS)
            break
        deaths += 1
        _check_survivor(path, done)
    assert deaths > 100


def _run_and_kill(work: Callable[[Callable[[], Any]], None], victim: int) -> tuple[int, int]:
    """Work in a child that dies at its `victim`-th call; how many steps it acknowledged, and its status."""
    reader, notes = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            _install_killer(victim)
            work(lambda: os.write(notes, b"."))
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


class _PowerCutError(BaseException):
    """The lights go out."""


class PowerCut:
    """Keeps what a strict disk would have kept: see the top of the file."""

    def __init__(self, root: Path) -> None:
        self.calls = 0
        self.victim = 0
        self.dead = False
        self.data = {p.name: p.read_bytes() for p in root.iterdir()}  # durable bytes, by inode stand-in
        self.names = {name: name for name in self.data}  # durable names → inode
        self.live = dict(self.names)  # names as processes see them
        self.fresh: dict[str, bytearray] = {}  # bytes written, not yet synced
        self.open: dict[int, str] = {}
        self.unsynced: list[
            dict[str, str | None]
        ] = []  # changes of names since the last sync of the directory

    def strike(self) -> None:
        self.calls += 1
        self.dead = self.dead or self.calls == self.victim
        if self.dead:  # whatever a dying process still tries does not happen
            raise _PowerCutError

    def back_to_life(self, victim: int) -> None:
        """The next process, which dies at its `victim`-th call."""
        self.calls, self.victim, self.dead = 0, victim, False

    def patch(self, patch: pytest.MonkeyPatch) -> None:
        real = {name: getattr(disk, name) for name in CALLS}

        def create(path: Path) -> int:
            self.strike()
            descriptor: int = real["create"](path)
            inode = f"{path.name}#{len(self.data)}"
            self.open[descriptor] = inode
            self.data[inode], self.fresh[inode] = b"", bytearray()
            self._name({path.name: inode})
            return descriptor

        def write(descriptor: int, data: bytes) -> None:
            self.strike()
            self.fresh[self.open[descriptor]] += data
            real["write"](descriptor, data)

        def sync(descriptor: int) -> None:
            self.strike()
            inode = self.open[descriptor]
            self.data[inode] = bytes(self.fresh[inode])
            real["sync"](descriptor)

        def sync_directory(path: Path) -> None:
            self.strike()
            self.names, self.unsynced = dict(self.live), []
            real["sync_directory"](path)

        def rename(old: Path, new: Path) -> None:
            self.strike()
            self._name({new.name: self.live[old.name], old.name: None})
            real["rename"](old, new)

        def unlink(path: Path) -> None:
            self.strike()
            real["unlink"](path)
            self._name({path.name: None})

        for name, function in locals().items():
            if name in CALLS:
                patch.setattr(disk, name, function)

    def _name(self, change: dict[str, str | None]) -> None:
        self.unsynced.append(change)
        _apply(change, self.live)

    def outcomes(self, chance: random.Random, mixtures: int) -> Iterator[dict[str, bytes]]:
        """What the disk may hold after the cut: nothing unsynced, everything, and random mixtures."""
        yield self._outcome(self.names, lambda size: 0)
        yield self._outcome(self.live, lambda size: size)
        for _ in range(mixtures):
            names = dict(self.names)
            for change in self.unsynced:
                if chance.random() < 0.5:
                    _apply(change, names)
            yield self._outcome(names, lambda size: chance.randint(0, size // 512 + 1) * 512)

    def _outcome(self, names: dict[str, str], kept: Callable[[int], int]) -> dict[str, bytes]:
        files: dict[str, bytes] = {}
        for name, inode in names.items():
            fresh = bytes(self.fresh.get(inode, b""))[len(self.data[inode]) :]
            files[name] = self.data[inode] + fresh[: kept(len(fresh))]
        return files


def _apply(change: dict[str, str | None], names: dict[str, str]) -> None:
    for name, inode in change.items():
        if inode is None:
            names.pop(name, None)
        else:
            names[name] = inode


def _lay_out(path: Path, files: dict[str, bytes]) -> Path:
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir()
    for name, data in files.items():
        (path / name).write_bytes(data)
    return path


def _run_until_cut(path: Path, power: PowerCut) -> tuple[int, bool]:
    """How many steps were acknowledged, and whether the power was cut before the session was over."""
    acknowledged: list[int] = []
    try:
        _run(path, lambda: acknowledged.append(1))
    except _PowerCutError:
        return len(acknowledged), True
    return len(acknowledged), False


@pytest.fixture
def empty(tmp_path: Path) -> dict[str, bytes]:
    """The files of an empty index."""
    Index.create(tmp_path / "empty.rbe", ENCODER).close()
    return {file.name: file.read_bytes() for file in (tmp_path / "empty.rbe").iterdir()}


def test_a_power_cut_loses_nothing(
    tmp_path: Path, empty: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(17)
    tried = 0
    for victim in range(1, 10_000):
        path = _lay_out(tmp_path / "x.rbe", empty)
        power = PowerCut(path)
        power.back_to_life(victim)
        with monkeypatch.context() as patch:
            power.patch(patch)
            acknowledged, cut = _run_until_cut(path, power)
        if not cut:
            break
        for files in power.outcomes(chance, mixtures=1):
            _check_survivor(_lay_out(tmp_path / "after.rbe", files), acknowledged)
            tried += 1
    assert tried > 350


def _without_0(state: State) -> State:
    return {key: text for key, text in state.items() if key != 0}


def _upsert_for_ever(path: Path) -> None:
    with Index.open(path, model=ENCODER) as index:
        while True:
            index.upsert(["never acknowledged"], [0])


def test_a_power_cut_after_a_kill_loses_nothing(
    tmp_path: Path, empty: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A writer that tidies up after another must not rely on a manifest that is not on disk yet."""
    chance = random.Random(23)
    tried = 0
    for victim in range(1, 10_000):
        path = _lay_out(tmp_path / "x.rbe", empty)
        power = PowerCut(path)
        power.back_to_life(victim)
        with monkeypatch.context() as patch:
            power.patch(patch)
            acknowledged, killed = _run_until_cut(path, power)
            if not killed:
                break
            power.back_to_life(chance.randint(1, 6))
            with pytest.raises(_PowerCutError):
                _upsert_for_ever(path)
        for files in power.outcomes(chance, mixtures=4):
            with Index.open(_lay_out(tmp_path / "after.rbe", files), model=ENCODER) as index:
                found = _contents(index)
                last = found.pop(0, None)
                possible = STATES[acknowledged : acknowledged + 2]
                assert any(
                    last in (state.get(0), "never acknowledged") and found == _without_0(state)
                    for state in possible
                )
                index.verify()
                tried += 1
    assert tried > 300


def _batches() -> Iterator[pa.RecordBatch]:
    for start in (0, 3, 6):
        yield pa.record_batch({"text": [f"new {i}" for i in range(start, start + 3)]})


@pytest.mark.parametrize("swaps", [True, False])
@pytest.mark.parametrize("overwrite", [True, False])
def test_a_killed_build_is_all_or_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overwrite: bool, swaps: bool
) -> None:
    """Killed at any call, a build leaves the old index (or none) or the new one; the next build tidies up.

    Where directories cannot be swapped, between two renames the old one is aside: nothing is visible then.
    """
    if not swaps:
        monkeypatch.setattr(disk, "exchange", lambda one, other: False)
    seen: set[int | None] = set()
    path = tmp_path / "folder" / "x.rbe"
    for victim in range(1, 1000):
        shutil.rmtree(path.parent, ignore_errors=True)
        if overwrite:
            with Index.create(path, ENCODER) as index:
                index.add(["old"])

        def build(acknowledge: Callable[[], Any]) -> None:
            Index.build(path, ENCODER, _batches(), segment_rows=4, overwrite=overwrite)
            acknowledge()

        done, status = _run_and_kill(build, victim)
        found = len(Index.open(path)) if path.exists() else None
        seen.add(found)
        if status == 0:
            break
        assert done == 0
        assert found in ({1, 9} if overwrite and swaps else {1, 9, None} if overwrite else {None, 9})
        with Index.build(path, ENCODER, _batches(), overwrite=True) as index:
            assert len(index) == 9
            index.verify()
        assert os.listdir(path.parent) == ["x.rbe"]
    assert seen >= ({1, 9} if overwrite else {None, 9})


def test_a_limit_on_the_size_of_files(tmp_path: Path) -> None:
    """The system itself refuses to write on: nothing is lost, and the reason is said."""
    path = tmp_path / "x.rbe"
    Index.create(path, ENCODER).close()

    def work(acknowledge: Callable[[], Any]) -> None:
        with Index.open(path, model=ENCODER) as index:
            index.add(["a"])
            resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
            with pytest.raises(FileError, match="file too large") as caught:
                index.add([f"t{i}" for i in range(2000)])
            assert "raise the limit" in caught.value.hint
            index.add(["b"])
            acknowledge()

    assert _run_and_kill(work, victim=0) == (1, 0)
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
