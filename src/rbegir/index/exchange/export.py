"""The keywords of an index in bulk, with everything that belongs to them, in the order of rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from rbegir.base import masks
from rbegir.codes.planes import WORD, Codes
from rbegir.errors import InputError
from rbegir.index.segment import Positions
from rbegir.index.snapshot import Part
from rbegir.index.store import Index

ROWS = 1 << 16  # read at a time


@dataclass(frozen=True, eq=False)
class Keywords:
    """Some keywords: codes, ids and, where there are, texts and attributes; all of one length."""

    codes: Codes
    ids: pa.Array  # int64 or string
    texts: pa.Array | None
    attributes: dict[str, pa.Array]

    def __len__(self) -> int:
        return len(self.codes)


def batches_of(index: Index) -> Iterator[Keywords]:
    """All live keywords of an index, a few ten thousand at a time."""
    snapshot = index.snapshot
    types = snapshot.types()
    if not any("text" in part.segment.types for part in snapshot.parts):
        del types["text"]
    for part in snapshot.parts:
        live = (
            np.arange(part.entry.count)
            if part.live is None
            else masks.to_positions(part.live, part.entry.count)
        )
        for low in range(0, len(live), ROWS):
            yield _read(part, live[low : low + ROWS], types)


def rows_of(index: Index, *, limit: int | None = None, with_text: bool = False) -> Keywords:
    """The first `limit` live keywords of an index, or all; `with_text`: only those that have a text."""
    found: list[Keywords] = []
    count = 0
    for batch in batches_of(index):
        if with_text:
            there = np.zeros(len(batch), bool) if batch.texts is None else np.asarray(batch.texts.is_valid())
            batch = _take(batch, np.flatnonzero(there))
        if limit is not None:
            batch = _take(batch, np.arange(min(len(batch), limit - count)))
        found.append(batch)
        count += len(batch)
        if limit is not None and count >= limit:
            break
    if not found:
        manifest = index.snapshot.manifest
        planes = np.zeros((manifest.keyword_planes, 0, manifest.n // WORD), np.uint64)
        return Keywords(Codes(planes, manifest.n), pa.array([], pa.int64()), None, {})
    return Keywords(
        Codes.concat([batch.codes for batch in found]),
        pa.concat_arrays([batch.ids for batch in found]),
        None if found[0].texts is None else pa.concat_arrays([batch.texts for batch in found]),
        {name: pa.concat_arrays([b.attributes[name] for b in found]) for name in found[0].attributes},
    )


def by_text(batch: Keywords) -> list[Keywords]:
    """Those with a text and those without: an index takes them apart."""
    if batch.texts is None or not batch.texts.null_count:
        return [batch]
    there = np.asarray(batch.texts.is_valid())
    bare = replace(_take(batch, np.flatnonzero(~there)), texts=None)
    return [part for part in (_take(batch, np.flatnonzero(there)), bare) if len(part)]


def source_of(source: Index | Codes) -> Iterator[Keywords]:
    """The keywords of an index, or codes alone, whose ids are 0, 1, 2 …"""
    if isinstance(source, Codes):
        for low in range(0, len(source), ROWS):
            codes = source[low : low + ROWS]
            yield Keywords(codes, pa.array(np.arange(low, low + len(codes))), None, {})
    elif isinstance(source, Index):
        yield from batches_of(source)
    else:
        raise InputError(f"expected an rbegir.Index or rbegir.Codes, got {type(source).__name__}")


def shape_of(source: Index | Codes) -> tuple[int, int]:
    """(n, planes) of what is stored."""
    if isinstance(source, Codes):
        return source.n, source.plane_count
    manifest = source.snapshot.manifest
    return manifest.n, manifest.keyword_planes


def _read(part: Part, positions: Positions, types: dict[str, pa.DataType]) -> Keywords:
    segment = part.segment

    def column(name: str) -> pa.Array:
        if name not in segment.types:
            return pa.nulls(len(positions), types[name])
        return segment.column(name, positions)

    return Keywords(
        segment.codes(positions),
        segment.ids(positions),
        column("text") if "text" in types else None,
        {name: column(name) for name in types if name not in ("id", "text")},
    )


def _take(batch: Keywords, positions: Positions) -> Keywords:
    chosen = pa.array(positions, pa.int64())
    return Keywords(
        batch.codes[positions],
        batch.ids.take(chosen),
        None if batch.texts is None else batch.texts.take(chosen),
        {name: column.take(chosen) for name, column in batch.attributes.items()},
    )
