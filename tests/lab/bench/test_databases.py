"""The databases beside the service: each finds what it should, and what was just written."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from rbegir.lab.bench.databases import DATABASES, Stored, loop, recall
from rbegir.lab.bench.serve import _peer, prepare
from tests.service import make_model

KEYWORDS, K = 3000, 20
MODULES = {"sqlite_vec": "pysqlite3", "sqlite_vec_bits": "pysqlite3", "lancedb_ivf": "lancedb"}
LEAST = {"lancedb_ivf": 0.4, "sqlite_vec_bits": 0.9}  # recall of the approximate ones

# In a process of its own, as in the benchmark: their runtimes do not belong in one process.
TRY = """
import json, sys
from pathlib import Path
from rbegir.lab.bench.databases import DATABASES, Stored, recall
stored = Stored.load(Path(sys.argv[2]), int(sys.argv[3]))
search, write = DATABASES[sys.argv[1]](stored)
found = recall(search, stored)
write(3)
print(json.dumps([found, search(3)]))
"""


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("databases")
    prepare(folder, KEYWORDS, make_model(folder / "model"), peers=True)
    return folder


@pytest.fixture
def folder(prepared: Path, tmp_path: Path) -> Path:
    """A copy, to which a database may write."""
    return shutil.copytree(prepared, tmp_path / "databases")


@pytest.mark.parametrize("name", DATABASES)
def test_databases_find_the_best_and_the_new(name: str, folder: Path) -> None:
    if not find_spec(MODULES.get(name, name)):  # an extra; without it, its absence is what can be tested
        assert "No module named" in _peer(name, folder, 0.1, K, 0.05)["failed"]
        return
    done = subprocess.run(
        [sys.executable, "-c", TRY, name, str(folder), str(K)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    found, hits = json.loads(done.stdout.splitlines()[-1])
    assert found >= LEAST.get(name, 1.0)
    assert len(set(hits)) == K
    assert [key for key in hits if key >= KEYWORDS] == [10**15 + 3 if name == "rbegir" else KEYWORDS + 3]


def test_recall_counts_ties_and_misses(tmp_path: Path) -> None:
    vectors = np.array([[2, 0], [1, 1], [3, 3], [0, 1], [-1, 0]], dtype=np.float32)
    stored = Stored(tmp_path, vectors, np.array([[1, 0]], dtype=np.float32), list("abcde"), k=2)
    assert recall(lambda number: [0, 1], stored) == 1.0
    assert recall(lambda number: [0, 2], stored) == 1.0  # as near as 1: only the length differs
    assert recall(lambda number: [2, 3], stored) == 0.5
    assert recall(lambda number: [4, 3], stored) == 0.0


def test_parts_are_all_rows(tmp_path: Path) -> None:
    vectors = np.arange(14, dtype=np.float32).reshape(7, 2)
    stored = Stored(tmp_path, vectors, vectors[:3] + 100, list("abcdefg"), k=1)
    for rows in (1, 6, 7, 8):
        firsts, parts, texts = zip(*stored.parts(rows), strict=True)
        assert firsts == tuple(range(0, 7, rows))
        assert np.array_equal(np.concatenate(parts), vectors)
        assert "".join("".join(part) for part in texts) == "abcdefg"
    key, row, texts_of_new = stored.new(4)
    assert (key, row.tolist(), texts_of_new) == (11, [[102, 103]], ["new"])


def test_writers_take_turns() -> None:
    writing = threading.Lock()
    written, asked = [], []

    def write(number: int) -> None:
        assert writing.acquire(blocking=False), "two writes at once"
        written.append((number, sum(range(300_000))))  # long enough for the other thread to get its turn
        writing.release()

    def search(number: int) -> list[int]:
        asked.append(number)
        return []

    figures = loop(search, write, seconds=1.0, writes=0.5, queries=3, threads=2)
    assert set(asked) == {0, 1, 2}
    assert len(set(written)) == len(written) > 0
    assert figures["searches_per_s"] == pytest.approx(len(asked) / figures["seconds"])
    assert figures["threads"] == 2


def test_figures_of_a_database(folder: Path) -> None:
    figures = _peer("rbegir", folder, 1.0, K, 0.2)
    assert figures["recall"] == 1.0
    assert figures["keywords"] == KEYWORDS
    assert figures["searches_per_s"] > 0
