"""Libraries with thread pools get one thread: in problems this small, waiting for threads costs most."""

from __future__ import annotations

import os

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")  # for processes that tests start, too


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Set it for libraries that other tests have imported already."""
    import faiss
    import torch

    faiss.omp_set_num_threads(1)
    torch.set_num_threads(1)
