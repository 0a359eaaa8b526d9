"""A worker is lost half-way; torchrun starts all of them again and the run ends where it would have ended."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from rbegir.model import checkpoint
from rbegir.training import state
from rbegir.training.batches import Share
from rbegir.training.data import Data
from rbegir.training.pairs import read_pairs
from rbegir.training.pipeline import BatchPlan, epoch_batches
from rbegir.training.trainer import run

from .conftest import SMALL

# The second process kills itself at its sixth step of the first attempt, when states have been saved.
CHILD = r"""
import json, os, signal, sys
from rbegir.model.presets import ModelConfig
from rbegir.training import engine
from rbegir.training.trainer import run

pairs, out, config = sys.argv[1:]
step = engine.Engine.step

def dying(self, *args, **kwargs):
    first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
    if first and os.environ["RANK"] == "1" and self.steps == 6:
        os.kill(os.getpid(), signal.SIGKILL)
    with open(f"{out}.steps", "a") as file:
        file.write(f"{os.environ['TORCHELASTIC_RESTART_COUNT']} {os.environ['RANK']} {self.steps}\n")
    return step(self, *args, **kwargs)

engine.Engine.step = dying
run(pairs, out=out, config=ModelConfig.from_dict(json.loads(config)), device="cpu", batch_size=501, epochs=2,
    feature_dropout=0.0, resume=True, save_seconds=0.0)
"""


def test_resumed_after_losing_a_worker(pairs_file: Path, tmp_path: Path) -> None:
    script, out = tmp_path / "child.py", tmp_path / "model"
    script.write_text(CHILD)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [
            *torchrun,
            "--max-restarts",
            "1",
            str(script),
            str(pairs_file),
            str(out),
            json.dumps(SMALL.to_dict()),
        ],
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    steps = [tuple(map(int, line.split())) for line in (tmp_path / "model.steps").read_text().splitlines()]
    assert max(step for attempt, rank, step in steps if attempt == 0 and rank == 1) == 5
    again = [step for attempt, rank, step in steps if attempt == 1 and rank == 1]
    assert 0 < again[0] <= 6, "the second attempt starts from a saved state, not from the beginning"
    assert not (out / state.NAME).exists()
    # features are dropped by the generator of each process, so equality is asked without
    alone = run(
        pairs_file,
        out=tmp_path / "alone",
        config=SMALL,
        device="cpu",
        batch_size=501,
        epochs=2,
        feature_dropout=0.0,
    )
    _, _, extra = checkpoint.read(out)
    losses = [entry["loss"] for entry in extra["training"]["history"]]
    # a bit that flips by rounding in the sum over processes changes what follows
    assert losses == pytest.approx([entry["loss"] for entry in alone.history], rel=1e-3)


def test_each_process_builds_its_share_and_nothing_else(pairs_file: Path) -> None:
    """The towers of two processes together see the texts of one, each pair and each keyword once."""
    data = Data(read_pairs(pairs_file), hash_buckets=64, buffer_pairs=1 << 20, threads=1, hold_out=False)

    def texts(share: Share) -> list[tuple[int, int, float]]:
        plan = BatchPlan(batch_size=501, seed=0, share=share)
        found = []
        for batch in epoch_batches(data.chunks(), plan, 0):
            tensors = batch.to(__import__("torch").device("cpu"))
            found.append((len(tensors.target), batch.owned[share.rank], float(tensors.weight.sum())))
        return found

    whole, first, second = texts(Share()), texts(Share(0, 2)), texts(Share(1, 2))
    assert np.allclose(np.add(first, second), whole)
    assert all(abs(a[0] - b[0]) <= 1 for a, b in zip(first, second, strict=True))
