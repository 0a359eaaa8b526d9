"""Progress of long commands, on stderr."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def bar(title: str) -> Iterator[Callable[[float], None]]:
    """A progress bar; what it gives takes the fraction that is done."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task(title, total=1.0)
        yield lambda done: progress.update(task, completed=done)
