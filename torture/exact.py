"""Every kernel and mode against the specification, in worlds that change and in worlds that are hard.

Most worlds are still: codes and queries made to be hard for the kernels, see `worlds`. The others change: an
index of codes that is changed at random (adds of all sizes, replaced ids, deletes, compactions, merges) and a
plain list of what it should hold. After each change some queries are answered in every way:

    exact                 the whole index, by every kernel of this CPU and the emulated one, with one thread
                          and with several
    where, allow, deny    filters of all selectivities
    sharded               the segments dealt out to several backends, their hits merged
    paper, progressive    against Algorithm 1 and the refinement in plain NumPy over the same partitions

and by the kernels of the GPU: on a card (`exact_gpu.py`), and in small worlds under Triton's interpreter. The
wanted hits come from the list and `codes.score` alone, sorted in full. One query answered in one way is one
result; a difference in any id, score key, row or their order is a loss.
"""

from __future__ import annotations

import itertools
import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import numpy.typing as npt

from rbegir._native import available_isas
from rbegir.codes import score
from rbegir.codes.planes import Codes
from rbegir.index.store import Index
from rbegir.search.backend import Backend, Candidates
from rbegir.search.cpu import EMULATED, CpuBackend
from rbegir.search.reference import ReferenceBackend, first_in_order
from torture.history import no_fsync, small_sizes
from torture.limits import Limits, memory
from torture.worlds import Still, cpu_backends

Ints = npt.NDArray[np.int64]
KERNELS = (*available_isas(), *EMULATED)
MOVING = 20  # one world in so many changes; it has many more results than a still one


@dataclass
class Wanted:
    """The contents that the index should have, in the order of rows."""

    codes: npt.NDArray[np.uint64]  # [planes, rows, words], deleted rows included
    ids: Ints  # [rows]
    price: Ints  # [rows], −1: null
    live: npt.NDArray[np.bool_]  # [rows]

    def hits(
        self, values: npt.NDArray[np.int16], n: int, k: int, passes: npt.NDArray[np.bool_]
    ) -> tuple[Ints, ...]:
        """Keys and rows [queries, k] of the best live rows that pass, from the specification."""
        rows = np.flatnonzero(self.live & passes)
        keys = score.keys(values, Codes(np.ascontiguousarray(self.codes[:, rows]), n))  # [queries, rows]
        best = np.array([first_in_order(row, rows, k) for row in keys], np.intp).reshape(len(keys), -1)
        return np.take_along_axis(keys, best, 1), rows[best]


class World:
    """An index, what it should hold, and readers of it by every backend."""

    def __init__(self, folder: Path, rng: np.random.Generator, devices: list[str]) -> None:
        self.rng = rng
        self.small = "interpreter" in devices  # which takes a second for a hundred keywords
        self.n = int(rng.choice((64, 64, 128, 256)))
        self.planes = int(rng.integers(1, 5))
        self.path = folder / "x.rbe"
        self.pool = self._random(int(rng.choice((3, 40, 5000))))  # few different codes: ties abound
        self.index = Index.create(self.path, n=self.n, keyword_planes=self.planes, id_type="int64", threads=1)
        self.wanted = Wanted(
            self.pool[:, :0], np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.bool_)
        )
        self._put(list(range(int(rng.choice((1, 65, 150) if self.small else (1, 63, 64, 65, 700, 2500))))))
        self.readers: dict[str, Index] = {}
        for isa in KERNELS:
            for threads in (1, 3):
                with mock.patch.dict(os.environ, {"RBEGIR_ISA": isa}):
                    self.readers[f"{isa} × {threads}"] = Index.open(
                        self.path, read_only=True, threads=threads
                    )
        for device in devices:
            self.readers[device] = Index.open(self.path, [device, device], read_only=True)

    def close(self) -> None:
        for index in (self.index, *self.readers.values()):
            index.close()

    def change(self) -> None:
        """One random change, to both."""
        kind = self.rng.choice(("put", "put", "replace", "delete", "delete many", "compact"))
        live = np.flatnonzero(self.wanted.live)
        if kind == "put":
            first = len(self.wanted.ids)
            more = int(self.rng.choice((1, 2, 30) if self.small else (1, 2, 30, 400)))
            self._put(list(range(first, first + more)))
        elif kind == "replace" and live.size:
            self._put(self._some_ids(int(self.rng.choice((1, 10, 100)))))
        elif kind in ("delete", "delete many") and live.size:
            gone = self._some_ids(3 if kind == "delete" else live.size // 3)
            self.index.delete(gone)
            self.wanted.live &= ~np.isin(self.wanted.ids, gone)
        else:
            self.index.compact()
        for reader in self.readers.values():
            reader.refresh()

    def results(self) -> Iterator[tuple[str, int, bool]]:
        """(way of answering, queries, whether all answers are right)."""
        count = 1 if self.small else int(self.rng.choice((1, 64, 256)))
        top = int(self.rng.choice((1, 7, 255)))
        values = self.rng.integers(-top, top + 1, (count, self.n)).astype(np.int16)
        k = int(self.rng.choice((1, 10, 100, 5000)))
        allowed = self._some_ids(int(self.rng.choice((1, 20, 500))))
        limit = int(self.rng.choice((0, 1, 50, 97, 100)))
        listed = np.isin(self.wanted.ids, allowed)
        cheap = (self.wanted.price >= 0) & (self.wanted.price < limit)
        everything = np.ones(len(self.wanted.ids), np.bool_)
        questions: list[tuple[str, npt.NDArray[np.bool_], dict[str, Any]]] = [
            ("exact", everything, {}),
            ("where", cheap, {"where": f"price < {limit}"}),
            ("allow", listed, {"allow": allowed}),
            ("deny", ~listed & cheap, {"deny": allowed, "where": f"price < {limit}"}),
        ]
        if "price" not in self.index.info()["attributes"]:  # compaction drops a column without values
            assert not np.any(self.wanted.live & (self.wanted.price >= 0))
            questions = [question for question in questions if "where" not in question[2]]
        for name, passes, options in questions:
            keys, rows = self.wanted.hits(values, self.n, k, passes)
            for reader, index in self.readers.items():
                hits = index.search_codes(values, k, texts=False, attributes=False, **options)
                same = np.array_equal(hits.keys, keys) and np.array_equal(hits.rows, rows)
                same = same and np.array_equal(hits.ids, self.wanted.ids[rows])
                yield f"{name}, {reader}", count, same
        yield from self._sharded(values, k)
        yield from self._lossy(values[:5], min(k, 100))

    def _sharded(self, values: npt.NDArray[np.int16], k: int) -> Iterator[tuple[str, int, bool]]:
        """Segments are dealt out to several backends, and their hits are merged."""
        everything = np.ones(len(self.wanted.ids), np.bool_)
        keys, rows = self.wanted.hits(values, self.n, k, everything)
        snapshot = self.index._state()
        searched, partitions = snapshot.candidates()
        starts = searched.starts
        found: list[Candidates] = []
        for shard in range(3):
            mine = range(shard, len(partitions), 3)
            if not mine:
                continue
            isa = KERNELS[shard % len(KERNELS)]
            part = CpuBackend(self.n, self.planes, threads=1, isa=isa).search(
                [partitions[i] for i in mine], values, k
            )
            own = np.concatenate([np.arange(starts[i], starts[i + 1]) for i in mine])
            theirs = searched.rows(own[part.positions.ravel()])
            found.append(Candidates(part.keys, theirs.reshape(part.positions.shape)))
        merged_keys, merged_rows = _merge(found, len(values), k)
        yield "sharded", len(values), np.array_equal(merged_keys, keys) and np.array_equal(merged_rows, rows)

    def _lossy(self, values: npt.NDArray[np.int16], k: int) -> Iterator[tuple[str, int, bool]]:
        """The modes that may miss: they must miss exactly what the algorithm misses."""
        _, partitions = self.index._state().candidates()
        plain = ReferenceBackend(self.n, self.planes)
        per_thread, queue = int(self.rng.choice((1, 4, 256))), int(self.rng.choice((1, 2)))
        first = int(self.rng.integers(1, self.planes + 1))
        if not partitions:
            return
        published, _ = plain.search_paper(partitions, values, k, per_thread=per_thread, queue=queue)
        refined = plain.search_progressive(partitions, values, k, planes=first)
        for reader, index in self.readers.items():
            hits = index.search_codes(
                values, k, mode="paper", per_thread=per_thread, queue=queue, texts=False, attributes=False
            )
            yield f"paper, {reader}", len(values), np.array_equal(hits.keys, published.keys)
            hits = index.search_codes(values, k, planes=first, texts=False, attributes=False)
            yield f"progressive, {reader}", len(values), np.array_equal(hits.keys, refined.candidates.keys)

    def _random(self, count: int) -> npt.NDArray[np.uint64]:
        shape = (self.planes, count, self.n // 64)
        return self.rng.integers(0, 2**64, shape, dtype=np.uint64)

    def _some_ids(self, count: int) -> list[int]:
        live = self.wanted.ids[self.wanted.live]
        if not live.size:
            return [10**9]
        return [int(key) for key in self.rng.choice(live, min(count, live.size), replace=False)]

    def _put(self, ids: list[int]) -> None:
        planes = self.pool[:, self.rng.integers(0, self.pool.shape[1], len(ids))]
        price = self.rng.integers(-1, 100, len(ids))
        column = [None if p < 0 else int(p) for p in price]
        self.index.add_codes(Codes(np.ascontiguousarray(planes), self.n), ids, {"price": column}, upsert=True)
        was = self.wanted
        self.wanted = Wanted(
            np.concatenate((was.codes, planes), axis=1),
            np.concatenate((was.ids, ids)),
            np.concatenate((was.price, price)),
            np.concatenate((was.live & ~np.isin(was.ids, ids), np.ones(len(ids), np.bool_))),
        )


def _merge(found: list[Candidates], queries: int, k: int) -> tuple[Ints, Ints]:
    """Hits of shards in the total order."""
    if not found:
        return np.zeros((queries, 0), np.int64), np.zeros((queries, 0), np.int64)
    keys = np.concatenate([part.keys for part in found], axis=1)
    rows = np.concatenate([part.positions for part in found], axis=1)
    order = np.lexsort((rows, -keys), axis=1)[:, :k]
    return np.take_along_axis(keys, order, 1), np.take_along_axis(rows, order, 1)


def backends_of(world: Still, devices: list[str]) -> dict[str, Backend]:
    """Everything that can search a still world."""
    found = cpu_backends(world.n, world.planes, KERNELS)
    if devices:
        from rbegir.search.gpu.backend import GpuBackend

        for device in devices:
            name = "cpu" if device == "interpreter" else device
            found[device] = GpuBackend(world.n, world.planes, name)
    return found


def moving(rng: np.random.Generator, devices: list[str], rounds: int) -> Iterator[tuple[str, int, bool, str]]:
    """Results of one world that changes, each with what it is of."""
    with tempfile.TemporaryDirectory(dir=memory()) as folder, small_sizes(), no_fsync():
        world = World(Path(folder), rng, devices)
        for turn in range(3 if world.small else rounds):
            if turn:
                world.change()
            for result in world.results():
                yield *result, f"n = {world.n}, {world.planes} planes, change {turn}"
        world.close()


def still(rng: np.random.Generator, devices: list[str]) -> Iterator[tuple[str, int, bool, str]]:
    """Results of one world that is hard; under the interpreter a small one."""
    if "interpreter" in devices:
        world = Still(rng, n=64 * int(rng.integers(1, 4)), count=int(rng.choice((65, 150))), work=1000)
    else:
        world = Still(rng)
    for way, count, same, asked in world.results(backends_of(world, devices)):
        yield f"still, {way}", count, same, asked


def differ(
    limits: Limits,
    devices: Callable[[int], list[str]],
    note: Callable[[dict[str, Any]], None] | None = None,
    rounds: int = 12,
    share: tuple[int, int] = (0, 1),
) -> dict[str, Any]:
    """Worlds until enough results have been compared.

    `devices` says which GPUs a world uses besides, `share` (first, step) which of the numbered worlds to use.
    """
    end = time.monotonic() + limits.seconds
    seen: Counter[str] = Counter()
    wrong: list[str] = []
    moved = 0
    report: dict[str, Any] = {}
    for worlds, number in enumerate(itertools.count(*share), start=1):
        rng = np.random.default_rng([limits.seed, number])
        moves = number % MOVING == 0
        results = moving(rng, devices(number), rounds) if moves else still(rng, devices(number))
        for way, count, same, where in results:
            seen[way] += count
            if not same:
                wrong.append(f"world {number} ({where}), {way}")
            if wrong or time.monotonic() > end:
                break
        moved += moves
        report = {
            "worlds": worlds,
            "worlds_that_change": moved,
            "results": sum(seen.values()),
            "by_way": dict(sorted(seen.items())),
            "losses": len(wrong),
            "first_losses": wrong,
        }
        if note is not None:
            note(report)
        if wrong or report["results"] >= limits.points or time.monotonic() > end:
            break
    return report


def _share(limits: Limits, first: int) -> dict[str, Any]:
    """One process of `run`. GPU kernels take part in two of a thousand worlds: interpreted, they are slow."""
    return differ(
        limits,
        lambda number: ["interpreter"] if number % 1000 in (20, 21) else [],
        share=(first, limits.processes),
    )


def run(limits: Limits) -> dict[str, Any]:
    """On the CPU, with processes that share the worlds."""
    os.environ["TRITON_INTERPRET"] = "1"
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # of the reference: the processes are enough
    own = replace(limits, points=-(-limits.points // limits.processes))
    with limits.pool() as pool:
        found = list(pool.map(partial(_share, own), range(limits.processes)))
    ways = sum((Counter(part["by_way"]) for part in found), Counter())
    numbers = ("worlds", "worlds_that_change", "results", "losses")
    return {name: sum(part[name] for part in found) for name in numbers} | {
        "by_way": dict(sorted(ways.items())),
        "first_losses": [loss for part in found for loss in part["first_losses"]],
    }
