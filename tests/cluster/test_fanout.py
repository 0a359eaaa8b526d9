"""What is done with the answers of replicas: who is asked next, what is raised, what is never mixed."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from rbegir.cluster import fanout
from rbegir.cluster.fanout import Fanout
from rbegir.cluster.pool import Layout
from rbegir.cluster.shard import Failure, GoneError, pack, unpack
from rbegir.errors import (
    BusyError,
    ClusterError,
    CorruptError,
    DeadlineError,
    FilterError,
    RbegirError,
)

from .conftest import PATIENT, in_time, late

GOOD = 7


def failure(error: RbegirError) -> Failure:
    return Failure(error, "far (10.0.0.9)")


BUSY = failure(BusyError("the queue is full"))
LATE = failure(DeadlineError("too late"))


@pytest.fixture(autouse=True)
def no_hedging(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine may be too busy to answer before another replica is asked too."""
    monkeypatch.setattr(fanout, "LEAST_HEDGE", PATIENT)


class Replicas:
    """A pool of one shard whose replicas say what they are told to, in turn; None: nothing at all."""

    def __init__(self, *says: list[Any], view: str = "now") -> None:
        self.layout = Layout("cpu", 1, len(says), 1, 0.1)
        self.says, self.view = says, view
        self.asked: list[int] = []

    def actor(self, shard: int, replica: int) -> int:
        return replica

    def question(self, replica: int) -> Any:
        import ray

        self.asked.append(replica)
        said = self.says[replica].pop(0) if len(self.says[replica]) > 1 else self.says[replica][0]
        if said is not None:
            return ray.put([self.view, pack(said)])

        @ray.remote(num_cpus=0)
        def silent() -> None:
            time.sleep(3600)

        reference = silent.remote()
        self.cancel: Callable[[], None] = lambda: ray.cancel(reference, force=True)
        return reference


def ask(pool: Replicas, *, seconds: float = PATIENT, partial: bool = False) -> dict[int, Any]:
    return Fanout(pool).ask(  # type: ignore[arg-type]
        "now", {0: pool.question}, time.monotonic() + seconds, partial=partial
    )


def test_the_next_replica_is_asked(nodes: Any) -> None:
    for bad in (BUSY, LATE, failure(CorruptError("bytes differ"))):
        pool = Replicas([bad], [GOOD])
        assert ask(pool) == {0: GOOD}
        assert pool.asked == [0, 1]


def test_all_are_busy(nodes: Any) -> None:
    with pytest.raises(BusyError, match="the queue is full"):
        ask(Replicas([BUSY], [BUSY]))


def test_all_have_the_same_fault(nodes: Any) -> None:
    broken = failure(CorruptError("bytes differ", hint="verify it"))
    with pytest.raises(CorruptError, match=r"far \(10\.0\.0\.9\): bytes differ") as caught:
        ask(Replicas([broken], [broken]))
    assert caught.value.hint == "verify it"


def test_a_wrong_question_is_wrong_everywhere(nodes: Any) -> None:
    pool = Replicas([failure(FilterError("no column 'colour'"))], [GOOD])
    with pytest.raises(FilterError, match="no column 'colour'"):
        ask(pool)
    assert pool.asked == [0]


def test_a_file_that_has_gone_is_not_asked_for_again(nodes: Any) -> None:
    pool = Replicas([failure(GoneError("far does not see it"))], [GOOD])
    with pytest.raises(GoneError, match="far does not see it"):
        ask(pool)


def test_an_answer_about_another_state_is_refused(nodes: Any) -> None:
    with pytest.raises(ClusterError, match="shard 0 answered for state then, not for now"):
        ask(Replicas([GOOD], view="then"))


def test_asked_again_until_the_deadline(nodes: Any) -> None:
    pool = Replicas([LATE, LATE, GOOD])
    assert ask(pool) == {0: GOOD}
    assert pool.asked == [0, 0, 0]
    late(
        lambda deadline: ask(Replicas([LATE], [LATE]), seconds=deadline),
        r"1 of 1 shards did not answer .*\(too late\)",
    )


def test_a_slow_replica_is_hedged(nodes: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fanout, "LEAST_HEDGE", 0.1)
    pool = Replicas([None], [GOOD])
    try:
        assert ask(pool) == {0: GOOD}
        assert pool.asked == [0, 1]
    finally:
        pool.cancel()


def test_a_part_is_only_for_who_asked_for_it(nodes: Any) -> None:
    door = Fanout(Replicas([GOOD]))  # type: ignore[arg-type]
    good, never = Replicas([GOOD]), Replicas([LATE])

    def some(*shards: int, partial: bool) -> Callable[[float], dict[int, Any]]:
        asked = {shard: (good, never)[shard].question for shard in shards}
        return lambda deadline: door.ask("now", asked, time.monotonic() + deadline, partial=partial)

    assert in_time(some(0, 1, partial=True)) == {0: GOOD}
    late(some(0, 1, partial=False), "1 of 2 shards did not answer")
    late(some(1, partial=True), "1 of 1 shards did not answer")  # nothing is no part


def test_errors_travel_whole() -> None:
    there = unpack(pack(failure(FilterError("no column", hint="look"))))
    assert (type(there.error), there.error.message, there.error.hint) == (FilterError, "no column", "look")
