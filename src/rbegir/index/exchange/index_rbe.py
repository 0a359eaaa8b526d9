"""`IndexRBE`: codes and the exact scan behind the interface of a FAISS index, to switch by changing one line.

    index = rbegir.IndexRBE(384)             # was: faiss.IndexFlatIP(384)
    index.train(vectors)                     # needed here: codes are fitted to vectors
    index.add(vectors)
    D, I = index.search(queries, 10)         # float32 and int64 [queries, 10]

As in FAISS, ids are positions, and removing a vector moves later ones up. D is best first; if there are
fewer vectors than k, I is −1 and D the lowest float.

Unlike FAISS, D is the cosine of codes. It approximates the order of the inner products of unit vectors, but
has other values, since codes stand for centred vectors; the best codes are found exactly. Only the inner
product of directions (`metric_type` 0) is offered. A vector takes n · keyword_planes / 8 bytes and is not
kept; `reconstruct` returns the unit vector that its code stands for.
"""

from __future__ import annotations

import os
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from rbegir.base.checks import whole_number
from rbegir.codes.layout import pack
from rbegir.codes.planes import WORD, Codes
from rbegir.codes.score import cosine, norm_squared
from rbegir.encode.binarizer.binarizer import Binarizer
from rbegir.errors import InputError, MismatchError
from rbegir.index.exchange.transfer import read_keywords, staged
from rbegir.index.store import Index
from rbegir.search.backend import Partition
from rbegir.search.cpu import CpuBackend

METRIC_INNER_PRODUCT = 0  # as FAISS numbers it
NOTHING = np.finfo(np.float32).min  # D where there is no neighbour

Floats = npt.NDArray[np.float32]


class IndexRBE:
    """Vectors of `d` floats, stored as codes in memory. The other arguments go to the Binarizer."""

    metric_type = METRIC_INNER_PRODUCT

    def __init__(
        self,
        d: int,
        n: int | None = None,
        *,
        query_planes: int = 8,
        keyword_planes: int = 2,
        threads: int | None = None,
        binarizer: Binarizer | None = None,
    ) -> None:
        """With a fitted `binarizer` the index needs no training."""
        self.d = d
        self.binarizer = binarizer or Binarizer(d, n, query_planes, keyword_planes)
        self.is_trained = binarizer is not None
        if binarizer is not None and binarizer.n_features_in_ != d:
            raise MismatchError(f"d is {d}, the binarizer takes vectors of {binarizer.n_features_in_}")
        self._threads = threads
        self._parts: list[Codes] = []
        self._packed: list[Partition] | None = None

    @property
    def ntotal(self) -> int:
        """The number of vectors in the index."""
        return sum(len(part) for part in self._parts)

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
        codes = self._trained().encode_keywords(x)
        if len(codes):
            self._parts.append(codes)
            self._packed = None

    def search(self, x: Any, k: int) -> tuple[Floats, npt.NDArray[np.int64]]:
        """(D, I): cosines and ids of the best k for each vector [count, d], best first."""
        k = whole_number("k", k)
        asked = self._trained().encode_queries(x).values()  # [queries, n]
        scores = np.full((len(asked), k), NOTHING, np.float32)
        ids = np.full((len(asked), k), -1, np.int64)
        if self._parts and len(asked):
            if self._packed is None:
                self._packed = [Partition(pack(part), len(part)) for part in self._parts]
            backend = CpuBackend(self.binarizer.n, self.binarizer.keyword_planes, threads=self._threads)
            found = backend.search(self._packed, asked, min(k, self.ntotal))
            width = found.positions.shape[1]
            scores[:, :width] = cosine(found.keys, norm_squared(asked))
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
        return self._trained().inverse_transform(self._codes()[n0:stop])

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
            kept = self._codes()[np.flatnonzero(~gone)]
            self._parts = [kept] if len(kept) else []
            self._packed = None
        return int(gone.sum())

    def reset(self) -> None:
        """Remove all vectors but keep the training."""
        self._parts, self._packed = [], None

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the index, atomically, as an rbegir index, which `rbegir.Index.open` opens too."""
        with staged(path) as stage, Index.create(stage, self._trained()) as index:
            for part in self._parts:
                index.add_codes(part)

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
            rows = read_keywords(stored)
        if not np.array_equal(np.asarray(rows.ids), np.arange(len(rows))):
            raise MismatchError(
                f"the ids of {path} are not 0, 1, 2 …, which a flat FAISS index has",
                hint="open it with rbegir.Index.open",
            )
        index = cls(binarizer.n_features_in_, threads=threads, binarizer=binarizer)
        index._parts = [rows.codes] if len(rows) else []
        return index

    def _trained(self) -> Binarizer:
        if not self.is_trained:
            raise InputError("the index is not trained", hint="call train(vectors) first")
        return self.binarizer

    def _codes(self) -> Codes:
        if not self._parts:
            planes = np.zeros((self.binarizer.keyword_planes, 0, self.binarizer.n // WORD), np.uint64)
            return Codes(planes, self.binarizer.n)
        if len(self._parts) > 1:
            self._parts = [Codes.concat(self._parts)]
            self._packed = None
        return self._parts[0]
