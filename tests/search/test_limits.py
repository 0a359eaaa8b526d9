"""Limits of a search: the least score, the hit behind which to continue, a filter for each query."""

from __future__ import annotations

import numpy as np
import pytest

from rbegir.base import masks
from rbegir.codes import score
from rbegir.codes.layout import pack
from rbegir.codes.planes import Codes
from rbegir.search.backend import FIRST, Partition
from rbegir.search.cpu import EMULATED, FILTERED, CpuBackend
from rbegir.search.partition import NO_KEY, Candidates, Limits, merge
from rbegir.search.reference import ReferenceBackend
from tests.isa import every_isa
from torture.worlds import Still


@every_isa(*EMULATED)
@pytest.mark.parametrize("seed", range(6))
def test_hard_worlds(isa: str, seed: int) -> None:
    """Every kind of limit with ties, several partitions, masks and batches; half of them are limited."""
    rng = np.random.default_rng(seed)
    world = Still(rng, n=64, planes=2, count=(200, 700, 1025, 4161, 4097, 9000)[seed], work=30_000)
    backend = CpuBackend(64, 2, threads=1 + seed % 2, isa=isa)
    answers = list(world.results({isa: backend}, asks=12))
    assert [asked for _, _, same, asked in answers if not same] == []
    assert sum("limited" in asked for *_, asked in answers) >= 2


@every_isa(*EMULATED)
@pytest.mark.parametrize(("n", "planes"), [(64, 2), (64, 4), (128, 2), (192, 3)])
def test_hard_worlds_of_batches(isa: str, n: int, planes: int) -> None:
    """Many queries at once, in batches that are multiplied and in smaller ones."""
    world = Still(np.random.default_rng([n, planes]), n=n, planes=planes, count=200, work=100_000)
    answers = list(world.results({isa: CpuBackend(n, planes, threads=1, isa=isa)}, asks=12))
    assert [asked for _, _, same, asked in answers if not same] == []


def test_many_results() -> None:
    """10⁴ limited results of each backend, compared with a full sort."""
    compared = 0
    for seed in range(1000):
        world = Still(np.random.default_rng([2, seed]), n=64, count=int(seed % 90) + 1, work=60_000)
        backends = {"cpu": CpuBackend(64, world.planes), "reference": ReferenceBackend(64, world.planes)}
        for _, queries, same, asked in world.results(backends):
            assert same, asked
            compared += queries * ("limited" in asked)
        if compared >= 2 * 10_000:
            return
    raise AssertionError(f"only {compared} results")


class Unlimited(ReferenceBackend):
    """A backend that knows masks alone, so that limits are met by deeper searches."""

    def _find(self, parts: list[Partition], values: np.ndarray, k: int, limits: Limits | None) -> Candidates:
        if limits is None:
            return super()._find(parts, values, k, None)
        way = self._deeper if np.all(limits.filters < 0) else self._by_filter
        return way(parts, values, k, limits)


@pytest.mark.parametrize("seed", range(20))
def test_a_backend_that_knows_masks_alone(seed: int) -> None:
    world = Still(np.random.default_rng([3, seed]), n=64, planes=2, count=300 + seed, work=30_000)
    for _, _, same, asked in world.results({"": Unlimited(64, 2)}, asks=8):
        assert same, asked


@pytest.mark.parametrize("count", [FIRST - 1, FIRST, FIRST + 1, 8 * FIRST + 1])
def test_all_hits_around_the_first_number_that_is_looked_for(count: int) -> None:
    """One query has everything, another a single hit, a third nothing."""
    codes = Codes(np.random.default_rng(0).integers(0, 2**64, (2, count, 1), dtype=np.uint64), 64)
    values = codes.values()[:3]
    floors = np.array([-score.KEY_LIMIT, score.keys(values[1:2], codes).max(), score.KEY_LIMIT])
    limits = Limits.none(3)._replace(floors=floors)
    found = CpuBackend(64, 2).search([Partition(pack(codes), count)], values, None, limits)
    assert found.counts.tolist() == [count, 1, 0]
    assert found.positions[1, 0] == 1
    np.testing.assert_array_equal(np.sort(found.positions[0]), np.arange(count))
    assert set(found.keys[2].tolist()) == {NO_KEY}


@pytest.mark.parametrize("queries", [FILTERED - 1, FILTERED, 3 * FILTERED])
def test_few_filters_of_many_queries(queries: int) -> None:
    """One filter for all is scanned for on its own, filters of few queries are tested in one scan."""
    rng = np.random.default_rng(queries)
    codes = Codes(rng.integers(0, 2**64, (2, 5000, 1), dtype=np.uint64), 64)
    passing = rng.random((2, 5000)) < 0.4
    part = Partition(pack(codes), 5000, None, tuple(map(masks.from_bools, passing)))
    values = rng.integers(-7, 8, (queries, 64)).astype(np.int16)
    numbers = rng.integers(-1, 2, queries)
    found = CpuBackend(64, 2).search([part], values, 5, Limits.none(queries)._replace(filters=numbers))
    for row, number, keys in zip(found.positions, numbers, score.keys(values, codes), strict=True):
        allowed = np.arange(5000) if number < 0 else np.flatnonzero(passing[number])
        assert row.tolist() == allowed[np.lexsort((allowed, -keys[allowed]))][:5].tolist()


@every_isa(*EMULATED)
@pytest.mark.parametrize(("n", "planes", "top"), [(64, 2, 7), (64, 2, 255), (64, 3, 7), (192, 2, 15)])
def test_filters_that_pass_few_beside_filters_that_pass_much(isa: str, n: int, planes: int, top: int) -> None:
    """Disjoint filters, borders of groups, blocks and tasks, nothing, everything; with ties and deletes."""
    rng = np.random.default_rng(n + planes + top)
    counts = 256 * 64 + 1, 1500
    total, filters = sum(counts), 30
    pool = Codes(rng.integers(0, 2**64, (planes, 40, n // 64), dtype=np.uint64), n)
    codes = pool[rng.integers(0, 40, total)]  # 400 keywords of each key
    place = np.arange(total)
    passing = rng.integers(0, filters, total) == np.arange(filters)[:, None]
    passing[0] = False
    passing[1] = True
    for number, period in ((2, 64), (3, 1024), (4, 256 * 64)):
        passing[number] = (place + 1) % period <= 1
    passing[5:8] = rng.random((3, total)) < [[0.5], [1.2 / 64], [1.3 / 64]]
    passing[8] = place // 64 == 63  # a group and nothing else
    live = rng.random(total) < 0.8
    live[2 * 64 : 4 * 64] = False  # groups without a candidate
    ends = np.cumsum(counts).tolist()
    parts = [
        Partition(
            pack(codes[end - count : end]),
            count,
            masks.from_bools(live[end - count : end]),
            tuple(masks.from_bools(own[end - count : end]) for own in passing),
        )
        for count, end in zip(counts, ends, strict=True)
    ]
    values = rng.integers(-top, top + 1, (filters + 2, n)).astype(np.int16)
    limits = Limits.none(len(values))._replace(filters=np.array([*range(filters), -1, 7]))
    few = np.array([0, 3, 4, 6, 8])  # alone they are scanned in larger blocks
    for asked in (np.arange(len(values)), few):
        for k, threads in ((1, 1), (50, 2), (900, 1)):
            backend = CpuBackend(n, planes, threads=threads, isa=isa)
            found = backend.search(parts, values[asked], k, Limits(*(own[asked] for own in limits)))
            keyed = score.keys(values[asked], codes)
            for row, number, keys in zip(found.positions, limits.filters[asked], keyed, strict=True):
                allowed = np.flatnonzero(live if number < 0 else live & passing[number])
                wanted = allowed[np.lexsort((allowed, -keys[allowed]))][:k]
                assert row[row >= 0].tolist() == wanted.tolist()


@every_isa(*EMULATED)
@pytest.mark.parametrize(
    ("n", "planes"), [(64, 1), (64, 2), (64, 3), (128, 1), (192, 1), (192, 3), (1024, 4)]
)
def test_filters_that_pass_few(isa: str, n: int, planes: int) -> None:
    """Borders of groups and blocks, full groups, bits behind the last keyword, nothing, a large k."""
    rng = np.random.default_rng([n, planes])
    pool = Codes(rng.integers(0, 2**64, (planes, 50, n // 64), dtype=np.uint64), n)  # ties abound
    sizes = (1, 63, 64, 65, 450) if n == 1024 else (1, 63, 64, 65, 7 * 64, 9 * 64 + 1, 257 * 64 + 63)
    for count in sizes:
        place = np.arange(count)
        passing = rng.random((12, count)) < np.array([0, 1, 1, 1, 2, 2, 3, 3, 4, 4.5, 1, 1])[:, None] / 64
        passing[1] = (place == 0) | (place == count - 1)
        passing[2] = place // 64 == count // 64 // 2  # a group and nothing else
        passing[3] = (place % 65 == 0) & (place // 64 % 3 == 1)
        own = [masks.from_bools(one).copy() for one in passing]
        for mask in own[::2]:
            mask[-1] |= np.uint64(2**64 - 2 ** (count % 64 or 64))
        parts = [
            Partition(pack(pool[rng.integers(0, 50, count)]), count, None, tuple(own)),
            Partition(pack(pool[rng.integers(0, 50, 3)]), 3, None, (None, *[masks.empty(3)] * 11)),
        ]
        values = rng.integers(-7, 8, (12, n)).astype(np.int16)
        limits = Limits.none(12)._replace(filters=np.arange(12))
        for k, threads in ((1, 1), (20, 2), (700, 1)):
            found = CpuBackend(n, planes, threads=threads, isa=isa).search(parts, values, k, limits)
            wanted = ReferenceBackend(n, planes).search(parts, values, k, limits)
            np.testing.assert_array_equal(found.positions, wanted.positions)
            np.testing.assert_array_equal(found.keys, wanted.keys)


def test_a_score_passes_exactly_when_its_float_does() -> None:
    """The least key of scores that hits have, and of the floats beside them: 4 × 34,000 results."""
    rng = np.random.default_rng(0)
    norms = np.array([0, 1, 9, 64, 3136, 64 * 255**2, 1024 * 255**2, *rng.integers(1, 2**26, 93)])
    keys = rng.integers(-(2**62), 2**62, (len(norms), 340))
    keys //= 2 ** rng.integers(0, 62, keys.shape)
    keys[:, :3] = 0, 1, -1
    scores = score.cosine(keys, norms)  # [queries, keys]
    for column, wanted in enumerate(scores.T):
        wanted = np.choose((column + np.arange(len(norms))) % 3, [wanted, *np.nextafter(wanted, [[2], [-2]])])
        least = score.least_keys(wanted, lambda keys: score.cosine(keys, norms), len(norms))  # one per query
        near = np.stack([least - 1, least, least + 1, keys[:, column]], axis=1)
        passes = score.cosine(near, norms) >= wanted[:, None]
        np.testing.assert_array_equal(passes, near >= least[:, None])


def test_scores_that_nothing_and_everything_reaches() -> None:
    norms = np.array([0, 64, 3136])

    def least(min_score: float) -> np.ndarray:
        return score.least_keys(min_score, lambda keys: score.cosine(keys, norms), 3)

    assert (least(1.01) > norms << score.FRACTION_BITS).all()  # the key of the cosine 1
    assert (least(-5e9) == -score.KEY_LIMIT).all()


def test_ragged_results_are_merged_in_order() -> None:
    first = Candidates(np.array([[9, 5], [NO_KEY, NO_KEY]]), np.array([[4, 0], [-1, -1]]))
    second = Candidates(np.array([[9, NO_KEY], [2, NO_KEY]]), np.array([[1, -1], [7, -1]]))
    found = merge([first, second], 5)
    assert found.positions.tolist() == [[1, 4, 0], [7, -1, -1]]
    assert found.counts.tolist() == [3, 1]
