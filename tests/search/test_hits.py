"""Hits: shapes, iteration, tables, and a merge that equals one search over everything."""

import numpy as np
import pyarrow as pa
import pytest

from rbegir.codes import score
from rbegir.codes.layout import pack
from rbegir.codes.planes import Codes
from rbegir.errors import InputError, MismatchError
from rbegir.search.backend import Partition
from rbegir.search.cpu import CpuBackend
from rbegir.search.hits import Hit, Hits, merge
from rbegir.search.partition import best


def search(codes: Codes, first_row: int, values: np.ndarray, k: int) -> Hits:
    found = CpuBackend(64, 2).search([Partition(pack(codes), len(codes))], values, k)
    rows = found.positions + first_row
    texts = np.array([[f"t{row}" for row in line] for line in rows], dtype=object).reshape(rows.shape)
    return Hits(
        ids=rows * 10,
        scores=score.cosine(found.keys, score.norm_squared(values)),
        keys=found.keys,
        rows=rows,
        texts=texts,
        attributes=[[{"price": int(row)} for row in line] for line in rows],
    )


@pytest.mark.parametrize("k", [1, 7, 500])
def test_merge_equals_one_search(k: int) -> None:
    rng = np.random.default_rng(0)
    few = Codes(rng.integers(0, 2**64, (2, 4, 1), dtype=np.uint64), 64)
    codes = few[rng.integers(0, 4, 300)]  # many ties
    values = rng.integers(-7, 8, (3, 64)).astype(np.int16)
    parts = [search(codes[a:b], a, values, k) for a, b in ((0, 100), (100, 100), (100, 101), (101, 300))]
    merged, whole = merge(parts, k), search(codes, 0, values, k)
    for name in ("ids", "scores", "keys", "rows", "texts"):
        np.testing.assert_array_equal(getattr(merged, name), getattr(whole, name))
    assert merged.attributes == whole.attributes
    assert merged.k == min(k, 300)


def test_they_are_an_arrow_stream() -> None:
    codes = Codes(np.arange(40, dtype=np.uint64).reshape(2, 20, 1), 64)
    hits = search(codes, 3, np.ones((2, 64), np.int16), 4)
    with pa.RecordBatchReader.from_stream(hits) as stream:
        table = stream.read_all()
    assert table == hits.to_arrow()
    assert table["rank"].to_pylist() == [1, 2, 3, 4] * 2
    assert table["price"].to_pylist() == hits.rows.ravel().tolist()
    assert pa.table(hits) == table


def test_merge_drops_what_not_all_have() -> None:
    zero = np.zeros((1, 1), dtype=np.int64)
    bare = Hits(ids=zero, scores=zero.astype(float), keys=zero, rows=zero)
    full = Hits(
        ids=zero, scores=zero.astype(float), keys=zero, rows=zero + 1, texts=np.array([["a"]], dtype=object)
    )
    assert merge([bare, full], 5).texts is None
    assert merge([full, full], 1).texts.tolist() == [["a"]]


def test_iteration_and_tables() -> None:
    hits = Hits(
        ids=np.array([["a", "b"], ["c", "a"]], dtype=object),
        scores=np.array([[0.9, 0.8], [0.7, 0.6]]),
        keys=np.array([[9, 8], [7, 6]]),
        rows=np.array([[0, 1], [2, 0]]),
        texts=np.array([["x", "y"], ["z", "x"]], dtype=object),
        attributes=[[{"score": 1, "lang": "en"}, {"lang": "de"}], [{"lang": "fr"}, {"lang": "en"}]],
    )
    assert len(hits) == 2
    assert repr(hits) == "Hits(2 queries × 2)"
    assert next(iter(hits))[0] == Hit("a", 0.9, "x", {"score": 1, "lang": "en"}, 0.9)
    assert [[hit.id for hit in query] for query in hits] == [["a", "b"], ["c", "a"]]
    table = hits.to_arrow()
    names = ["query", "rank", "id", "score", "text", "attribute_score", "lang"]
    assert table.column_names == names
    assert table.column("query").to_pylist() == [0, 0, 1, 1]
    assert table.column("rank").to_pylist() == [1, 2, 1, 2]
    assert table.column("attribute_score").to_pylist() == [1, None, None, None]
    frame = hits.to_pandas()
    assert list(frame.columns) == names
    assert frame["lang"].tolist() == ["en", "de", "fr", "en"]


def test_every_attribute_has_a_column_of_its_own() -> None:
    attributes = {"attribute_rank": 111, "rank": 222, "attribute_attribute_rank": 333, "attribute_price": 4}
    zero = np.zeros((1, 1), np.int64)
    hits = Hits(ids=zero, scores=zero.astype(float), keys=zero, rows=zero, attributes=[[attributes]])
    wanted = {
        "attribute_attribute_rank": [111],
        "attribute_rank": [222],
        "attribute_attribute_attribute_rank": [333],
        "attribute_price": [4],
    }
    table, frame = hits.to_arrow().to_pydict(), hits.to_pandas().to_dict("list")
    assert {name: table[name] for name in table.keys() - {"query", "rank", "id", "score"}} == wanted
    assert frame == table


def test_bare_hits() -> None:
    hits = Hits(ids=np.array([[3]]), scores=np.array([[0.5]]), keys=np.array([[1]]), rows=np.array([[3]]))
    assert hits[0] == [Hit(3, 0.5, None, None, 0.5)]
    assert hits.to_arrow().column_names == ["query", "rank", "id", "score"]


def test_refuses() -> None:
    good = {
        "ids": np.zeros((2, 3), np.int64),
        "scores": np.zeros((2, 3)),
        "keys": np.zeros((2, 3), np.int64),
        "rows": np.zeros((2, 3), np.int64),
    }
    for change, message in (
        ({"ids": np.zeros(3)}, r"ids must have shape \[queries, k\], got \[3\]"),
        ({"scores": np.zeros((2, 4))}, r"scores must have the shape of ids \[2, 3\], got \[2, 4\]"),
        ({"texts": np.zeros((1, 3), object)}, r"texts must have the shape of ids \[2, 3\], got \[1, 3\]"),
        ({"attributes": [[{}] * 3]}, "attributes must be 2 lists of as many dictionaries as there are hits"),
        ({"attributes": [[{}] * 3, [{}] * 2]}, "as many dictionaries as there are hits"),
    ):
        with pytest.raises(InputError, match=message):
            Hits(**{**good, **change})
    with pytest.raises(InputError, match="nothing to merge: parts is empty"):
        merge([], 1)
    with pytest.raises(InputError, match="k must be a whole number of at least 1, got 0"):
        merge([Hits(**good)], 0)
    one = {name: array[:1] for name, array in good.items()}
    with pytest.raises(MismatchError, match=r"different numbers of queries cannot be merged: \[1, 2\]"):
        merge([Hits(**good), Hits(**one)], 1)


@pytest.mark.parametrize("k", [1, 3, 10, 49, 50, 200])
def test_best_is_a_full_sort_cut_short(k: int) -> None:
    rng = np.random.default_rng(k)
    keys = rng.integers(0, 12, (5, 100))  # many ties, more of them than k at the border
    rows = np.stack([rng.permutation(100) for _ in range(5)])
    order = best(keys, rows, k)
    for query in range(5):
        wanted = sorted(range(100), key=lambda i: (-keys[query, i], rows[query, i]))[:k]
        assert order[query].tolist() == wanted
