"""Float vectors on their way into an index: a Binarizer, given or fitted to them, makes codes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rbegir.encode.binarizer.estimator import Binarizer
from rbegir.errors import InputError, MismatchError
from rbegir.index.exchange.export import ROWS, Keywords
from rbegir.index.exchange.landing import land
from rbegir.index.store import Index

Floats = npt.NDArray[np.float32]


def check_vectors(vectors: Any, binarizer: Binarizer | None) -> tuple[Floats, Binarizer]:
    """The vectors [count, dims] and a Binarizer that fits them."""
    if not isinstance(vectors, np.ndarray) or vectors.ndim != 2 or not len(vectors):
        came = (
            f"{vectors.dtype} {list(vectors.shape)}"
            if isinstance(vectors, np.ndarray)
            else type(vectors).__name__
        )
        raise InputError(f"vectors must be an array [1 or more, dims], got {came}")
    if binarizer is None:
        binarizer = Binarizer(int(vectors.shape[1])).fit(vectors)
    elif binarizer.n_features_in_ != vectors.shape[1]:
        raise MismatchError(
            f"vectors have {vectors.shape[1]} dimensions, the binarizer takes {binarizer.n_features_in_}"
        )
    return vectors, binarizer


def land_vectors(
    path: str | os.PathLike[str],
    vectors: Any,
    ids: pa.Array | None = None,
    texts: pa.Array | None = None,
    attributes: dict[str, pa.Array] | None = None,
    binarizer: Binarizer | None = None,
) -> Index:
    """A new index of the codes of float vectors, with its Binarizer inside."""
    rows, fitted = check_vectors(vectors, binarizer)
    given = pa.array(np.arange(len(rows))) if ids is None else ids

    def batches() -> Iterator[Keywords]:
        for low in range(0, len(rows), ROWS):
            codes = fitted.encode_keywords(rows[low : low + ROWS])
            part = slice(low, low + len(codes))
            others = {name: column[part] for name, column in (attributes or {}).items()}
            yield Keywords(codes, given[part], None if texts is None else texts[part], others)

    return land(path, batches(), fitted)
