"""What filters and tenants cost: one per query in a shared scan, in a service, and 10 to 10⁶ tenants.

    python benchmarks/filters.py OUT.json --keywords 1e6

Keywords are random codes of 16 bytes. All sides of a comparison are timed in turns, and ratios are taken
within rounds.

    batch      64 queries with 64 different filters in one call, beside the same queries with one filter.
               "new" filters were never used before, so that they are evaluated too. Those of users look for
               a value each in one column
    service    64 clients in closed loops, each search with a filter of its own, with micro-batching and
               without
    tenants    one search within one tenant that was not searched before ("first") and again ("again"),
               beside a search of all keywords
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import rbegir
from rbegir.codes.planes import Codes
from rbegir.lab.bench.host import describe, milliseconds, spread
from rbegir.lab.bench.load import Ledger, Mix, drive, prepared
from rbegir.lab.bench.scan import N, random_codes
from rbegir.lab.bench.serve import SETTINGS, service

QUERIES, K = 64, 100
ROUNDS = 7
SECONDS = 10.0  # of load per setting and round
USERS = 100_000
TENANTS = (10, 1000, 100_000, 1_000_000)
Json = dict[str, Any]


def drawn(count: int, planes: int, seed: int) -> Codes:
    return random_codes(count, planes, np.random.default_rng(seed))


def build(path: Path, keywords: int, attributes: dict[str, Any], **settings: Any) -> rbegir.Index:
    index = rbegir.Index.create(path, n=N, keyword_planes=2, query_planes=3, **settings)
    index.add_codes(drawn(keywords, 2, 0), attributes=attributes)
    return index


def half(number: int) -> str:
    return f"price >= {number * 1000} and price < {500_000 + number * 1000}"


def batches(index: rbegir.Index) -> list[Json]:
    """A filter per query beside one for all, for filters that pass different shares of the keywords."""
    queries = drawn(QUERIES, 3, 1)
    fresh = iter(range(10**9))  # makes a filter a new one without changing what it passes

    def renewed(where: str) -> str:
        return f"({where}) and price != -{next(fresh) + 2}"

    kinds: dict[str, tuple[Callable[[int], str], Callable[[int], str]]] = {  # a filter, and a new one
        "1 of 64 passes": (lambda number: f"shop = {number}", lambda number: renewed(f"shop = {number}")),
        "half passes": (half, lambda number: renewed(half(number))),
        f"1 of {USERS:,} passes": (
            lambda number: f"user = {number}",
            lambda _: f"user = {QUERIES + next(fresh)}",
        ),
    }
    rows = []
    for name, (kind, new) in kinds.items():
        each = [kind(number) for number in range(QUERIES)]
        calls = {
            "one filter": lambda kind=kind: index.search_codes(queries, k=K, where=kind(7)),
            "64 filters": lambda each=each: index.search_codes(queries, k=K, where=each),
            "one new filter": lambda new=new: index.search_codes(queries, k=K, where=new(7)),
            "64 new filters": lambda new=new: index.search_codes(
                queries, k=K, where=[new(number) for number in range(QUERIES)]
            ),
            "no filter": lambda: index.search_codes(queries, k=K),
        }
        for call in calls.values():
            call()
        times: dict[str, list[float]] = {label: [] for label in calls}
        for _ in range(ROUNDS):
            for label, call in calls.items():
                times[label].append(milliseconds(call))
        pairs = zip(times["64 filters"], times["one filter"], strict=True)
        rows.append(
            {
                "filter": name,
                "ms": {label: spread(own) for label, own in times.items()},
                "ratio": spread([many / one for many, one in pairs]),
            }
        )
        print(json.dumps(rows[-1]), flush=True)
    return rows


def served(path: Path) -> Json:
    """Searches per second when every client has a filter of its own."""
    rng = np.random.default_rng(2)
    searches = []
    for number in range(QUERIES * 8):
        planes = [rng.bytes(8).hex() for _ in range(3)]
        body = {"codes": [planes], "k": 10, "where": f"shop = {number % QUERIES}"}
        searches.append(prepared("POST", "/v1/search", json.dumps(body).encode()))
    mix = Mix(searches, [""] * len(searches), 10, 0.0)
    rates: dict[str, list[float]] = {setting: [] for setting in SETTINGS}
    for number in range(3):
        for setting, options in SETTINGS.items():
            with service(path, *options) as (port, _):
                for seconds in (1.0, SECONDS):  # the first warms up
                    load = drive(port, mix, Ledger(), clients=QUERIES, seconds=seconds, seed=number)
                    tally = asyncio.run(load)
            assert not tally.errors, tally.errors
            rates[setting].append(len(tally.search_ms) / tally.seconds)
    pairs = zip(rates["batched"], rates["unbatched"], strict=True)
    found = {setting: spread(own) for setting, own in rates.items()}
    found["ratio"] = spread([on / off for on, off in pairs])
    print(json.dumps(found), flush=True)
    return found


def tenants(folder: Path, keywords: int) -> list[Json]:
    rows = []
    for count in [number for number in TENANTS if number <= keywords]:
        owner = np.random.default_rng(3).permutation(keywords) % count
        path = folder / f"tenants{count}.rbe"
        with build(path, keywords, {"tenant": owner}, tenant="tenant") as index:
            query = drawn(1, 3, 4)
            index.search_codes(query, k=10)
            asked = np.random.default_rng(5).choice(count, min(count, 40), replace=False).tolist()

            def search(tenant: int | None, index: rbegir.Index = index, query: Codes = query) -> None:
                index.search_codes(query, k=10, tenant=tenant)

            first = [milliseconds(lambda tenant=tenant: search(tenant)) for tenant in asked]
            again = [milliseconds(lambda tenant=tenant: search(tenant)) for tenant in asked]
            whole = [milliseconds(lambda: search(None)) for _ in asked]
        row = {
            "tenants": count,
            "keywords_per_tenant": keywords / count,
            "first_ms": spread(first),
            "again_ms": spread(again),
            "all_ms": spread(whole),
        }
        rows.append(row)
        print(json.dumps(row), flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--keywords", type=lambda text: int(float(text)), default=1_000_000)
    args = parser.parse_args()
    rng = np.random.default_rng(6)
    columns = {
        "shop": rng.integers(0, QUERIES, args.keywords),
        "price": rng.integers(0, 1_000_000, args.keywords),
        "user": rng.integers(0, USERS, args.keywords),
    }
    with tempfile.TemporaryDirectory(prefix="rbegir-bench-") as name:
        folder = Path(name)
        with build(folder / "filters.rbe", args.keywords, columns) as index:
            batch = batches(index)
        result = {
            "host": describe(("starlette", "uvicorn", "pydantic")),
            "keywords": args.keywords,
            "queries": QUERIES,
            "rounds": ROUNDS,
            "batch": batch,
            "service": served(folder / "filters.rbe"),
            "tenants": tenants(folder, args.keywords),
        }
    args.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
