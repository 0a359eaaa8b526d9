"""Every kernel equals the reference, ties included, over odd sizes, shapes, masks, queries and k."""

import hashlib
import itertools
from collections import OrderedDict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rbegir.base import masks
from rbegir.codes.layout import pack
from rbegir.codes.planes import Codes
from rbegir.errors import InputError
from rbegir.search.backend import Partition
from rbegir.search.cpu import EMULATED, CpuBackend
from rbegir.search.partition import Candidates
from rbegir.search.reference import ReferenceBackend
from tests.isa import every_isa
from torture.worlds import ORDERS, Still, arrange, planted, sampled_groups


def partition(
    rng: np.random.Generator, count: int, n: int, planes: int, *, distinct: int = 0, keep: float = 1.0
):
    """Random keywords; `distinct` > 0 draws them from so few that ties abound; `keep` < 1 adds a mask."""
    bits = rng.integers(0, 2**64, (planes, distinct or count, n // 64), dtype=np.uint64)
    if distinct:
        bits = bits[:, rng.integers(0, distinct, count)]
    mask = None if keep == 1.0 else masks.from_bools(rng.random(count) < keep)
    return Partition(pack(Codes(np.ascontiguousarray(bits), n)), count, mask)


def queries(rng: np.random.Generator, count: int, n: int, limit: int = 7) -> np.ndarray:
    return rng.integers(-limit, limit + 1, (count, n)).astype(np.int16)


KNOWN: OrderedDict[bytes, Candidates] = OrderedDict()  # results of the reference


def wanted(partitions: list[Partition], values: np.ndarray, k: int, n: int, planes: int) -> Candidates:
    """The result of the reference, which the tests of one instruction set after the other ask for."""
    asked = hashlib.sha256(repr((k, n, planes, values.shape)).encode() + values.tobytes())
    for part in partitions:
        asked.update(repr((part.count, part.mask is None)).encode())
        asked.update(part.packed)
        asked.update(b"" if part.mask is None else part.mask)
    found = KNOWN.pop(asked.digest(), None) or ReferenceBackend(n, planes).search(partitions, values, k)
    KNOWN[asked.digest()] = found
    while len(KNOWN) > 100:
        KNOWN.popitem(last=False)
    return found


def assert_equal(partitions, values, k, n, planes, isa, threads=1) -> None:
    expected = wanted(partitions, values, k, n, planes)
    got = CpuBackend(n, planes, threads=threads, isa=isa).search(partitions, values, k)
    np.testing.assert_array_equal(got.keys, expected.keys)
    np.testing.assert_array_equal(got.positions, expected.positions)


@every_isa(*EMULATED)
@pytest.mark.parametrize("count", [0, 1, 63, 64, 65, 127, 129, 1000])
@pytest.mark.parametrize("k", [1, 10, 5000])
@pytest.mark.parametrize("batch", [0, 1, 3, 9])
def test_sizes(isa: str, count: int, k: int, batch: int) -> None:
    rng = np.random.default_rng(count + k)
    assert_equal([partition(rng, count, 64, 2)], queries(rng, batch, 64), k, 64, 2, isa)


@every_isa(*EMULATED)
@pytest.mark.parametrize("words", range(1, 17))
@pytest.mark.parametrize("planes", [1, 2, 3, 4])
def test_shapes(isa: str, words: int, planes: int) -> None:
    n = 64 * words
    rng = np.random.default_rng(n + planes)
    parts = [partition(rng, 700, n, planes)]
    for limit, batch in [(7, 1), (255, 4)]:
        assert_equal(parts, queries(rng, batch, n, limit), 20, n, planes, isa)


@every_isa(*EMULATED)
@pytest.mark.parametrize("batch", [1, 5])
@pytest.mark.parametrize("threads", [1, 3])
def test_large_enough_to_sample(isa: str, batch: int, threads: int) -> None:
    """More keywords than are scanned without a threshold: sample, scan and proof all run."""
    rng = np.random.default_rng(batch)
    parts = [partition(rng, 40_000, 64, 2), partition(rng, 30_001, 64, 2)]
    for k in (1, 100, 7000, 70_001):
        assert_equal(parts, queries(rng, batch, 64), k, 64, 2, isa, threads)


@every_isa(*EMULATED)
@pytest.mark.parametrize(("n", "planes", "distinct"), [(64, 2, 0), (128, 1, 5)])
def test_long_runs_of_groups(isa: str, n: int, planes: int, distinct: int) -> None:
    """Enough keywords to read groups from several places in turn, and to share two queries among threads."""
    rng = np.random.default_rng(n)
    parts = [partition(rng, 300_001, n, planes, distinct=distinct)]
    values = queries(rng, 2, n)
    assert_equal(parts, values[:1], 1000, n, planes, isa)
    assert_equal(parts, values, 10, n, planes, isa, threads=2)


@every_isa(*EMULATED)
@pytest.mark.parametrize("batch", [1, 6])
@pytest.mark.parametrize("threads", [1, 2])
def test_ties(isa: str, batch: int, threads: int) -> None:
    """Few distinct keywords, so that whole runs of hits tie and only the position orders them."""
    rng = np.random.default_rng(7)
    parts = [partition(rng, 20_000, 64, 2, distinct=3), partition(rng, 9000, 64, 2, distinct=1)]
    for k in (1, 64, 1000, 10_000):
        assert_equal(parts, queries(rng, batch, 64), k, 64, 2, isa, threads)


@every_isa(*EMULATED)
def test_best_keywords_close_together(isa: str) -> None:
    """All good keywords in one corner: a sample misjudges the threshold, the proof by count must notice."""
    rng = np.random.default_rng(3)
    values = queries(rng, 4, 64)
    # the best possible keyword of query 0
    near = Codes.from_signs(np.repeat((values[:1] > 0)[None], 2, axis=0))
    bits = rng.integers(0, 2**64, (2, 100_000, 1), dtype=np.uint64)
    for start in (0, 31_337, 99_000):
        codes = bits.copy()
        codes[:, start : start + 900] = near.planes ^ (
            np.uint64(1) << rng.integers(0, 64, (2, 900, 1), dtype=np.uint64)
        )
        assert_equal([Partition(pack(Codes(codes, 64)), 100_000)], values, 1000, 64, 2, isa)


@every_isa(*EMULATED)
@pytest.mark.parametrize("keep", [0.0, 0.001, 0.02, 0.1, 0.4, 0.6, 0.99])
@pytest.mark.parametrize("batch", [1, 7])
def test_masks(isa: str, keep: float, batch: int) -> None:
    rng = np.random.default_rng(11)
    parts = [
        partition(rng, 30_000, 64, 2, keep=keep),
        partition(rng, 5000, 64, 2),
        partition(rng, 777, 64, 2, keep=0.5, distinct=4),
        partition(rng, 10_000, 64, 2, keep=0.0),
    ]
    for k in (1, 50, 2000):
        assert_equal(parts, queries(rng, batch, 64), k, 64, 2, isa)
    assert_equal(parts[:1], queries(rng, batch, 64), 50, 64, 2, isa)


@every_isa(*EMULATED)
def test_masks_that_change_density(isa: str) -> None:
    """Dense and sparse groups by turns with ties: gathered and plain groups keep the order of positions."""
    rng = np.random.default_rng(5)
    count = 64 * 200
    keep = np.repeat(rng.choice([0.0, 0.1, 1.0], 200), 64)
    plain = partition(rng, count, 64, 2, distinct=2)
    part = plain._replace(mask=masks.from_bools(rng.random(count) < keep))
    for k in (10, 1000):
        assert_equal([part], queries(rng, 6, 64), k, 64, 2, isa)


@every_isa(*EMULATED)
@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("planes", [1, 2, 4])
def test_hostile_queries(isa: str, batch: int, planes: int) -> None:
    """Zero queries, one dimension that drowns the rest, extremes: nothing overflows, nothing is lost."""
    rng = np.random.default_rng(13)
    parts = [partition(rng, 6000, 64, planes)]
    for values in (
        np.zeros((batch, 64)),
        np.full((batch, 64), 255),
        np.full((batch, 64), -255),
        np.where(np.arange(64) == 63, -255, 1)[None].repeat(batch, 0),
        np.where(np.arange(64) == 0, 255, -1)[None].repeat(batch, 0),
        np.where(np.arange(64) < 3, 200, 0)[None].repeat(batch, 0),
    ):
        assert_equal(parts, values.astype(np.int16), 37, 64, planes, isa)


def wide_queries(rng: np.random.Generator, count: int, n: int) -> np.ndarray:
    """Queries of 7 and 8 bits: as they are, halved with a remainder or without, all at the extremes."""
    top = rng.choice((127, 254, 255), (count, 1))
    values = rng.integers(-top, top + 1, (count, n))
    values = np.where(top == 254, values // 2 * 2, values)
    return np.where(rng.random((count, 1)) < 0.3, np.where(values < 0, -top, top), values).astype(np.int16)


@every_isa(*EMULATED)
@pytest.mark.parametrize("words", [1, 2, 5, 16])
@pytest.mark.parametrize("planes", [1, 2, 3, 4])
def test_batches_of_wide_queries(isa: str, words: int, planes: int) -> None:
    """Batches for which AVX-512 multiplies: keywords exactly at the threshold, and at the extremes.

    Many tie with the last hit, so a limit that is one too strict loses some. Those equal to the signs of a
    query have the largest sum there is, their opposites the smallest.
    """
    n = 64 * words
    rng = np.random.default_rng([words, planes])
    values = wide_queries(rng, 37, n)
    near, opposite = (planted(rng, 12, planes, values, side) for side in (1, -1))
    best = np.where(values[:6] > 0, 1, -1) * (2**planes - 1)
    pool = np.concatenate([near, opposite, best, -best]).astype(np.int16)
    codes = Codes.from_values(pool[rng.integers(0, len(pool), 530)], planes)
    keep = masks.from_bools(rng.random(201) < 0.5)
    for parts in (
        [Partition(pack(codes), 530)],
        [Partition(pack(codes[:329]), 329), Partition(pack(codes[329:]), 201, keep)],
    ):
        for batch, k in ((37, 10), (16, 100), (37, 1000)):
            assert_equal(parts, values[:batch], k, n, planes, isa)


@every_isa(*EMULATED)
@pytest.mark.parametrize(("n", "planes"), [(64, 3), (128, 2)])
def test_threads_share_batches_of_wide_queries(isa: str, n: int, planes: int) -> None:
    """Enough groups and queries that every thread gets a part of a batch that AVX-512 multiplies."""
    rng = np.random.default_rng([n, planes])
    parts = [partition(rng, 15_000, n, planes, distinct=500), partition(rng, 9_001, n, planes, keep=0.5)]
    assert_equal(parts, wide_queries(rng, 37, n), 10, n, planes, isa, threads=3)


@pytest.mark.parametrize("words", range(1, 17))
@pytest.mark.parametrize("planes", [1, 2, 3, 4])
def test_hard_worlds(words: int, planes: int) -> None:
    """Every shape with keywords, queries, orders, batches and k that are made to be hard."""
    rng = np.random.default_rng([words, planes])
    isas = every_isa(*EMULATED).args[1]
    for count in (700, 4161):
        world = Still(rng, n=64 * words, planes=planes, count=count, work=15_000)
        backends = {isa: CpuBackend(world.n, planes, threads=1, isa=isa) for isa in isas}
        assert [(isa, asked) for isa, _, same, asked in world.results(backends, asks=2) if not same] == []


@pytest.mark.parametrize("planes", [2, 3, 4])
@pytest.mark.parametrize("words", [3, 5, 7, 9, 11, 13, 15])
def test_small_norms_win(planes: int, words: int) -> None:
    """The best keywords have the smallest norms there are, of which few have exactly the smallest."""
    rng = np.random.default_rng([words, planes])
    values = queries(rng, 3, 64 * words)
    keywords = planted(rng, 3000, planes, values, 1)
    size = np.where(rng.random(keywords.shape) < rng.random((3000, 1)) / 20, 3, 1)
    codes = Codes.from_values((np.sign(keywords) * size).astype(np.int16), planes)
    parts = [Partition(pack(codes), 3000)]
    for isa, k in itertools.product(every_isa(*EMULATED).args[1], (1, 10, 100)):
        assert_equal(parts, values, k, 64 * words, planes, isa)


@pytest.mark.parametrize("order", ORDERS)
def test_a_hard_order_is_what_it_is_called(order: str) -> None:
    """The places of the best keywords, so that the names in `worlds` keep their meaning."""
    keys = np.random.default_rng(0).permutation(10_000)
    placed = keys[arrange(np.random.default_rng(1), order, keys)]
    np.testing.assert_array_equal(np.sort(placed), np.arange(10_000))
    best = np.flatnonzero(placed >= 9_900)
    if order == "best first":
        assert best.max() == 99
    elif order == "best last":
        assert best.min() == 9_900
    elif order == "shuffled":
        assert best.min() < 1000
        assert best.max() > 9000
    else:
        assert (sampled_groups(10_000)[best // 64] == (order == "best sampled")).all()


@every_isa(*EMULATED)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_anything(isa: str, data: st.DataObject) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    planes = data.draw(st.integers(1, 4))
    n = 64 * data.draw(st.sampled_from([1, 1, 2, 3, 8, 16]))
    parts = [
        partition(rng, count, n, planes, distinct=distinct, keep=keep)
        for count, distinct, keep in data.draw(
            st.lists(
                st.tuples(
                    st.sampled_from([0, 1, 63, 64, 65, 500, 4500]),
                    st.sampled_from([0, 0, 1, 5]),
                    st.sampled_from([1.0, 1.0, 0.0, 0.05, 0.5, 0.95]),
                ),
                max_size=4,
            )
        )
    ]
    values = queries(
        rng, data.draw(st.sampled_from([0, 1, 2, 3, 8])), n, data.draw(st.sampled_from([1, 7, 15, 255]))
    )
    k = data.draw(st.sampled_from([1, 2, 65, 300, 10**9]))
    threads = data.draw(st.integers(1, 3))
    assert_equal(parts, values, k, n, planes, isa, threads)


@every_isa(*EMULATED)
def test_unaligned_buffers(isa: str) -> None:
    rng = np.random.default_rng(1)
    part = partition(rng, 5000, 64, 2)
    for offset in (1, 31):
        moved = np.zeros(len(part.packed) + 64, dtype=np.uint8)[offset : offset + len(part.packed)]
        moved[:] = part.packed
        assert_equal([part._replace(packed=moved)], queries(rng, 5, 64), 10, 64, 2, isa)


def test_a_keyword_finds_itself() -> None:
    codes = Codes(np.random.default_rng(0).integers(0, 2**64, (2, 3000, 1), dtype=np.uint64), 64)
    found = CpuBackend(64, 2).search([Partition(pack(codes), 3000)], codes.values()[:50], 1)
    assert found.positions[:, 0].tolist() == list(range(50))


def test_no_partitions() -> None:
    found = CpuBackend(64, 2).search([], np.zeros((3, 64), np.int16), 5)
    assert found.keys.shape == found.positions.shape == (3, 0)


def test_mask_round_trip() -> None:
    passes = np.random.default_rng(0).random(130) < 0.5
    np.testing.assert_array_equal(masks.to_bools(masks.from_bools(passes), 130), passes)
    assert masks.from_bools(np.zeros(0, dtype=bool)).shape == (0,)


def test_refuses_settings() -> None:
    with pytest.raises(InputError, match="n must be a multiple of 64 from 64 to 1024, got 100"):
        CpuBackend(100, 2)
    with pytest.raises(InputError, match="keyword planes must be a whole number from 1 to 4, got 9"):
        CpuBackend(64, 9)
    for threads in (0, -1, 1.0, True, 10**6):
        with pytest.raises(InputError, match="threads must be a whole number from 1 to 1024"):
            CpuBackend(64, 2, threads=threads)


def test_a_backend_takes_the_instruction_set_that_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RBEGIR_ISA", raising=False)
    best = CpuBackend(64, 2).isa
    monkeypatch.setenv("RBEGIR_ISA", "portable")
    assert CpuBackend(64, 2).isa == "portable"
    assert CpuBackend(64, 2).with_planes(1).isa == "portable"
    assert CpuBackend(64, 2, isa=best).isa == best
