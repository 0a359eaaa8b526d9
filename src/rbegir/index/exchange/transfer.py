"""Keywords in bulk: read from an index, or written atomically to a new index or file.

Everything is written to a hidden sibling and renamed at the end, so a failure on the way (bad input in the
last row, a full disk) leaves nothing behind. Float vectors are encoded by a Binarizer, given or fitted.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rbegir.base import disk
from rbegir.base.progress import Progress, reported
from rbegir.codes.planes import WORD, Codes
from rbegir.encode.binarizer.binarizer import Binarizer
from rbegir.encode.encoder import Encoder
from rbegir.errors import InputError, MismatchError
from rbegir.index.columns import Int64s
from rbegir.index.join import new_file
from rbegir.index.segment import read_column
from rbegir.index.store import Index

ROWS = 1 << 16  # keywords in memory at a time


@dataclass(frozen=True, eq=False)
class Keywords:
    """Codes of keywords, and a table with their ids, texts and attributes."""

    codes: Codes
    table: pa.Table  # id (int64 or string), text where there are texts, attributes

    def __len__(self) -> int:
        return len(self.codes)

    @property
    def ids(self) -> pa.Array:
        return self.table["id"].combine_chunks()

    @property
    def texts(self) -> pa.Array | None:
        return self.table["text"].combine_chunks() if "text" in self.table.column_names else None

    @property
    def attributes(self) -> dict[str, pa.Array]:
        names = [name for name in self.table.column_names if name not in ("id", "text")]
        return {name: self.table[name].combine_chunks() for name in names}

    def take(self, positions: Int64s) -> Keywords:
        return Keywords(self.codes[positions], self.table.take(pa.array(positions, pa.int64())))


def keyword_batches(source: Index | Codes) -> Iterator[Keywords]:
    """The live keywords of an index ordered by row, or codes alone with the ids 0, 1, 2 …; in batches."""
    if isinstance(source, Codes):
        for low in range(0, len(source), ROWS):
            codes = source[low : low + ROWS]
            yield Keywords(codes, pa.table({"id": np.arange(low, low + len(codes))}))
    elif isinstance(source, Index):
        yield from _index_batches(source)
    else:
        raise InputError(f"expected an rbegir.Index or rbegir.Codes, got {type(source).__name__}")


def _index_batches(index: Index) -> Iterator[Keywords]:
    snapshot = index.snapshot
    types = snapshot.types()
    has_text = any("text" in one.segment.types for one in snapshot.segments)
    names = [name for name in types if name != "text" or has_text]
    for segment, positions in snapshot.spans(ROWS):
        columns = {name: read_column(segment, name, types[name], positions) for name in names}
        yield Keywords(segment.codes(positions), pa.table(columns))


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
        nothing = Codes(np.zeros((planes, 0, n // WORD), np.uint64), n)
        return Keywords(nothing, pa.table({"id": pa.array([], pa.int64())}))
    tables = pa.concat_tables([batch.table for batch in found])
    return Keywords(Codes.concat([batch.codes for batch in found]), tables)


def code_shape(source: Index | Codes) -> tuple[int, int]:
    """(n, planes) of the stored codes."""
    if isinstance(source, Codes):
        return source.n, source.plane_count
    return source.snapshot.manifest.shape


@contextlib.contextmanager
def staged(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a hidden sibling path for a file or directory, renamed to `path` when the block succeeds."""
    target = new_file(Path(path))
    with disk.explained("write", target), disk.staged(target) as stage:
        yield stage


def make_index(
    path: str | os.PathLike[str], batches: Iterable[Keywords], encoder: Encoder | None = None
) -> Index:
    """Make a new index of these keywords; without an encoder it has the shape of their codes."""
    with staged(path) as stage:
        filled = (batch for batch in batches if len(batch))
        first = next(filled, None)
        if first is None:
            raise InputError("there is nothing to import: no rows", hint="check the source")
        n, planes = (None, None) if encoder else code_shape(first.codes)
        with Index.create(stage, encoder, n=n, keyword_planes=planes) as index:
            for batch in chain([first], filled):
                for part in _by_text(batch):
                    index.add_codes(part.codes, part.ids, part.attributes or None, texts=part.texts)
    return Index.open(Path(path), model=encoder)


def make_vector_index(
    path: str | os.PathLike[str],
    vectors: npt.NDArray[np.floating[Any]],  # [count, dims]
    table: pa.Table,
    binarizer: Binarizer | None = None,
    progress: Progress = None,
) -> Index:
    """Make a new index of float vectors; it stores the Binarizer that encodes them.

    `table` has their ids, texts and attributes, as in `Keywords`. `progress` is called with (vectors
    encoded, all), False for none; by default a bar is shown in a terminal.
    """
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
            yield Keywords(codes, table.slice(low, len(codes)))
            report(low + len(codes), len(vectors))

    with reported(progress, "encoding") as report:
        return make_index(path, batches(), fitted)


def _by_text(batch: Keywords) -> list[Keywords]:
    """Keywords with a text and keywords without, split because an add takes texts for all or for none."""
    if batch.texts is None or not batch.texts.null_count:
        return [batch]
    there = np.asarray(batch.texts.is_valid())
    bare = batch.take(np.flatnonzero(~there))
    bare = Keywords(bare.codes, bare.table.drop_columns("text"))
    return [part for part in (batch.take(np.flatnonzero(there)), bare) if len(part)]
