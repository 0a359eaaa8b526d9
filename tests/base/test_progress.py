"""Progress is shown where somebody sees it, and nowhere else."""

from __future__ import annotations

import contextlib
import os
import pty
import subprocess
import sys
import threading

import pytest
import rich.console

from rbegir.base import progress
from rbegir.base.progress import reported, seen, wanted

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


def test_a_notebook_shows_bars(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not seen()
    monkeypatch.setattr(rich.console, "_is_jupyter", lambda: True)
    assert seen()


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
