"""Keywords on a device: a shard, the random sample that thresholds come from, a shard's part in a search."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch

from rbegir.search.gpu import words

SHARE = 256  # a sample is this part of the keywords,
LEAST_SAMPLE = 1 << 16  # but at least this many


@dataclass(frozen=True, eq=False)
class Shard:
    """Keywords on a device, and a random sample of them in random order."""

    words: torch.Tensor  # [streams, stride] int32
    count: int
    sample: torch.Tensor  # [streams, sample stride] int32
    places: torch.Tensor  # [drawn] int32: where the sample was drawn
    drawn: int


class Piece(NamedTuple):
    """A shard in a search: where it stands, and which of its keywords are candidates."""

    shard: Shard
    base: int  # position of its first keyword
    mask: torch.Tensor | None  # [ceil(count / 32)] int32
    candidates: int

    @property
    def density(self) -> float:
        return self.candidates / self.shard.count


def sample_size(count: int) -> int:
    return min(count, max(LEAST_SAMPLE, count // SHARE))


def with_sample(lanes: torch.Tensor, count: int) -> Shard:
    """Words [streams, stride] of `count` keywords as a shard, with a random sample in random order."""
    drawn = sample_size(count)
    generator = torch.Generator(device=lanes.device).manual_seed(count)
    if drawn == count:
        places = torch.randperm(count, generator=generator, device=lanes.device, dtype=torch.int32)
    else:
        places = torch.randint(
            0, count, (drawn,), generator=generator, device=lanes.device, dtype=torch.int32
        )
    sample = torch.zeros(lanes.shape[0], words.stride_of(drawn), dtype=torch.int32, device=lanes.device)
    where = places.long()
    for stream in range(lanes.shape[0]):  # one at a time: indexing all at once would copy the indices
        sample[stream, :drawn] = lanes[stream][where]
    return Shard(lanes, count, sample, places, drawn)


def sample_of(piece: Piece) -> Piece:
    """The sample of a piece as a piece of its own; only the scores of what passes are used."""
    shard, mask = piece.shard, None
    if piece.mask is not None:
        bits = piece.mask[shard.places >> 5] >> (shard.places & 31) & 1
        full = torch.zeros(-(-shard.drawn // 32) * 32, dtype=torch.int32, device=bits.device)
        full[: shard.drawn] = bits
        mask = (full.view(-1, 32) << torch.arange(32, dtype=torch.int32, device=bits.device)).sum(
            1, dtype=torch.int32
        )
    return Piece(
        Shard(shard.sample, shard.drawn, shard.sample, shard.places, shard.drawn),
        0,
        mask,
        round(piece.density * shard.drawn),
    )
