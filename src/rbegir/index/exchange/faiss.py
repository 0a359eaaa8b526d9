"""FAISS: flat indexes are imported, and codes are exported as flat indexes.

    FAISS                                       here
    IndexBinaryFlat, d a multiple of 64         codes of one plane, bit for bit (the bit order is the same)
    IndexFlatIP, IndexFlatL2                    float vectors, encoded by a Binarizer
    IndexIDMap and IndexIDMap2, also binary     one of the above, with ids
    any other index                             refused: it does not store what was added

With one plane per keyword and per query, the Hamming distance h and our score order alike: cos = 1 − 2h / n.
Codes of more planes are exported as float vectors of length 1, whose inner products are our cosines: the
order is exact up to the rounding of float32, at sixteen times the size.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rbegir.codes.planes import MAX_N, MIN_N, WORD, Codes
from rbegir.codes.score import norm_squared
from rbegir.encode.binarizer.binarizer import Binarizer
from rbegir.errors import FileError, InputError, MissingExtraError
from rbegir.index.exchange.transfer import (
    Keywords,
    code_shape,
    keyword_batches,
    make_index,
    make_vector_index,
    staged,
)
from rbegir.index.store import Index

SUPPORTED = "IndexBinaryFlat, IndexFlatIP, IndexFlatL2, alone or inside an IDMap"


def load_faiss() -> Any:
    """Import FAISS, or raise an error that says how to install it."""
    try:
        import faiss
    except ImportError as error:
        raise MissingExtraError("FAISS indexes need faiss", hint="pip install faiss-cpu") from error
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


def read_faiss(index: Any) -> tuple[Codes | npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    """The codes or float vectors, and the ids, of a flat FAISS index."""
    faiss = load_faiss()
    given = type(index).__name__
    ids: npt.NDArray[np.int64] | None = None
    if hasattr(index, "id_map"):
        ids = faiss.vector_to_array(index.id_map).astype(np.int64)
        index = index.index
    if isinstance(index, faiss.IndexBinary):
        inner = faiss.downcast_IndexBinary(index)
        kind = faiss.IndexBinaryFlat
    elif isinstance(index, faiss.Index):
        inner = faiss.downcast_index(index)
        kind = faiss.IndexFlat
    else:
        raise InputError(f"expected a FAISS index, got {given}", hint=f"supported are {SUPPORTED}")
    if not isinstance(inner, kind):
        name = type(inner).__name__
        raise InputError(
            f"a FAISS index of kind {name} cannot be imported: it does not hold what was added to it",
            hint=f"supported are {SUPPORTED}; import the vectors that it was built from",
        )
    count = int(inner.ntotal)
    found: Codes | npt.NDArray[np.float32]
    found = _codes(faiss, inner) if kind is faiss.IndexBinaryFlat else inner.reconstruct_n(0, count)
    return found, np.arange(count) if ids is None else ids


def import_faiss(index: Any, out: str | os.PathLike[str], *, binarizer: Binarizer | None = None) -> Index:
    """Make a new rbegir index of a FAISS index or its file; a Binarizer encodes float vectors."""
    source = open_faiss(index) if isinstance(index, (str, os.PathLike)) else index
    found, ids = read_faiss(source)
    if isinstance(found, Codes):
        if binarizer is not None:
            raise InputError("a binary FAISS index holds codes, it takes no binarizer", hint="leave it out")
        return make_index(out, [Keywords(found, pa.array(ids), None, {})], shape=(found.n, 1))
    return make_vector_index(out, found, pa.array(ids), binarizer=binarizer)


def to_faiss(source: Index | Codes) -> Any:
    """Codes as an IndexBinaryFlat (one plane) or IndexFlatIP, in an IDMap unless ids are 0, 1, 2 …"""
    faiss = load_faiss()
    n, planes = code_shape(source)
    ids = [batch.ids for batch in keyword_batches(source)]
    if any(not pa.types.is_int64(part.type) for part in ids):
        raise InputError("FAISS ids are integers, this index has strings", hint="export to Parquet")
    every = np.concatenate([np.asarray(part) for part in ids]) if ids else np.zeros(0, np.int64)
    counted = np.array_equal(every, np.arange(len(every)))
    made = faiss.IndexBinaryFlat(n) if planes == 1 else faiss.IndexFlatIP(n)
    if not counted:
        made = faiss.IndexBinaryIDMap2(made) if planes == 1 else faiss.IndexIDMap2(made)
    for batch in keyword_batches(source):
        if planes == 1:
            raw = batch.codes.planes[0].astype("<u8", copy=False)  # [count, words]
            rows = np.ascontiguousarray(raw).view(np.uint8)
        else:
            values = batch.codes.values()
            rows = (values / np.sqrt(norm_squared(values))[:, None]).astype(np.float32)
        made.add(rows) if counted else made.add_with_ids(rows, np.asarray(batch.ids))
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


def _codes(faiss: Any, index: Any) -> Codes:
    if index.d % WORD or not MIN_N <= index.d <= MAX_N:
        raise InputError(
            f"the index has {index.d} bits per vector, expected a multiple of {WORD} from {MIN_N} to {MAX_N}",
            hint="pad all vectors, and queries, with zero bits",
        )
    raw = faiss.vector_to_array(index.xb).reshape(index.ntotal, index.d // 8)  # [count, bytes]
    words = np.ascontiguousarray(raw).view("<u8").astype(np.uint64, copy=False)
    return Codes(words[None].copy(), int(index.d))
