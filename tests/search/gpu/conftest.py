"""With a GPU all tests here run on it, and those marked `gpu` too; without one, in Triton's interpreter.

The interpreter must be chosen before Triton is imported. `make test-gpu-lean` runs on lean machines, without
pyarrow and the native module: tests marked `whole` need these and belong to `make test`, card or not.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
HERE = Path(__file__).parent


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        for item in items:
            if HERE in item.path.parents and item.get_closest_marker("whole") is None:
                item.add_marker(pytest.mark.gpu)
    elif config.option.markexpr == "gpu":
        raise pytest.UsageError("these tests need a GPU; without one, plain pytest runs what it can")


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter works through every lane of a block, used or not."""
    if not torch.cuda.is_available():
        from rbegir.search.gpu import card, compact

        monkeypatch.setattr(card, "BLOCK", 128)
        monkeypatch.setattr(compact, "BLOCK", 32)
