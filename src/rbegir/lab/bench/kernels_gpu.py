"""The cost and the correctness of every GPU scan, and the published algorithm beside them.

`costs` makes the table by which `search.gpu.dispatch` chooses:

    rbegir bench costs --json > src/rbegir/search/gpu/costs.json

It times scans of random codes with a threshold that nothing passes: popcounts for every number of query
planes, the others for one chunk of queries and for many. How this can mislead: survivors have a cost too,
the largest in `mma`, whose floor lets more of them through.

`equality` compares random searches with the reference, by kernel; shapes are spread over processes, because
compiling takes most of the time. `published` has one row per queue length: `ms` is `mode="paper"`, `exact_ms`
the exact search in turns with it, and recall is counted against the exact top k of the same queries.
"""

import multiprocessing
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from typing import cast

import numpy as np
import numpy.typing as npt
import torch

from rbegir.base import masks
from rbegir.codes.layout import pack
from rbegir.codes.planes import Codes
from rbegir.errors import DeviceError
from rbegir.lab.bench.host import describe_card, in_turns, timed
from rbegir.lab.figures import Json
from rbegir.search.backend import Candidates, Partition
from rbegir.search.gpu import dispatch, tensorcore, words
from rbegir.search.gpu.backend import GpuBackend
from rbegir.search.gpu.card import Batch, Card
from rbegir.search.gpu.device import find_devices
from rbegir.search.gpu.dispatch import Method
from rbegir.search.gpu.replay import Replays
from rbegir.search.gpu.words import SlabSearch
from rbegir.search.paper import SelectionGeometry, plan, queue_heads, thread_of, whole_thread_sizes
from rbegir.search.reference import ReferenceBackend

KEYWORDS = 100_000_000
COST_SHAPES = ((64, 2), (128, 2), (256, 2), (64, 1), (64, 3), (64, 4), (512, 2))
WIDE = ((64, 2),)
POPCOUNT, PRODUCT = ((64, 2), (64, 1)), ((64, 2), (512, 2))


def chosen_gpu(device: str, command: str) -> torch.device:
    """The GPU that a benchmark runs on; it becomes the current one."""
    where = find_devices(device)[0]
    if where.type != "cuda":
        raise DeviceError(f"{command} needs a GPU, got {device!r}")
    torch.cuda.set_device(where)
    return where


def random_words(n: int, planes: int, keywords: int, generator: torch.Generator) -> torch.Tensor:
    """Random codes on the device of a generator: [streams, stride] int32."""
    shape = (words.streams(n, planes), words.stride_of(keywords))
    lanes = torch.empty(shape, dtype=torch.int32, device=generator.device)
    return lanes.random_(-(2**31), 2**31, generator=generator)


def scan_ms(card: Card, piece: SlabSearch, method: Method, top: int, queries: int, rounds: int) -> float:
    """Milliseconds of one scan of random odd queries up to ±top, scaled to 10⁹ keywords."""
    rng = np.random.default_rng(queries)
    values = (2 * rng.integers(0, top + 1, (queries, card.n)) - top).astype(np.int16)
    batch = Batch(values, card.device)
    found = card.survivors(batch, 64)
    limits = torch.tensor([[1 << 44, 1 << 17, 0]], device=card.device).repeat(queries, 1)
    card.force = method
    ms = timed(lambda: card.scan(piece, batch, limits, found), rounds)["ms"]
    return round(ms * 1e9 / piece.slab.count, 3)


def compile_all(device: torch.device) -> None:
    """Compile the CUDA C++ kernels in parallel; one after the other takes a minute."""
    wanted = [
        tensorcore.shape_for(kind, n, planes, wide, queries)
        for queries in (64, 512)
        for wide in (False, True)
        for n, planes in (WIDE if wide else COST_SHAPES)
        for kind in tensorcore.kinds_of(device)
        if tensorcore.fits(kind, n, planes, 255 if wide else 1)
    ]
    capability = torch.cuda.get_device_capability(device)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda shape: tensorcore.cubin(shape, capability), wanted))


def costs(device: str = "cuda", rounds: int = 5, progress: Callable[[str], None] = lambda what: None) -> Json:
    """The whole table, and the card that it was measured on."""
    where = chosen_gpu(device, "bench costs")
    compile_all(where)
    found: dict[str, Json] = {}
    for n, planes in COST_SHAPES:
        name = f"{n}×{planes}"
        keywords = KEYWORDS * 64 // n
        card = Card(n, planes, where)
        lanes = random_words(n, planes, keywords, torch.Generator(device=where).manual_seed(0))
        piece = SlabSearch(words.with_sample(lanes, keywords), 0, None, keywords)
        if (n, planes) in POPCOUNT:
            progress(f"{name} popcount")
            found.setdefault("popcount", {})[name] = [
                scan_ms(card, piece, "popcount", 2**b - 1, 1, rounds) for b in range(1, 9)
            ]
        for wide in (False, True) if (n, planes) in WIDE else (False,):
            methods: list[Method] = ["product"] if (n, planes) in PRODUCT else []
            methods += [kind for kind in card.kinds if tensorcore.fits(kind, n, planes, 255 if wide else 1)]
            for method in methods:
                progress(f"{name} {method}{' wide' if wide else ''}")
                top = 255 if wide else 1 if method == "float8" else 3
                size, many = dispatch.CHUNK[method], 4 if method == "product" else 8
                one, more = (scan_ms(card, piece, method, top, size * chunks, rounds) for chunks in (1, many))
                chunk = max((more - one) / (many - 1), 0.01)
                found.setdefault(method + "/wide" if wide else method, {})[name] = [
                    round(one - chunk, 3),
                    round(chunk, 3),
                ]
        del piece, lanes
        torch.cuda.empty_cache()
    return {"host": describe_card(where), "rounds": rounds, "costs": found}


EQUAL_SHAPES = (  # n, keyword planes, largest query value, odd values only
    (64, 2, 7, True), (64, 2, 255, False), (64, 1, 1, True), (64, 3, 3, True), (64, 4, 15, False),
    (128, 2, 7, True), (192, 3, 31, False), (256, 4, 127, True),
)  # fmt: skip
METHODS = ("popcount", "product", "mma", "wgmma", "float8", "chosen", "paper")
TURNS = 8  # searches of a shape and method
COUNTS = (1, 63, 64, 65, 1000, 1024, 4097, 12_000)


def same(found: Candidates, wanted: Candidates) -> bool:
    return np.array_equal(found.keys, wanted.keys) and np.array_equal(found.positions, wanted.positions)


def compare(task: tuple[str, tuple[int, int, int, bool], str]) -> tuple[str, int, int]:
    """(method, equal searches, searches) of one shape on a device."""
    device, (n, planes, top, odd), method = task
    rng = np.random.default_rng([n, planes, top, METHODS.index(method)])
    reference, equal = ReferenceBackend(n, planes), 0
    for turn in range(TURNS):
        backend = GpuBackend(n, planes, [device] * (1 + turn % 3))
        cards = [worker.card for worker in backend._workers]
        if method in tensorcore.KINDS and not (
            method in cards[0].kinds and tensorcore.fits(method, n, planes, top)
        ):
            return method, 0, 0
        for card in cards if method not in ("chosen", "paper") else ():
            card.force = cast(Method, method)
        counts = rng.choice(COUNTS, rng.integers(1, 4)).tolist()
        codes = [Codes.from_signs(rng.random((planes, count, n)) < 0.5) for count in counts]
        if turn % 3 == 2:  # few different keywords, many ties
            codes = [each[rng.integers(0, min(5, len(each)), len(each))] for each in codes]
        parts = [Partition(pack(each), len(each)) for each in codes]
        if density := (None, 0.5, 0.02, None)[turn % 4]:
            parts = [p._replace(mask=masks.from_bools(rng.random(p.count) < density)) for p in parts]
        queries = int(rng.choice([1, 2] if method in ("popcount", "paper") else [1, 7, 65]))
        odds = 2 * rng.integers(0, top + 1, (queries, n)) - top
        values = (odds if odd else rng.integers(-top, top + 1, (queries, n))).astype(np.int16)
        k = int(rng.choice([1, 10, 100, 1000, 20_000]))
        if method == "paper":
            block = int(rng.choice([32, 100, 256]))
            per_thread, queue = int(rng.choice([1, 3, 16])), int(rng.choice([1, 2, 16]))
            asked = {"per_thread": per_thread, "queue": queue, "block": block}
            found, certificate = backend.search_paper(parts, values, k, **asked)
            wanted, expected = reference.search_paper(parts, values, k, **asked)
            equal += same(found, wanted) and certificate == expected
        else:
            equal += same(backend.search(parts, values, k), reference.search(parts, values, k))
    return method, equal, TURNS


def equality(device: str, processes: int = 12) -> dict[str, dict[str, int]]:
    """{method: {equal, of}} over all shapes."""
    tasks = [(device, shape, method) for shape in EQUAL_SHAPES for method in METHODS]
    result = {method: {"equal": 0, "of": 0} for method in METHODS}
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        for method, equal, of in pool.map(compare, tasks):
            result[method]["equal"] += equal
            result[method]["of"] += of
    return result


PER_THREAD = 256
QUEUES = (1, 2, 8)


def published(
    replays: Replays, pieces: list[SlabSearch], k: int, rounds: int, values: npt.NDArray[np.int16]
) -> list[Json]:
    """A row for each of QUEUES."""
    card = replays.card
    keywords = sum(piece.slab.count for piece in pieces)
    exact = replays.begin(pieces, Batch(values, card.device), k).result()[1]
    one = Batch(values[:1], card.device)
    rows = []
    for queue in QUEUES:
        geometry = SelectionGeometry(per_thread=PER_THREAD, queue=queue)
        wanted = plan(whole_thread_sizes(keywords, PER_THREAD), k, geometry)
        asked = (wanted.length, geometry)
        row: Json = {"keywords": keywords, "k": k, "per_thread": PER_THREAD, "queue": queue}
        calls: list[Callable[[], object]] = [
            partial(replays.begin_queues, pieces, one, *asked),
            partial(replays.begin, pieces, one, k),
        ]
        paper, same = in_turns(calls, rounds, warm=3)
        row |= {**paper, "exact_ms": same["ms"]}
        hits, walls = 0, []
        for query, best in zip(values, exact, strict=True):
            began = time.perf_counter()
            queues = replays.begin_queues(pieces, Batch(query[None], card.device), *asked)
            found = queues.result()[0][1]
            walls.append((time.perf_counter() - began) * 1e3)
            heads = found[queue_heads(thread_of(found, PER_THREAD), queue)]
            hits += len(np.intersect1d(best, heads[:k]))
        expected = wanted.certificate.expected_recall
        row |= {
            "wall_ms": statistics.median(walls),
            "queries": len(values),
            "measured_recall": hits / exact.size,
            "expected_recall": expected,
            "sampling_error": float(np.sqrt(expected * (1 - expected) / exact.size)),
        }
        rows.append(row)
    return rows
