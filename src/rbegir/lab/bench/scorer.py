"""The best k of all vectors for each query by inner product: on a GPU if there is one, else in NumPy."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]
Search = Callable[[list[Floats], Floats, int, Floats | None], list[Ids]]
BLOCK = 1 << 28  # scores in memory at a time


def top(queries: Floats, vectors: Floats, k: int, offsets: Floats | None = None) -> Ids:
    """Rows of the largest q·v + offset, best first: [queries, k] for queries [Q, d], vectors [N, d]."""
    k = min(k, len(vectors))
    step = max(1, BLOCK // max(len(vectors), 1))
    parts = [queries[at : at + step] for at in range(0, len(queries), step)]
    chosen = _torch() or _numpy
    return np.concatenate(chosen(parts, vectors, k, offsets))


def _numpy(parts: list[Floats], vectors: Floats, k: int, offsets: Floats | None) -> list[Ids]:
    found = []
    for part in parts:
        scores = part @ vectors.T
        if offsets is not None:
            scores += offsets
        best = np.argpartition(scores, -k, axis=1)[:, -k:]
        order = np.argsort(-np.take_along_axis(scores, best, 1), axis=1, kind="stable")
        found.append(np.take_along_axis(best, order, 1).astype(np.int64))
    return found


def _torch() -> Search | None:
    try:
        import torch
    except ImportError:
        return None
    if not torch.cuda.is_available():
        return None

    def search(parts: list[Floats], vectors: Floats, k: int, offsets: Floats | None) -> list[Ids]:
        stored = torch.from_numpy(np.ascontiguousarray(vectors)).cuda()
        added = None if offsets is None else torch.from_numpy(offsets).cuda()
        found = []
        for part in parts:
            scores = torch.from_numpy(np.ascontiguousarray(part)).cuda() @ stored.T
            if added is not None:
                scores += added
            found.append(scores.topk(k, dim=1).indices.cpu().numpy())
        return found

    return search
