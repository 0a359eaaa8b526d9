"""A browser for all tests of the page, a service that is only read, and a tab a test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.page import browser as browsers
from tests.page.browser import Watch
from tests.service import Running, make_index, make_model, running

expect.set_options(timeout=browsers.PATIENT_MS)
Open = Callable[..., tuple[Page, Watch]]


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("page") / "model")


@pytest.fixture(scope="session")
def site(model: Path) -> Iterator[tuple[Path, Running]]:
    """An index and a service over it; tests leave it as they found it."""
    path = make_index(model.parent / "site.rbe", model)
    with running(path) as service:
        yield path, service


@pytest.fixture(scope="package")  # not longer: while Playwright runs, this thread has an event loop
def chrome() -> Iterator[Browser]:
    with browsers.browser() as running_browser:
        yield running_browser


@pytest.fixture
def visit(chrome: Browser) -> Iterator[Open]:
    """visit(url, …) opens a tab; in the end every tab must have behaved."""
    watches: list[Watch] = []
    with ExitStack() as stack:

        def enter(url: str, **context: Any) -> tuple[Page, Watch]:
            page, watch = stack.enter_context(browsers.tab(chrome, url, **context))
            watches.append(watch)
            return page, watch

        yield enter
    for watch in watches:
        watch.verify()
