"""Bytes that are not the ones that were written: noticed and named, or without any effect on an answer."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rbegir._native._core import crc32c
from rbegir.errors import CorruptError, FileError, RbegirError, VersionError
from rbegir.index import format as file_format
from rbegir.index import manifest, writer
from rbegir.index.format import BLOCK, FOOTER, HEADER, File, FileKind, FileWriter
from rbegir.index.store import Index
from tests.index.fakes import HashEncoder

ENCODER = HashEncoder()
FILTER = "price < 60 and lang = 'en'"


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two segments (one with listed rows), deletes in both forms, nulls, string ids, all kinds of columns."""
    path = tmp_path_factory.mktemp("sound") / "x.rbe"
    with Index.create(path, ENCODER) as index:
        for start, stop in ((0, 90), (90, 300), (300, 340)):
            numbers = range(start, stop)
            index.add(
                [f"text {i} é" for i in numbers],
                [f"id-{i}" for i in numbers],
                {
                    "price": [i if i % 3 else None for i in numbers],
                    "lang": ["en" if i % 2 else "de" for i in numbers],
                    "sold": [None if i % 7 == 0 else i % 2 == 0 for i in numbers],
                    "weight": [i / 8 for i in numbers],
                },
            )
            if stop == 300:
                index.delete([f"id-{i}" for i in range(10, 300, 5)])
                index.compact()
        index.delete([f"id-{i}" for i in range(0, 340, 3)])
        index.delete(["id-301"])
    return path


def _answers(path: Path) -> list[Any]:
    """Everything a user can ask, reading every section that has a use."""
    with Index.open(path, model=ENCODER, read_only=True) as index:
        plain = index.search(["text 7", "text 305"], k=1000)
        some = index.search("text 7", k=5, where=FILTER, deny=["id-1"])
        hits = [
            (h.ids.tolist(), h.keys.tolist(), h.rows.tolist(), h.texts, h.attributes) for h in (plain, some)
        ]
        records = index.get([f"id-{i}" for i in range(0, 340, 11)])
        return [hits[0][:3], hits[0][3].tolist(), hits[0][4], hits[1][:3], hits[1][4], records, len(index)]


def _files(path: Path) -> list[str]:
    return sorted(name for name in os.listdir(path) if name != writer.LOCK)


def _copy(sound: Path, to: Path) -> Path:
    shutil.rmtree(to, ignore_errors=True)
    shutil.copytree(sound, to)
    return to


def _noticed(path: Path, wanted: list[Any], name: str) -> bool:
    """Whether reading fails with our error that names the file; if it does not, the answers must be right."""
    try:
        assert _answers(path) == wanted
    except FileError as error:
        if name in error.message:
            return True
        raise
    return False


def _verify_names(path: Path, name: str) -> str:
    with pytest.raises(FileError, match=re.escape(name)) as caught:
        Index.open(path, read_only=True).verify()
    return caught.value.message


def test_the_sound_index_is_varied(sound: Path) -> None:
    kinds = {name.split("-")[0] for name in _files(sound)}
    assert kinds == {"MANIFEST", "deletes", "segment"}
    Index.open(sound, read_only=True).verify()
    entries = manifest.read_manifest(sound).segments
    assert len(entries) == 2
    assert entries[0].last_row - entries[0].first_row + 1 > entries[0].count  # rows are listed
    assert all(entry.deleted for entry in entries)


def test_a_flipped_bit_is_noticed_or_harmless(sound: Path, tmp_path: Path) -> None:
    """Many single bits in every file: reading notices, or the answers are right; verify always notices."""
    wanted = _answers(sound)
    chance = random.Random(5)
    noticed = 0
    for name in _files(sound):
        size = (sound / name).stat().st_size
        places = {0, 7, 8, 10, 12, HEADER.size - 1, HEADER.size, size - 1, size - FOOTER.size, size - 4}
        places |= {chance.randrange(size) for _ in range(60)}
        for place in sorted(places):
            path = _copy(sound, tmp_path / "x.rbe")
            with open(path / name, "r+b") as file:
                file.seek(place)
                byte = file.read(1)[0]
                file.seek(place)
                file.write(bytes([byte ^ 1 << chance.randrange(8)]))
            noticed += _noticed(path, wanted, name)
            _verify_names(path, name)
    assert noticed > 100


def test_verify_names_file_and_block(sound: Path, tmp_path: Path) -> None:
    path = _copy(sound, tmp_path / "x.rbe")
    name = next(name for name in _files(path) if name.startswith("segment"))
    for block in (1, 3):
        data = bytearray((path / name).read_bytes())
        data[block * BLOCK + 5] ^= 1
        (path / name).write_bytes(data)
    message = _verify_names(path, name)
    for block in (1, 3):
        assert f"block {block} (bytes {block * BLOCK} to {(block + 1) * BLOCK - 1})" in message


def test_a_cut_or_longer_file_is_noticed_when_opened(sound: Path, tmp_path: Path) -> None:
    for name in _files(sound):
        data = (sound / name).read_bytes()
        for changed in (
            data[:0],
            data[:7],
            data[:19],
            data[: len(data) // 2],
            data[:-1],
            data + b"\0",
            data * 2,
        ):
            path = _copy(sound, tmp_path / "x.rbe")
            (path / name).write_bytes(changed)
            with pytest.raises(FileError, match=re.escape(name)):
                Index.open(path)


def test_a_missing_or_swapped_file_is_noticed_when_opened(sound: Path, tmp_path: Path) -> None:
    first, second = (name for name in _files(sound) if name.startswith("segment"))
    path = _copy(sound, tmp_path / "x.rbe")
    (path / first).unlink()
    with pytest.raises(CorruptError, match=f"{first} is missing, but the manifest names it"):
        Index.open(path)
    path = _copy(sound, tmp_path / "x.rbe")
    shutil.copy(path / second, path / first)
    with pytest.raises(CorruptError, match=f"{first} is not the file that the manifest names"):
        Index.open(path)
    path = _copy(sound, tmp_path / "x.rbe")
    (path / first).unlink()
    (path / first).mkdir()
    with pytest.raises(FileError, match=f"{first} is not a regular file"):
        Index.open(path)


def test_all_damage_is_listed(sound: Path, tmp_path: Path) -> None:
    """A file that does not open does not hide what is wrong with the others."""
    path = _copy(sound, tmp_path / "x.rbe")
    second, first = (entry.file for entry in manifest.read_manifest(path).segments)
    (path / first).unlink()
    data = bytearray((path / second).read_bytes())
    data[BLOCK + 1] ^= 128
    (path / second).write_bytes(data)
    from rbegir.index.snapshot import damage

    messages = [error.message for error in damage(path)]
    assert any(first in message and "missing" in message for message in messages)
    assert any(second in message and "block 1" in message for message in messages)


@pytest.mark.parametrize(
    ("bytes_at_start", "what"), [(b"", "it is empty"), (b"PAR1" * 100, "is not a file of an rbegir")]
)
def test_foreign_files(sound: Path, tmp_path: Path, bytes_at_start: bytes, what: str) -> None:
    path = _copy(sound, tmp_path / "x.rbe")
    (path / "MANIFEST").write_bytes(bytes_at_start)
    with pytest.raises(FileError, match=what):
        Index.open(path)


def test_another_version_says_so(sound: Path, tmp_path: Path) -> None:
    path = _copy(sound, tmp_path / "x.rbe")
    data = bytearray((path / "MANIFEST").read_bytes())
    data[8:10] = struct.pack("<H", 2)
    data[16:20] = struct.pack("<I", crc32c(bytes(data[:16])))
    (path / "MANIFEST").write_bytes(data)
    with pytest.raises(VersionError, match="has format version 2, this rbegir reads version 1"):
        Index.open(path)


def _rewrite_manifest(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """A manifest with sound checksums and other contents: what an attacker would write."""
    meta = json.loads(json.dumps(File(path / "MANIFEST", FileKind.MANIFEST).meta))
    change(meta)
    (path / "MANIFEST").unlink()
    with FileWriter(path / "MANIFEST", FileKind.MANIFEST) as writer:
        writer.finish(meta)


def _set(key: str, value: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda meta: meta.__setitem__(key, value)


def _set_entry(field: int, value: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda meta: meta["segments"][0].__setitem__(field, value)


@pytest.mark.parametrize(
    "change",
    [
        *(_set_entry(0, name) for name in ("../secret", "/etc/passwd", "segment-00000001.rbs/../x", "", 7)),
        *(_set_entry(0, name) for name in ("segment-00000001.rbs\n", "SEGMENT-00000001.RBS", "segment-1")),
        _set_entry(0, None),
        *(_set_entry(1, stamp) for stamp in ([-1, 0], [5], None, [2**70, 0], [10, 2**33])),
        *(_set_entry(2, count) for count in (0, -1, 2**40, 1.5, None, True, "3")),
        *(_set_entry(3, row) for row in (-1, 2**62 + 1, None)),
        *(_set_entry(4, row) for row in (-1, 0, 2**63, None)),
        *(_set_entry(5, name) for name in ("../x", "deletes-99999999.rbd", 5)),
        *(_set_entry(6, count) for count in (-1, 2**50, None)),
        *(_set("n", n) for n in (0, 63, -64, 2048, None, "64")),
        *(_set("keyword_planes", n) for n in (0, 5, None, "2")),
        *(_set("query_planes", n) for n in (-1, 9, None)),
        *(_set("columns", columns) for columns in ({"a": "list<int8>"}, {"a": None}, 5, ["a"])),
        _set("id_type", "float"),
        _set("fingerprint", 5),
        _set("has_model", "yes"),
        _set("next_row", 5),
        _set("next_file", -1),
        _set("generation", None),
        _set("deletes", {"../../x": [1, 2]}),
        _set("segments", None),
        _set("segments", [[]]),
        lambda meta: meta["segments"].append(meta["segments"][0]),
        lambda meta: meta["segments"].reverse(),
        lambda meta: meta.pop("n"),
        lambda meta: meta.clear(),
    ],
)  # fmt: skip
def test_hostile_manifests(sound: Path, tmp_path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    path = _copy(sound, tmp_path / "x.rbe")
    _rewrite_manifest(path, change)
    with pytest.raises(CorruptError):
        Index.open(path)


@settings(max_examples=150)
@given(data=st.data())
def test_hostile_segments(sound: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """Segments with sound checksums but wild metadata or contents: our error or an answer, never a crash."""
    path = _copy(sound, tmp_path_factory.mktemp("hostile") / "x.rbe")
    entry = manifest.read_manifest(path).segments[0]
    old = File(path / entry.file, FileKind.SEGMENT)
    meta = json.loads(json.dumps(old.meta))
    sections = {
        name: bytearray(old.section(name).view(np.uint8, size)) for name, (_, size) in old._sections.items()
    }
    victim = data.draw(st.sampled_from(sorted(sections)))
    wild = data.draw(st.sampled_from(["bytes", "drop", "grow", "shrink", "meta"]))
    if wild == "bytes" and sections[victim]:
        for _ in range(data.draw(st.integers(1, 20))):
            at = data.draw(st.integers(0, len(sections[victim]) - 1))
            sections[victim][at] = data.draw(st.integers(0, 255))
    elif wild == "drop":
        del sections[victim]
    elif wild == "grow":
        sections[victim] += bytes(data.draw(st.integers(1, 64)))
    elif wild == "shrink":
        del sections[victim][data.draw(st.integers(0, max(len(sections[victim]) - 1, 0))) :]
    else:
        key = data.draw(st.sampled_from(sorted(meta)))
        meta[key] = data.draw(
            st.one_of(st.none(), st.integers(-5, 2**66), st.text(max_size=3), st.just([[]]))
        )
        column = data.draw(st.integers(0, 3))
        if data.draw(st.booleans()) and isinstance(meta["columns"], list) and len(meta["columns"]) > column:
            spec = meta["columns"][column]
            if spec:
                spec[data.draw(st.integers(1, 3))] = data.draw(
                    st.sampled_from(["int64", "string", "bool", "double", 0, 3, True, False, None])
                )
    (path / entry.file).unlink()
    with FileWriter(path / entry.file, FileKind.SEGMENT) as writer:
        for name, content in sections.items():
            writer.section(name, bytes(content))
        stamp = writer.finish(meta)
    _rewrite_manifest(path, _set_entry(1, list(stamp)))
    try:
        _answers(path)
        with Index.open(path, model=ENCODER) as index:
            index.verify()
            index.compact()
    except RbegirError:
        pass


def test_directories_that_lie_about_their_sections(tmp_path: Path) -> None:
    for span in ([0, 10], [64, 2**40], [64, -1], [65, 1], ["64", 1], [64, 1.0], [2**64, 1], [64], None, 5):
        path = tmp_path / "f"
        path.unlink(missing_ok=True)
        with FileWriter(path, FileKind.DELETES) as writer:
            writer.section("a", bytes(100))
            writer._sections["a"] = span  # type: ignore[assignment]
            writer.finish({})
        with pytest.raises(CorruptError):
            File(path, FileKind.DELETES)


def test_deeply_nested_directories_do_not_overflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_format.json, "dumps", lambda value: "[" * 200_000)
    with FileWriter(tmp_path / "f", FileKind.DELETES) as writer:
        writer.finish({})
    with pytest.raises(CorruptError, match="the directory cannot be understood"):
        File(tmp_path / "f", FileKind.DELETES)


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    with FileWriter(tmp_path / "f", FileKind.DELETES) as writer:
        writer.finish({})
    with pytest.raises(CorruptError, match="expected a segment file, found kind 3"):
        File(tmp_path / "f", FileKind.SEGMENT)


def test_links_are_not_followed(sound: Path, tmp_path: Path) -> None:
    path = _copy(sound, tmp_path / "x.rbe")
    name = next(name for name in _files(path) if name.startswith("segment"))
    (path / name).rename(tmp_path / "elsewhere")
    (path / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FileError, match=name):
        Index.open(path)
