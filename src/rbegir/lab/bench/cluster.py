"""The overhead of a cluster and its behaviour under faults, on one machine with several processes.

    overhead   one shard against an Index in this process, the same queries in turns: the cost of a call
    scaling    one shard with one thread against two, the same work: ideal is half the time; beside them one
               thread and two threads of an Index, which show what two cores of the machine can do
    spread     how much later than usual a shard responds, for the planner's tails
    merge      merging hits, per candidate
    faults     a shard process is killed (SIGKILL) every few seconds under load: every response is
               compared with the right one, and none may be wrong; with two replicas none may fail either

How this can mislead: all processes share one machine's cores, memory bandwidth and loopback network, so
overhead has no wire in it, and clients take cores from shards.
"""

import os
import signal
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from rbegir.cluster.client import Cluster
from rbegir.cluster.gather import ALONG
from rbegir.cluster.session import import_ray
from rbegir.codes.planes import Codes
from rbegir.errors import InputError, RbegirError, whole_number
from rbegir.index.store import Index
from rbegir.lab.bench import host
from rbegir.lab.bench.scan import PLANES, QUERY_PLANES, N, random_codes
from rbegir.lab.figures import Json
from rbegir.search.hits import Hits, merge

QUANTILES = 201
SMALL = 200_000  # keywords of the parts that do not measure the scan
PIECE = 1 << 20  # keywords per add, so that no segments are merged


def make_index(path: Path, keywords: int) -> None:
    """Random codes in at least two equal segments."""
    rng = np.random.default_rng(0)
    with Index.create(path, n=N, keyword_planes=PLANES, query_planes=QUERY_PLANES) as index:
        for part in np.array_split(np.arange(keywords), max(2, -(-keywords // PIECE))):
            index.add_codes(random_codes(len(part), PLANES, rng))


def queries(count: int, seed: int = 1) -> Codes:
    return random_codes(count, QUERY_PLANES, np.random.default_rng(seed))


def same(ours: Hits, theirs: Hits) -> bool:
    """Whether two results are equal in every value."""
    pairs = ((getattr(ours, name), getattr(theirs, name)) for name in ("ids", "keys", "rows", "scores"))
    return all(np.array_equal(a, b) for a, b in pairs) and ours.searched == 1.0


def _times(ways: Sequence[Index | Cluster], codes: Codes, k: int, rounds: int) -> npt.NDArray[np.float64]:
    """Milliseconds [ways, rounds] of a search, in turns."""
    calls = [partial(way.search_codes, codes, k, texts=False) for way in ways]
    return np.array(host.turns(calls, rounds))


def overhead(path: Path, rounds: int) -> Json:
    """Milliseconds of a query with and without a cluster around it; a long list of hits takes two calls."""
    codes = queries(1)
    with Index.open(path, threads=1) as index, Cluster.open(path, devices=1, threads=1) as cluster:
        assert same(cluster.search_codes(codes, 100), index.search_codes(codes, 100))
        alone, around = _times((index, cluster), codes, 100, rounds)
        alone_long, around_long = _times((index, cluster), codes, ALONG + 1, rounds)
    return {
        "index_ms": _median(alone),
        "cluster_ms": _median(around),
        "call_ms": _median(around - alone),
        "two_calls_ms": _median(around_long - alone_long),
    }


def scaling(path: Path, rounds: int, batch: int = 64) -> Json:
    """Milliseconds of one and of two shards with a thread each, and of one process's threads, in turns."""
    codes = queries(batch)
    with (
        Cluster.open(path, devices=2, threads=1) as two,
        Cluster.open(path, devices=1, threads=1) as one,
        Index.open(path, threads=1) as thread,
        Index.open(path, threads=2) as threads,
    ):
        times = _times((one, two, thread, threads), codes, 10, rounds)
    names = ("one_ms", "two_ms", "thread_ms", "threads_ms")
    return {
        "batch": batch,
        "threads_per_shard": 1,
        **{name: _median(own) for name, own in zip(names, times, strict=True)},
        "speedup": _median(times[0] / times[1]),
        "efficiency": _median(times[0] / times[1] / 2),
        "threads_speedup": _median(times[2] / times[3]),
    }


def spread(path: Path, answers: int) -> Json:
    """Quantiles of how much later than usual one shard responds, in ms."""
    codes = queries(1)
    with Cluster.open(path, devices=["cpu"]) as cluster:
        (times,) = _times((cluster,), codes, 100, answers)
    middle = float(np.median(times))
    quantiles = np.quantile(times - middle, np.linspace(0, 1, QUANTILES))
    return {
        "answers": answers,
        "median_ms": middle,
        "over_median_ms": [round(float(q), 5) for q in quantiles],
    }


def merge_cost(rounds: int, shards: int = 16, k: int = 1000) -> Json:
    """Nanoseconds per candidate."""
    rng = np.random.default_rng(2)
    keys = -np.sort(-rng.integers(0, 10**6, (shards, 1, k)), axis=2)
    parts = [
        Hits(ids=place, scores=key.astype(float), keys=key, rows=place)
        for key, place in zip(keys, rng.permutation(shards * k).reshape(shards, 1, k), strict=True)
    ]
    (times,) = host.turns([partial(merge, parts, k)], rounds)
    return _median(np.array(times) * 1e6 / (shards * k))


def faults(
    path: Path, *, replicas: int, seconds: float, every: float, clients: int, progress: host.Progress
) -> Json:
    """Kill shards under load and compare every response with the right one."""
    codes = [queries(4, seed) for seed in range(8)]
    with Index.open(path) as index:
        right = [index.search_codes(code, 50) for code in codes]
    answers: list[tuple[float, bool, str]] = []  # seconds, whether it was right, or the error
    stop, rng = threading.Event(), np.random.default_rng(3)
    with Cluster.open(path, devices=2, replicas=replicas) as cluster, ThreadPoolExecutor(clients) as pool:

        def client(turn: int) -> None:
            while not stop.is_set():
                turn += 1
                start, good, failed = time.monotonic(), False, ""
                try:
                    good = same(cluster.search_codes(codes[turn % 8], 50), right[turn % 8])
                except RbegirError as error:
                    failed = f"{type(error).__name__}: {error.message}"
                answers.append((time.monotonic() - start, good, failed))

        started = [pool.submit(client, number) for number in range(clients)]
        kills, began = 0, time.monotonic()
        try:
            while (now := time.monotonic() - began) < seconds:
                progress(now / seconds, f"kill −9, {replicas} replicas")
                stop.wait(every)
                kills += _kill(cluster, int(rng.integers(2)), int(rng.integers(replicas)))
        finally:
            stop.set()
        for ended in started:
            ended.result()  # raises what no client may raise
    times, _, errors = zip(*answers, strict=True)
    return {
        "replicas": replicas,
        "seconds": round(time.monotonic() - began, 1),
        "kills": kills,
        "asked": len(answers),
        "wrong": sum(not good and not failed for _, good, failed in answers),
        "failed": sum(bool(failed) for failed in errors),
        "errors": dict(Counter(filter(None, errors))),
        "latency_ms": {
            name: round(1e3 * float(np.quantile(times, q)), 2)
            for name, q in (("p50", 0.5), ("p99", 0.99), ("max", 1.0))
        },
    }


def _kill(cluster: Cluster, shard: int, replica: int) -> int:
    """SIGKILL a shard's process; 0 if it is not running."""
    ray = import_ray()
    try:
        about = ray.get(cluster._pool.actor(shard, replica).about.remote(), timeout=10)
    except (ray.exceptions.RayActorError, ray.exceptions.GetTimeoutError):
        return 0
    os.kill(about.pid, signal.SIGKILL)
    return 1


def speed(*, keywords: int = 8_000_000, rounds: int = 30, progress: host.Progress = host.quiet) -> Json:
    """Overhead, scaling, spread and merging; needs a quiet machine."""
    for name, value in (("keywords", keywords), ("rounds", rounds)):
        whole_number(name, value)
    result: Json = {"host": host.describe(("ray",)), "keywords": keywords, "rounds": rounds}
    with tempfile.TemporaryDirectory() as folder:
        small, large = Path(folder) / "small.rbe", Path(folder) / "large.rbe"
        progress(0.0, "making indexes")
        make_index(small, SMALL)
        make_index(large, keywords)
        progress(0.1, "overhead")
        result["overhead"] = overhead(small, 10 * rounds)
        progress(0.3, "scaling")
        result["scaling"] = scaling(large, rounds)
        progress(0.7, "spread")
        result["spread"] = spread(small, 60 * rounds)
    return {**result, "merge_ns": merge_cost(rounds)}


def survival(
    *,
    seconds: float = 120.0,
    every: float = 4.0,
    clients: int = 4,
    progress: host.Progress = host.quiet,
) -> Json:
    """Kills under load, with two replicas and with one, `seconds` each; any machine will do."""
    whole_number("clients", clients)
    if not (seconds > 0 and every > 0):
        raise InputError(f"seconds and every must be more than 0, got {seconds:g} and {every:g}")
    result: Json = {"host": host.describe(("ray",)), "keywords": SMALL}
    with tempfile.TemporaryDirectory() as folder:
        small = Path(folder) / "small.rbe"
        make_index(small, SMALL)
        result["faults"] = [
            faults(small, replicas=replicas, seconds=seconds, every=every, clients=clients, progress=progress)
            for replicas in (2, 1)
        ]
    return result


def _median(values: npt.NDArray[np.float64]) -> dict[str, float]:
    low, middle, high = np.quantile(values, (0.1, 0.5, 0.9)).tolist()
    return {"median": middle, "p10": low, "p90": high}
