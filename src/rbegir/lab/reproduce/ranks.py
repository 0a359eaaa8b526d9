"""Ranks of the right keywords among all of them, by counting, in torch on any device.

Recall at many cutoffs needs only how many keywords come before the right one; selecting the best k of
`rbegir.evaluate.retrieval` costs several times the product. For a query with the target at position p, of
score s_p,

    rank = #{j : s_j > s_p} + #{j < p : s_j = s_p}

Codes are small odd multiples of a power of two: their products are exact in float32, and in TF32 as well
(at most 8 significant bits per factor). Float keywords are normalised first and multiplied in full float32.
"""

import torch
from torch import Tensor

QUERIES = 2048  # ranked at once
GPU_SCORES = 1 << 29  # at a time: 2 GB
CPU_SCORES = 1 << 24


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
        with torch.no_grad():
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
    width = max(1, (CPU_SCORES if device.type == "cpu" else GPU_SCORES) // QUERIES)
    position = torch.arange(count, device=device)
    rank = torch.zeros(len(target), dtype=torch.int64, device=device)
    for low in range(0, len(target), QUERIES):
        asked = queries[query[low : low + QUERIES]]  # [block, n]
        place = target[low : low + QUERIES]  # [block]

        def scores(block: slice, asked: Tensor = asked) -> Tensor:
            return (asked @ keywords[block].T).mul_(inverse[block])  # [block, width]

        blocks = [slice(start, min(start + width, count)) for start in range(0, count, width)]
        # the target's score comes from the product of its own block, so that it equals itself to the bit
        right = torch.empty(len(place), device=device)
        owner = place // width  # [block] number of the block
        for number in sorted(set(owner.tolist())):
            rows = (owner == number).nonzero()[:, 0]
            right[rows] = scores(blocks[number])[rows, place[rows] - number * width]
        for block in blocks:
            s, bar = scores(block), right[:, None]
            ahead = (s > bar) | ((s == bar) & (position[block] < place[:, None]))
            rank[low : low + QUERIES] += ahead.sum(dim=1)
    return rank
