"""An index opened on GPU devices: the same hits as on the CPU, before and after changes.

What needs pyarrow and the native module is imported in the tests, so that lean machines collect this file.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rbegir.codes.planes import Codes
from rbegir.errors import DeviceError, InputError
from rbegir.lab.bench import scan_gpu
from rbegir.lab.bench.scan import ScanGrid
from rbegir.search.gpu.device import Residency
from rbegir.search.gpu.words import INTERPRETED
from rbegir.search.hits import Hits

DEVICES = ["interpreter" if INTERPRETED else "cuda:0"] * 2


def random_codes(rng: np.random.Generator, planes: int, count: int) -> Codes:
    return Codes.from_signs(rng.random((planes, count, 64)) < 0.5)


def assert_same(one: Hits, other: Hits) -> None:
    np.testing.assert_array_equal(one.ids, other.ids)
    np.testing.assert_array_equal(one.scores, other.scores)
    np.testing.assert_array_equal(one.rows, other.rows)


@pytest.mark.whole
def test_the_same_hits_as_on_the_cpu(tmp_path: Path) -> None:
    from rbegir.index.store import Index

    rng = np.random.default_rng(0)
    queries = random_codes(rng, 3, 2)
    with Index.create(tmp_path / "a.rbe", n=64, keyword_planes=2, query_planes=3) as index:
        index.add_codes(random_codes(rng, 2, 200))
        uploads: list[tuple[int, int]] = []
        with Index.open(
            tmp_path / "a.rbe", DEVICES, read_only=True, progress=lambda *counts: uploads.append(counts)
        ) as on_device:
            assert_same(on_device.search_codes(queries, 10), index.search_codes(queries, 10))
            assert uploads == [(200, 200)]
            index.add_codes(random_codes(rng, 2, 70))
            index.delete([3, 250, *index.search_codes(queries, 2).ids.ravel().tolist()])
            on_device.refresh()
            uploads.clear()
            assert_same(on_device.search_codes(queries, 10), index.search_codes(queries, 10))
            assert uploads == [(70, 70)]  # the new segment alone
            paper = on_device.search_codes(queries, 10, mode="paper", per_thread=4)
            assert_same(paper, index.search_codes(queries, 10, mode="paper", per_thread=4))


@pytest.mark.whole
@pytest.mark.parametrize(
    ("message", "device"),
    [
        ("device must be a name such as 'cpu' or a list of such names, got []", []),
        ("device 'cpu' cannot be mixed with others", ["cpu", "cuda:0"]),
        ("device 'cpu' must stand alone", ["cpu", "cpu"]),
        ("device must be 'cpu', 'cuda' or 'cuda:N', got 'tpu'", "tpu"),
    ],
)
def test_wrong_devices(message: str, device: object) -> None:
    from rbegir.search.backend import open_backend

    with pytest.raises(InputError) as raised:
        open_backend(device, 64, 2, None)
    assert raised.value.message == message


@pytest.mark.whole
def test_what_opens_on_each_device() -> None:
    """A backend that scans all planes at once says that its progressive search is the exact one."""
    from rbegir.search.backend import on_cpu, open_backend

    for device, name in (("cpu", "CpuBackend"), ("interpreter", "GpuBackend")):
        backend = open_backend(device, 64, 2)
        assert type(backend).__name__ == name
        assert backend.refines == on_cpu(device)


@pytest.mark.whole
def test_the_interpreter_must_be_chosen_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    from rbegir.search.backend import open_backend

    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(InputError, match="device 'interpreter' needs TRITON_INTERPRET=1 in the environment"):
        open_backend("interpreter", 64, 2, None)


def test_benchmark_without_a_gpu() -> None:
    with pytest.raises((DeviceError, InputError), match=r"(needs a GPU|or 'cuda:N'), got 'cpu'"):
        scan_gpu.run(ScanGrid([10], [1], [1], device="cpu"))


def test_benchmark_of_more_than_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Residency, "free", lambda self: 2_000_000)
    with pytest.raises(DeviceError, match=r"^1,000,000 keywords do not fit into the memory of cpu: [\d,]+"):
        scan_gpu.check_room(1_000_000, torch.device("cpu"))


@pytest.mark.whole
@pytest.mark.parametrize(
    ("package", "command"), [("triton", ["bench", "costs"]), ("torch", ["bench", "scan", "--device", "cuda"])]
)
def test_benchmarks_say_what_to_install(package: str, command: list[str]) -> None:
    missing = f"import sys; sys.modules[{package!r}] = None; sys.argv[1:] = {command!r}"
    code = f"{missing}; from rbegir.cli import main; main()"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.returncode == 1
    assert "error: searching on a GPU needs torch and triton" in run.stderr
    assert "hint: pip install 'rbegir[gpu]'" in run.stderr
    assert "Traceback" not in run.stderr


@pytest.mark.whole
def test_large_tenants_are_searched_on_the_device_of_the_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rbegir.index import tenant
    from rbegir.index.store import Index
    from rbegir.search.cpu import CpuBackend

    monkeypatch.setattr(tenant, "LARGE", 40)
    rng = np.random.default_rng(4)
    queries = random_codes(rng, 3, 2)
    with Index.create(tmp_path / "a.rbe", n=64, keyword_planes=2, tenant="shop") as index:
        index.add_codes(random_codes(rng, 2, 250), attributes={"shop": [i % 10 % 6 for i in range(250)]})
        index.delete([1, 5])
        wanted = {own: index.search_codes(queries, 7, tenant=own) for own in (1, 5)}
    scanned: list[int] = []
    search = CpuBackend.search

    def on_cpu(self: CpuBackend, partitions: Any, *others: Any) -> Any:
        scanned.append(sum(part.count for part in partitions))
        return search(self, partitions, *others)

    monkeypatch.setattr(CpuBackend, "search", on_cpu)
    with Index.open(tmp_path / "a.rbe", DEVICES) as index:
        for own in (1, 5):
            assert_same(index.search_codes(queries, 7, tenant=own), wanted[own])
            assert_same(index.search_codes(queries, 7, where=f"shop = {own}"), wanted[own])
    assert scanned == [25]  # the small tenant
