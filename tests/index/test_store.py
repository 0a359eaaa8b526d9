"""The public face of the index: what it returns, what it keeps, what it refuses and in which words."""

from __future__ import annotations

import datetime
import itertools
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from rbegir.base import disk, masks
from rbegir.codes import layout, score
from rbegir.errors import FileError, InputError, MismatchError
from rbegir.index import segment, writer
from rbegir.index.store import Index
from rbegir.index.tenant import within
from rbegir.index.writer import tail_to_merge
from rbegir.search.backend import Partition
from rbegir.search.reference import ReferenceBackend
from tests.index.fakes import HashEncoder, PlainIndex, random_codes

ENCODER = HashEncoder()


@pytest.fixture
def index(tmp_path: Path) -> Index:
    return Index.create(tmp_path / "x.rbe", ENCODER)


def test_the_life_of_an_index(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "er" / "ads.rbe"
    with Index.create(path, ENCODER) as index:
        assert index.add(["red shoes", "blue shoes"], attributes={"price": [10, None]}).tolist() == [0, 1]
        assert index.add(["green hat"], attributes=[{"price": 7, "sold": True}]).tolist() == [2]
        hits = index.search("red shoes", k=2)
        assert hits.ids.shape == hits.scores.shape == hits.texts.shape == (1, 2)
        assert hits.ids[0, 0] == 0
        assert hits.texts[0, 0] == "red shoes"
        assert hits.attributes[0][0] == {"price": 10, "sold": None}
        assert index.search(["a", "b", "c"], k=100).ids.shape == (3, 3)
        bare = index.search("red shoes", k=2, texts=False, attributes=False)
        assert (bare.texts, bare.attributes) == (None, None)
        assert bare.ids.tolist() == hits.ids.tolist()
        assert index.delete([1, 1, 99]) == 1
        assert len(index) == 2
        index.compact()
        assert index.get([0, 1, 2]) == [
            {"id": 0, "text": "red shoes", "price": 10, "sold": None},
            None,
            {"id": 2, "text": "green hat", "price": 7, "sold": True},
        ]
        assert index.add(["last"]).tolist() == [3]  # rows never come back
    with Index.open(path, model=ENCODER, read_only=True) as index:
        assert len(index) == 3
        index.verify()
        facts = index.info()
        wanted = {"keywords": 3, "bytes_per_keyword": 16, "n": 64, "deleted": 0, "next_row": 4}
        assert {name: facts[name] for name in wanted} == wanted
        assert facts["attributes"] == {"price": "int64", "sold": "bool"}


def test_an_empty_index(index: Index) -> None:
    assert index.search("x").ids.shape == (1, 0)
    assert index.search([]).ids.shape == (0, 0)
    assert index.search("x", where="text = 'y'", allow=[1], deny=[2]).ids.shape == (1, 0)
    assert index.add([]).tolist() == []
    assert index.delete([1]) == 0
    assert index.get([1]) == [None]
    index.compact()
    index.verify()
    assert index.info()["generation"] == 0  # nothing was written


def test_string_ids(index: Index) -> None:
    assert index.add(["a", "b"], ["x", "ÿ"]).tolist() == ["x", "ÿ"]
    assert index.upsert(["c"], ["x"]).tolist() == ["x"]
    assert index.get(["x", "ÿ", "z"])[0] == {"id": "x", "text": "c"}
    assert index.search("c", k=1).ids.tolist() == [["x"]]
    assert index.search("c", k=5, allow=["ÿ", "nope"]).ids.tolist() == [["ÿ"]]
    for use in (index.delete, index.get, lambda ids: index.search("c", allow=ids)):
        with pytest.raises(MismatchError, match="ids are int64, the ids of this index are string"):
            use([1])
    with pytest.raises(InputError, match="ids must be given: the ids of this index are strings"):
        index.add(["d"])


def test_given_and_default_ids_do_not_mix_up(index: Index) -> None:
    index.add(["a"])  # id 0, row 0
    index.add(["b"], [2])  # id 2, row 1
    with pytest.raises(InputError, match=r"id 2 is in the index already \(1 such ids\)") as caught:
        index.add(["c"])
    assert caught.value.hint == "give ids, as was done before"
    assert index.add(["c"], [-5]).tolist() == [-5]
    index.compact()
    assert [record["text"] if record else None for record in index.get([0, 1, 2, -5])] == [
        "a",
        None,
        "b",
        "c",
    ]


def test_codes_made_elsewhere(tmp_path: Path) -> None:
    index = Index.create(tmp_path / "x.rbe", n=128, keyword_planes=3)
    codes = random_codes(200, 128, 3)
    assert index.add_codes(codes[:150]).tolist() == list(range(150))
    index.add_codes(codes[150:], texts=[f"t{i}" for i in range(50)], attributes={"a": [1] * 50})
    queries = codes.values()[[3, 170]]
    hits = index.search_codes(queries.astype(np.int8), k=1)
    assert hits.ids.tolist() == [[3], [170]]
    assert hits.texts.tolist() == [[None], ["t20"]]
    assert hits.scores[0, 0] == pytest.approx(1.0)
    by_codes = index.search_codes(codes[[3, 170]], k=7)
    assert by_codes.ids.tolist() == index.search_codes(queries, k=7).ids.tolist()
    with pytest.raises(FileError, match=r"no model is stored in .*x\.rbe, so texts cannot be encoded"):
        index.search("text")
    with pytest.raises(FileError, match="no model is stored"):
        index.add(["text"])


def test_other_modes_go_through(tmp_path: Path) -> None:
    """Paper mode and progressive search are the backend's; the index adds masks and looks up the hits."""
    codes = random_codes(3000)
    index = Index.create(tmp_path / "x.rbe", n=64, keyword_planes=2)
    index.add_codes(codes, attributes={"odd": [i % 2 == 1 for i in range(3000)]})
    index.delete(list(range(0, 3000, 3)))
    queries = codes.values()[:3]
    backend = ReferenceBackend(64, 2)
    keep = np.array([i % 2 == 1 and i % 3 != 0 for i in range(3000)])
    partitions = [Partition(layout.pack(codes), 3000, masks.from_bools(keep))]
    paper = index.search_codes(queries, k=50, where="odd", mode="paper", per_thread=64, queue=2)
    wanted, certificate = backend.search_paper(partitions, queries, 50, per_thread=64, queue=2)
    assert paper.ids.tolist() == wanted.positions.tolist()
    assert paper.certificate == certificate
    first = index.search_codes(queries, k=50, where="odd", planes=1, candidates=80, measure=True)
    progressive = backend.search_progressive(partitions, queries, 50, planes=1, candidates=80, measure=True)
    assert first.ids.tolist() == progressive.candidates.positions.tolist()
    assert first.recall == progressive.recall


def test_every_type_of_attribute_comes_back(index: Index) -> None:
    now = datetime.datetime(2024, 2, 29, 12, 30, 15, 250_000)
    columns = {
        "bool": pa.array([True, None, False] * 30),
        "string": pa.array(["a", None, "ü" * 40] * 30, pa.large_string()),
        "category": pa.array(["x", "y", None] * 30).dictionary_encode(),
        "float": pa.array([0.5, None, -1.25] * 30, pa.float32()),
        "double": pa.array([1e300, None, -0.0] * 30),
        "date": pa.array([now.date(), None, datetime.date(1, 1, 1)] * 30),
        "zoned": pa.array([now, None, None] * 30, pa.timestamp("ms", tz="Europe/Berlin")),
        "nothing": pa.nulls(90),
    }
    for unit in ("s", "ms", "us", "ns"):
        columns[f"time {unit}"] = pa.array([now.replace(microsecond=0), None, None] * 30, pa.timestamp(unit))
    for whole in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"):
        columns[whole] = pa.array([1, None, 100] * 30, whole)
    index.add([f"t{i}" for i in range(90)], attributes=pa.table(columns))
    index.delete(list(range(0, 90, 4)))
    index.compact()
    kept = [i for i in range(90) if i % 4]
    records = index.get(kept)
    for name, column in columns.items():
        if name == "nothing":
            assert name not in records[0]
        else:
            assert [record[name] for record in records if record] == [column[i].as_py() for i in kept]


def test_columns_that_come_later_are_null_before(index: Index) -> None:
    index.add(["a"])
    index.add(["b"], attributes={"price": [3]})
    index.add(["c"], attributes={"price": [None], "name": ["n"]})
    assert [record and record["price"] for record in index.get([0, 1, 2])] == [None, 3, None]
    assert index.search("a", where="price is null").ids.size == 2
    index.compact()
    assert index.search("a", where="name is null").ids.size == 2
    index.add(["d"], attributes={"price": pa.array([4], pa.int8())})  # fits, and becomes an int64
    assert index.get([3])[0]["price"] == 4


@pytest.mark.parametrize("count", [1, 63, 64, 65, 127, 128, 129, 1000])
@pytest.mark.parametrize(("n", "planes"), [(64, 1), (64, 2), (192, 3), (1024, 4)])
def test_chunks_and_groups_of_all_sizes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int, n: int, planes: int
) -> None:
    """Small chunks, odd numbers: what is written in pieces is what would be written at once."""
    monkeypatch.setattr(segment, "CHUNK", 128)
    codes = random_codes(count, n, planes)
    with Index.create(tmp_path / "x.rbe", n=n, keyword_planes=planes) as index:
        index.add_codes(codes[: count // 3])
        index.add_codes(codes[count // 3 :])
        gone = list(range(0, count, 7))
        index.delete(gone)
        index.compact()
        kept = [i for i in range(count) if i % 7]
        for part in index._snapshot.segments:
            assert part.segment.codes(np.arange(len(kept))) == codes[kept]
            assert part.segment.rows(np.arange(len(kept))).tolist() == kept


@pytest.mark.parametrize("deleted", [[], [0, 5, 64, 129], list(range(0, 200, 2))])
def test_what_passes_is_what_passes_every_test(index: Index, deleted: list[int]) -> None:
    """Deletes, filter, allow-list and deny-list together, in all combinations, over two segments."""
    for numbers in (range(130), range(130, 200)):
        index.add([f"t{i}" for i in numbers], attributes={"price": list(numbers)})
    index.delete(deleted)
    filters = {None: 200, "price < 50": 50, "price < 0": 0}
    allows = [None, [], [5, 6, 7, 150, 999], list(range(199))]
    denies = [None, [], [7], list(range(100, 200))]
    for (where, limit), allow, deny in itertools.product(filters.items(), allows, denies):
        wanted = [
            i
            for i in range(limit)
            if i not in deleted and (allow is None or i in allow) and (deny is None or i not in deny)
        ]
        hits = index.search("t7", k=1000, where=where, allow=allow, deny=deny)
        assert sorted(hits.ids[0].tolist()) == wanted


def test_segments_of_limited_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (segment, writer):
        monkeypatch.setattr(module, "MAX_ROWS", 100)
    with Index.create(tmp_path / "x.rbe", n=64, keyword_planes=2) as index:
        index.add_codes(random_codes(250))
        assert [part.entry.count for part in index._snapshot.segments] == [100, 100, 50]
        index.delete(list(range(0, 160)))
        index.compact()
        assert [part.entry.count for part in index._snapshot.segments] == [90]
        assert index.info()["keywords"] == 90
        index.add_codes(random_codes(30))
        index.compact()
        assert [part.entry.count for part in index._snapshot.segments] == [90, 30]


def test_many_small_adds_make_few_segments(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk.os, "fsync", lambda descriptor: None)
    monkeypatch.setattr(writer, "TIER_ROWS", 8)
    plain = PlainIndex(ENCODER)
    for i in range(300):
        index.add([f"t{i}"])
        plain.add([f"t{i}"], None, [{}])
        assert index.info()["segments"] <= 24
    assert index.search("t5", k=300).ids[0].tolist() == [hit[0] for hit in plain.search("t5", 300)]


@pytest.mark.parametrize(
    ("sizes", "new", "taken"),
    [
        ([], 1, 0),
        ([1] * 6, 1, 0),
        ([1] * 7, 1, 7),
        ([10**6] + [1] * 7, 1, 7),
        ([1] * 7, 10**6, 7),
        ([10**6] * 20, 10**6, 0),  # together more than an add may rewrite
        ([8000] * 7 + [1000] * 6, 1000, 0),
        ([8000] * 7 + [1000] * 7, 1000, 14),  # eight small ones make one of the next tier, which completes it
        ([1024] * 7, 1024, 7),
        ([1025] * 7, 1024, 0),
    ],
)
def test_which_neighbours_an_add_takes_in(sizes: list[int], new: int, taken: int) -> None:
    assert tail_to_merge(sizes, new) == taken


def test_queries_may_have_any_number_of_planes(index: Index) -> None:
    codes = random_codes(200, planes=index.info()["keyword_planes"])
    index.add_codes(codes)
    for planes in range(1, 9):
        queries = random_codes(3, planes=planes, seed=planes)
        wanted = np.sort(score.keys(queries.values(), codes), axis=1)[:, ::-1][:, :7]
        np.testing.assert_array_equal(index.search_codes(queries, k=7).keys, wanted)


def test_an_index_that_is_left_open_ends_in_silence(tmp_path: Path) -> None:
    """Also with torch around, which keeps objects until the names of modules are gone."""
    program = f"""
import torch, numpy as np, rbegir
binarizer = rbegir.Binarizer(8).fit(np.eye(8, dtype="f4"))
index = rbegir.Index.create({str(tmp_path / "a.rbe")!r}, binarizer)
index.add_codes(binarizer.encode_keywords(np.eye(8, dtype="f4")))
torch.left = index  # torn down with the module
print(len(index))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("8\n", "")


def test_update_changes_attributes_alone(index: Index) -> None:
    index.add(["a", "b", "c"], attributes={"price": [1, 2, 3], "lang": ["en", None, "de"]})
    index.add_codes(random_codes(1), [9])  # without a text
    codes = index.codes([1, 9])
    assert index.update([1, 9], {"price": [20, None], "sold": [True, False]}) == 2
    assert index.get([0, 1, 2, 9]) == [
        {"id": 0, "text": "a", "price": 1, "lang": "en", "sold": None},
        {"id": 1, "text": "b", "price": 20, "lang": None, "sold": True},
        {"id": 2, "text": "c", "price": 3, "lang": "de", "sold": None},
        {"id": 9, "text": None, "price": None, "lang": None, "sold": False},
    ]
    assert index.codes([1, 9]) == codes
    assert [row["id"] for row in index.rows()] == [0, 2, 1, 9]  # as after upsert: new rows
    assert index.search("b", k=1).ids.tolist() == [[1]]
    assert index.update([], {"price": []}) == index.update([0], {"new": [None]}) == 0
    index.verify()
    with pytest.raises(InputError, match=r"id 7 is not in the index \(2 such ids\)") as caught:
        index.update([0, 7, 8], {"price": [1, 2, 3]})
    assert caught.value.hint == "leave them out, or add these keywords first"
    with pytest.raises(InputError, match="ids holds 0 more than once"):
        index.update([0, 0], {"price": [1, 2]})
    with pytest.raises(MismatchError, match="in this index it is int64"):
        index.update([0], {"price": ["dear"]})


def test_records_of_an_update_keep_what_they_do_not_name(index: Index) -> None:
    index.add(["a", "b", "c"], attributes={"price": [1, 2, 3], "lang": ["en", "de", "fr"]})
    assert index.update([0, 1], [{"price": 10}, {"lang": "it", "new": True}]) == 2
    assert index.update([2], [{"price": None, "nothing": None}]) == 1
    assert index.get([0, 1, 2]) == [
        {"id": 0, "text": "a", "price": 10, "lang": "en", "new": None},
        {"id": 1, "text": "b", "price": 2, "lang": "it", "new": True},
        {"id": 2, "text": "c", "price": None, "lang": "fr", "new": None},
    ]
    index.update([0], [{"price": None, "lang": None}])
    index.update([0, 1], {"lang": [None, "es"]})  # columns name every keyword
    assert [row and (row["price"], row["lang"]) for row in index.get([0, 1])] == [(None, None), (2, "es")]


def test_filters_count_list_and_delete(index: Index) -> None:
    index.add(["a", "b", "c", "d"], attributes={"price": [1, 2, 3, None]})
    assert (index.count(), index.count("price < 3"), index.count("price > 9")) == (4, 2, 0)
    assert list(index.rows("price < 2")) == [{"id": 0, "text": "a", "price": 1}]
    assert [batch.num_rows for batch in index.batches(where="price > 9")] == [0]
    assert index.delete(where="price is null") == 1
    assert index.delete(where="price > 9") == 0
    assert [row["id"] for row in index.rows()] == [0, 1, 2]
    for wrong in ({}, {"ids": [1], "where": "price < 3"}):
        with pytest.raises(InputError, match="delete needs ids or where, and not both"):
            index.delete(**wrong)
    with pytest.raises(InputError, match="prise"):
        index.count("prise < 3")
    assert index.delete(where="id is not null") == 3
    assert index.count() == 0


def test_keywords_behind_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment, "CHUNK", 128)
    with Index.create(tmp_path / "x.rbe", n=64, keyword_planes=2, tenant="shop") as index:
        for count in (333, 50, 9):
            index.add_codes(random_codes(count), attributes={"shop": [i % 2 for i in range(count)]})
        index.delete(np.arange(5, 300, 3))
        for chosen in ({}, {"where": "id >= 100"}, {"tenant": 1}, {"where": "id > 380", "tenant": 0}):
            live = [row["id"] for row in index.rows(**chosen)]
            state = within(index.snapshot, chosen.get("tenant"))
            for after in (-1, 0, 4, 5, 127, 128, 129, 256, 332, 333, 382, 383, 391, 10**9):
                batches = list(state.batches(70, chosen.get("where"), after))
                assert [row for batch in batches for row in batch["row"].to_pylist()] == [
                    row for row in live if row > after
                ]
                assert all(batch["id"] == batch["row"] for batch in batches)
