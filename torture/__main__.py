"""`python -m torture NAME…`: make attempts and store what they found. See the package for the list."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from pathlib import Path

from torture.limits import Limits, result, store

ATTEMPTS = {  # name → (module, function, points and seconds that `make torture` gives it)
    "powerloss": ("torture.powerloss", "run", 100_000, 3600.0),
    "kill": ("torture.kill", "run", 1_000_000, 3600.0),
    "bitrot": ("torture.bitrot", "run", 100_000, 1800.0),
    "salvage": ("torture.salvage", "run", 2_000, 900.0),
    "resources": ("torture.resources", "run", 20_000, 900.0),
    "fuzz": ("torture.fuzz", "run", 10_000_000, 1800.0),
    "exact": ("torture.exact", "run", 10_000_000, 3600.0),
    "codes": ("torture.codes", "run", 1_000_000, 1800.0),
    "frontdoor": ("torture.frontdoor", "run", 100_000, 1800.0),
    "crowd": ("torture.crowd", "run", 1_000_000, 600.0),
    "soak": ("torture.soak", "run", 10**9, 3600.0),
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m torture", description=__doc__)
    parser.add_argument("name", nargs="+", choices=[*ATTEMPTS, "all"])
    parser.add_argument("--points", type=int, help="end after so many tries")
    parser.add_argument("--seconds", type=float, help="end after so long")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument(
        "--out", type=Path, help="a file, or a folder for torture-NAME.json (default: stdout)"
    )
    options = parser.parse_args()
    names = list(ATTEMPTS) if "all" in options.name else options.name
    losses = 0
    for name in names:
        module, function, points, seconds = ATTEMPTS[name]
        limits = Limits(
            points if options.points is None else options.points,
            seconds if options.seconds is None else options.seconds,
            options.seed,
            options.processes,
        )
        print(f"{name}: at most {limits.points:,} tries, {limits.seconds:,.0f} s", file=sys.stderr)
        found = result(name, limits, getattr(importlib.import_module(module), function))
        losses += found["losses"]
        print(f"{name}: {found['losses']} losses in {found['seconds']:,.0f} s", file=sys.stderr)
        if options.out is None:
            print(json.dumps(found, indent=1))
        else:
            store(
                options.out / f"torture-{name}.json" if options.out.suffix != ".json" else options.out, found
            )
    return 1 if losses else 0


if __name__ == "__main__":
    sys.exit(main())
