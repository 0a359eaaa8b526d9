"""Vectors that nothing here was tuned on: latent semantic analysis of titles, for `vector_sets.py lsa`.

    python benchmarks/lsa_vectors.py titles.txt.gz redirects.tsv.gz OUT [--limit COUNT]

A title is a row of tf-idf weights over its tri-letter grams; the first 256 left singular vectors of all
rows, times their singular values, are the vectors. No training, no pairs: an encoder of 1990, whose spectrum
and neighbourhoods are unlike those of GloVe, CLSM and MiniLM. The titles are those behind the million that
MiniLM is measured on. Files are those of `title_vectors.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

from title_vectors import TITLES, Floats, main

COUNT, DIMS, SEED = 250_000, 256, 0


def analysis(titles: Sequence[str], aliases: Sequence[str]) -> tuple[Floats, Floats]:
    from sklearn.decomposition import TruncatedSVD
    from sklearn.feature_extraction.text import TfidfVectorizer

    weights = TfidfVectorizer(analyzer="char_wb", ngram_range=(3, 3), sublinear_tf=True, min_df=3)
    svd = TruncatedSVD(DIMS, n_iter=4, random_state=SEED)
    keywords = svd.fit_transform(weights.fit_transform(titles))
    return keywords, svd.transform(weights.transform(aliases))


if __name__ == "__main__":
    main(__doc__, analysis, TITLES, COUNT)
