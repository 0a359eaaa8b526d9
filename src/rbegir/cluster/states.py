"""From an index that has changed to shards that have it open, without a moment in which nothing answers."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from rbegir.cluster.engine import import_ray
from rbegir.cluster.fanout import Fanout, GoneError
from rbegir.cluster.location import Location
from rbegir.cluster.pool import Pool
from rbegir.cluster.view import View
from rbegir.errors import ClusterError, FileError
from rbegir.index.query import Searcher
from rbegir.index.snapshot import Snapshot

PREPARE_SECONDS = 600.0  # to open and check a new state


@dataclass(frozen=True, eq=False)
class State:
    """What questions are answered from: a view, and where the shards can read it."""

    view: View
    refs: dict[int, list[Any]]  # shard → [reference of its share]
    empty: Snapshot  # the same index without segments, to check questions against
    checker: Searcher


def prepare(
    pool: Pool, location: Location, before: View | None = None, seconds: float = PREPARE_SECONDS
) -> State:
    """The current state of an index, open and checked on every shard and replica.

    A writer may remove files between reading the manifest and opening them; then there is a newer manifest.
    """
    ray = import_ray()
    while True:
        manifest = location.manifest()
        view = View.of(location, manifest, pool.layout.shards, before)
        refs = {shard: [ray.put(view.share(shard))] for shard in view.used}
        empty = Snapshot(location.path, manifest.without_segments())
        state = State(view, refs, empty, Searcher("cpu", manifest.n, manifest.keyword_planes, 1))
        try:
            for replica in range(pool.layout.replicas):  # one after the other: the rest keep answering
                _open(pool, state, replica, seconds)
            return state
        except GoneError as error:
            if location.manifest() == manifest:
                raise not_shared(location, error) from error


def not_shared(location: Location, error: GoneError) -> FileError:
    """Files that the manifest names are there for the client and not for a shard."""
    return FileError(
        f"{error.message}: the nodes of the cluster do not share {location.name}",
        hint="put the index on a file system that every node mounts at the same path, or give a URI "
        "such as s3://bucket/ads.rbe",
    )


def _open(pool: Pool, state: State, replica: int, seconds: float) -> None:
    view = state.view
    questions = {
        shard: lambda actor, shard=shard: actor.prepare.remote(view.id, state.refs[shard])
        for shard in view.used
    }
    answers = Fanout(pool, only=replica).ask(view.id, questions, time.monotonic() + seconds)
    opened = sum(answer.keywords for answer in answers.values())
    if opened != view.keywords:
        raise ClusterError(f"the shards opened {opened} of {view.keywords} keywords")
