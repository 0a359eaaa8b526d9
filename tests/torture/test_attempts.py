"""The other attempts of the torture chamber, each for a few seconds."""

from __future__ import annotations

import errno
import os
import random
import shutil
import tempfile
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rbegir.codes.planes import Codes
from rbegir.encode.binarizer.binarizer import Binarizer
from rbegir.errors import FullError
from rbegir.index import format as file_format
from rbegir.index.store import Index
from rbegir.search.cpu import CpuBackend
from tests.isa import needs_isa
from torture import bitrot, codes, crowd, exact, kill, native_mutants, resources
from torture.limits import Limits


def test_a_killed_process_loses_nothing() -> None:
    found = kill.run(Limits(points=15, seconds=inf))
    assert found["first_losses"] == []
    assert found["kills"] == 15
    assert found["acknowledged_changes"] > 10


def test_a_lost_acknowledgement_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """An update that is acknowledged and not made; the changes after it can still be made."""
    monkeypatch.setattr(Index, "update", lambda self, ids, attributes: len(ids))
    found = kill.run(Limits(points=60, seconds=inf))
    assert found["losses"] == 1
    assert "acknowledged was" in found["first_losses"][0]


@pytest.mark.parametrize("name", ["MANIFEST", "deletes-", "segment-"])
def test_bits_that_rot_are_noticed(tmp_path: Path, name: str) -> None:
    path = bitrot.make_index(tmp_path, bitrot.SMALL)
    places = [place for place in bitrot.every_place(path) if place[1].startswith(name)]
    chance = random.Random(name)
    found = bitrot.examine(chance.sample(places, 80), bitrot.Patient, bitrot.SMALL, inf)
    assert found["wrong"] == []
    assert sum(found["seen"].values()) == 80
    assert found["seen"]["cut open"] > 0


def test_a_model_that_rots_is_noticed(tmp_path: Path) -> None:
    path = bitrot.make_model(tmp_path, 0)
    chance = random.Random(1)
    places = chance.sample(bitrot.every_place(path, "config.json"), 60)
    places += [place for place in bitrot.some_places(path, chance, 4) if place[1] != "config.json"]
    found = bitrot.examine(places, bitrot.ModelPatient, 0, inf)
    assert found["wrong"] == []
    assert sum(found["seen"].values()) == 62


def test_an_index_that_does_not_check_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_format.File, "check", lambda self, blocks: None)
    with tempfile.TemporaryDirectory() as folder:
        path = bitrot.make_index(Path(folder), bitrot.SMALL)
        segment = next(name for _, name, _ in bitrot.every_place(path) if name.startswith("segment"))
    places: list[bitrot.Place] = [("flip", segment, 8 * 64 + bit) for bit in range(32)]  # of the codes
    found = bitrot.examine(places, bitrot.Patient, bitrot.SMALL, inf)
    assert any("another answer" in message for message in found["wrong"])


@pytest.mark.parametrize("lasting", [False, True])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_disk_that_fails_at_any_call(code: int, lasting: bool) -> None:
    wanted = resources.states()
    victim, calls = 1, 1
    while victim <= calls:
        calls = resources.fail_at(victim, code, wanted, lasting=lasting)
        victim += 1 if code == errno.ENOSPC and not lasting else 7
    assert calls > 40


def test_no_handles_are_left(tmp_path: Path) -> None:
    assert resources.no_handles(tmp_path) == {"refused": 3}


def test_no_memory_is_left(tmp_path: Path) -> None:
    assert resources.no_memory(tmp_path) == {"refused": 2}


def test_a_full_disk_says_the_way_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rbegir.base import disk

    index = Index.create(tmp_path / "x.rbe", resources.ENCODER, id_type="int64")

    def full(descriptor: int, data: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(disk, "write", full)
    with pytest.raises(FullError, match="no space left on device") as caught:
        index.upsert(["a"], [1])
    assert caught.value.hint == "free some space and try again; what was acknowledged before is still there"


def test_every_mode_is_exact_while_segments_come_and_go() -> None:
    found = exact.differ(Limits(points=1, seconds=inf, seed=7), lambda world: [], rounds=5)
    assert found["first_losses"] == []
    assert found["results"] > 500
    modes = {way.split(",")[0] for way in found["by_way"]}
    assert modes == {"exact", "where", "allow", "deny", "sharded", "paper", "progressive"}


def test_one_wrong_hit_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    search = CpuBackend.search

    def careless(self: CpuBackend, partitions: Any, values: Any, k: int | None, *limits: Any) -> Any:
        found = search(self, partitions, values, k, *limits)
        if self.isa == "portable" and found.positions.shape[1] > 1:
            order = np.arange(found.positions.shape[1])
            order[:2] = 1, 0
            return found._replace(positions=found.positions[:, order])
        return found

    monkeypatch.setattr(CpuBackend, "search", careless)
    found = exact.differ(Limits(points=1, seconds=inf, seed=7), lambda world: [], rounds=5)
    assert found["losses"]
    assert "portable" in found["first_losses"][0] or "sharded" in found["first_losses"][0]


def test_hard_worlds_are_exact() -> None:
    found = exact.differ(Limits(points=3000, seconds=inf, seed=7), lambda world: [], share=(1, 1))
    assert found["first_losses"] == []
    assert found["results"] >= 3000
    assert {f"still, {isa} × 1" for isa in exact.KERNELS} <= set(found["by_way"])


@pytest.mark.parametrize("name", native_mutants.MUTANTS)
def test_planted_faults_are_in_the_source(name: str) -> None:
    mutant = native_mutants.MUTANTS[name]
    source = (native_mutants.ROOT / native_mutants.NATIVE / mutant.file).read_text()
    assert source.count(mutant.sound) == 1


@pytest.mark.skipif(shutil.which("ninja") is None, reason="needs cmake and ninja to build the native module")
@needs_isa("avx2")  # whose bins are wide enough for the fault to lose many hits
@pytest.mark.timeout(900)  # a build of the scan
def test_a_bound_that_is_too_large_would_be_noticed(tmp_path: Path) -> None:
    """The faulty bound loses hits for some shapes only, and only for planted keywords."""
    name = "classes of norms that do not exist"
    module = native_mutants.build(tmp_path / name, native_mutants.MUTANTS[name], quick=True)
    found = native_mutants.hunt(module, 600.0, native_mutants.QUICK)
    assert found["found"]
    assert "planes" in found["where"]


def test_codes_depend_on_nothing_but_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codes, "MOST", 1000)
    found = codes.compare(Limits(points=10_000, seconds=inf, seed=9))  # with digits in the first worlds
    assert found["first_losses"] == []
    assert found["codes"] >= 10_000
    kinds = {f"{side} of a Binarizer" for side in ("keywords", "queries")}
    assert kinds | {f"{kind} that writes digits" for kind in kinds} <= set(found["by_kind"])


def test_a_code_that_depends_on_its_batch_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    encode = Binarizer.encode_keywords

    def careless(self: Binarizer, X: Any) -> Codes:
        made = encode(self, X)
        made.planes[0, -1] ^= np.uint64(len(X) % 2)
        return made

    monkeypatch.setattr(codes, "MOST", 1000)
    monkeypatch.setattr(Binarizer, "encode_keywords", careless)
    found = codes.compare(Limits(points=1_000_000, seconds=inf))
    assert found["losses"] == 1
    assert "keywords of a Binarizer" in found["first_losses"][0]


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_crowd_sees_whole_states_only() -> None:
    found = crowd.run(Limits(points=0, seconds=2.0), least=5)
    assert found["first_losses"] == []
    counts = found["counts"]
    assert min(counts[name] for name in ("reads", "reads by threads", "versions", "forks")) >= 5
