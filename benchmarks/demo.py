"""The figures of `rbegir demo --json` over several seeds.

    python benchmarks/demo.py --out benchmarks/results/demo.json

The sample, the held-out aliases and the settings are those of the demo. `seconds` is the time of a whole run,
on a machine whose load `host` names.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import tempfile
from pathlib import Path
from typing import Any

from rbegir.cli.demo import demo
from rbegir.lab.bench.host import describe

LEFT_OUT = ("queries", "labels")  # the hits that the demo shows, and judgements, of which it has none


def run(seed: int) -> dict[str, Any]:
    """The figures of one demo."""
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()) as printed:
        demo(out=Path(folder), epochs=None, seed=seed, as_json=True)
    return {name: value for name, value in json.loads(printed.getvalue()).items() if name not in LEFT_OUT}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    host, runs = describe(["torch"]), []
    for seed in range(args.seeds):
        runs.append(run(seed))
        print(json.dumps(runs[-1]), flush=True)
    command = f"python benchmarks/demo.py --seeds {args.seeds} --out {args.out.name}"
    result = {"host": host, "command": command, "runs": runs}
    args.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
