"""The cost of every GPU scan, and the published algorithm beside the exact one.

`costs` makes the table by which `search.gpu.dispatch` chooses:

    rbegir bench costs --json > src/rbegir/search/gpu/costs.json

It times scans of random codes with a threshold that nothing passes: popcounts for every number of query
planes, the others for one chunk of queries and for many. How this can mislead: survivors have a cost too,
the largest in `mma`, whose floor lets more of them through.

`published` has one row per queue length: `ms` is `mode="paper"`, `exact_ms` the exact search in turns with
it, and recall is counted against the exact top k of the same queries.
"""

import statistics
import time
from collections.abc import Callable
from functools import partial

import numpy as np
import numpy.typing as npt
import torch

from rbegir.errors import DeviceError
from rbegir.lab.bench.host import describe_card, in_turns, timed
from rbegir.lab.figures import Json
from rbegir.search.gpu import dispatch, tensorcore, words
from rbegir.search.gpu.card import Batch, Card
from rbegir.search.gpu.device import find_devices
from rbegir.search.gpu.dispatch import Method
from rbegir.search.gpu.replay import Replays
from rbegir.search.gpu.words import SlabSearch
from rbegir.search.paper import SelectionGeometry, plan, queue_heads, thread_of, whole_thread_sizes

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


def costs(device: str = "cuda", rounds: int = 5, progress: Callable[[str], None] = lambda what: None) -> Json:
    """The whole table, and the card that it was measured on."""
    where = chosen_gpu(device, "bench costs")
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
