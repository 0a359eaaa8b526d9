"""NumPy files: codes as uint64 [planes, count, words], or float vectors [count, dims] for a Binarizer.

Arrays of Python objects are never read: that would be pickle.
"""

from __future__ import annotations

import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from rbegir.codes.planes import MAX_KEYWORD_PLANES, WORD, Codes
from rbegir.encode.binarizer.estimator import Binarizer
from rbegir.errors import FileError, InputError
from rbegir.index.exchange.export import Keywords, rows_of
from rbegir.index.exchange.landing import land, staged
from rbegir.index.exchange.vectors import land_vectors
from rbegir.index.store import Index


def map_npy(path: str | os.PathLike[str]) -> np.ndarray[Any, Any]:
    """The array of a .npy file, mapped and not yet read."""
    try:
        return np.lib.format.open_memmap(path, mode="r")
    except FileNotFoundError as error:
        raise FileError(f"there is no file {path}") from error
    except (OSError, ValueError, EOFError) as error:
        if zipfile.is_zipfile(path):
            raise FileError(
                f"{path} holds several arrays, expected one", hint="save one array with numpy.save"
            ) from None
        raise FileError(
            f"{path} is not an array file of NumPy, or not a whole one: {error}",
            hint="write one with numpy.save; arrays of Python objects are never read",
        ) from error


def export_npy(source: Index | Codes, path: str | os.PathLike[str]) -> None:
    """Write codes, in the order of rows, as one .npy file: uint64 [planes, count, words]."""
    codes = source if isinstance(source, Codes) else rows_of(source).codes
    with staged(path) as stage, stage.open("wb") as file:
        np.save(file, np.ascontiguousarray(codes.planes.astype("<u8", copy=False)), allow_pickle=False)


def read_npy(path: str | os.PathLike[str]) -> Codes | np.ndarray[Any, Any]:
    """The codes of a uint64 file, or the vectors of a float one, mapped and not yet read."""
    name, array = Path(path), map_npy(path)
    if array.dtype == np.uint64 and array.ndim == 3:
        return Codes(np.ascontiguousarray(array), array.shape[2] * WORD)
    if np.issubdtype(array.dtype, np.floating) and array.ndim == 2:
        return array
    raise InputError(
        f"{name} is {array.dtype} {list(array.shape)}; "
        "expected codes, uint64 [planes, count, words], or vectors, float [count, dims]"
    )


def import_npy(
    path: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    ids: Any = None,
    binarizer: Binarizer | None = None,
) -> Index:
    """A file of codes or of vectors as a new index; vectors go through a Binarizer."""
    found = read_npy(path)
    count = len(found)
    given = pa.array(np.arange(count)) if ids is None else pa.array(ids)
    if len(given) != count:
        raise InputError(f"ids has {len(given)} values for {count} rows of {path}")
    if not isinstance(found, Codes):
        return land_vectors(out, found, given, binarizer=binarizer)
    if not 1 <= found.plane_count <= MAX_KEYWORD_PLANES:
        raise InputError(f"{path} has {found.plane_count} planes, keywords have 1 to {MAX_KEYWORD_PLANES}")
    shape = None if binarizer else (found.n, found.plane_count)
    return land(out, [Keywords(found, given, None, {})], binarizer, shape=shape)
