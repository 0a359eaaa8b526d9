"""`exact` on a card: the same worlds, answered by the GPU as well as by the CPU's kernels.

    python -m torture.exact_gpu --seconds 50 --out torture-exact-gpu.json

Needs torch with CUDA, Triton, NumPy, pyarrow and the native module. The result is written after every
world, so that a run that is stopped loses nothing.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from rbegir.lab.bench.host import describe, device_name
from torture.exact import differ
from torture.limits import Limits, store


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=50.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    host = {**describe(("torch", "triton")), "device": device_name(options.device)}

    def note(report: dict[str, Any]) -> None:
        store(options.out, {"attempt": "exact-gpu", "seed": options.seed, **report, "host": host})
        print(f"{report['results']:,} results, {report['losses']} losses", flush=True)

    limits = Limits(points=10**9, seconds=options.seconds, seed=options.seed, processes=1)
    print(json.dumps(differ(limits, lambda world: [options.device], note)["by_way"], indent=1))


if __name__ == "__main__":
    main()
