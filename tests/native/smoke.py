"""What an installed wheel must do with NumPy and pyarrow alone: a program that tools/wheel.py runs.

Builds an index from codes, searches it with every instruction set of this CPU, and compares with the formula.
"""

import importlib.util
import os
import sys
import tempfile
from pathlib import Path

import numpy as np

import rbegir
from rbegir._native import available_isas

assert importlib.util.find_spec("torch") is None, "torch is here, so this shows nothing"
assert Path(rbegir.__file__).is_relative_to(sys.prefix), "this is not the installed wheel"

rng = np.random.default_rng(1)
keywords = rng.choice(np.array([-3, -1, 1, 3], np.int16), (20_000, 64))
queries = rng.choice(np.array([-7, -5, -3, -1, 1, 3, 5, 7], np.int16), (5, 64))
scores = (
    queries @ keywords.T.astype(np.int64) / np.sqrt((keywords.astype(np.int64) ** 2).sum(1))
)  # [5, 20000]
best = np.argsort(-scores, axis=1, kind="stable")[:, :10]

with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "x.rbe"
    with rbegir.Index.create(path, n=64, keyword_planes=2) as index:
        index.add_codes(
            rbegir.Codes.from_values(keywords, 2), texts=[f"keyword {i}" for i in range(len(keywords))]
        )
        index.verify()
    for isa in available_isas():
        os.environ["RBEGIR_ISA"] = isa
        with rbegir.Index.open(path, read_only=True) as index:
            hits = index.search_codes(rbegir.Codes.from_values(queries, 3), 10)
            found = np.take_along_axis(scores, hits.ids.astype(np.int64), 1)
            np.testing.assert_allclose(found, np.take_along_axis(scores, best, 1), rtol=1e-12)
            assert hits.texts[0][0] == f"keyword {hits.ids[0][0]}"

print(f"rbegir {rbegir.__version__} searches with {', '.join(available_isas())}")
