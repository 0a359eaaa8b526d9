"""Without a GPU the kernels run in Triton's interpreter, which must be chosen before Triton is imported."""

from __future__ import annotations

import os
from importlib.util import find_spec

import pytest

if find_spec("torch") is not None:
    import torch

    if not torch.cuda.is_available():
        os.environ["TRITON_INTERPRET"] = "1"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("gpu") and os.environ.get("TRITON_INTERPRET") == "1":
            item.add_marker(pytest.mark.skip(reason="no GPU here: make test-gpu runs this on one"))
