"""Keywords and queries that are hard for an exact search, and whether every backend finds the wanted hits.

A still world is a set of codes that does not change, a batch of queries, and the order of all keywords for
each query, computed from `codes.score` alone. It is asked for different k, in batches of different sizes,
with and without masks, whole and cut into partitions, and half of the time with limits for each query: a
least score, a hit behind which to continue, a filter. What makes it hard:

    keywords    planted around the queries or opposite to them, with the smallest norm, the largest and all
                between; one bit apart; few distinct ones, so that ties abound; codes of a model and of a
                Binarizer
    queries     of any magnitude, odd or not, sparse, constant, zero, with one dimension that drowns the rest,
                equal to a keyword or opposite to it
    order       shuffled, best first, best last, the best only in groups that the scan samples for its first
                threshold, or only in groups that it does not
    k, batch    around every size at which the scan switches its strategy
    limits      exactly at the key of a hit and one beside it, behind the very last hit, filters that pass
                nothing, one keyword, few, many and all, or what no other filter passes, or only keywords at
                the borders of groups and blocks
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from rbegir.base import masks
from rbegir.codes import score
from rbegir.codes.layout import GROUP, groups, pack
from rbegir.codes.planes import Codes
from rbegir.encode.binarizer.binarizer import Binarizer
from rbegir.encode.clsm import checkpoint
from rbegir.encode.clsm.model import Model
from rbegir.encode.clsm.presets import ModelConfig, tensor_shapes
from rbegir.search.backend import Backend, Partition
from rbegir.search.cpu import CpuBackend
from rbegir.search.partition import NO_KEY, Limits

Ints = npt.NDArray[np.int64]
Values = npt.NDArray[np.int16]
Chance = np.random.Generator

# Sizes at which the scan switches its strategy: scan_search.cpp and scan_worker.hpp.
SAMPLE, SMALL, RAW_QUERIES, SHARE, QUERY_TILE = 64, 4096, 2, 16, 256
BLOCK, TASK = 16 * GROUP, 256 * GROUP
FEW = 1.25 / GROUP  # the share up to which all that a filter passes are scored
TINY = (1, 2, GROUP - 1, GROUP, GROUP + 1, 200)
MEDIUM = (500, 700, BLOCK - 1, BLOCK, BLOCK + 1)  # enough to raise the threshold for small k
LARGE = (SMALL - 1, SMALL, SMALL + 1, SMALL + GROUP + 1, 2 * SMALL)  # around what is sampled first
SHARED = (2 * TASK + 1, 3 * TASK + 17)  # several tasks, for several threads
STREAMED = 8 * 515 * GROUP - 7  # few queries: a task reads groups from several places in turn, and a rest
BATCHES = (1, RAW_QUERIES, RAW_QUERIES + 1, SHARE, SHARE + 1, QUERY_TILE - 1, QUERY_TILE, QUERY_TILE + 1)
KEYWORDS = ("random", "near", "opposite", "one bit", "few", "encoded")
ENCODED_N = 256  # the largest n for which codes are learned, which takes long
ORDERS = ("shuffled", "best first", "best last", "best sampled", "best not sampled")
WORK = 400_000  # queries · keywords · 64-bit words of one answer


def odd(rng: Chance, shape: tuple[int, ...], top: int) -> Values:
    """Random odd integers within ±top."""
    return (2 * rng.integers(0, top + 1, shape) - top).astype(np.int16)


def make_queries(rng: Chance, count: int, n: int) -> Values:
    """Queries [count, n] of all kinds."""
    top = rng.choice((1, 3, 7, 15, 127, 255), (count, 1))
    kind = rng.choice(("even", "odd", "sparse", "constant", "zero", "drowned"), (count, 1))
    values = np.rint((2 * rng.random((count, n)) - 1) * top)
    sign = np.where(rng.random((count, n)) < 0.5, -1, 1)
    values = np.where(kind == "odd", values // 2 * 2 + 1, values)
    values = np.where((kind == "sparse") & (rng.random((count, n)) > 3 / n), 0, values)
    values = np.where(kind == "constant", top * sign, values)
    values = np.where(kind == "zero", 0, values)
    loud = np.arange(n) == rng.integers(0, n, (count, 1))
    values = np.where(kind == "drowned", np.where(loud, 255 * sign, sign), values)
    return np.clip(values, -255, 255).astype(np.int16)


def planted(rng: Chance, count: int, planes: int, queries: Values, side: int) -> Values:
    """Keywords around queries (side 1) or opposite to them (−1), of the smallest norm up to the largest."""
    n, top = queries.shape[1], 2**planes - 1
    target = np.sign(queries[rng.integers(0, len(queries), count)])
    target = np.where(target == 0, np.where(rng.random((count, n)) < 0.5, -1, 1), target)
    wrong = rng.random((count, n)) < rng.choice((0.0, 0.01, 0.05, 0.2), (count, 1))
    small = rng.random((count, n)) < rng.choice((0.0, 0.5, 0.9, 0.98, 1.0), (count, 1))
    large = rng.random((count, 1)) < 0.5
    size = np.where(small, 1, np.where(large, top, np.abs(odd(rng, (count, n), top))))
    return np.asarray(side * target * np.where(wrong, -1, 1) * size, np.int16)


@cache
def encoded(n: int, planes: int) -> Values:
    """Keywords that a Binarizer makes of clustered vectors, and for some shapes a model of texts."""
    rng = np.random.default_rng([n, planes])
    centres = rng.normal(size=(20, 32))
    vectors = (centres[rng.integers(0, 20, 600)] + rng.normal(0, 0.3, (600, 32))).astype(np.float32)
    made = Binarizer(32, n=n, keyword_planes=planes, rounds=1, moves=10).fit(vectors).encode_keywords(vectors)
    if n > 64:
        return made.values()
    config = ModelConfig(n=n, keyword_planes=planes, conv=8, hash_buckets=1)
    tensors = {k: rng.normal(0, 0.3, shape).astype(np.float32) for k, shape in tensor_shapes(config).items()}
    words = ["red", "blue", "old", "new", "shoe", "coat", "tea", "map", "sea", "clock"]
    with tempfile.TemporaryDirectory() as folder:
        checkpoint.write(Path(folder) / "model", config, tensors)
        texts = [" ".join(rng.choice(words, 3)) for _ in range(400)]
        return Codes.concat([made, Model.load(Path(folder) / "model").encode_keywords(texts)]).values()


def make_keywords(rng: Chance, kind: str, count: int, planes: int, queries: Values) -> Values:
    """Keywords [count, n] of one kind."""
    n, top = queries.shape[1], 2**planes - 1
    if kind == "near" or kind == "opposite":
        return planted(rng, count, planes, queries, 1 if kind == "near" else -1)
    if kind == "one bit":
        base = planted(rng, 1, planes, queries, 1)
        signs = np.repeat(Codes.from_values(base, planes).signs(), count, axis=1)
        signs[rng.integers(0, planes, count), np.arange(count), rng.integers(0, n, count)] ^= True
        return Codes.from_signs(signs).values()
    if kind == "few":
        pool = np.concatenate([planted(rng, 3, planes, queries, 1), odd(rng, (2, n), top)])
        return pool[rng.integers(0, len(pool), count)]
    if kind == "encoded" and n <= ENCODED_N:
        pool = encoded(n, planes)
        return pool[rng.integers(0, len(pool), count)]
    return odd(rng, (count, n), top)


def make_filters(rng: Chance, filters: int, count: int) -> npt.NDArray[np.bool_]:
    """What each filter passes, [filters, count]: as much, more or less than others, or what no other does."""
    kind = rng.choice(("alike", "mixed", "disjoint", "borders"))
    if kind == "disjoint":
        return np.asarray(rng.integers(0, filters, count) == np.arange(filters)[:, None])
    share = np.array([0.0, 1.0, 1 / count, 0.005, FEW, 0.03, 0.3, 0.7])
    passes = rng.random((filters, count)) < rng.choice(share, (1 if kind == "alike" else filters, 1))
    if kind == "borders":
        period = rng.choice((GROUP, BLOCK))
        passes &= (np.arange(count) + 1) % period <= 1
    return passes


def sampled_groups(count: int) -> npt.NDArray[np.bool_]:
    """Which groups of one partition the scan samples: `Work::sample` of scan_work.cpp."""
    state, chosen, word = groups(count), [], (1 << 64) - 1
    for first in range(0, groups(count), SAMPLE):
        state = (state + 0x9E3779B97F4A7C15) & word
        z = ((state ^ state >> 30) * 0xBF58476D1CE4E5B9) & word
        z = ((z ^ z >> 27) * 0x94D049BB133111EB) & word
        chosen.append(first + (z ^ z >> 31) % SAMPLE)
    return np.isin(np.arange(groups(count)), chosen)


def arrange(rng: Chance, order: str, keys: Ints) -> npt.NDArray[np.intp]:
    """A permutation of keywords by their keys [count] for one query."""
    if order == "shuffled":
        return rng.permutation(len(keys))
    worst_first = np.argsort(keys, kind="stable")
    if order == "best last":
        return worst_first
    if order == "best first":
        return worst_first[::-1]
    sampled = np.repeat(sampled_groups(len(keys)), GROUP)[: len(keys)]
    places = np.argsort(sampled if order == "best sampled" else ~sampled, kind="stable")
    out = np.empty(len(keys), np.intp)
    out[places] = worst_first
    return out


def edge_of_sample(count: int) -> int:
    """About the largest k for which the scan trusts its sample (`Searcher::top`)."""
    drawn = int(sampled_groups(count).sum()) * GROUP
    ks = np.arange(1, count + 1)
    expected = ks * drawn / count
    trusted = np.ceil(expected + 3 * np.sqrt(expected) + 3) < drawn // 2
    return int(ks[trusted].max(initial=1))


class Still:
    """Codes, queries and the wanted order of all keywords for each query."""

    def __init__(self, rng: Chance, *, n: int = 0, planes: int = 0, count: int = 0, work: int = WORK) -> None:
        """What is not given is drawn."""
        self.rng = rng
        self.n = n or 64 * int(rng.choice((1, int(rng.integers(1, 17)))))
        self.planes = planes or int(rng.integers(1, 5))
        sizes = (TINY, MEDIUM, LARGE, (*SHARED, STREAMED) if self.n == 64 else LARGE)
        self.count = count or int(rng.choice(sizes[rng.choice(4, p=(0.1, 0.65, 0.18, 0.07))]))
        if self.count > 2 * SMALL:  # threads share batches of some size only
            work *= 8
        size = self.count * self.planes * (self.n // 64)
        asked = int(np.clip(work // size, 3, QUERY_TILE + 40))
        values = make_queries(rng, asked, self.n)
        main, other = rng.choice(KEYWORDS, 2)
        self.order = str(rng.choice(ORDERS))
        self.name = (
            f"n = {self.n}, {self.planes} planes, {self.count} keywords: {main} and {other}, {self.order}"
        )
        few = int(self.count * rng.choice((0.0, 0.02, 0.3)))
        keywords = np.concatenate(
            [
                make_keywords(rng, main, self.count - few, self.planes, values),
                make_keywords(rng, other, few, self.planes, values),
            ]
        )
        own = rng.random(asked) < 0.2
        values[own] = keywords[rng.integers(0, self.count, own.sum())] * rng.choice((-1, 1), (own.sum(), 1))
        codes = Codes.from_values(keywords, self.planes)
        codes = codes[arrange(rng, self.order, score.keys(values[:1], codes)[0])]
        self.codes, self.values = codes, values
        self.keys = score.keys(values, codes)  # [queries, count]
        self.wanted = np.argsort(-self.keys, axis=1, kind="stable")  # [queries, count]: ties by position

    def results(self, backends: dict[str, Backend], asks: int = 4) -> Iterator[tuple[str, int, bool, str]]:
        """(way of answering, queries, whether all answers are right, what was asked)."""
        for _ in range(asks):
            parts, wanted = self._partitions()
            k: int | None = self._k(wanted.shape[1])
            batch = int(self.rng.choice(BATCHES if self.count < STREAMED else (1, RAW_QUERIES)))
            limits, rows, asked = None, list(wanted), ""
            if wanted.shape[1] and self.rng.random() < 0.5:
                parts, limits, rows, asked = self._limited(parts, wanted)
                k = None if self.rng.random() < 0.2 else k
            rows = [row[:k] for row in rows]
            for name, backend in backends.items():
                same = True
                for first in range(0, len(self.values), batch):
                    ours = np.arange(first, min(first + batch, len(self.values)))
                    found = backend.search(
                        parts, self.values[ours], k, None if limits is None else limits.of(ours)
                    )
                    same = same and found.keys.shape[1] == max(len(rows[query]) for query in ours)
                    for query, keys, positions in zip(ours, *found, strict=True):
                        count = len(rows[query])
                        same = same and np.array_equal(positions[:count], rows[query])
                        same = same and np.array_equal(keys[:count], self.keys[query, rows[query]])
                        same = same and not np.any(positions[count:] != -1)
                        same = same and not np.any(keys[count:] != NO_KEY)
                yield name, len(self.values), same, f"{self.name}, k = {k}, batches of {batch}{asked}"

    def _limited(
        self, parts: list[Partition], wanted: Ints
    ) -> tuple[list[Partition], Limits, list[Ints], str]:
        """Partitions with filters, limits of each query, what each may then have in order, and in words."""
        rng, queries = self.rng, len(wanted)
        limits, rows, asked = Limits.none(queries), list(wanted), ", limited by"
        least, behind, filtered = rng.random(3) < 0.6
        if behind:
            last = rng.integers(0, [max(1, len(row)) for row in rows], queries)
            last[rng.random(queries) < 0.2] = wanted.shape[1] - 1
            limits = limits._replace(
                keys=self.keys[np.arange(queries), wanted[np.arange(queries), last]],
                positions=wanted[np.arange(queries), last],
            )
            rows = [row[place + 1 :] for row, place in zip(rows, last, strict=True)]
            asked += " a hit before,"
        if least:
            place = np.minimum(rng.geometric(rng.choice((0.5, 0.05, 0.002)), queries), wanted.shape[1]) - 1
            floors = self.keys[np.arange(queries), wanted[np.arange(queries), place]]
            floors = floors + rng.choice((-1, 0, 0, 1), queries)
            limits = limits._replace(floors=floors)
            rows = [row[self.keys[query, row] >= floors[query]] for query, row in enumerate(rows)]
            asked += " a least key,"
        if filtered:
            flags = make_filters(rng, int(rng.choice((1, 3, queries))), self.count)
            ends = np.cumsum([part.count for part in parts]).tolist()
            parts = [
                part._replace(filters=tuple(masks.from_bools(own[end - part.count : end]) for own in flags))
                for part, end in zip(parts, ends, strict=True)
            ]
            numbers = rng.integers(-1 if rng.random() < 0.5 else 0, len(flags), queries)
            limits = limits._replace(filters=numbers)
            rows = [
                row if number < 0 else row[flags[number][row]]
                for row, number in zip(rows, numbers, strict=True)
            ]
            asked += f" {len(flags)} filters,"
        return parts, limits, rows, asked

    def _k(self, candidates: int) -> int:
        """Small for the most part: for large k everything passes the filter."""
        if self.rng.random() < 0.1:
            return max(1, candidates + int(self.rng.choice((-1, 0, 1))))
        edge = edge_of_sample(self.count) if self.count > SMALL else 40
        edges = (edge // 8, edge // 8 + 1, edge, edge + 1) if self.rng.random() < 0.3 else (1, 2, 5, 10)
        return max(1, int(self.rng.choice(edges)))

    def _partitions(self) -> tuple[list[Partition], Ints]:
        """The codes in one to three partitions, some of them masked; the wanted order of what passes."""
        cuts = np.sort(self.rng.integers(0, self.count + 1, self.rng.choice((0, 0, 1, 2))))
        if self.order in ("best sampled", "best not sampled"):
            cuts = cuts[:0]  # the sample is that of one partition
        keep = self.rng.choice((1.0, 1.0, 0.5, 0.05, 0.0))
        share = np.full(groups(self.count), keep)
        if keep == 0.0:  # groups of which much passes beside groups of which little does
            share = self.rng.choice((0.0, 0.02, 0.3, 0.9), len(share))
        passes = self.rng.random(self.count) < np.repeat(share, GROUP)[: self.count]
        parts = []
        for first, end in zip((0, *cuts), (*cuts, self.count), strict=True):
            mask = None if keep == 1.0 else masks.from_bools(passes[first:end])
            parts.append(Partition(pack(self.codes[first:end]), int(end - first), mask))
        if keep == 1.0:
            return parts, self.wanted
        return parts, self.wanted[passes[self.wanted]].reshape(len(self.wanted), -1)


def cpu_backends(n: int, planes: int, isas: Sequence[str]) -> dict[str, Backend]:
    """Every instruction set, the best one also with several threads."""
    ways = [(isas[0], 3), *((isa, 1) for isa in isas)]
    return {f"{isa} × {threads}": CpuBackend(n, planes, threads=threads, isa=isa) for isa, threads in ways}
