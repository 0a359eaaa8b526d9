"""What an index refuses: each wrong argument, path and state has its sentence and its way out."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from rbegir.base import disk
from rbegir.encode.binarizer import Binarizer
from rbegir.errors import DeviceError, FileError, InputError, MismatchError, RbegirError
from rbegir.index import writer
from rbegir.index.store import Index
from tests.index.fakes import HashEncoder, random_codes

ENCODER = HashEncoder()


@pytest.fixture
def index(tmp_path: Path) -> Index:
    return Index.create(tmp_path / "x.rbe", ENCODER)


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
        ("texts[0] has 40000 bytes, at most 32767 are allowed", ["x" * 40_000], None, None),
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
        ("attributes['new'] has the type struct<x: int64>", ["a"], [1], {"new": [{"x": 1}]}),
        ("attributes['new'] must be a list, one value per keyword, got float", ["a"], [1], {"new": 3.0}),
        ("attributes['new'] must be a list, one value per keyword, got str", ["a"], [1], {"new": "x"}),
        ("attributes['new'] must hold values of one type", ["a", "b"], [1, 2], {"new": [1, "x"]}),
        ("an attribute cannot be called 'id'", ["a"], [1], {"id": [1]}),
        ("the name of an attribute must be a text of 1 to 200 characters, got ''", ["a"], [1], {"": [1]}),
        ("the name of an attribute must be a text of 1 to 200 characters, got 3", ["a"], [1], {3: [1]}),
        (
            "attributes must be columns by name, an Arrow table or one dict per keyword, got int",
            ["a"],
            [1],
            5,
        ),
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


def test_attributes_that_cannot_be_stored_can_be_left_out(index: Index) -> None:
    for name in ("", "score"):
        with pytest.raises(InputError) as caught:
            index.add(["a"], attributes={name: [1]})
        assert "--columns (columns= in Python)" in caught.value.hint


def test_bad_codes_and_queries(index: Index) -> None:
    index.add(["a"])
    codes = "codes have n = 128 and 2 planes, the index holds n = 64 and 2 planes"
    _refused(MismatchError, codes, lambda: index.add_codes(random_codes(1, 128)))
    _refused(MismatchError, "codes have n = 64 and 3 planes", lambda: index.add_codes(random_codes(1, 64, 3)))
    _refused(
        InputError, "codes must be rbegir.Codes, got ndarray", lambda: index.add_codes(np.zeros((2, 1, 1)))
    )
    _refused(
        InputError, "texts has 1 values for 2 codes", lambda: index.add_codes(random_codes(2), texts=["a"])
    )
    _refused(
        MismatchError, "queries have n = 128, the index", lambda: index.search_codes(random_codes(1, 128, 3))
    )
    for values in (
        np.zeros((1, 64)),
        np.full((1, 64), np.nan),
        np.zeros((1, 64), np.int32),
        np.zeros(64),
        np.zeros((1, 1, 64), np.int8),
        5,
    ):
        message = "queries must be rbegir.Codes or an int8 or int16 array [queries, n], got"
        _refused(InputError, message, lambda v=values: index.search_codes(v))
    _refused(MismatchError, "queries have n = 8", lambda: index.search_codes(np.zeros((1, 8), np.int8)))
    wide = np.full((1, 64), 256, np.int16)
    _refused(InputError, "integer queries must lie within ±255", lambda: index.search_codes(wide))
    for k in (0, -1, 1.5, True, "3"):
        message = f"k must be a whole number of at least 1, got {k!r}"
        _refused(InputError, message, lambda k=k: index.search("a", k=k))
    _refused(InputError, "k=None needs a min_score", lambda: index.search("a", k=None))
    _refused(InputError, "queries must be a list of texts, got int", lambda: index.search(5))
    _refused(InputError, "queries[0] is None", lambda: index.search([None]))
    _refused(
        InputError, "mode must be one of exact, paper, got 'fast'", lambda: index.search("a", mode="fast")
    )
    _refused(InputError, "planes must be a whole number", lambda: index.search("a", planes=0))
    both = "planes and mode='paper' cannot be combined"
    _refused(InputError, both, lambda: index.search("a", planes=1, mode="paper"))


def test_vectors_and_texts_in_each_others_place(tmp_path: Path) -> None:
    vectors = np.random.default_rng(0).standard_normal((200, 16), dtype=np.float32)
    binarizer = Binarizer(16, n=64, rounds=0).fit(vectors)
    index = Index.create(tmp_path / "vectors.rbe", binarizer)
    index.add_codes(binarizer.encode_keywords(vectors))
    for use in ("a text", ["a text"], ("a", "b")):
        _refused(InputError, "is searched with vectors, got a text", lambda use=use: index.search(use))
    with pytest.raises(InputError, match=r"texts must be a list of texts, got float32 \[200, 16\]") as caught:
        Index.create(tmp_path / "texts.rbe", ENCODER).add(vectors)
    assert caught.value.hint == "only an index made with a Binarizer takes vectors"
    with pytest.raises(InputError, match="a Binarizer encodes vectors, not texts") as caught:
        index.add(["a text"])
    assert "add_codes" in caught.value.hint


def test_texts_in_numpy_arrays(index: Index) -> None:
    texts = ["red shoes", "blue"]
    expected = index.search(texts, k=3)
    for kind in (str, object):
        found = index.search(np.array(texts, kind), k=3)
        assert found.ids.tolist() == expected.ids.tolist()


def test_creating_what_cannot_be(tmp_path: Path) -> None:
    path = tmp_path / "x.rbe"
    for kind, message, arguments in [
        (InputError, "an index needs a model, or n and keyword_planes", {}),
        (InputError, "n must be a multiple of 64", {"n": 63, "keyword_planes": 2}),
        (
            InputError,
            "keyword_planes must be a whole number from 1 to 4, got 5",
            {"n": 64, "keyword_planes": 5},
        ),
        (
            InputError,
            "query_planes must be a whole number from 0 to 8, got 9",
            {"n": 64, "keyword_planes": 1, "query_planes": 9},
        ),
        (
            InputError,
            "id_type must be one of int64, string, got 'uuid'",
            {"model": ENCODER, "id_type": "uuid"},
        ),
        (InputError, "model must be a Model or an encoder, got str without n", {"model": "model/"}),
        (InputError, "model must be fitted, got Binarizer without fingerprint", {"model": Binarizer(64)}),
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
        (InputError, "threads must be a whole number from 1", {"model": ENCODER, "threads": 0}),
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
    _refused(FileError, "is not an rbegir index: it is a file", lambda: Index.open(tmp_path / "file"))
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
        with pytest.raises(FileError, match="read-only file system") as caught:
            again.add(["b"])
        assert caught.value.message == f"cannot write to {index.path}: read-only file system"
        assert "serve an index there with --read-only" in caught.value.hint
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
            patch.setattr(writer.os, "open", refuse)
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
