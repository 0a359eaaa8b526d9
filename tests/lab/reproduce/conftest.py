"""A toy of the whole: three models of a few hundred pairs, on made-up words, in seconds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rbegir.lab.reproduce import equal_bytes
from rbegir.lab.reproduce.job import Request, make
from rbegir.lab.reproduce.rows import Scale

NAMES = ("rbe_star", "m_1", "m_3", "rbe_star, no weights", "bm25")
Json = dict[str, object]

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


@pytest.fixture(scope="session")
def request_(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Request:
    out = tmp_path_factory.mktemp("out")
    return Request(rows=NAMES, data=folder, out=out, device="cpu", size=TOY)


@pytest.fixture(scope="session")
def result(request_: Request) -> Json:
    lines: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        quick = tuple(q for q in equal_bytes.QUANTISERS if "PQ" not in q.name)  # k-means takes its time
        patch.setattr(equal_bytes, "QUANTISERS", quick)
        made = make(request_, lines.append)
    assert lines[0] == f"9 runs to make, under {request_.out}"
    assert lines[1].startswith("1/9 rbe_star, seed 0: AUC 0.")
    assert len(lines) == 10
    return made
