"""What recall so many bytes buy: the Binarizer beside its peers, on your vectors.

The truth is the float vectors' own top 10 and top 100 by cosine. Figures a row:

    recall@10, recall@100     the part of the true top k among the k found
    recall@1                  how often the true best is among the 10 found

All methods see the same training rows and the same queries. Peers search with float32 queries; the
Binarizer's are 8-bit integers (and 3-bit in a row of its own), so it is never the one with the finer query.
Sizes count what a method stores for each vector, correction factors included. A budget in bits a dimension
counts dimensions rounded up to a multiple of 64, the unit of a code here, and every peer may use all of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rbegir.bench.host import describe
from rbegir.bench.quantizers import PEERS, Outcome
from rbegir.bench.scorer import top
from rbegir.binarizer.estimator import Binarizer
from rbegir.binarizer.shape import best_shape
from rbegir.binarizer.vectors import as_rows, sample, unit_blocks
from rbegir.codes.planes import WORD
from rbegir.errors import FileError, InputError

Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]
DEPTH = 100
THOROUGH = 8  # times n moves in the thorough row
OURS = ("binarizer", "binarizer_thorough", "binarizer_start", "binarizer_3_planes")
METHODS = (*OURS, *PEERS)
PACKAGES = ("faiss-cpu", "turbovec", "torch")

Report = Callable[[dict[str, Any]], None]


def load(path: Path) -> npt.NDArray[Any]:
    """Vectors from a .npy file, mapped, not read."""
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)  # type: ignore[no-any-return]
    except (OSError, ValueError) as error:
        raise FileError(
            f"cannot read vectors from {path}: {error}", hint="pass a .npy file [count, dims]"
        ) from error


def sizes(dims: int, bits: Sequence[int], byte_budgets: Sequence[int]) -> list[int]:
    """Budgets in bytes a vector, each once, in the order given: bits a dimension first."""
    wide = -(-dims // WORD) * WORD
    return list(dict.fromkeys([wide * b // 8 for b in bits] + list(byte_budgets)))


def measure(
    vectors: Any,
    queries: Any = None,
    *,
    bits: Sequence[int] = (2,),
    byte_budgets: Sequence[int] = (),
    seeds: int = 1,
    methods: Sequence[str] = METHODS,
    query_count: int = 1000,
    train_rows: int = 100_000,
    budget_s: float | None = None,
    report: Report = lambda row: None,
) -> dict[str, Any]:
    """The benchmark's result as JSON values; `report` gets each row as soon as it is known."""
    unknown = sorted(set(methods) - set(METHODS))
    if unknown:
        raise InputError(f"unknown method {unknown[0]!r}", hint=f"methods are {', '.join(METHODS)}")
    began = time.perf_counter()
    every, asked = _split(vectors, queries, query_count)
    truth = top(asked, every, DEPTH)  # [Q, 100]
    rows: list[dict[str, Any]] = []
    shapes: dict[tuple[int, int], tuple[int, int]] = {}  # (bytes, seed) → (n, planes)
    budgets = sizes(every.shape[1], bits, byte_budgets)
    for seed in range(seeds):
        train = sample(every, train_rows, seed)
        for size in budgets:
            for method in methods:
                if budget_s is not None and time.perf_counter() - began > budget_s:
                    break
                for row in _rows(method, train, every, asked, truth, size, seed, shapes):
                    rows.append(row)
                    report(row)
    return {
        "host": describe(PACKAGES),
        "vectors": {
            "count": len(every),
            "dims": every.shape[1],
            "queries": len(asked),
            "train_rows": len(train),
        },
        "cells": rows,
        "summary": summary(rows),
    }


def summary(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """One line a method and size: mean, lowest and highest over seeds."""
    groups: dict[tuple[int, str], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["budget_bytes"], row["method"]), []).append(row)
    return [
        {
            "budget_bytes": size,
            "method": method,
            "bytes": group[0]["bytes"],
            "seeds": len(group),
            **{
                figure: {
                    "mean": float(np.mean([row[figure] for row in group])),
                    "low": min(row[figure] for row in group),
                    "high": max(row[figure] for row in group),
                }
                for figure in ("recall@10", "recall@100", "recall@1")
            },
        }
        for (size, method), group in groups.items()
    ]


def recalls(found: Ids, truth: Ids) -> dict[str, float]:
    """The three figures for hits [Q, ≥ 100] against the truth [Q, 100], both best first."""

    def share(k: int) -> float:
        common = sum(len(np.intersect1d(f[:k], t[:k])) for f, t in zip(found, truth, strict=True))
        return float(common / (len(truth) * min(k, truth.shape[1])))

    first = float(np.mean((found[:, :10] == truth[:, :1]).any(axis=1)))
    return {"recall@10": share(10), "recall@100": share(100), "recall@1": first}


def _split(vectors: Any, queries: Any, count: int) -> tuple[Floats, Floats]:
    """All keywords and the queries; without queries, vectors drawn and taken out are asked."""
    rows = as_rows(vectors, "vectors")
    every = np.concatenate(list(unit_blocks(rows, "vectors")))
    if queries is not None:
        return every, sample(as_rows(queries, "queries", rows.shape[1]), count, 0, "queries")
    if len(every) < 2 * count:
        raise InputError(f"{len(every)} vectors are too few to draw {count} queries from them")
    chosen = np.random.default_rng(0).permutation(len(every))
    return every[np.sort(chosen[count:])], every[chosen[:count]]


def _rows(
    method: str,
    train: Floats,
    every: Floats,
    asked: Floats,
    truth: Ids,
    size: int,
    seed: int,
    shapes: dict[tuple[int, int], tuple[int, int]],
) -> Iterator[dict[str, Any]]:
    common = {"method": method, "budget_bytes": size, "seed": seed}
    if method in OURS:
        yield {**common, **_ours(method, train, every, asked, truth, size, seed, shapes)}
        return
    outcome = PEERS[method](train, every, size, seed)
    if outcome is None:
        return
    yield {
        **common,
        "bytes": outcome.code_bytes + outcome.factor_bytes,
        "code_bytes": outcome.code_bytes,
        "factor_bytes": outcome.factor_bytes,
        "query": "float32",
        "setting": outcome.setting,
        **_peer_recalls(outcome, asked, truth),
        "train_s": outcome.train_s,
        "encode_per_s": len(every) / max(outcome.encode_s, 1e-9),
    }


def _peer_recalls(outcome: Outcome, asked: Floats, truth: Ids) -> dict[str, float]:
    """By the peer's own search, or by inner product or distance to what it decodes: the better of the two."""
    if outcome.search is not None:
        few = slice(outcome.queries)
        return recalls(outcome.search(asked[few], DEPTH), truth[few])
    decoded = outcome.decoded
    assert decoded is not None
    by_distance = -0.5 * np.einsum("ij,ij->i", decoded, decoded)
    both = [recalls(top(asked, decoded, DEPTH, offsets), truth) for offsets in (None, by_distance)]
    return max(both, key=lambda figures: figures["recall@10"])


def _ours(
    method: str,
    train: Floats,
    every: Floats,
    asked: Floats,
    truth: Ids,
    size: int,
    seed: int,
    shapes: dict[tuple[int, int], tuple[int, int]],
) -> dict[str, Any]:
    if (size, seed) not in shapes:
        shapes[size, seed] = best_shape(train, size, seed)
    n, planes = shapes[size, seed]
    options: dict[str, Any] = {
        "binarizer": {},
        "binarizer_thorough": {"moves": THOROUGH * n},
        "binarizer_start": {"rounds": 0},
        "binarizer_3_planes": {"query_planes": 3},
    }[method]
    binarizer = Binarizer(n=n, keyword_planes=planes, seed=seed, **options)
    began = time.perf_counter()
    binarizer.fit(train)
    fitted = time.perf_counter()
    codes = binarizer.encode_keywords(every)
    encoded = time.perf_counter()
    values = codes.values().astype(np.float32)
    values /= np.linalg.norm(values, axis=1, keepdims=True)
    found = top(binarizer.encode_queries(asked).values().astype(np.float32), values, DEPTH)
    return {
        "bytes": n * planes // 8,
        "code_bytes": n * planes // 8,
        "factor_bytes": 0,
        "query": f"{binarizer.query_planes}-bit integers",
        "setting": f"n = {n}, {planes} planes",
        **recalls(found, truth),
        "train_s": fitted - began,
        "encode_per_s": len(every) / (encoded - fitted),
    }
