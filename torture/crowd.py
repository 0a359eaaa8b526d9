"""Many processes on one index: a reader sees one whole state, and never an older one after a newer.

A writer replaces all keywords by the next version in one step, over and over, deletes half of them now and
then, and compacts. Around it:

    readers      processes of their own (spawned) and threads that share one Index; each sees whole versions
                 only, and never an older one after a newer
    old reader   opened before the first change; answers as it did then, whatever is removed meanwhile
    rivals       try to write, from the same process and from others; each is refused with the holder's name
    forks        children of the writer read through the inherited Index and may not write (forked before the
                 threads start: a child of a process with threads may do nothing but exec, in any program)
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

from rbegir.errors import LockedError, RbegirError
from rbegir.index.store import Index
from torture.history import ENCODER, QUERY, no_fsync, small_sizes
from torture.limits import Limits, fresh_processes, memory
from torture.resources import in_child

IDS = list(range(40))
READERS, THREADS, FORKS = 2, 2, 5


def text_of(version: int, key: int) -> str:
    return f"version {version} of {key}"


def look(index: Index) -> int:
    """The version that an index shows; a mixture is an AssertionError."""
    hits = index.search_codes(QUERY, 1000)
    found = dict(zip(hits.ids[0].tolist(), hits.texts[0].tolist(), strict=True))
    versions = {int(text.split()[1]) for text in found.values()}
    assert len(versions) == 1, f"versions {sorted(versions)} at once"
    version = versions.pop()
    assert sorted(found) in (IDS, IDS[: len(IDS) // 2]), f"{len(found)} keywords of version {version}"
    assert found == {key: text_of(version, key) for key in found}, "texts and ids do not belong together"
    return version


def read(path: str, seconds: float, least: int) -> dict[str, Any]:
    """A reader in a process of its own, for some seconds and at least so many reads."""
    seen: Counter[str] = Counter()
    last = 0
    end = time.monotonic() + seconds
    try:
        with Index.open(path, model=ENCODER, read_only=True, threads=1) as index:
            while time.monotonic() < end or seen["reads"] < least:
                index.refresh()
                version = look(index)
                assert version >= last, f"version {version} after {last}"
                seen["newer states"] += version > last
                last = version
                seen["reads"] += 1
                if seen["reads"] % 20 == 0:
                    try:
                        with Index.open(path, model=ENCODER, threads=1) as rival:
                            rival.delete([0])
                        raise AssertionError("two writers at once")
                    except LockedError:
                        seen["rivals refused"] += 1
    except (AssertionError, RbegirError) as error:
        return {"seen": seen, "wrong": [f"reader: {error}"]}
    return {"seen": seen, "wrong": []}


class Crowd:
    """The writer and those in its process."""

    end = 0.0  # when everybody who has done enough stops

    def __init__(self, path: Path, least: int) -> None:
        self.least = least
        self.index = Index.create(path, ENCODER, id_type="int64", threads=1)
        self.index.upsert([text_of(0, key) for key in IDS], IDS)
        self.old = Index.open(path, model=ENCODER, read_only=True, threads=1)
        self.seen: Counter[str] = Counter()
        self.wrong: list[str] = []

    def fork(self) -> None:
        for version in range(1, FORKS + 1):
            self._replace(version)
            self._fork(version)

    def write(self) -> None:
        version = FORKS
        while (time.monotonic() < self.end or version < self.least) and not self.wrong:
            version += 1
            self._replace(version)
            if version % 5 == 0:
                self.index.delete(IDS[len(IDS) // 2 :])
            if version % 7 == 0:
                self.index.compact()
                self._look_back()
        self.seen["versions"] = version
        self._look_back()

    def _replace(self, version: int) -> None:
        self.index.upsert([text_of(version, key) for key in IDS], IDS)

    def share(self) -> None:
        """A thread that reads through the writer's own Index."""
        last = 0
        try:
            while (
                time.monotonic() < self.end or self.seen["reads by threads"] < self.least
            ) and not self.wrong:
                version = look(self.index)
                assert version >= last, f"version {version} after {last}"
                last = version
                self.seen["reads by threads"] += 1
        except (AssertionError, RbegirError) as error:
            self.wrong.append(f"thread: {error}")

    def _look_back(self) -> None:
        """Check the old reader, all of whose files are removed by now."""
        try:
            assert look(self.old) == 0, "the old reader sees something new"
            self.seen["looks of the old reader"] += 1
        except (AssertionError, RbegirError) as error:
            self.wrong.append(f"old reader: {error}")

    def _fork(self, version: int) -> None:
        def child() -> dict[str, Any]:
            assert look(self.index) == version, "the child sees another version"
            try:
                self.index.delete([0])
            except LockedError:
                return {}
            raise AssertionError("the child wrote")

        try:
            in_child(child)
        except AssertionError as error:
            self.wrong.append(f"fork: {error}")
        self.seen["forks"] += 1


def run(limits: Limits, least: int = 0) -> dict[str, Any]:
    """For `limits.seconds`, and until everybody has read `least` times."""
    with tempfile.TemporaryDirectory(dir=memory()) as folder, small_sizes(), no_fsync():
        path = Path(folder) / "x.rbe"
        crowd = Crowd(path, least)
        crowd.fork()
        with fresh_processes(READERS) as pool:
            list(pool.map(abs, range(READERS)))  # the processes run before the clock starts
            crowd.end = time.monotonic() + limits.seconds
            readers = [pool.submit(read, str(path), limits.seconds, least) for _ in range(READERS)]
            threads = [threading.Thread(target=crowd.share) for _ in range(THREADS)]
            for thread in threads:
                thread.start()
            crowd.write()
            for thread in threads:
                thread.join()
            parts = [reader.result() for reader in readers]
        crowd.index.verify()
        crowd.index.close()
    for part in parts:
        crowd.seen += part["seen"]
        crowd.wrong += part["wrong"]
    return {
        "counts": dict(sorted(crowd.seen.items())),
        "losses": len(crowd.wrong),
        "first_losses": crowd.wrong[:5],
    }
