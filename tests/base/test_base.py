"""The shared parts: checks of arguments, names of devices, masks, durable files."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch

from rbegir.base import disk, masks
from rbegir.base.arguments import number_named, tenant_named
from rbegir.base.devices import cpu_count, gpu_number, names_of, prompt_threads, split_name
from rbegir.errors import DeviceError, InputError, MissingExtraError, describe, whole_number


@pytest.mark.parametrize(("value", "result"), [(1, 1), (7, 7), (np.int64(3), 3), (np.uint8(2), 2)])
def test_whole_numbers_become_ints(value: object, result: int) -> None:
    made = whole_number("k", value, 1, 7)
    assert made == result
    assert type(made) is int


@pytest.mark.parametrize("value", [0, -1, 8, 2.0, True, np.True_, "3", None, [1]])
def test_what_is_no_whole_number_is_refused(value: object) -> None:
    with pytest.raises(InputError) as raised:
        whole_number("k", value, 1, 7)
    assert str(raised.value) == f"k must be a whole number from 1 to 7, got {value!r}"


def test_a_whole_number_without_an_upper_bound() -> None:
    assert whole_number("seed", 10**30, 0) == 10**30
    with pytest.raises(InputError, match=r"^seed must be a whole number of at least 0, got -1$"):
        whole_number("seed", -1, 0)


def test_descriptions() -> None:
    assert describe(np.zeros((2, 3), np.int16)) == "int16 [2, 3]"
    assert describe([1]) == "list"
    assert describe(None) == "NoneType"


@pytest.fixture
def switch_interval() -> Iterator[Callable[[], float]]:
    """Python's default, whatever other tests have left; yields what reads it, in milliseconds."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.005)
    yield lambda: round(sys.getswitchinterval() * 1e3, 2)
    sys.setswitchinterval(before)


def test_threads_are_prompt_for_a_while(switch_interval: Callable[[], float]) -> None:
    with prompt_threads(0.0005):
        assert switch_interval() == 0.5
        with prompt_threads(0.01), prompt_threads(0.0005):  # never slower
            assert switch_interval() == 0.5
        with prompt_threads(0.0001), prompt_threads(0.0001):
            assert switch_interval() == 0.1
        assert switch_interval() == 0.5
    assert switch_interval() == 5
    with contextlib.suppress(ValueError), prompt_threads(0.0001):
        raise ValueError
    assert switch_interval() == 5


@pytest.mark.parametrize("seconds", [0.0001, 0.0005, 0.001])
def test_prompt_threads_that_overlap(switch_interval: Callable[[], float], seconds: float) -> None:
    first, second = prompt_threads(0.0005), prompt_threads(seconds)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert switch_interval() == (0.1 if seconds == 0.0001 else 5)
    second.__exit__(None, None, None)
    assert switch_interval() == (0.5 if seconds == 0.0001 else 5)


def test_names_of_devices() -> None:
    assert split_name("cpu") == ("cpu", None)
    assert split_name("cuda") == ("cuda", None)
    assert split_name("cuda:12") == ("cuda", 12)
    assert split_name("auto", "auto") == ("auto", None)
    assert names_of("cuda") == ["cuda"]
    assert names_of(("cuda:0", "cuda:1")) == ["cuda:0", "cuda:1"]
    for wrong in ([], {}, 3, None, ["cuda", 1]):
        with pytest.raises(InputError, match="must be a name such as 'cpu' or a list of such names"):
            names_of(wrong)


@pytest.mark.parametrize(
    "name", ["", "tpu", "auto", "cpu:0", "cuda:", "cuda:x", "cuda:-1", "cuda:²", "cuda1", 0]
)
def test_unknown_devices(name: object) -> None:
    with pytest.raises(InputError, match=r"^device must be 'cpu', 'cuda' or 'cuda:N', got "):
        split_name(name)


def test_gpus_that_are_there_and_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for count, found in ((1, "there is 1 GPU"), (2, "there are 2 GPUs")):
        monkeypatch.setattr(torch.cuda, "device_count", lambda count=count: count)
        assert gpu_number("cuda") == 0
        assert gpu_number(f"cuda:{count - 1}") == count - 1
        with pytest.raises(DeviceError, match=f"device 'cuda:2' was asked for, but {found}"):
            gpu_number("cuda:2")
        with pytest.raises(DeviceError, match="device 'cuda:7' was asked for"):
            gpu_number("cuda", default=7)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(DeviceError, match="device 'cuda' was asked for, but torch finds no GPU"):
        gpu_number("cuda")
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingExtraError, match="device 'cuda' needs torch"):
        gpu_number("cuda")


def test_cpus_are_those_that_the_process_may_use() -> None:
    allowed = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(allowed)})
        assert cpu_count() == 1
    finally:
        os.sched_setaffinity(0, allowed)
    assert cpu_count() == len(allowed)


@pytest.mark.parametrize("count", [0, 1, 63, 64, 65, 200])
def test_masks_are_sets(count: int) -> None:
    chosen = set(np.flatnonzero(np.random.default_rng(count).random(count) < 0.4).tolist())
    positions = np.array(sorted(chosen, reverse=True), np.int64)
    mask = masks.from_positions(positions, count)
    assert mask.shape == (-(-count // 64),)
    assert [bool(int(mask[i // 64]) >> (i % 64) & 1) for i in range(count)] == [
        i in chosen for i in range(count)
    ]
    np.testing.assert_array_equal(masks.from_bools(np.isin(np.arange(count), positions)), mask)
    assert masks.to_positions(mask, count).tolist() == sorted(chosen)
    assert masks.size(mask) == len(chosen)
    assert masks.to_positions(masks.complement(mask, count), count).tolist() == sorted(
        {*range(count)} - chosen
    )
    assert masks.contains(mask, np.arange(count)).tolist() == [i in chosen for i in range(count)]
    assert masks.to_bools(None, count).tolist() == [True] * count


@pytest.mark.parametrize("chosen", [[], [0], [63, 64], [70_000], [5, 6, 4096, 69_999, 70_000]], ids=str)
def test_the_few_positions_of_a_large_mask(chosen: list[int]) -> None:
    mask = masks.from_positions(np.array(chosen, np.int64), 70_001)
    found = masks.to_positions(mask, 70_001)
    assert found.dtype == np.int64
    assert found.tolist() == chosen
    masks.add(mask, np.array([7, 5, 7]))
    assert masks.to_positions(mask, 70_001).tolist() == sorted({5, 7, *chosen})


def test_a_replaced_file_is_synced_before_and_its_name_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes, then the rename, then the directory: any other order can lose the file in a power cut."""
    new, path = tmp_path / "new", tmp_path / "file"
    path.write_bytes(b"old")
    new.write_bytes(b"new")
    steps: list[object] = []
    fsync, rename = os.fsync, os.rename

    def synced(descriptor: int) -> None:
        steps.append(os.fstat(descriptor).st_ino)
        fsync(descriptor)

    def renamed(old: Path, to: Path) -> None:
        steps.append((old, to))
        rename(old, to)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "rename", renamed)
    inode = new.stat().st_ino
    disk.replace(new, path)
    assert steps == [inode, (new, path), tmp_path.stat().st_ino]
    assert path.read_bytes() == b"new"
    assert not new.exists()


def test_a_written_file_is_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: sizes.append(os.fstat(descriptor).st_size))
    disk.write_file(tmp_path / "file", b"ab", memoryview(b"cde"))
    disk.write_file(tmp_path / "file", b"f")
    assert sizes == [5, 1]
    assert (tmp_path / "file").read_bytes() == b"f"


@pytest.mark.parametrize("count", [0, 1, 7, 8, 63, 64, 65, 1000])
@pytest.mark.parametrize("offset", [0, 3, 64])
def test_masks_from_bytes(count: int, offset: int) -> None:
    """Bits before and behind Arrow's flags do not count."""
    flags = np.random.default_rng(count).random(offset + count + 100) < 0.5
    sliced = pa.array(flags).slice(offset, count)
    expected = masks.from_bools(flags[offset : offset + count])
    raw = np.frombuffer(sliced.buffers()[1], np.uint8)
    np.testing.assert_array_equal(masks.from_bytes(raw, offset, count), expected)


def test_whole_numbers_are_read_as_they_are_written() -> None:
    for number in (0, 7, -7, 2**63 - 1, -(2**63)):
        assert number_named(str(number)) == number
    for text in ("", "-0", "007", "+7", "7 ", "1_0", "1.0", "٧", str(2**63), "7" * 5000):
        assert number_named(text) is None
    numbers = {"attributes": {"shop": "int64"}, "tenant": "shop"}
    assert tenant_named("7", numbers) == 7
    with pytest.raises(InputError, match="the tenants of this index are whole numbers, got '1_0'"):
        tenant_named("1_0", numbers)
