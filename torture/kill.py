"""A real process is killed with −9 at random moments, again and again, and nothing it acknowledged is lost.

The victim makes changes to an index on a real disk, with real fsyncs, and writes one byte to a pipe after
each that has returned. The killer waits a random moment, sends SIGKILL, counts the bytes and opens the index:
it must hold the state after that many changes, or after one more, verify, and go on from there with the next
victim.

What a victim does next is a function of the seed and the number of the change, so that both sides know it.
"""

from __future__ import annotations

import os
import random
import select
import shutil
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

from rbegir.errors import RbegirError
from rbegir.index.store import Index
from torture.history import ENCODER, KINDS, NAME, Life, Record, State, contents, left_over, small_sizes
from torture.limits import Limits
from torture.simdisk import Recorder


class Steady(Life):
    """A life without other changes during a compaction."""

    def _compact(self) -> None:
        self.open().compact()


class Victim:
    """The changes of one seed, made one after the other from a given state."""

    def __init__(self, path: Path, seed: int, number: int, state: State) -> None:
        self.life = Steady(path, random.Random(), Recorder(path.parent), [])
        self.life.state = state
        self.seed = seed
        self.number = number

    def step(self, *, for_real: bool) -> None:
        """Make the next change, or only work out its effect."""
        self.life.chance = random.Random(f"{self.seed}/{self.number}")
        self.life.made = 100 * self.number
        act, change = self.life.choose(KINDS)
        after: dict[int, Record] = dict(self.life.state or ())
        if change is not None:
            change(after)
        if for_real:
            act()
        self.life.state = tuple(sorted(after.items()))
        self.number += 1


def run(limits: Limits) -> dict[str, Any]:
    chance = random.Random(limits.seed)
    end = time.monotonic() + limits.seconds
    kills = changes = in_flight = 0
    losses: list[str] = []
    folder = Path(tempfile.mkdtemp())
    path = folder / NAME
    Index.create(path, ENCODER, id_type="int64").close()
    state: State = ()
    number = 0
    with small_sizes():
        while kills < limits.points and time.monotonic() < end and not losses:
            delay, wait = chance.expovariate(1 / 0.04), chance.random() < 0.8
            acknowledged = _live_and_die(path, limits.seed, number, state, delay, wait=wait)
            kills += 1
            thought = Victim(path, limits.seed, number, state)
            for _ in range(acknowledged):
                thought.step(for_real=False)
            before = thought.life.state
            thought.step(for_real=False)
            try:
                found = _look(path)
                if found not in (before, thought.life.state):
                    raise AssertionError(f"found {found}, acknowledged was {before}")
            except (RbegirError, AssertionError) as error:
                losses.append(f"kill {kills} after change {number + acknowledged}: {error}")
                break
            in_flight += found != before
            number += acknowledged + (found == thought.life.state)
            changes += acknowledged
            state = found
    shutil.rmtree(folder)
    return {
        "kills": kills,
        "acknowledged_changes": changes,
        "changes_in_flight_that_were_there": in_flight,
        "losses": len(losses),
        "first_losses": losses,
    }


def _live_and_die(path: Path, seed: int, number: int, state: State, delay: float, *, wait: bool) -> int:
    """Start a process and kill it `delay` seconds after its start, or after its first acknowledgement.

    Returns how many changes it acknowledged.
    """
    notes, output = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(notes)
            victim = Victim(path, seed, number, state)
            while True:
                victim.step(for_real=True)
                os.write(output, b".")
        finally:
            os._exit(status)
    os.close(output)
    if wait:
        select.select([notes], [], [], 60.0)
    time.sleep(delay)
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    with os.fdopen(notes, "rb") as stream:
        count = len(stream.read())
    if os.waitstatus_to_exitcode(status) != -signal.SIGKILL:
        raise AssertionError(f"the victim ended by itself at change {number + count}")
    return count


def _look(path: Path) -> State:
    """The contents of the index, which a reader and a writer must both find intact."""
    with Index.open(path, model=ENCODER, threads=1, read_only=True) as index:
        found = contents(index)
        index.verify()
    with Index.open(path, model=ENCODER, threads=1) as index:
        index.delete([-1])  # becomes the writer, which removes stray files
        assert contents(index) == found, "a writer sees something else than a reader"
    assert not left_over(path), "files are left over"
    return found
