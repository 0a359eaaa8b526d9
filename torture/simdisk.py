"""A disk that forgets what was not synced.

`Recorder` stands in for the calls of `rbegir.base.disk`: they happen for real (in a directory in memory, so
that the index can map its files) and are written down as a trace. `SimDisk` replays a trace and says, after
any of its steps, what a disk may hold if the power is cut there:

    bytes of a file    those before its last fsync are there; of the rest each 512-byte sector is there, lost
                       (the file ends before it), zero, or garbage, whatever the order it was written in; the
                       length lies anywhere between
                       (what is truncated is gone at once)
    names              those before the last fsync of their directory are there; each later change (create,
                       link, rename, swap, unlink, mkdir) has happened or has not, whatever the others did,
                       and a rename may have given the new name without taking the old one

That is weaker than any real file system, so what survives here survives there. A trace is recorded once and
cut everywhere: a hundred thousand cuts cost a hundred thousand openings, not as many sessions.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from rbegir.base import disk

SECTOR = 512
ROOT = 0  # the inode of the directory that is simulated
CALLS = (
    "create",
    "write",
    "sync",
    "sync_directory",
    "rename",
    "link",
    "exchange",
    "unlink",
    "open_writable",
    "truncate_unused",
    "make_directory",
    "remove_tree",
)

Image = dict[str, Any]  # name → bytes of a file, or the Image of a directory
Names = dict[str, int]  # name → inode
Change = dict[str, int | None]  # names added (an inode) and removed (None) in one step


@dataclass(frozen=True)
class Step:
    """One entry of a trace: what happened to which inode."""

    kind: str  # name, write, sync, truncate, syncdir
    inode: int  # of the file, or of the directory
    change: Change = field(default_factory=dict)
    data: bytes = b""
    new: dict[int, str] = field(default_factory=dict)  # new inodes: "file" or "directory"
    size: int = 0  # that a file is truncated to


Fault = Callable[[str, int, tuple[Any, ...]], None]


def no_fault(name: str, number: int, arguments: tuple[Any, ...]) -> None:
    """Every call goes through."""


class KilledError(BaseException):
    """The process was killed: none of its later calls happen."""


class Recorder:
    """Does and records what goes through `rbegir.base.disk` under one directory.

    `fault(name, number, arguments)` is asked before each call; what it raises is raised instead of the call.
    After a KilledError every call is refused until `revive`.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.trace: list[Step] = []
        self.calls = 0
        self.dead = False
        self.fault: Fault = no_fault
        self._names: dict[int, Names] = {ROOT: {}}  # of every directory
        self._open: dict[int, int] = {}  # descriptor → inode
        self._last = ROOT

    @contextlib.contextmanager
    def recording(self) -> Iterator[Recorder]:
        real = {name: getattr(disk, name) for name in CALLS}
        with contextlib.ExitStack() as stack:
            for name in CALLS:
                stack.enter_context(mock.patch.object(disk, name, self._around(name, real[name])))
            yield self

    def revive(self) -> None:
        self.dead = False

    def _around(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        note = getattr(self, f"_{name}")

        def call(*arguments: Any) -> Any:
            self.calls += 1
            if self.dead:
                raise KilledError
            try:
                self.fault(name, self.calls, arguments)
            except KilledError:
                self.dead = True
                raise
            if name == "remove_tree":  # must be read while it is there
                note(None, *arguments)
                return real(*arguments)
            result = real(*arguments)
            note(result, *arguments)
            return result

        return call

    def _create(self, result: int, path: Path) -> None:
        self._open[result] = self._born(path, "file")

    def _open_writable(self, result: int, path: Path) -> None:
        self._open[result] = self._inode(path)

    def _truncate_unused(self, result: bool, descriptor: int, size: int) -> None:
        if result:
            self.trace.append(Step("truncate", self._open[descriptor], size=size))

    def _make_directory(self, result: None, path: Path) -> None:
        self._names[self._born(path, "directory")] = {}

    def _write(self, result: None, descriptor: int, data: disk.Buffer) -> None:
        self.trace.append(Step("write", self._open[descriptor], data=bytes(data)))

    def _sync(self, result: None, descriptor: int) -> None:
        self.trace.append(Step("sync", self._open[descriptor]))

    def _sync_directory(self, result: None, path: Path) -> None:
        self.trace.append(Step("syncdir", self._inode(path)))

    def _rename(self, result: None, old: Path, new: Path) -> None:
        assert old.parent == new.parent
        self._change(new.parent, {new.name: self._inode(old), old.name: None})

    def _link(self, result: bool, old: Path, new: Path) -> None:
        if result:
            self._change(new.parent, {new.name: self._inode(old)})

    def _exchange(self, result: bool, one: Path, other: Path) -> None:
        if result:
            self._change(one.parent, {one.name: self._inode(other), other.name: self._inode(one)})

    def _unlink(self, result: None, path: Path) -> None:
        self._change(path.parent, {path.name: None})

    def _remove_tree(self, result: None, path: Path) -> None:
        inode = self._inode(path)
        for name, inner in list(self._names[inode].items()):
            if inner in self._names:
                self._remove_tree(None, path / name)
            else:
                self._change(path, {name: None})
        self._change(path.parent, {path.name: None})

    def _born(self, path: Path, kind: str) -> int:
        self._last += 1
        self._change(path.parent, {path.name: self._last}, {self._last: kind})
        return self._last

    def _change(self, directory: Path, change: Change, new: dict[int, str] | None = None) -> None:
        inode = self._inode(directory)
        apply(change, self._names[inode])
        self.trace.append(Step("name", inode, change, new=new or {}))

    def _inode(self, path: Path) -> int:
        inode = ROOT
        for name in path.relative_to(self.root).parts:
            inode = self._names[inode][name]
        return inode


@dataclass
class _File:
    data: bytearray = field(default_factory=bytearray)
    synced: int = 0  # bytes that are certain to be there


@dataclass
class _Directory:
    durable: Names = field(default_factory=dict)
    pending: list[Change] = field(default_factory=list)


class SimDisk:
    """The state of the disk after some steps of a trace."""

    def __init__(self) -> None:
        self._files: dict[int, _File] = {}
        self._directories: dict[int, _Directory] = {ROOT: _Directory()}

    def apply(self, step: Step) -> None:
        for inode, kind in step.new.items():
            if kind == "file":
                self._files[inode] = _File()
            else:
                self._directories[inode] = _Directory()
        if step.kind == "write":
            self._files[step.inode].data += step.data
        elif step.kind == "sync":
            self._files[step.inode].synced = len(self._files[step.inode].data)
        elif step.kind == "truncate":
            file = self._files[step.inode]
            del file.data[step.size :]
            file.synced = min(file.synced, step.size)
        elif step.kind == "name":
            self._directories[step.inode].pending.append(step.change)
        else:
            directory = self._directories[step.inode]
            for change in directory.pending:
                apply(change, directory.durable)
            directory.pending.clear()

    def outcomes(self, chance: random.Random, mixtures: int) -> Iterator[Image]:
        """What may be there after a cut: the four corners, and as many random mixtures as asked for."""
        for names in (_none, _every):
            for data in (_lost, _kept):
                yield self._image(ROOT, names, data)
        for _ in range(mixtures):
            names = chance.choice(_NAMES)
            yield self._image(ROOT, lambda d: names(d, chance), lambda f: chance.choice(_DATA)(f, chance))  # noqa: B023

    def _image(
        self, inode: int, names: Callable[[_Directory], Names], data: Callable[[_File], bytes]
    ) -> Image:
        image: Image = {}
        for name, inner in names(self._directories[inode]).items():
            if inner in self._files:
                file = self._files[inner]
                whole = file.synced == len(file.data)
                image[name] = bytes(file.data) if whole else data(file)
            else:
                image[name] = self._image(inner, names, data)
        return image


def apply(change: Change, names: Names) -> None:
    for name, inode in change.items():
        if inode is None:
            names.pop(name, None)
        else:
            names[name] = inode


def _none(directory: _Directory) -> Names:
    return directory.durable


def _every(directory: _Directory) -> Names:
    names = dict(directory.durable)
    for change in directory.pending:
        apply(change, names)
    return names


def _some(directory: _Directory, chance: random.Random) -> Names:
    """Any of the pending changes."""
    names = dict(directory.durable)
    for change in directory.pending:
        if chance.random() < 0.5:
            apply(change, names)
    return names


def _first(directory: _Directory, chance: random.Random) -> Names:
    """The pending changes up to some moment, as a journal would keep them."""
    names = dict(directory.durable)
    for change in directory.pending[: chance.randint(0, len(directory.pending))]:
        apply(change, names)
    return names


def _doubled(directory: _Directory, chance: random.Random) -> Names:
    """Any of the pending changes; a rename adds the new name and keeps the old one."""
    names = dict(directory.durable)
    for change in directory.pending:
        if chance.random() < 0.5:
            given: Change = {name: inode for name, inode in change.items() if inode is not None}
            apply(given or change, names)
    return names


def _lost(file: _File) -> bytes:
    return bytes(file.data[: file.synced])


def _kept(file: _File) -> bytes:
    return bytes(file.data)


def _cut(file: _File, chance: random.Random) -> bytes:
    """The sectors up to some place."""
    sectors = (len(file.data) - file.synced) // SECTOR + 1
    return bytes(file.data[: file.synced + SECTOR * chance.randint(0, sectors)])


def _holes(file: _File, chance: random.Random) -> bytes:
    """Any of the sectors; zeros or garbage in place of the others, up to the length or less."""
    torn = bytearray(file.data)
    for start in range(file.synced, len(torn), SECTOR):
        stop = min(start + SECTOR, len(torn))
        fate = chance.random()
        if fate < 0.3:
            torn[start:stop] = bytes(stop - start)
        elif fate < 0.45:
            torn[start:stop] = chance.randbytes(stop - start)
    return bytes(
        torn[: len(torn) - (chance.randint(0, len(torn) - file.synced) if chance.random() < 0.3 else 0)]
    )


def _zeros(file: _File, chance: random.Random) -> bytes:
    """The length of the file is there, its sectors are not."""
    return bytes(file.data[: file.synced]) + bytes(len(file.data) - file.synced)


_NAMES: tuple[Callable[[_Directory, random.Random], Names], ...] = (
    _some,
    _first,
    _doubled,
    lambda directory, chance: _every(directory),
)
_DATA: tuple[Callable[[_File, random.Random], bytes], ...] = (
    _cut,
    _holes,
    _zeros,
    lambda file, chance: _lost(file),
    lambda file, chance: _kept(file),
)


def lay_out(path: Path, image: Image) -> None:
    """Write an image into a directory that does not exist yet."""
    path.mkdir()
    for name, content in image.items():
        if isinstance(content, dict):
            lay_out(path / name, content)
        else:
            (path / name).write_bytes(content)
