"""`kill -9` at hard moments, then resume: the files are those of an undisturbed run, byte for byte."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from rbegir.errors import CorruptError, MismatchError, VersionError
from rbegir.training import state, trainer
from rbegir.training.trainer import TrainResult, run

from .conftest import SMALL, TRAINED

# Reads lines "where count", does each in a fork of itself and prints how that ended: torch is imported once.
CHILDREN = """
import os, signal, sys
import torch._dynamo  # or each fork would import it, with its first optimiser
from rbegir.base import disk
from rbegir.encode.clsm.presets import ModelConfig
from rbegir.training import rerank, state, step, trainer

rerank.FEW, rerank.QUERIES, rerank.STEPS = 100, 100, 20  # as in tests.reranking.short_fits
pairs, out = sys.argv[1:]

def train(where, count):
    calls = 0

    def deadly(function, *, before):
        def wrapper(*args, **kwargs):
            nonlocal calls
            calls += 1
            if before and calls == count:
                os.kill(os.getpid(), signal.SIGKILL)
            result = function(*args, **kwargs)
            if not before and calls == count:
                os.kill(os.getpid(), signal.SIGKILL)
            return result
        return wrapper

    owner, name, before = {
        "before-replacing-the-state": (disk, "rename", True),
        "after-replacing-the-state": (disk, "rename", False),
        "in-a-step": (step.Learner, "_loss", True),
        "in-validation": (trainer.Validation, "__call__", True),
        "between-the-files-of-the-model": (disk, "rename", False),
        "before-removing-the-state": (state, "remove", True),
        "nowhere": (state, "remove", False),
    }[where]
    if where != "nowhere":
        setattr(owner, name, deadly(getattr(owner, name), before=before))
    trainer.run(pairs, out=out, resume=True, config=ModelConfig(conv=16, hash_buckets=64), device="cpu",
                batch_size=600, epochs=3, save_seconds=0.0)

for line in sys.stdin:
    where, count = line.split()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            train(where, int(count))
            status = 0
        finally:
            os._exit(status)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""

# (where, at the n-th time there); each run resumes the one before it
MOMENTS = [
    ("before-replacing-the-state", 1),  # nothing was saved yet
    ("in-a-step", 4),
    ("after-replacing-the-state", 2),
    ("in-validation", 2),
    ("between-the-files-of-the-model", 0),  # counted from the end, see below
    ("before-removing-the-state", 1),
]


@pytest.mark.usefixtures("short_fits")
def test_killed_again_and_again(pairs_file: Path, tmp_path: Path) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    run(pairs_file, out=whole, config=SMALL, device="cpu", batch_size=600, epochs=3)
    script = tmp_path / "children.py"
    script.write_text(CHILDREN)
    command = [sys.executable, str(script), str(pairs_file), str(broken)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as children:

        def child(where: str, count: int) -> int:
            print(where, count, file=children.stdin, flush=True)
            return int(children.stdout.readline())

        for where, count in MOMENTS:
            if where == "between-the-files-of-the-model":
                # replacing: one state at the end of the last epoch, the weights, then dead before the config
                left = json.loads(_about(broken))["position"]
                count = (15 - left["epoch"] * 5 - left["step"]) + (3 - left["epoch"]) + 1
            assert child(where, count) == -signal.SIGKILL, where
            assert (broken / state.NAME).exists() == (where != "before-replacing-the-state")
        assert child("nowhere", 0) == 0
    assert sorted(p.name for p in broken.iterdir()) == ["config.json", "log", "model.safetensors", "rerank"]
    for name in ("model.safetensors", "config.json", "rerank/model.safetensors", "rerank/config.json"):
        assert (broken / name).read_bytes() == (whole / name).read_bytes()


def _about(out: Path) -> str:
    from safetensors import safe_open

    with safe_open(out / state.NAME, framework="pt") as file:
        return str(file.metadata()["state"])


@pytest.mark.usefixtures("short_fits")
@pytest.mark.parametrize("written", [False, True])  # the first file of the reranker
def test_a_run_that_was_stopped_while_fitting_its_reranker_is_not_finished(
    written: bool, pairs_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No state was saved: the run was shorter than the time between two saves."""
    settings = {"config": SMALL, "device": "cpu", "batch_size": 1000, "epochs": 1}
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    run(pairs_file, out=whole, **settings)
    with monkeypatch.context() as patch:
        patch.setattr(trainer, "fit_reranker", lambda *args: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            run(pairs_file, out=broken, **settings)
    assert not (broken / state.NAME).exists()
    if written:
        (broken / "rerank").mkdir()
        shutil.copy(whole / "rerank" / "model.safetensors", broken / "rerank")
    assert run(pairs_file, out=broken, resume=True, **settings).model.reranker is not None
    for name in ("model.safetensors", "config.json", "rerank/model.safetensors", "rerank/config.json"):
        assert (broken / name).read_bytes() == (whole / name).read_bytes()

    def trains(*args: object) -> None:
        raise AssertionError("a finished run was trained again")

    monkeypatch.setattr(trainer, "train_all", trains)
    run(pairs_file, out=broken, resume=True, **settings)
    shutil.rmtree(broken / "rerank")
    with pytest.raises(AssertionError):
        run(pairs_file, out=broken, resume=True, **settings)


@pytest.mark.parametrize("given", [{"rerank": False}, {"valid": False}])
def test_a_run_that_asked_for_no_reranker_is_finished_without(
    given: dict[str, bool], pairs_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"config": SMALL, "device": "cpu", "batch_size": 1000, "epochs": 1, **given}
    first = run(pairs_file, out=tmp_path / "out", **settings)
    monkeypatch.setattr(trainer, "train_all", None)
    again = run(pairs_file, out=tmp_path / "out", resume=True, **settings)
    assert again.model.fingerprint == first.model.fingerprint


QUICK = {"config": SMALL, "device": "cpu", "batch_size": 1000, "epochs": 1, "rerank": False}


@pytest.fixture(scope="module")
def failed(pairs_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that failed just before it would have removed its state."""
    out = tmp_path_factory.mktemp("failed") / "out"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(state, "remove", lambda out: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            run(pairs_file, out=out, **QUICK, save_seconds=0.0)
    return out


@pytest.fixture
def interrupted(failed: Path, tmp_path: Path) -> Path:
    """A copy of that run's folder, to damage and to resume."""
    return shutil.copytree(failed, tmp_path / "out")


def test_other_settings_are_refused(interrupted: Path, pairs_file: Path) -> None:
    with pytest.raises(MismatchError, match="the run to resume had other settings: training was") as caught:
        run(pairs_file, out=interrupted, resume=True, **{**QUICK, "epochs": 2})
    assert "new directory" in caught.value.hint
    with pytest.raises(MismatchError, match="the run to resume had other settings: model was"):
        run(pairs_file, out=interrupted, resume=True, **{**QUICK, "config": replace(SMALL, keyword_planes=3)})


def test_damaged_state(interrupted: Path, pairs_file: Path) -> None:
    path = interrupted / state.NAME
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CorruptError, match=r"the training state .* cannot be read") as caught:
        run(pairs_file, out=interrupted, resume=True, **QUICK)
    assert caught.value.hint == "remove the directory and train again"
    path.write_bytes(b"{}")
    with pytest.raises(CorruptError, match="cannot be read"):
        run(pairs_file, out=interrupted, resume=True, **QUICK)


def test_foreign_state(interrupted: Path, pairs_file: Path) -> None:
    from safetensors.torch import save_file

    path = interrupted / state.NAME
    save_file({"x": torch.zeros(1)}, path)
    with pytest.raises(CorruptError, match="is not a training state"):
        run(pairs_file, out=interrupted, resume=True, **QUICK)
    save_file(
        {"x": torch.zeros(1)}, path, metadata={"state": json.dumps({"format": state.FORMAT, "version": 99})}
    )
    with pytest.raises(VersionError, match="has version 99, expected 1"):
        run(pairs_file, out=interrupted, resume=True, **QUICK)


def test_resuming_a_finished_run_returns_it(
    pairs_file: Path, trained: tuple[TrainResult, Path], tmp_path: Path
) -> None:
    first, out = trained[0], shutil.copytree(trained[1], tmp_path / "out")
    again = run(pairs_file, out=out, resume=True, **TRAINED)
    assert again.model.fingerprint == first.model.fingerprint
    assert again.history == first.history
    assert again.gamma == first.gamma
    with pytest.raises(MismatchError, match=r"had other settings: epochs was \d+, now 9 \(hint"):
        run(pairs_file, out=out, resume=True, **{**TRAINED, "epochs": 9})
