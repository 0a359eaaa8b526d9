"""The benchmark of training refuses what it cannot time; its JSON is tested with the command."""

from __future__ import annotations

from pathlib import Path

import pytest

from rbegir.errors import InputError
from rbegir.lab.bench.train import measure
from rbegir.read.pairs import read_pairs


def test_settings_are_checked(tmp_path: Path) -> None:
    (tmp_path / "pairs.tsv").write_text("query\tkeyword\na b\tred shoes\n")
    pairs = read_pairs(tmp_path / "pairs.tsv")
    with pytest.raises(InputError, match="epochs must be a whole number of at least 1, got 0"):
        measure(pairs, epochs=0)
    for rows in (0, -3):
        with pytest.raises(InputError, match=f"rows must be a whole number of at least 1, got {rows}"):
            measure(pairs, rows=rows)
