"""Vectors that nothing was tuned on: descriptors of patches of two photographs (`vector_sets.py patches`).

    python benchmarks/patch_vectors.py OUT

The photographs are those that scikit-learn ships. A descriptor is made like SIFT's, of 16 × 16 pixels around
every second pixel of every second line: in 4 × 4 cells the strengths of the gradient in 8 directions, 128
numbers of unit length, cut off at 0.2 and brought to unit length again. Patches without contrast are left
out. OUT gets the descriptors in a random order (float16).
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from sklearn.datasets import load_sample_images

CELLS, WIDTH, DIRECTIONS, STRIDE = 4, 4, 8, 2
CUT, CONTRAST = 0.2, 4.0
SEED = 0


def descriptors(picture: np.ndarray) -> np.ndarray:
    """[patches, 128] of a picture [height, width, 3]."""
    grey = picture.mean(axis=2)
    down, right = np.gradient(grey)
    turn = np.arctan2(down, right) / (2 * np.pi) * DIRECTIONS % DIRECTIONS  # [height, width] in 0 .. 8
    below = np.floor(turn).astype(int) % DIRECTIONS
    part = turn - np.floor(turn)  # of the strength that goes to the next direction
    strength = np.hypot(down, right)
    maps = np.zeros((DIRECTIONS, *grey.shape))
    rows, columns = np.indices(grey.shape)
    maps[below, rows, columns] = strength * (1 - part)
    maps[(below + 1) % DIRECTIONS, rows, columns] += strength * part
    sums = np.pad(maps.cumsum(axis=1).cumsum(axis=2), ((0, 0), (1, 0), (1, 0)))
    cells = (
        sums[:, WIDTH:, WIDTH:]
        - sums[:, :-WIDTH, WIDTH:]
        - sums[:, WIDTH:, :-WIDTH]
        + sums[:, :-WIDTH, :-WIDTH]
    )
    side = CELLS * WIDTH
    height, width = (size - side + 1 for size in grey.shape)
    places = [(y * WIDTH, x * WIDTH) for y in range(CELLS) for x in range(CELLS)]
    parts = [cells[:, y : y + height : STRIDE, x : x + width : STRIDE] for y, x in places]  # [8, patches]
    found = np.stack(parts).reshape(CELLS**2 * DIRECTIONS, -1).T
    found = found[np.linalg.norm(found, axis=1) > CONTRAST * side]
    found = np.minimum(found / np.linalg.norm(found, axis=1, keepdims=True), CUT)
    return found / np.linalg.norm(found, axis=1, keepdims=True)  # type: ignore[no-any-return]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    every = np.concatenate([descriptors(picture.astype(float)) for picture in load_sample_images().images])
    order = np.random.default_rng(SEED).permutation(len(every))
    np.save(args.out, every[order].astype(np.float16))
    print(f"{len(every):,} descriptors")


if __name__ == "__main__":
    main()
