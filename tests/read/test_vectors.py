"""Files of vectors: .npy, .fvecs and .bvecs in blocks, columns of Parquet, and files that are damaged."""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rbegir.errors import CorruptError, FileError, InputError
from rbegir.read import vectors as vector_files
from rbegir.read.vectors import list_vectors, map_vectors, read_vectors

Array = np.ndarray[Any, Any]


def made(count: int, dims: int) -> Array:
    return np.random.default_rng(count).integers(0, 256, (count, dims)).astype(np.float32)


def written(path: Path, vectors: Array) -> Path:
    """One vector after the other, as the format says; the suffix decides which."""
    if path.suffix == ".npy":
        np.save(path, vectors)
    else:
        kind = "<f4" if path.suffix == ".fvecs" else "u1"
        rows = (struct.pack("<i", len(row)) + row.astype(kind).tobytes() for row in vectors)
        path.write_bytes(b"".join(rows))
    return path


@pytest.mark.parametrize("suffix", [".npy", ".fvecs", ".bvecs"])
@pytest.mark.parametrize(("count", "dims"), [(1, 1), (63, 5), (64, 64), (65, 3)])
def test_vectors_come_back(tmp_path: Path, suffix: str, count: int, dims: int) -> None:
    vectors = made(count, dims)
    path = written(tmp_path / f"v{suffix}", vectors)
    found = map_vectors(path)
    assert isinstance(found, np.memmap)
    assert found.dtype == (np.uint8 if suffix == ".bvecs" else np.float32)
    assert np.array_equal(found, vectors)


@pytest.mark.parametrize("suffix", [".npy", ".fvecs", ".bvecs"])
def test_blocks(tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vector_files, "BLOCK_VALUES", 100)
    vectors = made(65, 10)
    stream = read_vectors(written(tmp_path / f"v{suffix}", vectors))
    assert (stream.rows, stream.dims) == (65, 10)
    for _ in range(2):  # a stream can be read again
        shares, found = [], []
        for batch in stream:
            shares.append(stream.progress)
            found.append(list_vectors(batch["vector"], "vector"))
        assert [len(block) for block in found] == [10] * 6 + [5]
        assert np.array_equal(np.concatenate(found), vectors)
        assert shares == pytest.approx([10 / 65, 20 / 65, 30 / 65, 40 / 65, 50 / 65, 60 / 65, 1])


def test_a_table(tmp_path: Path) -> None:
    vectors = made(200, 6)
    columns = {
        "sku": [str(i) for i in range(200)],
        "name": [f"name {i}" for i in range(200)],
        "price": list(range(200)),
        "size": list(range(200)),
    }
    for kind, column in (
        ("fixed", pa.FixedSizeListArray.from_arrays(vectors.ravel(), 6)),
        ("list", pa.array(vectors.tolist())),
    ):
        path = tmp_path / f"{kind}.parquet"
        pq.write_table(pa.table({**columns, "embedding": column}), path, row_group_size=64)
        stream = read_vectors(
            path, "embedding", text_column="name", id_column="sku", id_type="int64", columns=["price"]
        )
        table = pa.Table.from_batches(stream)
        assert table.column_names == ["vector", "id", "text", "price"]
        assert table["id"].to_pylist() == list(range(200))
        assert table["text"].to_pylist() == columns["name"]
        assert np.array_equal(list_vectors(table["vector"].combine_chunks(), "vector"), vectors)
        assert stream.progress == 1
        assert np.array_equal(stream.some(1000), vectors)


@pytest.mark.parametrize("suffix", [".fvecs", ".parquet"])
def test_some_vectors_are_drawn_as_a_binarizer_draws_them(tmp_path: Path, suffix: str) -> None:
    vectors = made(300, 4)
    path = tmp_path / f"v{suffix}"
    if suffix == ".parquet":
        column = pa.FixedSizeListArray.from_arrays(vectors.ravel(), 4)
        pq.write_table(pa.table({"v": column}), path, row_group_size=70)
    else:
        written(path, vectors)
    chosen = np.sort(np.random.default_rng(3).choice(300, 40, replace=False))
    stream = read_vectors(path, "v" if suffix == ".parquet" else None)
    assert np.array_equal(stream.some(40, seed=3), vectors[chosen])


@pytest.mark.parametrize("suffix", [".fvecs", ".bvecs"])
def test_a_damaged_file_is_one_clear_error(
    tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vector_files, "CHECKED_ROWS", 16)
    path = written(tmp_path / f"v{suffix}", made(65, 7))
    whole = path.read_bytes()
    size = len(whole) // 65
    for left in (1, 3, 4, size - 1):  # of the last vector
        path.write_bytes(whole[: 64 * size + left])
        with pytest.raises(CorruptError, match=rf"is cut short: {left} of {size} bytes of its last vector"):
            map_vectors(path)
    for left in (1, size - 1):  # of the only one
        path.write_bytes(whole[:left])
        with pytest.raises(CorruptError, match=rf"is not a whole {suffix} file"):
            map_vectors(path)
    for row in (1, 16, 64):
        damaged = bytearray(whole)
        damaged[row * size] = 9
        path.write_bytes(damaged)
        with pytest.raises(CorruptError, match=rf"vector {row} has 9 dimensions, those before it 7"):
            map_vectors(path)
    path.write_bytes(struct.pack("<i", -5) * 9)
    with pytest.raises(CorruptError, match="its first vector has -5 dimensions, the file 36 bytes"):
        map_vectors(path)
    path.write_bytes(b"")
    with pytest.raises(InputError, match="is empty"):
        map_vectors(path)
    os.remove(path)
    with pytest.raises(FileError, match="does not exist"):
        map_vectors(path)


def test_what_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vector_files, "BLOCK_VALUES", 20)
    holed = made(9, 4)
    holed[7, 2] = np.nan
    with pytest.raises(InputError, match=r"v\.fvecs: vector 7 holds NaN or infinity"):
        list(read_vectors(written(tmp_path / "v.fvecs", holed)))
    np.save(tmp_path / "codes.npy", np.zeros((2, 3, 1), np.uint64))
    with pytest.raises(InputError, match=r"codes.npy is uint64 \[2, 3, 1\]; expected vectors"):
        read_vectors(tmp_path / "codes.npy")
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"v": [[1.0, 2.0]] * 3 + [[1.0]], "t": list("abcd")}), path, row_group_size=3)
    with pytest.raises(InputError, match="vectors have 1 dimensions, the first 2"):
        list(read_vectors(path, "v"))
    with pytest.raises(InputError, match="column 't' must hold lists of floats, got string"):
        read_vectors(path, "t")
    with pytest.raises(InputError, match="has no column 'w'; its columns are 'v', 't'") as caught:
        read_vectors(path, "w")
    assert "--vector-column" in caught.value.hint
    with pytest.raises(InputError, match="has no attribute 'price'"):
        read_vectors(path, "v", columns=["price"])
    with pytest.raises(InputError, match="has no columns of vectors"):
        read_vectors(tmp_path / "t.csv", "v")
    with pytest.raises(FileError, match="does not exist"):
        read_vectors(tmp_path / "nothing.parquet", "v")
    pq.write_table(pa.table({"v": pa.array([], pa.list_(pa.float32()))}), path)
    with pytest.raises(InputError, match="holds no vector"):
        read_vectors(path, "v")
