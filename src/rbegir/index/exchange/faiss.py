"""FAISS: import its indexes, export codes as flat indexes, and `IndexRBE`, which has a FAISS interface.

    FAISS                                       here
    IndexBinaryFlat, d a multiple of 64         codes of one plane, bit for bit (the bit order is the same)
    IndexFlatIP, IndexFlatL2                    float vectors, encoded by a Binarizer of that metric
    HNSW, NSG and IVF over one of them          what it stores, without its graph or lists
    IndexIDMap and IndexIDMap2, also binary     one of the above, with ids
    any other index                             refused: it does not store what was added

With one plane per keyword and per query, the Hamming distance h and our score order alike: cos = 1 − 2h / n.
Codes of more planes are exported as float vectors of length 1, whose inner products are our cosines.

`IndexRBE` is the exact scan behind the interface of a FAISS index, to switch by changing one line.

    index = rbegir.IndexRBE(384)             # was: faiss.IndexFlatIP(384); metric="l2" for IndexFlatL2
    index.train(vectors)                     # needed here: codes are fitted to vectors
    index.add(vectors)
    D, I = index.search(queries, 10)         # float32 and int64 [queries, 10]

As in FAISS, ids are positions, and removing a vector moves later ones up. If there are fewer vectors than k,
I is −1 and D the worst float. D estimates what FAISS returns: the cosine, the inner product, or the squared
distance. Only the code of a vector is kept, n · keyword_planes / 8 bytes; `reconstruct` returns the vector
that the code stands for. If all vectors have unit length, they are imported with the metric "cosine", which
gives the same order as the others and better codes.
"""

import os
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rbegir.codes.layout import pack, unpack
from rbegir.codes.planes import MAX_N, MIN_N, WORD, Codes
from rbegir.codes.score import norm_squared
from rbegir.encode.binarizer.binarizer import Binarizer
from rbegir.encode.binarizer.vectors import as_rows
from rbegir.errors import FileError, InputError, MismatchError, needing, whole_number
from rbegir.index.exchange.transfer import ROWS, make_index, make_vector_index, read_codes, staged
from rbegir.index.store import Index
from rbegir.search.backend import Partition
from rbegir.search.cpu import CpuBackend

SUPPORTED = "IndexBinaryFlat, IndexFlatIP, IndexFlatL2, HNSW, NSG and IVF over them, alone or inside an IDMap"
GRAPHS = ("IndexHNSWFlat", "IndexNSGFlat", "IndexBinaryHNSW")  # over a flat index, their storage
LISTS = ("IndexIVFFlat", "IndexBinaryIVF")  # hold what was added in lists, with ids
METRIC_INNER_PRODUCT, METRIC_L2 = 0, 1  # as FAISS numbers them
UNIT = 1e-3  # how far the length of a unit vector may be from 1

Floats = npt.NDArray[np.float32]


def load_faiss() -> Any:
    """Import FAISS, or raise an error that says how to install it."""
    with needing("FAISS indexes need faiss", "pip install faiss-cpu"):
        import faiss
    return faiss


def open_faiss(path: str | os.PathLike[str]) -> Any:
    """Open a FAISS index file, binary or float."""
    faiss = load_faiss()
    name = os.fspath(path)
    if not Path(name).is_file():
        raise FileError(f"there is no FAISS file {name}")
    for read in (faiss.read_index, faiss.read_index_binary):
        try:
            return read(name)
        except (RuntimeError, MemoryError):
            continue  # try the other reader
    raise FileError(f"{name} is not a FAISS index", hint="pass a file that faiss.write_index wrote")


def read_faiss(index: Any) -> tuple[Codes | Floats, npt.NDArray[np.int64]]:
    """The codes or float vectors, and the ids, of a FAISS index that stores them."""
    faiss = load_faiss()
    given = type(index).__name__
    ids: npt.NDArray[np.int64] | None = None
    if hasattr(index, "id_map"):
        ids = faiss.vector_to_array(index.id_map).astype(np.int64)
        index = index.index
    if not isinstance(index, (faiss.Index, faiss.IndexBinary)):
        raise InputError(f"expected a FAISS index, got {given}", hint=f"supported are {SUPPORTED}")
    binary = isinstance(index, faiss.IndexBinary)
    downcast = faiss.downcast_IndexBinary if binary else faiss.downcast_index
    inner = downcast(index)
    name = type(inner).__name__
    if name in GRAPHS:
        inner = downcast(inner.storage)
    if name in LISTS:
        rows, places = _listed(faiss, inner)
    elif isinstance(inner, faiss.IndexBinaryFlat if binary else faiss.IndexFlat):
        flat = faiss.vector_to_array(inner.xb if binary else inner.codes)
        rows, places = flat.reshape(-1, int(inner.code_size)), np.arange(int(inner.ntotal))
    else:
        raise InputError(
            f"a FAISS index of kind {name} cannot be imported: it does not store what was added",
            hint=f"supported are {SUPPORTED}; import the vectors that it was built from",
        )
    found = _codes(rows, int(inner.d)) if binary else np.ascontiguousarray(rows).view(np.float32)
    return found, places if ids is None else ids[places]


def _listed(faiss: Any, index: Any) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """The rows [count, bytes] of an index of lists and their ids, in the order of the ids."""
    lists, parts = index.invlists, []
    for number in range(index.nlist):
        if count := lists.list_size(number):
            rows = faiss.rev_swig_ptr(lists.get_codes(number), count * lists.code_size)
            ids = faiss.rev_swig_ptr(lists.get_ids(number), count)
            parts.append((rows.reshape(count, -1).copy(), ids.astype(np.int64)))
    if not parts:
        return np.zeros((0, lists.code_size), np.uint8), np.zeros(0, np.int64)
    every = np.concatenate([ids for _, ids in parts])
    order = np.argsort(every, kind="stable")
    return np.concatenate([rows for rows, _ in parts])[order], every[order]


def import_faiss(index: Any, out: str | os.PathLike[str], *, binarizer: Binarizer | None = None) -> Index:
    """Make a new rbegir index of a FAISS index or its file; a Binarizer encodes float vectors."""
    source = open_faiss(index) if isinstance(index, (str, os.PathLike)) else index
    found, ids = read_faiss(source)
    table = pa.table({"id": ids})
    if isinstance(found, Codes):
        if binarizer is not None:
            raise InputError("a binary FAISS index holds codes, it takes no binarizer", hint="leave it out")
        return make_index(out, [(found, table)])
    if binarizer is None and len(found):
        metric = "l2" if source.metric_type == METRIC_L2 else "ip"
        if np.all(np.abs(np.linalg.norm(found, axis=1) - 1) < UNIT):
            metric = "cosine"
        binarizer = Binarizer(metric=metric).fit(found)
    return make_vector_index(out, found, table, binarizer)


def to_faiss(source: Index | Codes) -> Any:
    """Codes as an IndexBinaryFlat (one plane) or IndexFlatIP, in an IDMap unless ids are 0, 1, 2 …"""
    faiss = load_faiss()
    codes, ids = read_codes(source)
    n, planes = codes.n, codes.plane_count
    if ids.dtype != np.int64:
        raise InputError("FAISS ids are integers, this index has strings", hint="export to Parquet")
    counted = np.array_equal(ids, np.arange(len(ids)))
    made = faiss.IndexBinaryFlat(n) if planes == 1 else faiss.IndexFlatIP(n)
    if not counted:
        made = faiss.IndexBinaryIDMap2(made) if planes == 1 else faiss.IndexIDMap2(made)
    for low in range(0, len(codes), ROWS):
        part = codes[low : low + ROWS]
        if planes == 1:
            rows = part.planes[0].astype("<u8", copy=False).view(np.uint8)  # [count, n / 8]
        else:
            values = part.values()
            rows = (values / np.sqrt(norm_squared(values))[:, None]).astype(np.float32)
        made.add(rows) if counted else made.add_with_ids(rows, ids[low : low + ROWS])
    return made


def export_faiss(source: Index | Codes, path: str | os.PathLike[str]) -> None:
    """Write codes as a FAISS file that `faiss.read_index` (one plane: `read_index_binary`) opens."""
    faiss = load_faiss()
    made = to_faiss(source)
    write = faiss.write_index_binary if isinstance(made, faiss.IndexBinary) else faiss.write_index
    with staged(path) as stage:
        try:
            write(made, str(stage))
        except RuntimeError as error:
            raise FileError(f"cannot write {path}: FAISS failed") from error


def _codes(rows: npt.NDArray[np.uint8], d: int) -> Codes:
    """Codes of `d` bits from rows [count, bytes]."""
    if d % WORD or not MIN_N <= d <= MAX_N:
        raise InputError(
            f"the index has {d} bits per vector, expected a multiple of {WORD} from {MIN_N} to {MAX_N}",
            hint="pad all vectors, and queries, with zero bits",
        )
    words = np.ascontiguousarray(rows).reshape(len(rows), d // 8).view("<u8").astype(np.uint64, copy=False)
    return Codes(words[None].copy(), d)


class IndexRBE:
    """Vectors of `d` floats, stored as codes in memory. The other arguments go to the Binarizer."""

    def __init__(
        self,
        d: int,
        n: int | None = None,
        *,
        query_planes: int = 8,
        keyword_planes: int = 2,
        threads: int | None = None,
        binarizer: Binarizer | None = None,
        metric: str = "cosine",
        bytes: int | None = None,
    ) -> None:
        """With a fitted `binarizer` the index needs no training."""
        self.d = d
        self.binarizer = binarizer or Binarizer(
            d, n, query_planes, keyword_planes, bytes=bytes, metric=metric
        )
        self.metric_type = METRIC_L2 if self.binarizer.metric == "l2" else METRIC_INNER_PRODUCT
        self.is_trained = binarizer is not None
        if binarizer is not None and binarizer.n_features_in_ != d:
            raise MismatchError(f"d is {d}, the binarizer takes vectors of {binarizer.n_features_in_}")
        self._threads = threads
        self._parts: list[Partition] = []

    @property
    def ntotal(self) -> int:
        """The number of vectors in the index."""
        return sum(part.count for part in self._parts)

    def train(self, x: Any) -> None:
        """Fit the codes to vectors [count, d] without adding them."""
        if self._parts:
            raise InputError(
                "the index holds vectors, training would make their codes meaningless",
                hint="call reset() first",
            )
        self.binarizer.fit(x)
        self.is_trained = True

    def add(self, x: Any) -> None:
        """Add vectors [count, d]; their ids are the next positions."""
        self._append(self._trained().encode_keywords(x))

    def search(self, x: Any, k: int) -> tuple[Floats, npt.NDArray[np.int64]]:
        """(D, I): estimates of what FAISS returns, and the ids of the best k for each vector [count, d]."""
        k = whole_number("k", k)
        asked = self._trained().encode_queries(x).values()  # [queries, n]
        sign = -1 if self.metric_type == METRIC_L2 else 1
        scores = np.full((len(asked), k), sign * np.finfo(np.float32).min, np.float32)
        ids = np.full((len(asked), k), -1, np.int64)
        if self._parts and len(asked):
            backend = CpuBackend(self.binarizer.n, self.binarizer.keyword_planes, threads=self._threads)
            found = backend.search(self._parts, asked, min(k, self.ntotal))
            width = found.positions.shape[1]
            scores[:, :width] = sign * self.binarizer.key_scores(asked)(found.keys)
            if self.binarizer.metric == "ip":  # scores are those of queries of unit length
                scores[:, :width] *= np.linalg.norm(as_rows(x), axis=1, keepdims=True)
            ids[:, :width] = found.positions
        return scores, ids

    def reconstruct(self, key: int) -> Floats:
        """The vector [d] that the code of an id stands for."""
        vector: Floats = self.reconstruct_n(key, 1)[0]
        return vector

    def reconstruct_n(self, n0: int = 0, ni: int = -1) -> Floats:
        """The vectors [ni, d] of the ids from n0 on; ni = −1 returns all of them."""
        stop = self.ntotal if ni == -1 else n0 + ni
        if not 0 <= n0 <= stop <= self.ntotal:
            raise InputError(f"ids must be from 0 to {self.ntotal - 1}, got {n0} to {stop - 1}")
        return self._trained().inverse_transform(self._codes(n0, stop))

    def remove_ids(self, ids: Any) -> int:
        """Remove the ids of an array or a FAISS selector and return how many; later ids move up."""
        if hasattr(ids, "is_member"):
            gone = np.array([bool(ids.is_member(i)) for i in range(self.ntotal)], bool)
        else:
            wanted = np.asarray(ids)
            if wanted.ndim != 1 or (wanted.size and not np.issubdtype(wanted.dtype, np.integer)):
                raise InputError("ids must be a one-dimensional integer array, or a selector of FAISS")
            gone = np.isin(np.arange(self.ntotal), wanted)
        if gone.any():
            kept = self._codes(0, self.ntotal)[np.flatnonzero(~gone)]
            self.reset()
            self._append(kept)
        return int(gone.sum())

    def reset(self) -> None:
        """Remove all vectors but keep the training."""
        self._parts = []

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the index, atomically, as an rbegir index, which `rbegir.Index.open` opens too."""
        with staged(path) as stage, Index.create(stage, self._trained()) as index:
            index.add_codes(self._codes(0, self.ntotal))

    @classmethod
    def read(cls, path: str | os.PathLike[str], *, threads: int | None = None) -> Self:
        """Read an index that `write` wrote, or any rbegir index made with a Binarizer."""
        with Index.open(os.fspath(path), read_only=True) as stored:
            binarizer = stored.model
            if not isinstance(binarizer, Binarizer):
                raise MismatchError(
                    f"{path} was built by a {type(binarizer).__name__}, which takes texts, not vectors",
                    hint="open it with rbegir.Index.open",
                )
            codes, ids = read_codes(stored)
        if not np.array_equal(ids, np.arange(len(ids))):
            raise MismatchError(
                f"the ids of {path} are not 0, 1, 2 …, which a flat FAISS index has",
                hint="open it with rbegir.Index.open",
            )
        index = cls(binarizer.n_features_in_, threads=threads, binarizer=binarizer)
        index._append(codes)
        return index

    def _trained(self) -> Binarizer:
        if not self.is_trained:
            raise InputError("the index is not trained", hint="call train(vectors) first")
        return self.binarizer

    def _append(self, codes: Codes) -> None:
        if len(codes):
            self._parts.append(Partition(pack(codes), len(codes)))

    def _codes(self, start: int, stop: int) -> Codes:
        """The codes of the ids start … stop − 1."""
        n, planes = self.binarizer.n, self.binarizer.keyword_planes
        found, begin = [Codes(np.zeros((planes, 0, n // WORD), np.uint64), n)], 0
        for packed, count, *_ in self._parts:
            here = np.arange(max(start - begin, 0), min(stop - begin, count))
            found.append(unpack(packed, count, n, planes, here))
            begin += count
        return Codes.concat(found)
