"""An algorithm with the interface of ann-benchmarks, and a small runner for its data files.

    algorithm = AnnRBE("angular", {"keyword_planes": 2})
    algorithm.fit(train); algorithm.set_query_arguments(4); algorithm.query(vector, 10)

`AnnRBE` has the methods of their `BaseANN`, so their harness can run it; nothing of theirs is imported. The
one query argument is its number of planes: codes are stored once, and searched with coarse or fine queries.
`run` needs no harness: it searches for the test vectors of a data set one by one, as theirs does, and in one
batch.
"""

import os
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt

from rbegir.codes.layout import pack
from rbegir.encode.binarizer.binarizer import Binarizer
from rbegir.errors import FileError, InputError, needing, whole_number
from rbegir.lab.bench.host import describe, milliseconds, turns
from rbegir.search.backend import Partition
from rbegir.search.cpu import CpuBackend
from rbegir.search.partition import recall_of

METRICS = {"angular": "cosine", "cosine": "cosine", "euclidean": "l2", "ip": "ip"}  # theirs → a Binarizer's
FINEST = 8  # planes of a query
ARRAYS = ("train", "test", "neighbors")  # of a data set

Ints = npt.NDArray[np.int64]


class AnnRBE:
    """Exhaustive search over codes. `parameters`: n, keyword_planes, threads."""

    def __init__(self, metric: str, parameters: dict[str, int] | None = None) -> None:
        if metric not in METRICS:
            raise InputError(f"metric must be one of {', '.join(METRICS)}, got {metric!r}")
        self._metric = METRICS[metric]
        self._given: dict[str, Any] = dict(parameters or {})
        self._threads = self._given.pop("threads", None)
        if unknown := sorted(set(self._given) - {"n", "keyword_planes"}):
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
    metric: str = "angular"  # that an HDF5 file names


def read_data(path: str | os.PathLike[str]) -> AnnData:
    """`train`, `test` and `neighbors` of an HDF5 or .npz file."""
    name = Path(path)
    if not name.is_file():
        raise FileError(f"there is no data set {name}")
    metric = AnnData._field_defaults["metric"]
    try:
        if name.suffix in (".hdf5", ".h5"):
            with needing("HDF5 data sets need h5py", "pip install h5py, or convert the data set to .npz"):
                import h5py  # type: ignore[import-not-found]
            with h5py.File(name, "r") as file:
                arrays = {key: np.asarray(file[key]) for key in ARRAYS if key in file}
                metric = str(file.attrs.get("distance", metric))
        else:
            with name.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
                arrays = {key: file[key] for key in ARRAYS if key in file}
    except (OSError, ValueError, TypeError, EOFError, AttributeError, BadZipFile, zlib.error) as error:
        raise FileError(
            f"{name} cannot be read as a data set: {error}", hint="pass an .hdf5 or .npz file"
        ) from error
    missing = [key for key in ARRAYS if key not in arrays]
    if missing:
        raise InputError(f"{name} has no array {missing[0]!r}; a data set has train, test and neighbors")
    train, test, neighbors = (arrays[key] for key in ARRAYS)
    if train.ndim != 2 or test.ndim != 2 or train.shape[1] != test.shape[1] or not len(test):
        raise InputError(f"train {list(train.shape)} and test {list(test.shape)} do not belong together")
    if neighbors.ndim != 2 or len(neighbors) != len(test):
        raise InputError(f"neighbors {list(neighbors.shape)} must have a row for each of {len(test)} tests")
    whole = neighbors.dtype.kind in "iu"
    odd = neighbors[(neighbors < 0) | (neighbors >= len(train))] if whole else [neighbors.dtype]
    if len(odd):
        raise InputError(f"neighbors must be positions in train, from 0 to {len(train) - 1}, got {odd[0]}")
    return AnnData(train, test, neighbors.astype(np.int64), metric)


def run(
    path: str | os.PathLike[str],
    *,
    k: int = 10,
    planes: Sequence[int] = (1, 2, 4, 8),
    parameters: dict[str, int] | None = None,
    rounds: int = 3,
    metric: str | None = None,
    progress: Callable[[str], None] = lambda what: None,
) -> dict[str, Any]:
    """Recall and speed on a data set, one row for each number of query planes.

    `metric` None is the one that an HDF5 file names, or else "angular".
    """
    data = read_data(path)
    if not 1 <= k <= data.neighbors.shape[1]:
        raise InputError(
            f"k must be from 1 to {data.neighbors.shape[1]}, the depth of the true neighbours; got {k}"
        )
    metric = metric or data.metric
    algorithm = AnnRBE(metric, parameters)
    progress("fitting")
    fitted = milliseconds(lambda: algorithm.fit(data.train)) / 1e3
    rows = []
    for count in planes:
        algorithm.set_query_arguments(count)
        progress(str(algorithm))
        ways = [
            lambda: [algorithm.query(vector, k) for vector in data.test],
            lambda: algorithm.batch_query(data.test, k),
        ]
        single, batch = 1e3 * len(data.test) / np.array(turns(ways, rounds))  # [rounds] queries per second
        rows.append(
            {
                "algorithm": str(algorithm),
                "recall": recall_of(algorithm.get_batch_results(), data.neighbors[:, :k]),
                "qps": float(np.median(single)),
                "qps_spread": [single.min(), single.max()],
                "batch_qps": float(np.median(batch)),
                "batch_qps_spread": [batch.min(), batch.max()],
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
