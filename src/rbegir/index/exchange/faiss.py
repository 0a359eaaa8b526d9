"""FAISS: its flat indexes come in, codes go out as flat indexes.

| FAISS                                  | here
|
|----------------------------------------|--------------------------------------------------------------------|
| IndexBinaryFlat, d a multiple of 64    | codes of one plane, bit for bit (the bit order is the same)
| | IndexFlatIP, IndexFlatL2               | float vectors, encoded by a Binarizer
| | IndexIDMap, IndexIDMap2, their binary kin | the same with ids
| | any other kind                         | refused: what it stores is not what was added
|

With one plane a keyword and one a query, Hamming distance h and our score say the same: cos = 1 − 2h / n.
Codes of more planes go out as float vectors of length 1, whose inner products are our cosines: exact in
order up to the rounding of float32, at sixteen times the size.
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
from rbegir.encode.binarizer.estimator import Binarizer
from rbegir.errors import FileError, InputError, MissingExtraError
from rbegir.index.exchange.export import Keywords, shape_of, source_of
from rbegir.index.exchange.landing import land, staged
from rbegir.index.exchange.vectors import land_vectors
from rbegir.index.store import Index

SUPPORTED = "IndexBinaryFlat, IndexFlatIP, IndexFlatL2, alone or inside an IDMap"


def load_faiss() -> Any:
    """The package, or an error that says how to get it."""
    try:
        import faiss
    except ImportError as error:
        raise MissingExtraError("FAISS indexes need faiss", hint="pip install faiss-cpu") from error
    return faiss


def open_faiss(path: str | os.PathLike[str]) -> Any:
    """A FAISS index from a file, binary or float."""
    faiss = load_faiss()
    name = os.fspath(path)
    if not Path(name).is_file():
        raise FileError(f"there is no FAISS file {name}")
    for read in (faiss.read_index, faiss.read_index_binary):
        try:
            return read(name)
        except (RuntimeError, MemoryError):
            continue  # the other reader may know it
    raise FileError(f"{name} is not a FAISS index", hint="pass a file that faiss.write_index wrote")


def read_faiss(index: Any) -> tuple[Codes | npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    """What a flat FAISS index holds: codes or float vectors, and ids."""
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
    """A FAISS index, or the file of one, as a new rbegir index; float vectors go through a Binarizer."""
    source = open_faiss(index) if isinstance(index, (str, os.PathLike)) else index
    found, ids = read_faiss(source)
    if isinstance(found, Codes):
        if binarizer is not None:
            raise InputError("a binary FAISS index holds codes, it takes no binarizer", hint="leave it out")
        return land(out, [Keywords(found, pa.array(ids), None, {})], shape=(found.n, 1))
    return land_vectors(out, found, pa.array(ids), binarizer=binarizer)


def to_faiss(source: Index | Codes) -> Any:
    """Codes as an IndexBinaryFlat (one plane) or IndexFlatIP, in an IDMap where ids are not 0, 1, 2 …"""
    faiss = load_faiss()
    n, planes = shape_of(source)
    ids = [batch.ids for batch in source_of(source)]
    if any(not pa.types.is_int64(part.type) for part in ids):
        raise InputError("FAISS has whole numbers as ids, this index has strings", hint="export to Parquet")
    every = np.concatenate([np.asarray(part) for part in ids]) if ids else np.zeros(0, np.int64)
    counted = np.array_equal(every, np.arange(len(every)))
    made = faiss.IndexBinaryFlat(n) if planes == 1 else faiss.IndexFlatIP(n)
    if not counted:
        made = faiss.IndexBinaryIDMap2(made) if planes == 1 else faiss.IndexIDMap2(made)
    for batch in source_of(source):
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
            f"the index has {index.d} bits a vector, codes have a multiple of {WORD} from {MIN_N} to {MAX_N}",
            hint="pad the vectors with zero bits, on both sides alike",
        )
    raw = faiss.vector_to_array(index.xb).reshape(index.ntotal, index.d // 8)  # [count, bytes]
    words = np.ascontiguousarray(raw).view("<u8").astype(np.uint64, copy=False)
    return Codes(words[None].copy(), int(index.d))
