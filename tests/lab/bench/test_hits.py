"""The benchmark of hits: what it refuses, and a small run of the whole."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rbegir.errors import FileError, InputError
from rbegir.lab.bench import hits


def test_refusals(tmp_path: Path) -> None:
    for task in ("hats", "packages", "sample:3"):
        with pytest.raises(InputError, match=f"unknown task '{task}'"):
            hits.run([task])
    with pytest.raises(InputError, match="the task titles needs its folder"):
        hits.run(["titles"])
    with pytest.raises(FileError, match=r"has no file train\.\*") as raised:
        hits.run(["packages:10"], packages=tmp_path)
    assert raised.value.hint == "--packages is a folder that tools/packages.py wrote"


def test_a_small_run(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    words = ["".join(rng.choice(list("abcdefghij"), 5)) for _ in range(60)]
    names = sorted({" ".join(rng.choice(words, 2, replace=False)) for _ in range(150)})
    (tmp_path / "texts.txt").write_text("\n".join(names))
    for part, some in (("train", names[:100]), ("test", names[100:])):
        pairs = "\n".join(f"{name[1:]}\t{name}" for name in some)
        (tmp_path / f"{part}.tsv").write_text(f"query\tkeyword\n{pairs}\n")
    said: list[str] = []
    found = hits.run(["packages:80"], packages=tmp_path, seeds=1, device="cpu", say=said.append)
    assert [row["method"] for row in found["rows"]] == ["BM25", "tri-letter cosine", "codes", "reranked"]
    for row in found["rows"]:
        assert (row["pairs"], row["queries"], row["texts"]) == (80, len(names) - 100, len(names))
        assert 0 <= row["recall@1"]["mean"] <= row["recall@10"]["mean"] <= row["recall@100"]["mean"] <= 1
    assert found["rows"][1]["recall@10"]["mean"] > 0.9
    assert found["rows"][-1]["model_mb"] > 0
    assert len(said) == 5
