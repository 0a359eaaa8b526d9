"""A toy of the whole: three models of a few hundred pairs, on made-up words, in seconds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rbegir.lab.reproduce.rows import Scale

TOY = Scale(
    "toy",
    conv=8,
    hash_buckets=32,
    epochs=2,
    batch_size=128,
    seeds=2,
    quantiser_train=300,
    slow_quantisers=False,
)


def write_folder(folder: Path, *, titles: int = 2500, seed: int = 0) -> Path:
    """A dataset as `--data` wants it: titles of two made-up words, aliases that lost or changed a letter."""
    rng = np.random.default_rng(seed)
    letters = np.array(list("abcdefghijklmnop"))
    words = ["".join(rng.choice(letters, 5)) for _ in range(300)]
    names = sorted({" ".join(words[i] for i in rng.choice(300, 2, replace=False)) for _ in range(titles)})
    lines = ["alias\ttitle"]
    for name in names:
        for _ in range(2):
            place = int(rng.integers(0, 5))
            lines.append(f"{name[:place]}{rng.choice(letters)}{name[place + 1 :]}\t{name}")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "redirects.tsv").write_text("\n".join(lines) + "\n")
    (folder / "titles.txt").write_text("\n".join(names) + "\n")
    judged = ["query_id\tslice\tquery\ttitle\tgrade"]
    for number in range(20):
        name = names[number * 7]
        judged.append(f"q{number}\tSemSearch_ES\t{name.upper()}\t{name}\t2")
        judged.append(f"q{number}\tSemSearch_ES\t{name.upper()}\t{names[number * 7 + 1]}\t{number % 2}")
        judged.append(f"q{number}\tQALD2\t{name}\tnot in the corpus {number}\t0")
        judged.append(f"q{number}\tQALD2\t{name}\t{name}\t1")
    (folder / "entity_labels.tsv").write_text("\n".join(judged) + "\n")
    return folder


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("toy"))
