"""The service under load: what clients can know, and a short soak with kills."""

from __future__ import annotations

import pytest

from torture import soak
from torture.ledger import Ledger, text_of, version_of
from torture.limits import Limits


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
    one.ledger.begin(0, 1)
    one.ledger.acknowledge(0, 1)
    since = one.ledger.glimpse(0)
    one._check_version(0, text_of(0, 1), since)
    assert one.losses == []
    for text in (None, text_of(0, 2), "nobody wrote this"):  # lost, a phantom, nonsense
        one._check_version(0, text, since)
    assert len(one.losses) == 3
