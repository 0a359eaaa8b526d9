"""With a GPU all tests here run on it, and those marked `gpu` too; without one, in Triton's interpreter.

The interpreter must be chosen before Triton is imported.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE not in item.path.parents:
            continue
        if torch.cuda.is_available():
            item.add_marker(pytest.mark.gpu)
        elif item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="no GPU here: make test-gpu runs this on one"))


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter works through every lane of a block, used or not."""
    if not torch.cuda.is_available():
        from rbegir.search.kernels import card

        monkeypatch.setattr(card, "BLOCK", 128)
        monkeypatch.setattr(card, "STEPS", 2)
