"""mode="paper": equal to Algorithm 1 thread by thread, and as lossy as its certificate says."""

import math

import numpy as np
import pytest

from rbegir.base import masks
from rbegir.codes.layout import pack
from rbegir.codes.planes import Codes
from rbegir.search.backend import Partition
from rbegir.search.cpu import CpuBackend
from rbegir.search.paper import BLOCK, queue_heads, thread_of, thread_sizes
from rbegir.search.partition import recall_of
from rbegir.search.reference import ReferenceBackend


def partitions(rng: np.random.Generator, counts: list[int], *, distinct: int = 0, keep: float = 1.0):
    for count in counts:
        bits = rng.integers(0, 2**64, (2, distinct or count, 1), dtype=np.uint64)
        if distinct:
            bits = bits[:, rng.integers(0, distinct, count)]
        mask = None if keep == 1.0 else masks.from_bools(rng.random(count) < keep)
        yield Partition(pack(Codes(np.ascontiguousarray(bits), 64)), count, mask)


@pytest.mark.parametrize("counts", [[], [0], [1], [255], [300, 700], [5000]])
@pytest.mark.parametrize(("per_thread", "queue"), [(1, 1), (3, 1), (4, 2), (256, 1), (7, 100)])
@pytest.mark.parametrize(("distinct", "keep"), [(0, 1.0), (3, 1.0), (0, 0.3), (2, 0.0)])
def test_equals_algorithm_1(
    counts: list[int], per_thread: int, queue: int, distinct: int, keep: float
) -> None:
    rng = np.random.default_rng(1)
    parts = list(partitions(rng, counts, distinct=distinct, keep=keep))
    values = rng.integers(-7, 8, (3, 64)).astype(np.int16)
    for k in (1, 20, 600):
        expected, promised = ReferenceBackend(64, 2).search_paper(
            parts, values, k, per_thread=per_thread, queue=queue
        )
        got, certificate = CpuBackend(64, 2, threads=2).search_paper(
            parts, values, k, per_thread=per_thread, queue=queue
        )
        np.testing.assert_array_equal(got.keys, expected.keys)
        np.testing.assert_array_equal(got.positions, expected.positions)
        assert certificate.p_miss_at_most == pytest.approx(promised.p_miss_at_most)
        assert certificate.expected_recall == pytest.approx(promised.expected_recall)


def test_threads_take_every_256th() -> None:
    assert thread_of(np.array([0, 1, 255, 256, 511, 512]), 2).tolist() == [0, 1, 255, 0, 255, 256]
    assert BLOCK == 256
    assert queue_heads(np.array([5, 5, 3, 5, 3]), 2).tolist() == [True, True, True, False, True]


@pytest.mark.parametrize("count", [0, 1, 255, 256, 257, 5000, 256 * 7, 256 * 7 + 1])
def test_thread_sizes_without_masks(count: int) -> None:
    part = Partition(np.zeros(0, np.uint8), count)
    expected = np.bincount(np.bincount(thread_of(np.arange(count), 7), minlength=1))
    sizes = {size: many for size, many in enumerate(expected.tolist()) if size and many}
    assert thread_sizes([part], 7) == sizes


def test_misses_follow_the_certificate() -> None:
    """Misses of 1500 searches over random codes against P(L = l): chi-squared at 0.1 %, and the mean."""
    rng = np.random.default_rng(42)
    count, k, searches = 60_000, 120, 1500
    parts = list(partitions(rng, [count]))
    values = rng.integers(-255, 256, (searches, 64)).astype(np.int16)
    backend = CpuBackend(64, 2)
    exact = backend.search(parts, values, k)
    paper, certificate = backend.search_paper(parts, values, k, per_thread=256)
    misses = np.array(
        [k - len(np.intersect1d(a, b)) for a, b in zip(exact.positions, paper.positions, strict=True)]
    )
    at_most = [certificate.at_most(misses) for misses in range(-1, 80)]
    law = np.diff(at_most)
    expected = law * searches
    keep = np.flatnonzero(expected > 8)
    seen = np.array([np.count_nonzero(misses == m) for m in keep], dtype=float)
    # what is outside the well-filled cells goes in one cell of its own
    seen = np.append(seen, searches - seen.sum())
    wanted = np.append(expected[keep], searches - expected[keep].sum())
    statistic = float(((seen - wanted) ** 2 / wanted).sum())
    freedom = len(seen) - 1
    assert len(keep) > 8
    # 99.9 % of a chi-squared law (Wilson–Hilferty)
    assert statistic < freedom * (1 - 2 / (9 * freedom) + 3.09 * math.sqrt(2 / (9 * freedom))) ** 3
    spread = math.sqrt(float((law * np.arange(len(law)) ** 2).sum()) / searches) / k
    assert recall_of(paper.positions, exact.positions) == pytest.approx(
        certificate.expected_recall, abs=4 * spread
    )
