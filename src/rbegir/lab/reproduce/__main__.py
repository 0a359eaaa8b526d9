"""`python -m rbegir.lab.reproduce`: the same as `rbegir reproduce`, for machines without typer.

It makes the runs and results.json; the report needs matplotlib and is made by `rbegir reproduce --report`.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rbegir.errors import RbegirError
from rbegir.lab.reproduce.job import Request, make
from rbegir.lab.reproduce.rows import TABLES


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m rbegir.lab.reproduce", description=__doc__)
    parser.add_argument("tables", nargs="*", default=TABLES)
    parser.add_argument("--rows", action="append", default=[])
    parser.add_argument("--data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("rbegir-tables"))
    parser.add_argument("--seeds", type=int)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--together", type=int, default=1)
    parser.add_argument("--seconds", type=float)
    asked = parser.parse_args()
    values = {**vars(asked), "tables": tuple(asked.tables), "rows": tuple(asked.rows)}
    try:
        make(Request(**values), lambda line: print(line, file=sys.stderr, flush=True))
    except RbegirError as error:
        print(f"error: {error.message}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
