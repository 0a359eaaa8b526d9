"""Indexes whose stored model is a trap: links, pipes and files without end."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from rbegir.encode.clsm.model import Model
from rbegir.errors import FileError
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


def test_a_link_that_the_user_names_is_followed(path: Path, tmp_path: Path) -> None:
    (tmp_path / "current").symlink_to(tmp_path / "model")
    assert Model.load(tmp_path / "current").n == 64
    (tmp_path / "now.rbe").symlink_to(path)
    assert len(Index.open(tmp_path / "now.rbe").search("red shoes")) == 1
    shutil.rmtree(path)
