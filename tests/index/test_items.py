"""One hit per item equals a full sort from which all but the first hit of each item are left out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rbegir
from rbegir.errors import InputError
from rbegir.index.generations import ROWS
from rbegir.index.store import Index
from rbegir.search import items
from tests.index.fakes import HashEncoder, PlainIndex
from tests.reranking import make_model, some_texts

ENCODER = HashEncoder()


def firsts(found: list[tuple[Any, int, int]], item_of: Any, k: int) -> list[tuple[Any, int, int]]:
    """The first hit of each item; a hit whose item is None stands for itself."""
    seen: set[Any] = set()
    kept = []
    for hit in found:
        item = item_of(hit[0])
        if item is None or item not in seen:
            seen.add(item)
            kept.append(hit)
    return kept[:k]


def listed(hits: rbegir.Hits, query: int = 0) -> list[tuple[Any, int, int]]:
    count = int(hits.counts[query])
    columns = (array[query, :count].tolist() for array in (hits.ids, hits.keys, hits.rows))
    return list(zip(*columns, strict=True))


@pytest.mark.parametrize(("names", "seed"), [(["a", "b", "", "ü", None], 0), ([7, -7, 2**62, None], 1)])
def test_equal_to_a_full_sort(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: list[Any], seed: int
) -> None:
    monkeypatch.setattr(items, "ROOM", (100, 1 << 22)[seed])  # with little room, queries are searched in turn
    rng = np.random.default_rng(seed)
    plain = PlainIndex(ENCODER)
    with Index.create(tmp_path / "x.rbe", ENCODER, tenant="shop") as index:
        for step in range(4):
            count = (300, 70, 1, 200)[step]
            texts = [f"w{number}" for number in rng.integers(0, 40, count)]  # many equal scores
            ids = rng.choice(800, count, replace=False).tolist()
            many = [names[number] for number in rng.integers(0, len(names), count)]
            few = [f"{number}" for number in rng.integers(0, 100, count)]
            columns = {"shop": rng.integers(0, 3, count).tolist(), "few": few, "all": ["one"] * count}
            if step:  # the first segment lacks the column
                columns["item"] = many
            index.upsert(texts, ids, columns)
            plain.delete(ids)
            rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
            plain.add(texts, ids, rows)
            if step == 2:
                gone = rng.choice(800, 150).tolist()
                assert index.delete(gone) == plain.delete(gone)
            for name in ("item", "few", "all")[not step :]:
                _compare(index, plain, rng, name)


def _compare(index: Index, plain: PlainIndex, rng: np.random.Generator, name: str) -> None:
    queries, k = [f"w{number}" for number in rng.integers(0, 60, 3)], int(rng.choice([1, 2, 9, 500]))
    ranked = [plain.search(query, 10_000) for query in queries]
    some = set(rng.choice(800, 300).tolist())

    def item_of(key: Any) -> Any:
        return plain.live[key].get(name)

    cases: list[tuple[Any, dict[str, Any]]] = [
        (lambda record: True, {}),
        (lambda record: record["shop"] != 1, {"where": "shop != 1"}),
        (lambda record: record["shop"] == 2, {"tenant": 2}),
        (lambda record: record["id"] in some, {"allow": list(some)}),
        (lambda record: record["id"] not in some, {"deny": [list(some)] * 3}),
    ]
    for passes, options in cases:
        hits = index.search(queries, k, item=name, **options)
        for number, found in enumerate(ranked):
            expected = firsts([hit for hit in found if passes(plain.live[hit[0]])], item_of, k)
            assert listed(hits, number) == expected
            values = [hit.attributes[name] for hit in hits[number] if hit.attributes is not None]
            assert values == [item_of(key) for key, _, _ in expected]
    everything = firsts(ranked[0], item_of, 10_000)
    pages = index.search(queries[0], 30, item=name)
    read: list[Any] = []
    while pages.counts.any():
        read += listed(pages)
        pages = index.search(queries[0], 30, item=name, after=pages.cursor)
    assert read == everything
    least = index.search(queries[0], None, min_score=0.1, item=name)
    assert listed(least) == everything[: len(listed(least))]
    assert np.all(least.scores[0] >= 0.1)


def test_generations_have_one_hit_per_item(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    plain, paths = PlainIndex(ENCODER), [tmp_path / "old.rbe", tmp_path / "new.rbe"]
    for start, path in zip((0, 150), paths, strict=True):
        ids = list(range(start, start + 150))
        texts = [f"w{number}" for number in rng.integers(0, 30, 150)]
        documents = [[None, "a", "b", "c", f"{i}"][i % 5] for i in ids]
        with Index.create(path, ENCODER) as index:
            index.add(texts, ids, {"item": documents})
        plain.add(texts, ids, [{"item": item} for item in documents])
    with rbegir.Generations(paths, ENCODER) as both:
        for k in (1, 4, 50, 400):
            for shown in (True, False):
                hits = both.search(["w1", "w7"], k, item="item", attributes=shown)
                assert (hits.attributes is not None) is shown
                for number, query in enumerate(["w1", "w7"]):
                    whole = plain.search(query, 1000)
                    wanted = firsts(whole, lambda key: plain.live[key]["item"], k)
                    assert [hit[:2] for hit in listed(hits, number)] == [hit[:2] for hit in wanted]
                    rows = [row if row < 150 else ROWS + row - 150 for *_, row in wanted]
                    assert [row for *_, row in listed(hits, number)] == rows
        with pytest.raises(InputError, match="generations have no pages of items"):
            both.search("w1", 3, item="item", after=hits.cursor)


def test_hits_per_item_are_not_reranked(tmp_path: Path) -> None:
    texts = some_texts(60)
    model = make_model(tmp_path / "model", texts)
    with Index.create(tmp_path / "x.rbe", model) as index:
        index.add(texts, attributes={"document": [i // 3 for i in range(60)]})
        hits = index.search(texts[4], 5, item="document")
        assert not hits.reranked
        assert len({document // 3 for document in hits.ids[0].tolist()}) == 5
        with pytest.raises(InputError, match="item and rerank=True cannot be combined"):
            index.search(texts[4], 5, item="document", rerank=True)


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ("id", "item must be an attribute, got 'id'"),
        (7, "item must be the name of an attribute, got 7"),
        ("price", "item must be an attribute of strings or 64-bit integers, 'price' is double"),
        ("tags", "item must be an attribute of strings or 64-bit integers, 'tags' is list"),
    ],
)
def test_refusals(tmp_path: Path, item: Any, message: str) -> None:
    with Index.create(tmp_path / "x.rbe", ENCODER) as index:
        index.add(["a"], attributes={"price": [1.5], "tags": [["x"]]})
        with pytest.raises(InputError, match=message):
            index.search("a", item=item)
