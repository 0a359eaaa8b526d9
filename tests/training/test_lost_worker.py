"""A worker is lost half-way: the run goes on from its saved state and ends where it would have ended."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from rbegir.encode.clsm import checkpoint
from rbegir.training import state
from rbegir.training.config import TrainConfig
from rbegir.training.trainer import run

from .conftest import SMALL

# The second process kills itself at its sixth step of the first attempt, when states have been saved. The
# first process of the second attempt copies what the first attempt left. The processes are started as
# torchrun starts them, but as forks of a process that has imported torch.
SCRIPT = r"""
import json, os, shutil, signal, sys
import torch._dynamo  # or each fork would import it, with its first optimiser
from torch.distributed.launcher.api import LaunchConfig, elastic_launch
from rbegir.encode.clsm.presets import ModelConfig
from rbegir.training.step import Learner
from rbegir.training.config import TrainConfig
from rbegir.training.trainer import run

pairs, out, config = sys.argv[1:]
step = Learner.step

def work():
    attempt, rank = os.environ["TORCHELASTIC_RESTART_COUNT"], os.environ["RANK"]

    def dying(self, *args, **kwargs):
        if (attempt, rank, self.steps) == ("0", "1", 6):
            os.kill(os.getpid(), signal.SIGKILL)
        with open(f"{out}.steps", "a") as file:
            file.write(f"{attempt} {rank} {self.steps}\n")
        return step(self, *args, **kwargs)

    Learner.step = dying
    if (attempt, rank) == ("1", "0"):
        shutil.copytree(out, f"{out}.left")
    run(pairs, out=out, config=ModelConfig.from_dict(json.loads(config)), device="cpu", batch_size=501,
        epochs=2, settings=TrainConfig(buffer_pairs=1000), resume=True, save_seconds=0.0, rerank=False)

standalone = {"rdzv_backend": "c10d", "rdzv_endpoint": "localhost:0", "run_id": "lost"}
elastic_launch(LaunchConfig(1, 1, 2, max_restarts=1, start_method="fork", **standalone), work)()
"""


@pytest.fixture(scope="module")
def disturbed(pairs_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model of two attempts of two processes."""
    folder = tmp_path_factory.mktemp("disturbed")
    (folder / "launch.py").write_text(SCRIPT)
    command = [sys.executable, str(folder / "launch.py")]
    command += [str(pairs_file), str(folder / "model"), json.dumps(SMALL.to_dict())]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder / "model"


def alone(pairs_file: Path, out: Path) -> list[float]:
    """The losses of one process, which continues what it finds."""
    done = run(
        pairs_file,
        out=out,
        config=SMALL,
        device="cpu",
        batch_size=501,
        epochs=2,
        settings=TrainConfig(buffer_pairs=1000),
        resume=True,
        rerank=False,
    )
    return [entry["loss"] for entry in done.history]


@pytest.fixture(scope="module")
def undisturbed(pairs_file: Path, tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    return alone(pairs_file, tmp_path_factory.mktemp("undisturbed") / "model")


def test_all_are_started_again(disturbed: Path, undisturbed: list[float]) -> None:
    lines = disturbed.with_suffix(".steps").read_text().splitlines()
    steps = [tuple(map(int, line.split())) for line in lines]
    assert max(step for attempt, rank, step in steps if attempt == 0 and rank == 1) == 5
    again = [step for attempt, rank, step in steps if attempt == 1 and rank == 1]
    assert 0 < again[0] <= 6, "the second attempt starts from a saved state, not from the beginning"
    assert not (disturbed / state.NAME).exists()
    _, _, extra = checkpoint.read(disturbed)
    losses = [entry["loss"] for entry in extra["training"]["history"]]
    # a bit that flips by rounding in the sum over processes changes what follows
    assert losses == pytest.approx(undisturbed, rel=1e-3)


def test_one_process_continues_what_two_began(
    pairs_file: Path, disturbed: Path, undisturbed: list[float]
) -> None:
    """The machine is gone for good: the run goes on with fewer, and still sees the same batches."""
    left = disturbed.with_suffix(".left")
    assert (left / state.NAME).exists()
    assert alone(pairs_file, left) == pytest.approx(undisturbed, rel=1e-3)
