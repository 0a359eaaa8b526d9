"""A filter per query in one search: equal to a full sort, evaluated once, with and without a reranker."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow.compute as pc
import pytest

import rbegir
from rbegir.codes import score
from rbegir.errors import FilterError, InputError
from rbegir.index import filter as filters
from rbegir.index.query import for_awaited
from tests.index.fakes import HashEncoder
from tests.reranking import make_model, some_texts

ENCODER = HashEncoder()
COUNT = 5000
WORDS = [f"w{number % 997}" for number in range(COUNT)]
PRICES = [None if number % 11 == 0 else number * 37 % 100 for number in range(COUNT)]
LANGS = ["en" if number % 3 else None for number in range(COUNT)]
LIVE = [number for number in range(COUNT) if number % 7]

# what a filter says, and the same in Python: a test on a null is neither true nor false
WHERES: list[tuple[Any, Any]] = [
    (None, lambda row: True),
    ("price < 30", lambda row: PRICES[row] is not None and PRICES[row] < 30),
    ("not price < 30", lambda row: PRICES[row] is not None and PRICES[row] >= 30),
    ("price = 37", lambda row: PRICES[row] == 37),
    ("price is null", lambda row: PRICES[row] is None),
    ("lang = 'en' or price > 90", lambda row: LANGS[row] == "en" or (PRICES[row] or 0) > 90),
    ("lang != 'en'", lambda row: False),  # every other lang is null
    ("price < 1000 or price is null", lambda row: True),
    ("price > 1000", lambda row: False),
    ("id = 4242", lambda row: row == 4242),
    (pc.field("price") >= 50, lambda row: PRICES[row] is not None and PRICES[row] >= 50),
]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three segments with deletes."""
    path = tmp_path_factory.mktemp("each") / "a.rbe"
    with rbegir.Index.create(path, ENCODER) as index:
        for start, end in ((0, 3000), (3000, 3064), (3064, COUNT)):
            index.add(WORDS[start:end], attributes={"price": PRICES[start:end], "lang": LANGS[start:end]})
        index.delete([number for number in range(COUNT) if number % 7 == 0])
    return path


@pytest.fixture(scope="module")
def index(path: Path) -> rbegir.Index:
    return rbegir.Index.open(path, model=ENCODER, read_only=True)


@pytest.fixture(scope="module")
def keywords() -> Any:
    return ENCODER.encode_keywords(WORDS)


@pytest.mark.parametrize("queries", [1, 2, 3, 9, 64, 300])
def test_equal_to_a_full_sort(index: rbegir.Index, keywords: Any, queries: int) -> None:
    """Random filters, allowed and denied ids per query, with and without a least score."""
    rng = np.random.default_rng(queries)
    texts = [f"w{number}" for number in rng.integers(0, 1200, queries)]
    values = ENCODER.encode_queries(texts).values()
    all_keys = score.keys(values, keywords)
    scores = score.cosine(all_keys, score.norm_squared(values))
    for round_ in range(6):
        chosen = rng.integers(0, len(WHERES), queries) if round_ else np.full(queries, 1)
        options: dict[str, Any] = {"where": [WHERES[number][0] for number in chosen]}
        allow = [rng.choice(COUNT, size).tolist() for size in rng.choice([0, 1, 40, 3000], queries)]
        deny = [rng.choice(COUNT, 2000).tolist() for _ in range(queries)]
        if round_ in (2, 3):
            options["allow"] = allow = [ids if rng.random() < 0.7 else None for ids in allow]
            options["allow"] = [*allow[:-1], allow[-1] or []]
        if round_ in (3, 4):
            options["deny"] = [ids if rng.random() < 0.7 else None for ids in deny]
        if round_ == 5:
            options["min_score"] = 0.1
        k = int(rng.choice([1, 10, 2000]))
        hits = index.search(texts, k, **options)
        for number, where in enumerate(chosen):
            allowed, denied = ((options.get(name) or [None] * queries)[number] for name in ("allow", "deny"))
            rows = np.array(
                [
                    row
                    for row in LIVE
                    if WHERES[where][1](row) and scores[number, row] >= options.get("min_score", -2)
                ],
                np.int64,
            )
            if allowed is not None:
                rows = rows[np.isin(rows, allowed)]
            if denied is not None:
                rows = rows[~np.isin(rows, denied)]
            wanted = rows[np.lexsort((rows, -all_keys[number, rows]))][:k]
            assert hits.rows[number, : hits.counts[number]].tolist() == wanted.tolist()


def test_a_filter_is_evaluated_once_and_kept(path: Path) -> None:
    with rbegir.Index.open(path, model=ENCODER, read_only=True) as index:
        wheres = [f"price < {number}" for number in range(64)]
        with mock.patch.object(
            filters.Filter, "_evaluated", autospec=True, side_effect=filters.Filter._evaluated
        ) as evaluated:
            index.search(["w1"] * 64, 3, where=wheres)
            assert evaluated.call_count == 64 * 3  # segments
            index.search(["w2"] * 128, 3, where=wheres * 2)
            index.search("w2", 3, where=wheres[7])
            assert evaluated.call_count == 64 * 3


def test_a_filter_that_nobody_waits_for_is_given_up(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the block that is being evaluated; queries with other filters are not touched."""
    monkeypatch.setattr(filters, "BLOCK_ROWS", 128)
    monkeypatch.setattr(filters, "LEAST_ROWS", 64)
    left, kept = "contains(text, 'w1') and contains(text, 'w3')", "contains(text, 'w5') and price < 60"
    queries, wheres = ["a", "b", "c", "d"], [left, kept, left, None]
    gone: set[int] = set()
    rows: list[int] = []
    evaluate = filters.Filter._evaluate

    def noted(self: filters.Filter, table: Any) -> Any:
        if table.num_rows:
            rows.append(table.num_rows)
        if len(rows) == 3:
            gone.add(0)
        if len(rows) == 5:
            gone.add(2)
        return evaluate(self, table)

    monkeypatch.setattr(filters.Filter, "_evaluate", noted)
    index = rbegir.Index.open(path, model=ENCODER, read_only=True)
    with for_awaited(lambda query: query not in gone):
        hits = index.search(queries, 9, where=wheres)
    assert rows[:6] == [64] * 5 + [128]  # two tests of texts, then one
    assert sum(rows) == 5 * 64 + COUNT
    alone = [index.search(query, 9, where=where) for query, where in zip(queries, wheres, strict=True)]
    assert hits.counts.tolist() == [0, *alone[1].counts, 0, *alone[3].counts]
    for number in (1, 3):
        assert hits.ids[number, : hits.counts[number]].tolist() == alone[number].ids[0].tolist()
    assert sum(rows) == 5 * 64 + 2 * COUNT  # what was given up is not kept as if it were complete


def test_the_least_recently_used_masks_are_evicted(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filters, "KEPT", 3)
    monkeypatch.setattr(filters, "KEPT_BYTES", 0)
    with rbegir.Index.open(path, model=ENCODER, read_only=True) as index:
        for number in (1, 2, 3, 1, 4):
            index.search("w1", 3, where=f"price < {number}")
        kept = list(index.snapshot.segments[0].segment.filters)
    assert kept == ["price < 3", "price < 1", "price < 4"]


def test_refused(index: rbegir.Index) -> None:
    with pytest.raises(InputError, match="where has 1 entries for 2 queries"):
        index.search(["w1", "w2"], where=["price < 3"])
    with pytest.raises(InputError, match="deny has 3 entries for 2 queries"):
        index.search(["w1", "w2"], deny=[[1], [2], None])
    with pytest.raises(FilterError, match="there is no column 'prize'"):
        index.search(["w1", "w2"], where=["price < 3", "prize < 3"])
    with pytest.raises(FilterError, match="where must be a text or a pyarrow expression, got int"):
        index.search(["w1", "w2"], where=["price < 3", 7])


def test_generations(path: Path, index: rbegir.Index, tmp_path: Path) -> None:
    newer = HashEncoder(seed="2")
    newer.reads = (newer.fingerprint, ENCODER.fingerprint)  # type: ignore[attr-defined]
    newer._encode = ENCODER._encode  # type: ignore[method-assign]
    with rbegir.Index.create(tmp_path / "b.rbe", newer) as second:
        second.add(["w1", "w2"], ids=[1, 9001], attributes={"price": [3, 4], "lang": ["de", "de"]})
    with rbegir.Generations([path, tmp_path / "b.rbe"], newer, read_only=True) as both:
        options: dict[str, Any] = {"where": ["lang = 'de'", "price < 5", None], "deny": [None, None, [1, 2]]}
        hits = both.search(["w1", "w1", "w1"], 20, **options)
        for number in range(3):
            alone = {name: values[number] for name, values in options.items()}
            one = both.search("w1", 20, **alone)
            assert hits.ids[number, : hits.counts[number]].tolist() == one.ids[0].tolist()
        assert hits.ids[0, :2].tolist() == [1, 9001]


def test_reranked_hits(tmp_path: Path) -> None:
    """The candidates by code and by words pass the filter of their query."""
    texts = some_texts(400)
    model = make_model(tmp_path / "model", texts)
    with rbegir.Index.create(tmp_path / "a.rbe", model) as index:
        index.add(texts[:250], attributes={"price": list(range(250))})
        index.add(texts[250:], attributes={"price": list(range(250, 400))})
        queries = texts[5:12]
        wheres = ["price < 50", None, "price = 7", "price > 399", "price >= 200", "price < 50", "price != 3"]
        hits = index.search(queries, 12, where=wheres)
        assert hits.reranked
        assert sorted(set(hits.counts.tolist())) == [0, 1, 12]
        for number, (query, where) in enumerate(zip(queries, wheres, strict=True)):
            alone = index.search(query, 12, where=where)
            assert hits[number] == alone[0]
