"""Writes the golden index and Binarizers of the current versions: python -m tests.golden.make DIRECTORY

Golden files are committed once for each version of the format and never changed: every later rbegir must
open them and find in them what was found when they were made.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from rbegir.codes.planes import Codes
from rbegir.codes.score import keys
from rbegir.encode.binarizer.binarizer import KIND, Binarizer
from rbegir.index.format import VERSION
from rbegir.index.store import Index


def codes(count: int, planes: int, seed: int) -> Codes:
    """Codes by the arithmetic of splitmix64, the same on any machine for ever."""
    state = np.arange(1, planes * count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(
        seed
    )
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return Codes((state ^ (state >> np.uint64(31))).reshape(planes, count, 1), 64)


def make(path: Path) -> None:
    """Two segments, listed rows, deletes, string ids, nulls, every kind of column."""
    with Index.create(path, n=64, keyword_planes=2, query_planes=3, id_type="string") as index:
        for start, stop in ((0, 70), (70, 100)):
            numbers = range(start, stop)
            attributes = {
                "price": pa.array([None if i % 9 == 0 else i / 4 for i in numbers], pa.float64()),
                "stock": pa.array(list(numbers), pa.int16()),
                "lang": pa.array([None if i % 4 == 3 else ("en", "de", "日本")[i % 3] for i in numbers]),
                "sold": pa.array([i % 2 == 0 for i in numbers]),
                "seen": pa.array([i * 86_400_000 for i in numbers], pa.timestamp("ms", tz="UTC")),
            }
            texts = [f"text {i}" for i in numbers]
            index.add_codes(
                codes(len(numbers), 2, start), [f"id{i}" for i in numbers], attributes, texts=texts
            )
            if stop == 70:
                index.delete([f"id{i}" for i in range(0, 70, 6)])
                index.compact()
        index.delete([f"id{i}" for i in range(1, 100, 10)])


def answers(path: Path) -> dict[str, Any]:
    """What the golden index must answer."""
    with Index.open(path, read_only=True) as index:
        index.verify()
        found: dict[str, Any] = {}
        for name, where in (("all", None), ("filtered", "price < 12.5 and lang = 'en' and not sold")):
            hits = index.search_codes(codes(2, 3, 1000), k=5, where=where)
            found[name] = {
                "ids": hits.ids.tolist(),
                "keys": hits.keys.tolist(),
                "rows": hits.rows.tolist(),
                "texts": [] if hits.texts is None else hits.texts.tolist(),
            }
        found["records"] = index.get(["id0", "id3", "id99"])
        found["keywords"] = len(index)
        loaded: dict[str, Any] = json.loads(json.dumps(found, default=str))
        return loaded


def binarized_vectors() -> np.ndarray:
    """The vectors [600, 6] that golden Binarizers were fitted to; the first eight are encoded in answers."""
    vectors = np.random.default_rng(5).standard_normal((600, 6)).astype(np.float32)
    return vectors * np.geomspace(2, 0.2, 6).astype(np.float32) + np.float32(0.3)


def make_binarizer(path: Path, **params: Any) -> None:
    """A fitted Binarizer, and the codes and scores that it must give for ever."""
    vectors = binarized_vectors()
    binarizer = Binarizer(rounds=2, **params).fit(vectors)
    binarizer.save(path)
    coded = binarizer.encode_keywords(vectors[:8]), binarizer.encode_queries(vectors[:8])
    values = coded[1].values()
    found = {
        "fingerprint": binarizer.fingerprint,
        "keywords": coded[0].planes[:, :, 0].tolist(),
        "queries": coded[1].planes[:, :, 0].tolist(),
        "scores": binarizer.key_scores(values)(keys(values, coded[0])).tolist(),
    }
    (path / "answers.json").write_text(json.dumps(found) + "\n")


if __name__ == "__main__":
    target = Path(sys.argv[1])
    make(target / f"v{VERSION}.rbe")
    (target / f"v{VERSION}.rbe" / "LOCK").unlink()
    expected = json.dumps(answers(target / f"v{VERSION}.rbe"), indent=1, ensure_ascii=False)
    (target / f"v{VERSION}.json").write_text(expected + "\n", encoding="utf-8")
    version = f"binarizer-v{KIND.version}"
    make_binarizer(target / f"{version}-digits", n=64, keyword_planes=2, moves=0)
    make_binarizer(target / f"{version}-bytes", bytes=8, effort="fast")
