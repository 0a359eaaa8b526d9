"""Shards that die, hang or lose their files: no wrong answer, no silently incomplete one."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rbegir
from rbegir.cluster.shard import About
from rbegir.errors import ClusterError
from tests.index.fakes import HashEncoder

from .conftest import PATIENT, equal, grow, in_time, late, until


def about(cluster: rbegir.Cluster, shard: int, replica: int = 0) -> About:
    import ray

    found: About = ray.get(cluster._pool.actor(shard, replica).about.remote())
    return found


def kill(cluster: rbegir.Cluster, shard: int, replica: int = 0) -> int:
    """SIGKILL the process of a shard; returns its process id."""
    pid = about(cluster, shard, replica).pid
    os.kill(pid, signal.SIGKILL)
    return pid


@contextmanager
def load(ask: Callable[[], None], threads: int = 3) -> Iterator[list[BaseException]]:
    """`ask` again and again in some threads; afterwards the list holds what went wrong."""
    wrong: list[BaseException] = []
    stop = threading.Event()

    def run() -> None:
        while not stop.is_set():
            try:
                ask()
            except BaseException as error:
                wrong.append(error)

    workers = [threading.Thread(target=run) for _ in range(threads)]
    for worker in workers:
        worker.start()
    try:
        yield wrong
    finally:
        stop.set()
        for worker in workers:
            worker.join()


def test_with_replicas_no_query_fails(
    nodes: Any, index_path: Path, index: rbegir.Index, encoder: HashEncoder
) -> None:
    codes = encoder.encode_queries(["w1 w2", "w7"])
    wanted = index.search_codes(codes, 20)
    asked = 0
    with rbegir.Cluster.open(index_path, devices=2, replicas=2, model=encoder, deadline=PATIENT) as cluster:

        def ask() -> None:
            nonlocal asked
            equal(cluster.search_codes(codes, 20), wanted)
            asked += 1

        with load(ask) as wrong:
            for shard, replica in ((0, 0), (1, 1), (0, 1)):
                before, enough = kill(cluster, shard, replica), asked + 7
                until(lambda: restarted(cluster, shard, replica, before) is not None)  # noqa: B023
                until(lambda: asked >= enough or bool(wrong))  # noqa: B023
        assert wrong == []


def test_a_node_dies(nodes: Any, index_path: Path, index: rbegir.Index, encoder: HashEncoder) -> None:
    """All processes of a machine at once; replicas are on different ones, so every shard is still there."""
    codes = encoder.encode_queries(["w1 w2", "w7"])
    wanted = index.search_codes(codes, 20)
    doomed = nodes.add_node(num_cpus=2, object_store_memory=80 << 20)
    nodes.wait_for_nodes(PATIENT)
    with rbegir.Cluster.open(index_path, devices=2, replicas=2, model=encoder, deadline=PATIENT) as cluster:
        with load(lambda: equal(cluster.search_codes(codes, 20), wanted), threads=2) as wrong:
            nodes.remove_node(doomed, allow_graceful=False)
            for _ in range(20):
                equal(cluster.search_codes(codes, 20), wanted)
        assert wrong == []


def restarted(cluster: rbegir.Cluster, shard: int, replica: int, before: int) -> int | None:
    """The new process of a shard, if there is one."""
    import ray

    try:
        found = ray.get(cluster._pool.actor(shard, replica).about.remote(), timeout=5)
    except (ray.exceptions.RayActorError, ray.exceptions.GetTimeoutError):
        return None
    return found.pid if found.pid != before else None


def test_without_replicas_a_question_waits_out_the_gap(
    nodes: Any, index_path: Path, index: rbegir.Index, encoder: HashEncoder
) -> None:
    codes = encoder.encode_queries(["w1 w2"])
    with rbegir.Cluster.open(index_path, devices=2, model=encoder, deadline=PATIENT) as cluster:
        before = kill(cluster, 0)
        equal(
            cluster.search_codes(codes, 9, where="price < 50"),
            index.search_codes(codes, 9, where="price < 50"),
        )
        assert about(cluster, 0).pid != before


def test_a_stopped_shard_is_an_error_or_a_marked_part(
    nodes: Any, index_path: Path, index: rbegir.Index, encoder: HashEncoder
) -> None:
    """A process that hangs neither answers nor dies: the deadline decides."""
    codes = encoder.encode_queries(["w1 w2"])
    with rbegir.Cluster.open(index_path, devices=2, model=encoder, deadline=PATIENT) as cluster:
        pid = about(cluster, 1).pid
        os.kill(pid, signal.SIGSTOP)
        try:
            late(
                lambda deadline: cluster.search_codes(codes, deadline=deadline),
                "1 of 2 shards did not answer before the deadline",
            )
            hits = in_time(
                lambda deadline: cluster.search_codes(codes, 3000, deadline=deadline, partial=True)
            )
        finally:
            os.kill(pid, signal.SIGCONT)
        sizes = cluster.info()["keywords_of_shards"]
        assert hits.searched == sizes[0] / sum(sizes) < 1
        assert hits.k == sizes[0]
        whole = index.search_codes(codes, 3000)
        kept = np.isin(whole.rows[0], hits.rows[0])  # the part is the whole less the other shard's keywords
        assert whole.rows[0][kept].tolist() == hits.rows[0].tolist()
        equal(cluster.search_codes(codes, 3000, partial=True), whole)


def test_a_stopped_replica_is_passed_over(
    nodes: Any, index_path: Path, index: rbegir.Index, encoder: HashEncoder
) -> None:
    codes = encoder.encode_queries(["w1 w2"])
    with rbegir.Cluster.open(index_path, devices=1, replicas=2, model=encoder, deadline=PATIENT) as cluster:
        pid = about(cluster, 0, 1).pid
        os.kill(pid, signal.SIGSTOP)
        try:
            for _ in range(4):  # every second one begins at the replica that hangs
                equal(cluster.search_codes(codes, 9), index.search_codes(codes, 9))
        finally:
            os.kill(pid, signal.SIGCONT)


def test_shards_that_ended_with_another_client_are_made_again(
    nodes: Any, index_path: Path, index: rbegir.Index, encoder: HashEncoder
) -> None:
    codes = encoder.encode_queries(["w1 w2"])
    first = rbegir.Cluster.open(index_path, devices=2, model=encoder, deadline=PATIENT)
    with rbegir.Cluster.open(index_path, devices=2, model=encoder, deadline=PATIENT) as second:
        assert about(first, 0).pid == about(second, 0).pid  # shared
        first.close()
        equal(second.search_codes(codes, 9), index.search_codes(codes, 9))


def test_every_answer_is_of_one_state(nodes: Any, tmp_path: Path, encoder: HashEncoder) -> None:
    """A swap between indexes of different models, under load: each answer is wholly the one or the other."""
    other = HashEncoder(seed="other")
    paths = [tmp_path / "old.rbe", tmp_path / "new.rbe"]
    wanted: dict[str, rbegir.Hits] = {}
    for seed, (path, model) in enumerate(zip(paths, (encoder, other), strict=True)):
        grow(path, model, sizes=[300, 200, 50], seed=seed)
        with rbegir.Index.open(path, model=model, read_only=True) as index:
            wanted[str(path)] = index.search(["w1 w2", "w3"], 25)
    seen: set[str] = set()
    with rbegir.Cluster.open(paths[0], devices=2, replicas=2, model=encoder, deadline=PATIENT) as cluster:

        def ask() -> None:
            hits = cluster.search(["w1 w2", "w3"], 25)
            (path,) = [p for p, one in wanted.items() if np.array_equal(one.keys, hits.keys)]
            equal(hits, wanted[path])
            seen.add(path)

        with load(ask, threads=2) as wrong:
            for turn in range(4):
                target = paths[(turn + 1) % 2]
                cluster.swap(target, model=(other, encoder)[turn % 2])
                until(lambda: str(target) in seen or bool(wrong))  # noqa: B023
                seen.clear()
        assert wrong == []


def test_writes_under_load_and_compaction_that_removes_files(
    nodes: Any, tmp_path: Path, encoder: HashEncoder
) -> None:
    """Readers see states in order, each of them whole; a restarted shard that misses old files moves on."""
    path = tmp_path / "ads.rbe"
    grow(path, encoder, sizes=[200, 100], seed=9)
    code = encoder.encode_queries(["w1 w2"])
    with (
        rbegir.Cluster.open(path, devices=2, model=encoder, deadline=PATIENT) as cluster,
        rbegir.Index.open(path, model=encoder) as index,
    ):
        index.upsert([f"w{i} w1" for i in range(40)], list(range(1000, 1040)))
        index.compact()
        assert cluster.info()["generation"] < index.info()["generation"]
        kill(cluster, 0)
        kill(cluster, 1)
        equal(cluster.search_codes(code, 50), index.search_codes(code, 50))
        assert cluster.info()["generation"] == index.info()["generation"]
        index.delete([1003])
        cluster.refresh()
        assert cluster.get([1003, 1004])[0] is None
        equal(cluster.search_codes(code, 50), index.search_codes(code, 50))


def holder(path: Path) -> int | None:
    """The process that holds the lock of an index."""
    lock = path / "LOCK"
    for line in Path("/proc/locks").read_text().splitlines():
        _, kind, _, _, pid, file, *_ = line.split()
        if kind == "FLOCK" and int(file.rsplit(":")[-1]) == lock.stat().st_ino:
            with suppress(OSError):  # it ends, or another disk has a file of this number
                if any(file.samefile(lock) for file in Path(f"/proc/{pid}/fd").iterdir() if file.exists()):
                    return int(pid)
    return None


def test_the_writer_dies_under_load(nodes: Any, tmp_path: Path, encoder: HashEncoder) -> None:
    """kill −9 while keywords are replaced: what was acknowledged is there, and nothing is there twice."""
    path = tmp_path / "ads.rbe"
    grow(path, encoder, sizes=[50])
    with rbegir.Cluster.open(path, devices=1, model=encoder, deadline=PATIENT) as cluster:
        done = {9000: "w0 w0"}
        cluster.upsert([done[9000]], [9000])
        acknowledged = 0

        def ask() -> None:
            nonlocal acknowledged
            name, text = 9000 + acknowledged % 5, f"w{acknowledged} w1"
            cluster.upsert([text], [name])
            done[name] = text
            acknowledged += 1

        killed: set[int] = set()
        with load(ask, threads=1) as wrong:
            for turn in range(2):
                until(lambda turn=turn: acknowledged > 4 * turn)  # type: ignore[misc]
                while (pid := holder(path)) is None or pid in killed:
                    time.sleep(0.01)
                os.kill(pid, signal.SIGKILL)
                killed.add(pid)
        assert wrong == []
        assert len(killed) == 2
        assert len(done) == 5
        found = cluster.get(sorted(done))
        assert [record and record["text"] for record in found] == [done[name] for name in sorted(done)]
        kept = len(cluster)
    with rbegir.Index.open(path, model=encoder) as index:
        index.verify()
        assert len(index) == kept == 50 - 50 // 7 + len(done)


def test_an_add_that_may_not_have_been_done_says_so(
    nodes: Any, tmp_path: Path, encoder: HashEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ray

    path = tmp_path / "ads.rbe"
    grow(path, encoder, sizes=[50])
    with rbegir.Cluster.open(path, devices=1, model=encoder, deadline=PATIENT) as cluster:
        cluster.upsert(["w0"], [9000])
        pid = holder(path)
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        get = ray.get

        def kill_first(*arguments: Any, **options: Any) -> Any:
            """The add has been sent when its result is waited for."""
            monkeypatch.setattr(ray, "get", get)
            os.kill(pid, signal.SIGKILL)
            return get(*arguments, **options)

        monkeypatch.setattr(ray, "get", kill_first)
        with pytest.raises(ClusterError, match="died during add; it may or may not have been done") as caught:
            cluster.add(["w1"], [9001])
        assert "check" in caught.value.hint
        cluster.refresh()
        assert cluster.get([9001]) == [None]
        assert cluster.upsert(["w1"], [9001]).tolist() == [9001]


def test_two_clients_write_through_one_writer(nodes: Any, tmp_path: Path, encoder: HashEncoder) -> None:
    path = tmp_path / "ads.rbe"
    rbegir.Index.create(path, encoder).close()
    with (
        rbegir.Cluster.open(path, devices=1, model=encoder, deadline=PATIENT) as one,
        rbegir.Cluster.open(path, devices=1, model=encoder, deadline=PATIENT) as two,
    ):
        one.add(["w1"], [1])
        two.add(["w2"], [2])
        one.upsert(["w3"], [2])
        two.refresh()
        assert [record and record["text"] for record in two.get([1, 2, 3])] == ["w1", "w3", None]
