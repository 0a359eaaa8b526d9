"""The start that needs no training: centre, then a random rotation that spreads directions over all bits.

    y = Aᵀ (x − μ)            A [dims, n], A Aᵀ = I for n ≥ dims: a tight frame, lengths and angles kept
    q' = Aᵀ q                 so that q'·y = q·(x − μ), which orders keywords as q·x does

For n < dims, A is the basis of the n directions of largest variance, rotated: what it leaves out is what
matters least. A rotation makes all coordinates alike, near to Gaussian, which is what rounding with one
step a row assumes; without it a few coordinates would hold most of the variance and the bits of the others
would be spent on nothing.
"""

from __future__ import annotations

import numpy as np

from rbegir.encode.binarizer.vectors import Floats


def rotation(size: int, seed: int) -> Floats:
    """A random orthogonal matrix [size, size], uniform over all of them."""
    gaussian = np.random.default_rng(seed).standard_normal((size, size))
    q, r = np.linalg.qr(gaussian)
    return np.asarray(q * np.sign(np.diagonal(r)), np.float32)


def start(covariance: Floats, n: int, seed: int) -> Floats:
    """A [dims, n] as above."""
    dims = len(covariance)
    if n >= dims:
        return rotation(n, seed)[:dims]
    _, directions = np.linalg.eigh(covariance.astype(np.float64))  # ascending
    return np.asarray(directions[:, ::-1][:, :n] @ rotation(n, seed), np.float32)
