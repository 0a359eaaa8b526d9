"""The fewest machines that hold all keywords and respond in time under a given load.

S shards hold C / S keywords each; R groups of S shards share the load. A shard takes all queries that wait
into one scan, so the batch size B settles where a scan takes as long as B queries take to arrive,

    B = λ · t(B, C/S)      λ = Q / R queries per second and group

or no such B exists up to the largest measured one, and the group is overloaded. A query waits for the scan
under way (at worst all of it), is scanned, S · k candidates are merged, and texts are fetched:

    latency = U·t + t + slowest delay of S + calls + 2 round trips + transfer + merge      U uniform on [0, ρ]

Its 99th percentile, simulated by `plan_figures.tails`, must not exceed the requested latency. The search
tries S from what memory needs upwards and R from 1; the first S·R with the fewest machines is taken.

The binding requirement is the one that saves the most machines when it is dropped (unlimited latency, no
load, unlimited memory). Clients that merge are counted apart, by cores and by network.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from rbegir.base.checks import whole_number
from rbegir.errors import InputError
from rbegir.lab.plan_figures import (
    HEDGE_QUANTILE,
    Constant,
    Figures,
    Floats,
    Machine,
    delays,
    load,
    slowest,
    tails,
)

ANSWER_BYTES = 16  # a candidate: its key and its place
LOAD = 0.8  # of the largest rate that a group could bear
ALL = 512  # every number of shards up to this one is tried,
STEP = 1.01  # then in steps
BATCHES = 64  # batch sizes that are tried, in equal steps of their logarithm
ROUND = 1.2  # of times that only hedging sees
MOST = 1_000_000  # machines


@dataclass(frozen=True)
class Wish:
    """What is asked for."""

    keywords: int
    latency_ms: float
    qps: float
    k: int = 1000
    bytes_per_keyword: int = 16
    replicas: int = 1  # copies of every shard that must be there whatever the load
    round_trip_ms: float = 0.2
    network_gbit: float = 25.0
    client_cores: int = 16
    hedged: bool = True

    def check(self) -> None:
        """Refuse wishes that mean nothing."""
        for name, low in (
            ("keywords", 1), ("k", 1), ("bytes_per_keyword", 1), ("replicas", 1), ("client_cores", 1)
        ):  # fmt: skip
            whole_number(name, getattr(self, name), low)
        for name in ("latency_ms", "network_gbit"):
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) > 0):
                raise InputError(f"{name} must be a positive number, got {getattr(self, name)!r}")
        for name in ("qps", "round_trip_ms"):
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) >= 0):
                raise InputError(f"{name} must be a number of at least 0, got {getattr(self, name)!r}")


class ImpossibleError(Exception):
    """No number of machines helps; says why."""


@dataclass(frozen=True)
class _Try:
    shards: int
    groups: int
    batch: float
    scan_ms: float
    p50: float
    p99: float
    parts: dict[str, float]
    rho: float


@lru_cache(maxsize=256)
def _delays(figures: Figures, usual_ms: float | None) -> Floats:
    """Drawn once for all kinds of machines and all wishes."""
    return delays(figures.spread, usual_ms=usual_ms)


def _grid() -> Iterator[int]:
    """Numbers of shards, ascending. More keywords or load never need fewer machines on it."""
    yield from range(1, ALL)
    shards = ALL
    while True:
        yield shards
        shards = math.ceil(shards * STEP)


class Planner:
    """Plans for one kind of machine."""

    def __init__(self, figures: Figures, machine: Machine) -> None:
        self._figures, self._machine = figures, machine
        self._slowest: dict[tuple[int, float | None], Floats] = {}

    def option(self, wish: Wish) -> dict[str, Any]:
        """The fewest machines of this kind as JSON values; ImpossibleError if no number will do.

        `usual_ms` is the time of a shard's response, `without` the machines if a requirement were dropped.
        """
        best = self._fewest(wish, self._fewest_shards(wish))
        count = best.shards * best.groups
        without = self._without(wish, count)
        saved = {name: count - machines for name, machines in without.items()}
        bound = max(saved, key=lambda name: saved[name]) if max(saved.values()) > 0 else "nothing"
        each = -(-wish.keywords // best.shards)
        return {
            "machine": self._machine.name,
            "machines": count,
            "shards": best.shards,
            "groups": best.groups,
            "keywords_per_machine": each,
            "memory_bytes_per_machine": each * wish.bytes_per_keyword,
            "batch": round(best.batch, 1),
            "scan_ms": best.scan_ms,
            "usual_ms": best.scan_ms + best.parts["network"],
            "latency_ms": {"p50": best.p50, "p99": best.p99},
            "parts_ms": best.parts,  # of the median
            "utilisation": best.rho,
            "bound_by": bound,
            "without": without,
            "clients": self._clients(wish, best),
        }

    def _fewest_shards(self, wish: Wish) -> int:
        return max(1, math.ceil(wish.keywords * wish.bytes_per_keyword / self._machine.capacity.value))

    def _without(self, wish: Wish, count: int) -> dict[str, int]:
        least = self._fewest_shards(wish)
        relaxed = {
            "latency": (replace(wish, latency_ms=1e12), least),
            "throughput": (replace(wish, qps=0.0), least),
            "memory": (wish, 1),
        }
        found: dict[str, int] = {}
        for name, (other, shards) in relaxed.items():
            tried = self._fewest(other, shards)
            found[name] = min(count, tried.shards * tried.groups)
        return found

    def _fewest(self, wish: Wish, least: int) -> _Try:
        """The best of all numbers of shards from `least` on, tried in growing steps."""
        best: _Try | None = None
        reason = "it would take more than a million machines"
        grid = (shards for shards in _grid() if shards >= least)  # the same for all wishes
        while (shards := next(grid)) * wish.replicas <= (MOST if best is None else best.shards * best.groups):
            try:
                fewer = wish.replicas if best is None else (best.shards * best.groups - 1) // shards
                if best is not None and (
                    fewer < wish.replicas or self._bearable(wish, shards, fewer) is None
                ):
                    continue  # it would not be fewer machines than the best so far
                tried = self._groups(wish, shards)
            except ImpossibleError as error:
                reason = str(error)
                floor = self._parts(wish, shards, 1.0, 0.0)
                if floor["network"] + floor["merge"] > wish.latency_ms:
                    break  # more shards only make these larger
            else:
                if best is None or tried.shards * tried.groups < best.shards * best.groups:
                    best = tried
        if best is None:
            raise ImpossibleError(reason)
        return best

    def _groups(self, wish: Wish, shards: int) -> _Try:
        """The fewest groups of this many shards."""
        alone = self._at(wish, shards, 0.0, wish.replicas)
        if alone.p99 > wish.latency_ms:
            raise ImpossibleError(
                f"{shards} shards take {alone.p99:.3g} ms (99th percentile) even without load: "
                + ", ".join(f"{name} {ms:.3g}" for name, ms in alone.parts.items())
            )
        low, high = wish.replicas, wish.replicas
        while (tried := self._bearable(wish, shards, high)) is None:
            low, high = high, high * 2
            if shards * high > 2 * MOST:
                raise ImpossibleError("it would take more than a million machines")
        while low < high:
            middle = (low + high) // 2
            found = self._bearable(wish, shards, middle)
            if found is None:
                low = middle + 1
            else:
                high, tried = middle, found
        return tried

    def _bearable(self, wish: Wish, shards: int, groups: int) -> _Try | None:
        """How these machines do under their share of the load; None if it is too much for them."""
        try:
            tried = self._at(wish, shards, wish.qps / groups, groups)
        except ImpossibleError:
            return None
        return tried if tried.p99 <= wish.latency_ms else None

    def _at(self, wish: Wish, shards: int, rate: float, groups: int) -> _Try:
        keywords = wish.keywords / shards
        batch, scan = self._batch(keywords, rate)
        largest = self._machine.batches[-1]
        rho = rate * self._machine.scan_ms(largest, keywords) / 1e3 / largest
        parts = self._parts(wish, shards, scan, min(1.0, rate * scan / 1e3))
        usual = scan + parts["network"]
        delay = self._delay(shards, usual if wish.hedged and groups > 1 else None)
        wait = 2 * parts["waiting"] * np.random.default_rng(0).random(len(delay))
        total = wait + usual + np.maximum(delay, -usual) + parts["merge"]
        p50, p99 = (float(v) for v in np.quantile(total, (0.5, 0.99)))
        return _Try(shards, groups, batch, scan, p50, p99, parts, rho)

    def _batch(self, keywords: float, rate: float) -> tuple[float, float]:
        """Where the batch size settles, and the time of such a scan in ms."""
        sizes = np.geomspace(1, self._machine.batches[-1], BATCHES).tolist()

        def bears(batch: float) -> bool:
            return rate * self._machine.scan_ms(batch, keywords) / 1e3 <= LOAD * batch

        place = bisect_left(sizes, True, key=bears)  # larger batches bear more
        if place == len(sizes):
            raise ImpossibleError("the load is more than the largest batches can bear")
        return sizes[place], self._machine.scan_ms(sizes[place], keywords)

    def _parts(self, wish: Wish, shards: int, scan: float, busy: float) -> dict[str, float]:
        """Parts of the median latency in ms."""
        transfer = shards * wish.k * ANSWER_BYTES * 8 / (wish.network_gbit * 1e6)
        return {
            "waiting": busy * scan / 2,
            "scan": scan,
            "network": self._figures.call.value + 2 * wish.round_trip_ms + transfer,
            "merge": shards * wish.k * self._figures.merge.value / 1e6,
        }

    def _delay(self, shards: int, usual_ms: float | None) -> Floats:
        """Delays of the slowest shard; the usual time is rounded up a little, so that few are drawn."""
        if usual_ms is not None:
            usual_ms = ROUND ** math.ceil(math.log(usual_ms, ROUND))
        if (shards, usual_ms) not in self._slowest:
            self._slowest[shards, usual_ms] = slowest(_delays(self._figures, usual_ms), shards)
        return self._slowest[shards, usual_ms]

    def _clients(self, wish: Wish, best: _Try) -> dict[str, float]:
        """Machines that ask and merge, by what they need."""
        candidates = wish.qps * best.shards * wish.k  # a second
        cores = candidates * self._figures.merge.value / 1e9
        gbit = candidates * ANSWER_BYTES * 8 / 1e9
        needed = max(cores / wish.client_cores, gbit / wish.network_gbit) / LOAD
        return {"machines": max(1, math.ceil(needed)), "cores": round(cores, 1), "gbit": round(gbit, 2)}


def plan(wish: Wish, figures: Figures | None = None, machine: str | None = None) -> dict[str, Any]:
    """The answer to a wish as JSON values: the kind with the fewest machines, and the others beside it."""
    wish.check()
    figures = figures or load()
    chosen = [m for m in figures.machines if machine in (None, m.name)]
    if not chosen:
        names = ", ".join(repr(m.name) for m in figures.machines)
        raise InputError(f"machine must be one of {names}, got {machine!r}")
    options: list[dict[str, Any]] = []
    reasons: dict[str, str] = {}
    for kind in chosen:
        try:
            options.append(Planner(figures, kind).option(wish))
        except ImpossibleError as error:
            reasons[kind.name] = str(error)
    if not options:
        said = "; ".join(f"{name}: {reason}" for name, reason in reasons.items())
        raise InputError(
            f"no number of machines answers {wish.qps:g} queries/s over {wish.keywords:g} keywords within "
            f"{wish.latency_ms:g} ms: {said}",
            hint="allow more latency, a smaller k or fewer keywords",
        )
    best = min(options, key=lambda option: int(option["machines"]))
    return {
        **{name: best[name] for name in ("machines", "machine", "bound_by", "latency_ms")},
        "memory_bytes": best["machines"] * best["memory_bytes_per_machine"],
        "why": explain(best),
        "options": options,
        "impossible": reasons,
        "tails": [asdict(tail) for tail in tails(figures.spread, best["usual_ms"])],
        "wish": asdict(wish),
        "constants": {name: asdict(constant) for name, constant in constants(wish, figures).items()},
    }


def explain(best: dict[str, Any]) -> str:
    """The answer in a sentence or two."""
    binds = {
        "memory": "memory for the codes is the binding requirement",
        "throughput": "the load is the binding requirement",
        "latency": "the latency is the binding requirement",
        "nothing": "one is enough for every requirement",
    }[best["bound_by"]]
    dropped = ", ".join(
        f"{machines:,} without the {name} requirement" for name, machines in best["without"].items()
    )
    return (
        f"{best['shards']:,} shards of {best['keywords_per_machine']:,} keywords, {best['groups']:,} "
        f"{'copy' if best['groups'] == 1 else 'copies'} of each: {best['machines']:,} × {best['machine']}; "
        f"{binds} ({dropped}). A scan takes {best['scan_ms']:.3g} ms with {best['batch']:g} queries "
        "at a time."
    )


def constants(wish: Wish, figures: Figures) -> dict[str, Constant]:
    """Every number that went in."""
    found = {
        "bytes_per_keyword": Constant(
            wish.bytes_per_keyword, "bytes", "rbe_star: 64 dimensions × 2 planes; --bytes-per-keyword"
        ),
        "round_trip": Constant(wish.round_trip_ms, "ms", "assumed: one data centre; --round-trip-ms"),
        "network": Constant(wish.network_gbit, "Gbit/s", "assumed: one network card; --network-gbit"),
        "client_cores": Constant(wish.client_cores, "cores", "assumed: a client machine; --client-cores"),
        "answer_bytes": Constant(ANSWER_BYTES, "bytes", "a candidate is two 64-bit numbers"),
        "load": Constant(LOAD, "share", "chosen: headroom under the largest rate"),
        "hedge_quantile": Constant(HEDGE_QUANTILE, "share", "chosen: when a second replica is asked"),
        "call": figures.call,
        "merge": figures.merge,
        "delay_p99": Constant(
            float(np.interp(0.99, np.linspace(0, 1, len(figures.spread)), figures.spread)),
            "ms later than usual",
            figures.spread_source,
        ),
    }
    for machine in figures.machines:
        found[f"capacity of {machine.name}"] = machine.capacity
        found[f"read bandwidth of {machine.name}"] = machine.bandwidth
        found[f"scan of {machine.name}"] = Constant(
            machine.scan_ms(1, 1e9), "ms for 1e9 keywords and one query", machine.source
        )
    for name, rate in figures.encode.items():
        found[f"encoding on {name}"] = rate
    return found
