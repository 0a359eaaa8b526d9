"""A file that is cut short while it is in use is an error of its readers, not the end of the process."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow.compute as pc
import pytest

from rbegir._native._core import broken, guard, unguard
from rbegir.encode.clsm import checkpoint
from rbegir.encode.clsm.presets import ModelConfig, random_tensors
from rbegir.errors import CorruptError
from rbegir.index import manifest, writer
from rbegir.index.exchange.transfer import keyword_batches
from rbegir.index.format import map_file
from rbegir.index.store import Index
from tests.index.fakes import HashEncoder

ENCODER = HashEncoder()
CUT = "it was truncated while it was being read, or the disk cannot read it"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with Index.create(tmp_path / "x.rbe", ENCODER) as index:
        index.add([f"t{i}" for i in range(3000)], attributes={"price": list(range(3000))})
    return tmp_path / "x.rbe"


def _cut(path: Path) -> None:
    os.truncate(next(path.glob("*.rbs")), 4096)


ASKING: dict[str, Callable[[Index], Any]] = {
    "search": lambda index: index.search("t5", k=2000),
    "filter": lambda index: index.search("t5", k=10, where="price > 2000"),
    "paper": lambda index: index.search("t5", k=10, mode="paper"),
    "progressive": lambda index: index.search("t5", k=10, planes=1),
    "get": lambda index: index.get([2500]),
    "codes": lambda index: index.codes([2500]),
    "count": lambda index: index.count(where=pc.field("price") > 2000),
    "export": lambda index: list(keyword_batches(index)),
}


@pytest.mark.parametrize("ask", ASKING.values(), ids=ASKING)
@pytest.mark.parametrize("lost", [1, None])
def test_whoever_reads_is_told(path: Path, ask: Callable[[Index], Any], lost: int | None) -> None:
    """Also of less than a page, whose loss raises no signal."""
    with Index.open(path, model=ENCODER, read_only=True) as index:
        ask(index)  # every block that it needs has been checked, and is believed from now on
        segment = next(path.glob("*.rbs"))
        os.truncate(segment, segment.stat().st_size - lost if lost else 4096)
        for _ in range(2):
            with pytest.raises(CorruptError, match=CUT):
                ask(index)


def test_all_threads_are_told(path: Path) -> None:
    with Index.open(path, model=ENCODER, read_only=True) as index:
        index.search("t5", k=10)
        _cut(path)
        told: list[str] = []

        def read() -> None:
            with pytest.raises(CorruptError, match=CUT) as caught:
                index.search(["t5", "t6"], k=500)
            told.append(caught.value.message)

        threads = [threading.Thread(target=read) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(told) == 8


def test_zeros_are_never_written_on(path: Path, tmp_path: Path) -> None:
    """A merge that copies from a file that was cut must not become the state."""
    whole = shutil.copytree(path, tmp_path / "copy.rbe")
    with (
        mock.patch.multiple(writer, TIER_ROWS=10_000, FAN=2),
        Index.open(path, model=ENCODER) as index,
    ):
        wanted = index.search("t5", k=3000).ids.tolist()
        index.get(list(range(3000)))
        before = manifest.read_manifest(path)
        _cut(path)
        with pytest.raises(CorruptError):
            index.add(["new"], attributes={"price": [1]})  # takes its neighbour in
        assert manifest.read_manifest(path) == before
    for file in whole.glob("*.rbs"):
        shutil.copy(file, path / file.name)
    with Index.open(path, model=ENCODER) as index:
        assert index.search("t5", k=3000).ids.tolist() == wanted
        index.verify()


SCRIPT = """
import faulthandler, mmap, os, sys
from pathlib import Path
from rbegir.errors import CorruptError
from rbegir.base.mapping import arm
from rbegir.index.format import map_file
from rbegir.index.store import Index
from tests.index.fakes import HashEncoder
folder = Path(sys.argv[1])
(folder / "file").write_bytes(bytes(10_000))
plain = mmap.mmap(os.open(folder / "file", os.O_RDONLY), 10_000, access=mmap.ACCESS_READ)
"""


def _script(lines: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", SCRIPT + lines, str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )


def test_other_mappings_are_none_of_our_business(tmp_path: Path) -> None:
    lines = """
guarded = map_file(folder / "file")
os.truncate(folder / "file", 0)
assert guarded[9000] == 0 and guarded.broken
print("alive", flush=True)
plain[0]
"""
    done = _script(lines, tmp_path)
    assert (done.stdout, done.returncode) == ("alive\n", -signal.SIGBUS), done.stderr


def test_a_crash_reporter_may_be_switched_on_at_any_time(path: Path) -> None:
    """It takes the signal for itself; faults of others still reach it, and still end the process."""
    lines = """
with Index.open(folder / "x.rbe", model=HashEncoder(), read_only=True) as index:
    for turn in range(3):
        faulthandler.enable()
        index.search("t5", k=2000)
    faulthandler.enable()
    os.truncate(next((folder / "x.rbe").glob("*.rbs")), 4096)
    try:
        index.search("t5", k=2000)
    except CorruptError:
        print("told", flush=True)
faulthandler.disable()
faulthandler.enable()
arm()
os.truncate(folder / "file", 0)
plain[0]
"""
    done = _script(lines, path.parent)
    assert (done.stdout, done.returncode) == ("told\n", -signal.SIGBUS), done.stderr
    assert "Fatal Python error: Bus error" in done.stderr


def test_a_signal_that_was_sent_is_not_a_fault_of_a_page(tmp_path: Path) -> None:
    lines = """
guarded = map_file(folder / "file")
os.kill(os.getpid(), 7)
print("not reached")
"""
    done = _script(lines, tmp_path)
    assert (done.stdout, done.returncode) == ("", -signal.SIGBUS), done.stderr


def test_a_thread_that_blocks_the_signal_is_told_too(path: Path) -> None:
    lines = """
import signal
from concurrent.futures import ThreadPoolExecutor
def ask():
    try:
        index.search("t5", k=2000)
    except CorruptError:
        return "told"
with Index.open(folder / "x.rbe", model=HashEncoder(), read_only=True) as index:
    index.search("t5", k=2000)
    os.truncate(next((folder / "x.rbe").glob("*.rbs")), 4096)
    block = (signal.SIG_BLOCK, {signal.SIGBUS})
    with ThreadPoolExecutor(1, initializer=signal.pthread_sigmask, initargs=block) as pool:
        print(pool.submit(ask).result(), flush=True)
"""
    done = _script(lines, path.parent)
    assert (done.stdout, done.returncode) == ("told\n", 0), done.stderr


@pytest.mark.parametrize("lost", [1, 10_000, None])
def test_a_model_whose_table_is_cut_short_gives_an_error(tmp_path: Path, lost: int | None) -> None:
    """Also for words that it has cached: from then on nothing of it is believed."""
    config = ModelConfig(conv=24, hash_buckets=50)
    checkpoint.write(tmp_path / "model", config, random_tensors(config))
    size = (tmp_path / "model" / checkpoint.WEIGHTS).stat().st_size
    lines = (
        f"left = {0 if lost is None else size - lost}"
        + """
from rbegir.encode.clsm.model import Model
model = Model.load(folder / "model")
before = model.encode_keywords(["red shoes"])
os.truncate(folder / "model" / "model.safetensors", left)
for text in ("zebra crossing", "red shoes"):
    try:
        model.encode_keywords([text])
    except CorruptError as error:
        print(error.message.partition("model.safetensors ")[2], flush=True)
"""
    )
    done = _script(lines, tmp_path)
    assert (done.stdout, done.returncode) == (2 * f"{CUT.replace('it was', 'was', 1)}\n", 0), done.stderr


def test_what_is_kept_in_memory_outlives_its_file(tmp_path: Path) -> None:
    """The tensors of a Binarizer and of a reranker are small: they are read once."""
    lines = """
import numpy as np
from rbegir import Binarizer
from tests.reranking import make_model, some_texts
x = np.random.default_rng(0).standard_normal((300, 16), np.float32)
Binarizer(n=64, rounds=1, moves=10).fit(x).save(folder / "binarizer")
made = Binarizer.load(folder / "binarizer")
with Index.create(folder / "vectors.rbe", made) as index:
    index.add(x)
with Index.create(folder / "texts.rbe", make_model(folder / "model", some_texts(50))) as index:
    index.add(some_texts(50))
vectors, texts = (Index.open(folder / name, read_only=True) for name in ("vectors.rbe", "texts.rbe"))
def use():
    yield made.encode_keywords(x).planes
    for hits in (vectors.search(x, 20, rerank=True), texts.search(some_texts(9), 20, rerank=True)):
        yield from (hits.ids, hits.scores)
before = list(use())
for path in ("binarizer", "vectors.rbe/model", "texts.rbe/model/rerank"):
    os.truncate(folder / path / "model.safetensors", 0)
print([np.array_equal(*pair) for pair in zip(before, use(), strict=True)])
"""
    done = _script(lines, tmp_path)
    assert (done.stdout, done.returncode) == (f"{[True] * 5}\n", 0), done.stderr


def test_slots_come_back(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(5000))
    first = map_file(tmp_path / "file")
    slot = first._slot
    assert slot >= 0
    assert not first.broken
    del first
    assert map_file(tmp_path / "file")._slot == slot
    assert not broken(-1)
    unguard(-1)
    with pytest.raises(TypeError):
        guard(5)  # type: ignore[arg-type]
