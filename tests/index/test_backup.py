"""Backups: consistent while the index changes, incremental, checked, and never in place of another index."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from rbegir.base import disk
from rbegir.errors import CorruptError, FileError, InputError, LockedError
from rbegir.index.store import Index
from tests.index.fakes import HashEncoder

ENCODER = HashEncoder()


@pytest.fixture
def index(tmp_path: Path) -> Index:
    """Two segments, one of them with a deleted keyword."""
    index = Index.create(tmp_path / "x.rbe", ENCODER)
    index.add([f"first {i}" for i in range(40)], attributes={"price": list(range(40))})
    index.add([f"second {i}" for i in range(30)])
    index.delete([3])
    return index


def rows(path: Path) -> list[dict[str, Any]]:
    with Index.open(path, model=ENCODER, read_only=True) as index:
        index.verify()
        return list(index.rows())


def test_a_backup_is_the_index_and_only_new_files_are_copied(index: Index, tmp_path: Path) -> None:
    path = tmp_path / "deep" / "copy.rbe"
    shown: list[tuple[int, int]] = []
    facts = index.backup(path, lambda *numbers: shown.append(numbers))
    counts = {"keywords": 69, "generation": 3, "files": 3, "copied": 3, "unchanged": 0}
    assert facts == {"path": str(path), **counts}
    assert shown[-1][0] == shown[-1][1] == index.info()["disk_bytes"]
    assert rows(path) == list(index.rows())
    index.add(["third"])
    before = {name: (path / name).stat().st_ino for name in os.listdir(path)}
    again = index.backup(path)
    assert (again["copied"], again["unchanged"]) == (1, 3)
    kept = [name for name, inode in before.items() if (path / name).stat().st_ino == inode]
    assert sorted(name[:3] for name in kept) == ["del", "seg", "seg"]
    assert rows(path) == list(index.rows())
    assert os.listdir(path.parent) == ["copy.rbe"]
    assert index.backup(path)["copied"] == 0
    restored = tmp_path / "restored.rbe"
    with Index.open(path, model=ENCODER, read_only=True) as copy:
        copy.backup(restored)
    assert rows(restored) == list(index.rows())


def test_files_that_are_removed_meanwhile_are_copied(index: Index, tmp_path: Path) -> None:
    wanted = list(index.rows())

    def compact(done: int, total: int) -> None:
        index.compact()

    with Index.open(index.path, read_only=True) as reader:
        reader.backup(tmp_path / "copy.rbe", compact)
    assert index.info()["segments"] == 1
    assert rows(tmp_path / "copy.rbe") == wanted


def test_a_damaged_file_of_the_backup_is_replaced(index: Index, tmp_path: Path) -> None:
    path = tmp_path / "copy.rbe"
    index.backup(path)
    (victim, *_) = sorted(path.glob("segment-*"))
    data = bytearray(victim.read_bytes())
    data[100] ^= 1
    victim.write_bytes(data)
    assert index.backup(path)["copied"] == 1
    assert rows(path) == list(index.rows())


def test_a_damaged_index_is_not_backed_up(index: Index, tmp_path: Path) -> None:
    index.close()
    (victim, *_) = sorted(index.path.glob("segment-*"))
    data = bytearray(victim.read_bytes())
    data[100] ^= 1
    victim.write_bytes(data)
    with (
        Index.open(index.path, read_only=True) as reader,
        pytest.raises(CorruptError, match=rf"{victim.name} is damaged: block 0 "),
    ):
        reader.backup(tmp_path / "copy.rbe")
    assert not (tmp_path / "copy.rbe").exists()


def test_where_files_cannot_be_linked_all_are_copied(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(old: Path, new: Path) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    path = tmp_path / "copy.rbe"
    assert index.backup(path)["copied"] == index.backup(path)["copied"] == 3
    assert rows(path) == list(index.rows())
    assert disk.link(path, path) is False


def test_an_index_holds_no_backup_of_itself(index: Index, tmp_path: Path) -> None:
    before = sorted(index.path.iterdir())
    (tmp_path / "link").symlink_to(index.path)
    for path in (index.path, tmp_path / "link"):
        with pytest.raises(InputError, match="is inside the index"):
            index.backup(path / "copies" / "monday.rbe")
    assert sorted(index.path.iterdir()) == before


def test_no_other_index_is_overwritten(index: Index, tmp_path: Path) -> None:
    other, copy = tmp_path / "other.rbe", tmp_path / "copy.rbe"
    Index.create(other, ENCODER).close()
    with pytest.raises(FileError, match="is an index of its own, not a backup"):
        index.backup(other)
    with pytest.raises(FileError, match="is an index of its own, not a backup"):
        index.backup(index.path)
    index.backup(copy)
    with Index.open(copy, model=ENCODER) as changed:
        changed.delete([0])
        with pytest.raises(FileError, match="was changed after it was made as a backup"):
            index.backup(copy)
    index.backup(tmp_path / "used.rbe")
    with Index.open(tmp_path / "used.rbe", model=ENCODER) as used:
        used.delete([])  # takes the lock, changes nothing
        with pytest.raises(LockedError, match="is being written"):
            index.backup(tmp_path / "used.rbe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file").touch()
    with pytest.raises(FileError, match="is not an rbegir index"):
        index.backup(tmp_path / "folder")
