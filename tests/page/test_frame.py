"""The page around the search: failures, phones, colours, names, and what the server sends along."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Page, Route, expect

from tests.page import browser
from tests.page.conftest import Open
from tests.service import Running, make_index, reserved_port

Site = tuple[Path, Running]
STATIC = Path(__file__).parents[2] / "src" / "rbegir" / "serve" / "static"


def test_the_service_goes_and_comes_back(visit: Open, model: Path, tmp_path: Path) -> None:
    path = make_index(tmp_path / "mortal.rbe", model, count=5)
    with contextlib.ExitStack() as stack:
        port = stack.enter_context(reserved_port())
        service = Running(path, "--no-access-log", port=port)
        stack.callback(lambda: service.end())
        page, watch = visit(f"{service.url}/?q=shoes")
        expect(page.locator(".hit")).to_have_count(5)
        watch.may_be_gone = True
        watch.expected_statuses.add(503)
        watch.expected_statuses.add(422)
        page.locator("#where").fill("prize < 3")
        expect(page.locator("#where-error")).to_contain_text("there is no column 'prize'")
        page.locator("#where").fill("")
        held: list[Route] = []
        page.route("**/metrics", lambda route: held.append(route))
        while not held:
            page.wait_for_timeout(10)
        service.end()
        page.locator("#q").fill("boots")
        held[0].abort()  # a reading in the background fails while the page waits for more typing
        page.unroute("**/metrics")
        expect(page.locator("#notice")).to_contain_text("The service does not answer")
        expect(page.locator("#nothing")).to_contain_text("What you typed is kept")
        expect(page.locator("#where-error")).to_be_empty()
        service = Running(path, "--no-access-log", port=port)
        expect(page.locator(".hit")).to_have_count(5)
        expect(page.locator("#notice")).to_be_hidden()
        expect(page.locator("#q")).to_have_value("boots")


def test_busy(visit: Open, site: Site) -> None:
    page, watch = visit(site[1].url)
    watch.expected_statuses.add(503)
    said = {
        "type": "urn:rbegir:problem:overloaded",
        "title": "The service is busy",
        "detail": "4096 queries wait",
        "hint": "later",
    }

    def busy(route: Route) -> None:
        headers = {"Retry-After": "1", "Content-Type": "application/problem+json"}
        route.fulfill(status=503, json=said, headers=headers)

    page.route("**/v1/search", busy)
    page.locator("#q").fill("shoes")
    expect(page.locator("#notice")).to_contain_text("The service is busy")
    expect(page.locator("#notice")).to_contain_text("4096 queries wait")
    page.unroute("**/v1/search")
    expect(page.locator(".hit")).to_have_count(20)
    expect(page.locator("#notice")).to_be_hidden()


@pytest.mark.parametrize(
    ("status", "body", "message"),
    [
        (200, "<html>a proxy</html>", "The answer is not JSON"),
        (500, "<html>oops</html>", "The answer was 500"),
        (500, '{"title": "The service failed", "detail": "something", "hint": "look"}', "The service failed"),
    ],
)
def test_nonsense(visit: Open, site: Site, status: int, body: str, message: str) -> None:
    page, watch = visit(site[1].url)
    watch.expected_statuses.add(500)
    expect(page.locator("#q")).to_be_focused()  # the page has started: it makes no search by itself any more
    page.route("**/v1/search", lambda route: route.fulfill(status=status, body=body))
    page.locator("#q").fill("shoes")
    expect(page.locator("#notice")).to_contain_text(message)
    page.unroute("**/v1/search")
    page.get_by_role("button", name="Try again").click()
    expect(page.locator(".hit")).to_have_count(20)
    expect(page.locator("#notice")).to_be_hidden()


def test_phone(visit: Open, site: Site) -> None:
    page, _ = visit(
        f"{site[1].url}/?q=bike", viewport={"width": 360, "height": 740}, has_touch=True, is_mobile=True
    )
    expect(page.locator(".hit")).to_have_count(20)
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), "it scrolls sideways"
    page.locator(".hit").first.tap()
    expect(page.locator(".hit").first.locator(".layer").first).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), "it scrolls sideways"
    small = page.evaluate(
        """[...document.querySelectorAll("button:not(.text), select, input:not([type=radio])")]
          .filter((e) => e.offsetParent && e.getBoundingClientRect().height < 24).map((e) => e.outerHTML)"""
    )
    assert not small, "too small for a finger"
    page.get_by_role("button", name="Add a keyword").tap()
    expect(page.get_by_role("dialog")).to_be_visible()
    box = page.get_by_role("dialog").bounding_box()
    assert box is not None
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= 360


CONTRAST = """() => {
  const rgb = (name) => {
    const probe = document.createElement("div");
    probe.style.color = `var(${name})`;
    document.body.append(probe);
    const found = getComputedStyle(probe).color.match(/[\\d.]+/g).map(Number);
    probe.remove();
    return found;
  };
  const linear = (v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  const light = (name) => {
    const [r, g, b] = rgb(name).map((v) => linear(v / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ratio = (a, b) => {
    const [high, low] = [light(a), light(b)].sort((p, q) => q - p);
    return (high + 0.05) / (low + 0.05);
  };
  return [
    ["--ink", "--paper"], ["--soft", "--paper"], ["--soft", "--raised"], ["--accent", "--paper"],
    ["--accent", "--accent-soft"], ["--on-accent", "--accent"], ["--wrong", "--paper"],
    ["--ink", "--wrong-soft"],
  ].map(([a, b]) => [a, b, ratio(a, b)]);
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_can_be_read(visit: Open, site: Site, scheme: str) -> None:
    page, _ = visit(site[1].url, color_scheme=scheme)
    for front, back, ratio in page.evaluate(CONTRAST):
        assert ratio >= 4.5, (scheme, front, back, ratio)
    assert (_lightness(page) < 60) == (scheme == "dark")


def _lightness(page: Page) -> int:
    colour = str(page.evaluate("getComputedStyle(document.body).backgroundColor"))
    return int(re.findall(r"\d+", colour)[0])


def test_the_colours_can_be_chosen_and_stay(visit: Open, site: Site) -> None:
    page, _ = visit(site[1].url, color_scheme="light")
    button = page.locator("#theme")
    expect(button).to_have_attribute("aria-label", "Colours: as the system")
    button.click()
    expect(button).to_have_attribute("aria-label", "Colours: light")
    button.click()
    expect(button).to_have_attribute("aria-label", "Colours: dark")
    assert _lightness(page) < 60
    page.reload()
    assert _lightness(page) < 60
    expect(button).to_have_attribute("aria-label", "Colours: dark")
    button.click()
    assert _lightness(page) > 200


NAMELESS = """() => [...document.querySelectorAll("button, input, select, [role=img]")].filter((e) =>
  !(e.getAttribute("aria-label") || e.innerText || e.labels?.length || e.getAttribute("aria-labelledby"))
).map((e) => e.outerHTML)"""
DANGLING = """() => {
  const names = ["aria-describedby", "aria-controls", "aria-labelledby", "for"];
  const all = (name) => [...document.querySelectorAll(`[${name}]`)];
  const used = names.flatMap((name) => all(name).map((e) => e.getAttribute(name)));
  return used.filter((id) => !document.getElementById(id));
}"""


def test_everything_has_a_name(visit: Open, site: Site) -> None:
    """What assistive technology is told: landmarks, names of controls, a heading, no broken reference."""
    page, _ = visit(f"{site[1].url}/?q=tea")
    expect(page.locator(".hit")).to_have_count(20)
    page.locator(".hit").first.click()
    for landmark in ("banner", "main", "search", "complementary"):
        expect(page.get_by_role(landmark)).to_have_count(1)  # type: ignore[arg-type]
    expect(page.get_by_role("heading", level=1)).to_have_text("rbegir")
    assert page.evaluate(NAMELESS) == []
    assert page.evaluate(DANGLING) == []
    ids = page.evaluate("[...document.querySelectorAll('[id]')].map((e) => e.id)")
    assert len(ids) == len(set(ids))


def test_nothing_moves_for_those_who_asked(visit: Open, site: Site) -> None:
    page, _ = visit(site[1].url, reduced_motion="reduce")
    page.evaluate("document.getElementById('busy').hidden = false")
    assert (
        page.evaluate("getComputedStyle(document.getElementById('busy'), '::after').animationName") == "none"
    )


def test_the_page_obeys_a_strict_policy(site: Site) -> None:
    answer = httpx.get(site[1].url)
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert not re.search(r"<script(?![^>]*src=)|<style|\son\w+=|style=", answer.text), "inline code or style"
    for file in STATIC.iterdir():
        text = file.read_text()
        assert not re.search(r"(?<!xmlns=\")(?<!= \")https?://", text), f"{file.name} names another host"
        assert not re.search(r"innerHTML|insertAdjacentHTML|document\.write|eval\(", text), (
            f"{file.name} builds markup from text"
        )


def test_without_chromium_there_is_one_clear_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RBEGIR_CHROMIUM", raising=False)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(pytest.fail.Exception, match="Install it with: apt-get install chromium"):
        browser.chromium_path()
