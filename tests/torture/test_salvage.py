"""What is intact of a damaged index comes back, exactly, and what is lost is told."""

from __future__ import annotations

import json
import random
import shutil
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rbegir.encode.clsm.checkpoint import write
from rbegir.encode.clsm.model import Model
from rbegir.encode.clsm.presets import ModelConfig, random_tensors
from rbegir.errors import CorruptError, FileError
from rbegir.index.store import Index
from rbegir.index.wreck import WreckedSegment
from tests.cli.test_index_cli import rbegir
from tests.index.fakes import random_codes
from torture import salvage
from torture.salvage import ENCODER, Specimen


@pytest.fixture(scope="module")
def specimen(tmp_path_factory: pytest.TempPathFactory) -> Specimen:
    return Specimen(tmp_path_factory.mktemp("specimen"))


def test_the_specimen_is_varied(specimen: Specimen) -> None:
    entries = specimen.manifest["segments"]
    assert len(entries) == 3
    assert [last - first + 1 > count for _, _, count, first, last, *_ in entries] == [True, False, False]
    assert sum(entry[6] > 0 for entry in entries) == 2
    assert all(len(set.union(*blocks)) > 3 for blocks in list(specimen.blocks.values())[:2])


@pytest.mark.parametrize("number", range(36))
def test_what_is_intact_comes_back_exactly(specimen: Specimen, tmp_path: Path, number: int) -> None:
    salvage.TRIES[number % 6](specimen, tmp_path, random.Random(number))


def test_the_comparison_notices_a_careless_salvage(
    specimen: Specimen, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks that are not asked for would bring damaged texts back, or lose sound ones."""
    monkeypatch.setattr(WreckedSegment, "survivors", lambda self: self.known_rows() & False)
    with pytest.raises(AssertionError, match="keywords that came back"):
        salvage.try_segments(specimen, tmp_path, random.Random(1))


def _damage(specimen: Specimen, folder: Path, name: str, place: int) -> Path:
    path = folder / "x.rbe"
    shutil.copytree(specimen.path, path)
    data = bytearray(specimen.files[name])
    data[place] ^= 1
    (path / name).write_bytes(data)
    return path


def _verify(*arguments: Any) -> tuple[int, str, str]:
    return rbegir("index", "verify", *arguments)


def test_the_command_says_what_is_lost(specimen: Specimen, tmp_path: Path) -> None:
    name = next(iter(specimen.rows))
    path = _damage(specimen, tmp_path, name, 5000)
    code, out, _ = _verify(path, "--salvage", tmp_path / "saved.rbe", "--json")
    facts = json.loads(out)
    assert code == 1
    assert facts["ok"] is False
    assert "block 1 (bytes 4096 to 8191)" in facts["damage"][0]
    report = facts["salvage"]
    assert set(report) == {
        "out", "keywords", "lost", "replaced", "manifest", "model", "segments", "deletes"
    }  # fmt: skip
    assert report["keywords"] + report["lost"] == len(specimen.records)
    assert report["segments"][0]["file"] == name
    assert "checksums of blocks 1" in report["segments"][0]["reason"]
    code, out, told = _verify(path, "--salvage", tmp_path / "again.rbe")
    assert code == 1
    assert f"lost: {report['lost']} keywords of {name}, rows " in told
    assert f"again.rbe: {report['keywords']} keywords saved, {report['lost']} lost" in out


def test_lost_deletes_are_stated(specimen: Specimen, tmp_path: Path) -> None:
    name = max(name for name in specimen.files if name.startswith("deletes"))
    path = _damage(specimen, tmp_path, name, 70)
    code, _, told = _verify(path, "--salvage", tmp_path / "saved.rbe")
    assert code == 1
    assert "these keywords are back" in told


def test_a_lost_manifest_is_rebuilt(specimen: Specimen, tmp_path: Path) -> None:
    path = _damage(specimen, tmp_path, "MANIFEST", -60)
    (path / "MANIFEST").write_bytes(b"")
    code, out, told = _verify(path, "--salvage", tmp_path / "saved.rbe")
    assert code == 1
    assert "the manifest was lost and has been rebuilt from the segments" in told
    assert f"{len(specimen.records)} keywords saved, 0 lost" in out


def test_a_sound_index_is_copied(specimen: Specimen, tmp_path: Path) -> None:
    code, out, _ = _verify(specimen.path, "--salvage", tmp_path / "saved.rbe")
    assert code == 0
    assert "every byte is as it was written" in out
    assert salvage.records(tmp_path / "saved.rbe") == specimen.records


def test_the_model_comes_along_or_is_said_to_be_lost(tmp_path: Path) -> None:
    config = ModelConfig(conv=1, hash_buckets=1)
    write(tmp_path / "model", config, random_tensors(config))
    model = Model.load(tmp_path / "model")
    with Index.create(tmp_path / "x.rbe", model) as index:
        index.add(["red shoes", "blue shirt"])
        wanted = index.search("red shoes", k=2).ids.tolist()
    report = Index.salvage(tmp_path / "x.rbe", tmp_path / "saved.rbe")
    assert (report["model"], report["keywords"]) == ("intact", 2)
    with Index.open(tmp_path / "saved.rbe") as index:
        assert index.search("red shoes", k=2).ids.tolist() == wanted
    weights = next((tmp_path / "x.rbe" / "model").glob("*.safetensors"))
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.unlink()
    weights.write_bytes(data)
    report = Index.salvage(tmp_path / "x.rbe", tmp_path / "without.rbe")
    assert (report["model"], report["keywords"]) == ("lost", 2)
    with Index.open(tmp_path / "without.rbe", model=model) as index:
        assert index.search("red shoes", k=2).ids.tolist() == wanted


@pytest.mark.parametrize("manifest", ["intact", "rebuilt"])
def test_an_index_of_very_many_columns(tmp_path: Path, manifest: str) -> None:
    """A damaged block in the middle of one of 200 columns costs the keywords whose values are in it."""
    count, block = 2000, 4096
    columns: dict[str, Any] = {f"c{i:03}": np.arange(count) * (i + 1) for i in range(199)}
    columns["name"] = [f"keyword {row}" if row % 3 else None for row in range(count)]
    with Index.create(tmp_path / "x.rbe", n=64, keyword_planes=2) as index:
        index.add_codes(random_codes(count), attributes=columns)
        index.add_codes(random_codes(5, seed=1), attributes={"c007": range(5), "late": ["x"] * 5})
        index.delete([3, 1999])
        rows = {row["id"]: row for row in index.rows()}
    path = tmp_path / "x.rbe" / "segment-00000000.rbs"
    data = bytearray(path.read_bytes())
    start, end = struct.unpack_from("<QQ", data, len(data) - 36)
    directory = json.loads(data[start:end])
    number = [name for name, *_ in directory["meta"]["columns"]].index("c100")
    offset, size = directory["sections"][f"column.{number}.data"]
    assert size == 8 * count
    damaged = -(-offset // block)  # the first block that has no other column's values
    data[damaged * block + 77] ^= 1
    path.unlink()
    path.write_bytes(data)
    if manifest == "rebuilt":
        (tmp_path / "x.rbe" / "MANIFEST").unlink()
    first = (damaged * block - offset) // 8
    lost = set(range(first, first + block // 8)) - {3, 1999}

    report = Index.salvage(tmp_path / "x.rbe", tmp_path / "saved.rbe")
    assert report["manifest"] == manifest
    assert (report["keywords"], report["lost"]) == (len(rows) - len(lost), len(lost))
    assert report["segments"][0]["rows"] == [[min(lost), max(lost)]]
    with Index.open(tmp_path / "saved.rbe", read_only=True) as saved:
        saved.verify()
        assert len(saved.info()["attributes"]) == 201
        assert {row["id"]: row for row in saved.rows()} == {
            id_: row for id_, row in rows.items() if id_ not in lost
        }


def test_what_cannot_be_salvaged(specimen: Specimen, tmp_path: Path) -> None:
    with pytest.raises(FileError, match="there is no such directory"):
        Index.salvage(tmp_path / "nothing", tmp_path / "out")
    with pytest.raises(FileError, match="is the damaged index itself"):
        Index.salvage(specimen.path, specimen.path)
    (tmp_path / "link").symlink_to(specimen.path)
    with pytest.raises(FileError, match="is the damaged index itself"):
        Index.salvage(specimen.path, tmp_path / "link", overwrite=True)
    (tmp_path / "link").unlink()
    (tmp_path / "empty").mkdir()
    with pytest.raises(CorruptError, match=r"nothing can be salvaged from .*empty: the manifest is lost"):
        Index.salvage(tmp_path / "empty", tmp_path / "out")
    shutil.copytree(specimen.path, tmp_path / "there")
    with pytest.raises(FileError, match="exists already"):
        Index.salvage(specimen.path, tmp_path / "there")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["empty", "there"]
    with Index.open(specimen.path, model=ENCODER, read_only=True) as index:
        index.verify()
