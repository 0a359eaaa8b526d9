"""Removed files are freed step by step, and never while anybody can still read them."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from rbegir.base import disk, freeing
from rbegir.base.freeing import OldFiles
from rbegir.index.format import map_file

SIZE = 5 * 4096 + 1
BYTES = bytes(range(256)) * (SIZE // 256) + b"!"


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"LARGE": SIZE - 1, "STEP": 4096, "PATIENCE": 0.0}.items():
        monkeypatch.setattr(freeing, name, value)


@pytest.fixture
def path(local_path: Path) -> Path:
    made = local_path / "old"
    made.write_bytes(BYTES)
    return made


def descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


def test_an_unused_file_is_truncated_step_by_step(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, steps = descriptors(), []
    truncate = disk.truncate_unused

    def noted(descriptor: int, size: int) -> bool:
        done = truncate(descriptor, size)
        steps.append((done, size, os.fstat(descriptor).st_size))
        return done

    monkeypatch.setattr(disk, "truncate_unused", noted)
    files = OldFiles(path.parent, [("old", SIZE), ("small", SIZE - 1)])
    path.unlink()
    files.free("small", SIZE - 1)
    files.free("old", SIZE)
    assert steps == [(True, size, size) for size in (20480, 16384, 12288, 8192, 4096, 0)]
    assert descriptors() == before


@contextmanager
def opened(path: Path) -> Iterator[Callable[[], bytes]]:
    with path.open("rb") as file:
        path.unlink()
        yield file.read


@contextmanager
def mapped(path: Path) -> Iterator[Callable[[], bytes]]:
    found = map_file(path)
    path.unlink()
    yield lambda: b"damaged" if found.broken else found[:]


@contextmanager
def named(path: Path) -> Iterator[Callable[[], bytes]]:
    yield path.read_bytes


@contextmanager
def linked(path: Path) -> Iterator[Callable[[], bytes]]:
    other = path.with_name("other")
    os.link(path, other)
    path.unlink()
    yield other.read_bytes


@contextmanager
def child(path: Path, code: str) -> Iterator[Callable[[], bytes]]:
    command = [sys.executable, "-c", code, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        path.unlink()

        def read() -> bytes:
            return process.communicate(b"go\n")[0]

        yield read


READ = "print('ready', flush=True); input(); sys.stdout.buffer.write(bytes(found))"
MAP = """
import mmap, os, sys
f = open(sys.argv[1], "rb")
found = mmap.mmap(f.fileno(), 0, access=1)
"""
BY_MAPPING = MAP + READ
BY_FORK = f"""{MAP}
if os.fork():
    f.close()
    found.close()
    os.wait()
else:
    {READ}
"""
USERS: dict[str, Callable[[Path], AbstractContextManager[Callable[[], bytes]]]] = {
    "a descriptor": opened,
    "a mapping": mapped,
    "its name": named,
    "another name": linked,
    "a mapping in another process": lambda path: child(path, BY_MAPPING),
    "a mapping in a forked process": lambda path: child(path, BY_FORK),
}


@pytest.mark.parametrize("user", USERS)
def test_a_file_in_use_is_left_alone(path: Path, user: str) -> None:
    files = OldFiles(path.parent, [("old", SIZE)])
    with USERS[user](path) as read:
        files.free("old", SIZE)
        assert read() == BYTES


def test_a_file_that_is_opened_meanwhile_is_left_alone_from_there_on(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    truncate, late = disk.truncate_unused, []

    def reopened(descriptor: int, size: int) -> bool:
        if size == 8192:
            late.append(os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY))
        return truncate(descriptor, size)

    monkeypatch.setattr(disk, "truncate_unused", reopened)
    files = OldFiles(path.parent, [("old", SIZE)])
    path.unlink()
    files.free("old", SIZE)
    with open(late[0], "rb") as file:
        assert file.read() == BYTES[:12288]


def test_a_search_that_ends_soon_is_waited_for(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(freeing, "PATIENCE", 60.0)
    truncate, tries, reader = disk.truncate_unused, [], path.open("rb")

    def counted(descriptor: int, size: int) -> bool:
        tries.append(truncate(descriptor, size))
        if len(tries) == 3:
            reader.close()
        return tries[-1]

    monkeypatch.setattr(disk, "truncate_unused", counted)
    files = OldFiles(path.parent, [("old", SIZE)])
    path.unlink()
    files.free("old", SIZE)
    assert tries == [False] * 3 + [True] * 6


def test_nobody_can_open_a_file_while_it_is_truncated(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that found the name before it was removed may open it only later, here through /proc."""
    errors: list[int | None] = []
    truncate = os.ftruncate

    def beside(descriptor: int, size: int) -> None:
        def tries() -> None:
            try:
                os.close(os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY | os.O_NONBLOCK))
            except OSError as error:
                errors.append(error.errno)

        thread = threading.Thread(target=tries)
        thread.start()
        thread.join()
        truncate(descriptor, size)

    monkeypatch.setattr(os, "ftruncate", beside)
    descriptor = disk.open_writable(path)
    path.unlink()
    assert disk.truncate_unused(descriptor, 0)
    assert errors == [errno.EWOULDBLOCK]
    os.close(descriptor)


@pytest.mark.parametrize("code", [errno.EMFILE, errno.EACCES])
def test_files_that_cannot_be_opened_are_let_go(
    path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    (path.parent / "older").write_bytes(BYTES + b"!")
    before, open_writable = descriptors(), disk.open_writable

    def limited(path: Path) -> int:
        if path.name == "old":
            raise OSError(code, os.strerror(code))
        return open_writable(path)

    monkeypatch.setattr(disk, "open_writable", limited)
    files = OldFiles(path.parent, [("old", SIZE), ("older", SIZE + 1)])
    assert descriptors() == before  # those that were open are needed more by others
    files.free("old", SIZE)
    assert path.read_bytes() == BYTES


def test_only_the_largest_files_are_held_open(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(freeing, "MOST", 2)
    before, opened = descriptors(), []
    for number in range(3):
        path.with_name(f"{number}").write_bytes(BYTES)
    open_writable = disk.open_writable

    def noted(path: Path) -> int:
        opened.append(path.name)
        return open_writable(path)

    monkeypatch.setattr(disk, "open_writable", noted)
    files = OldFiles(path.parent, [("old", SIZE), ("0", SIZE + 2), ("1", SIZE), ("2", SIZE + 1)])
    assert opened == ["0", "2"]
    files.close()
    assert descriptors() == before


def test_a_file_that_is_gone_already_is_passed_over(path: Path) -> None:
    files = OldFiles(path.parent, [("gone", SIZE + 1), ("old", SIZE)])
    path.unlink()
    files.free("gone", SIZE + 1)
    files.free("old", SIZE)
    files.close()


@pytest.mark.parametrize("kind", ["another system", "another file system"])
def test_elsewhere_no_file_is_truncated(path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    if kind == "another system":
        monkeypatch.setattr(sys, "platform", "darwin")
        assert not disk.truncate_unused(0, 0)
    else:
        monkeypatch.setattr(disk, "LOCAL", set())
    assert not disk.tells_users(path.parent)
    before = descriptors()
    files = OldFiles(path.parent, [("old", SIZE)])
    assert descriptors() == before
    files.free("old", SIZE)
    assert path.read_bytes() == BYTES
