"""Read-ahead: the next item is made in a thread while the current one is used.

It pays where making and using an item keep different parts of a machine busy, or where one of the two runs on
one core only: reading beside tokenizing, NumPy's passes beside a search on all cores.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


def ahead(items: Iterable[T]) -> Iterator[T]:
    """Yield the items in order; a thread always works on the next one."""
    iterator = iter(items)
    end = object()
    with ThreadPoolExecutor(1, thread_name_prefix="rbegir-ahead") as pool:
        waiting = pool.submit(next, iterator, end)
        while (item := waiting.result()) is not end:
            waiting = pool.submit(next, iterator, end)
            yield item  # type: ignore[misc]
