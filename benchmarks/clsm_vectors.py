"""Float vectors of a CLSM tower, for `vector_sets.py clsm`.

    python benchmarks/clsm_vectors.py titles.txt.gz redirects.tsv.gz OUT [--limit COUNT]

The tower is the preset m_1 (64 float dimensions), trained with the default recipe on the pairs of all other
titles, on a GPU if there is one. The titles are the first 150,000 in the order of a hash of their text. Files
are those of `title_vectors.py`.
"""

from __future__ import annotations

import gzip

import rbegir
from title_vectors import arguments, choose, write

COUNT = 150_000


def main() -> None:
    args = arguments(__doc__, COUNT)
    titles, queries = choose(args.titles, args.redirects, 0, args.limit)
    held_out = set(titles)
    with gzip.open(args.redirects, "rt") as file:
        pairs = [tuple(line.rstrip("\n").split("\t")) for line in file][1:]
    pairs = [pair for pair in pairs if pair[1] not in held_out]
    model = rbegir.train(pairs, preset="m_1", rerank=False, valid=False)
    keywords = model.embed_keywords(titles)
    write(
        args.out, keywords, model.embed_queries([alias for alias, _ in queries]), [row for _, row in queries]
    )


if __name__ == "__main__":
    main()
