"""One state of an index (a view), and which shard searches which of its segments.

A segment belongs to one shard. Segments of the previous state stay with their shards, so that nothing is
read, or uploaded to a GPU, twice; new ones go, the largest first, to the shard with the fewest keywords.
A keyword is known by its place in the whole index,

    place = keywords in the segments before its own (deleted ones included) + its position in the segment

and the order of places is the order of rows: merging by (score, place) is merging by (score, row).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from rbegir.index.format import Stamp
from rbegir.index.location import Location
from rbegir.index.manifest import Manifest
from rbegir.index.segment import Entry

Places = npt.NDArray[np.int64]
READ_ONLY_HINT = "change it where its file system is mounted, then call refresh"


@dataclass(frozen=True)
class Assignment:
    """The segments that one shard searches in one view; sent to the shard once."""

    view: str
    location: Location
    manifest: Manifest  # with the shard's own segments only
    numbers: tuple[int, ...]  # of those segments in the whole index
    starts: tuple[int, ...]  # places at which they begin


@dataclass(frozen=True)
class View:
    """A state of an index, spread over shards."""

    location: Location
    manifest: Manifest
    owners: tuple[int, ...]  # the shard of each segment
    shards: int

    @classmethod
    def of(cls, location: Location, manifest: Manifest, shards: int, before: View | None = None) -> View:
        known: dict[tuple[str, Stamp], int] = {}
        if before is not None and before.location == location and before.shards == shards:
            entries = zip(before.manifest.segments, before.owners, strict=True)
            known = {(entry.file, entry.stamp): owner for entry, owner in entries}
        return cls(location, manifest, assign(manifest.segments, shards, known), shards)

    @cached_property
    def id(self) -> str:
        """A name for this state and this assignment: equal names mean equal results."""
        content = repr((self.location.name, self.manifest, self.owners, self.shards))
        return f"{self.manifest.generation}-{hashlib.blake2b(content.encode(), digest_size=12).hexdigest()}"

    @cached_property
    def starts(self) -> Places:
        """[segments] the place at which each begins."""
        counts = [entry.count for entry in self.manifest.segments]
        return np.cumsum([0, *counts], dtype=np.int64)[:-1]

    @cached_property
    def used(self) -> tuple[int, ...]:
        """The shards that have segments."""
        return tuple(sorted(set(self.owners)))

    @cached_property
    def keywords_of(self) -> tuple[int, ...]:
        counts = [0] * self.shards
        for entry, owner in zip(self.manifest.segments, self.owners, strict=True):
            counts[owner] += entry.live
        return tuple(counts)

    @cached_property
    def keywords(self) -> int:
        return sum(self.keywords_of)

    def share(self, shard: int) -> Assignment:
        numbers = tuple(number for number, owner in enumerate(self.owners) if owner == shard)
        own = replace(self.manifest, segments=tuple(self.manifest.segments[number] for number in numbers))
        return Assignment(self.id, self.location, own, numbers, tuple(int(self.starts[n]) for n in numbers))


def assign(segments: tuple[Entry, ...], shards: int, known: dict[tuple[str, Stamp], int]) -> tuple[int, ...]:
    """The shard of each segment."""
    owners = [known.get((entry.file, entry.stamp), -1) for entry in segments]
    load = [0] * shards
    for entry, owner in zip(segments, owners, strict=True):
        if owner >= 0:
            load[owner] += entry.count
    new = [number for number, owner in enumerate(owners) if owner < 0]
    for number in sorted(new, key=lambda number: (-segments[number].count, number)):
        owners[number] = min(range(shards), key=lambda shard: (load[shard], shard))
        load[owners[number]] += segments[number].count
    return tuple(owners)
