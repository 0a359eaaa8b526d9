"""The search box of the tutorial, on a page of another origin."""

from __future__ import annotations

from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

from playwright.sync_api import Browser, expect

from tests.service import Running, running

TUTORIAL = Path(__file__).parents[2] / "docs" / "tutorial-clicks.md"


def test_the_box_shows_hits_and_none_for_what_cannot_be_searched(
    chrome: Browser, site: tuple[Path, Running], tmp_path: Path
) -> None:
    html = TUTORIAL.read_text(encoding="utf-8").partition("```html\n")[2].partition("```")[0]
    pages = ThreadingHTTPServer(("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=str(tmp_path)))
    Thread(target=pages.serve_forever, daemon=True).start()
    origin = f"http://127.0.0.1:{pages.server_port}"
    with running(site[0], "--read-only", "--cors-origin", origin) as service:
        html = html.replace("http://localhost:8081", service.url)
        (tmp_path / "index.html").write_text(f'<link rel="icon" href="data:,">{html}', encoding="utf-8")
        page = chrome.new_page()
        page.set_default_timeout(10_000)
        page.goto(origin)
        hits = page.locator("#hits li")
        for nothing in ("?", ""):
            page.locator("#box").fill("running shoes")
            expect(hits).to_have_count(8, timeout=10_000)
            page.locator("#box").fill(nothing)
            expect(hits).to_have_count(0, timeout=10_000)
        page.close()
    pages.shutdown()
    pages.server_close()
