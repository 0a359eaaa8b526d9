"""A progress bar on stderr, and a log for TensorBoard."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from rbegir.base.progress import seen


class Bar:
    """A progress bar with free text at its end; shows nothing unless it is enabled."""

    def __init__(self, *, enabled: bool) -> None:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:3.0f} %"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[told]}"),
        )
        console = Console(stderr=True, quiet=not enabled)
        # a file or a pipe gets the lines of `say` alone: a bar drawn there would only leave blank lines
        shown = enabled and seen()
        self._progress = Progress(
            *columns, console=console, transient=True, disable=not shown, redirect_stdout=False
        )
        self._task: TaskID | None = None

    def __enter__(self) -> Bar:
        self._progress.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._progress.stop()

    def begin(self, what: str, total: float) -> None:
        if self._task is not None:
            self._progress.remove_task(self._task)
        self._task = self._progress.add_task(what, total=total, told="")

    def show(self, done: float, told: str = "") -> None:
        if self._task is not None:
            self._progress.update(self._task, completed=done, told=told)

    def say(self, line: str) -> None:
        """Print a line that stays."""
        self._progress.console.print(line, highlight=False, markup=False)


class TensorBoardLog:
    """Writes numbers by step in the format of TensorBoard; without that package, one line says so."""

    def __init__(self, directory: Path | None, step: int, say: Callable[[str], None]) -> None:
        self._writer: Any = None
        if directory is None:
            return
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            say("tensorboard is not installed: no log is written")
            return
        # events that a killed run wrote after its last saved state are marked as superseded
        self._writer = SummaryWriter(str(directory), purge_step=step or None)

    def add(self, step: int, **values: float) -> None:
        if self._writer is not None:
            for name, value in values.items():
                self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
