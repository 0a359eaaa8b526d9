"""The power is cut after every call to the disk, and the disk keeps as little as it may.

For each of many random histories (`history.py`) the trace is cut after every step, with several outcomes per
cut (`simdisk.py`). After each the index

    opens, or is not there where it may not be yet
    holds one of the allowed states: every acknowledged change, and the one in flight wholly or not at all
    verifies
    takes a new keyword, shows it, and has no left-over files

Cuts that leave the same bytes and the same promises are one crash point, opened once; both numbers are
reported.
"""

from __future__ import annotations

import contextlib
import hashlib
import random
import shutil
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from rbegir.errors import RbegirError
from rbegir.index import writer
from rbegir.index.store import Index
from torture.history import (
    ENCODER,
    NAME,
    Sabotage,
    State,
    contents,
    left_over,
    no_fsync,
    record,
    small_sizes,
)
from torture.limits import Limits, memory, promise
from torture.simdisk import Image, SimDisk, lay_out

STEPS = 14  # changes in a history
MIXTURES = 4  # random outcomes of a cut, besides the four corners
LATER = (1000, ("later", 1, None))


@dataclass
class Tally:
    """What was tried."""

    histories: int = 0
    cuts: int = 0  # steps × outcomes
    crash_points: int = 0  # of them, those that left different bytes or promises; each was opened and checked
    saw: Counter[str] = field(default_factory=Counter)  # which of the allowed states was found
    losses: list[str] = field(default_factory=list)

    def __iadd__(self, other: Tally) -> Tally:
        self.histories += other.histories
        self.cuts += other.cuts
        self.crash_points += other.crash_points
        self.saw += other.saw
        self.losses += other.losses
        return self

    def to_dict(self) -> dict[str, Any]:
        return {
            "histories": self.histories,
            "cuts": self.cuts,
            "crash_points": self.crash_points,
            "saw": dict(self.saw),
            "losses": len(self.losses),
            "first_losses": self.losses[:5],
        }


def attempt(
    seed: str, points: int, seconds: float = 1e9, sabotage: Sabotage = contextlib.nullcontext
) -> Tally:
    """Try histories from a seed until enough crash points are tried, time is up, or something is lost."""
    tally = Tally()
    end = time.monotonic() + seconds
    with tempfile.TemporaryDirectory(dir=memory()) as folder:
        while tally.crash_points < points and time.monotonic() < end and not tally.losses:
            tally += cut_history(f"{seed}/{tally.histories}", Path(folder), sabotage)
    return tally


def run(limits: Limits) -> dict[str, Any]:
    """The long version, in several processes, each with its own histories."""
    share = -(-limits.points // limits.processes)
    tally = Tally()
    with limits.pool() as pool:
        seeds = [f"{limits.seed}/{worker}" for worker in range(limits.processes)]
        for part in pool.map(partial(attempt, points=share, seconds=limits.seconds), seeds):
            tally += part
    return tally.to_dict()


def cut_history(name: str, folder: Path, sabotage: Sabotage = contextlib.nullcontext) -> Tally:
    """One history, cut everywhere."""
    chance = random.Random(name)
    tally = Tally(histories=1)
    live = folder / "live"
    live.mkdir()
    try:
        history = record(live, chance, STEPS, sabotage)
    except Exception as error:  # the live index itself failed: that is a finding too
        tally.losses.append(f"history {name}: {type(error).__name__}: {error}")
        return tally
    finally:
        shutil.rmtree(live)
    simulated = SimDisk()
    seen: set[bytes] = set()
    for number, (step, allowed) in enumerate(history.allowed()):
        simulated.apply(step)
        for image in simulated.outcomes(chance, MIXTURES):
            tally.cuts += 1
            same = digest(image, allowed)
            if same in seen:
                continue
            seen.add(same)
            tally.crash_points += 1
            try:
                found = survivor(folder / "after", image, allowed, chance)
            except (RbegirError, OSError, AssertionError) as error:
                tally.losses.append(
                    f"history {name}, step {number} ({step.kind}): {type(error).__name__}: {error}"
                )
                return tally
            tally.saw[
                "nothing yet" if found is None else "one possible" if len(allowed) == 1 else "either"
            ] += 1
    return tally


def survivor(root: Path, image: Image, allowed: frozenset[State], chance: random.Random) -> State:
    """Open the index after the cut and check every promise; returns its contents."""
    lay_out(root, image)
    path = root / NAME
    if path.is_dir() and chance.random() < 0.5:  # the lock file is never synced and never trusted
        (path / writer.LOCK).write_bytes(chance.choice((b"", b"\0" * 61, chance.randbytes(40))))
    try:
        with small_sizes(), no_fsync():
            if not path.exists():
                promise(None in allowed, "the index is gone")
                return None
            with Index.open(path, model=ENCODER, threads=1) as index:
                found = contents(index)
                promise(found in allowed, f"found {found}, allowed {sorted(allowed, key=str)}")
                index.verify()
                index.upsert([LATER[1][0]], [LATER[0]], {"price": [LATER[1][1]]})
                promise(contents(index) == (*(found or ()), LATER), "a new keyword disturbs others")
            promise(not left_over(path), "files are left over")
            if chance.random() < 0.25:
                with Index.open(path, model=ENCODER, threads=1, read_only=True) as index:
                    promise(contents(index) == (*(found or ()), LATER), "a new keyword is gone afterwards")
            return found
    finally:
        shutil.rmtree(root)


def digest(image: Image, allowed: frozenset[State]) -> bytes:
    """Equal for cuts that leave the same bytes and the same promises."""
    sum_ = hashlib.blake2b(str(hash(allowed)).encode(), digest_size=16)

    def add(part: Image, prefix: str) -> None:
        for name in sorted(part):
            content = part[name]
            if isinstance(content, dict):
                sum_.update(f"{prefix}{name}/".encode())
                add(content, f"{prefix}{name}/")
            else:
                sum_.update(f"{prefix}{name}:{len(content)}:".encode() + content)

    add(image, "")
    return sum_.digest()
