"""Adding and deleting on the page, with tokens, with odd ids, with texts that mean harm."""

from __future__ import annotations

import re
from pathlib import Path

from playwright.sync_api import Dialog, expect

import rbegir
from tests.page.conftest import Open
from tests.service import Running, make_index, running

Site = tuple[Path, Running]
READ, WRITE = "token-for-reading", "token-for-writing"


def test_add_delete_undo(visit: Open, site: Site) -> None:
    page, watch = visit(site[1].url)
    client = rbegir.Client(site[1].url)
    expect(page.locator("#about")).to_contain_text("30 keywords")  # what is served is known
    page.get_by_role("button", name="Add a keyword").click()
    sheet = page.get_by_role("dialog", name="Add a keyword")
    sheet.get_by_label("Text").fill("purple umbrella")
    sheet.get_by_label("Id").fill("100")
    sheet.get_by_label("price").fill("12.5")
    sheet.get_by_label("lang").fill("en")
    watch.expected_statuses.add(422)
    sheet.get_by_role("button", name="Add").click()
    expect(page.locator("#add-error")).to_contain_text("id 100 is in the index already")
    sheet.get_by_label("Id").fill("777")
    sheet.get_by_role("button", name="Add").click()
    expect(sheet).to_be_hidden()
    expect(page.locator("#toast")).to_contain_text("Added “purple umbrella”, durable and searchable")
    first = page.locator(".hit").first
    expect(first).to_contain_text("purple umbrella")
    assert client.get([777]) == [
        {"id": 777, "text": "purple umbrella", "price": 12.5, "lang": "en", "rare": None}
    ]
    expect(page.locator("#about")).to_contain_text("31 keywords")

    first.click()
    first.get_by_role("button", name="Delete").click()
    expect(page.locator("#toast")).to_contain_text("Deleted “purple umbrella”")
    expect(page.locator("#about")).to_contain_text("30 keywords")
    assert client.get([777]) == [None]
    page.locator("#toast").get_by_role("button", name="Undo").click()
    expect(page.locator("#about")).to_contain_text("31 keywords")
    assert client.get([777])[0] == {
        "id": 777,
        "text": "purple umbrella",
        "price": 12.5,
        "lang": "en",
        "rare": None,
    }
    expect(first).to_contain_text("purple umbrella")
    page.locator("#q").press("ArrowDown")
    page.keyboard.press("Delete")
    expect(page.locator("#about")).to_contain_text("30 keywords")
    assert client.get([777]) == [None]
    client.close()


def test_a_keyword_without_text_is_not_sent(visit: Open, site: Site) -> None:
    page, _ = visit(site[1].url)
    expect(page.locator("#about")).to_contain_text("30 keywords")
    page.get_by_role("button", name="Add a keyword").click()
    page.get_by_role("button", name="Add", exact=True).click()
    expect(page.locator("#add-error")).to_have_text("A keyword needs a text.")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)


def test_ids_beyond_what_javascript_counts(visit: Open, site: Site) -> None:
    """Two ids that are one number in double precision: the page deletes the one that was meant."""
    with rbegir.Client(site[1].url) as client:
        big = [2**60 + 1, None]
        client.upsert(["exactly this", "not that"], ids=[2**62 + 1, 2**62], attributes={"rare": big})
        page, _ = visit(f"{site[1].url}/?q=exactly+this")
        first = page.locator(".hit").first
        first.click()
        expect(first.locator(".detail")).to_contain_text(str(2**62 + 1))
        first.get_by_role("button", name="Delete").click()
        expect(page.locator("#toast")).to_contain_text("Deleted")
        assert client.get([2**62 + 1]) == [None]
        assert client.get([2**62]) != [None]
        page.locator("#toast").get_by_role("button", name="Undo").click()
        expect(page.locator("#toast")).to_contain_text("is back")
        (back,) = client.get([2**62 + 1])
        assert back is not None
        assert back["rare"] == 2**60 + 1
        client.delete([2**62, 2**62 + 1])


def test_texts_are_texts(visit: Open, site: Site) -> None:
    evil = "<img src=x onerror=alert(1)> boots"
    with rbegir.Client(site[1].url) as client:
        client.upsert([evil], ids=[666], attributes=[{"lang": "</li><script>alert(2)</script>"}])
        page, _ = visit(f"{site[1].url}/?q=%3Cimg+src%3Dx+onerror%3Dalert(1)%3E+boots")
        expect(page.locator(".hit").first.locator("button.text")).to_have_text(evil)
        expect(page.locator(".hit").first.locator(".chips")).to_contain_text("</li><script>")
        expect(page.locator("main img, main script")).to_have_count(0)
        page.locator("#examples button").nth(1).click()
        expect(page.locator("#where-error")).to_be_empty()
        client.delete([666])


def test_tokens(visit: Open, model: Path, tmp_path: Path) -> None:
    path = make_index(tmp_path / "guarded.rbe", model, count=3)
    with running(path, environment={"RBEGIR_READ_TOKEN": READ, "RBEGIR_WRITE_TOKEN": WRITE}) as service:
        page, watch = visit(f"{service.url}/?q=shoes")
        watch.expected_statuses |= {401, 403}
        sheet = page.get_by_role("dialog")
        expect(sheet).to_contain_text("a bearer token is needed")
        sheet.get_by_label("Token").fill("a-wrong-token")
        sheet.get_by_role("button", name="Use it").click()
        expect(sheet).to_contain_text("the token is not known")
        sheet.get_by_label("Token").fill(READ)
        sheet.get_by_role("button", name="Use it").click()
        expect(page.locator(".hit")).to_have_count(3)
        first = page.locator(".hit").first
        first.click()
        first.get_by_role("button", name="Delete").click()
        expect(page.locator("#token")).to_contain_text("the token may read but not write")
        page.locator("#token").get_by_label("Token").fill(WRITE)
        page.locator("#token").get_by_role("button", name="Use it").click()
        expect(page.locator(".hit")).to_have_count(2)
        page.reload()
        expect(page.locator(".hit")).to_have_count(2)
        page.close()  # before its service ends


def test_read_only(visit: Open, model: Path, tmp_path: Path) -> None:
    path = make_index(tmp_path / "fixed.rbe", model, count=3)
    with running(path, "--read-only") as service:
        page, _ = visit(f"{service.url}/?q=shoes")
        expect(page.locator(".hit")).to_have_count(3)
        expect(page.get_by_role("button", name="Add a keyword")).to_be_hidden()
        page.locator(".hit").first.click()
        expect(page.locator(".detail")).to_be_visible()
        expect(page.get_by_role("button", name="Delete")).to_have_count(0)
        page.close()  # before its service ends


def test_an_empty_index(visit: Open, model: Path, tmp_path: Path) -> None:
    with running(make_index(tmp_path / "empty.rbe", model, count=0)) as service:
        page, _ = visit(service.url)
        expect(page.locator("#nothing")).to_contain_text("The index is empty")
        page.get_by_role("button", name="Add the first keyword").click()
        page.get_by_role("dialog").get_by_label("Text").fill("the very first")
        page.get_by_role("dialog").get_by_role("button", name="Add", exact=True).click()
        expect(page.locator(".hit button.text")).to_have_text("the very first")
        page.close()  # before its service ends


def test_delete_all_that_pass_the_filter(visit: Open, model: Path, tmp_path: Path) -> None:
    path = make_index(tmp_path / "filtered.rbe", model)
    with running(path) as service:
        page, _ = visit(f"{service.url}/?q=rome")
        button = page.get_by_role("button", name="Delete all that pass")
        expect(page.locator("#about")).to_contain_text("30 keywords")
        expect(button).to_be_hidden()
        page.get_by_label("Filter", exact=True).fill("price < 40")
        said: list[str] = []

        def answer(dialog: Dialog) -> None:
            said.append(dialog.message)
            dialog.accept() if len(said) > 1 else dialog.dismiss()

        page.on("dialog", answer)
        expect(button).to_be_visible()
        button.click()
        expect(page.locator("#about")).to_contain_text("30 keywords")
        button.click()
        expect(page.locator("#toast")).to_contain_text("Deleted 5 keywords")
        expect(page.locator("#about")).to_contain_text("25 keywords")
        assert said == ["Delete 5 keywords that pass “price < 40”? This cannot be undone."] * 2
        page.close()


def test_an_index_is_chosen_by_name(visit: Open, model: Path, tmp_path: Path) -> None:
    one, two = make_index(tmp_path / "one.rbe", model), make_index(tmp_path / "two.rbe", model, count=4)
    with running(f"one={one}", f"two={two}") as service:
        page, _ = visit(f"{service.url}/?q=shoes")
        expect(page.locator("#about")).to_contain_text("30 keywords")
        page.get_by_role("combobox", name="Index").select_option("two")
        expect(page.locator("#about")).to_contain_text("4 keywords")
        expect(page.locator(".hit")).to_have_count(4)
        expect(page).to_have_url(re.compile("index=two"))
        page.reload()
        expect(page.locator("#about")).to_contain_text("4 keywords")
        page.get_by_role("button", name="Add a keyword").click()
        sheet = page.get_by_role("dialog", name="Add a keyword")
        sheet.get_by_label("Text").fill("sandals")
        sheet.get_by_role("button", name="Add").click()
        expect(page.locator("#about")).to_contain_text("5 keywords")
        with rbegir.Client(service.url) as first, rbegir.Client(service.url, index="two") as second:
            assert (len(first), len(second)) == (30, 5)
        page.close()
