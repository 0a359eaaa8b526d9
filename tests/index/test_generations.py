"""Several generations searched as one: equal, ties and rows included, to one list sorted as a whole."""

from __future__ import annotations

import contextlib
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import rbegir
from rbegir.codes import score
from rbegir.codes.planes import Codes
from rbegir.errors import InputError, MismatchError
from tests.index.fakes import HashEncoder


class Coarse(HashEncoder):
    """Codes with few different values, so that scores tie within and between generations."""

    def __init__(self, name: str, reads: tuple[str, ...] = (), keyword_planes: int = 2) -> None:
        super().__init__(keyword_planes=keyword_planes, seed=name)
        self.reads = (self.fingerprint, *reads)

    def _encode(self, texts: list[str], planes: int) -> Codes:
        return super()._encode([str(sum(text.encode()) % 7) for text in texts], planes)


OLD = Coarse("old")
MIDDLE = Coarse("middle", (OLD.fingerprint,), keyword_planes=1)
NEW = Coarse("new", (OLD.fingerprint, MIDDLE.fingerprint))


class Plain:
    """What generations must do, with lists: a record a keyword, a full sort a search."""

    def __init__(self, encoders: list[Coarse]) -> None:
        self.encoders = encoders
        self.records: list[list[dict[str, Any]]] = [[] for _ in encoders]  # live, by generation
        self.rows = [0] * len(encoders)

    def put(self, generation: int, ids: list[int], texts: list[str]) -> None:
        self.drop(ids)
        for key, text in zip(ids, texts, strict=True):
            self.records[generation].append({"id": key, "text": text, "row": self.rows[generation]})
            self.rows[generation] += 1

    def drop(self, ids: list[int]) -> int:
        count = sum(len(part) for part in self.records)
        self.records = [[r for r in part if r["id"] not in ids] for part in self.records]
        return count - sum(len(part) for part in self.records)

    def search(self, query: str, k: int, deny: list[int]) -> list[tuple[int, int]]:
        values = NEW.encode_queries([query]).values()
        found = []
        for generation, part in enumerate(self.records):
            before = sum(self.rows[:generation])
            for record in part:
                if record["id"] not in deny:
                    code = self.encoders[generation].encode_keywords([record["text"]])
                    key = int(score.keys(values, code)[0, 0])
                    found.append((-key, before + record["row"], record["id"]))
        return [(key_id, -key) for key, _, key_id in sorted(found)[:k]]


def make(folder: Path, encoders: list[Coarse]) -> list[Path]:
    paths = [folder / f"{number}.rbe" for number in range(len(encoders))]
    for path, encoder in zip(paths, encoders, strict=True):
        with rbegir.Index.create(path, encoder):
            pass
    return paths


words = st.text("abcdefg", min_size=1, max_size=3)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("old"), st.dictionaries(st.integers(0, 30), words, min_size=1, max_size=6)),
        st.tuples(st.just("upsert"), st.dictionaries(st.integers(0, 30), words, min_size=1, max_size=6)),
        st.tuples(st.just("delete"), st.lists(st.integers(0, 30), min_size=1, max_size=5, unique=True)),
        st.tuples(st.just("search"), words, st.integers(1, 12), st.lists(st.integers(0, 30), max_size=4)),
        st.tuples(st.just("compact")),
    ),
    min_size=2,
    max_size=10,
)


@given(steps)
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_it_equals_one_sorted_list(
    tmp_path_factory: pytest.TempPathFactory, script: list[tuple[Any, ...]]
) -> None:
    encoders = [OLD, MIDDLE, NEW]
    paths = make(tmp_path_factory.mktemp("generations"), encoders)
    plain = Plain(encoders)
    olds = [rbegir.Index.open(path, model=e) for path, e in zip(paths[:2], encoders[:2], strict=True)]
    taken: set[int] = set()
    for number, step in enumerate(step for step in script if step[0] == "old"):  # first the past …
        fresh = {key: text for key, text in step[1].items() if key not in taken}
        taken |= set(fresh)
        if fresh:
            olds[number % 2].add(list(fresh.values()), list(fresh))
            plain.put(number % 2, list(fresh), list(fresh.values()))
    for index in olds:
        index.close()
    with rbegir.Generations(paths, NEW) as both:  # … then changes and questions
        for step in script:
            if step[0] == "upsert":
                both.upsert(list(step[1].values()), list(step[1]))
                plain.put(2, list(step[1]), list(step[1].values()))
            elif step[0] == "delete":
                assert both.delete(step[1]) == plain.drop(step[1])
            elif step[0] == "compact":
                both.compact()
            elif step[0] == "search":
                hits = both.search(step[1], k=step[2], deny=step[3] or None)
                expected = plain.search(step[1], step[2], step[3])
                assert list(zip(hits.ids[0].tolist(), hits.keys[0].tolist(), strict=True)) == expected
        hits = both.search(["abc", "g"], k=40)
        for row, query in enumerate(["abc", "g"]):
            assert hits.ids[row].tolist() == [key for key, _ in plain.search(query, 40, [])]
        assert len(both) == sum(len(part) for part in plain.records)


def test_an_id_that_is_moving_counts_once(tmp_path: Path) -> None:
    """Added to the new generation and not yet deleted from the old one: what a crash in between leaves."""
    paths = make(tmp_path, [OLD, NEW])
    texts = [f"text {i}" for i in range(40)]
    with rbegir.Index.open(paths[0], model=OLD) as index:
        index.add(texts)
    with rbegir.Index.open(paths[1], model=NEW) as index:
        index.add(texts[:25], ids=np.arange(25))
    plain = Plain([OLD, NEW])
    plain.put(0, list(range(40)), texts)
    plain.put(1, list(range(25)), texts[:25])
    with rbegir.Generations(paths, NEW) as both:
        for k in (1, 5, 40, 100):
            hits = both.search("text 3", k=k)
            assert hits.ids[0].tolist() == [key for key, _ in plain.search("text 3", k, [])]
        only = both.search("text 3", k=100, allow=[3, 30, 99])
        assert sorted(only.ids[0].tolist()) == [3, 30]
        assert both.get([3, 30, 99]) == [{"id": 3, "text": "text 3"}, {"id": 30, "text": "text 30"}, None]


def test_update_count_and_delete_see_the_newest_version(tmp_path: Path) -> None:
    paths = make(tmp_path, [OLD, MIDDLE, NEW])
    with rbegir.Index.create(paths[0], OLD, tenant="shop", overwrite=True) as index:
        index.add([f"t{i}" for i in range(6)], attributes={"shop": ["a", "b"] * 3, "price": list(range(6))})
    with rbegir.Index.create(paths[2], NEW, tenant="shop", overwrite=True) as index:
        index.add(["t6", "t7"], ids=[6, 7], attributes={"shop": ["a", "b"], "price": [6, 7]})
    with rbegir.Generations(paths, NEW) as both:
        assert (both.count(), both.count("price > 3"), both.count("price > 3", tenant="a")) == (8, 4, 2)
        assert both.update([7, 1], {"price": [70, 10]}) == 2
        assert [found and found["price"] for found in both.get([1, 7])] == [10, 70]
        assert [found and found["text"] for found in both.get([1, 7])] == ["t1", "t7"]
        assert [len(index) for index in both.indexes] == [6, 0, 2]
        with pytest.raises(InputError, match="id 99 is not in the index"):
            both.update([0, 99], {"price": [50, 50]})
        assert both.get([0])[0] == {"id": 0, "text": "t0", "shop": "a", "price": 0}  # all or nothing
        # as a crash while keywords move leaves them; the newer version has another price
        both.indexes[2].add(["t2", "t3"], [2, 3], {"shop": ["a", "b"], "price": [2, 30]})
        assert both.delete(where="price = 3") == 0  # only what a newer version replaces
        assert both.delete(where="price = 30") == 1
        assert both.get([3]) == [None]
        assert both.delete([2, 5, 99], tenant="a") == 1
        assert both.get([2, 5])[1] == {"id": 5, "text": "t5", "shop": "b", "price": 5}
        assert sorted(both.search("t", k=20).ids[0].tolist()) == [0, 1, 4, 5, 6, 7]
        assert both.delete(tenant="b") == 3
        assert sorted(both.search("t", k=20).ids[0].tolist()) == [0, 4, 6]
        for wrong in ({}, {"ids": [1], "where": "price > 1"}):
            with pytest.raises(InputError, match="delete needs ids or where, and not both"):
                both.delete(**wrong)


def test_records_of_an_update_keep_what_they_do_not_name(tmp_path: Path) -> None:
    paths = make(tmp_path, [OLD, NEW])
    for number, (path, model) in enumerate(zip(paths, (OLD, NEW), strict=True)):
        with rbegir.Index.open(path, model=model) as index:
            index.add(["a", "b"], [2 * number, 2 * number + 1], {"price": [1.5, 2.5], "lang": ["en", "de"]})
    with rbegir.Generations(paths, NEW) as both:
        assert both.update([3, 0, 1], [{"price": 30}, {"lang": "it"}, {"price": None}]) == 3
        kept = [found and (found["price"], found["lang"]) for found in both.get([0, 1, 2, 3])]
        assert kept == [(1.5, "it"), (None, "de"), (1.5, "en"), (30.0, "de")]


def test_a_column_that_a_generation_lacks_is_null_as_in_one_index(tmp_path: Path) -> None:
    paths = make(tmp_path, [OLD, MIDDLE, NEW])
    texts = [f"text {i}" for i in range(12)]
    parts: list[tuple[list[int], dict[str, list[Any]]]] = [
        ([0, 1, 2, 3], {"shop": ["a", "b", "a", None]}),
        ([4, 5, 6], {}),
        ([7, 8, 9, 10, 11], {"price": [1.5, 2.5, None, 4.5, 5.5], "shop": ["b", "c", None, "a", "c"]}),
    ]
    wheres = ["price > 2", "price is null", "shop = 'a'", "shop = 'a' or price < 3", "text is not null"]
    with rbegir.Index.create(tmp_path / "one.rbe", OLD) as one, contextlib.ExitStack() as opened:
        for (ids, columns), path, model in zip(parts, paths, (OLD, MIDDLE, NEW), strict=True):
            one.add([texts[i] for i in ids], ids, columns)
            with rbegir.Index.open(path, model=model) as index:
                index.add([texts[i] for i in ids], ids, columns)
        both = opened.enter_context(rbegir.Generations(paths, NEW))
        every = {row["id"]: {name: row[name] for name in ("shop", "price")} for row in one.rows()}
        for where in wheres:
            expected = {row["id"] for row in one.rows(where)}
            hits = both.search("text 3", k=20, where=where)
            found = dict(zip(hits.ids[0].tolist(), (hits.attributes or [[]])[0], strict=True))
            assert found == {key: every[key] for key in expected}
            assert both.count(where) == one.count(where) == len(expected)
        assert both.get(range(12)) == one.get(range(12))
        shops = both.search("text 3", k=20, item="shop").ids[0].tolist()
        named = [every[key]["shop"] for key in shops if every[key]["shop"] is not None]
        assert sorted(named) == ["a", "b", "c"]
        assert len(shops) == 3 + sum(row["shop"] is None for row in every.values())
        both.migrate(2)
        assert both.delete(where="price > 2") == one.delete(where="price > 2") == 3
        assert both.migrate(9) == 2
        assert both.indexes[1].info()["attributes"] == {}
        assert sorted(both.search("text 3", k=20, where="price is null").ids[0].tolist()) == [
            0,
            1,
            2,
            3,
            4,
            5,
            6,
            9,
        ]


def test_vectors_are_added_and_found(tmp_path: Path) -> None:
    vectors = np.random.default_rng(2).standard_normal((60, 64)).astype(np.float32)
    binarizer = rbegir.Binarizer(64).fit(vectors)
    for name in ("old", "new"):
        rbegir.Index.create(tmp_path / name, binarizer).close()
    with rbegir.Index.open(tmp_path / "old") as old:
        old.add(vectors[:40])
    with rbegir.Generations([tmp_path / "old", tmp_path / "new"]) as both:
        assert both.add(vectors[40]).tolist() == [40]
        assert both.add(vectors[41:].tolist()).tolist() == list(range(41, 60))
        assert both.upsert(vectors[7], [7]).tolist() == [7]
        assert both.search(vectors[40].tolist(), k=1).ids.tolist() == [[40]]
        assert both.search(vectors, k=1).ids.ravel().tolist() == list(range(60))


@pytest.mark.parametrize(
    ("method", "arguments", "message"),
    [
        ("add", (5,), "texts must be a list of texts, got int"),
        ("add", (iter(["t"]),), "texts must be a list of texts, got list_iterator"),
        ("add", ("t",), "texts must be a list of texts, got str"),
        ("add", (["t"], 5), "ids must be a list of int or str, got int"),
        ("get", (5,), "ids must be a list of int or str, got int"),
    ],
)
def test_refused_as_an_index_refuses(
    tmp_path: Path, method: str, arguments: tuple[Any, ...], message: str
) -> None:
    with rbegir.Generations(make(tmp_path, [OLD, NEW]), NEW) as both:
        both.add(["a"])
        for one in (both.indexes[-1], both):
            with pytest.raises(InputError) as caught:
                getattr(one, method)(*arguments)
            assert caught.value.message == message


def test_default_ids_never_repeat(tmp_path: Path) -> None:
    paths = make(tmp_path, [OLD, NEW])
    with rbegir.Index.open(paths[0], model=OLD) as index:
        index.add(["a", "b", "c"])
    with rbegir.Generations(paths, NEW) as both:
        assert both.add(["d", "e"]).tolist() == [3, 4]
        both.delete([4])
        assert both.add(["f"]).tolist() == [5]
        assert sorted(both.search("a", k=9).ids[0].tolist()) == [0, 1, 2, 3, 5]
        hits = both.search("a", k=9)
        assert hits.rows.tolist() == [
            [{3: 2**40, 5: 2**40 + 2}.get(key, key) for key in hits.ids[0].tolist()]
        ]
        assert both.info()["keywords"] == 5
        assert both.info()["next_row"] == 6
        with pytest.raises(InputError, match="id 1 is in the index already"):
            both.add(["again"], ids=[1])


@pytest.mark.parametrize("k", [1, 7])
def test_pages_stay_correct_while_keywords_are_updated(tmp_path: Path, k: int) -> None:
    """Updated keywords get new rows; of all others, each is found once, in the order of one search."""
    paths = make(tmp_path, [OLD, MIDDLE, NEW])
    for number, (path, model) in enumerate(zip(paths, (OLD, MIDDLE, NEW), strict=True)):
        ids = range(20 * number, 20 * number + 20)
        with rbegir.Index.open(path, model=model) as index:
            index.add([f"text {i}" for i in ids], ids, {"price": [0] * 20})
    changed = [0, 1, 2, 21, 41]
    with rbegir.Generations(paths, NEW) as both:
        whole = [key for key in both.search("text 3", k=60).ids[0].tolist() if key not in changed]
        found: list[int] = []
        page = both.search("text 3", k=k)
        for turn in itertools.count():
            if not page.counts.any():
                break
            found += page.ids[0].tolist()
            if turn < 20:
                both.update(changed, {"price": [turn] * 5})
            page = both.search("text 3", k=k, after=page.cursor)
        assert [key for key in found if key not in changed] == whole


def test_migrate_moves_keywords_as_they_are(tmp_path: Path) -> None:
    paths = make(tmp_path, [OLD, NEW])
    with rbegir.Index.open(paths[0], model=OLD) as index:
        index.add([f"t{i}" for i in range(7)], attributes={"price": list(range(7))})
        index.add_codes(OLD.encode_keywords(["textless"]), ids=[7])
    with rbegir.Generations(paths, NEW) as both:
        assert both.migrate(5) == 5
        assert [len(index) for index in both.indexes] == [3, 5]
        assert both.migrate(5) == 2
        assert both.migrate(5) == 0  # what has no text stays
        assert [len(index) for index in both.indexes] == [1, 7]
        assert both.get([4]) == [{"id": 4, "text": "t4", "price": 4}]
        dear = both.search("t1", k=10, where="price > 3")
        assert sorted(dear.ids[0].tolist()) == [4, 5, 6]
        assert dear.attributes is not None
        expected = score.keys(NEW.encode_queries(["t1"]).values(), NEW.encode_keywords(["t4", "t5", "t6"]))
        assert sorted(dear.keys[0].tolist()) == sorted(expected[0].tolist())
        with pytest.raises(InputError, match="count must be a whole number of at least 1, got 0"):
            both.migrate(0)


def test_a_model_that_does_not_read_a_generation_is_refused(tmp_path: Path) -> None:
    paths = make(tmp_path, [NEW, OLD])  # the wrong way round: old queries do not read new codes
    with pytest.raises(MismatchError, match="the model does not belong to this index"):
        rbegir.Generations(paths, OLD)
    with pytest.raises(InputError, match="indexes must be a list of paths, oldest first"):
        rbegir.Generations(str(paths[0]))  # type: ignore[arg-type]
    with pytest.raises(InputError, match="indexes must be a list of paths, oldest first"):
        rbegir.Generations([])


def test_generations_are_searched_exactly_only(tmp_path: Path) -> None:
    with rbegir.Generations(make(tmp_path, [OLD, NEW]), NEW) as both:
        for options in ({"mode": "paper"}, {"planes": 1}):
            with pytest.raises(InputError, match="generations are searched exactly"):
                both.search("a", **options)  # type: ignore[arg-type]
        with pytest.raises(InputError, match="k must be a whole number"):
            both.search("a", k=0)
        assert both.search("a", k=3).ids.shape == (1, 0)


def test_ids_of_different_types_do_not_mix(tmp_path: Path) -> None:
    paths = make(tmp_path, [OLD, NEW])
    with rbegir.Index.open(paths[0], model=OLD) as index:
        index.add(["a"], ids=["x"])
    with rbegir.Index.open(paths[1], model=NEW) as index:
        index.add(["b"], ids=[1])
    with pytest.raises(MismatchError, match="ids of different types: int64, string"):
        rbegir.Generations(paths, NEW)
