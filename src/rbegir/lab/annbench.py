"""An algorithm with the interface of ann-benchmarks, and a small runner for its data files.

    algorithm = AnnRBE("angular", {"keyword_planes": 2})
    algorithm.fit(train); algorithm.set_query_arguments(4); algorithm.query(vector, 10)

`AnnRBE` has the methods of their `BaseANN`, so their harness can run it; nothing of theirs is imported. The
one query argument is its number of planes: codes are stored once, and searched with coarse or fine queries.
`run` needs no harness: it searches for the test vectors of a data set one by one, as theirs does, and in one
batch.
"""

import os
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rbegir.codes.layout import pack
from rbegir.encode.binarizer.binarizer import Binarizer
from rbegir.errors import FileError, InputError, needing, whole_number
from rbegir.search.backend import Partition
from rbegir.search.cpu import CpuBackend
from rbegir.search.partition import recall_of

METRICS = {"angular": "cosine", "cosine": "cosine", "euclidean": "l2", "ip": "ip"}  # theirs → a Binarizer's
FINEST = 8  # planes of a query

Ints = npt.NDArray[np.int64]


class AnnRBE:
    """Exhaustive search over codes. `parameters`: n, keyword_planes, threads."""

    def __init__(self, metric: str, parameters: dict[str, int] | None = None) -> None:
        if metric not in METRICS:
            raise InputError(f"metric must be one of {', '.join(METRICS)}, got {metric!r}")
        self._metric = METRICS[metric]
        given: dict[str, Any] = dict(parameters or {})
        self._threads = given.pop("threads", None)
        self._given = given
        unknown = sorted(set(given) - {"n", "keyword_planes"})
        if unknown:
            raise InputError(
                f"unknown parameters: {', '.join(unknown)}", hint="known: n, keyword_planes, threads"
            )
        self._planes = FINEST
        self._binarizer: Binarizer | None = None
        self._results: Ints | None = None

    def fit(self, X: npt.NDArray[Any]) -> None:
        """Learn codes for the vectors [count, dims] and store them."""
        binarizer = Binarizer(int(X.shape[1]), query_planes=FINEST, metric=self._metric, **self._given).fit(X)
        codes = binarizer.encode_keywords(X)
        self._partitions = [Partition(pack(codes), len(codes))]
        self._backend = CpuBackend(codes.n, codes.plane_count, threads=self._threads)
        self._binarizer = binarizer

    def set_query_arguments(self, planes: int) -> None:
        """Set the number of query planes, 1 to 8, for the searches that follow."""
        self._planes = whole_number("planes", planes, 1, FINEST)

    def query(self, q: npt.NDArray[Any], n: int) -> Ints:
        """The positions of the best n for one vector [dims]."""
        found: Ints = self._search(q[None], n)[0]
        return found

    def batch_query(self, X: npt.NDArray[Any], n: int) -> None:
        """Search for many vectors [count, dims]; `get_batch_results` returns the positions."""
        self._results = self._search(X, n)

    def get_batch_results(self) -> Ints:
        """Positions [count, n] of the last batch."""
        if self._results is None:
            raise InputError("there are no results yet", hint="call batch_query first")
        return self._results

    def get_additional(self) -> dict[str, Any]:
        """Further facts that the harness stores with the results."""
        return {
            "bytes_per_vector": self._fitted().n * self._fitted().keyword_planes // 8,
            "planes": self._planes,
        }

    def get_memory_usage(self) -> float:
        """Kilobytes of the stored codes."""
        return sum(part.packed.nbytes for part in self._partitions) / 1024 if self._binarizer else 0.0

    def done(self) -> None:
        """Free the codes; the harness has finished with this algorithm."""
        self._binarizer, self._results = None, None

    def __str__(self) -> str:
        settings = ", ".join(f"{key}={value}" for key, value in sorted(self._given.items()))
        return f"rbegir({settings}{', ' if settings else ''}query planes={self._planes})"

    def _fitted(self) -> Binarizer:
        if self._binarizer is None:
            raise InputError("there is nothing to search yet", hint="call fit first")
        return self._binarizer

    def _search(self, X: npt.NDArray[Any], n: int) -> Ints:
        codes = self._fitted().encode_queries(X).first_planes(self._planes)
        return self._backend.search(self._partitions, codes.values(), n).positions


class AnnData(NamedTuple):
    """A data set of ann-benchmarks."""

    train: npt.NDArray[np.float32]  # [count, dims]
    test: npt.NDArray[np.float32]  # [queries, dims]
    neighbors: Ints  # [queries, depth] true nearest, best first


def read_data(path: str | os.PathLike[str]) -> AnnData:
    """`train`, `test` and `neighbors` of an HDF5 or .npz file."""
    name = Path(path)
    if not name.is_file():
        raise FileError(f"there is no data set {name}")
    try:
        if name.suffix in (".hdf5", ".h5"):
            arrays = _read_hdf5(name)
        else:
            with np.load(name, allow_pickle=False) as file:
                arrays = {key: file[key] for key in AnnData._fields if key in file}
    except (OSError, ValueError, EOFError, AttributeError) as error:
        raise FileError(
            f"{name} cannot be read as a data set: {error}", hint="pass an .hdf5 or .npz file"
        ) from error
    missing = [key for key in AnnData._fields if key not in arrays]
    if missing:
        raise InputError(f"{name} has no array {missing[0]!r}; a data set has train, test and neighbors")
    data = AnnData(*(arrays[key] for key in AnnData._fields))
    if data.train.ndim != 2 or data.test.ndim != 2 or data.train.shape[1] != data.test.shape[1]:
        raise InputError(
            f"train {list(data.train.shape)} and test {list(data.test.shape)} do not belong together"
        )
    if data.neighbors.ndim != 2 or len(data.neighbors) != len(data.test):
        raise InputError(
            f"neighbors {list(data.neighbors.shape)} must have a row for each of {len(data.test)} tests"
        )
    return data._replace(neighbors=data.neighbors.astype(np.int64))


def run(
    path: str | os.PathLike[str],
    *,
    k: int = 10,
    planes: Sequence[int] = (1, 2, 4, 8),
    parameters: dict[str, int] | None = None,
    rounds: int = 3,
    metric: str | None = None,
    progress: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Recall and speed on a data set, one row for each number of query planes.

    `metric` None is the one that an HDF5 file names, or else "angular".
    """
    from rbegir.lab.bench.host import describe

    data = read_data(path)
    if not 1 <= k <= data.neighbors.shape[1]:
        raise InputError(
            f"k must be from 1 to {data.neighbors.shape[1]}, the depth of the true neighbours; got {k}"
        )
    say = progress or (lambda what: None)
    metric = metric or _distance(Path(path)) or "angular"
    algorithm = AnnRBE(metric, parameters)
    say("fitting")
    start = time.perf_counter()
    algorithm.fit(data.train)
    fitted = time.perf_counter() - start
    rows = []
    for count in planes:
        algorithm.set_query_arguments(count)
        say(str(algorithm))
        single, batch = [], []
        for _ in range(rounds):
            start = time.perf_counter()
            found = [algorithm.query(vector, k) for vector in data.test]
            single.append(len(data.test) / (time.perf_counter() - start))
            start = time.perf_counter()
            algorithm.batch_query(data.test, k)
            batch.append(len(data.test) / (time.perf_counter() - start))
        assert np.array_equal(np.stack(found), algorithm.get_batch_results())
        rows.append(
            {
                "algorithm": str(algorithm),
                "recall": recall_of(algorithm.get_batch_results(), data.neighbors[:, :k]),
                "qps": statistics.median(single),
                "qps_spread": [min(single), max(single)],
                "batch_qps": statistics.median(batch),
                "batch_qps_spread": [min(batch), max(batch)],
                **algorithm.get_additional(),
            }
        )
    return {
        "host": describe(),
        "dataset": Path(path).name,
        "metric": metric,
        "vectors": len(data.train),
        "dims": int(data.train.shape[1]),
        "queries": len(data.test),
        "k": k,
        "fit_s": fitted,
        "memory_kb": algorithm.get_memory_usage(),
        "rows": rows,
    }


def _h5py() -> Any:
    with needing("HDF5 data sets need h5py", "pip install h5py, or convert the data set to .npz"):
        import h5py  # type: ignore[import-not-found]
    return h5py


def _read_hdf5(path: Path) -> dict[str, npt.NDArray[Any]]:
    with _h5py().File(path, "r") as file:
        return {key: np.asarray(file[key]) for key in AnnData._fields if key in file}


def _distance(path: Path) -> str | None:
    """The metric that a file names: the attribute `distance` of HDF5."""
    if path.suffix not in (".hdf5", ".h5"):
        return None
    with _h5py().File(path, "r") as file:
        named = file.attrs.get("distance")
    return None if named is None else str(named)
