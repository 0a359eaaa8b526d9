"""No id twice, over any number of segments and without holding all ids anywhere.

Every segment has its ids as ascending 64-bit keys (`index.keys`). The key space is cut into ranges of about
RANGE keys, at quantiles taken from the fences (every 512th key). One task takes one range: the keys of all
segments in it, sorted together; equal neighbours are the same id, or two strings with the same hash, which
the ids themselves decide. Inside a segment ids were compared when it was made.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rbegir.cluster.engine import import_ray
from rbegir.errors import InputError
from rbegir.index.keys import STRIDE
from rbegir.index.segment import CodeShape, Segment

RANGE = 1 << 24  # keys a task sorts: 128 MB
Keys = npt.NDArray[np.uint64]


def refuse_repeated_ids(segments: Sequence[Segment], *, size: int = RANGE) -> None:
    """An InputError if an id is in more than one segment."""
    if len(segments) < 2 or not segments[0].has_ids:
        return
    ray = import_ray()
    paths, shape = [str(segment.path) for segment in segments], segments[0].shape
    remote = ray.remote(num_cpus=1)(repeated)
    found = ray.get([remote.remote(paths, shape, low, high) for low, high in ranges(segments, size)])
    twice = sorted({one for some in found for one in some}, key=str)
    if twice:
        raise InputError(
            f"id {twice[0]!r} is in the index already ({len(twice)} such ids)",
            hint="give every id once; remove the unfinished build, then start again with other input",
        )


def ranges(segments: Sequence[Segment], size: int) -> list[tuple[int, int]]:
    """[low, high) of keys, about `size` keys each, together all keys."""
    fences = np.sort(np.concatenate([_section(segment, "id.fences") for segment in segments]))
    total = sum(segment.count for segment in segments)
    step = max(1, size // STRIDE)
    inner = [int(key) for key in np.unique(fences[step::step])] if total > size else []
    borders = [0, *(key for key in inner if key), 1 << 64]
    return list(pairwise(borders))


def repeated(paths: Sequence[str], shape: CodeShape, low: int, high: int) -> list[Any]:
    """Ids with keys in [low, high) that are in more than one of the segments."""
    segments = [Segment(Path(path), shape) for path in paths]
    keys: list[Keys] = []
    numbers: list[npt.NDArray[np.int64]] = []
    places: list[npt.NDArray[np.int64]] = []
    for number, segment in enumerate(segments):
        own = _section(segment, "id.keys")
        first = int(np.searchsorted(own, np.uint64(low), "left"))
        last = len(own) if high == 1 << 64 else int(np.searchsorted(own, np.uint64(high), "left"))
        keys.append(own[first:last])
        numbers.append(np.full(last - first, number))
        places.append(np.arange(first, last))
    joined, of, place = np.concatenate(keys), np.concatenate(numbers), np.concatenate(places)
    order = np.argsort(joined, kind="stable")
    same = np.flatnonzero(joined[order][1:] == joined[order][:-1])
    suspects = np.unique(np.concatenate([order[same], order[same + 1]])) if same.size else np.zeros(0, int)
    seen: dict[Any, int] = {}
    for index in suspects:
        segment = segments[of[index]]
        position = np.asarray(_section(segment, "id.order")[place[index : index + 1]], np.int64)
        one = segment.ids(position)[0].as_py()
        seen[one] = seen.get(one, 0) + 1
    return [one for one, count in seen.items() if count > 1]


def _section(segment: Segment, name: str) -> Any:
    kinds = {"id.keys": "<u8", "id.fences": "<u8", "id.order": "<u4"}
    section = segment.file.section(name)
    return section.view(kinds[name], section.bytes // np.dtype(kinds[name]).itemsize)
