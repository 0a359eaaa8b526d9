"""Progress is shown where somebody sees it, and nowhere else."""

from __future__ import annotations

import contextlib
import os
import pty
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import rich.console

import rbegir
from rbegir.base import progress
from rbegir.base.progress import reported, seen, wanted
from rbegir.encode.binarizer import binarizer as binarizers
from rbegir.index import mine, store
from tests.index.fakes import HashEncoder

SCRIPT = """
import sys
from rbegir.base.progress import reported
with reported({"None": None, "True": True, "False": False}[sys.argv[1]], "counting sheep") as report:
    for done in range(1, 4):
        report(done, 3)
        print("data", done)
"""


def shown(asked: bool | None) -> str:
    """What the script prints to a stderr that is a terminal."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-c", SCRIPT, str(asked)]
    environment = {**os.environ, "TERM": "xterm"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=theirs, env=environment) as process:
        os.close(theirs)
        parts = []
        with contextlib.suppress(OSError):  # the end of a terminal
            while part := os.read(ours, 1 << 16):
                parts.append(part)
        assert process.stdout is not None
        assert process.stdout.read() == b"data 1\ndata 2\ndata 3\n"
    os.close(ours)
    assert process.returncode == 0
    return b"".join(parts).decode()


@pytest.mark.parametrize("asked", [None, True])
def test_a_terminal_shows_a_bar(asked: bool | None) -> None:
    assert "counting sheep" in shown(asked)


def test_a_bar_can_be_switched_off() -> None:
    assert shown(False) == ""


@pytest.mark.parametrize("asked", [None, True, False])
def test_a_pipe_shows_none(asked: bool | None, capfd: pytest.CaptureFixture[str]) -> None:
    with reported(asked, "counting sheep") as report:
        report(1, 2)
    assert capfd.readouterr() == ("", "")


def test_a_function_gets_the_reports() -> None:
    reports: list[tuple[int, int]] = []
    with reported(lambda done, total: reports.append((done, total)), "counting sheep") as report:
        report(1, 2)
    assert reports == [(1, 2)]


def test_long_calls_report_what_is_done(tmp_path: Path) -> None:
    vectors = np.random.default_rng(0).standard_normal((300, 64)).astype(np.float32)
    reports: list[tuple[float, float]] = []

    def note(done: float, total: float) -> None:
        reports.append((done, total))

    def last(result: object = None) -> tuple[float, float]:
        done = [one for one, _ in reports]
        assert done == sorted(done)
        found = reports[-1]
        reports.clear()
        return found

    binarizer = rbegir.Binarizer(64).fit(vectors, progress=note)
    assert last() == (1, 1)
    with rbegir.Index.create(tmp_path / "x.rbe", binarizer) as index:
        index.add(vectors[:100])
        index.add(vectors[100:])
        assert last(index.neighbors(2, progress=note)) == (300, 300)
        assert last(index.join(index, 2, where="id < 5", progress=note)) == (300, 300)
        assert last(index.duplicates(0.99, progress=note)) == (300, 300)
        assert last(index.verify(progress=note)) == (100, 300)  # before the second segment
    texts = ["red shoes", "blue shoes", "tea"]
    made = rbegir.Index.create(tmp_path / "y.rbe", HashEncoder())
    made.add(texts)
    rbegir.mine(made, [(text, text) for text in texts], 1, progress=note)
    assert last() == (3, 3)


def test_long_calls_show_bars_by_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    titles: list[str] = []

    @contextlib.contextmanager
    def noted(asked: object, title: str) -> Iterator[Callable[..., None]]:
        assert asked is None
        titles.append(title)
        yield lambda done, total=1.0: None

    for home in (store, mine, binarizers):
        monkeypatch.setattr(home, "reported", noted)
    vectors = np.random.default_rng(0).standard_normal((100, 64)).astype(np.float32)
    index = rbegir.Index.create(tmp_path / "x.rbe", rbegir.Binarizer(64).fit(vectors))
    index.neighbors(1)
    index.join(index, 1)
    index.duplicates(0.9)
    index.verify()
    made = rbegir.Index.create(tmp_path / "y.rbe", HashEncoder())
    rbegir.mine(made, [("a", "b")])
    assert titles == ["fitting codes", "joining", "joining", "comparing", "verifying", "mining"]


def test_a_notebook_shows_bars(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not seen()
    monkeypatch.setattr(rich.console, "_is_jupyter", lambda: True)
    assert seen()


def test_without_rich_no_bar_is_shown_and_nothing_fails(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "rich.console", None)
    with reported(None, "verifying") as report:
        report(1, 2)
    assert not seen()
    assert capfd.readouterr().err == ""


def test_only_the_main_thread_shows_bars_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "seen", lambda: True)
    found: list[bool] = []
    thread = threading.Thread(target=lambda: found.extend([wanted(None), wanted(True)]))
    thread.start()
    thread.join()
    assert found == [False, True]
    assert [wanted(None), wanted(True), wanted(False)] == [True, True, False]


def test_a_call_that_is_done_at_its_first_report_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def never() -> bool:
        raise AssertionError("nobody should look")

    monkeypatch.setattr(progress, "seen", never)
    with reported(None, "counting sheep") as report:
        report(5, 5)
