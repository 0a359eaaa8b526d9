"""Several processes, one file: each reads a part of it, and all of them train on the same batches.

The order of the pairs is a function of the seed and the file, whatever the number of processes:

    chunk     rows [c·R, (c+1)·R) of the file, R as many as the shuffle buffer holds
    batch     a run of the permutation of the chunk's usable pairs by (seed, epoch, chunk)

What the processes divide is the rows of the file. A process reads, checks, tokenises and keeps the rows it
owns, and in every batch computes the pairs it owns. Which pairs of a batch those are is left to chance, so
the processes have about the same number each (of 16,384 pairs and 8 processes: 2,048 ± 42). To know what
the others have in a batch a process keeps, of each pair of the chunk, whose it is, its weight, and 64 bits of
hash for its query and for its keyword:

    22 bytes a pair of the chunk (buffer_pairs = 4 million: 88 MB) + the texts of 1/world of it

That is enough to build the groups (which keywords are equal, which are known positives) as one process
would. Two different texts of a batch of 16,384 have the same hash once in 10¹¹ batches.

Rejected: equal slices of every batch. The permutation differs from epoch to epoch, so that every process
would need the texts of every pair sooner or later.

    who owns a row        Parquet: each chunk is cut into `world` runs of rows, and row groups without an own
                          row are not read at all
                          text formats: 256 rows here, 256 there. How many rows there are is not known before
                          they are read, and all bytes have to be decompressed and split into rows anyway
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rbegir.training.groups import Groups, Ints

RUN = 256  # rows of a text format
Places = npt.NDArray[np.int64]

# what all processes know of a pair
KEY = np.dtype([("row", "<i8"), ("query", "<u8"), ("keyword", "<u8"), ("weight", "<f4")])
Keys = npt.NDArray[np.void]


@dataclass(frozen=True)
class Share:
    """Which of how many processes this is."""

    rank: int = 0
    world: int = 1


@dataclass(frozen=True)
class Rows:
    """Who reads which rows of a file: `total` rows if that is known beforehand, `chunk` of them a chunk."""

    share: Share
    chunk: int
    total: int | None

    def owners(self, start: int, stop: int) -> Places:
        """The rank of each row from start to stop."""
        numbers = np.arange(start, stop)
        if self.total is None:
            return numbers // RUN % self.share.world
        begin = numbers // self.chunk * self.chunk
        length = np.minimum(self.chunk, self.total - begin)
        return (numbers - begin) * self.share.world // length

    def wanted(self, start: int, stop: int) -> npt.NDArray[np.bool_]:
        """Which of the rows are this process's."""
        return np.asarray(self.owners(start, stop) == self.share.rank)


class Own(NamedTuple):
    """A process's part of a batch."""

    rows: Places  # [own] which pairs of the batch
    keyword_rows: Ints  # [owned keywords] which of the batch's, in order of first occurrence
    owned: tuple[int, ...]  # distinct keywords of each process
    groups: Groups  # of the own pairs; columns go by rank, then by first occurrence, as `gather` puts them


@dataclass(frozen=True)
class Part:
    """The pairs of a chunk that are this process's, and whose the others are."""

    share: Share
    owner: npt.NDArray[np.int16]  # [pairs of the chunk]
    mine: Places  # [own] their numbers in the chunk, ascending
    query_keys: npt.NDArray[np.uint64]  # [pairs of the chunk] equal where the texts are
    keyword_keys: npt.NDArray[np.uint64]

    def local(self, pairs: Places) -> Places:
        """Numbers among the own pairs of some own pairs of the chunk."""
        return np.searchsorted(self.mine, pairs)

    def of_batch(self, pairs: Places, groups: Groups) -> Own:
        """This process's part of a batch. A keyword belongs to the owner of the first pair that has it."""
        owner = self.owner[pairs]
        of_keyword = owner[groups.first]  # [distinct]
        rows = np.flatnonzero(owner == self.share.rank)
        columns = np.flatnonzero(of_keyword == self.share.rank)
        first = groups.first[columns]
        moved = np.empty(len(of_keyword), np.int32)  # old column → new column
        moved[np.argsort(of_keyword, kind="stable")] = np.arange(len(of_keyword), dtype=np.int32)
        known = owner[groups.known_rows] == self.share.rank
        return Own(
            rows=rows,
            keyword_rows=columns.astype(np.int32),
            owned=tuple(np.bincount(of_keyword, minlength=self.share.world).tolist()),
            groups=Groups(
                first=first,
                target=moved[groups.target[rows]],
                known_rows=np.searchsorted(rows, groups.known_rows[known]).astype(np.int32),
                known_columns=moved[groups.known_columns[known]],
                negatives=moved[groups.negatives[rows]],
            ),
        )


def join(share: Share, found: list[Keys]) -> tuple[Part, npt.NDArray[np.float32]]:
    """What each process found of a chunk, by rank, put into the order of the file; and all weights."""
    keys = np.concatenate(found)
    owner = np.repeat(np.arange(share.world, dtype=np.int16), [len(some) for some in found])
    order = np.argsort(keys["row"], kind="stable")
    owner = owner[order]
    part = Part(
        share, owner, np.flatnonzero(owner == share.rank), keys["query"][order], keys["keyword"][order]
    )
    return part, keys["weight"][order]
