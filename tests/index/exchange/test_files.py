"""NumPy files, Parquet and Hugging Face datasets: out and back without loss, and never half."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import Dataset

import rbegir
from rbegir.base import disk
from rbegir.codes.planes import Codes
from rbegir.errors import FileError, InputError, MismatchError
from rbegir.index.exchange import transfer
from rbegir.index.exchange.files import (
    export_npy,
    export_parquet,
    import_dataset,
    import_npy,
    import_parquet,
    read_npy,
    to_dataset,
)
from tests.index.fakes import HashEncoder

ENCODER = HashEncoder()


@pytest.fixture
def index(tmp_path: Path) -> Any:
    """Texts, ids and attributes in several segments, some deleted, one without a text."""
    with rbegir.Index.create(tmp_path / "source.rbe", ENCODER) as made:
        prices = {"price": np.arange(130) / 2}
        made.add([f"text {i}" for i in range(130)], ids=np.arange(130) * 3, attributes=prices)
        made.add_codes(ENCODER.encode_keywords(["bare"]), ids=[1])
        made.add(["last"], ids=[5], attributes={"lang": ["en"]})
        made.delete([0, 3 * 64, 3 * 129])
        yield made


def content(index: rbegir.Index) -> list[tuple[Any, ...]]:
    """Everything that an index holds, by id."""
    codes, ids = transfer.read_codes(index)
    values = codes.values()
    found = index.get(ids)
    assert all(record is not None for record in found)
    return sorted(
        (record["id"], record["text"], record.get("price"), record.get("lang"), values[i].tolist())
        for i, record in enumerate(found)
        if record is not None
    )


def through_parquet(index: rbegir.Index, folder: Path) -> rbegir.Index:
    export_parquet(index, folder / "out.parquet")
    return import_parquet(folder / "out.parquet", folder / "back.rbe", encoder=ENCODER)


def through_dataset(index: rbegir.Index, folder: Path) -> rbegir.Index:
    dataset = to_dataset(index)
    assert isinstance(dataset, Dataset)
    assert dataset.num_rows == len(index)
    return import_dataset(dataset, folder / "back.rbe", encoder=ENCODER)


@pytest.mark.parametrize("through", [through_parquet, through_dataset])
def test_there_and_back_nothing_is_lost(
    through: Callable[[rbegir.Index, Path], rbegir.Index],
    index: rbegir.Index,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(transfer, "ROWS", 50)  # several batches
    with through(index, tmp_path) as back:
        assert content(back) == content(index)
        assert len(content(back)) == 129
        assert transfer.read_codes(back)[1].tolist() == transfer.read_codes(index)[1].tolist()
        asked = ["text 7", "nothing"]
        assert np.array_equal(back.search(asked, k=200).keys, index.search(asked, k=200).keys)


def test_columns_of_the_table(index: rbegir.Index, tmp_path: Path) -> None:
    export_parquet(index, tmp_path / "out.parquet")
    table = pq.read_table(tmp_path / "out.parquet")
    assert table.column_names == ["id", "text", "plane_0", "plane_1", "price", "lang"]
    raw = table["plane_1"][0].as_py()
    assert len(raw) == 8
    code = index.codes([table["id"][0].as_py()])
    bits = [bool(raw[d // 8] >> d % 8 & 1) for d in range(64)]  # dimension 8i + j in bit j of byte i
    assert bits == code.signs()[1, 0].tolist()


def test_npy_there_and_back(index: rbegir.Index, tmp_path: Path) -> None:
    export_npy(index, tmp_path / "codes.npy")
    codes = read_npy(tmp_path / "codes.npy")
    assert isinstance(codes, Codes)
    stored, ids = transfer.read_codes(index)
    assert codes == stored
    with import_npy(tmp_path / "codes.npy", tmp_path / "n.rbe", ids=ids) as back:
        assert back.codes(ids) == codes
        assert np.array_equal(
            back.search_codes(ENCODER.encode_queries(["text 7"]), 50).keys, index.search("text 7", 50).keys
        )


def test_vectors_come_in_through_a_binarizer(tmp_path: Path) -> None:
    vectors = np.random.default_rng(0).standard_normal((150, 20)).astype(np.float32)
    np.save(tmp_path / "v.npy", vectors)
    binarizer = rbegir.Binarizer(20, keyword_planes=3).fit(vectors)
    expected = binarizer.encode_keywords(vectors)
    texts = [f"t{i}" for i in range(150)]
    with import_npy(tmp_path / "v.npy", tmp_path / "1.rbe", binarizer=binarizer) as made:
        assert made.codes(np.arange(150)) == expected
    table = pa.table({"text": texts, "vector": pa.FixedSizeListArray.from_arrays(vectors.ravel(), 20)})
    pq.write_table(table, tmp_path / "v.parquet", row_group_size=64)
    with import_parquet(
        tmp_path / "v.parquet", tmp_path / "2.rbe", vector_column="vector", encoder=binarizer
    ) as made:
        assert made.codes(np.arange(150)) == expected
        assert made.get([149]) == [{"id": 149, "text": "t149"}]
    dataset = Dataset.from_dict({"id": texts, "vector": vectors.tolist(), "size": list(range(150))})
    with import_dataset(dataset, tmp_path / "3.rbe", vector_column="vector") as made:
        hits = made.search(vectors[:4], k=1)
        assert hits.ids.ravel().tolist() == ["t0", "t1", "t2", "t3"]
        assert hits.attributes is not None
        assert hits.attributes[2][0] == {"size": 2}


# ---- bad input: an error that says what, and nothing left behind ----


def untouched(folder: Path) -> bool:
    return not [path for path in folder.iterdir() if path.name.endswith(".rbe") or path.name.startswith(".")]


def test_bad_arrays(tmp_path: Path) -> None:
    np.save(tmp_path / "ints.npy", np.arange(6))
    with pytest.raises(InputError, match=r"ints.npy is int64 \[6\]; expected codes, uint64"):
        import_npy(tmp_path / "ints.npy", tmp_path / "x.rbe")
    (tmp_path / "text.npy").write_text("hello")
    with pytest.raises(FileError, match=r"text.npy is not a complete NumPy array file") as caught:
        import_npy(tmp_path / "text.npy", tmp_path / "x.rbe")
    assert "pickle" not in caught.value.message  # NumPy's own way out is to run what the file says
    assert "numpy.save" in caught.value.hint
    np.save(tmp_path / "cut.npy", np.ones((9, 4)))
    os.truncate(tmp_path / "cut.npy", 150)
    with pytest.raises(FileError, match=r"cut.npy is not a complete NumPy array file"):
        import_npy(tmp_path / "cut.npy", tmp_path / "x.rbe")
    np.save(tmp_path / "objects.npy", np.array([{}], object), allow_pickle=True)
    with pytest.raises(FileError, match=r"objects.npy is not a complete NumPy array file"):
        import_npy(tmp_path / "objects.npy", tmp_path / "x.rbe")
    np.savez(tmp_path / "two.npz", a=np.ones(2), b=np.ones(2))
    with pytest.raises(FileError, match="holds several arrays, expected one"):
        import_npy(tmp_path / "two.npz", tmp_path / "x.rbe")
    with pytest.raises(FileError, match="does not exist"):
        import_npy(tmp_path / "nothing.npy", tmp_path / "x.rbe")
    np.save(tmp_path / "eight.npy", np.zeros((8, 2, 1), np.uint64))
    with pytest.raises(InputError, match="has 8 planes, keywords have 1 to 4"):
        import_npy(tmp_path / "eight.npy", tmp_path / "x.rbe")
    np.save(tmp_path / "codes.npy", np.zeros((2, 3, 1), np.uint64))
    with pytest.raises(InputError, match="ids has 2 values for 3 rows"):
        import_npy(tmp_path / "codes.npy", tmp_path / "x.rbe", ids=[1, 2])
    with pytest.raises(InputError, match="ids must hold values of one type"):
        import_npy(tmp_path / "codes.npy", tmp_path / "x.rbe", ids=[1, "a", 2])
    holed = np.ones((9, 4), np.float32)
    holed[4, 2] = np.inf
    np.save(tmp_path / "holed.npy", holed)
    with pytest.raises(InputError, match=r"infinity|NaN"):
        import_npy(tmp_path / "holed.npy", tmp_path / "x.rbe")
    assert untouched(tmp_path)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"text": ["a", "b"]}, "the table has no columns plane_0, plane_1 … of codes, but text"),
        ({"plane_1": [b"12345678"] * 2}, "the table has no columns plane_0"),
        ({"plane_0": [b"12345678", b"123"]}, r"must hold codes of n / 8 bytes, got lengths \[3, 8\]"),
        ({"plane_0": [b"1234", b"1234"]}, r"must hold codes of n / 8 bytes, got lengths \[4\]"),
        ({"plane_0": [b"12345678", None]}, "has 1 rows without a code"),
        ({"plane_0": ["12345678", "12345678"]}, "must hold bytes, got string"),
        ({"plane_0": [b"12345678"] * 2, "plane_1": [b"1234567812345678"] * 2}, "codes of different lengths"),
        ({"plane_0": [b"12345678"] * 2, "id": [4, 4]}, "ids holds 4 more than once"),
    ],
)
def test_bad_tables(columns: dict[str, list[Any]], message: str, tmp_path: Path) -> None:
    pq.write_table(pa.table(columns), tmp_path / "t.parquet")
    with pytest.raises(InputError, match=message):
        import_parquet(tmp_path / "t.parquet", tmp_path / "x.rbe")
    with pytest.raises(InputError, match=message):
        import_dataset(Dataset.from_dict(columns), tmp_path / "x.rbe")
    assert untouched(tmp_path)


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ([[1.0, 2.0], [1.0]], r"must hold vectors of one length, got \[2, 1\]"),
        ([1.0, 2.0], "must hold lists of floats, got double"),
        ([["a"], ["b"]], "must hold lists of floats, got list"),
    ],
)
def test_bad_vectors(column: list[Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        import_dataset(Dataset.from_dict({"v": column}), tmp_path / "x.rbe", vector_column="v")
    with pytest.raises(InputError, match="there is no column 'w'; the columns are v"):
        import_dataset(Dataset.from_dict({"v": column}), tmp_path / "x.rbe", vector_column="w")
    assert untouched(tmp_path)


def test_bad_files_and_places(index: rbegir.Index, tmp_path: Path) -> None:
    (tmp_path / "p.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(FileError, match=r"p.parquet is not a Parquet file"):
        import_parquet(tmp_path / "p.parquet", tmp_path / "x.rbe")
    with pytest.raises(FileError, match="there is no file"):
        import_parquet(tmp_path / "none.parquet", tmp_path / "x.rbe")
    with pytest.raises(FileError, match="there is no directory"):
        export_parquet(index, tmp_path / "no" / "such" / "place.parquet")
    with pytest.raises(InputError, match=r"dataset must be a datasets.Dataset, got dict"):
        import_dataset({}, tmp_path / "x.rbe")  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"expected an rbegir.Index or rbegir.Codes, got list"):
        to_dataset([])  # type: ignore[arg-type]
    export_parquet(index, tmp_path / "out.parquet")
    with pytest.raises(MismatchError, match="codes have n = 64 and 2 planes, the index holds"):
        import_parquet(tmp_path / "out.parquet", tmp_path / "x.rbe", encoder=HashEncoder(n=128))
    with pytest.raises(InputError, match="vectors need a Binarizer, got HashEncoder"):
        import_parquet(tmp_path / "out.parquet", tmp_path / "x.rbe", vector_column="price", encoder=ENCODER)
    assert not (tmp_path / "x.rbe").exists()
    assert not list(tmp_path.glob(".*"))


def test_a_failure_half_way_leaves_what_was_there(tmp_path: Path) -> None:
    target = tmp_path / "file"
    target.write_text("before")
    with pytest.raises(ZeroDivisionError), disk.staged(target) as stage:  # noqa: PT012
        stage.write_text("half")
        _ = 1 // 0
    assert target.read_text() == "before"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    with pytest.raises(FileError, match="cannot write"), transfer.staged(tmp_path / "other"):
        raise OSError(28, "No space left on device")
    with disk.staged(target) as stage:
        stage.write_text("after")
    assert target.read_text() == "after"
