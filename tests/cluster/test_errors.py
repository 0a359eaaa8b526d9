"""Bad input: one clear error each, with the way out, in bounded time."""

from __future__ import annotations

import asyncio
import builtins
import dataclasses
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyarrow import fs

import rbegir
from rbegir.cluster import session
from rbegir.cluster.pool import layout, refuse
from rbegir.cluster.shard import About, Found, Scan, ScanQueue
from rbegir.codes.layout import LAYOUT_VERSION
from rbegir.errors import (
    BusyError,
    ClusterError,
    CorruptError,
    DeadlineError,
    DeviceError,
    FileError,
    InputError,
    MissingExtraError,
    VersionError,
)
from rbegir.index.format import VERSION
from rbegir.index.location import Location, cache_directory
from rbegir.search.request import SearchRequest
from tests.index.fakes import HashEncoder

from .conftest import PATIENT, equal, grow


def test_ray_is_missing(index_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without_ray(name: str, *rest: Any) -> Any:
        if name == "ray":
            raise ImportError("No module named 'ray'")
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without_ray)
    with pytest.raises(MissingExtraError, match="a cluster needs Ray") as caught:
        rbegir.Cluster.open(index_path)
    assert caught.value.hint == "pip install 'rbegir[cluster]'"


@pytest.fixture
def silent() -> Iterator[str]:
    """The address of something that listens and says nothing."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def test_unreachable_addresses(silent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "PROBE_SECONDS", 3.0)
    with pytest.raises(
        ClusterError, match=r"nothing answers at 127\.0\.0\.1:1: connection refused"
    ) as caught:
        session.probe("127.0.0.1:1")
    assert "ray start --head" in caught.value.hint
    with pytest.raises(ClusterError, match=r"something listens at .* did not answer as Ray within 3 s"):
        session.probe(silent)
    for address in ("nowhere", "host:port", ":6379", "ray://10.0.0.1:10001"):
        with pytest.raises(InputError, match="address must be host:port"):
            session.probe(address)


def test_another_cluster_than_the_connected_one(nodes: Any, index_path: Path) -> None:
    with pytest.raises(
        ClusterError, match=r"is connected to the Ray cluster at .* already, not to 10\.9\.8\.7:1"
    ):
        rbegir.Cluster.open(index_path, address="10.9.8.7:1")


def test_no_index(nodes: Any, tmp_path: Path) -> None:
    with pytest.raises(FileError, match="is not an rbegir index"):
        rbegir.Cluster.open(tmp_path / "nothing.rbe")
    with pytest.raises(InputError, match="cannot be opened as a file system"):
        rbegir.Cluster.open("gopher://host/ads.rbe")
    with pytest.raises(InputError, match=r"filesystem must be a pyarrow\.fs\.FileSystem"):
        rbegir.Cluster.open("ads.rbe", filesystem=object())


def node(cpus: float = 0, gpus: float = 0) -> dict[str, Any]:
    return {"Alive": True, "Resources": {"CPU": cpus, "GPU": gpus}}


def test_what_runs_where() -> None:
    four = [node(8), node(8), node(8), node(8)]
    auto = layout("auto", 1, four)
    assert (auto.device, auto.shards, auto.threads) == ("cpu", 4, 8)
    assert layout("auto", 2, four).shards == 2
    assert layout("auto", 1, [node(8, 2), node(8, 1)]).shards == 3
    assert layout("auto", 1, [node(8, 2), node(8, 1)]).device == "cuda"
    assert layout(16, 2, four).threads == 1
    assert layout(["cpu", "cpu"], 1, four, 3).threads == 3
    with pytest.raises(DeviceError, match="4 × 1 shards need 4 GPUs, the nodes of the cluster have 1"):
        layout(["cuda"] * 4, 1, [node(8, 1)])
    with pytest.raises(DeviceError, match="1 × 2 shards need 2 GPUs, the nodes of the cluster have 0"):
        layout("cuda", 2, four)
    for wrong in (0, "tpu", ["cpu", "cuda"], [], 2.5, True):
        with pytest.raises(InputError, match="devices must be"):
            layout(wrong, 1, four)
    with pytest.raises(InputError, match="replicas must be"):
        layout("auto", 0, four)
    with pytest.raises(InputError, match="threads must be"):
        layout("auto", 1, four, 0)
    with pytest.raises(ClusterError, match="no node of the cluster offers a CPU"):
        layout("cpu", 1, [node()])


def test_versions_that_differ() -> None:
    good = About("far (10.0.0.9)", 1, rbegir.__version__, LAYOUT_VERSION, VERSION)
    refuse(good)
    with pytest.raises(VersionError, match=r"far \(10\.0\.0\.9\) runs rbegir 9\.9") as caught:
        refuse(dataclasses.replace(good, rbegir="9.9"))
    assert caught.value.hint == "install the same version on every node"
    with pytest.raises(VersionError, match=f"code layout {LAYOUT_VERSION + 1}"):
        refuse(dataclasses.replace(good, layout=LAYOUT_VERSION + 1))
    with pytest.raises(VersionError, match=f"files {VERSION + 1}"):
        refuse(dataclasses.replace(good, format=VERSION + 1))


def test_a_shard_of_another_version(nodes: Any, index_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The processes of the cluster run what is installed there; here it is something else."""
    monkeypatch.setattr(rbegir, "__version__", "9.9")
    with pytest.raises(VersionError, match=r"runs rbegir .*, here it is 9\.9") as caught:
        rbegir.Cluster.open(index_path, devices=1)
    assert caught.value.hint == "install the same version on every node"


def test_an_index_of_another_version(
    nodes: Any, tmp_path: Path, encoder: HashEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A newer release has written the index, or some of its segments: the client or the shard says so."""
    path = tmp_path / "ads.rbe"
    grow(path, encoder, sizes=[50])
    with monkeypatch.context() as newer, rbegir.Index.open(path, model=encoder) as index:
        newer.setattr("rbegir.codes.layout.LAYOUT_VERSION", LAYOUT_VERSION + 1)
        index.add(["w1 w2"], [9000])
    with pytest.raises(VersionError, match=f"this rbegir reads layout {LAYOUT_VERSION}") as caught:
        rbegir.Cluster.open(path, devices=2, model=encoder)
    assert "segment-" in caught.value.message
    with monkeypatch.context() as newer:
        newer.setattr("rbegir.index.format.VERSION", VERSION + 1)
        grow(tmp_path / "new.rbe", encoder, sizes=[50])
    with pytest.raises(
        VersionError, match=f"has format version {VERSION + 1}, this rbegir reads version {VERSION}"
    ):
        rbegir.Cluster.open(tmp_path / "new.rbe", devices=1, model=encoder)


def test_a_node_without_the_gpu_it_was_promised(nodes: Any, index_path: Path) -> None:
    """Ray is told of a GPU that is not there; the shard that gets it says so."""
    pytest.importorskip("torch")
    import torch

    assert not torch.cuda.is_available()
    promised = nodes.add_node(num_cpus=0, num_gpus=1, object_store_memory=80 << 20)
    try:
        nodes.wait_for_nodes(PATIENT)
        with pytest.raises(DeviceError, match="cannot search on the device it was given") as caught:
            rbegir.Cluster.open(index_path, devices="cuda")
        assert caught.value.hint
    finally:
        nodes.remove_node(promised)


def test_nodes_that_do_not_share_the_path(
    nodes: Any, tmp_path: Path, encoder: HashEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client sees a manifest whose segments nobody else sees: as good as another machine's directory."""
    path = tmp_path / "ads.rbe"
    grow(path, encoder, sizes=[50])
    segments = sorted(path.glob("segment-*"))
    hidden = [segment.rename(segment.with_suffix(".hidden")) for segment in segments]
    with pytest.raises(FileError, match="the nodes of the cluster do not share") as caught:
        rbegir.Cluster.open(path, devices=1, model=encoder)
    assert "s3://" in caught.value.hint
    for file, name in zip(hidden, segments, strict=True):
        file.rename(name)
    other = tmp_path / "other.rbe"
    grow(other, encoder, sizes=[51], seed=5)
    shutil.copy(next(iter(other.glob("segment-*"))), segments[0])  # a copy that has gone its own way
    with pytest.raises(CorruptError, match="is not the file that the manifest names"):
        rbegir.Cluster.open(path, devices=1, model=encoder)


def test_any_file_system_is_copied_and_checked(
    nodes: Any, tmp_path: Path, encoder: HashEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file system that is no mounted path; every process copies what it needs into the cache."""
    monkeypatch.setenv("RBEGIR_CACHE", str(tmp_path / "cache"))
    grow(tmp_path / "store" / "ads.rbe", encoder, sizes=[300, 200])
    store = fs.SubTreeFileSystem(str(tmp_path / "store"), fs.LocalFileSystem())
    location = Location.of("ads.rbe", store)
    manifest = location.manifest()
    with rbegir.Index.open(tmp_path / "store" / "ads.rbe", model=encoder) as index:
        with rbegir.Cluster.open("ads.rbe", devices=2, model=encoder, filesystem=store) as cluster:
            equal(cluster.search(["w1 w2"], 20), index.search(["w1 w2"], 20))
            with pytest.raises(FileError, match="cannot be changed from here"):
                cluster.add(["w1"], [7])
            index.add(["w1 w2"], [7])
            cluster.refresh()
            equal(cluster.search(["w1 w2"], 20), index.search(["w1 w2"], 20))
        with rbegir.Cluster.open(
            (tmp_path / "store" / "ads.rbe").as_uri(), devices=1, model=encoder
        ) as cluster:
            equal(cluster.search(["w1 w2"], 20), index.search(["w1 w2"], 20))
    # a copy that is damaged on the way is noticed before it gets its name
    entry = manifest.segments[0]
    whole = (tmp_path / "store" / "ads.rbe" / entry.file).read_bytes()
    (tmp_path / "store" / "ads.rbe" / entry.file).write_bytes(whole[:200] + b"?" + whole[201:])
    from rbegir.index.format import FileKind

    assert cache_directory() == tmp_path / "cache"
    with pytest.raises(CorruptError, match=r"the copy of .*segment-00000000\.rbs is damaged: .*block 0"):
        location.fetch({entry.file: (FileKind.SEGMENT, entry.stamp)})
    assert not (location.path / entry.file).exists()
    with pytest.raises(FileError, match="has no MANIFEST"):
        Location.of("none.rbe", store).manifest()


def scan(count: int = 1, k: int = 2, where: str | None = None, seconds: float = 60) -> Scan:
    import numpy as np

    return Scan(np.full((count, 64), count, np.int16), SearchRequest(k, where), None, seconds)


class Slow:
    """A scan that waits until it is told to go on, and remembers what it was asked."""

    def __init__(self) -> None:
        import threading

        self.go, self.busy = threading.Event(), threading.Event()
        self.asked: list[Scan] = []

    def __call__(self, state: Any, scan: Scan) -> Found:
        import numpy as np

        self.asked.append(scan)
        self.busy.set()
        self.go.wait()
        keys = np.repeat(scan.values[:, :1].astype(np.int64), scan.request.k, axis=1)
        return Found(keys, keys, counted=state)


def test_waiting_questions_share_a_scan_and_the_queue_is_bounded() -> None:
    async def main() -> None:
        slow = Slow()
        queue = ScanQueue(slow, batch=8, queue=12)
        first = asyncio.create_task(queue.put("v", 1, scan(1)))
        await asyncio.to_thread(slow.busy.wait)
        questions = [
            queue.put("v", 1, scan(2, 1)),
            queue.put("v", 1, scan(3, 4)),
            queue.put("v", 1, scan(1, 2, "price < 3")),
            queue.put("w", 2, scan(1)),
            queue.put("v", 1, scan(1, 2, seconds=0.0)),
        ]
        two, three, filtered, other, late = [asyncio.create_task(question) for question in questions]
        await asyncio.sleep(0)
        with pytest.raises(BusyError, match="8 queries are waiting, at most 12 may"):
            await queue.put("v", 1, scan(5))
        slow.go.set()
        assert (await first).keys.tolist() == [[1, 1]]
        assert (await two).keys.tolist() == [[2], [2]]
        assert (await three).keys.tolist() == [[3] * 4] * 3
        assert ((await filtered).counted, (await other).counted) == (1, 2)
        with pytest.raises(DeadlineError):
            await late
        assert [len(asked.values) for asked in slow.asked] == [1, 6, 1]
        assert slow.asked[1].request.k == 4
        assert slow.asked[1].request.where == [None] * 5 + ["price < 3"]  # each query has its own filter

    asyncio.run(main())


def test_a_scan_that_fails_fails_all_who_wait_for_it() -> None:
    def broken(state: Any, scan: Scan) -> Found:
        raise RuntimeError("no")

    async def main() -> None:
        queue = ScanQueue(broken)
        for _ in range(2):  # the queue goes on
            found = await asyncio.gather(
                *(queue.put("v", None, scan()) for _ in range(3)), return_exceptions=True
            )
            assert [str(error) for error in found] == ["no"] * 3

    asyncio.run(main())
