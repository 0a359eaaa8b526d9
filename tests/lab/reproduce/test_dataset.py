"""The split by title, labels by slice, and refusals."""

from __future__ import annotations

import gzip
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from rbegir.errors import FileError
from rbegir.lab.reproduce.dataset import headline, load, load_labels, sample_rows
from rbegir.read.pairs import read_pairs
from rbegir.read.split import hash_position


def test_titles_are_in_one_part(folder: Path) -> None:
    data = load(folder)
    parts = {name: set(getattr(data, name)["keyword"].to_pylist()) for name in ("train", "select", "test")}
    for title in set().union(*parts.values()):
        place = hash_position(title)
        wanted = "test" if place < 0.02 else "select" if place < 0.025 else "train"
        assert {name for name, titles in parts.items() if title in titles} == {wanted}
    counts = data.describe()
    assert counts["train_pairs"] + counts["select_pairs"] + counts["test_pairs"] == 2 * counts["corpus"]  # type: ignore[operator]


def test_neither_the_format_nor_the_order_of_the_file_matters(folder: Path, tmp_path: Path) -> None:
    table = read_pairs(folder / "redirects.tsv", query_column="alias", keyword_column="title").read_all()
    backwards = table.take(list(range(table.num_rows - 1, -1, -1))).select(["query", "keyword"])
    pq.write_table(backwards, tmp_path / "redirects.parquet")
    (tmp_path / "titles.txt.gz").write_bytes(gzip.compress((folder / "titles.txt").read_bytes()))
    one, other = load(folder), load(tmp_path)
    for part in ("train", "select", "test"):
        assert getattr(one, part).equals(getattr(other, part))
    assert one.corpus.equals(other.corpus)
    assert other.labels == {}
    assert headline(other.labels) is None


def test_labels_by_slice_in_lower_case(folder: Path) -> None:
    labels = load_labels(folder / "entity_labels.tsv")
    assert {name: table.num_rows for name, table in labels.items()} == {
        "QALD2": 40,
        "SemSearch_ES": 40,
        "all": 80,
    }
    assert headline(labels) == "SemSearch_ES"
    assert all(query == query.lower() for query in labels["all"]["query"].to_pylist())


def test_labels_without_slices(tmp_path: Path) -> None:
    path = tmp_path / "labels.tsv"
    path.write_text("query\ttitle\tgrade\na\tb\t1\n")
    assert list(load_labels(path)) == ["all"]


def test_a_row_without_a_slice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "labels.tsv"
    path.write_text("slice\tquery\ttitle\tgrade\n\ta\tb\t1\nx\ta\tb\t1\n")
    with pytest.raises(FileError, match="has rows without a slice"):
        load_labels(path)


def test_a_folder_without_titles_is_refused(tmp_path: Path) -> None:
    (tmp_path / "redirects.tsv").write_text("alias\ttitle\na\tb\n")
    with pytest.raises(FileError, match=r"has no file titles\.\*") as caught:
        load(tmp_path)
    assert "--data is a folder with redirects" in caught.value.hint


def test_the_sample_is_there() -> None:
    data = load(None)
    assert data.name == "sample"
    assert data.train.num_rows > 100_000
    assert data.select.num_rows > 500
    assert data.labels == {}


def test_sample_rows() -> None:
    assert sample_rows(5, 9, 0).tolist() == [0, 1, 2, 3, 4]
    drawn = sample_rows(100, 9, 0)
    assert len(set(drawn.tolist())) == 9
    assert (drawn == sample_rows(100, 9, 0)).all()
    assert drawn.tolist() == sorted(drawn.tolist())
