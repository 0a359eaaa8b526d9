"""Searching on the page: what is shown is what the index holds, drawn right."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
from playwright.sync_api import Page, Route, expect

import rbegir
from rbegir.codes import score
from tests.page.conftest import Open
from tests.reranking import make_model, some_texts
from tests.service import TEXTS, Running, running

Site = tuple[Path, Running]


def texts(page: Page) -> list[str]:
    return page.locator(".hit button.text").all_inner_texts()


def ask(page: Page, query: str) -> None:
    """Type like a person and wait for the answer to exactly this."""
    with page.expect_response(
        lambda r: r.url.endswith("/v1/search") and _asked(r.request.post_data) == query
    ):
        page.locator("#q").fill(query)


def _asked(body: str | None) -> str:
    return str(json.loads(body or "{}").get("queries", [""])[0])


def test_hits_come_while_typing(visit: Open, site: Site) -> None:
    page, _ = visit(site[1].url)
    page.locator("#q").press_sequentially("running shoes", delay=30)
    with rbegir.Index.open(site[0], read_only=True) as index:
        hits = index.search("running shoes", k=20)
    assert hits.texts is not None
    expect(page.locator(".hit button.text")).to_have_text(hits.texts[0].tolist())
    expect(page.locator(".score span")).to_have_text([f"{s:.3f}" for s in hits.scores[0]])
    expect(page.locator(".hit").first.locator(".chips")).to_have_text("price 5lang derare 0")
    expect(page.locator("#summary")).to_contain_text(f"20 best of {len(TEXTS)} keywords, every one scored")
    expect(page).to_have_url(re.compile(r"\?q=running\+shoes$"))
    expect(page.locator("#seen")).to_contain_text("ms, last")


def test_bits_and_ranks_are_those_of_the_codes(visit: Open, site: Site) -> None:
    page, _ = visit(f"{site[1].url}/?q=rain+jacket")
    expect(page.locator(".hit")).to_have_count(20)
    with rbegir.Index.open(site[0], read_only=True) as index:
        query = index.model.encode_queries(["rain jacket"])
        hits = index.search("rain jacket", k=20)
        codes = index.codes(hits.ids[0])
        every = index.codes([100 + i for i in range(len(TEXTS))])
    equal = (query.signs()[:2] == codes.signs()).sum(axis=2)  # [planes, hits]
    coarse = score.keys(query.values(), every.first_planes(1))[0]  # [keywords]
    order = np.lexsort((np.arange(len(TEXTS)), -coarse))
    for place, item in enumerate(page.locator(".hit").all()):
        label = item.locator(".planes svg").get_attribute("aria-label") or ""
        assert re.findall(r"(\d+) of 64", label) == [str(n) for n in equal[:, place]]
        agreeing = item.locator(".planes path.yes").get_attribute("d") or ""
        differing = item.locator(".planes path.no").get_attribute("d") or ""
        assert (agreeing.count("M"), differing.count("M")) == (
            equal[:, place].sum(),
            128 - equal[:, place].sum(),
        )
        first = int(np.flatnonzero(order == hits.rows[0, place])[0]) + 1
        expect(item.locator(".rank .small")).to_have_text(f"{first} → {place + 1}")
    assert page.locator("#query-planes path.yes").get_attribute("d")
    expect(page.locator("#slopes .line")).to_have_count(20)


def test_a_hit_opens_and_shows_its_layers(visit: Open, site: Site) -> None:
    page, _ = visit(f"{site[1].url}/?q=tea+pot")
    first = page.locator(".hit").first
    first.click()
    expect(first.locator("button.text")).to_have_attribute("aria-expanded", "true")
    expect(first.locator(".layer")).to_have_count(2)
    expect(first.locator(".detail")).to_contain_text("rank with 2 planes")
    expect(page.locator("#slopes .line.near")).to_have_attribute("data-at", "0")
    first.evaluate("(item) => item.classList.add('old')")
    first.get_by_role("button", name="Search for this text").click()
    expect(page.locator("#q")).to_have_value("tea pot")
    expect(page.locator(".hit.old")).to_have_count(0)  # the hits of the new search are there
    first.locator("button.text").click()
    expect(first.locator(".detail")).to_have_count(0)


def test_filter(visit: Open, site: Site) -> None:
    page, watch = visit(f"{site[1].url}/?q=shoes")
    expect(page.locator(".hit")).to_have_count(20)
    examples = page.locator("#examples button")
    expect(examples).to_have_count(5)
    chosen = examples.nth(1).inner_text()
    assert re.fullmatch(r"lang = '(en|de)'", chosen)
    assert re.fullmatch(r"contains\(text, '\w+'\)", examples.last.inner_text())
    examples.nth(1).click()
    with rbegir.Index.open(site[0], read_only=True) as index:
        wanted = index.search("shoes", k=20, where=chosen).texts[0].tolist()  # type: ignore[index]
    expect(page.locator("#summary")).to_contain_text("that pass the filter")  # without it: 20 hits too
    expect(page.locator(".hit")).to_have_count(len(wanted))
    assert texts(page) == wanted

    watch.expected_statuses.add(422)
    page.locator("#where").fill("prize < 3")
    expect(page.locator("#where-error")).to_contain_text("there is no column 'prize'")
    expect(page.locator("#where-error")).to_contain_text("the columns are: id, lang, price, rare, text")
    expect(page.locator("#where")).to_have_attribute("aria-invalid", "true")
    assert texts(page) == wanted, "the hits before the mistake stay"

    page.locator("#where").fill("price < 0")
    expect(page.locator("#nothing")).to_contain_text("Nothing passes the filter")
    expect(page.locator("#where-error")).to_be_empty()
    page.locator("#where").press("Escape")
    expect(page.locator(".hit")).to_have_count(20)


def test_refine_and_paper(visit: Open, site: Site) -> None:
    page, _ = visit(f"{site[1].url}/?q=bike")
    page.get_by_label("1, then all").check()
    expect(page.locator("#certificate")).to_contain_text("Estimated recall 100.00 %")
    expect(page).to_have_url(re.compile("planes=1"))
    page.get_by_label("paper").check()
    expect(page.locator("#certificate")).to_contain_text("Expected recall")
    with rbegir.Index.open(site[0], read_only=True) as index:
        certificate = index.search("bike", k=20, mode="paper").certificate
    assert certificate is not None
    expect(page.locator("#certificate")).to_contain_text(f"{100 * certificate.expected_recall:.2f} %")
    expect(page.locator("#certificate")).to_contain_text("P(miss ≤ 0)")
    expect(page.get_by_label("1, then all")).to_be_disabled()
    page.reload()
    expect(page.locator("#certificate")).to_contain_text("Expected recall")
    expect(page.locator("input[value=paper]")).to_be_checked()
    page.get_by_label("exact").check()
    expect(page.locator("#certificate")).to_be_hidden()


def test_a_late_answer_is_dropped(visit: Open, site: Site) -> None:
    page, _ = visit(site[1].url)
    slow: list[Route] = []

    def hold(route: Route) -> None:
        if _asked(route.request.post_data) == "coffee":
            slow.append(route)  # answered below, after the newer one
        else:
            route.continue_()

    page.route("**/v1/search", hold)
    page.locator("#q").fill("coffee")
    while not slow:
        page.wait_for_timeout(10)
    expect(page.locator("#busy")).to_be_visible()
    page.locator("#q").fill("green tea")
    expect(page.locator(".hit").first).to_contain_text("green tea")
    slow[0].fulfill(
        json={
            "results": [
                {"query": "coffee", "hits": [{"id": 1, "score": 1, "text": "stale", "attributes": {}}]}
            ],
            "took_ms": 1,
        }
    )
    page.wait_for_timeout(150)
    assert "stale" not in texts(page)
    expect(page.locator("#busy")).to_be_hidden()


def test_keyboard(visit: Open, site: Site) -> None:
    page, _ = visit(f"{site[1].url}/?q=chair")
    q = page.locator("#q")
    expect(page.locator(".hit")).to_have_count(20)
    expect(q).to_be_focused()
    page.keyboard.press("ArrowDown")
    buttons = page.locator(".hit button.text")
    expect(buttons.nth(0)).to_be_focused()
    page.keyboard.press("ArrowDown")
    expect(buttons.nth(1)).to_be_focused()
    page.keyboard.press("Enter")
    expect(buttons.nth(1)).to_have_attribute("aria-expanded", "true")
    expect(buttons.nth(1)).to_be_focused()
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowUp")
    expect(q).to_be_focused()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Escape")
    expect(q).to_be_focused()
    page.keyboard.press("Escape")
    expect(q).to_have_value("")
    expect(page.locator("#nothing")).to_contain_text("Type, and every keyword is scored")
    page.locator("#theme").focus()
    page.keyboard.press("/")
    expect(q).to_be_focused()
    page.keyboard.type("a/b")
    expect(q).to_have_value("a/b")


def test_states_without_hits(visit: Open, site: Site) -> None:
    page, watch = visit(site[1].url)
    expect(page.locator("#nothing")).to_contain_text("Type, and every keyword is scored")
    watch.expected_statuses.add(422)
    ask(page, "…")
    expect(page.locator("#nothing")).to_contain_text("Nothing to search for")
    ask(page, "chair")
    expect(page.locator("#nothing")).to_be_empty()


def test_the_panel_lives(visit: Open, site: Site) -> None:
    page, _ = visit(f"{site[1].url}/?q=lamp")
    expect(page.locator("#index")).to_contain_text(f"keywords{len(TEXTS)}")
    expect(page.locator("#index")).to_contain_text("2 a keyword, 3 a query")
    expect(page.locator("#stages")).to_contain_text("scan")
    expect(page.locator("#service")).to_contain_text("queries a second")
    ask(page, "desk lamp")
    expect(page.locator("#spark svg")).to_be_visible()
    figures = page.evaluate(
        """async () => { const p = await import("/panel.js");
        const read = p.parseMetrics('# HELP x\\na{b="c\\\\"d",e="f"} 2\\nn 3e1');
        return [p.quantile([[1, 5], [2, 10], [Infinity, 10]], 0.5), p.quantile([[1, 0], [2, 10]], 0.75),
                p.quantile([], 0.5), read.map((m) => [m.name, m.labels, m.value])]; }"""
    )
    assert figures == [1, 1.75, None, [["a", {"b": 'c\\"d', "e": "f"}, 2], ["n", {}, 30]]]


def test_a_reranked_hit_says_why_it_is_there(visit: Open, tmp_path: Path) -> None:
    texts = some_texts(300)
    with rbegir.Index.create(tmp_path / "x.rbe", make_model(tmp_path / "model", texts)) as index:
        index.add(texts)
        wanted = index.search("rivr bank", k=20, why=True)
    with running(tmp_path / "x.rbe") as service:
        page, _ = visit(f"{service.url}/?q=rivr+bank")
        expect(page.locator(".hit")).to_have_count(20)
        assert page.locator(".hit .why").all_inner_texts() == [str(hit.why) for hit in wanted[0]]
        page.get_by_label("paper").check()
        expect(page.locator("#certificate")).to_contain_text("Expected recall")
        expect(page.locator(".hit .why")).to_have_count(0)
        page.close()  # before its service ends
