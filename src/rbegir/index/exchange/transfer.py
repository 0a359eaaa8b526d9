"""Keywords in bulk: read from an index, or written atomically to a new index or file.

Everything is written to a hidden sibling and renamed at the end, so a failure on the way (bad input in the
last row, a full disk) leaves nothing behind. Float vectors are encoded by a Binarizer, given or fitted.
"""

import contextlib
import os
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rbegir.base import disk
from rbegir.base.progress import Progress, reported
from rbegir.codes.planes import Codes
from rbegir.encode.binarizer.binarizer import Binarizer
from rbegir.encode.encoder import Encoder
from rbegir.errors import InputError, MismatchError
from rbegir.index.join import new_file
from rbegir.index.segment import read_column
from rbegir.index.snapshot import Snapshot
from rbegir.index.store import Index

ROWS = 1 << 16  # keywords in memory at a time

# codes of keywords, and a table with their ids (int64 or string), texts where there are texts, and attributes
Keywords: TypeAlias = tuple[Codes, pa.Table]


def keyword_batches(source: Index | Codes) -> Iterator[Keywords]:
    """The live keywords of an index ordered by row, or codes alone with the ids 0, 1, 2 …; in batches."""
    if isinstance(source, Codes):
        for low in range(0, len(source), ROWS):
            codes = source[low : low + ROWS]
            yield codes, pa.table({"id": np.arange(low, low + len(codes))})
        return
    snapshot = _state(source)
    types = snapshot.types()
    if not any("text" in one.segment.types for one in snapshot.segments):
        del types["text"]
    for segment, positions in snapshot.spans(ROWS):
        codes = segment.codes(positions)
        columns = {name: read_column(segment, name, dtype, positions) for name, dtype in types.items()}
        segment.file.check_mapped()
        yield codes, pa.table(columns)


def read_codes(source: Index | Codes) -> tuple[Codes, npt.NDArray[Any]]:
    """The codes and ids of all keywords, in the same order."""
    if isinstance(source, Codes):
        return source, np.arange(len(source))
    snapshot = _state(source)
    positions = snapshot.select(None)
    return snapshot.codes(positions), snapshot.ids(positions)


def _state(source: Index) -> Snapshot:
    if not isinstance(source, Index):
        raise InputError(f"expected an rbegir.Index or rbegir.Codes, got {type(source).__name__}")
    return source.snapshot


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
        filled = ((codes, table) for codes, table in batches if len(codes))
        first = next(filled, None)
        if first is None:
            raise InputError("there is nothing to import: no rows", hint="check the source")
        n, planes = (None, None) if encoder else (first[0].n, first[0].plane_count)
        with Index.create(stage, encoder, n=n, keyword_planes=planes) as index:
            for codes, table in chain([first], filled):
                columns = dict(zip(table.column_names, table.columns, strict=True))
                ids, texts = columns.pop("id"), columns.pop("text", None)
                index.add_codes(codes, ids, columns, texts=texts)
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
            yield codes, table.slice(low, len(codes))
            report(low + len(codes), len(vectors))

    with reported(progress, "encoding") as report:
        return make_index(path, batches(), fitted)
