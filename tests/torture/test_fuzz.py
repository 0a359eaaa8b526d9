"""Hostile bytes at every door: what was found once, mutations of sound inputs, and bombs."""

from __future__ import annotations

import contextlib
import gzip
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rbegir.errors import InputError, RbegirError
from rbegir.read.pairs import read_texts
from torture import fuzz
from torture.doors import Doors
from torture.resources import in_child

FOUND = sorted(path for path in fuzz.CORPUS.rglob("*") if path.is_file())


@pytest.mark.parametrize("case", FOUND, ids=lambda case: f"{case.parent.name}-{case.name}")
def test_what_was_found_once_is_refused_in_words(case: Path, tmp_path: Path) -> None:
    with fuzz.open_door(case.parent.name, tmp_path) as (door, _), pytest.raises(RbegirError):
        door(case.read_bytes())


@pytest.mark.parametrize("name", fuzz.NAMES)
def test_mutations_are_accepted_or_refused_in_words(name: str, tmp_path: Path) -> None:
    assert fuzz.fuzz_plainly(name, tmp_path, seed=2, count=60) == 60


@pytest.fixture(scope="module")
def doors(tmp_path_factory: pytest.TempPathFactory) -> Doors:
    return Doors(tmp_path_factory.mktemp("doors"))


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(text=st.text(), name=st.sampled_from(["csv", "tsv", "jsonl", "txt", "where"]))
def test_any_text(doors: Doors, text: str, name: str) -> None:
    with contextlib.suppress(RbegirError):
        doors.doors[name](text.encode("utf-8", errors="surrogatepass"))


def test_a_door_that_breaks_would_be_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Doors, "where", lambda self, data: data.decode("ascii"))
    with pytest.raises(AssertionError, match="where: UnicodeDecodeError"):
        fuzz.fuzz_plainly("where", tmp_path, seed=2, count=500)


def test_what_no_loader_may_do_is_refused(tmp_path: Path) -> None:
    """The watch of the fuzzer: writing elsewhere, starting a process, unpickling."""
    (tmp_path / "inside").mkdir()
    script = """
import os, pickle, subprocess, sys
from pathlib import Path
from torture.fuzz import ForbiddenError, watch
watch(Path(sys.argv[1]) / "inside")
(Path(sys.argv[1]) / "inside" / "file").write_text("allowed")
tries = [
    lambda: (Path(sys.argv[1]) / "outside").write_text("x"),
    lambda: (Path(sys.argv[1]) / "inside" / ".." / "outside").write_text("x"),
    lambda: subprocess.run(["true"]),
    lambda: os.system("true"),
    lambda: pickle.loads(b"cos\\nsystem\\n."),
]
for number, use in enumerate(tries):
    try:
        use()
    except ForbiddenError:
        print(number)
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["0", "1", "2", "3", "4"]


def _bomb(path: Path, unit: bytes, count: int) -> Path:
    with gzip.open(path, "wb", compresslevel=1) as file:
        for _ in range(count):
            file.write(unit)
    return path


@pytest.mark.parametrize("name", ["bomb.csv.gz", "bomb.tsv.gz", "bomb.jsonl.gz", "bomb.txt.gz"])
def test_a_decompression_bomb_is_refused_in_bounded_memory(name: str, tmp_path: Path) -> None:
    """A line of 75 MB in a file of a few hundred kilobytes."""
    path = _bomb(tmp_path / name, b"text " * 1_000_000, 15)

    def work() -> dict[str, int]:
        import resource

        used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        most = used + (400 << 20)
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
        with pytest.raises(InputError, match="has a line longer than 64 MB"):
            list(read_texts(path))
        return {"refused": 1}

    assert in_child(work) == {"refused": 1}


def test_many_small_lines_stream_in_bounded_memory(tmp_path: Path) -> None:
    path = _bomb(tmp_path / "long.txt.gz", b"a text\n" * 100_000, 60)

    def work() -> dict[str, int]:
        import resource

        used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        resource.setrlimit(resource.RLIMIT_AS, (used + (300 << 20), used + (300 << 20)))
        return {"rows": sum(batch.num_rows for batch in read_texts(path))}

    assert in_child(work) == {"rows": 6_000_000}
