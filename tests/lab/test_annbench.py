"""The shape that ann-benchmarks calls, and the runner on a small data set."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from rbegir import cli
from rbegir.errors import FileError, InputError, MissingExtraError
from rbegir.lab.annbench import AnnRBE, read_data, run
from rbegir.search.partition import recall_of


@pytest.fixture
def data(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    train, test = (rng.standard_normal((count, 40)).astype(np.float32) for count in (500, 20))
    units = [x / np.linalg.norm(x, axis=1, keepdims=True) for x in (train, test)]
    neighbors = np.argsort(-(units[1] @ units[0].T), axis=1)[:, :30].astype(np.int32)
    np.savez(tmp_path / "random.npz", train=train, test=test, neighbors=neighbors)
    return tmp_path / "random.npz"


def test_the_calls_of_their_harness(data: Path) -> None:
    """fit, set_query_arguments, query, batch_query, get_batch_results, get_additional, in their order."""
    train, test, *_ = read_data(data)
    algorithm = AnnRBE("angular", {"keyword_planes": 3, "n": 64})
    assert algorithm.get_memory_usage() == 0.0
    algorithm.fit(train)
    assert algorithm.get_memory_usage() == 512 * 3 * 8 / 1024  # 500 keywords, in groups of 64
    for planes in (1, 8):
        algorithm.set_query_arguments(planes)
        assert f"query planes={planes}" in str(algorithm)
        single = [algorithm.query(vector, 7) for vector in test]
        algorithm.batch_query(test, 7)
        assert np.array_equal(np.stack(single), algorithm.get_batch_results())
        assert algorithm.get_additional() == {"bytes_per_vector": 24, "planes": planes}
    algorithm.done()
    with pytest.raises(InputError, match="there is nothing to search yet"):
        algorithm.query(test[0], 3)


def test_recall_grows_with_the_planes(data: Path) -> None:
    result = run(data, planes=[1, 2, 8], rounds=1, parameters={"keyword_planes": 4, "threads": 1})
    found = [row["recall"] for row in result["rows"]]
    assert found == sorted(found)
    assert found[0] < found[-1]
    assert found[-1] > 0.85
    assert (result["vectors"], result["dims"], result["queries"], result["k"]) == (500, 40, 20, 10)
    assert all(row["qps"] > 0 and row["batch_qps"] > 0 for row in result["rows"])


@pytest.mark.parametrize("metric", ["euclidean", "ip"])
def test_other_metrics(metric: str, tmp_path: Path) -> None:
    """Lengths differ, so that the nearest by angle are others."""
    rng = np.random.default_rng(1)
    train, test = (rng.standard_normal((count, 40)) for count in (500, 20))
    train *= rng.uniform(0.6, 1.6, (500, 1))
    products = test @ train.T
    scores = products if metric == "ip" else 2 * products - (train**2).sum(axis=1)
    neighbors = np.argsort(-scores, axis=1)[:, :10]
    path = tmp_path / "random.npz"
    np.savez(path, train=train.astype(np.float32), test=test.astype(np.float32), neighbors=neighbors)
    parameters = {"keyword_planes": 4, "threads": 1}
    right, wrong = (
        run(path, metric=name, planes=[8], rounds=1, parameters=parameters) for name in (metric, "angular")
    )
    assert (right["metric"], wrong["metric"]) == (metric, "angular")
    assert right["rows"][0]["recall"] > max(0.75, wrong["rows"][0]["recall"] + 0.1)


def test_the_metric_that_a_file_names(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for h5py, which the tests do without."""

    class File(dict[str, Any]):
        def __init__(self, path: Path, mode: str) -> None:
            super().__init__(read_data(data)._asdict())
            self.attrs = {"distance": "euclidean"}

        def __enter__(self) -> File:
            return self

        def __exit__(self, *raised: object) -> None:
            pass

    monkeypatch.setitem(sys.modules, "h5py", SimpleNamespace(File=File))
    (tmp_path / "named.hdf5").write_bytes(b"")
    result = run(tmp_path / "named.hdf5", planes=[8], rounds=1)
    assert result["metric"] == "euclidean"


def test_recall_by_hand() -> None:
    assert recall_of(np.array([[1, 2, 3], [4, 5, 6]]), np.array([[3, 1, 9], [7, 8, 9]])) == pytest.approx(
        1 / 3
    )


def test_the_command(data: Path) -> None:
    done = CliRunner().invoke(
        cli.build(["bench"]), ["bench", "ann", str(data), "--planes", "2", "--rounds", "1", "--json"]
    )
    assert done.exit_code == 0, done.exception
    assert json.loads(done.stdout)["rows"][0]["bytes_per_vector"] == 16


def test_bad_input(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        InputError, match="metric must be one of angular, cosine, euclidean, ip, got 'hamming'"
    ):
        AnnRBE("hamming")
    with pytest.raises(InputError, match="unknown parameters: lists"):
        AnnRBE("angular", {"lists": 4})
    with pytest.raises(InputError, match="planes must be a whole number from 1 to 8, got 9"):
        AnnRBE("angular").set_query_arguments(9)
    with pytest.raises(InputError, match="there are no results yet"):
        AnnRBE("angular").get_batch_results()
    with pytest.raises(InputError, match="k must be from 1 to 30"):
        run(data, k=31)
    with pytest.raises(FileError, match="there is no data set"):
        read_data(tmp_path / "nothing.npz")
    (tmp_path / "bad.npz").write_text("no")
    with pytest.raises(FileError, match="cannot be read as a data set"):
        read_data(tmp_path / "bad.npz")
    whole = data.read_bytes()
    changed = bytes(byte ^ 1 if at == len(whole) // 2 else byte for at, byte in enumerate(whole))
    np.save(tmp_path / "one.npy", np.ones((3, 2)))  # an array alone is no data set
    for damaged in ((tmp_path / "one.npy").read_bytes(), whole[:1000], b"PK\x03\x04" + whole[4:90], changed):
        (tmp_path / "damaged.npz").write_bytes(damaged)
        with pytest.raises(FileError, match="cannot be read as a data set"):
            read_data(tmp_path / "damaged.npz")
    np.savez(tmp_path / "half.npz", train=np.ones((3, 2)), test=np.ones((1, 2)))
    with pytest.raises(InputError, match="has no array 'neighbors'"):
        read_data(tmp_path / "half.npz")
    wide = {"train": np.ones((3, 2)), "test": np.ones((1, 3)), "neighbors": np.ones((1, 1), int)}
    np.savez(tmp_path / "wide.npz", **wide)
    with pytest.raises(InputError, match=r"train \[3, 2\] and test \[1, 3\] do not belong together"):
        read_data(tmp_path / "wide.npz")
    np.savez(tmp_path / "long.npz", **{**wide, "test": np.ones((2, 2))})
    with pytest.raises(InputError, match=r"neighbors \[1, 1\] must have a row for each of 2 tests"):
        read_data(tmp_path / "long.npz")
    pair = {"train": np.ones((3, 2)), "test": np.ones((1, 2))}
    for neighbors, message in (
        (np.array([[0.5]]), "neighbors must be positions in train, from 0 to 2, got float64"),
        (np.array([["0"]]), "neighbors must be positions in train, from 0 to 2, got <U1"),
        (np.array([[3]]), "neighbors must be positions in train, from 0 to 2, got 3"),
        (np.array([[-1]]), "neighbors must be positions in train, from 0 to 2, got -1"),
    ):
        np.savez(tmp_path / "odd.npz", **pair, neighbors=neighbors)
        with pytest.raises(InputError, match=message):
            read_data(tmp_path / "odd.npz")
    np.savez(tmp_path / "none.npz", **{**pair, "test": np.ones((0, 2))}, neighbors=np.ones((0, 1), int))
    with pytest.raises(InputError, match=r"train \[3, 2\] and test \[0, 2\] do not belong together"):
        read_data(tmp_path / "none.npz")
    (tmp_path / "data.hdf5").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(MissingExtraError, match="HDF5 data sets need h5py"):
        read_data(tmp_path / "data.hdf5")
