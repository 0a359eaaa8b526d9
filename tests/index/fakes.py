"""An encoder without a model, and the plainest possible index to compare with."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from rbegir.codes import score
from rbegir.codes.planes import Codes


class HashEncoder:
    """Codes made of a hash of the text: deterministic, and as good as random."""

    def __init__(self, n: int = 64, query_planes: int = 3, keyword_planes: int = 2, seed: str = "") -> None:
        self.n = n
        self.query_planes = query_planes
        self.keyword_planes = keyword_planes
        self.fingerprint = f"hash-{n}-{query_planes}-{keyword_planes}{seed}"

    def encode_queries(self, texts: list[str]) -> Codes:
        return self._encode(texts, self.query_planes)

    def encode_keywords(self, texts: list[str]) -> Codes:
        return self._encode(texts, self.keyword_planes)

    def _encode(self, texts: list[str], planes: int) -> Codes:
        size = self.n // 8
        made = np.zeros((planes, len(texts), self.n // 64), np.uint64)
        for i, text in enumerate(texts):
            for plane in range(planes):
                raw = hashlib.shake_128(f"{plane} {text}".encode()).digest(size)
                made[plane, i] = np.frombuffer(raw, np.uint64)
        return Codes(made, self.n)


class PlainIndex:
    """What an index must do, with a list of dicts and a full sort. Rows are never reused."""

    def __init__(self, encoder: HashEncoder) -> None:
        self.encoder = encoder
        self.live: dict[Any, dict[str, Any]] = {}  # id → record with its row
        self.next_row = 0

    def add(self, texts: list[str], ids: list[Any] | None, attributes: list[dict[str, Any]]) -> list[Any]:
        given = [self.next_row + i for i in range(len(texts))] if ids is None else ids
        for key, text, attribute in zip(given, texts, attributes, strict=True):
            self.live[key] = {"id": key, "text": text, "row": self.next_row, **attribute}
            self.next_row += 1
        return given

    def delete(self, ids: list[Any]) -> int:
        return sum(self.live.pop(key, None) is not None for key in dict.fromkeys(ids))

    def search(self, query: str, k: int, passes: Any = lambda record: True) -> list[tuple[Any, int, int]]:
        """(id, key, row) of the best k by (key descending, row ascending)."""
        found = [record for record in self.live.values() if passes(record)]
        if not found:
            return []
        codes = self.encoder.encode_keywords([record["text"] for record in found])
        keys = score.keys(self.encoder.encode_queries([query]).values(), codes)[0]
        ranked = sorted(
            (-int(key), record["row"], record["id"]) for key, record in zip(keys, found, strict=True)
        )
        return [(key_id, -key, row) for key, row, key_id in ranked[:k]]


def random_codes(count: int, n: int = 64, planes: int = 2, seed: int = 0) -> Codes:
    rng = np.random.default_rng(seed)
    return Codes(rng.integers(0, 2**64, (planes, count, n // 64), dtype=np.uint64), n)
