"""The exact rank of a known keyword among millions, without ever sorting them.

Recall needs no list of the best k: it needs to know how many keywords come before the right one. For a query
with the target at position p, of score s_p,

    rank = #{j : s_j > s_p} + #{j < p : s_j = s_p}

in the order of every search here (score descending, position ascending). That is one matrix product and one
comparison a block, whatever k is, where selecting the best k of a block costs several times the product.

The tie rule costs nothing outside of the target's own block: all positions of an earlier block are smaller,
so there ≥ counts, which is > against the next smaller float; in a later block plain > counts.

Codes are small odd multiples of a power of two: their products are exact in float32, and in TF32 as well
(at most 8 significant bits a factor). Float keywords are normalised first and multiplied in full float32.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

SCORES = 1 << 29  # at a time on a GPU: 2 GB
SCORES_CPU = 1 << 24
QUERIES = 2048


@torch.no_grad()
def ranks(
    queries: Tensor, keywords: Tensor, query: Tensor, target: Tensor, *, exact: bool, cosine: bool = True
) -> Tensor:
    """How many keywords come before each target: int64 [targets].

    queries [Q, n], keywords [K, n] float32 of any length; target i is keyword `target[i]`, wanted by query
    `query[i]` (int64 [targets] both). `exact`: both sides are codes. `cosine=False`: by inner product.
    """
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if exact else "highest")
    try:
        return _ranks(queries, keywords, query, target, exact, cosine)
    finally:
        torch.set_float32_matmul_precision(before)


def _ranks(
    queries: Tensor, keywords: Tensor, query: Tensor, target: Tensor, exact: bool, cosine: bool
) -> Tensor:
    device, count = queries.device, len(keywords)
    inverse = torch.ones(count, device=device)  # [K] what a score is multiplied with
    if cosine:
        inverse = 1 / torch.linalg.vector_norm(keywords, dim=1).clamp(min=1e-12)
    if cosine and not exact:
        keywords, inverse = keywords * inverse[:, None], torch.ones_like(inverse)
    width = max(1, (SCORES_CPU if device.type == "cpu" else SCORES) // QUERIES)
    rank = torch.zeros(len(target), dtype=torch.int64, device=device)
    for low in range(0, len(target), QUERIES):
        asked = queries[query[low : low + QUERIES]]  # [block, n]
        place = target[low : low + QUERIES]  # [block]

        def scores(start: int, asked: Tensor = asked) -> Tensor:
            end = min(start + width, count)
            return (asked @ keywords[start:end].T).mul_(inverse[start:end])  # [block, width]

        # the target's score comes from the product of its own block, so that it equals itself to the bit
        right = torch.empty(len(place), device=device)
        for start in sorted({position // width * width for position in place.tolist()}):
            rows = ((place >= start) & (place < start + width)).nonzero()[:, 0]
            right[rows] = scores(start)[rows, place[rows] - start]
        below = torch.nextafter(right, torch.full_like(right, -torch.inf))
        for start in range(0, count, width):
            s = scores(start)
            bar = torch.where(place >= start + width, below, right)
            better = (s > bar[:, None]).sum(dim=1)  # [block]
            rows = ((place >= start) & (place < start + width)).nonzero()[:, 0]
            if len(rows):
                earlier = torch.arange(start, start + s.shape[1], device=device) < place[rows, None]
                better[rows] += ((s[rows] == right[rows, None]) & earlier).sum(dim=1)
            rank[low : low + QUERIES] += better
    return rank


def recalls(
    rank: Tensor, query: Tensor, queries: int, cutoffs: Sequence[int]
) -> dict[int, npt.NDArray[np.float64]]:
    """Recall of each query at each cutoff: the share of its targets with a rank below it.  {k: [queries]}"""
    wanted = torch.bincount(query, minlength=queries).double()
    return {
        k: (torch.bincount(query, weights=(rank < k).double(), minlength=queries) / wanted).cpu().numpy()
        for k in cutoffs
    }
