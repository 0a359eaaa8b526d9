"""Chunks of the shuffle buffer's size, and what is held out of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rbegir.base.devices import ahead
from rbegir.read.pairs import read_pairs
from rbegir.read.split import VALID_SHARE, hash_position
from rbegir.training import data as module
from rbegir.training.data import TrainingData


def of(path: Path, buffer_pairs: int = 10_000, *, hold_out: bool = True) -> TrainingData:
    return TrainingData(read_pairs(path), hash_buckets=64, buffer_pairs=buffer_pairs, hold_out=hold_out)


def read(path: Path) -> list[tuple[str, str]]:
    lines = path.read_text().splitlines()[1:]
    return [(q, k) for q, k in (line.split("\t") for line in lines)]


@pytest.mark.parametrize("buffer_pairs", [10_000, 3000, 700, 999])
def test_held_out_keywords_are_in_no_chunk(pairs_file: Path, buffer_pairs: int) -> None:
    data = of(pairs_file, buffer_pairs)
    pairs = read(pairs_file)
    held = {k for _, k in pairs if hash_position(k) < VALID_SHARE}
    assert data.held_out is not None
    if data._only is not None:
        assert set(data.held_out["keyword"].to_pylist()) == held
    held = set(data.held_out["keyword"].to_pylist())  # a small first buffer may set another threshold
    assert max(map(hash_position, held)) < min(hash_position(k) for _, k in pairs if k not in held)
    assert data.held_out.num_rows == sum(k in held for _, k in pairs)
    assert data.pairs == len(pairs) - data.held_out.num_rows
    assert (data._only is not None) == (buffer_pairs >= 3000)
    for _ in range(2):  # an epoch is repeatable
        assert [len(chunk) for chunk in data.chunks()] == data.sizes
    distinct = {k for _, k in pairs} - held
    if data._only is not None:
        (chunk,) = data.chunks()
        assert len(chunk.keyword_texts.text_offsets) - 1 == len(distinct)
        assert len(np.unique(chunk.keyword)) == len(distinct)


def test_a_small_file_holds_out_a_few(tmp_path: Path) -> None:
    path = tmp_path / "small.tsv"
    path.write_text("query\tkeyword\n" + "".join(f"q{i}\tkeyword {i % 40}\n" for i in range(80)))
    data = of(path)
    assert data.held_out is not None
    assert len(data.held_out["keyword"].unique()) == 8  # a fifth
    assert data.pairs == 64
    assert data.varied


def test_a_file_that_was_split_before_is_split_again(pairs_file: Path, tmp_path: Path) -> None:
    """Only keywords above the share, or only below it: 2 % of them are held out all the same."""
    for name, keep in (("train", lambda place: place >= 0.3), ("valid", lambda place: place < 0.3)):
        kept = [pair for pair in read(pairs_file) if keep(hash_position(pair[1]))]
        path = tmp_path / f"{name}.tsv"
        path.write_text("query\tkeyword\n" + "".join(f"{q}\t{k}\n" for q, k in kept))
        data = of(path)
        assert data.held_out is not None
        distinct = len({k for _, k in kept})
        assert len(data.held_out["keyword"].unique()) == max(20, -(-distinct // 50))
        assert data.pairs + data.held_out.num_rows == len(kept)


def test_without_holding_out(pairs_file: Path) -> None:
    data = of(pairs_file, hold_out=False)
    assert data.held_out is None
    assert data.pairs == 3000


@pytest.mark.parametrize("buffer_pairs", [10_000, 700])
def test_validation_is_drawn_from_the_whole_file(
    buffer_pairs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_VALIDATION", 40)
    path = tmp_path / "sorted.tsv"
    path.write_text("query\tkeyword\n" + "".join(f"q{i:05d}\tkeyword {i:05d}\n" for i in range(10_000)))
    data = of(path, buffer_pairs)
    assert data.held_out is not None
    assert data.held_out.num_rows == 40 < data.held_pairs
    rows = [int(query[1:]) for query in data.held_out["query"].to_pylist()]
    assert rows == sorted(set(rows))
    quarters = np.histogram(rows, bins=4, range=(0, 10_000))[0]
    assert quarters.min() >= 4


def test_buffers_are_bounded_in_bytes(pairs_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BUFFER_BYTES", 1)
    path = pairs_file.parent / "copy.tsv"
    path.write_text(pairs_file.read_text())
    assert of(path, hold_out=False).pairs == 3000


def test_ahead_keeps_order_and_errors() -> None:
    def items():  # type: ignore[no-untyped-def]
        yield 1
        yield 2
        raise ValueError("broken")

    found = []
    with pytest.raises(ValueError, match="broken"):
        found.extend(item for item in ahead(items()))
    assert list(ahead(range(5))) == [0, 1, 2, 3, 4]
    assert list(ahead([])) == []
