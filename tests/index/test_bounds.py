"""Limits of what an index takes: columns, names, long filters, manifests that could not be reopened."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pytest

from rbegir.base.arguments import MAX_COLUMNS
from rbegir.errors import CorruptError, FilterError, InputError, RbegirError
from rbegir.index import format as file_format
from rbegir.index import manifest
from rbegir.index.filter import Filter
from rbegir.index.segment import MAX_ROWS, Entry
from rbegir.index.store import Index
from rbegir.index.where import MAX_TESTS
from tests.index.fakes import HashEncoder

ENCODER = HashEncoder()


@pytest.fixture
def index(tmp_path: Path) -> Index:
    return Index.create(tmp_path / "x.rbe", ENCODER)


def names(count: int, start: int = 0) -> dict[str, list[int]]:
    return {f"c{i}": [i] for i in range(start, start + count)}


# ---- columns ----


def test_columns_beyond_the_limit_are_refused(index: Index) -> None:
    index.add(["full"], attributes=names(MAX_COLUMNS))
    for attributes in (names(1, MAX_COLUMNS), [{"one more": 1}], {**names(5), "one more": [1]}):
        with pytest.raises(InputError, match="would have 257 attribute columns, at most 256 are allowed"):
            index.add(["too much"], attributes=attributes)
    index.add(["fits"], attributes=names(3))
    assert len(index) == 2


def test_many_names_are_refused_before_they_are_columns(index: Index) -> None:
    """As many values as names times rows would be made of them."""
    rows = [{f"r{i}": 1} for i in range(20_000)]
    before = time.process_time()
    with pytest.raises(InputError, match="would have 20000 attribute columns"):
        index.add(["x"] * 20_000, attributes=rows)
    assert time.process_time() - before < 10


def test_an_index_with_more_columns_is_still_used(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rbegir.base.arguments.MAX_COLUMNS", 1000)
    index.add(["old"], attributes=names(300))
    monkeypatch.undo()
    index.add(["new"], attributes=names(300))
    assert index.search("new", k=2, where="c299 = 299").ids.shape == (1, 2)


def test_a_filter_reads_the_columns_that_it_names(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    index.add(["a", "b"], attributes={name: value * 2 for name, value in names(MAX_COLUMNS).items()})
    calls = []
    original = Filter._evaluate
    monkeypatch.setattr(Filter, "_evaluate", lambda self, table: (calls.append(1), original(self, table))[1])
    types = index.snapshot.types()
    for where in ("c7 = 7 and c3 < 9", (pc.field("c7") == 7) & (pc.field("c3") < 9)):
        calls.clear()
        made = Filter(where, types)  # type: ignore[arg-type]
        assert {"c7", "c3"} <= set(made._columns) <= {"c7", "c3", "c"}
        assert len(calls) == 1  # and not one for every column
        assert index.search("a", k=2, where=where).ids.shape == (1, 2)  # type: ignore[arg-type]
    with pytest.raises(FilterError, match="where cannot be evaluated"):
        Filter(pc.field("nowhere") == 1, types)


def test_compaction_drops_columns_without_values(index: Index) -> None:
    index.add(["a", "b"], attributes={"price": [1, 2], "brief": [7, None], "none": [None, None]})
    index.add(["c"], attributes={"late": ["x"], "none": [None]})
    index.delete([0, 2])
    assert list(index.info()["attributes"]) == ["price", "brief", "late"]
    index.compact()
    assert index.info()["attributes"] == {"price": "int64"}
    assert index.get([1]) == [{"id": 1, "text": "b", "price": 2}]
    index.add(["d"], attributes={"brief": ["now a text"]})  # the type is free again
    assert Index.open(index.path, model=ENCODER).search(
        "d", k=1, where="brief = 'now a text'"
    ).texts.tolist() == [["d"]]
    index.verify()


def test_compaction_drops_columns_of_a_segment_that_it_would_keep(index: Index) -> None:
    index.add(["a"], attributes={"brief": [7]})
    index.upsert(["a"], [0], attributes={"price": [1]})
    index.compact()
    assert index.info()["attributes"] == {"price": "int64"}
    index.delete([0])
    index.compact()
    assert (len(index), index.info()["attributes"]) == (0, {})
    generation = index.info()["generation"]
    index.compact()
    assert index.info()["generation"] == generation  # nothing to do


def test_names_are_unicode(index: Index) -> None:
    with pytest.raises(InputError, match=r"the name of an attribute must be valid Unicode, got '\\ud800'"):
        index.add(["a"], attributes={"\ud800": [1]})
    index.add(["a"], attributes={"Größe 😀": [1]})


# ---- what is written can be read ----


def test_a_directory_that_could_not_be_read_is_not_written(
    index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    index.add(["before"])
    monkeypatch.setattr(file_format, "DIRECTORY_LIMIT", 2000)
    wide = {f"{i:03}" + "😀" * 197: [i] for i in range(9)}
    with pytest.raises(
        InputError, match=r"would need a directory of .* bytes, at most 2000 can be read again"
    ):
        index.add(["after"], attributes=wide)
    assert len(Index.open(index.path)) == 1
    index.add(["small"])
    assert len(Index.open(index.path)) == 2


def rewrite(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Replace the manifest by one with sound checksums."""
    meta = file_format.File(path / manifest.NAME, file_format.FileKind.MANIFEST).meta
    change(meta)
    (path / manifest.NAME).unlink()
    with file_format.FileWriter(path / manifest.NAME, file_format.FileKind.MANIFEST) as writer:
        writer.finish(meta)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda meta: meta["columns"].update(id="string"), "there cannot be a column 'id'"),
        (lambda meta: meta["columns"].update(text="int64"), "there cannot be a column 'text'"),
        (lambda meta: meta["columns"].update(score="double"), "there cannot be a column 'score'"),
        (lambda meta: meta.update({f"x{i}": "y" * 99 for i in range(1000)}), "has 1000 unknown entries"),
    ],
)
def test_crafted_manifests(index: Index, change: Callable[[dict[str, Any]], Any], message: str) -> None:
    index.add(["a"])
    index.close()
    rewrite(index.path, change)
    with pytest.raises(CorruptError, match=message):
        Index.open(index.path)


def write_directory(path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[str], str]) -> None:
    """Replace the manifest by one with sound checksums, whose directory is any text."""
    with monkeypatch.context() as patch:
        patch.setattr(file_format, "MANIFEST_LIMIT", 1 << 28)
        patch.setattr(file_format.json, "dumps", lambda made: change(json.JSONEncoder().encode(made)))
        rewrite(path, lambda meta: None)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text[:-1] + ', "junk": [[], []]}', "the directory has unknown entries"),
        (lambda text: text[:-2] + '"junk": [64, 0]}}', "the directory has unknown entries"),
        (lambda text: text + " " * 2**24, r"its directory has \d+ bytes, at most 16777216 are allowed"),
    ],
)
def test_a_manifest_has_nothing_beside_its_entries(
    index: Index, monkeypatch: pytest.MonkeyPatch, change: Callable[[str], str], message: str
) -> None:
    index.add(["a"])
    index.close()
    write_directory(index.path, monkeypatch, lambda text: text)
    assert len(Index.open(index.path)) == 1
    write_directory(index.path, monkeypatch, change)
    with pytest.raises(CorruptError, match=message):
        Index.open(index.path)


def test_the_largest_manifest_has_all_columns_and_very_many_segments(tmp_path: Path) -> None:
    kind = f"timestamp[ns, tz={'a' * 64}]"
    size, file = file_format.Stamp(2**62, 2**32 - 1), 10**17
    segments = [
        Entry(
            f"segment-{file + i}.rbs",
            size,
            MAX_ROWS,
            row,
            row + MAX_ROWS - 1,
            f"deletes-{file + i}.rbd",
            MAX_ROWS,
        )
        for i, row in enumerate(range(10**18, 10**18 + 68_000 * MAX_ROWS, MAX_ROWS))
    ]
    largest = manifest.Manifest(
        n=64,
        keyword_planes=2,
        query_planes=3,
        fingerprint="f" * 32,
        next_row=2**61,
        columns={f"{i:03}" + "😀" * 197: kind for i in range(MAX_COLUMNS)},
        segments=tuple(segments),
        deletes={str(entry.deletes): size for entry in segments},
    )
    manifest.prepare(tmp_path, largest)
    manifest.commit(tmp_path)
    assert manifest.read_manifest(tmp_path) == largest


def test_a_change_that_could_not_be_reopened_is_not_made(index: Index) -> None:
    index.add(["a"])
    index.close()
    rewrite(index.path, lambda meta: meta.update(next_file=2**59))
    with Index.open(index.path, model=ENCODER) as again:
        with pytest.raises(RbegirError, match="next_file cannot be"):
            again.add(["b"])
        assert len(again) == 1
    assert len(Index.open(index.path)) == 1


@pytest.mark.parametrize("kind", ["segment", "deletes"])
def test_a_file_that_a_reader_would_refuse_is_not_committed(
    index: Index, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """The disk gives back other bytes than were written."""
    index.add(["a", "b"], ids=[1, 2])
    finish = file_format.FileWriter.finish

    def broken(self: file_format.FileWriter, meta: dict[str, Any]) -> file_format.Stamp:
        stamp = finish(self, meta)
        if self.path.name.startswith(kind):
            content = bytearray(self.path.read_bytes())
            content[-1] ^= 1
            self.path.write_bytes(content)
        return stamp

    with monkeypatch.context() as patch:
        patch.setattr(file_format.FileWriter, "finish", broken)
        with pytest.raises(CorruptError, match="footer does not match"):
            index.upsert(["c"], ids=[2])
    for seen in (index, Index.open(index.path, model=ENCODER, read_only=True)):
        assert [row["text"] for row in seen.rows()] == ["a", "b"]
        seen.verify()
    index.upsert(["c"], ids=[2])
    assert [row["text"] for row in index.rows()] == ["a", "c"]


def test_every_manifest_that_is_written_is_checked(index: Index, tmp_path: Path) -> None:
    sound = index.snapshot.manifest
    for wrong in (
        replace(sound, next_row=-1), replace(sound, n=65), replace(sound, columns={"a": "list<int>"}),
        replace(sound, generation=np.int64(3)),  # type: ignore[arg-type]
    ):  # fmt: skip
        with pytest.raises(CorruptError):
            manifest.prepare(tmp_path, wrong)
        assert not (tmp_path / manifest.NEW).exists()


# ---- filters ----


@pytest.mark.parametrize("word", ["or", "and"])
def test_long_filters_do_not_end_the_process(index: Index, word: str) -> None:
    """A chain of 10,000 was a recursion in Arrow that ended the process."""
    index.add([f"t{i}" for i in range(50)], attributes={"a": list(range(50))})
    tests = [f"a = {i}" if word == "or" else f"a != {i}" for i in range(20, 20 + MAX_TESTS)]
    found = index.search("t3", k=50, where=f" {word} ".join(tests))
    wanted = set(range(20, 50)) if word == "or" else set(range(20))
    assert set(found.ids[0].tolist()) == wanted
    with pytest.raises(FilterError, match="it has more than 10000 tests"):
        index.search("t3", where=f" {word} ".join([*tests, "a = 1"]))


def test_filters_mean_what_they_say(index: Index) -> None:
    values = [(i % 2, i // 2 % 2, i // 4 % 2) for i in range(8)]
    index.add(
        [f"t{i}" for i in range(8)],
        attributes={name: [bool(value[at]) for value in values] for at, name in enumerate("abc")},
    )
    for where in (
        "a and b or c",
        "a or b and c",
        "a or b or c and not a",
        "a and b and c or not a and not b",
    ):
        wanted = {i for i, (a, b, c) in enumerate(values) if eval(where, {}, {"a": a, "b": b, "c": c})}
        assert set(index.search("t0", k=8, where=where).ids[0].tolist()) == wanted
