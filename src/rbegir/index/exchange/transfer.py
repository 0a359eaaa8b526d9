"""Keywords in bulk: read from an index, and written to a new index or file at one stroke.

Everything is written to a hidden sibling and renamed at the end, so a failure on the way (bad input in the
last row, a full disk) leaves nothing behind. Float vectors are encoded by a Binarizer, given or fitted.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rbegir.base import disk
from rbegir.codes.planes import WORD, Codes
from rbegir.encode.binarizer.binarizer import Binarizer
from rbegir.encode.encoder import Encoder
from rbegir.errors import FileError, InputError, MismatchError
from rbegir.index.columns import Int64s
from rbegir.index.segment import read_column
from rbegir.index.store import Index

ROWS = 1 << 16  # keywords in memory at a time


@dataclass(frozen=True, eq=False)
class Keywords:
    """Codes and ids of some keywords and, if they have any, texts and attributes; all of one length."""

    codes: Codes
    ids: pa.Array  # int64 or string
    texts: pa.Array | None
    attributes: dict[str, pa.Array]

    def __len__(self) -> int:
        return len(self.codes)

    def take(self, positions: Int64s) -> Keywords:
        chosen = pa.array(positions, pa.int64())
        return Keywords(
            self.codes[positions],
            self.ids.take(chosen),
            None if self.texts is None else self.texts.take(chosen),
            {name: column.take(chosen) for name, column in self.attributes.items()},
        )


# ---- out of an index ----


def keyword_batches(source: Index | Codes) -> Iterator[Keywords]:
    """The live keywords of an index ordered by row, or codes alone with the ids 0, 1, 2 …; in batches."""
    if isinstance(source, Codes):
        for low in range(0, len(source), ROWS):
            codes = source[low : low + ROWS]
            yield Keywords(codes, pa.array(np.arange(low, low + len(codes))), None, {})
    elif isinstance(source, Index):
        yield from _index_batches(source)
    else:
        raise InputError(f"expected an rbegir.Index or rbegir.Codes, got {type(source).__name__}")


def _index_batches(index: Index) -> Iterator[Keywords]:
    snapshot = index.snapshot
    types = snapshot.types()
    has_text = any("text" in one.segment.types for one in snapshot.segments)
    for segment, positions in snapshot.spans(ROWS):
        columns = {name: read_column(segment, name, types[name], positions) for name in types if name != "id"}
        texts = columns.pop("text")
        ids = segment.ids(positions)
        yield Keywords(segment.codes(positions), ids, texts if has_text else None, columns)


def read_keywords(index: Index, *, limit: int | None = None, with_text: bool = False) -> Keywords:
    """All live keywords of an index, or the first `limit`; `with_text` leaves out those without a text."""
    found: list[Keywords] = []
    count = 0
    for batch in _index_batches(index):
        if with_text:
            there = np.zeros(len(batch), bool) if batch.texts is None else np.asarray(batch.texts.is_valid())
            batch = batch.take(np.flatnonzero(there))
        if limit is not None:
            batch = batch.take(np.arange(min(len(batch), limit - count)))
        found.append(batch)
        count += len(batch)
        if limit is not None and count >= limit:
            break
    if not found:
        n, planes = code_shape(index)
        return Keywords(
            Codes(np.zeros((planes, 0, n // WORD), np.uint64), n), pa.array([], pa.int64()), None, {}
        )
    return Keywords(
        Codes.concat([batch.codes for batch in found]),
        pa.concat_arrays([batch.ids for batch in found]),
        None if found[0].texts is None else pa.concat_arrays([batch.texts for batch in found]),
        {name: pa.concat_arrays([b.attributes[name] for b in found]) for name in found[0].attributes},
    )


def code_shape(source: Index | Codes) -> tuple[int, int]:
    """(n, planes) of the stored codes."""
    if isinstance(source, Codes):
        return source.n, source.plane_count
    return source.snapshot.manifest.shape


# ---- into a new index or file ----


@contextlib.contextmanager
def staged(path: str | os.PathLike[str], *, replace: bool = False) -> Iterator[Path]:
    """Yield a hidden sibling path for a file or directory, renamed to `path` when the block succeeds."""
    target = Path(path).absolute()
    if target.exists() and not replace:
        raise FileError(f"{target} exists already", hint="choose another path")
    if not target.parent.is_dir():
        raise FileError(f"there is no directory {target.parent} to write to")
    stage = target.with_name(f".{target.name}.new-{os.getpid()}")
    _remove(stage)
    try:
        yield stage
        disk.replace(stage, target)
    except OSError as error:
        raise FileError(f"cannot write {target}: {error.strerror or error}") from error
    finally:
        _remove(stage)


def make_index(
    path: str | os.PathLike[str],
    batches: Iterable[Keywords],
    encoder: Encoder | None = None,
    *,
    shape: tuple[int, int] | None = None,
) -> Index:
    """Make a new index of these keywords; without an encoder `shape` gives (n, planes)."""
    with staged(path) as stage:
        n, planes = shape or (None, None)
        count = 0
        with Index.create(stage, encoder, n=n, keyword_planes=planes) as index:
            for batch in batches:
                for part in _by_text(batch):
                    index.add_codes(part.codes, part.ids, part.attributes or None, texts=part.texts)
                count += len(batch)
        if not count:
            raise InputError("there is nothing to import: no rows", hint="check the source")
    return Index.open(Path(path), model=encoder)


def make_vector_index(
    path: str | os.PathLike[str],
    vectors: npt.NDArray[np.floating[Any]],  # [count, dims]
    ids: pa.Array,
    texts: pa.Array | None = None,
    attributes: dict[str, pa.Array] | None = None,
    binarizer: Binarizer | None = None,
) -> Index:
    """Make a new index of float vectors, with the Binarizer that encodes them inside."""
    if not len(vectors):
        raise InputError("there is nothing to import: no vectors", hint="check the source")
    fitted = binarizer or Binarizer(int(vectors.shape[1])).fit(vectors)
    if fitted.n_features_in_ != vectors.shape[1]:
        raise MismatchError(
            f"vectors have {vectors.shape[1]} dimensions, the binarizer takes {fitted.n_features_in_}"
        )

    def batches() -> Iterator[Keywords]:
        for low in range(0, len(vectors), ROWS):
            codes = fitted.encode_keywords(vectors[low : low + ROWS])
            part = slice(low, low + len(codes))
            others = {name: column[part] for name, column in (attributes or {}).items()}
            yield Keywords(codes, ids[part], None if texts is None else texts[part], others)

    return make_index(path, batches(), fitted)


def _by_text(batch: Keywords) -> list[Keywords]:
    """Keywords with a text and those without apart, since an add takes texts for all or for none."""
    if batch.texts is None or not batch.texts.null_count:
        return [batch]
    there = np.asarray(batch.texts.is_valid())
    bare = replace(batch.take(np.flatnonzero(~there)), texts=None)
    return [part for part in (batch.take(np.flatnonzero(there)), bare) if len(part)]


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
