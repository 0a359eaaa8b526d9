"""The scan benchmark: shape of its JSON, its refusals, its peers when they are installed."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from importlib.util import find_spec
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from typer.testing import CliRunner

from rbegir._native import _core
from rbegir.cli.bench import app
from rbegir.errors import InputError, MissingExtraError, RbegirError
from rbegir.lab.bench import host, peers, scan
from rbegir.lab.bench.peers import ScanPeer
from rbegir.search.partition import recall_of


def test_json() -> None:
    result = CliRunner().invoke(
        app,
        [
            "scan",
            "--keywords",
            "2e3",
            "--batches",
            "1,3",
            "--k",
            "5",
            "--threads",
            "1",
            "--rounds",
            "2",
            "--json",
        ],
    )
    assert result.exit_code == 0, result.output
    printed = json.loads(result.stdout)
    assert {"cpu", "isa", "commit", "versions", "load_average"} <= set(printed["host"])
    one, three = printed["cells"]
    assert (one["keywords"], one["batch"], one["k"], one["threads"]) == (2000, 1, 5, 1)
    assert one["backend"].startswith("cpu/")
    assert 0 < one["ms_min"] <= one["ms"] <= one["ms_max"]
    assert one["bandwidth_fraction"] > 0
    assert three["bandwidth_fraction"] is None
    assert one["peers"] == one["peer_spread"] == {}
    assert one["isas"] == {one["backend"].removeprefix("cpu/"): [one["ms"], one["ms_min"], one["ms_max"]]}


def test_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "fresh_process_seconds", lambda source: 1.0)  # test_json has real ones
    result = CliRunner().invoke(
        app, ["scan", "--keywords", "100", "--batches", "1", "--k", "5", "--threads", "1", "--rounds", "1"]
    )
    assert result.exit_code == 0, result.output
    assert "keywords" in result.stdout


@pytest.mark.parametrize("text", ["a", "1,,2", "1.5"])
def test_numbers_that_are_none(text: str) -> None:
    result = CliRunner().invoke(app, ["scan", "--keywords", text])
    assert result.exit_code == 2
    assert "expected" in result.stderr


def test_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    good: dict[str, Any] = {"keywords": [100], "batches": [1], "ks": [1], "threads": [1], "rounds": 1}
    with pytest.raises(InputError, match="device must be 'cpu', 'cuda' or 'cuda:N', got 'tpu'"):
        scan.run(scan.ScanGrid(**good, device="tpu"))
    for name in ("keywords", "batches"):
        with pytest.raises(InputError, match=rf"{name} must be positive numbers, got \[0\]"):
            scan.ScanGrid(**{**good, name: [0]})
    with pytest.raises(InputError, match="rounds must be a whole number of at least 1, got 0"):
        scan.ScanGrid(**{**good, "rounds": 0})
    for keywords in (10**13, 10**99):
        with pytest.raises(
            InputError, match=rf"{keywords:,} keywords take .* bytes of memory, the machine has"
        ):
            scan.run(scan.ScanGrid(**{**good, "keywords": [1, keywords]}))
    monkeypatch.setattr(scan, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"--peers needs faiss-cpu, turbovec, .*rbegir\[bench\]"):
        scan.run(scan.ScanGrid(**good, peers=True))


def test_a_peer_that_dies() -> None:
    with pytest.raises(RbegirError, match="the process of the peer nobody ended"):
        ScanPeer("nobody", 100, 1)


def found_by_peer(queries: npt.NDArray[Any], k: int) -> npt.NDArray[Any]:
    """Runs in the process of a peer."""
    return np.asarray(peers._find(queries, k))


LEAST = {  # recall of the true ten largest inner products: 0.55, but 0.31 with one bit per dimension
    "faiss_pq": 0.5,
    "faiss_rabitq": 0.27,
    "turbovec": 0.5,
    "scann": 0.5,
    "rabitqlib": 0.5,
}


@pytest.mark.parametrize("name", peers.SCAN_PEERS)
def test_a_peer_finds_what_it_should(name: str) -> None:
    """Peers of bits find the nearest keywords, the others the share that codes of their size allow."""
    if not find_spec(name.split("_")[0]):  # an extra: without it, its absence is what can be tested
        with pytest.raises(RbegirError, match=f"the process of the peer {name} ended"):
            ScanPeer(name, 3000, 1)
        return
    draw = peers._bits if name in peers.OF_BITS else peers._floats
    every, queries = draw(np.random.default_rng(1), 3000), draw(np.random.default_rng(5), 200)
    with closing(ScanPeer(name, 3000, 1)) as peer:
        assert peer.search(2, 10) > 0
        for asked in (queries, queries[:1]):  # some peers search one query in another way
            found = peer._wait(peer._pool.submit(found_by_peer, asked, 10))  # type: ignore[arg-type]
            if name in peers.OF_BITS:
                distances = np.unpackbits(asked[:, None] ^ every, axis=2).sum(axis=2, dtype=np.int64)
                if name != "numkong":
                    found = np.take_along_axis(distances, found.astype(np.int64), axis=1)
                    distances = np.sort(distances, axis=1)[:, :10]
                assert np.array_equal(found, distances)
            elif len(asked) == len(queries):
                best = np.argsort(-(asked @ every.T), axis=1)[:, :10]
                assert recall_of(found.astype(np.int64), best) > LEAST[name]


def test_a_peer_is_searched_with_its_fastest_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first search of each batch and k tries all settings."""
    used: list[peers.Setting] = [(0,)]
    cost = {((1,), 10): 1.0, ((2,), 10): 3.0, ((1,), 1000): 5.0, ((2,), 1000): 2.0}

    def clock(call: Callable[[], Any]) -> float:
        return cost[used[-1], call()]

    monkeypatch.setattr(peers, "milliseconds", clock)
    find = peers._fastest([(1,), (2,)], used.append, lambda queries, k: k)
    for k, best in ((10, (1,)), (1000, (2,)), (10, (1,))):
        assert find(np.zeros((1, 64)), k) == k
        assert used[-1] == best
    assert len(used) == 1 + 3 + 3 + 1  # nothing is tried again


def test_random_keywords_are_aligned() -> None:
    assert scan.random_packed(1000).ctypes.data % 64 == 0
    assert set(np.unique(scan.random_queries(50))) == {-7, -5, -3, -1, 1, 3, 5, 7}


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("streams", [1, 2, 5])
def test_read_sum_reads_everything(threads: int, streams: int) -> None:
    words = np.random.default_rng(0).integers(0, 2**64, 64 * 60, dtype=np.uint64)
    assert _core.read_sum(words.view(np.uint8), threads, streams) == int(words.sum(dtype=np.uint64))


def test_host() -> None:
    found = host.describe(["numpy", "no-such-package"])
    assert found["versions"]["no-such-package"] is None
    assert found["versions"]["numpy"] == np.__version__
    assert found["cpus"] >= 1
    assert host.cpu_name({"cpu": "A", "cpu_family": "25", "cpu_model": "17"}) == "A (family 25, model 17)"
    assert host.cpu_name({"cpu": "A"}) == "A"
    json.dumps(found)


def test_fresh_process() -> None:
    assert 0 < host.fresh_process_seconds("pass") < 60
    with pytest.raises(RbegirError, match="the measured program failed: ValueError: no"):
        host.fresh_process_seconds("raise ValueError('no')")


def test_search_never_imports_torch() -> None:
    source = "import sys, rbegir.search.cpu; sys.exit('torch' in sys.modules or 'pyarrow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", source], env=os.environ).returncode == 0
