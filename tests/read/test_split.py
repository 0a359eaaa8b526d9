"""A keyword falls on one side, always the same, with all of its pairs."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from rbegir.errors import FileError, InputError
from rbegir.read.pairs import read_pairs
from rbegir.read.split import hash_position, positions, split_by_keyword

ROOT = Path(__file__).parents[2]


def write(path: Path, titles: int = 500) -> Path:
    rows = [f"alias {a} of {t}\ttitle {t}\t{a + 1}" for a in range(3) for t in range(titles)]
    path.write_text("query\tkeyword\tweight\n" + "\n".join(rows))
    return path


def test_position_is_fixed() -> None:
    assert hash_position("paris") == positions(["paris"])[0]
    number = int.from_bytes(hashlib.blake2b(b"paris", digest_size=8).digest(), "little")
    assert hash_position("paris") == pytest.approx(number / 2**64, abs=1e-15)
    spread = positions(f"title {i}" for i in range(100_000))
    assert 0 <= spread.min() < 0.001
    assert 0.999 < spread.max() < 1
    assert abs(spread.mean() - 0.5) < 0.005


@pytest.mark.parametrize("test", [0.0, 0.2])
def test_every_pair_goes_where_its_keyword_goes(tmp_path: Path, test: float) -> None:
    counts = split_by_keyword(read_pairs(write(tmp_path / "p.tsv")), tmp_path / "out", valid=0.1, test=test)
    names = ["train", "valid", "test"] if test else ["train", "valid"]
    assert list(counts) == names
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == sorted(f"{n}.parquet" for n in names)
    seen = []
    for name in names:
        table = pq.read_table(tmp_path / "out" / f"{name}.parquet")
        assert table.num_rows == counts[name] > 0
        low, high = {"valid": (0, 0.1), "test": (0.1, 0.1 + test), "train": (0.1 + test, 1)}[name]
        assert all(low <= hash_position(title) < high for title in table["keyword"].to_pylist())
        assert table["weight"].to_pylist() == [float(q.split()[1]) + 1 for q in table["query"].to_pylist()]
        seen += table["query"].to_pylist()
    assert sorted(seen) == sorted(f"alias {a} of {t}" for a in range(3) for t in range(500))


@pytest.mark.parametrize(
    ("valid", "test"), [(0, 0), (1, 0), (-0.1, 0), (0.5, 0.5), (0.5, -0.1), (float("nan"), 0)]
)
def test_shares_that_make_no_sense(tmp_path: Path, valid: float, test: float) -> None:
    with pytest.raises(InputError, match="valid and test must be shares that leave some for training"):
        split_by_keyword(read_pairs(write(tmp_path / "p.tsv")), tmp_path / "out", valid=valid, test=test)


def test_a_bad_row_leaves_nothing_behind(tmp_path: Path) -> None:
    path = write(tmp_path / "p.tsv")
    path.write_text(path.read_text() + "\nlone\n")
    with pytest.raises(InputError, match="line 1,502: wrong number of fields"):
        split_by_keyword(read_pairs(path, strict=True), tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    path = write(tmp_path / "p.tsv")
    with pytest.raises(FileError, match="cannot write the split under"):
        split_by_keyword(read_pairs(path), path / "under a file")
