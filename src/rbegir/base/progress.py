"""Progress of long calls: reported to a function, or shown as a bar on stderr.

A `progress` argument is a function to call, False for nothing, True for a bar, or None: a bar where somebody
waits for the call and sees it, in the main thread of a program in a terminal or a notebook. The bar appears
with the first report that leaves something to do, so a quick call shows none, and it goes when the call ends.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

Report: TypeAlias = Callable[..., None]  # (done, total); total is None while it is not known
Progress: TypeAlias = Report | bool | None


def wanted(progress: bool | None) -> bool:
    """Whether a call shows its progress: as asked, or else if it runs in the main thread and can be seen."""
    if progress is not None:
        return progress
    return threading.current_thread() is threading.main_thread() and seen()


def seen() -> bool:
    """Whether stderr shows bars: it is a terminal, or a notebook runs, and rich is installed."""
    try:
        from rich.console import Console
    except ImportError:  # searching needs NumPy and pyarrow alone
        return False
    console = Console(stderr=True)
    return bool(console.is_terminal or console.is_jupyter)


@contextlib.contextmanager
def reported(progress: Progress, title: str) -> Iterator[Report]:
    """The function that takes the progress of a call: the one given, that of a bar, or an idle one."""
    if callable(progress):
        yield progress
        return
    bar = _LateBar(title, progress)
    try:
        yield bar.report
    finally:
        bar.stop()


class _LateBar:
    """A bar that appears once there is something to show."""

    def __init__(self, title: str, progress: bool | None) -> None:
        self._title, self._asked = title, progress
        self._shown: Any = None  # a rich Progress

    def report(self, done: float, total: float | None = 1.0, what: str | None = None) -> None:
        if self._shown is None and self._asked is not False and (total is None or done < total):
            self._asked = wanted(self._asked) and seen()
            if self._asked:
                self._start()
        if self._shown is not None:
            self._shown.update(self._task, completed=done, total=total, description=what or self._title)

    def _start(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

        columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
        # rich would send what others print to stdout to its console, which is stderr
        self._shown = Progress(*columns, console=Console(stderr=True), transient=True, redirect_stdout=False)
        self._task = self._shown.add_task(self._title, total=None)
        self._shown.start()

    def stop(self) -> None:
        if self._shown is not None:
            self._shown.stop()
