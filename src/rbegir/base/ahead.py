"""One step ahead: the next item is made in a thread while the present one is used.

Worth it where making and using are done by different parts of a machine, or where one of the two keeps only
one core busy: reading beside tokenising, NumPy's passes beside a search on all cores.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


def ahead(items: Iterable[T]) -> Iterator[T]:
    """The same items, the next one always being made in a thread of its own."""
    iterator = iter(items)
    end = object()
    with ThreadPoolExecutor(1, thread_name_prefix="rbegir-ahead") as pool:
        waiting = pool.submit(next, iterator, end)
        while (item := waiting.result()) is not end:
            waiting = pool.submit(next, iterator, end)
            yield item  # type: ignore[misc]
