"""A real Chromium, driven by Playwright, and a tab that watches itself."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, Route, sync_playwright

PATIENT_MS = 240_000  # more than a loaded machine needs, less than the time limit of a test
NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip


def chromium_path() -> str:
    """Where Chromium is; a test that needs it fails without it, and says what to do."""
    given = os.environ.get("RBEGIR_CHROMIUM")
    found = given or next((path for name in NAMES if (path := shutil.which(name))), None)
    if found is None:
        pytest.fail(
            "Chromium is not installed, and the page is tested in a real browser. "
            "Install it with: apt-get install chromium (or set RBEGIR_CHROMIUM to one)",
            pytrace=False,
        )
    return found


@contextlib.contextmanager
def browser() -> Iterator[Browser]:
    path = chromium_path()
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=path, args=list(FLAGS))
        try:
            yield running
        finally:
            running.close()


class Watch:
    """What a tab must not do: complain on its console, fail, talk to another host."""

    def __init__(self, page: Page, host: str) -> None:
        self._host = host
        self.complaints: list[str] = []
        self.elsewhere: list[str] = []
        self.expected_statuses: set[int] = set()  # of answers that the browser itself complains about
        self.may_be_gone = False
        page.on("console", lambda message: self._console(message.type, message.text))
        page.on("pageerror", lambda error: self.complaints.append(f"uncaught: {error}"))
        page.on("request", lambda request: self._request(request.url))

    def _console(self, kind: str, text: str) -> None:
        if kind not in ("error", "warning"):
            return
        if text.startswith("Failed to load resource"):
            if self.may_be_gone and "net::ERR_" in text:
                return
            if any(f"status of {status} " in text for status in self.expected_statuses):
                return
        self.complaints.append(f"{kind}: {text}")

    def _request(self, url: str) -> None:
        if urlsplit(url).netloc != self._host:
            self.elsewhere.append(url)

    def verify(self) -> None:
        assert not self.complaints, self.complaints
        assert not self.elsewhere, self.elsewhere


def _lasting_messages(route: Route) -> None:
    """A message stays until a test has read it, however slow the machine is."""
    code = route.fetch().text()
    lasting = code.replace("const TOAST = 8000;", f"const TOAST = {PATIENT_MS};")
    assert lasting != code
    route.fulfill(body=lasting, content_type="text/javascript")


@contextlib.contextmanager
def tab(browser: Browser, url: str, **context: Any) -> Iterator[tuple[Page, Watch]]:
    """A fresh context with one tab at an address."""
    own = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **context})
    own.set_default_timeout(PATIENT_MS)
    own.route("**/write.js", _lasting_messages)
    page = own.new_page()
    watch = Watch(page, urlsplit(url).netloc)
    try:
        page.goto(url)
        yield page, watch
    finally:
        own.close()
