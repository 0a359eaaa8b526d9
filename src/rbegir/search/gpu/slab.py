"""A slab: keywords in the memory of one device, with the random sample that thresholds come from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch

from rbegir.search.gpu import words

SHARE = 256  # a sample is 1 / SHARE of the keywords,
LEAST_SAMPLE = 1 << 16  # but at least this many keywords


@dataclass(frozen=True, eq=False)
class Slab:
    """Keywords on a device, and a random sample of them in random order."""

    words: torch.Tensor  # [streams, stride] int32
    count: int
    sample: torch.Tensor  # [streams, sample stride] int32
    places: torch.Tensor  # [drawn] int32: where the sample was drawn
    drawn: int


class SlabSearch(NamedTuple):
    """A slab in a search, and which of its keywords are candidates."""

    slab: Slab
    base: int  # position of its first keyword
    mask: torch.Tensor | None  # [ceil(count / 32)] int32
    candidates: int

    @property
    def density(self) -> float:
        return self.candidates / self.slab.count


def sample_size(count: int) -> int:
    """The number of keywords in the sample of a slab."""
    return min(count, max(LEAST_SAMPLE, count // SHARE))


def with_sample(lanes: torch.Tensor, count: int) -> Slab:
    """Words [streams, stride] of `count` keywords as a slab, with a random sample in random order."""
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
    return Slab(lanes, count, sample, places, drawn)


def sample_of(piece: SlabSearch) -> SlabSearch:
    """The sample of a slab as a slab of its own; only the scores of what passes are used."""
    slab, mask = piece.slab, None
    if piece.mask is not None:
        bits = piece.mask[slab.places >> 5] >> (slab.places & 31) & 1
        full = torch.zeros(-(-slab.drawn // 32) * 32, dtype=torch.int32, device=bits.device)
        full[: slab.drawn] = bits
        mask = (full.view(-1, 32) << torch.arange(32, dtype=torch.int32, device=bits.device)).sum(
            1, dtype=torch.int32
        )
    return SlabSearch(
        Slab(slab.sample, slab.drawn, slab.sample, slab.places, slab.drawn),
        0,
        mask,
        round(piece.density * slab.drawn),
    )
