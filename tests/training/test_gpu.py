"""On a real GPU: the kernels equal the native ones, and training follows the CPU's curve."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from rbegir.training.config import TrainConfig
from rbegir.training.trainer import run

from .conftest import SMALL

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("width", [1, 127, 128, 129, 288])
def test_kernels(width: int) -> None:
    from rbegir.encode.clsm import kernels
    from rbegir.encode.clsm.clsm import window_max_backward, window_max_forward

    rng = np.random.default_rng(width)
    lengths = rng.integers(1, 12, size=1000)
    unique = 500
    offsets = torch.from_numpy(np.cumsum([0, *lengths]).astype(np.int32)).cuda()
    ids = torch.from_numpy(rng.integers(0, unique, lengths.sum()).astype(np.int32)).cuda()
    words = torch.from_numpy(rng.normal(size=(unique, 3 * width)).astype(np.float32)).cuda()
    best, where = kernels.window_max_forward(words, offsets, ids)
    wanted, place = window_max_forward(words, offsets, ids)
    torch.testing.assert_close(best, wanted)
    grad = torch.from_numpy(rng.normal(size=best.shape).astype(np.float32)).cuda()
    torch.testing.assert_close(
        kernels.window_max_backward(grad, where, offsets, ids, unique),
        window_max_backward(grad, place, offsets, ids, unique),
        rtol=1e-4,
        atol=1e-4,
    )


@pytest.mark.parametrize("negatives", ["in_batch", 10])
def test_training_follows_the_cpu(negatives: str | int, pairs_file: Path) -> None:
    config = replace(SMALL, query_planes=0, keyword_planes=0)
    settings = TrainConfig(epochs=2, batch_size=500, table_lr=1e-3, precision="float32", negatives=negatives)
    curves = [
        [entry["loss"] for entry in run(pairs_file, config=config, settings=settings, device=device).history]
        for device in ("cpu", "cuda")
    ]
    assert curves[1] == pytest.approx(curves[0], rel=1e-3)


@pytest.mark.parametrize("precision", ["auto", "bfloat16"])
def test_codes_train_on_a_gpu(precision: str, pairs_file: Path, tmp_path: Path) -> None:
    result = run(
        pairs_file,
        config=SMALL,
        epochs=10,
        batch_size=200,
        device="cuda",
        precision=precision,
        out=tmp_path / "m",
    )
    assert result.to_dict()["roc_auc"] > 0.85
