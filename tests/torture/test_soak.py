"""The service under load: what clients can know, and a short soak with kills."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import httpx
import pytest

from torture import soak
from torture.ledger import Ledger, text_of, version_of
from torture.limits import Limits
from torture.server import base_text, item_of, shop_of


def test_a_ledger_knows_what_may_be_there() -> None:
    ledger = Ledger(range(3))
    asked = ledger.glimpse(0)
    assert ledger.possible(0, asked) == {None}
    ledger.begin(0, 1)
    assert ledger.possible(0, asked) == {None, 1}  # on its way while the question was
    ledger.acknowledge(0, 1)
    assert ledger.now(0) == {1}
    assert ledger.possible(0, ledger.glimpse(0)) == {1}
    assert ledger.possible(0, asked) == {None, 1}  # the answer may be older than the acknowledgement
    ledger.begin(0, None)  # nobody knows whether it was made
    ledger.begin(0, 2)
    assert ledger.now(0) == {1, None, 2}
    ledger.acknowledge(0, 2)
    assert ledger.now(0) == {2}
    assert ledger.now(1) == {None}


def test_texts_say_their_version() -> None:
    assert version_of(7, text_of(7, 12)) == 12
    with pytest.raises(ValueError, match="item 8"):
        version_of(7, text_of(8, 12))
    with pytest.raises((ValueError, IndexError)):
        version_of(7, "something else")


def test_a_short_soak(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills, full disks (where one can be mounted) and wrong clocks (where they can be had), in seconds."""
    monkeypatch.setattr(soak, "CHAOS_EVERY", (0.2, 0.6))
    monkeypatch.setattr(soak, "WRITE_EVERY", 0.05)
    monkeypatch.setattr(soak, "SEARCH_EVERY", 0.05)
    found = soak.run(Limits(points=0, seconds=6.0, seed=4), least=1)
    assert found["first_losses"] == []
    counts = found["counts"]
    assert counts.get("kills", 0) + counts.get("polite stops", 0) >= 1
    assert min(counts[name] for name in ("keywords acknowledged", "search answered", "hits checked")) > 0
    assert counts["full checks"] >= 1


def test_a_service_that_forgets_would_be_noticed() -> None:
    """The checks of the soak, with answers that are wrong in every way."""
    one = soak.Soak.__new__(soak.Soak)
    one.ledger, one.losses = Ledger(range(5)), []
    one.ledger.begin(0, (1, 1))
    one.ledger.acknowledge(0, (1, 1))
    since, right = one.ledger.glimpse(0), _row(0, 1, 1)
    one._check_row(0, right, since)
    assert one.losses == []
    for wrong in (
        None,  # lost
        _row(0, 2, 1),  # a phantom
        {**right, "text": "nobody wrote this"},
        _row(0, 1, 2),  # an update that nobody made
        {**right, "attributes": {**right["attributes"], "shop": "shop 1"}},  # another tenant's
        {**right, "attributes": {"price": 1}},
    ):
        before = len(one.losses)
        one._check_row(0, wrong, since)
        assert len(one.losses) == before + 1, wrong


def _row(key: int, version: int, price: int) -> dict[str, Any]:
    attributes = {"price": price, "shop": shop_of(key), "item": item_of(key)}
    return {"id": key, "text": text_of(key, version), "attributes": attributes}


def _base(key: int, score: float = 0.5) -> dict[str, Any]:
    row = {**_row(key, 1, key % 100), "text": base_text(key)}
    return {**row, "score": score, "code_score": score}


@pytest.mark.parametrize(
    ("body", "wish", "keys", "said"),
    [
        ({}, {}, [8, 8], "not different"),
        ({"k": 1}, {}, [8, 9], "too many hits"),
        ({"tenant": "shop 0"}, {}, [8, 9], "not of the tenant"),
        ({"item": "item"}, {}, [1, 51], "not different"),
        ({"k": None, "min_score": 0.6}, {}, [8], "does not reach the score"),
        ({"where": ["price < 8"]}, {"test": lambda hit: hit["attributes"]["price"] < 8}, [8], "not pass"),
        ({"must": ["base 8"]}, {"only": 8}, [], r"found \[\], possible were \{1\} hits"),
        ({"must": ["base 8"]}, {"only": 8}, [8, 9], "found"),
    ],
)
def test_a_wrong_search_would_be_noticed(
    body: dict[str, Any], wish: dict[str, Any], keys: list[int], said: str
) -> None:
    one = soak.Soak.__new__(soak.Soak)
    one.ledger, one.losses, one.counts = Ledger(range(0)), [], Counter()
    question = soak.Question({"k": 10, **body}, [soak.Wish(**wish)])
    one._check_results(question, [{"hits": [_base(key) for key in keys]}], {})
    assert len(one.losses) == 1
    assert re.search(said, one.losses[0])


def test_a_wrong_page_would_be_noticed() -> None:
    one = soak.Soak.__new__(soak.Soak)
    one.losses, one.counts = [], Counter()
    first = [{"hits": [_base(1, 0.5), _base(2, 0.4)]}]
    one._check_page(first, [{"hits": [_base(3, 0.4)]}])
    assert one.losses == []
    one._check_page(first, [{"hits": [_base(2, 0.4)]}])
    one._check_page(first, [{"hits": [_base(3, 0.45)]}])
    assert len(one.losses) == 2


def test_an_omission_by_a_running_service_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every search of this service leaves its best hit out."""
    ask = soak.Soak._ask

    async def forgetful(self: soak.Soak, kind: str, work: Any) -> httpx.Response | None:
        answer = await ask(self, kind, work)
        if kind != "search" or answer is None:
            return answer
        body = answer.json()
        for result in body["results"]:
            result["hits"] = result["hits"][1:]
        return httpx.Response(200, json=body)

    monkeypatch.setattr(soak.Soak, "_ask", forgetful)
    monkeypatch.setattr(soak, "SEARCH_EVERY", 0.01)
    found = soak.run(Limits(points=0, seconds=1e9, seed=1))
    assert re.search(r"found \[\], possible were \{1\} hits", found["first_losses"][0])
