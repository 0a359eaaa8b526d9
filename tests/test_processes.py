"""How tests are shared out to processes: groups stay whole."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from .conftest import TOGETHER, group, pytest_xdist_make_scheduler


class Process:
    """Stands for a process of pytest-xdist, and keeps the numbers of the tests that it is sent."""

    def __init__(self) -> None:
        self.gateway = SimpleNamespace(id=str(id(self)))
        self.shutting_down = False
        self.sent: list[int] = []

    def send_runtest_some(self, tests: list[int]) -> None:
        self.sent += tests

    def shutdown(self) -> None:
        self.shutting_down = True


def test_a_process_is_sent_whole_groups() -> None:
    files = ["cluster/test_a", "training/test_b", "cluster/test_c", "codes/test_d", "training/test_e"]
    tests = [f"tests/{file}.py::test[{number}]" for number in range(3) for file in files]
    options = SimpleNamespace(loadscopereorder=False, maxfail=0)
    config: Any = SimpleNamespace(getvalue=lambda name: ["popen"] * 2, option=options)
    processes: list[Any] = [Process(), Process()]
    scheduler = pytest_xdist_make_scheduler(config, SimpleNamespace(loadscopesched=lambda *said: None))
    for process in processes:
        scheduler.add_node(process)
        scheduler.add_node_collection(process, tests)
    scheduler.schedule()
    sent = [{group(tests[number]) for number in process.sent} for process in processes]
    assert sent == [{"cluster"}, {"training"}]
    assert [len(process.sent) for process in processes] == [6, 6]


def test_folders_and_files_that_run_together_are_there() -> None:
    for name in TOGETHER:
        assert (Path(__file__).parent / name).exists(), name
