"""The fewest machines that hold all keywords and respond in time under a given load.

S shards hold C / S keywords each; R groups of S shards share the load. A shard takes all queries that wait
into one scan, so the batch size B settles where a scan takes as long as B queries take to arrive,

    B = λ · t(B, C/S)      λ = Q / R queries per second and group

or no such B exists up to the largest measured one, and the group is overloaded. A query waits for the scan
under way (at worst all of it), is scanned, S · k candidates are merged, and texts are fetched:

    latency = U·t + t + slowest delay of S + calls + 2 round trips + transfer + merge      U uniform on [0, ρ]

Its simulated 99th percentile must not exceed the requested latency. The search tries S from the smallest that
memory allows upwards, and R from 1; the first S·R with the fewest machines is taken.

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

which costs five per cent more requests. The largest of S independent delays is below x with probability
F(x)^S, so a draw of it is the quantile U^(1/S) of one.
"""

import json
import math
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import cache, lru_cache
from importlib import resources
from typing import Any

import numpy as np
import numpy.typing as npt

from rbegir.errors import InputError, whole_number

ANSWER_BYTES = 16  # per candidate: its key and its position
LOAD = 0.8  # of the highest rate that a group can sustain
ALL = 512  # every number of shards below this one is tried;
STEP = 1.01  # from there on, each is this many times the one before
BATCHES = 64  # batch sizes that are tried, in equal steps of their logarithm
ROUND = 1.2  # ratio of the steps to which the usual response time is rounded for hedging
MOST = 1_000_000  # machines
SAMPLE = 1 << 17  # delays drawn for one shard
DRAWS = 4000  # searches per simulation
HEDGE_QUANTILE = 0.95
SHARDS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Constant:
    """A number and where it comes from."""

    value: float
    unit: str
    source: str


@dataclass(frozen=True, eq=False)
class Machine:
    """A measured kind of machine."""

    name: str
    capacity: Constant  # bytes of codes that it holds
    cells: list[dict[str, Any]]  # by ascending batch: {batch, keywords: [...], ms: [...]}
    bandwidth: Constant
    source: str

    @property
    def largest_batch(self) -> int:
        return int(self.cells[-1]["batch"])

    def scan_ms(self, batch: float, keywords: float) -> float:
        """t(B, K) in ms."""
        batches = [cell["batch"] for cell in self.cells]
        times = [_line(keywords, cell["keywords"], cell["ms"]) for cell in self.cells]
        return math.exp(np.interp(math.log(batch), np.log(batches), np.log(times)))


def _line(x: float, xs: list[float], ys: list[float]) -> float:
    """Linear interpolation, extended along the last piece; below the first x the first y."""
    if x <= xs[-1]:
        return float(np.interp(x, xs, ys))
    slope = (ys[-1] - ys[-2]) / (xs[-1] - xs[-2])
    return ys[-1] + slope * (x - xs[-1])


@dataclass(frozen=True, eq=False)
class Figures:
    """Everything that was measured."""

    machines: tuple[Machine, ...]
    call: Constant  # ms to request hits from a shard, then their texts; without scan and network
    merge: Constant  # ns per candidate that a client merges
    spread: Floats  # quantiles 0 … 1 of how many ms later than usual a shard responds
    spread_source: str
    encode: dict[str, Constant]  # machine → texts per second


@cache
def load() -> Figures:
    """The packaged figures."""
    raw = json.loads(resources.files("rbegir.lab").joinpath("plan_figures.json").read_text())
    return parse(raw)


def parse(raw: dict[str, Any]) -> Figures:
    machines = (
        Machine(
            found["name"],
            Constant(**found["capacity"]),
            found["cells"],
            Constant(**found["bandwidth"]),
            found["source"],
        )
        for found in raw["machines"]
    )
    return Figures(
        tuple(machines),
        Constant(**raw["call"]),
        Constant(**raw["merge"]),
        np.asarray(raw["spread"]["quantiles"], np.float64),
        raw["spread"]["source"],
        {name: Constant(**value) for name, value in raw["encode"].items()},
    )


def delays(quantiles: Floats, *, usual_ms: float | None = None, seed: int = 0) -> Floats:
    """[SAMPLE] ascending delays of one shard in ms; hedged if its usual time is given."""
    rng = np.random.default_rng(seed)
    grid = np.linspace(0, 1, len(quantiles))
    # the same draws with and without hedging, so that the two can be compared
    first, second = (np.interp(rng.random(SAMPLE), grid, quantiles) for _ in range(2))
    if usual_ms is not None:
        hedge = np.interp(HEDGE_QUANTILE, grid, quantiles)
        first = np.minimum(first, hedge + usual_ms + second)
    return np.sort(first)


def slowest(times: Floats, shards: int, *, seed: int = 0, draws: int = DRAWS) -> Floats:
    """[draws] the largest delay of `shards` shards, from the delays of one in ascending order."""
    u = np.random.default_rng((seed, 1)).random(draws) ** (1 / shards)
    return times[(u * len(times)).astype(np.int64)]


def tails(quantiles: Floats, usual_ms: float, *, seed: int = 0) -> list[dict[str, Any]]:
    """Extra latency of the slowest of several shards over a typical one, without and with hedging."""
    found: list[dict[str, Any]] = []
    for hedged in (False, True):
        late = delays(quantiles, usual_ms=usual_ms if hedged else None, seed=seed)
        for shards in SHARDS:
            p50, p99 = np.quantile(slowest(late, shards, seed=seed), (0.5, 0.99)).tolist()
            found.append({"shards": shards, "hedged": hedged, "p50_ms": p50, "p99_ms": p99})
    return found


@dataclass(frozen=True)
class Wish:
    """What a service must achieve."""

    keywords: int
    latency_ms: float
    qps: float
    k: int = 1000
    bytes_per_keyword: int = 16
    replicas: int = 1  # copies of every shard, whatever the load
    round_trip_ms: float = 0.2
    network_gbit: float = 25.0
    client_cores: int = 16
    hedged: bool = True

    def check(self) -> None:
        """Refuse values that make no sense."""
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

    @property
    def machines(self) -> int:
        return self.shards * self.groups


@lru_cache(maxsize=256)
def _delays(figures: Figures, usual_ms: float | None) -> Floats:
    """The delays of one shard, drawn once for all kinds of machines and all requests."""
    return delays(figures.spread, usual_ms=usual_ms)


@lru_cache(maxsize=1024)
def _slowest(figures: Figures, usual_ms: float | None, shards: int) -> Floats:
    return slowest(_delays(figures, usual_ms), shards)


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
        self._sizes: list[float] = np.geomspace(1, machine.largest_batch, BATCHES).tolist()
        self._arrivals = np.random.default_rng(0).random(DRAWS)  # share of the longest wait, per query

    def option(self, wish: Wish) -> dict[str, Any]:
        """The fewest machines of this kind as JSON values; ImpossibleError if no number is enough.

        `usual_ms` is the usual response time of a shard, `without` the machines needed if a requirement were
        dropped.
        """
        best = self._fewest(wish, self._fewest_shards(wish))
        without = self._without(wish, best.machines)
        saved = {name: best.machines - machines for name, machines in without.items()}
        bound = max(saved, key=lambda name: saved[name]) if max(saved.values()) > 0 else "nothing"
        each = -(-wish.keywords // best.shards)
        return {
            "machine": self._machine.name,
            "machines": best.machines,
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
        fewest = {name: self._fewest(other, shards) for name, (other, shards) in relaxed.items()}
        return {name: min(count, tried.machines) for name, tried in fewest.items()}

    def _fewest(self, wish: Wish, least: int) -> _Try:
        """The best of all numbers of shards from `least` on, tried in growing steps."""
        best: _Try | None = None
        reason = "it would take more than a million machines"
        for shards in (shards for shards in _grid() if shards >= least):  # the same grid for all requests
            if shards * wish.replicas > (MOST if best is None else best.machines):
                break
            if best is not None:
                fewer = (best.machines - 1) // shards
                if fewer < wish.replicas or self._under_load(wish, shards, fewer) is None:
                    continue  # it would not be fewer machines than the best so far
            try:
                tried = self._groups(wish, shards)
            except ImpossibleError as error:
                reason = str(error)
                floor = self._parts(wish, shards, 1.0, 0.0)
                if floor["network"] + floor["merge"] > wish.latency_ms:
                    break  # more shards only make these larger
            else:
                if best is None or tried.machines < best.machines:
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
        while (tried := self._under_load(wish, shards, high)) is None:
            low, high = high, high * 2
            if shards * high > 2 * MOST:
                raise ImpossibleError("it would take more than a million machines")
        while low < high:
            middle = (low + high) // 2
            found = self._under_load(wish, shards, middle)
            if found is None:
                low = middle + 1
            else:
                high, tried = middle, found
        return tried

    def _under_load(self, wish: Wish, shards: int, groups: int) -> _Try | None:
        """These machines under their share of the load; None if it is too much for them."""
        try:
            tried = self._at(wish, shards, wish.qps / groups, groups)
        except ImpossibleError:
            return None
        return tried if tried.p99 <= wish.latency_ms else None

    def _at(self, wish: Wish, shards: int, rate: float, groups: int) -> _Try:
        keywords = wish.keywords / shards
        batch, scan = self._batch(keywords, rate)
        largest = self._machine.largest_batch
        rho = rate * self._machine.scan_ms(largest, keywords) / 1e3 / largest
        parts = self._parts(wish, shards, scan, min(1.0, rate * scan / 1e3))
        usual = scan + parts["network"]
        rounded = ROUND ** math.ceil(math.log(usual, ROUND))  # up, so that few sets of delays are drawn
        delay = _slowest(self._figures, rounded if wish.hedged and groups > 1 else None, shards)
        wait = 2 * parts["waiting"] * self._arrivals
        total = wait + usual + np.maximum(delay, -usual) + parts["merge"]
        p50, p99 = (float(v) for v in np.quantile(total, (0.5, 0.99)))
        return _Try(shards, groups, batch, scan, p50, p99, parts, rho)

    def _batch(self, keywords: float, rate: float) -> tuple[float, float]:
        """The batch size in equilibrium, and the time of such a scan in ms."""

        def sustains(batch: float) -> bool:
            return rate * self._machine.scan_ms(batch, keywords) / 1e3 <= LOAD * batch

        place = bisect_left(self._sizes, True, key=sustains)  # larger batches sustain more
        if place == len(self._sizes):
            raise ImpossibleError("the load is more than the largest batches can sustain")
        return self._sizes[place], self._machine.scan_ms(self._sizes[place], keywords)

    def _parts(self, wish: Wish, shards: int, scan: float, busy: float) -> dict[str, float]:
        """Parts of the median latency in ms."""
        transfer = shards * wish.k * ANSWER_BYTES * 8 / (wish.network_gbit * 1e6)
        return {
            "waiting": busy * scan / 2,
            "scan": scan,
            "network": self._figures.call.value + 2 * wish.round_trip_ms + transfer,
            "merge": shards * wish.k * self._figures.merge.value / 1e6,
        }

    def _clients(self, wish: Wish, best: _Try) -> dict[str, float]:
        """Machines that send queries and merge hits, by the cores and the network they need."""
        candidates = wish.qps * best.shards * wish.k  # per second
        cores = candidates * self._figures.merge.value / 1e9
        gbit = candidates * ANSWER_BYTES * 8 / 1e9
        needed = max(cores / wish.client_cores, gbit / wish.network_gbit) / LOAD
        return {"machines": max(1, math.ceil(needed)), "cores": round(cores, 1), "gbit": round(gbit, 2)}


def plan(wish: Wish, figures: Figures | None = None, machine: str | None = None) -> dict[str, Any]:
    """The plan for a request as JSON values: the kind with the fewest machines, and the other kinds."""
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
        "tails": tails(figures.spread, best["usual_ms"]),
        "wish": asdict(wish),
        "constants": {name: asdict(constant) for name, constant in constants(wish, figures).items()},
    }


def explain(best: dict[str, Any]) -> str:
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
