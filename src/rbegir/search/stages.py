"""Where the time of a search goes, for whoever wants to know.

A search says which stage it has finished (`done`), and whoever has asked in the same thread or task is told
(`watching`). Nobody has by default, and then it costs a lookup. Arguments and results of a search stay free
of clocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_watcher: ContextVar[Callable[[str], None] | None] = ContextVar("watcher", default=None)


def done(stage: str) -> None:
    """A stage has ended: "scan" (filter, score, select) or "fetch" (ids, texts, attributes of the hits)."""
    watcher = _watcher.get()
    if watcher is not None:
        watcher(stage)


@contextmanager
def watching(watcher: Callable[[str], None]) -> Iterator[None]:
    """Be told of the stages of the searches made inside."""
    token = _watcher.set(watcher)
    try:
        yield
    finally:
        _watcher.reset(token)
