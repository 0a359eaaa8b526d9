"""The public face of the index: what it returns, what it keeps, what it refuses and in which words."""

from __future__ import annotations

import datetime
import itertools
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from rbegir.codes import layout, score
from rbegir.codes.planes import Codes
from rbegir.errors import DeviceError, FileError, InputError, MismatchError, RbegirError
from rbegir.index import disk, lock, segment, writer
from rbegir.index.store import Index
from rbegir.index.writer import tail_to_merge
from rbegir.search.backend import Partition, make_mask
from rbegir.search.reference import ReferenceBackend
from tests.index.fakes import HashEncoder, PlainIndex

ENCODER = HashEncoder()


def _codes(count: int, n: int = 64, planes: int = 2, seed: int = 0) -> Codes:
    rng = np.random.default_rng(seed)
    return Codes(rng.integers(0, 2**64, (planes, count, n // 64), dtype=np.uint64), n)


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
    codes = _codes(200, 128, 3)
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
    codes = _codes(3000)
    index = Index.create(tmp_path / "x.rbe", n=64, keyword_planes=2)
    index.add_codes(codes, attributes={"odd": [i % 2 == 1 for i in range(3000)]})
    index.delete(list(range(0, 3000, 3)))
    queries = codes.values()[:3]
    backend = ReferenceBackend(64, 2)
    keep = np.array([i % 2 == 1 and i % 3 != 0 for i in range(3000)])
    partitions = [Partition(layout.pack(codes), 3000, make_mask(keep))]
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
    codes = _codes(count, n, planes)
    with Index.create(tmp_path / "x.rbe", n=n, keyword_planes=planes) as index:
        index.add_codes(codes[: count // 3])
        index.add_codes(codes[count // 3 :])
        gone = list(range(0, count, 7))
        index.delete(gone)
        index.compact()
        kept = [i for i in range(count) if i % 7]
        for part in index._snapshot.parts:
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
        index.add_codes(_codes(250))
        assert [part.entry.count for part in index._snapshot.parts] == [100, 100, 50]
        index.delete(list(range(0, 160)))
        index.compact()
        assert [part.entry.count for part in index._snapshot.parts] == [90]
        assert index.info()["keywords"] == 90
        index.add_codes(_codes(30))
        index.compact()
        assert [part.entry.count for part in index._snapshot.parts] == [90, 30]


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
    codes = _codes(200, planes=index.info()["keyword_planes"])
    index.add_codes(codes)
    for planes in range(1, 9):
        queries = _codes(3, planes=planes, seed=planes)
        wanted = np.sort(score.keys(queries.values(), codes), axis=1)[:, ::-1][:, :7]
        np.testing.assert_array_equal(index.search_codes(queries, k=7).keys, wanted)


def _refused(kind: type[RbegirError], message: str, use: Any) -> None:
    with pytest.raises(kind, match=re.escape(message)):
        use()


def test_bad_texts_ids_and_attributes(index: Index) -> None:
    index.add(["a"], [7], {"price": [1.5], "word": ["w"]})
    before = index.info()
    for message, texts, ids, attributes in [
        ("texts must be a list of texts, got str", "a", None, None),
        ("texts must be a list of texts, got int", 5, None, None),
        ("texts must hold texts, got int64", [1], None, None),
        ("texts[1] is None, expected a text", ["a", None], None, None),
        ("texts must hold values of one type", ["a", 1], None, None),
        ("texts[0] has 40000 bytes, at most 32767 are kept", ["x" * 40_000], None, None),
        ("texts must hold values of one type", ["\ud800"], None, None),
        ("ids must be a list of int or str, got int", ["a"], 5, None),
        ("ids must be 64-bit integers or strings, got double", ["a"], [1.5], None),
        ("ids must be 64-bit integers or strings, got double", ["a"], np.array([np.nan]), None),
        ("ids must be 64-bit integers or strings, got bool", ["a"], [True], None),
        ("ids does not fit int64", ["a"], np.array([2**63], np.uint64), None),
        ("ids must hold values of one type", ["a"], [2**70], None),
        ("ids must have one dimension, got 2", ["a"], np.zeros((1, 1), np.int64), None),
        ("ids[0] is None, expected an id", ["a"], pa.array([None], pa.int64()), None),
        ("ids has 2 values for 1 keywords", ["a"], [1, 2], None),
        ("ids holds 5 more than once (1 such ids)", ["a", "b", "c"], [5, 6, 5], None),
        ("id 7 is in the index already (1 such ids)", ["a"], [7], None),
        ("attributes['price'] has 2 values for 1 keywords", ["a"], [1], {"price": [1.0, 2.0]}),
        ("attributes['price'][0] is nan", ["a"], [1], {"price": [float("nan")]}),
        ("attributes['price'][1] is inf", ["a", "b"], [1, 2], {"price": [1.0, float("inf")]}),
        ("attributes['new'] has the type list<item: int64>", ["a"], [1], {"new": [[1]]}),
        ("attributes['new'] must hold values of one type", ["a", "b"], [1, 2], {"new": [1, "x"]}),
        ("an attribute cannot be called 'id'", ["a"], [1], {"id": [1]}),
        ("the name of an attribute must be a text of 1 to 200 characters, got ''", ["a"], [1], {"": [1]}),
        ("the name of an attribute must be a text of 1 to 200 characters, got 3", ["a"], [1], {3: [1]}),
        ("attributes must be columns by name, an Arrow table or one dict a keyword, got int", ["a"], [1], 5),
    ]:
        _refused(InputError, message, lambda t=texts, i=ids, a=attributes: index.add(t, i, a))
    _refused(InputError, "upsert needs ids", lambda: index.upsert(["a"], None))
    for message, ids, attributes in [
        ("ids are string, the ids of this index are int64", ["x"], None),
        ("attributes['price'] has the type string, in this index it is double", [1], {"price": ["x"]}),
        ("attributes['word'] has the type int64, in this index it is string", [1], {"word": [5]}),
    ]:
        _refused(MismatchError, message, lambda i=ids, a=attributes: index.add(["a"], i, a))
    assert index.info() == before


def test_bad_codes_and_queries(index: Index) -> None:
    index.add(["a"])
    codes = "codes have n = 128 and 2 planes, the index holds n = 64 and 2 planes"
    _refused(MismatchError, codes, lambda: index.add_codes(_codes(1, 128)))
    _refused(MismatchError, "codes have n = 64 and 3 planes", lambda: index.add_codes(_codes(1, 64, 3)))
    _refused(
        InputError, "codes must be rbegir.Codes, got ndarray", lambda: index.add_codes(np.zeros((2, 1, 1)))
    )
    _refused(InputError, "texts has 1 values for 2 codes", lambda: index.add_codes(_codes(2), texts=["a"]))
    _refused(MismatchError, "queries have n = 128, the index", lambda: index.search_codes(_codes(1, 128, 3)))
    for values in (
        np.zeros((1, 64)),
        np.full((1, 64), np.nan),
        np.zeros((1, 64), np.int32),
        np.zeros(64, np.int8),
        5,
    ):
        message = "queries must be rbegir.Codes or an int8 or int16 array [queries, n], got"
        _refused(InputError, message, lambda v=values: index.search_codes(v))
    _refused(MismatchError, "queries have n = 8", lambda: index.search_codes(np.zeros((1, 8), np.int8)))
    wide = np.full((1, 64), 256, np.int16)
    _refused(InputError, "integer queries must lie within ±255", lambda: index.search_codes(wide))
    for k in (0, -1, 1.5, None, True, "3"):
        message = f"k must be a whole number of at least 1, got {k!r}"
        _refused(InputError, message, lambda k=k: index.search("a", k=k))
    _refused(InputError, "queries must be a list of texts, got int", lambda: index.search(5))
    _refused(InputError, "queries[0] is None", lambda: index.search([None]))
    _refused(
        InputError, "mode must be one of exact, paper, got 'fast'", lambda: index.search("a", mode="fast")
    )
    _refused(InputError, "planes must be a whole number", lambda: index.search("a", planes=0))
    both = "planes and mode='paper' cannot be combined"
    _refused(InputError, both, lambda: index.search("a", planes=1, mode="paper"))


def test_creating_what_cannot_be(tmp_path: Path) -> None:
    path = tmp_path / "x.rbe"
    for kind, message, arguments in [
        (InputError, "an index needs a model, or n and keyword_planes", {}),
        (InputError, "n must be a multiple of 64", {"n": 63, "keyword_planes": 2}),
        (InputError, "keyword_planes must be from 1 to 4, got 5", {"n": 64, "keyword_planes": 5}),
        (
            InputError,
            "query_planes must be from 0 to 8, got 9",
            {"n": 64, "keyword_planes": 1, "query_planes": 9},
        ),
        (
            InputError,
            "id_type must be one of int64, string, got 'uuid'",
            {"model": ENCODER, "id_type": "uuid"},
        ),
        (InputError, "model must be a Model or an encoder, got str without n", {"model": "model/"}),
        (MismatchError, "n is 128, the model has 64", {"model": ENCODER, "n": 128}),
        (MismatchError, "a model with float keywords has no codes", {"model": HashEncoder(keyword_planes=0)}),
        (
            DeviceError,
            "device 'cuda' was asked for, but torch finds no GPU",
            {"model": ENCODER, "device": "cuda"},
        ),
        (
            InputError,
            "device must be a name such as 'cpu' or a list of such names, got 3",
            {"model": ENCODER, "device": 3},
        ),
        (InputError, "threads must be an integer from 1", {"model": ENCODER, "threads": 0}),
    ]:
        _refused(kind, message, lambda a=arguments: Index.create(path, **a))
    assert list(tmp_path.iterdir()) == []


def test_a_model_that_does_not_belong(index: Index) -> None:
    for name, other in [
        ("n", HashEncoder(n=128)),
        ("keyword_planes", HashEncoder(keyword_planes=1)),
        ("fingerprint", HashEncoder(seed="other")),
    ]:
        message = f"the model does not belong to this index: its {name} is {getattr(other, name)!r}"
        _refused(MismatchError, message, lambda m=other: Index.open(index.path, model=m))


def test_opening_what_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "empty").mkdir()
    _refused(
        FileError, "is not an rbegir index: there is no such directory", lambda: Index.open(tmp_path / "no")
    )
    _refused(
        FileError, "is not an rbegir index: there is no such directory", lambda: Index.open(tmp_path / "file")
    )
    _refused(FileError, "is not an rbegir index: it has no MANIFEST", lambda: Index.open(tmp_path / "empty"))


def test_a_path_that_is_taken(index: Index, tmp_path: Path) -> None:
    index.add(["a"])
    index.close()
    _refused(FileError, "x.rbe exists already", lambda: Index.create(index.path, ENCODER))
    with Index.create(index.path, ENCODER, overwrite=True) as new:
        assert len(new) == 0
    assert [entry.name for entry in tmp_path.iterdir()] == ["x.rbe"]
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").touch()
    message = "photos exists and is not an rbegir index"
    _refused(FileError, message, lambda: Index.create(tmp_path / "photos", ENCODER, overwrite=True))
    (tmp_path / "empty").mkdir()
    Index.create(tmp_path / "empty", ENCODER).close()


def test_read_only(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    index.add(["a"])
    index.close()
    with Index.open(index.path, model=ENCODER, read_only=True) as reader:
        for use in (lambda: reader.add(["b"]), lambda: reader.delete([0]), reader.compact):
            _refused(FileError, "was opened read-only", use)
        assert len(reader) == 1
    with Index.open(index.path, model=ENCODER) as again:  # a file system without write access

        def refuse(path: Path) -> int:
            raise OSError(30, "Read-only file system", str(path))

        monkeypatch.setattr(disk, "create", refuse)
        _refused(FileError, f"cannot write to {index.path}: read-only file system", lambda: again.add(["b"]))
        assert len(again) == 1


def test_a_directory_that_cannot_be_written(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index.add(["a"])
    index.close()

    def refuse(path: Any, *arguments: Any) -> int:
        raise PermissionError(13, "Permission denied", str(path))

    with Index.open(index.path, model=ENCODER) as again:
        with monkeypatch.context() as patch:
            patch.setattr(lock.os, "open", refuse)
            message = f"cannot lock {index.path / 'LOCK'}: permission denied"
            _refused(FileError, message, lambda: again.add(["b"]))
        with monkeypatch.context() as patch:
            patch.setattr(disk, "sync_directory", refuse)
            _refused(FileError, f"cannot write to {index.path}: permission denied", lambda: again.add(["b"]))
        assert again.search("a").texts.tolist() == [["a"]]
    monkeypatch.setattr(disk, "make_directory", refuse)
    message = f"cannot create {tmp_path / 'new.rbe'}: permission denied"
    _refused(FileError, message, lambda: Index.create(tmp_path / "new.rbe", ENCODER))


def test_an_index_in_the_current_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with Index.create(".", ENCODER) as index:
        index.add(["a"])
    assert len(Index.open(tmp_path / "here")) == 1


def test_after_close(index: Index) -> None:
    index.close()
    for use in (lambda: index.add(["a"]), lambda: index.search("a"), lambda: len(index), index.info):
        _refused(InputError, "has been closed", use)
