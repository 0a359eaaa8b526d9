"""`python -m torture NAME…`: make attempts and store what they found. See the package for the list."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from pathlib import Path

from torture.limits import Limits, result, store

ATTEMPTS = {  # module → points and seconds that `make torture` gives it
    "powerloss": (100_000, 3600.0),
    "kill": (1_000_000, 3600.0),
    "bitrot": (100_000, 1800.0),
    "salvage": (2_000, 900.0),
    "resources": (20_000, 900.0),
    "fuzz": (10_000_000, 1800.0),
    "exact": (10_000_000, 3600.0),
    "features": (100_000, 1800.0),
    "codes": (1_000_000, 1800.0),
    "frontdoor": (100_000, 1800.0),
    "crowd": (1_000_000, 600.0),
    "soak": (10**9, 3600.0),
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m torture", description=__doc__)
    parser.add_argument("name", nargs="+", choices=[*ATTEMPTS, "all"])
    parser.add_argument("--points", type=int, help="end after this many tries")
    parser.add_argument("--seconds", type=float, help="end after this many seconds")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument(
        "--out", type=Path, help="a file, or a folder for torture-NAME.json (default: stdout)"
    )
    options = parser.parse_args()
    names = list(ATTEMPTS) if "all" in options.name else options.name
    losses = 0
    for name in names:
        points, seconds = ATTEMPTS[name]
        limits = Limits(
            points if options.points is None else options.points,
            seconds if options.seconds is None else options.seconds,
            options.seed,
            options.processes,
        )
        print(f"{name}: at most {limits.points:,} tries, {limits.seconds:,.0f} s", file=sys.stderr)
        found = result(name, limits, importlib.import_module(f"torture.{name}").run)
        losses += found["losses"]
        print(f"{name}: {found['losses']} losses in {found['seconds']:,.0f} s", file=sys.stderr)
        if options.out is None:
            print(json.dumps(found, indent=1))
        else:
            file = options.out.suffix == ".json"
            store(options.out if file else options.out / f"torture-{name}.json", found)
    return 1 if losses else 0


if __name__ == "__main__":
    sys.exit(main())
