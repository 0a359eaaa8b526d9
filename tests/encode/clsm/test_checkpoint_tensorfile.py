"""The safetensors layout: read what the package writes, write what it reads, refuse everything else."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from rbegir.encode.directory import REPAIR, TensorFile, header
from rbegir.errors import CorruptError, FileError

Arrays = dict[str, npt.NDArray[np.float32]]


def example() -> Arrays:
    draw = np.random.default_rng(0)
    shapes = {"b": (3,), "a.weight": (5, 7), "empty": (0, 4), "scalar": (), "β": (2, 1, 3)}
    return {name: draw.standard_normal(shape, dtype=np.float32) for name, shape in shapes.items()}


def write(path: Path, arrays: Arrays) -> None:
    head = header(arrays, {"made by": "a test"})
    path.write_bytes(head + b"".join(array.tobytes() for array in arrays.values()))


def test_the_package_reads_what_is_written_here(tmp_path: Path) -> None:
    arrays = example()
    write(tmp_path / "x", arrays)
    loaded = load_file(tmp_path / "x")
    assert set(loaded) == set(arrays)
    for name, array in arrays.items():
        assert np.array_equal(loaded[name], array)
    assert TensorFile(tmp_path / "x").data_start % 64 == 0


@pytest.mark.parametrize("writer", ["package", "here"])
def test_tensors_are_views_of_the_file(tmp_path: Path, writer: str) -> None:
    arrays = example()
    if writer == "package":
        save_file(arrays, tmp_path / "x", {"made by": "a test"})
    else:
        write(tmp_path / "x", arrays)
    file = TensorFile(tmp_path / "x")
    assert file.metadata == {"made by": "a test"}
    assert set(file.spans) == set(arrays)
    for name, array in arrays.items():
        got = file.array(name)
        assert got.dtype == np.float32
        assert got.shape == array.shape
        assert np.array_equal(got, array)
        assert got.size == 0 or not got.flags.owndata
        assert got.size == 0 or not got.flags.writeable


def entry(shape: object = (2,), offsets: object = (0, 8), dtype: object = "F32") -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "has only 0 bytes"),
        (b"\0" * 7, "has only 7 bytes"),
        (b"\xff" * 8, f"names a header of {2**64 - 1} bytes"),
        ((100).to_bytes(8, "little") + b"{}", "names a header of 100 bytes"),
        ((2).to_bytes(8, "little") + b"\xff\xff", "has a header that is not JSON"),
        ((2).to_bytes(8, "little") + b"[]", "has a header that is no JSON object"),
        ((20000).to_bytes(8, "little") + b"[" * 20000, "has a header that is not JSON"),
        ((16).to_bytes(8, "little") + b'{"a":{}, "a":{}}', "has a header that is not JSON"),
        ({"a": entry()}, None),
        ({"a": []}, "describes tensor 'a' wrongly"),
        ({"a": {**entry(), "x": 1}}, "describes tensor 'a' wrongly"),
        ({"a": entry(dtype="F16")}, "holds tensor 'a' as 'F16'; a model has only F32"),
        ({"a": entry(shape=[-2])}, "describes tensor 'a' wrongly"),
        ({"a": entry(shape=[2.0])}, "describes tensor 'a' wrongly"),
        ({"a": entry(shape=[True, 2])}, "describes tensor 'a' wrongly"),
        ({"a": entry(shape="2")}, "describes tensor 'a' wrongly"),
        ({"a": entry(offsets=[0, 8, 8])}, "describes tensor 'a' wrongly"),
        ({"a": entry(offsets=[8, 0])}, "places tensor 'a' [2] at bytes [8, 0], which cannot be"),
        ({"a": entry(offsets=[0, 4])}, "places tensor 'a' [2] at bytes [0, 4], which cannot be"),
        ({"a": entry([2**62, 2**62], [0, 8])}, "which cannot be"),
        ({"a": entry([4], [0, 16])}, "bytes, and tensor 'a' ends at byte"),
        ({"a": entry([1], [0, 4])}, "bytes, but has"),
        ({"a": entry([1], [4, 8])}, "has a gap or an overlap before tensor 'a'"),
        ({"a": entry(), "b": entry()}, "has a gap or an overlap before tensor 'b'"),
        ({"a": entry(), "__metadata__": {"x": 1}}, "has metadata that are not strings"),
        ({"a": entry(), "__metadata__": []}, "has metadata that are not strings"),
    ],
)
def test_a_wrong_file_is_refused(
    tmp_path: Path, content: bytes | dict[str, object], message: str | None
) -> None:
    path = tmp_path / "x"
    if isinstance(content, dict):
        text = json.dumps(content).encode()
        text += b" " * (-len(text) % 8)
        content = len(text).to_bytes(8, "little") + text + bytes(8)
    path.write_bytes(content)
    if message is None:
        assert TensorFile(path).array("a").tolist() == [0, 0]
        return
    with pytest.raises(CorruptError) as caught:
        TensorFile(path)
    assert caught.value.message.startswith(f"{path} ")
    assert message in caught.value.message
    assert caught.value.hint == REPAIR


def test_misaligned_data_is_refused(tmp_path: Path) -> None:
    text = json.dumps({"a": entry([2], [0, 8])}).encode()
    text += b" " * (-len(text) % 8 + 1)
    (tmp_path / "x").write_bytes(len(text).to_bytes(8, "little") + text + bytes(8))
    with pytest.raises(CorruptError, match=r"which cannot be"):
        TensorFile(tmp_path / "x")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"cannot read .*nowhere: No such file or directory"):
        TensorFile(tmp_path / "nowhere")


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_a_damaged_header_never_does_worse_than_an_error(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.getbasetemp() / "damaged"
    write(path, example())
    content = bytearray(path.read_bytes())
    end = 8 + int.from_bytes(content[:8], "little")
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, end - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(content)
    try:
        file = TensorFile(path)
    except CorruptError:
        return
    for name, span in file.spans.items():
        assert file.array(name).shape == span.shape
