"""Speed of the scans on a GPU beside the card's read bandwidth and what a user would write in torch.

A cell is (keywords, batch, k) over random rbe* codes made on the device. Times are between events on the
device, medians over rounds after a warm-up; `wall_ms` is the caller's wait. The peer is float16 matmul and
topk over vectors of the same dimension, in chunks whose best are merged; of several chunk sizes the fastest
counts. It is measured at the size of the cell: where the vectors do not fit (10⁹ take 128 GB), fewer are held
and read several times. `cases` are the costs of variations over the largest set of keywords that is one slab.
`paper` is the published algorithm, one row per queue length: `ms` is the exact search for the `length` best
from which `mode="paper"` is derived, `exact_ms` the one for k in turns with it, and recall is counted against
the exact top k of the same queries.

`costs` makes the table by which `search.gpu.dispatch` chooses:

    rbegir bench costs --json > src/rbegir/search/gpu/costs.json

It times scans of random codes with a threshold that nothing passes: popcounts for every number of query
planes, the others for one chunk of queries and for many.

How this can mislead: codes are random, so hits are spread evenly and the first threshold comes from a good
sample; the peer is exact in float16, whose ties and rounding differ; in `costs`, survivors have a cost too,
the largest in `mma`, whose floor lets more of them through.
"""

import ctypes
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product

import numpy as np
import numpy.typing as npt
import torch

from rbegir.errors import DeviceError
from rbegir.lab.bench.host import Progress, describe_card, in_turns, milliseconds, quiet, timed
from rbegir.lab.bench.scan import PLANES, QUERY_PLANES, N, ScanGrid, random_queries
from rbegir.lab.figures import Json
from rbegir.search.gpu import dispatch, tensorcore, words
from rbegir.search.gpu.card import Batch, Card
from rbegir.search.gpu.device import MAX_SLAB, Residency, find_devices
from rbegir.search.gpu.dispatch import Method
from rbegir.search.gpu.proof import Pending
from rbegir.search.gpu.replay import Replays
from rbegir.search.gpu.words import SlabSearch, with_sample
from rbegir.search.paper import plan, select_paper, whole_thread_sizes
from rbegir.search.partition import Candidates, Values

KEYWORDS = 100_000_000  # of a scan in the table of costs
COST_SHAPES = ((64, 2), (128, 2), (256, 2), (64, 1), (64, 3), (64, 4), (512, 2))
WIDE = ((64, 2),)
POPCOUNT, PRODUCT = ((64, 2), (64, 1)), ((64, 2), (512, 2))
PER_THREAD, QUEUES = 256, (1, 2, 8)  # of the published algorithm
PEER_MEMORY = 0.55  # of the card, for the vectors of the peer
PEER_CHUNKS = (1 << 26, 1 << 29, 1 << 31)  # scores that it makes at once: the fastest is taken,
PEER_TRIAL = 1 << 26  # measured on this many vectors
PEER_MOST = 2_000_000_000  # keywords: with more, the peer would take most of the time
CASES: list[tuple[str, Json]] = [
    *((f"{planes} query planes", {"planes": planes}) for planes in range(1, 9)),
    *((f"{planes} query planes", {"planes": planes, "batch": 256}) for planes in (1, 2, 4, 7, 8)),
    *((f"top {k}", {"k": k}) for k in (10, 100, 10_000, 100_000)),
    *((f"top {k}", {"k": k, "batch": 256}) for k in (10, 10_000)),
    *((f"batch of {batch}", {"batch": batch}) for batch in (2, 3, 4, 16, 32, 128, 512)),
    *(
        (f"a filter that keeps {share} %", {"batch": batch, "density": share / 100})
        for share in (1, 10, 50)
        for batch in (1, 64)
    ),
]
READ = r"""
struct Reading { const uint4* from; long long count; unsigned* out; };
extern "C" __global__ void __launch_bounds__(512) read_all(const Reading a) {
  long long step = (long long)gridDim.x * 512, i = (long long)blockIdx.x * 512 + threadIdx.x;
  unsigned x = 0;
  for (; i + 3 * step < a.count; i += 4 * step)
    for (int j = 0; j < 4; j++) { uint4 v = __ldcs(a.from + i + j * step); x ^= v.x ^ v.y ^ v.z ^ v.w; }
  if (x == 0x12345678u) a.out[0] = x;  // so that nothing is optimised away
}
"""


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


class _Reading(ctypes.Structure):
    _fields_ = (("from", ctypes.c_void_p), ("count", ctypes.c_int64), ("out", ctypes.c_void_p))


def read_ms(pieces: Sequence[SlabSearch], rounds: int) -> float:
    """Milliseconds to read all codes once: the floor of a search."""
    capability = torch.cuda.get_device_capability()
    kernel = tensorcore.Kernel(
        tensorcore.compile_cubin(READ, f"sm_{capability[0]}{capability[1]}", []), "read_all", 0
    )
    out = torch.zeros(4, dtype=torch.int32, device="cuda")
    processors = torch.cuda.get_device_properties(0).multi_processor_count
    arguments = [
        _Reading(piece.slab.words.data_ptr(), piece.slab.words.numel() // 4, out.data_ptr())
        for piece in pieces
    ]

    def read(blocks: int) -> None:
        for argument in arguments:
            kernel.launch(processors * blocks, 512, argument)

    return min(timed(lambda blocks=blocks: read(blocks), rounds)["ms"] for blocks in (4, 8, 16))  # type: ignore[misc]


def random_pieces(keywords: int, device: torch.device) -> list[SlabSearch]:
    """Random codes made on the device, in slabs."""
    pieces, base = [], 0
    generator = torch.Generator(device=device).manual_seed(1)
    slabs = -(-keywords // MAX_SLAB)
    for slab in range(slabs):
        count = keywords // slabs + (slab < keywords % slabs)
        lanes = random_words(N, PLANES, count, generator)
        pieces.append(SlabSearch(with_sample(lanes, count), base, None, count))
        base += count
    return pieces


def check_room(keywords: int, device: torch.device) -> None:
    """Refuse to start with more keywords than the card holds."""
    fit = Residency(N, PLANES, device).fits(keywords)
    if fit < keywords:
        raise DeviceError(
            f"{keywords:,} keywords do not fit into the memory of {device}: {fit:,} do",
            hint=f"--keywords {fit} or fewer",
        )


def filtered(piece: SlabSearch, density: float) -> SlabSearch:
    """A slab of which only a random share of the keywords are candidates."""
    count, device = piece.slab.count, piece.slab.words.device
    mask = torch.zeros(-(-count // 32), dtype=torch.int32, device=device)
    generator = torch.Generator(device=device).manual_seed(2)
    candidates = 0
    for bit in range(32):
        chosen = torch.rand(mask.shape, device=device, generator=generator) < density
        chosen &= torch.arange(bit, bit + 32 * len(mask), 32, device=device) < count
        candidates += int(chosen.sum())
        mask |= chosen.int() << bit
    return piece._replace(mask=mask, candidates=candidates)


def cell(
    replays: Replays, pieces: list[SlabSearch], batch: int, k: int, rounds: int, planes: int = QUERY_PLANES
) -> Json:
    """One measured search."""
    card = replays.card
    keywords, candidates = (
        sum(each) for each in zip(*((p.slab.count, p.candidates) for p in pieces), strict=True)
    )
    queries = Batch(random_queries(batch, planes), card.device)
    k = min(k, candidates)

    def search() -> Pending:
        return replays.begin(pieces, queries, k)

    timing = timed(search, rounds, warm=3)  # compiled, captured, replayed
    pending = search()
    counts = pending.found.counts[:batch].float()
    torch.cuda.synchronize()
    walls = [
        milliseconds(lambda: replays.begin(pieces, Batch(queries.host, card.device), k).result())
        for _ in range(max(1, rounds // 2))
    ]
    return {
        "backend": f"cuda/{card.method(queries)}",
        "keywords": keywords,
        "batch": batch,
        "k": k,
        "threads": 1,
        "query_planes": planes,
        **timing,
        "wall_ms": statistics.median(walls),
        "queries_per_s": batch / timing["ms"] * 1e3,
        "survivors": float(counts.mean()),
        "repaired": int(((counts < k) | (counts > pending.found.positions.shape[1])).sum()),
        "peers": {},
        "ratios": {},
    }


def add_peers(cells: list[Json], keywords: int, device: torch.device, rounds: int) -> None:
    """Add the milliseconds of matmul and topk in torch to the cells of one number of keywords."""
    most = int(PEER_MEMORY * torch.cuda.get_device_properties(device).total_memory) // (2 * N)
    turns = -(-keywords // most)
    vectors = torch.randn(keywords // turns, N, device=device, dtype=torch.float16)
    for measured in cells:
        batch, k = measured["batch"], measured["k"]
        queries = torch.randn(batch, N, device=device, dtype=torch.float16)

        trial = vectors[:PEER_TRIAL]
        steps = sorted({max(2 * k, scores // batch) for scores in PEER_CHUNKS})
        times = in_turns([partial(topk, queries, trial, k, step) for step in steps], 2)
        step = steps[min(range(len(steps)), key=lambda tried: times[tried]["ms"])]

        def search(queries: torch.Tensor = queries, k: int = k, step: int = step) -> None:
            for _ in range(turns):
                topk(queries, vectors, k, step)

        ms = timed(search, rounds)["ms"]
        measured["peers"]["torch_float16_topk"] = ms
        measured["torch_chunk"] = step
        measured["ratios"]["torch_float16_topk"] = ms / measured["ms"]


def topk(
    queries: torch.Tensor, vectors: torch.Tensor, k: int, step: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Scores and rows [queries, k] of the best vectors, from chunks of `step` vectors."""
    scores = queries.new_empty(len(queries), 0)
    rows = torch.empty(len(queries), 0, dtype=torch.int64, device=queries.device)
    for start in range(0, len(vectors), step):
        chunk = vectors[start : start + step]
        best = torch.topk(queries @ chunk.T, min(k, len(chunk)), dim=1)
        scores, rows = torch.cat([scores, best.values], 1), torch.cat([rows, best.indices + start], 1)
        if scores.shape[1] > k:
            scores, kept = torch.topk(scores, k, dim=1)
            rows = rows.gather(1, kept)
    return scores, rows


def published(
    replays: Replays, pieces: list[SlabSearch], k: int, rounds: int, values: npt.NDArray[np.int16]
) -> list[Json]:
    """A row for each of QUEUES."""
    device = replays.card.device

    def search(values: Values, k: int) -> Candidates:
        return Candidates(*replays.begin(pieces, Batch(values, device), k).result())

    keywords = sum(piece.slab.count for piece in pieces)
    sizes = whole_thread_sizes(keywords, PER_THREAD)
    exact = search(values, k).positions
    one = Batch(values[:1], device)
    rows = []
    for queue in QUEUES:
        length = plan(sizes, k, PER_THREAD, queue).length
        row: Json = {"keywords": keywords, "k": k, "per_thread": PER_THREAD, "queue": queue, "length": length}
        calls = [partial(replays.begin, pieces, one, best) for best in (length, k)]
        paper, same = in_turns(calls, rounds, warm=3)
        row |= {**paper, "exact_ms": same["ms"]}
        hits, walls = 0, []
        for query, best in zip(values, exact, strict=True):
            began = time.perf_counter()
            found, certificate = select_paper(search, sizes, query[None], k, PER_THREAD, queue)
            walls.append((time.perf_counter() - began) * 1e3)
            hits += len(np.intersect1d(best, found.positions))
        expected = certificate.expected_recall
        row |= {
            "wall_ms": statistics.median(walls),
            "queries": len(values),
            "measured_recall": hits / exact.size,
            "expected_recall": expected,
            "sampling_error": float(np.sqrt(expected * (1 - expected) / exact.size)),
        }
        rows.append(row)
    return rows


def cases(
    replays: Replays, pieces: list[SlabSearch], rounds: int, report: Callable[[str], None]
) -> list[Json]:
    """The cost of every variation in CASES; `case` names it."""
    measured = []
    for name, wanted in CASES:
        report(name)
        density = wanted.get("density", 1.0)
        searched = pieces if density == 1 else [filtered(piece, density) for piece in pieces]
        batch, k, planes = wanted.get("batch", 1), wanted.get("k", 1000), wanted.get("planes", QUERY_PLANES)
        measured.append({"case": name, **cell(replays, searched, batch, k, rounds, planes)})
    return measured


def run(grid: ScanGrid, progress: Progress = quiet) -> Json:
    """All cells; with `peers` also the peer, the published algorithm and the variations."""
    keywords, peers, rounds = grid.keywords, grid.peers, grid.rounds
    where = chosen_gpu(grid.device, "bench scan")
    check_room(max(keywords), where)
    replays = Replays(Card(N, PLANES, where))
    cells: list[Json] = []
    papers: list[Json] = []
    result: Json = {
        "command": " ".join(["rbegir", *sys.argv[1:]]),
        "host": describe_card(where),
        "rounds": rounds,
        "cells": cells,
        "cases": [],
        "paper": papers,
    }
    widest = max((count for count in keywords if count <= MAX_SLAB), default=0)
    total = len(keywords) * len(grid.batches) * len(grid.ks)

    def show(what: str) -> None:
        progress(len(cells) / total, what)

    for count in keywords:
        show(f"{count:,} keywords: preparing")
        pieces = random_pieces(count, where)
        floor = read_ms(pieces, rounds)
        for batch, k in product(grid.batches, grid.ks):
            show(f"{count:,} keywords, batch {batch}, top {k}")
            measured = cell(replays, pieces, batch, k, rounds)
            measured["read_gb_per_s"] = count * 16 / floor / 1e6
            measured["bandwidth_fraction"] = floor / measured["ms"] if batch == 1 else None
            cells.append(measured)
        if peers and count >= 1_000_000:
            show(f"{count:,} keywords: the published algorithm")
            papers += published(replays, pieces, 1000, rounds, random_queries(64))
        if peers and count == widest:
            result["cases"] = cases(replays, pieces, rounds, show)
        replays.clear()
        del pieces
        torch.cuda.empty_cache()
        if peers and count <= PEER_MOST:
            own = [measured for measured in cells if measured["keywords"] == count]
            add_peers(own, count, where, min(rounds, 3))
            torch.cuda.empty_cache()
    return result


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


def costs(device: str = "cuda", rounds: int = 5, progress: Callable[[str], None] = lambda what: None) -> Json:
    """The whole table, and the card that it was measured on."""
    where = chosen_gpu(device, "bench costs")
    found: dict[str, Json] = {}
    for n, planes in COST_SHAPES:
        name = f"{n}×{planes}"
        keywords = KEYWORDS * 64 // n
        card = Card(n, planes, where)
        lanes = random_words(n, planes, keywords, torch.Generator(device=where).manual_seed(0))
        piece = SlabSearch(with_sample(lanes, keywords), 0, None, keywords)
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
