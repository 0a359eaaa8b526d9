"""Which n and how many planes for so many bytes: tried on a sample, because it depends on the data.

96 bytes are 768 × 1, 384 × 2, 256 × 3 or 192 × 4. More dimensions of fewer planes are a richer set of
codes, and a harder search: for vectors that fill all their dimensions alike n = 2·dims with one plane is
best by far, for those whose variance lies in few directions n = dims with two. Each shape is fitted on a
part of the sample and judged by the error of the rest.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rbegir.codes.planes import MAX_KEYWORD_PLANES, MAX_N, WORD
from rbegir.encode.binarizer.estimator import Binarizer
from rbegir.encode.binarizer.vectors import as_rows, sample
from rbegir.errors import InputError

ROWS, HELD_OUT, ROUNDS = 24_576, 4_096, 3


def shapes(code_bytes: int) -> list[tuple[int, int]]:
    """(n, planes) that take exactly so many bytes, most dimensions first."""
    found = [
        (8 * code_bytes // planes, planes)
        for planes in range(1, MAX_KEYWORD_PLANES + 1)
        if 8 * code_bytes % (planes * WORD) == 0 and 8 * code_bytes // planes <= MAX_N
    ]
    if not found:
        raise InputError(
            f"no code takes {code_bytes} bytes",
            hint="bytes must be n · planes / 8 with n a multiple of 64 up to 1024 and 1 to 4 planes",
        )
    return found


def best_shape(X: Any, code_bytes: int, seed: int = 0) -> tuple[int, int]:
    """The (n, planes) of `code_bytes` bytes whose codes keep vectors like those of X best."""
    possible = shapes(code_bytes)
    rows = sample(as_rows(X), ROWS, seed)
    if len(possible) == 1 or len(rows) < 100:
        return possible[0]
    held = max(len(rows) // 8, min(HELD_OUT, len(rows) // 4))
    rows = rows[np.random.default_rng(seed).permutation(len(rows))]
    errors = {}
    for n, planes in possible:
        trial = Binarizer(n=n, keyword_planes=planes, rounds=ROUNDS, seed=seed).fit(rows[held:])
        errors[n, planes] = trial.error(rows[:held])
    return min(errors, key=errors.__getitem__)
