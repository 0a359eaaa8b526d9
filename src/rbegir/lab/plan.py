"""The fewest machines that hold all keywords and respond in time under a given load.

S shards hold C / S keywords each; R groups of S shards share the load. A shard takes all queries that wait
into one scan, so the batch size B settles where a scan takes as long as B queries take to arrive,

    B = λ · t(B, C/S)      λ = Q / R queries per second and group

or no such B exists up to the largest measured one, and the group is overloaded. A query waits for the scan
under way (at worst all of it), is scanned, S · k candidates are merged, and texts are fetched:

    latency = U·t + t + slowest delay of S + calls + 2 round trips + transfer + merge      U uniform on [0, ρ]

Its simulated 99th percentile must not exceed the requested latency. The search tries S from the smallest that
memory allows upwards, and finds the smallest R for each; the first S·R with the fewest machines is taken.

The binding requirement is the one that saves the most machines when it is dropped (unlimited latency, no
load, unlimited memory). Clients that merge are counted apart, by cores and by network.

*Figures.* Speeds come from committed benchmark results, packaged as `plan_figures.json` (written by
tools/pages.py and kept current by a test). What no benchmark of ours can measure, such as a user's network,
is an assumption: named as one, and an option of the command. A scan of B queries over K keywords takes
t(B, K): linear between measured K, linear in logarithms between measured B, and beyond the largest K along
the last slope.

*Delays.* A search is complete when its slowest shard is. Hedging repeats a request at another replica once it
is later than the 95th percentile, and the first response counts,

    J' = min(J, hedge + T + K)      J, K independent draws of the delay, T the usual response time

which costs five per cent more requests. It is above x if both are: 1 − F'(x) = (1 − F(x)) (1 − F(x − hedge −
T)). The largest of S independent delays is below x with probability F(x)^S, so a draw of it is the quantile
U^(1/S) of one.
"""

import json
import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from importlib import resources
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rbegir.errors import InputError, whole_number
from rbegir.lab.figures import Json

ANSWER_BYTES = 16  # per candidate: its key and its position
LOAD = 0.8  # of the highest rate that a group can sustain
BATCHES = 64  # batch sizes that are tried, in equal steps of their logarithm
MOST = 1_000_000  # machines
# numbers of shards that are tried: the same for all requests, so that more load never needs fewer machines
GRID = [*range(1, 512), *np.geomspace(512, MOST, 762).astype(int).tolist()]
DRAWS = 4000  # searches per simulation
# U of the wait and of the slowest delay: evenly spread, in a random order
ARRIVAL, LATENESS = ((np.random.default_rng(seed).permutation(DRAWS) + 0.5) / DRAWS for seed in (0, 1))
HEDGE_QUANTILE = 0.95
SHARDS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)

Floats = npt.NDArray[np.float64]


@cache
def load() -> Json:
    """The packaged figures: JSON as `tools/plan_figures.py` writes it; a constant is {value, unit, source}.

    machines    [{name, capacity, bandwidth, source, cells: [{batch, keywords: [...], ms: [...]}]}]
    call        ms to request hits from a shard, then their texts; without scan and network
    merge       ns per candidate that a client merges
    spread      quantiles 0 … 1 of how many ms later than usual a shard responds, and their source
    encode      machine → texts per second
    """
    found: Json = json.loads(resources.files("rbegir.lab").joinpath("plan_figures.json").read_text())
    return found


def scan_ms(machine: Json, batch: float, keywords: float) -> float:
    """t(B, K) in ms."""
    batches = [cell["batch"] for cell in machine["cells"]]
    times = [_line(keywords, cell["keywords"], cell["ms"]) for cell in machine["cells"]]
    return math.exp(np.interp(math.log(batch), np.log(batches), np.log(times)))


def _line(x: float, xs: list[float], ys: list[float]) -> float:
    """Linear interpolation, extended along the last piece; below the first x the first y."""
    if x <= xs[-1]:
        return float(np.interp(x, xs, ys))
    slope = (ys[-1] - ys[-2]) / (xs[-1] - xs[-2])
    return ys[-1] + slope * (x - xs[-1])


def slowest(delays: Sequence[float], shards: int, usual_ms: float | None = None) -> Floats:
    """[DRAWS] the largest of `shards` delays in ms, given by their quantiles; hedged if the usual time is."""
    quantiles, grid = np.array(delays, np.float64), np.linspace(0, 1, len(delays))
    drawn = LATENESS ** (1 / shards)
    if usual_ms is None:
        return np.asarray(np.interp(drawn, grid, quantiles))
    again = np.interp(HEDGE_QUANTILE, grid, quantiles) + usual_ms
    x: Floats = np.concatenate([quantiles, quantiles + again])
    x = np.sort(np.concatenate([np.nextafter(x, -np.inf), x]))  # F' may jump: its value before and after
    later = (1 - np.interp(x, quantiles, grid)) * (1 - np.interp(x - again, quantiles, grid))
    return np.asarray(np.interp(drawn, 1 - later, x))


def tails(delays: Sequence[float], usual_ms: float) -> list[Json]:
    """Extra latency of the slowest of several shards over a typical one, without and with hedging."""
    found: list[Json] = []
    for hedged in (False, True):
        for shards in SHARDS:
            p50, p99 = np.quantile(slowest(delays, shards, usual_ms if hedged else None), (0.5, 0.99))
            found.append({"shards": shards, "hedged": hedged, "p50_ms": float(p50), "p99_ms": float(p99)})
    return found


@dataclass(frozen=True)
class Wish:
    """The requirements on a service."""

    keywords: int
    latency_ms: float
    qps: float
    k: int = 1000
    bytes_per_keyword: int = 16
    replicas: int = 1  # copies of every shard, whatever the load
    round_trip_ms: float = 0.2
    network_gbit: float = 25.0
    client_cores: int = 16

    def __post_init__(self) -> None:
        for name in ("keywords", "k", "bytes_per_keyword", "replicas", "client_cores"):
            whole_number(name, getattr(self, name))
        for name in ("latency_ms", "network_gbit"):
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) > 0):
                raise InputError(f"{name} must be a positive number, got {getattr(self, name)!r}")
        for name in ("qps", "round_trip_ms"):
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) >= 0):
                raise InputError(f"{name} must be a number of at least 0, got {getattr(self, name)!r}")


class ImpossibleError(Exception):
    """No number of machines is enough; the message says why."""


class _Try(NamedTuple):
    shards: int
    groups: int
    batch: float
    p50: float
    p99: float
    parts: dict[str, float]  # of the median, in ms
    rho: float

    @property
    def machines(self) -> int:
        return self.shards * self.groups


class Planner:
    """Plans for one kind of machine."""

    def __init__(self, figures: Json, machine: Json) -> None:
        self._figures, self._machine = figures, machine
        self._sizes: list[float] = np.geomspace(1, machine["cells"][-1]["batch"], BATCHES).tolist()

    def option(self, wish: Wish) -> Json:
        """The fewest machines of this kind as JSON values; ImpossibleError if no number is enough.

        `usual_ms` is the usual response time of a shard, `without` the machines needed if a requirement were
        dropped.
        """
        best = self.fewest(wish)
        relaxed = {
            "latency": self.fewest(replace(wish, latency_ms=1e12)),
            "throughput": self.fewest(replace(wish, qps=0.0)),
            "memory": self.fewest(wish, memory=False),
        }
        without = {name: min(best.machines, tried.machines) for name, tried in relaxed.items()}
        binding = min(without, key=lambda name: without[name])
        each = -(-wish.keywords // best.shards)
        return {
            "machine": self._machine["name"],
            "machines": best.machines,
            "shards": best.shards,
            "groups": best.groups,
            "keywords_per_machine": each,
            "memory_bytes_per_machine": each * wish.bytes_per_keyword,
            "batch": round(best.batch, 1),
            "scan_ms": best.parts["scan"],
            "usual_ms": best.parts["scan"] + best.parts["network"],
            "latency_ms": {"p50": best.p50, "p99": best.p99},
            "parts_ms": best.parts,
            "utilisation": best.rho,
            "bound_by": binding if without[binding] < best.machines else "nothing",
            "without": without,
            "clients": self._clients(wish, best.shards),
        }

    def fewest(self, wish: Wish, *, memory: bool = True) -> _Try:
        """The fewest machines; without `memory`, each of them holds any number of keywords."""
        held = self._machine["capacity"]["value"] / wish.bytes_per_keyword if memory else math.inf
        best: _Try | None = None
        late: _Try | None = None  # the fastest that was not in time
        for shards in GRID[bisect_left(GRID, wish.keywords / held) :]:
            most = (MOST if best is None else best.machines - 1) // shards
            if most < wish.replicas:
                break
            tried = self._at(wish, shards, most)
            if tried is None:
                continue
            if tried.p99 > wish.latency_ms:
                late = tried if late is None or tried.p99 < late.p99 else late
                continue
            groups = range(wish.replicas, most)  # more groups are never slower
            place = bisect_left(groups, True, key=lambda r: self._in_time(wish, shards, r))
            best = self._at(wish, shards, wish.replicas + place)
        if best is not None:
            return best
        if late is None:
            raise ImpossibleError("it would take more than a million machines")
        parts = ", ".join(f"{name} {ms:.3g}" for name, ms in late.parts.items())
        take = "1 shard takes" if late.shards == 1 else f"{late.shards} shards take"
        raise ImpossibleError(f"at best, {take} {late.p99:.3g} ms (99th percentile): {parts}")

    def _in_time(self, wish: Wish, shards: int, groups: int) -> bool:
        tried = self._at(wish, shards, groups)
        return tried is not None and tried.p99 <= wish.latency_ms

    def _at(self, wish: Wish, shards: int, groups: int) -> _Try | None:
        """These machines under the load; None if it is more than they can sustain."""
        keywords, rate = wish.keywords / shards, wish.qps / groups / 1e3  # queries per ms

        def busy(batch: float) -> float:
            """The share of the time that scans of so many queries take."""
            return rate * scan_ms(self._machine, batch, keywords) / batch

        place = bisect_left(self._sizes, True, key=lambda batch: busy(batch) <= LOAD)
        if place == len(self._sizes):
            return None
        scan = scan_ms(self._machine, self._sizes[place], keywords)
        transfer = shards * wish.k * ANSWER_BYTES * 8 / (wish.network_gbit * 1e6)
        parts = {
            "waiting": min(1.0, rate * scan) * scan / 2,
            "scan": scan,
            "network": self._figures["call"]["value"] + 2 * wish.round_trip_ms + transfer,
            "merge": shards * wish.k * self._figures["merge"]["value"] / 1e6,
        }
        usual = scan + parts["network"]
        delay = slowest(self._figures["spread"]["quantiles"], shards, usual if groups > 1 else None)
        total = 2 * parts["waiting"] * ARRIVAL + usual + np.maximum(delay, -usual) + parts["merge"]
        p50, p99 = np.quantile(total, (0.5, 0.99)).tolist()
        return _Try(shards, groups, self._sizes[place], p50, p99, parts, busy(self._sizes[-1]))

    def _clients(self, wish: Wish, shards: int) -> dict[str, float]:
        """Machines that send queries and merge hits, by the cores and the network they need."""
        candidates = wish.qps * shards * wish.k  # per second
        cores = candidates * self._figures["merge"]["value"] / 1e9
        gbit = candidates * ANSWER_BYTES * 8 / 1e9
        needed = max(cores / wish.client_cores, gbit / wish.network_gbit) / LOAD
        return {"machines": max(1, math.ceil(needed)), "cores": round(cores, 1), "gbit": round(gbit, 2)}


def plan(wish: Wish, figures: Json | None = None, machine: str | None = None) -> Json:
    """The plan for a request as JSON values: the kind with the fewest machines, and the other kinds."""
    figures = figures or load()
    chosen = [m for m in figures["machines"] if machine in (None, m["name"])]
    if not chosen:
        names = ", ".join(repr(m["name"]) for m in figures["machines"])
        raise InputError(f"machine must be one of {names}, got {machine!r}")
    options: list[Json] = []
    reasons: dict[str, str] = {}
    for kind in chosen:
        try:
            options.append(Planner(figures, kind).option(wish))
        except ImpossibleError as error:
            reasons[kind["name"]] = str(error)
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
        "tails": tails(figures["spread"]["quantiles"], best["usual_ms"]),
        "wish": asdict(wish),
        "constants": constants(wish, figures),
    }


def explain(best: Json) -> str:
    """The plan in a sentence or two."""
    binds = {
        "memory": "memory for the codes is the binding requirement",
        "throughput": "the load is the binding requirement",
        "latency": "the latency is the binding requirement",
        "nothing": "one is enough for every requirement",
    }[best["bound_by"]]
    dropped = ", ".join(
        f"{machines:,} without the {name} requirement" for name, machines in best["without"].items()
    )
    shards = "1 shard" if best["shards"] == 1 else f"{best['shards']:,} shards"
    copies = "1 copy" if best["groups"] == 1 else f"{best['groups']:,} copies"
    return (
        f"{shards} of {best['keywords_per_machine']:,} keywords, {copies} of each: {best['machines']:,} × "
        f"{best['machine']}; {binds} ({dropped}). A scan takes {best['scan_ms']:.3g} ms with "
        f"{best['batch']:g} queries at a time."
    )


def constants(wish: Wish, figures: Json) -> dict[str, Json]:
    """Every number that went in."""
    quantiles = figures["spread"]["quantiles"]
    late = float(np.interp(0.99, np.linspace(0, 1, len(quantiles)), quantiles))
    numbers = {
        "bytes_per_keyword": (
            wish.bytes_per_keyword, "bytes", "rbe_star: 64 dimensions × 2 planes; --bytes-per-keyword",
        ),
        "round_trip": (wish.round_trip_ms, "ms", "assumed: one data centre; --round-trip-ms"),
        "network": (wish.network_gbit, "Gbit/s", "assumed: one network card; --network-gbit"),
        "client_cores": (wish.client_cores, "cores", "assumed: a client machine; --client-cores"),
        "answer_bytes": (ANSWER_BYTES, "bytes", "a candidate is two 64-bit numbers"),
        "load": (LOAD, "share", "chosen: headroom under the largest rate"),
        "hedge_quantile": (HEDGE_QUANTILE, "share", "chosen: when a second replica is asked"),
        "delay_p99": (late, "ms later than usual", figures["spread"]["source"]),
    }  # fmt: skip
    found = {name: dict(zip(("value", "unit", "source"), one, strict=True)) for name, one in numbers.items()}
    found |= {"call": figures["call"], "merge": figures["merge"]}
    for machine in figures["machines"]:
        name, about = machine["name"], "ms for 1e9 keywords and one query"
        found[f"capacity of {name}"] = machine["capacity"]
        found[f"read bandwidth of {name}"] = machine["bandwidth"]
        scan = {"value": scan_ms(machine, 1, 1e9), "unit": about, "source": machine["source"]}
        found[f"scan of {name}"] = scan
    return found | {f"encoding on {name}": rate for name, rate in figures["encode"].items()}
