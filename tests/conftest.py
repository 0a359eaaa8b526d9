"""Settings of the whole suite."""

import os
from pathlib import Path

import pytest
from hypothesis import settings

# The same examples on every run and machine; a deadline would make slow machines fail.
settings.register_profile("fixed", derandomize=True, deadline=None)
settings.load_profile("fixed")

# Without a GPU, kernels run in Triton's interpreter, which must be chosen before anything imports Triton.
if not Path("/dev/nvidiactl").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")

# Each process of a parallel run has a core of its own: threads of torch and BLAS that wait by spinning would
# take it from the others. Set before either is imported.
if "PYTEST_XDIST_WORKER" in os.environ:
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")

HERE = Path(__file__).parent
# Folders whose tests share something costly (a Ray session, a browser, trained models): one process runs all
# of such a folder. The longest come first, so that processes end at about the same time.
TOGETHER = ("cluster", "page", "training", "lab/reproduce", "encode/sentence", "evaluate")


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Name the group of each test for pytest-xdist: its folder if that is run as a whole, else its file."""

    def place(item: pytest.Item) -> int:
        file = item.path.relative_to(HERE).as_posix()
        number = next((i for i, name in enumerate(TOGETHER) if file.startswith(name + "/")), len(TOGETHER))
        item.add_marker(pytest.mark.xdist_group([*TOGETHER, file][number]))
        return number

    items.sort(key=place)
