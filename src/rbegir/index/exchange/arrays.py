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
from rbegir.encode.binarizer.binarizer import Binarizer
from rbegir.errors import FileError, InputError
from rbegir.index.exchange.transfer import Keywords, make_index, make_vector_index, read_keywords, staged
from rbegir.index.store import Index


def map_npy(path: str | os.PathLike[str]) -> np.ndarray[Any, Any]:
    """The array of a .npy file, mapped into memory."""
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
            f"{path} is not a complete NumPy array file: {error}",
            hint="write one with numpy.save; arrays of Python objects are never read",
        ) from error


def export_npy(source: Index | Codes, path: str | os.PathLike[str]) -> None:
    """Write codes, ordered by row, as one .npy file: uint64 [planes, count, words]."""
    codes = source if isinstance(source, Codes) else read_keywords(source).codes
    with staged(path) as stage, stage.open("wb") as file:
        np.save(file, np.ascontiguousarray(codes.planes.astype("<u8", copy=False)), allow_pickle=False)


def read_npy(path: str | os.PathLike[str]) -> Codes | np.ndarray[Any, Any]:
    """The codes of a uint64 file, or the mapped vectors of a float file."""
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
    """Make a new index of a file of codes, or of vectors, which a Binarizer encodes."""
    found = read_npy(path)
    count = len(found)
    given = pa.array(np.arange(count)) if ids is None else pa.array(ids)
    if len(given) != count:
        raise InputError(f"ids has {len(given)} values for {count} rows of {path}")
    table = pa.table({"id": given})
    if not isinstance(found, Codes):
        return make_vector_index(out, found, table, binarizer)
    if not 1 <= found.plane_count <= MAX_KEYWORD_PLANES:
        raise InputError(f"{path} has {found.plane_count} planes, keywords have 1 to {MAX_KEYWORD_PLANES}")
    shape = None if binarizer else (found.n, found.plane_count)
    return make_index(out, [Keywords(found, table)], binarizer, shape=shape)
