"""A filter per query in one search: equal to a full sort, evaluated once, with and without a reranker."""

from __future__ import annotations

import datetime
import itertools
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import rbegir
from rbegir.codes import score
from rbegir.errors import FilterError, InputError
from rbegir.index import filter as filters
from rbegir.index.query import Caller, calling
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


def test_values_of_a_column_are_found_in_one_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every type, nulls, values that no keyword has, equal tests in other words, deletes, and a column that
    the first segment lacks. Only whole numbers and texts are found together."""
    monkeypatch.setattr(filters, "BLOCK_ROWS", 128)
    rng = np.random.default_rng(3)
    count, borders = 700, (0, 300, 365, 700)

    def column(kind: pa.DataType, values: list[Any]) -> pa.Array:
        return pa.array([values[number] for number in rng.integers(0, len(values), count)], kind)

    columns = {
        "whole": column(pa.int64(), [None, *range(-20, 20), 2**63 - 1]),
        "tiny": column(pa.int8(), [None, *range(-9, 9), 127, -128]),
        "large": column(pa.uint64(), [None, *range(9), 2**64 - 1, 2**63]),
        "name": column(pa.string(), [None, "", "a", "A", "it's", "größe", *"bcdefghij"]),
        "flag": column(pa.bool_(), [None, True, False]),
        "real": column(pa.float64(), [None, 0.0, -0.0, 0.1, 1.0, 2.0, 1e300, 7.0]),
        "day": column(pa.date32(), [None, *(datetime.date(2026, 1, day) for day in range(1, 15))]),
        "late": column(pa.int64(), [None, *range(12)]),
    }
    columns["late"] = pa.array([None] * 300 + columns["late"].to_pylist()[300:], pa.int64())
    index = rbegir.Index.create(tmp_path / "a.rbe", ENCODER)
    for start, end in itertools.pairwise(borders):
        part = pa.table(columns).slice(start, end - start)
        index.add(WORDS[start:end], attributes=part.drop_columns("late") if start == 0 else part)
    deleted = set(range(0, count, 7))
    index.delete(sorted(deleted))

    def literal(value: Any) -> str:
        if isinstance(value, (str, datetime.date)):
            return "'" + str(value).replace("'", "''") + "'"
        return str(value).lower()

    asked: list[tuple[str, list[int]]] = []
    for name, stored in columns.items():
        values = stored.to_pylist()
        absent = {"name": ["zz", "B"], "day": [datetime.date(2025, 1, 1)], "flag": []}.get(
            name, [77, 2**63, 0.5]
        )
        for value in [*set(values) - {None}, *absent]:
            rows = [row for row in range(count) if values[row] == value and row not in deleted]
            asked.append((f"{name} = {literal(value)}", rows))
    for where in ("3 = whole", "(whole=3)", "whole == 3", "((3 == whole))"):
        asked.append((where, next(rows for text, rows in asked if text == "whole = 3")))
    for where in ("not whole = 3", "whole = 3 and tiny = 3", "whole = 3 or tiny = 3", "id = 5"):
        rows = index.search("w1", count, where=where).ids[0].tolist()  # alone
        asked.append((where, sorted(rows)))
    asked += [(f"id = {row}", [row] if row < count and row not in deleted else []) for row in range(690, 710)]
    evaluated = mock.Mock(side_effect=filters.Filter._evaluated)
    monkeypatch.setattr(filters.Filter, "_evaluated", lambda self, segment: evaluated(self, segment))
    for queries in (rng.permutation(len(asked)), rng.integers(0, len(asked), 40)):
        hits = index.search(["w1"] * len(queries), count, where=[asked[number][0] for number in queries])
        for number, query in enumerate(queries):
            where, rows = asked[query]
            assert sorted(hits.ids[number, : hits.counts[number]].tolist()) == rows, where
    for call in evaluated.call_args_list:
        name, _, value = call.args[0]._key.partition(" = ")
        does_not_fit = value in ("0.5", str(2**63))
        assert (
            name in ("flag", "real", "day", "(whole=3)", "3", "((3 == whole))")
            or " " in value
            or does_not_fit
        )


def test_values_that_nobody_waits_for_are_given_up(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filters, "BLOCK_ROWS", 128)
    wheres = [f"price = {number}" for number in range(20)]
    with rbegir.Index.open(path, model=ENCODER, read_only=True) as index:
        calls = iter(range(10**6))
        with calling(Caller(awaited=lambda query: next(calls) < 10)):
            hits = index.search(["w1"] * 20, 9, where=wheres)
        assert not hits.counts.any()
        assert not any(one.segment.filters for one in index.snapshot.segments)
        assert index.search(["w1"] * 20, 9, where=wheres).counts.any()


def test_queries_whose_filters_are_known_are_not_asked_for(path: Path) -> None:
    """Nor those without a filter: a service takes such a question for the time that they may need."""
    wheres = [None, "price = 50", *(f"price = {number}" for number in range(20)), "price < 9"]
    with rbegir.Index.open(path, model=ENCODER, read_only=True) as index:
        alone = [index.search("w1", 9, where=where).ids[0].tolist() for where in wheres[:2]]
        assert all(alone)
        asked: list[int] = []
        with calling(Caller(awaited=lambda query: bool(asked.append(query)))):
            hits = index.search(["w1"] * len(wheres), 9, where=wheres)
        assert set(asked) == set(range(2, len(wheres)))
        assert [hits.ids[query, : hits.counts[query]].tolist() for query in (0, 1)] == alone
        assert not hits.counts[2:].any()


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
    with calling(Caller(awaited=lambda query: query not in gone)):
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


def test_filters_may_be_arrays(index: rbegir.Index) -> None:
    queries = ["w1", "w2", "w3"]
    each = {"where": ["price < 3", None, "price > 5"], "must": ["w1", None, "w3"]}
    for name, given in each.items():
        wanted = index.search(queries, 9, **{name: given})  # type: ignore[arg-type]
        assert wanted.counts.min() > 0
        for make in (np.array, pa.array, lambda given: pa.chunked_array([given]), tuple):
            hits = index.search(queries, 9, **{name: make(given)})  # type: ignore[arg-type]
            assert hits.ids.tolist() == wanted.ids.tolist()


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
