"""Split a file of pairs by keyword into train.parquet, valid.parquet and, if asked for, test.parquet.

python tools/split_pairs.py clicks.tsv.gz split/ --query-column alias --keyword-column title
"""

from __future__ import annotations

import argparse
import json
import sys

from rbegir.errors import RbegirError
from rbegir.read.pairs import read_pairs
from rbegir.read.split import VALID_SHARE, split_by_keyword


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("pairs")
    parser.add_argument("out")
    parser.add_argument("--query-column", default="query")
    parser.add_argument("--keyword-column", default="keyword")
    parser.add_argument("--valid", type=float, default=VALID_SHARE, help="share of keywords for validation")
    parser.add_argument("--test", type=float, default=0.0, help="share of keywords for testing")
    parser.add_argument("--strict", action="store_true", help="fail at the first bad row")
    args = parser.parse_args()
    try:
        pairs = read_pairs(
            args.pairs,
            query_column=args.query_column,
            keyword_column=args.keyword_column,
            strict=args.strict,
        )
        counts = split_by_keyword(pairs, args.out, valid=args.valid, test=args.test)
    except RbegirError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if pairs.skipped:
        print(f"{args.pairs}: {pairs.skipped}", file=sys.stderr)
    print(json.dumps(counts))
    return 0


if __name__ == "__main__":
    sys.exit(main())
