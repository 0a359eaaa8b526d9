"""Random histories of an index against a plain Python model: same keywords, same hits, same order, always."""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from rbegir.errors import InputError
from rbegir.index import writer
from rbegir.index.store import Index
from tests.index.fakes import HashEncoder, PlainIndex

WORDS = [
    "red",
    "green",
    "blue",
    "cyan",
    "teal",
    "plum",
    "gold",
]  # few, so that equal codes and ties are common
texts_of = st.lists(st.sampled_from(WORDS), min_size=1, max_size=12)
prices = st.one_of(st.none(), st.integers(-3, 9))
langs = st.one_of(st.none(), st.sampled_from(["en", "de"]))
FILTERS: list[tuple[str, Any]] = [
    ("price < 4", lambda r: r["price"] is not None and r["price"] < 4),
    ("not price < 4", lambda r: r["price"] is not None and r["price"] >= 4),
    (
        "price >= 0 and lang = 'en'",
        lambda r: r["price"] is not None and r["price"] >= 0 and r["lang"] == "en",
    ),
    ("lang is null or price in (1, 2, 3)", lambda r: r["lang"] is None or r["price"] in (1, 2, 3)),
    ("lang not in ('de')", lambda r: r["lang"] == "en"),
    ("text = 'red' and not (lang = 'de')", lambda r: r["text"] == "red" and r["lang"] == "en"),
    ("price > 100", lambda r: False),
]


class Compaction(threading.Thread):
    """A compaction that stops wherever `pause` is called, until the next `step`."""

    def __init__(self, index: Index) -> None:
        super().__init__()
        self._compact = index.compact
        self._go, self._stopped = threading.Semaphore(0), threading.Semaphore(0)
        self.running = True
        self.failure: BaseException | None = None
        self.start()
        self._stopped.acquire()

    def run(self) -> None:
        try:
            self._compact()
        except BaseException as error:
            self.failure = error
        self.running = False
        self._stopped.release()

    def pause(self) -> None:
        self._stopped.release()
        self._go.acquire()

    def step(self) -> None:
        self._go.release()
        self._stopped.acquire()


def pausing(work: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, but a `Compaction` stops before and after it."""

    def paused(*arguments: Any) -> Any:
        thread = threading.current_thread()
        if not isinstance(thread, Compaction):
            return work(*arguments)
        thread.pause()
        result = work(*arguments)
        thread.pause()
        return result

    return paused


class History(RuleBasedStateMachine):
    """One writer that is also read, a reader that refreshes now and then, and what they should say."""

    @initialize(kind=st.sampled_from(["row", "int64", "string"]), planes=st.sampled_from([(3, 2), (1, 1)]))
    def start(self, kind: str, planes: tuple[int, int]) -> None:
        self.kind = kind
        self.folder = Path(tempfile.mkdtemp())
        self.encoder = HashEncoder(64, *planes)
        self.index = Index.create(self.folder / "x.rbe", self.encoder)
        self.model = PlainIndex(self.encoder)
        self.reader = Index.open(self.folder / "x.rbe", model=self.encoder, read_only=True)
        self.seen = dict(self.model.live)  # what the reader should see
        self.compaction: Compaction | None = None

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            self.end_compaction()
            self.index.close()
            shutil.rmtree(self.folder)

    def some_id(self, number: int) -> Any:
        return f"k{number}" if self.kind == "string" else number

    @rule(texts=texts_of, data=st.data())
    def add(self, texts: list[str], data: st.DataObject) -> None:
        count = len(texts)
        attributes = [{"price": data.draw(prices), "lang": data.draw(langs)} for _ in texts]
        ids = None
        if self.kind != "row":
            numbers = data.draw(st.lists(st.integers(0, 40), min_size=count, max_size=count, unique=True))
            ids = [self.some_id(number) for number in numbers]
        clash = ids is not None and any(key in self.model.live for key in ids)
        if clash:
            with pytest.raises(InputError, match="is in the index already"):
                self.index.add(texts, ids, attributes)
        else:
            assert list(self.index.add(texts, ids, attributes)) == self.model.add(texts, ids, attributes)

    @precondition(lambda self: self.kind != "row")
    @rule(texts=texts_of, data=st.data())
    def upsert(self, texts: list[str], data: st.DataObject) -> None:
        count = len(texts)
        attributes = [{"price": data.draw(prices), "lang": data.draw(langs)} for _ in texts]
        numbers = data.draw(st.lists(st.integers(0, 40), min_size=count, max_size=count, unique=True))
        ids = [self.some_id(number) for number in numbers]
        assert list(self.index.upsert(texts, ids, attributes)) == ids
        self.model.delete(ids)
        self.model.add(texts, ids, attributes)

    @rule(numbers=st.lists(st.integers(0, 60), max_size=12))
    def delete(self, numbers: list[int]) -> None:
        ids = [self.some_id(number) for number in numbers]
        assert self.index.delete(ids) == self.model.delete(ids)

    @rule(choice=st.sampled_from(FILTERS))
    def delete_by_filter(self, choice: tuple[str, Any]) -> None:
        where, passes = choice
        if {"price", "lang"} <= set(self.index.info()["attributes"]):
            gone = [key for key, record in self.model.live.items() if passes(record)]
            assert self.index.count(where) == len(gone)
            assert [row["id"] for row in self.index.rows(where)] == gone
            assert self.index.delete(where=where) == self.model.delete(gone)

    @rule(numbers=st.lists(st.integers(0, 60), max_size=6, unique=True), price=prices)
    def update(self, numbers: list[int], price: int | None) -> None:
        ids = [key for number in numbers if (key := self.some_id(number)) in self.model.live]
        if "price" not in self.index.info()["attributes"]:
            return
        assert self.index.update(ids, {"price": [price] * len(ids)}) == len(ids)
        before = [self.model.live.pop(key) for key in ids]
        changed = [{"price": price, "lang": record["lang"]} for record in before]
        self.model.add([record["text"] for record in before], ids, changed)

    @rule()
    def delete_everything(self) -> None:
        assert self.index.delete(list(self.model.live)) == self.model.delete(list(self.model.live))

    @precondition(lambda self: self.compaction is None)
    @rule()
    def begin_compaction(self) -> None:
        self.compaction = Compaction(self.index)

    @precondition(lambda self: self.compaction is not None)
    @rule()
    def continue_compaction(self) -> None:
        compaction = self.compaction
        assert compaction is not None
        compaction.step()
        if not compaction.running:
            self.compaction = None
        assert compaction.failure is None

    def end_compaction(self) -> None:
        while self.compaction is not None:
            self.continue_compaction()

    @rule()
    def compact(self) -> None:
        self.end_compaction()
        self.index.compact()
        assert self.index.info()["segments"] <= 1
        assert self.index.info()["deleted"] == 0

    @rule()
    def reopen(self) -> None:
        self.end_compaction()
        self.index.close()
        self.index = Index.open(self.folder / "x.rbe", model=self.encoder)

    @rule()
    def refresh(self) -> None:
        self.reader.refresh()
        self.seen = dict(self.model.live)

    @rule(query=st.sampled_from(WORDS), k=st.integers(1, 60), choice=st.sampled_from(FILTERS))
    def filtered(self, query: str, k: int, choice: tuple[str, Any]) -> None:
        where, passes = choice
        # columns exist from their first value on
        if {"price", "lang"} <= set(self.index.info()["attributes"]):
            self.same_hits(self.index, self.model, query, k, passes, where=where)

    @rule(
        query=st.sampled_from(WORDS), k=st.integers(1, 60), numbers=st.lists(st.integers(0, 60), max_size=20)
    )
    def listed(self, query: str, k: int, numbers: list[int]) -> None:
        ids = [self.some_id(number) for number in numbers]
        self.same_hits(self.index, self.model, query, k, lambda r: r["id"] in ids, allow=ids)
        self.same_hits(self.index, self.model, query, k, lambda r: r["id"] not in ids, deny=ids)

    @rule(query=st.sampled_from(WORDS), k=st.integers(1, 60))
    def as_the_reader_sees_it(self, query: str, k: int) -> None:
        view = PlainIndex(self.encoder)
        view.live = self.seen
        self.same_hits(self.reader, view, query, k)

    @invariant()
    def same_keywords(self) -> None:
        if not hasattr(self, "index"):
            return
        assert len(self.index) == len(self.model.live)
        ids = [self.some_id(number) for number in range(61)]
        for got, key in zip(self.index.get(ids), ids, strict=True):
            record = self.model.live.get(key)
            assert (got is None) == (record is None)
            if got is not None and record is not None:
                assert {**got} == {name: record[name] for name in got}
        self.same_hits(self.index, self.model, "red", 7)

    @staticmethod
    def same_hits(
        index: Index, model: PlainIndex, query: str, k: int, passes: Any = lambda r: True, **options: Any
    ) -> None:
        hits = index.search(query, k, **options)
        wanted = model.search(query, k, passes)
        got = list(zip(hits.ids[0].tolist(), hits.keys[0].tolist(), hits.rows[0].tolist(), strict=True))
        assert got == wanted
        assert list(hits.texts[0]) == [model.live[key]["text"] for key, _, _ in wanted]


@pytest.fixture(autouse=True)
def _merge_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiers of a few rows, so that short histories see merges of merges."""
    monkeypatch.setattr(writer, "TIER_ROWS", 4)
    monkeypatch.setattr(writer, "FAN", 3)


@pytest.fixture(autouse=True)
def _compact_step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer.Compaction, "write", pausing(writer.Compaction.write))
    monkeypatch.setattr(writer, "write_segment", pausing(writer.write_segment))


History.TestCase.settings = settings(
    max_examples=40,
    stateful_step_count=30,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


class TestHistory(History.TestCase):  # type: ignore[name-defined,misc]
    """Collected by pytest."""
