"""Indexes whose stored model is a trap: links, pipes and files without end."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from rbegir.encode.clsm.model import Model
from rbegir.errors import FileError
from rbegir.index import creation
from rbegir.index.store import Index
from torture.frontdoor import make_model


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with Index.create(tmp_path / "x.rbe", make_model(tmp_path / "model", 1)) as index:
        index.add(["red shoes"])
    return tmp_path / "x.rbe"


def endless(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def linked(path: Path) -> None:
    path.symlink_to(path.rename(path.with_name("elsewhere")))


def sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(8 << 30)


@pytest.mark.parametrize(
    ("name", "harm", "message"),
    [
        ("config.json", sparse, r"config\.json has 8589934592 bytes, expected at most 16777216"),
        ("config.json", linked, r"cannot read .*config\.json: too many levels of symbolic links"),
        ("config.json", endless, r"config\.json"),
        ("config.json", pipe, r"config\.json"),
        ("model.safetensors", linked, r"cannot read .*model\.safetensors: Too many levels of symbolic links"),
        ("model.safetensors", endless, r"model\.safetensors"),
        ("model.safetensors", pipe, r"model\.safetensors"),
        (".", linked, "model is a link, which is not followed"),
    ],
)
def test_a_model_is_made_of_regular_files(
    path: Path, name: str, harm: Callable[[Path], None], message: str
) -> None:
    harm(path / "model" / name)
    with pytest.raises(FileError, match=message):
        _ = Index.open(path).model
    with pytest.raises(FileError, match=message):
        Index.open(path).verify()


def fifo(path: Path) -> None:
    os.mkfifo(path)


def outside(path: Path) -> None:
    (path.parents[2] / "secret").write_text("not part of the index")
    path.symlink_to(path.parents[2] / "secret")


def zeros(path: Path) -> None:
    path.symlink_to("/dev/zero")


def folder(path: Path) -> None:
    path.symlink_to(path.parents[2])


@pytest.mark.parametrize("harm", [fifo, outside, zeros, folder])
def test_a_model_with_anything_but_regular_files_is_not_copied(
    path: Path, tmp_path: Path, harm: Callable[[Path], None]
) -> None:
    harm(path / "model" / "extra")
    with (
        Index.open(path) as index,
        pytest.raises(FileError, match=r"model/extra is a link, a pipe or a device; a model has only"),
    ):
        index.backup(tmp_path / "backup.rbe")
    assert not (tmp_path / "backup.rbe").exists()
    report = Index.salvage(path, tmp_path / "saved.rbe")
    assert (report["model"], report["keywords"]) == ("lost", 1)
    assert not (tmp_path / "saved.rbe" / "model").exists()


def test_a_linked_model_is_not_copied(path: Path, tmp_path: Path) -> None:
    (path / "model").rename(tmp_path / "elsewhere")
    (path / "model").symlink_to(tmp_path / "elsewhere")
    with Index.open(path) as index, pytest.raises(FileError, match="model is a link, which is not followed"):
        index.backup(tmp_path / "backup.rbe")
    assert Index.salvage(path, tmp_path / "saved.rbe")["model"] == "lost"


def test_a_model_is_copied_piece_by_piece(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(creation, "COPIED_BYTES", 1000)
    sizes: list[int] = []
    write = creation.disk.write
    monkeypatch.setattr(creation.disk, "write", lambda to, data: (sizes.append(len(data)), write(to, data)))
    creation.copy_model(path / "model", tmp_path / "first")
    assert max(sizes) == 1000
    sizes.clear()
    (tmp_path / "first" / "config.json").unlink()
    (tmp_path / "first" / "config.json").symlink_to(path / "model" / "config.json")
    creation.copy_model(path / "model", tmp_path / "second", tmp_path / "first")
    names = sorted(one.name for one in (path / "model").iterdir())
    assert sorted(one.name for one in (tmp_path / "second").iterdir()) == names
    for name in names:
        assert (tmp_path / "second" / name).read_bytes() == (path / "model" / name).read_bytes()
    assert (tmp_path / "second" / "model.safetensors").stat().st_nlink == 2  # linked
    assert sum(sizes) == (path / "model" / "config.json").stat().st_size  # a link is no older copy


def test_a_link_that_the_user_names_is_followed(path: Path, tmp_path: Path) -> None:
    (tmp_path / "current").symlink_to(tmp_path / "model")
    assert Model.load(tmp_path / "current").n == 64
    (tmp_path / "now.rbe").symlink_to(path)
    assert len(Index.open(tmp_path / "now.rbe").search("red shoes")) == 1
    shutil.rmtree(path)
