"""The choice between scans, and the table of measured costs that it is made by."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rbegir.errors import DeviceError, InputError
from rbegir.lab.bench import scan_gpu
from rbegir.search.gpu import dispatch
from rbegir.search.gpu.dispatch import ScanShape, choose, cost

STAR = ScanShape(64, 2, 3, False)
HOPPER = ("float8", "wgmma", "mma")


def test_the_packaged_table_chooses_what_was_measured_to_be_fastest() -> None:
    assert choose(STAR, 1, 7, HOPPER) == "popcount"
    assert choose(STAR, 256, 7, HOPPER) == "float8"
    assert choose(STAR, 8, 7, ("mma",)) == "mma"  # Ampere
    assert choose(STAR, 256, 31, HOPPER) == "wgmma"  # beyond what 8-bit floats hold
    assert choose(ScanShape(512, 2, 3, False), 1, 7, HOPPER) == "popcount"


@pytest.mark.parametrize("queries", [1, 2, 3, 8, 20, 64, 300, 1024])
@pytest.mark.parametrize(
    "shape",
    [STAR, ScanShape(64, 2, 9, True), ScanShape(128, 1, 1, False), ScanShape(256, 4, 5, False)],
    ids=str,
)
def test_the_cheapest_is_chosen(shape: ScanShape, queries: int) -> None:
    chosen = choose(shape, queries, 255 if shape.wide else 7, HOPPER)
    least = cost(chosen, shape, queries)
    others = ["popcount", "product", "mma", "wgmma"] if shape.n <= 256 else ["popcount", "product"]
    assert all(least <= cost(other, shape, queries) for other in others)


def write(path: Path, costs: object) -> Path:
    path.write_text(json.dumps({"costs": costs}))
    return path


def test_the_table_of_another_card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    costs = {"popcount": {"64×2": [1.0] * 8}, "product": {"64×2": [0.5, 0.25], "128×2": [2.0, 1.0]}}
    monkeypatch.setenv(dispatch.VARIABLE, str(write(tmp_path / "costs.json", costs)))
    assert choose(STAR, 1, 7, HOPPER) == "product"  # kernels that were not measured are not used
    assert cost("product", STAR, 17) == 0.5 + 2 * 0.25
    assert cost("product", ScanShape(128, 2, 3, False), 16) == 3.0
    assert cost("popcount", ScanShape(128, 4, 3, False), 2) == 2 * 4.0  # in proportion to the nearest


@pytest.mark.parametrize(
    "content", ["{", "{}", '{"costs": {"popcount": {}, "product": {}}}', '{"costs": []}']
)
def test_a_table_that_is_none(content: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "costs.json"
    path.write_text(content)
    monkeypatch.setenv(dispatch.VARIABLE, str(path))
    with pytest.raises(InputError, match="RBEGIR_GPU_COSTS must name a file of scan costs, got") as raised:
        cost("popcount", STAR, 1)
    assert raised.value.hint == "rbegir bench costs --json > FILE"


def test_a_table_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(dispatch.VARIABLE, str(tmp_path / "none.json"))
    with pytest.raises(InputError, match="No such file"):
        cost("popcount", STAR, 1)


def test_costs_need_a_gpu() -> None:
    with pytest.raises((DeviceError, InputError), match=r"(needs a GPU|or 'cuda:N'), got 'cpu'"):
        scan_gpu.costs("cpu")
