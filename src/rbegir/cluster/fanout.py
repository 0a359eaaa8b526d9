"""Asking shards, and what to do when one does not answer.

    normally                                           ─ one replica is asked, in turn
    it died, is too busy, or its node is at fault      ─ the next replica is asked at once
    it is slow (HEDGE × the recent 95th percentile)    ─ another replica is asked too, the first answer counts
    no replica answers                                 ─ asked again, until the deadline

A shard that Ray is restarting accepts questions and answers when it is up, so without replicas a question
waits until then. After the deadline an error is raised, or with `partial` the answers that came are returned.
A question that is wrong (a filter that cannot be understood) is wrong everywhere and is not repeated.

`prepare` opens a new state of an index on every shard while the old one keeps answering.
"""

import itertools
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from rbegir import errors
from rbegir.cluster.pool import Pool, root_cause
from rbegir.cluster.session import import_ray
from rbegir.cluster.shard import Failure, GoneError, unpack
from rbegir.cluster.view import View
from rbegir.index.location import Location
from rbegir.index.manifest import Manifest
from rbegir.index.query import Searcher
from rbegir.index.snapshot import Snapshot

HEDGE = 3.0
LEAST_HEDGE = 0.1  # seconds
PAUSE = 0.05  # seconds before a replica that has just failed is asked again
PREPARE_SECONDS = 600.0  # to open and check a new state

Question = Callable[[Any], Any]  # an actor → the reference of its future answer


@dataclass
class _Asked:
    """One shard's part of a question."""

    question: Question
    turn: int  # replicas asked so far, the starting one included
    open: dict[Any, tuple[int, float]] = field(default_factory=dict)  # reference → replica, when asked
    failed: dict[int, errors.RbegirError] = field(default_factory=dict)  # replica → why
    again: float = 0.0  # not before


class Fanout:
    """Asks the shards of a pool."""

    def __init__(self, pool: Pool, only: int | None = None) -> None:
        """`only`: ask this replica and no other."""
        self._pool, self._ray = pool, import_ray()
        self._choice = list(range(pool.layout.replicas)) if only is None else [only]
        self._turns = itertools.count()
        self._usual: deque[float] = deque([LEAST_HEDGE], maxlen=128)  # seconds of recent answers
        self._lock = threading.Lock()

    def ask(
        self, view: str, questions: Mapping[int, Question], until: float, *, partial: bool = False
    ) -> dict[int, Any]:
        """The results by shard, all about `view`. Some may be missing only with `partial`."""
        turn = next(self._turns)
        states = {shard: _Asked(question, turn) for shard, question in questions.items()}
        answers: dict[int, Any] = {}
        with self._lock:
            usual = sorted(self._usual)[int(0.95 * (len(self._usual) - 1))]
        hedge = max(LEAST_HEDGE, HEDGE * usual)
        while len(answers) < len(states):
            now = time.monotonic()
            open_states = {s: state for s, state in states.items() if s not in answers}
            all_failed = all(len(s.failed) == len(self._choice) for s in open_states.values())
            if now >= until or (partial and all_failed):
                break
            for shard, state in open_states.items():
                if now >= self._due(state, hedge):
                    self._send(shard, state)
            for reference in self._wait(open_states, until, hedge):
                shard = next(s for s, state in open_states.items() if reference in state.open)
                if shard not in answers:
                    answers |= self._receive(view, shard, states[shard], reference)
        missing = [shard for shard in states if shard not in answers]
        if missing and not (partial and answers):
            raise self._late(states, missing)
        return answers

    def _send(self, shard: int, state: _Asked) -> None:
        replica = self._choice[state.turn % len(self._choice)]
        state.turn += 1
        state.open[state.question(self._pool.actor(shard, replica))] = replica, time.monotonic()

    def _due(self, state: _Asked, hedge: float) -> float:
        """When a shard is to be asked: at first, after a failure, or to hedge an answer that is late."""
        if not state.open:
            return state.again
        if len(state.open) == len(self._choice):
            return math.inf
        return max(asked for _, asked in state.open.values()) + hedge

    def _wait(self, states: Mapping[int, _Asked], until: float, hedge: float) -> list[Any]:
        due = min(until, *(self._due(state, hedge) for state in states.values()))
        pause = max(due - time.monotonic(), 0.001)
        references = [reference for state in states.values() for reference in state.open]
        if not references:
            time.sleep(pause)
            return []
        ready: list[Any] = self._ray.wait(references, num_returns=1, timeout=pause, fetch_local=True)[0]
        return ready

    def _receive(self, view: str, shard: int, state: _Asked, reference: Any) -> dict[int, Any]:
        """The answer by shard; nothing if the shard has to be asked again."""
        ray = self._ray
        replica, asked = state.open.pop(reference)
        try:
            answered, packed = ray.get(reference)
        except ray.exceptions.RayTaskError as error:
            raise errors.ClusterError(f"shard {shard} failed: {root_cause(error)}") from error
        except ray.exceptions.RayError as error:
            if isinstance(error, ray.exceptions.ActorDiedError):
                self._pool.renew(shard, replica)
            state.failed[replica] = errors.ClusterError(f"shard {shard} died: {type(error).__name__}")
            state.again = time.monotonic() + (PAUSE if len(state.failed) == len(self._choice) else 0)
            return {}
        if answered != view:
            raise errors.ClusterError(f"shard {shard} answered for state {answered}, not for {view}")
        answer = unpack(packed)
        if isinstance(answer, Failure):
            self._weigh(answer, replica, state)
            return {}
        with self._lock:
            self._usual.append(time.monotonic() - asked)
        return {shard: answer}

    def _weigh(self, failure: Failure, replica: int, state: _Asked) -> None:
        """Raise what another replica would say too; otherwise remember it and let another one be asked."""
        error = failure.error
        if isinstance(error, GoneError | errors.InputError | errors.MismatchError):
            raise error
        state.failed[replica] = error
        if not isinstance(error, errors.DeadlineError) and len(state.failed) == len(self._choice):
            if isinstance(error, errors.BusyError):
                raise error
            raise type(error)(f"{failure.node}: {error.message}", hint=error.hint)

    def _late(self, states: Mapping[int, _Asked], missing: list[int]) -> errors.RbegirError:
        reasons = {error.message for shard in missing for error in states[shard].failed.values()}
        said = f" ({'; '.join(sorted(reasons))})" if reasons else ""
        if reasons and all(
            isinstance(e, errors.BusyError) for shard in missing for e in states[shard].failed.values()
        ):
            return errors.BusyError(f"the shards are busy{said}", hint="ask again a little later")
        return errors.DeadlineError(
            f"{len(missing)} of {len(states)} shards did not answer before the deadline{said}",
            hint="ask again, raise deadline=, use replicas, or accept a partial result (partial=True)",
        )


@dataclass(frozen=True, eq=False)
class State:
    """The state that questions are answered from: a view, and where the shards can read it."""

    view: View
    refs: dict[int, list[Any]]  # shard → [reference of its share]
    empty: Snapshot  # the same index without segments, to check questions against
    checker: Searcher

    def question(self, shard: int, method: str, *arguments: Any) -> Question:
        """A question for a shard about this state: a method of `Shard`, and what it needs to know."""
        return lambda actor: getattr(actor, method).remote(self.view.id, self.refs[shard], *arguments)


def prepare(
    pool: Pool,
    location: Location,
    before: View | None = None,
    seconds: float = PREPARE_SECONDS,
    words: Callable[[Manifest], Any] = lambda manifest: None,
) -> State:
    """The current state of an index, open and checked on every shard and replica.

    `words` gives the weights of words in Ray's store if hits will be reranked (see `Loaded.ready`), or None.
    A writer may remove files between reading the manifest and opening them; then there is a newer manifest.
    """
    ray = import_ray()
    while True:
        manifest = location.manifest()
        view = View.of(location, manifest, pool.layout.shards, before)
        refs = {shard: [ray.put(view.share(shard))] for shard in view.used}
        empty = Snapshot(location.path, replace(manifest, segments=(), deletes={}))
        state = State(view, refs, empty, Searcher("cpu", manifest.n, manifest.keyword_planes, 1))
        weights = words(manifest)
        questions = {shard: state.question(shard, "read", "ready", weights) for shard in view.used}
        try:
            for replica in range(pool.layout.replicas):  # one after the other: the rest keep answering
                counts = Fanout(pool, only=replica).ask(view.id, questions, time.monotonic() + seconds)
                if sum(counts.values()) != view.keywords:
                    raise errors.ClusterError(
                        f"the shards opened {sum(counts.values())} of {view.keywords} keywords"
                    )
            return state
        except GoneError as error:
            if location.manifest() == manifest:
                raise not_shared(location, error) from error


def not_shared(location: Location, error: GoneError) -> errors.FileError:
    """Files that the manifest names are there for the client and not for a shard."""
    return errors.FileError(
        f"{error.message}: the nodes of the cluster do not share {location.name}",
        hint="put the index on a file system that every node mounts at the same path, or give a URI "
        "such as s3://bucket/ads.rbe",
    )
