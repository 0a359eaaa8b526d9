"""Two processes learn what one process learns from the same batches, each from its part of the file.

All with the default recipe: words and features are left out, the guide is on.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rbegir.encode.clsm import checkpoint
from rbegir.encode.clsm.presets import ModelConfig
from rbegir.training.config import TrainConfig
from rbegir.training.trainer import run

from .conftest import SMALL

CHILD = r"""
import json, os, sys
from rbegir.encode.clsm.presets import ModelConfig
from rbegir.training.config import TrainConfig
from rbegir.training import rerank
from rbegir.training.trainer import run

rerank.FEW, rerank.QUERIES, rerank.STEPS = 100, 100, 20  # as in tests.reranking.short_fits
pairs, out, *configs = sys.argv[1:]
for i, config in enumerate(configs):
    run(pairs, out=f"{out}/{i}", config=ModelConfig.from_dict(json.loads(config)), device="cpu",
        batch_size=501, epochs=2, settings=TrainConfig(table_lr=1e-3, buffer_pairs=2000), rerank=i == 1)
# three pairs of which the first process holds every keyword, and batches too small for two processes
with open(f"{out}/tiny-{os.environ['RANK']}.tsv", "w") as file:
    file.write("query\tkeyword\na b\tx y\nc\tz\nd\tz\n")
run(file.name, out=f"{out}/tiny", valid=False, device="cpu", epochs=3,
    config=ModelConfig(conv=16, hash_buckets=64))
"""

CONFIGS = {
    "float": replace(SMALL, query_planes=0, keyword_planes=0),
    "rbe": SMALL,
    "shared": replace(SMALL, query_planes=0, keyword_planes=0, share_towers=True),
    "stochastic": replace(SMALL, estimator="stochastic"),
}


@pytest.fixture(scope="module")
def together(pairs_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The models of two processes, started by torchrun."""
    out = tmp_path_factory.mktemp("together")
    script = out / "child.py"
    script.write_text(CHILD)
    configs = [json.dumps(config.to_dict()) for config in CONFIGS.values()]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*torchrun, str(script), str(pairs_file), str(out), *configs],
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return out


def test_shares_may_be_empty(together: Path) -> None:
    _, tensors, _ = checkpoint.read(together / "tiny")
    assert all(np.isfinite(value).all() for value in tensors.values())


@pytest.mark.parametrize("name", CONFIGS)
def test_two_processes_equal_one(name: str, together: Path, pairs_file: Path, tmp_path: Path) -> None:
    config: ModelConfig = CONFIGS[name]
    alone = run(
        pairs_file,
        out=tmp_path / "alone",
        config=config,
        device="cpu",
        batch_size=501,
        epochs=2,
        settings=TrainConfig(table_lr=1e-3, buffer_pairs=2000),
        rerank=False,
    )
    _, tensors, extra = checkpoint.read(together / str(list(CONFIGS).index(name)))
    _, wanted, _ = checkpoint.read(tmp_path / "alone")
    losses = [entry["loss"] for entry in extra["training"]["history"]]
    exact = name in ("float", "shared")  # a bit that flips by rounding changes what follows
    tolerance = 1e-5 if exact else 1e-3
    assert losses == pytest.approx([entry["loss"] for entry in alone.history], rel=tolerance)
    for key, value in wanted.items():
        error = np.abs(tensors[key] - value).max() / np.abs(value).max()
        assert error < (1e-3 if exact else 0.5), key
