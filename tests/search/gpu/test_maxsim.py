"""MaxSim on devices: the items, the scores and the first keywords of the reference, to the last bit."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from rbegir.codes.planes import Codes
from rbegir.search.gpu import maxsim
from rbegir.search.gpu.backend import GpuBackend
from rbegir.search.gpu.words import INTERPRETED
from rbegir.search.items import ItemOrder
from rbegir.search.reference import ReferenceBackend
from tests.search.gpu.cases import assert_items_equal, items_of, make_case

DEVICE = "cpu" if INTERPRETED else "cuda:0"


@pytest.mark.parametrize(
    ("n", "planes", "top", "vectors", "counts", "longest"),
    [
        (64, 2, 7, 5, (300,), 9),
        (64, 2, 63, 16, (65, 1, 130), 70),
        (64, 1, 64, 17, (64, 63), 3),
        (128, 2, 7, 32, (200,), 33),
        (128, 3, 255, 33, (130, 20), 5),
        (64, 4, 1, 1, (200,), 200),
        (192, 2, 255, 3, (90,), 20),
        (1024, 4, 255, 2, (40,), 30),
        (256, 1, 7, 70, (40,), 4),
    ],
)
@pytest.mark.parametrize("kind", ["together", "scattered", "masked"])
def test_equals_the_reference(
    monkeypatch: pytest.MonkeyPatch,
    n: int, planes: int, top: int, vectors: int, counts: tuple[int, ...], longest: int, kind: str,
) -> None:  # fmt: skip
    rng = np.random.default_rng(n + planes + vectors)
    monkeypatch.setattr(maxsim, "SPANS", 1 if kind != "scattered" else 10**6)
    case = make_case(
        rng, n, planes, top=top, odd=False, queries=vectors, k=int(rng.choice([1, 4, 1000])),
        counts=counts, density=0.4 if kind == "masked" else None, copies=11,
    )  # fmt: skip
    case.values[vectors // 2] = 0
    case.values[0, 0] = top
    order = items_of(rng, sum(counts), longest, scattered=0.3 if kind == "scattered" else 0)
    assert_items_equal(GpuBackend(n, planes, DEVICE), case, order)


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("scattered", [0.0, 0.5])
def test_long_items_and_parts_of_items_on_several_devices(
    monkeypatch: pytest.MonkeyPatch, devices: int, scattered: float
) -> None:
    from rbegir.search.gpu import backend

    monkeypatch.setattr(backend, "SPLIT", 100)
    monkeypatch.setattr(maxsim, "LONG", 37)
    monkeypatch.setattr(maxsim, "PROGRAMS", 1)
    monkeypatch.setattr(maxsim, "TURNS", 3)
    monkeypatch.setattr(maxsim, "SPANS", 1)
    monkeypatch.setattr(maxsim, "EXACT_KEYWORDS", 50)
    monkeypatch.setattr(maxsim, "LEAST", 1)
    rng = np.random.default_rng(devices)
    case = make_case(rng, 64, 2, queries=35, k=3, counts=(300, 64, 150), density=0.9)
    whole = make_case(rng, 64, 2, counts=(70,))  # without a mask, between two with one
    case.parts.insert(1, whole.parts[0])
    order = items_of(rng, 584, 150, scattered=scattered)
    tested = GpuBackend(64, 2, [DEVICE] * devices)
    for _ in range(2):
        assert_items_equal(tested, case, order)
        case.parts[0] = case.parts[0]._replace(mask=np.zeros(5, np.uint64))


def test_what_is_kept_of_an_order() -> None:
    """The plan is made once, again for other slabs, and goes with the order."""
    case = make_case(np.random.default_rng(1), 64, 2, queries=3, counts=(100,))
    order = items_of(np.random.default_rng(2), 100, 5)
    tested = GpuBackend(64, 2, DEVICE)
    assert_items_equal(tested, case, order)
    plan = tested._plans[order][1]
    assert_items_equal(tested, case._replace(k=1), order)
    assert tested._plans[order][1] is plan
    more = make_case(np.random.default_rng(3), 64, 2, queries=3, counts=(70,))
    assert_items_equal(tested, case._replace(parts=more.parts + case.parts), order)
    assert tested._plans[order][1] is not plan
    del order
    assert not tested._plans


@pytest.mark.whole
def test_nothing_to_find() -> None:
    case = make_case(np.random.default_rng(1), 64, 2, queries=2, counts=(100,), density=0.0)
    order = items_of(np.random.default_rng(2), 100, 5)
    nothing = ItemOrder(np.zeros(0, np.int64), np.zeros(1, np.int64))
    for parts, own in ((case.parts, order), ([], nothing), ([], order), (case.parts, nothing)):
        assert [len(column) for column in GpuBackend(64, 2, DEVICE).maxsim(parts, case.values, own, 3)] == [
            0
        ] * 3


def test_float32_scores_are_within_the_slack(monkeypatch: pytest.MonkeyPatch) -> None:
    """The slack decides which items are scored exactly: of all items, none is further off."""
    off = []
    scores = maxsim.ItemScan.scores

    def watched(scan: maxsim.ItemScan, items: int) -> object:
        found = scores(scan, items)
        off.append(found.cpu().numpy())
        return found

    monkeypatch.setattr(maxsim.ItemScan, "scores", watched)
    for vectors, n, planes in ((1, 64, 2), (17, 64, 1), (32, 64, 2), (33, 192, 4), (80, 64, 2)):
        case = make_case(np.random.default_rng(vectors), n, planes, queries=vectors, k=10**6, counts=(300,))
        order = items_of(np.random.default_rng(2), 300, 8)
        exact = ReferenceBackend(n, planes).maxsim(case.parts, case.values, order, 10**6)
        assert_items_equal(GpuBackend(n, planes, DEVICE), case, order)
        errors = np.abs(off[-1][exact.items] - exact.scores)
        assert errors.max() < maxsim.slack(vectors) / 2


@pytest.mark.whole
def test_items_that_do_not_fit_beside_the_keywords_are_left_to_the_cpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = make_case(np.random.default_rng(1), 64, 2, queries=3, counts=(300,))
    order = items_of(np.random.default_rng(2), 300, 8)
    tested = GpuBackend(64, 2, DEVICE)

    def full(scan: maxsim.ItemScan, items: int) -> torch.Tensor:
        raise torch.OutOfMemoryError("out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(maxsim.ItemScan, "scores", full)
        assert_items_equal(tested, case, order)
    assert_items_equal(tested, case, order)


@pytest.mark.whole
def test_keywords_that_do_not_fit_are_left_to_the_cpu() -> None:
    case = make_case(np.random.default_rng(1), 64, 2, queries=3, counts=(2000,), density=0.5)
    order = items_of(np.random.default_rng(2), 2000, 50)
    tested = GpuBackend(64, 2, DEVICE, memory=40_000)  # room for 64 keywords
    assert_items_equal(tested, case, order)
    assert not tested._plans


@pytest.mark.whole
def test_an_index_on_devices_equals_one_on_the_cpu(tmp_path: Path) -> None:
    from rbegir.index.store import Index

    rng = np.random.default_rng(0)
    name = ["interpreter" if INTERPRETED else "cuda:0"] * 2

    def codes(count: int, planes: int) -> Codes:
        return Codes.from_signs(rng.random((planes, count, 64)) < 0.5)

    with Index.create(tmp_path / "a.rbe", n=64, keyword_planes=2, query_planes=3) as index:
        for start in (0, 100):
            documents = [(start + row) // 7 % 17 for row in range(100)]
            index.add_codes(codes(100, 2), attributes={"document": documents})
        index.delete([3, 4, 120])
        with Index.open(tmp_path / "a.rbe", name, read_only=True) as on_device:
            queries = [codes(3, 3), codes(20, 3)]
            for where in (None, "id > 95", "id < 10", "document < 9", "id < 0"):
                wanted = index.maxsim(queries, 4, item="document", where=where)
                assert on_device.maxsim(queries, 4, item="document", where=where).equals(wanted)


COMPILE = """
from itertools import product
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from rbegir.search.gpu.matches import NEVER, ROWS, SLAB_BITS, match_items

POINTERS = {
    "words": "*i32", "slabs": "*i64", "addresses": "*i64", "wheres": "*i64", "lengths": "*i32",
    "places": "*i64", "operand": "*i8", "sums": "*i32", "scales": "*fp32", "inverse": "*fp64",
    "shifts": "*i32",
}
for (n, planes, wide), gather, exact in product([(64, 2, 0), (128, 1, 0), (64, 4, 1)], [0, 1], [0, 1]):
    constants = dict(
        N=n, P=planes, WIDE=wide, MASKED=1 - gather, GATHER=gather, EXACT=exact, WHOLE=1 - exact, MORE=gather,
        CELLS=64 >> 2 * gather, ROWS=ROWS, COLUMNS=32 >> gather, SLAB=SLAB_BITS, NONE=NEVER,
    )
    types = {**POINTERS, "out": "*fp64" if exact else "*fp32"}
    types |= {"stride": "i32", "count": "i32", "programs": "i32"}
    types |= {"mask": "*i32"} if not gather else {}
    types |= {"firsts": "*i64"} if exact else {}
    constants |= {name: None for name in ("mask", "firsts") if name not in types}
    names = match_items.arg_names
    aligned = [name for name, kind in types.items() if kind.startswith("*")]
    source = ASTSource(
        match_items,
        {name: types.get(name, "constexpr") for name in names},
        {(names.index(name),): value for name, value in constants.items()},
        {(names.index(name),): [["tt.divisibility", 16]] for name in aligned},
    )
    options = {"num_warps": 4 if exact else 1}
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    assert compiled.asm["cubin"]
    print(exact, compiled.asm["ptx"].count("st.shared.b8"))
"""


def test_compiled_for_hopper_keywords_are_unpacked_in_registers() -> None:
    """Every kind of kernel compiles, and scoring stores no values of keywords byte by byte."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    run = subprocess.run([sys.executable, "-c", COMPILE], capture_output=True, text=True, env=environment)
    assert run.returncode == 0, run.stderr
    found = [line.split() for line in run.stdout.splitlines()]
    assert len(found) == 12
    assert [stores for exact, stores in found if exact == "0"] == ["0"] * 6
