"""Vectors that nothing here was tuned on: latent semantic analysis of titles, for `vector_sets.py lsa`.

    python benchmarks/lsa_vectors.py pack --titles titles.txt.gz --redirects redirects.tsv.gz --out PACK
    python benchmarks/lsa_vectors.py make --pack PACK --out VECTORS

A title is a row of tf-idf weights over its tri-letter grams; the first 256 left singular vectors of all
rows, times their singular values, are the vectors. No training, no pairs: an encoder of 1990, whose spectrum
and neighbourhoods are unlike those of GloVe, CLSM and MiniLM. `pack` chooses titles behind the million that
MiniLM is measured on, and an alias of each of 10,000 of them as queries. `make` needs scikit-learn; it
writes `keywords.npy` and `queries.npy` (float16, unit length).
"""

from __future__ import annotations

import json
import lzma
import time
from pathlib import Path

import numpy as np

from title_vectors import choose, command

FIRST, TITLES, DIMS = 1_000_000, 250_000, 256
SEED = 0


def pack(titles: Path, redirects: Path, out: Path) -> None:
    kept, queries = choose(titles, redirects, FIRST, TITLES)
    texts = {"titles": kept, "queries": [alias for alias, _ in queries]}
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_bytes(lzma.compress(json.dumps(texts, ensure_ascii=False).encode(), preset=6))


def make(path: Path, out: Path, limit: int | None) -> None:
    from sklearn.decomposition import TruncatedSVD
    from sklearn.feature_extraction.text import TfidfVectorizer

    began = time.perf_counter()
    texts = json.loads(lzma.decompress(path.read_bytes()))
    weights = TfidfVectorizer(analyzer="char_wb", ngram_range=(3, 3), sublinear_tf=True, min_df=3)
    rows = weights.fit_transform(texts["titles"][:limit])  # [titles, grams], sparse
    print(f"{rows.shape[0]} titles, {rows.shape[1]} grams, {time.perf_counter() - began:.0f} s", flush=True)
    analysis = TruncatedSVD(DIMS, n_iter=4, random_state=SEED)
    out.mkdir(parents=True, exist_ok=True)
    for name, vectors in (
        ("keywords", analysis.fit_transform(rows)),
        ("queries", analysis.transform(weights.transform(texts["queries"]))),
    ):
        length = np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)
        np.save(out / f"{name}.npy", (vectors / length).astype(np.float16))
        print(f"{name}: {vectors.shape}, {time.perf_counter() - began:.0f} s", flush=True)


if __name__ == "__main__":
    command(__doc__, pack, "make", make)
