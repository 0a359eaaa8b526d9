"""Draws docs/img/page.png and docs/img/page-phone.png: the page over the shipped titles.

    python -m tests.page.picture rbegir-demo/model

needs a model that `rbegir demo` has trained. Titles get two attributes: how many words they have, and a year
that they name.
"""

from __future__ import annotations

import gzip
import re
import sys
import tempfile
from pathlib import Path

import rbegir
from rbegir.read.sample import sample_path
from tests.page.browser import browser, tab
from tests.service import running

FOLDER = Path(__file__).parents[2] / "docs" / "img"


def titles_index(path: Path, model: Path) -> Path:
    with gzip.open(sample_path("titles"), "rt", encoding="utf-8") as file:
        texts = file.read().splitlines()
    years = [re.search(r"\b(1[89]|20)\d\d\b", text) for text in texts]
    with rbegir.Index.create(path, rbegir.Model.load(model)) as index:
        index.add(
            texts,
            attributes={
                "words": [len(text.split()) for text in texts],
                "year": [int(year[0]) if year else None for year in years],
            },
        )
    return path


def main() -> None:
    model = Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        index = titles_index(Path(folder) / "titles.rbe", model)
        with running(index) as service, browser() as chrome:
            with tab(chrome, f"{service.url}/?q=world+war", viewport={"width": 1240, "height": 880}) as (
                page,
                _,
            ):
                for text in ("new york", "new york gian", "new york giants"):  # some life for the panel
                    page.locator("#q").fill(text)
                    page.wait_for_timeout(700)
                page.locator(".hit").nth(1).click()
                page.wait_for_timeout(2500)
                page.screenshot(path=FOLDER / "page.png")
            phone = {"viewport": {"width": 390, "height": 780}, "color_scheme": "dark"}
            with tab(chrome, f"{service.url}/?q=star+wars", **phone) as (page, _):
                page.locator(".hit").first.wait_for()
                page.screenshot(path=FOLDER / "page-phone.png")


if __name__ == "__main__":
    main()
