"""Which positions of which segments are deleted, in immutable files beside the segments.

A change writes one file with one section for each segment that it touched, named like the segment and holding
all positions of it that are deleted so far: as a list (uint32, ascending) while they are few, as bits when a
list would be longer. The manifest says for each segment which file to look in and how many are deleted.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from rbegir.base import masks
from rbegir.index.format import File, FileWriter, Kind, Stamp


def write_deletes(path: Path, dead: Mapping[str, tuple[masks.Mask, int]]) -> Stamp:
    """Write the deleted positions (mask, length of the segment) of segments by name; durable on return."""
    with FileWriter(path, Kind.DELETES) as writer:
        for name, (mask, count) in dead.items():
            positions = masks.to_positions(mask, count)
            as_list = 4 * positions.size < 8 * mask.size
            writer.section(name, positions.astype("<u4") if as_list else mask.astype("<u8", copy=False))
        return writer.finish({"segments": sorted(dead)})


def read_deletes(file: File, name: str, count: int, deleted: int) -> masks.Mask:
    """The deleted positions of one segment of `count` keywords; there must be `deleted` of them."""
    section = file.section(name)
    if section.bytes == 4 * deleted and section.bytes < 8 * -(-count // 64):
        positions = section.view("<u4", deleted).astype(np.int64)
        if positions.size and int(positions.max()) >= count:
            raise section.corrupt("points outside its segment")
        mask = masks.from_positions(positions, count)
    else:
        mask = section.view("<u8", -(-count // 64)).astype(np.uint64)
        if masks.to_positions(mask, 64 * mask.size)[-1:].max(initial=-1) >= count:
            raise section.corrupt("points outside its segment")
    if masks.size(mask) != deleted:
        raise section.corrupt(f"holds {masks.size(mask)} positions, the manifest says {deleted}")
    return mask
