"""No space, no handles, broken disks, no memory: at every single call, and for real.

every call     a session of changes is repeated once for each of its calls to the disk and each error of the
               system; the call fails once, or all calls fail from there on until the disk is repaired. A
               full disk also takes half of a write before it refuses. The error must be ours, with a reason;
               the index must hold the state before or after the change, work on in the same process once the
               disk is repaired, and verify
tiny disk      a small real file system is filled up, again and again
read-only      a real file system is made read-only: reading works, changes are refused
handles        a process with few file handles opens an index of many segments
memory         a process with little memory is given batches and searches that do not fit
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import random
import resource
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from rbegir.codes.planes import Codes
from rbegir.errors import FileError, InputError, RbegirError
from rbegir.index.store import Index
from torture.history import ENCODER, NAME, QUERY, State, contents, left_over, no_fsync, small_sizes
from torture.limits import Limits, fresh_processes, memory, promise
from torture.server import LIBC, Disk
from torture.simdisk import Recorder

CODES = (errno.ENOSPC, errno.EIO, errno.EMFILE, errno.EROFS, errno.EDQUOT, errno.ENOMEM, errno.EACCES)

Change = Callable[[Index], Any]


def session() -> list[Change]:
    """Changes that together make every call: adds, replaced keywords, merges, deletes, a compaction."""

    def put(ids: list[int], mark: str) -> Change:
        texts, prices = [f"{mark} {i}" for i in ids], {"price": list(ids)}
        return lambda index: index.upsert(texts, ids, prices)

    return [
        put([0, 1, 2], "a"),
        lambda index: index.delete([1]),
        put([3, 4], "a"),
        put([0, 3, 5], "b"),  # replaces two, and merges
        lambda index: index.delete([4, 5]),
        lambda index: index.compact(),
        put([6], "c"),
    ]


def states() -> list[State]:
    """What the index holds before, between and after the changes."""
    found: list[State] = []
    with tempfile.TemporaryDirectory(dir=memory()) as folder, small_sizes(), no_fsync():
        index = Index.create(Path(folder) / NAME, ENCODER, id_type="int64", threads=1)
        found.append(contents(index))
        for change in session():
            change(index)
            found.append(contents(index))
        index.close()
    return found


def fail_at(victim: int, code: int, wanted: list[State], *, lasting: bool) -> int:
    """Run the session with one call failing, or all from there on; returns the number of calls it made."""
    repaired = False

    def fault(name: str, number: int, arguments: tuple[Any, ...]) -> None:
        if repaired or not (number == first + victim or (lasting and number > first + victim)):
            return
        if name == "write" and code == errno.ENOSPC:
            os.write(arguments[0], bytes(arguments[1])[: len(arguments[1]) // 2])
        raise OSError(code, os.strerror(code))

    with tempfile.TemporaryDirectory(dir=memory()) as folder, small_sizes(), no_fsync():
        path = Path(folder) / NAME
        with Recorder(Path(folder)).recording() as recorder:
            Index.create(path, ENCODER, id_type="int64", threads=1).close()
            first = recorder.calls
            recorder.fault = fault
            with Index.open(path, model=ENCODER, threads=1) as index:
                for number, change in enumerate(session()):
                    try:
                        change(index)
                    except FileError as error:
                        promise(os.strerror(code).lower() in error.message, f"no reason is given: {error}")
                        promise(contents(index) in wanted[number : number + 2], "neither state is there")
                        repaired = True
                        change(index)
                    promise(contents(index) == wanted[number + 1], "a wrong state after the repair")
                repaired = True
                index.delete([-1])
                index.verify()
                promise(not left_over(path), "files are left over")
        return recorder.calls - first


def every_call(limits: Limits, end: float) -> tuple[Counter[str], list[str]]:
    wanted = states()
    tried: Counter[str] = Counter()
    wrong: list[str] = []
    for code in CODES:
        for lasting in (False, True):
            victim, calls = 1, 1
            while victim <= calls and sum(tried.values()) < limits.points and time.monotonic() < end:
                try:
                    calls = fail_at(victim, code, wanted, lasting=lasting)
                except (RbegirError, AssertionError, OSError) as error:
                    wrong.append(f"{errno.errorcode[code]} at call {victim}, lasting {lasting}: {error}")
                    return tried, wrong
                tried[errno.errorcode[code]] += 1
                victim += 1
    return tried, wrong


# ---- for real ----

REMOUNT, READ_ONLY = 32, 1  # of mount(2)


def tiny_disk(folder: Path, rounds: int, chance: random.Random) -> dict[str, Any] | None:
    """Leave a few kilobytes of a real disk and write until it is full, `rounds` times; None: cannot mount."""
    refused = 0
    kept: dict[int, str] = {}
    with contextlib.closing(Disk(folder, 8 << 20)) as small:
        if not small.own:
            return None
        disk = small.path
        with Index.create(disk / NAME, ENCODER, id_type="int64", threads=1) as index:
            for number in range(rounds):
                free = os.statvfs(disk).f_bavail * 4096 - chance.randrange(0, 60_000)
                (disk / "ballast").write_bytes(bytes(max(free, 0)))
                for key in range(1000 * number, 1000 * number + 1000):
                    text = f"text {key} " + "x" * (key % 997)
                    try:
                        index.upsert([text], [key], {"price": [key]})
                    except FileError as error:
                        promise("no space left" in error.message, str(error))
                        refused += 1
                        break
                    kept[key] = text
                hits = index.search_codes(QUERY, 100_000)
                found = dict(zip(hits.ids[0].tolist(), hits.texts[0].tolist(), strict=True))
                promise(found == kept, "not what was acknowledged")
                (disk / "ballast").unlink()
                gone = chance.sample(sorted(kept), len(kept) // 2)
                promise(index.delete(gone) == len(gone), "a delete after space was made")
                for key in gone:
                    del kept[key]
                index.compact()
                index.verify()
    return {"rounds": rounds, "refused": refused}


def read_only_disk(folder: Path) -> dict[str, Any] | None:
    """Reading goes on, and changes are refused with the reason; None: cannot mount."""
    with contextlib.closing(Disk(folder, 4 << 20)) as small:
        if not small.own:
            return None
        disk = small.path
        with Index.create(disk / NAME, ENCODER, id_type="int64", threads=1) as index:
            index.upsert(["a", "b"], [1, 2])
        promise(LIBC.mount(b"", os.fsencode(disk), b"", REMOUNT | READ_ONLY, b"") == 0, "cannot remount")
        with Index.open(disk / NAME, model=ENCODER, threads=1) as index:
            promise(len(index.search_codes(QUERY, 10).ids[0]) == 2, "reading")
            index.verify()
            refused = 0
            for change in (
                lambda: index.upsert(["c"], [3]),
                lambda: index.delete([1]),
                lambda: index.compact(),
            ):
                try:
                    change()
                except FileError as error:
                    promise("read-only file system" in error.message, str(error))
                    refused += 1
        return {"refused": refused}


def no_handles(folder: Path) -> dict[str, Any]:
    """With no file handle left, opening and changing fail with the reason; later they work again."""
    return _in_fresh_process(_with_few_handles, folder / "handles.rbe")


def _with_few_handles(path: Path) -> dict[str, Any]:
    with Index.create(path, ENCODER, id_type="int64", threads=1) as index:
        index.upsert(["a"], [1])
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        taken: list[int] = []
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.open("/dev/null", os.O_RDONLY))
        refused = 0
        for use in (
            lambda: Index.open(path, model=ENCODER),
            lambda: index.upsert(["b"], [2]),
            index.refresh,
        ):
            try:
                use()
            except FileError as error:
                promise("too many open files" in error.message, str(error))
                refused += 1
        promise(len(index.search_codes(QUERY, 10).ids[0]) == 1, "searching needs no handle")
        for descriptor in taken:
            os.close(descriptor)
        index.upsert(["b"], [2])
        promise(len(index) == 2, "it works again")
    return {"refused": refused}


def no_memory(folder: Path) -> dict[str, Any]:
    """A batch and a search that do not fit into memory are refused; smaller ones succeed."""
    return _in_fresh_process(_with_little_memory, folder / "memory.rbe")


def _in_fresh_process(work: Callable[[Path], dict[str, Any]], path: Path) -> dict[str, Any]:
    """Not a fork: the limits apply to what the process itself needs, not to what its parent has open."""
    with fresh_processes(1) as pool:
        return pool.submit(work, path).result()


def _with_little_memory(path: Path) -> dict[str, Any]:
    rng = np.random.default_rng(1)
    planes = rng.integers(0, 2**63, (2, 200_000, 1), np.int64).astype(np.uint64)
    texts = [f"{i} {'x' * 300}" for i in range(200_000)]
    queries = np.ones((200_000, 64), np.int8)
    refused = 0
    with Index.create(path, n=64, keyword_planes=2, threads=1) as index:
        index.add_codes(Codes(planes[:, :1000], 64))
        used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        resource.setrlimit(resource.RLIMIT_AS, (used + (24 << 20), used + (24 << 20)))
        for use in (
            lambda: index.add_codes(Codes(planes, 64), texts=texts),
            lambda: index.search_codes(queries, 1000),
        ):
            try:
                use()
            except InputError as error:
                promise("memory" in error.message, str(error))
                refused += 1
        promise(len(index) == 1000, "part of a refused batch is there")
        for at in range(0, 20_000, 1000):
            index.add_codes(Codes(np.ascontiguousarray(planes[:, at : at + 1000]), 64))
        promise(len(index) == 21_000, "smaller batches fail")
        promise(index.search_codes(queries[:10], 10).ids.shape == (10, 10), "smaller searches fail")
        index.verify()
    return {"refused": refused}


def in_child(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Call a function in a forked process, whose limits end with it, and return its result."""
    notes, output = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.write(output, json.dumps(work()).encode())
            status = 0
        except BaseException as error:
            os.write(output, json.dumps(f"{type(error).__name__}: {error}").encode())
        finally:
            os._exit(status)
    os.close(output)
    with os.fdopen(notes, "rb") as stream:
        said = stream.read()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status != 0:
        raise AssertionError(f"ended with {status}: {json.loads(said or b'null')}")
    answer: dict[str, Any] = json.loads(said)
    return answer


def run(limits: Limits) -> dict[str, Any]:
    chance = random.Random(limits.seed)
    tried, wrong = every_call(limits, time.monotonic() + limits.seconds)
    real: dict[str, Any] = {}
    for name, attempt in (
        ("tiny disk", lambda folder: tiny_disk(folder, 60, chance)),
        ("read-only disk", read_only_disk),
        ("no handles", no_handles),
        ("no memory", no_memory),
    ):
        with tempfile.TemporaryDirectory() as folder:
            try:
                real[name] = attempt(Path(folder))  # None: not possible here
            except (AssertionError, RbegirError) as error:
                wrong.append(f"{name}: {error}")
    return {
        "failing_calls": sum(tried.values()),
        "by_error": dict(tried),
        "for_real": real,
        "losses": len(wrong),
        "first_losses": wrong[:5],
    }
