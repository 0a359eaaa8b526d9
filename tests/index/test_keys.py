"""Lookups by id: the short way through fences, the long way through all keys, collisions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from rbegir.errors import CorruptError
from rbegir.index import keys as module
from rbegir.index.format import BLOCK, File, FileKind, FileWriter
from rbegir.index.keys import STRIDE, SortedKeys, write_keys
from rbegir.index.store import Index
from tests.index.fakes import HashEncoder


def _stored(path: Path, keys: npt.NDArray[np.uint64]) -> SortedKeys:
    path.unlink(missing_ok=True)
    with FileWriter(path, FileKind.SEGMENT) as writer:
        write_keys(writer, "id", keys)
        writer.finish({})
    return SortedKeys.named(File(path, FileKind.SEGMENT), "id", keys.size)


@pytest.mark.parametrize("count", [1, 2, STRIDE - 1, STRIDE, STRIDE + 1, 3 * STRIDE, 5000, 20_000])
@pytest.mark.parametrize("distinct", [3, 2**63])
def test_both_ways_find_what_a_plain_search_finds(tmp_path: Path, count: int, distinct: int) -> None:
    """Few distinct keys make runs of equal keys that span many fences."""
    rng = np.random.default_rng(count)
    keys = rng.integers(0, distinct, count, dtype=np.uint64) * np.uint64(2)
    ordered = np.sort(keys)
    probes = np.concatenate((rng.choice(keys, 20), rng.choice(keys, 20) + np.uint64(1), keys[:1], keys[-1:]))
    edges = np.array([0, 1, 2**64 - 1], np.uint64)
    stored = _stored(tmp_path / "keys", keys)
    for wanted in (*(probe[None] for probe in (*probes, *edges)), probes, np.tile(probes, 100)):
        first, last = stored.find(wanted)
        assert first[first < last].tolist() == np.searchsorted(ordered, wanted, "left")[first < last].tolist()
        assert (last - first).tolist() == [np.count_nonzero(keys == key) for key in wanted]


def test_a_lookup_reads_little_and_checks_it(tmp_path: Path) -> None:
    keys = np.arange(100_000, dtype=np.uint64) * np.uint64(7)
    stored = _stored(tmp_path / "keys", keys)
    file = stored._section.file
    assert stored.find(np.array([7 * 50_000], np.uint64))[0].tolist() == [50_000]
    assert file._checked is not None
    assert np.count_nonzero(file._checked) <= 4
    data = bytearray((tmp_path / "keys").read_bytes())
    data[stored._section.offset + 8 * 50_000] ^= 1
    (tmp_path / "bad").write_bytes(data)
    damaged = SortedKeys.named(File(tmp_path / "bad", FileKind.SEGMENT), "id", keys.size)
    assert damaged.find(np.array([7], np.uint64))[0].tolist() == [1]  # another block
    block = (stored._section.offset + 8 * 50_000) // BLOCK
    with pytest.raises(CorruptError, match=f"block {block} "):
        damaged.find(np.array([7 * 50_000], np.uint64))


def test_ids_with_the_same_hash_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def poor(offsets: npt.NDArray[np.int64], data: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint64]:
        return (np.diff(offsets) % 2).astype(np.uint64)

    monkeypatch.setattr(module, "hash_strings", poor)
    ids = [f"id{i}" for i in range(300)]
    with Index.create(tmp_path / "x.rbe", HashEncoder()) as index:
        index.add([f"t{i}" for i in range(300)], ids)
        found = index.get([*ids, "id300", "no"])
        assert [record and record["text"] for record in found] == [f"t{i}" for i in range(300)] + [None, None]
        assert index.delete(ids[::3]) == 100
        index.compact()
        index.verify()
        assert [record is None for record in index.get(ids)] == [i % 3 == 0 for i in range(300)]
