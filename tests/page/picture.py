"""Draws docs/img/page.png and docs/img/page-phone.png: the page over the index of the demo.

    python -m tests.page.picture rbegir-demo/index.rbe

The queries are those that `rbegir demo` shows, which it chooses by rule. They are typed one after the other;
the pictures show the last two.
"""

from __future__ import annotations

import sys
from pathlib import Path
from urllib.parse import quote_plus

from rbegir.cli.demo import everyday
from rbegir.read.pairs import read_pairs
from rbegir.read.sample import sample_path
from tests.page.browser import browser, tab
from tests.service import running

FOLDER = Path(__file__).parents[2] / "docs" / "img"


def main() -> None:
    queries = everyday(read_pairs(sample_path("valid")).read_all())["query"].to_pylist()
    with running(Path(sys.argv[1])) as service, browser() as chrome:
        with tab(chrome, service.url, viewport={"width": 1240, "height": 880}) as (page, _):
            for query in queries:
                page.locator("#q").fill(query)
                page.wait_for_timeout(700)
            page.locator(".hit").first.click()
            page.wait_for_timeout(2500)  # the panel reads its figures again
            page.screenshot(path=FOLDER / "page.png")
        phone = {"viewport": {"width": 390, "height": 780}, "color_scheme": "dark"}
        with tab(chrome, f"{service.url}/?q={quote_plus(queries[-2])}", **phone) as (page, _):
            page.locator(".hit").first.wait_for()
            page.screenshot(path=FOLDER / "page-phone.png")


if __name__ == "__main__":
    main()
