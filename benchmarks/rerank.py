"""The time that reranking adds to a search, one query at a time.

    python benchmarks/rerank.py INDEX QUERIES OUT.json

INDEX has a model with a reranker (`rbegir demo` leaves one), QUERIES is a file of pairs. Searches
with and without reranking take turns; `rerank_ms` is the median difference. A search looks at `candidates`
keywords by code and at up to half as many by words, each once.
"""

from __future__ import annotations

import argparse
import json
import statistics
from functools import partial
from pathlib import Path

import rbegir
from rbegir.base.devices import cpu_count
from rbegir.lab.bench.host import describe, milliseconds
from rbegir.read.pairs import read_pairs

COUNTS = (250, 500, 1000)  # by code
QUERIES = 200


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("index", type=Path)
    parser.add_argument("queries", type=Path)
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    queries = read_pairs(args.queries).read_all()["query"].to_pylist()[:QUERIES]
    rows = []
    with rbegir.Index.open(args.index, read_only=True) as index:
        for count in COUNTS:
            added, whole = [], []
            for number, query in enumerate([*queries[:20], *queries]):
                plain = milliseconds(partial(index.search, query, k=10, rerank=False))
                reranked = milliseconds(partial(index.search, query, k=10, rerank=True, candidates=count))
                if number >= 20:  # the first warm up
                    added.append(reranked - plain)
                    whole.append(reranked)
            rows.append(
                {
                    "candidates": count,
                    "rerank_ms": statistics.median(added),
                    "rerank_ms_quartiles": statistics.quantiles(added, n=4)[::2],
                    "search_ms": statistics.median(whole),
                }
            )
            print(json.dumps(rows[-1]), flush=True)
        keywords = len(index)
    result = {"host": describe(), "keywords": keywords, "threads": cpu_count(), "rows": rows}
    args.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
