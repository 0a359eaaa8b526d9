"""One Ray cluster of two nodes for all tests of this folder, and an index of many segments."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rbegir
from rbegir.cluster import pool
from rbegir.errors import DeadlineError
from tests.index.fakes import HashEncoder

# Before Ray is imported anywhere: nothing leaves the machine, and nothing is written into the user's home.
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ["RAY_AUTH_MODE"] = "disabled"
os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112  # as shards have; Ray would nice them by 15
# A node of a loaded machine that is slow to answer is not dead; one that refuses connections is, and soon:
# until Ray knows, it starts processes there, and waits for them.
os.environ["RAY_health_check_timeout_ms"] = "600000"  # noqa: SIM112
os.environ["RAY_health_check_period_ms"] = "500"  # noqa: SIM112
os.environ["RAY_health_check_failure_threshold"] = "3"  # noqa: SIM112


PATIENT = 600.0  # seconds: a deadline that is never reached, for tests that are not about deadlines


@pytest.fixture(scope="package")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A running Ray cluster of two nodes with two logical CPUs each; this process is connected to it."""
    import ray
    from ray.cluster_utils import Cluster as Nodes

    patch = pytest.MonkeyPatch()
    patch.setattr(pool, "START_SECONDS", PATIENT)
    patch.setattr(pool, "AGAIN_SECONDS", PATIENT)
    patch.setitem(rbegir.Cluster.open.__kwdefaults__, "deadline", PATIENT)
    small = {"num_cpus": 2, "object_store_memory": 80 << 20, "include_dashboard": False}
    made = Nodes(initialize_head=True, head_node_args=small)
    made.add_node(num_cpus=2, object_store_memory=80 << 20)
    ray.init(address=made.address, namespace="rbegir", log_to_driver=False, logging_level="ERROR")
    yield made
    ray.shutdown()
    made.shutdown()
    patch.undo()


def until(reached: Callable[[], bool]) -> None:
    """Wait for an event, however busy the machine is; the time limit of a test ends a wait in vain."""
    while not reached():
        time.sleep(0.01)


def late(ask: Callable[[float], Any], message: str) -> None:
    """`ask(deadline)` raises a DeadlineError with this message, given time enough for what does answer."""
    deadline = 0.3
    while True:
        with pytest.raises(DeadlineError) as caught:
            ask(deadline)
        if re.search(message, str(caught.value)):
            return
        deadline *= 2


def in_time(ask: Callable[[float], Any]) -> Any:
    """The result of `ask(deadline)`, given time enough for what does answer."""
    deadline = 0.3
    while True:
        try:
            return ask(deadline)
        except DeadlineError:
            deadline *= 2


def words(rng: np.random.Generator, count: int) -> list[str]:
    return [f"w{a} w{b}" for a, b in rng.integers(0, 60, (count, 2))]


def grow(path: Path, encoder: HashEncoder, *, sizes: list[int], seed: int = 0, ids: str = "int64") -> None:
    """An index with attributes, several segments, deletes and replaced keywords."""
    rng = np.random.default_rng(seed)
    with rbegir.Index.create(path, encoder) as index:
        first = 0
        for size in sizes:
            names: Any = np.arange(first, first + size) + 1000
            if ids == "string":
                names = [f"k{name}" for name in names]
            attributes = {
                "price": rng.integers(0, 100, size).astype(float),
                "lang": [("en", "de", None)[i] for i in rng.integers(0, 3, size)],
            }
            index.add(words(rng, size), names, attributes)
            first += size
        gone: Any = rng.choice(first, first // 7, replace=False) + 1000
        index.delete([f"k{name}" for name in gone] if ids == "string" else gone)


@pytest.fixture(scope="package")
def encoder() -> HashEncoder:
    return HashEncoder()


@pytest.fixture(scope="package")
def index_path(tmp_path_factory: pytest.TempPathFactory, encoder: HashEncoder) -> Path:
    """2,903 keywords in six segments, two of them of one tier or less."""
    path = tmp_path_factory.mktemp("index") / "ads.rbe"
    grow(path, encoder, sizes=[1301, 700, 64, 513, 1, 324])
    return path


@pytest.fixture(scope="package")
def cluster(nodes: Any, index_path: Path, encoder: HashEncoder) -> Iterator[rbegir.Cluster]:
    """The index over three shards, for tests that only read."""
    with rbegir.Cluster.open(index_path, devices=3, model=encoder, deadline=PATIENT) as opened:
        yield opened


@pytest.fixture
def index(index_path: Path, encoder: HashEncoder) -> Iterator[rbegir.Index]:
    with rbegir.Index.open(index_path, model=encoder, read_only=True) as opened:
        yield opened


def equal(ours: rbegir.Hits, theirs: rbegir.Hits) -> None:
    """Every field of two results is the same."""
    for name in ("ids", "scores", "keys", "rows"):
        mine, other = getattr(ours, name), getattr(theirs, name)
        assert mine.dtype == other.dtype, name
        assert mine.shape == other.shape, name
        assert np.array_equal(mine, other, equal_nan=name == "scores"), name
    assert (ours.texts is None) == (theirs.texts is None)
    assert ours.texts is None or ours.texts.tolist() == theirs.texts.tolist()
    assert not ours.rows.size or ours.to_arrow() == theirs.to_arrow()
    assert ours.attributes == theirs.attributes
    assert ours.certificate == theirs.certificate
    assert ours.recall == theirs.recall
    assert ours.searched == theirs.searched == 1.0
