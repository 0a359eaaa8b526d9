"""Recall per byte: the Binarizer beside its peers, on your vectors.

The truth is the float vectors' own top 10 and top 100 by cosine:

    recall@10, recall@100     share of the true top k among the k found
    recall@1                  how often the true best is among the 10 found

All methods see the same training rows and queries. By default they learn from rows that are not searched,
because large codebooks would memorise them. Each seed draws rows and queries anew. The summary has the mean
over seeds, its range, the half-width of its 95 % interval (Student's t), and the lead of the Binarizer over
each peer. `quantizers` says what peers store and how they are scored; the Binarizer searches with 8-bit (or
3-bit) integers (`binarizer_reranked`: then a few hundred candidates with float32 queries). A budget in bits
per dimension rounds dimensions up to a multiple of 64.

With `out`, the result is written after every row. Methods whose rows the file holds are not measured again,
so a stopped run resumes, and sizes or seeds can be added on another machine (`hosts` lists them).
"""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rbegir.base import disk
from rbegir.codes.planes import WORD
from rbegir.encode.binarizer.vectors import as_rows, sample, unit_blocks
from rbegir.errors import FileError, InputError
from rbegir.lab.bench.host import Progress, describe, quiet
from rbegir.lab.bench.quantizers import BEAMS, PEERS, Outcome, binarized, top
from rbegir.lab.figures import Json, Stat
from rbegir.search.partition import recall_of

Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]
DEPTH = 100
OURS: dict[str, Json] = {  # options of the Binarizer, which chooses its shape by itself
    "binarizer": {},
    "binarizer_reranked": {"rerank": True},
    "binarizer_patient": {"effort": "best"},
    "binarizer_quick": {"effort": "fast"},
    "binarizer_start": {"rounds": 0},
    "binarizer_3_planes": {"query_planes": 3},
}
METHODS = (*OURS, *PEERS)
FIGURES = ("recall@10", "recall@100", "recall@1")
PACKAGES = ("faiss-cpu", "turbovec", "torch")

Report = Callable[[Json], None]


def sizes(dims: int, bits: Sequence[int], byte_budgets: Sequence[int]) -> list[int]:
    """Budgets in bytes per vector, each once, in the order given: bits per dimension first."""
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
    search_rows: int | None = None,
    apart: bool = True,
    budget_s: float | None = None,
    out: Path | None = None,
    about: str = "",
    report: Report = lambda row: None,
    progress: Progress = quiet,
) -> Json:
    """The benchmark's result as JSON values; `report` gets each row as soon as it is known."""
    unknown = sorted(set(methods) - set(METHODS))
    if unknown:
        raise InputError(f"unknown method {unknown[0]!r}", hint=f"methods are {', '.join(METHODS)}")
    until = float("inf") if budget_s is None else time.perf_counter() + budget_s
    known = as_rows(vectors, "vectors")
    asked = None if queries is None else as_rows(queries, "queries", known.shape[1])
    budgets = sizes(known.shape[1], bits, byte_budgets)
    result = _read(out)
    host = describe(PACKAGES)
    result |= {"host": host, "hosts": [*result["hosts"], host], "about": about or result["about"]}
    rows: list[Json] = result["cells"]
    result["summary"] = summary(rows)
    have = {key(row) for row in rows if "metric" in row}  # others were scored without the cosine
    for seed in range(seeds):
        wanted = [
            (m, size) for size in budgets for m in methods if not {(n, size, seed) for n in names(m)} <= have
        ]
        if not wanted or time.perf_counter() > until:
            continue
        drawn = draw(known, asked, seed, query_count, train_rows, search_rows, apart)
        if result["vectors"] not in (None, drawn.about):
            raise InputError(
                f"{out} holds figures of other vectors: {result['vectors']}, not {drawn.about}",
                hint="name another file, or give the options of the run that wrote it",
            )
        result["vectors"] = drawn.about
        for number, (method, size) in enumerate(wanted):
            progress((seed + number / len(wanted)) / seeds, f"{method}, {size} bytes")
            if time.perf_counter() > until:
                break
            for row in _rows(method, drawn, size, seed):
                others = [one for one in rows if key(one) != key(row)]
                rows[:] = [*others, {**row, "host": len(result["hosts"]) - 1}]
                result["summary"] = summary(rows)
                if out is not None:
                    with disk.staged(out) as stage:
                        stage.write_text(json.dumps(result, indent=1) + "\n")
                report(row)
    return result


def key(row: Json) -> tuple[str, int, int]:
    """The key of a row: a result has one row per key."""
    return row["method"], row["budget_bytes"], row["seed"]


def names(method: str) -> list[str]:
    """The rows that a method makes of a size: one, and one per wider encoding beam."""
    return [method, *(f"{method}_{beam}" for beam in BEAMS if method == "rq")]


class Drawn(NamedTuple):
    """The vectors and queries that one seed draws."""

    train: Floats  # [rows, dims]
    every: Floats  # [count, dims], those that are searched
    asked: Floats  # [Q, dims]
    truth: Ids  # [Q, 100]
    about: Json


def draw(
    rows: Any,
    queries: Any,
    seed: int,
    query_count: int,
    train_rows: int,
    search_rows: int | None,
    apart: bool,
) -> Drawn:
    """Divide rows among queries, learning and search."""
    order = np.random.default_rng(seed).permutation(len(rows))
    if queries is None:
        if len(rows) < 4 * query_count:
            raise InputError(f"{len(rows)} vectors are too few to draw {query_count} queries from")
        asked, order = _rows_of(rows, order[:query_count]), order[query_count:]
    else:
        asked = sample(queries, query_count, seed, "queries")
    learn = min(train_rows, len(order) // 2) if apart else 0
    every = _rows_of(rows, order[learn:][:search_rows])
    train = _rows_of(rows, order[:learn]) if apart else sample(every, train_rows, seed)
    about = {
        "count": len(every),
        "dims": every.shape[1],
        "queries": len(asked),
        "train_rows": len(train),
        "learning": f"rows {'apart from' if apart else 'among'} those searched",
    }
    return Drawn(train, every, asked, top(asked, every, DEPTH), about)


def _rows_of(rows: Any, chosen: npt.NDArray[np.int64]) -> Floats:
    """The rows named, in the order of the file, float32 of unit length."""
    return np.concatenate(list(unit_blocks(rows[np.sort(chosen)], "vectors")))


def _read(path: Path | None) -> Json:
    """The result that a file holds; an empty one if there is no file."""
    empty: Json = {"host": None, "hosts": [], "about": "", "vectors": None, "cells": [], "summary": []}
    if path is None or not path.exists():
        return empty
    try:
        found = json.loads(path.read_text())
        if {"cells", "vectors", "hosts", "about"} <= set(found):
            return {**empty, **found}
    except (OSError, ValueError, TypeError) as error:
        raise FileError(f"cannot read earlier figures from {path}: {error}") from error
    raise FileError(f"{path} is not a result of this benchmark", hint="name another file to write")


def summary(rows: Sequence[Json]) -> list[Json]:
    """One line per method and size, over seeds; `ahead`: recall@10 of the Binarizer minus this method's."""
    groups: dict[tuple[int, str], dict[int, Json]] = {}
    for row in rows:
        groups.setdefault((row["budget_bytes"], row["method"]), {})[row["seed"]] = row
    lines = []
    for (size, method), group in groups.items():
        line = {
            "budget_bytes": size,
            "method": method,
            "bytes": next(iter(group.values()))["bytes"],
            "seeds": len(group),
            **{f: spread([row[f] for row in group.values()]) for f in FIGURES},
        }
        ours = groups.get((size, "binarizer"), {})
        both = [seed for seed in group if seed in ours]
        if method not in OURS and both:
            line["ahead"] = spread([ours[seed][FIGURES[0]] - group[seed][FIGURES[0]] for seed in both])
        lines.append(line)
    return lines


def spread(values: Sequence[float]) -> dict[str, float | None]:
    """Mean, lowest, highest, and half-width of the 95 % interval of the mean (None for one value)."""
    found = Stat.of(values)
    return {"mean": found.mean, "low": min(values), "high": max(values), "half_width": found.half_width()}


def recalls(found: Ids, truth: Ids) -> dict[str, float]:
    """The three figures for hits [Q, ≥ 100] against the truth [Q, 100], both best first."""
    shares = {f"recall@{k}": recall_of(found[:, :k], truth[:, :k]) for k in (10, 100)}
    first = float(np.mean((found[:, :10] == truth[:, :1]).any(axis=1)))
    return {**shares, "recall@1": first}


def _rows(method: str, drawn: Drawn, size: int, seed: int) -> Iterator[Json]:
    """A row, and one for each wider encoding beam; none where a method has no code of this size."""
    if method in OURS:
        outcome: Outcome | None = binarized(drawn.train, drawn.every, seed, bytes=size, **OURS[method])
    else:
        outcome = PEERS[method](drawn.train, drawn.every, size, seed)
    for one in () if outcome is None else chain((outcome,), outcome.wider):
        found = {way.metric: recalls(way.find(drawn.asked, DEPTH), drawn.truth) for way in one.scores()}
        scores = {metric: figures["recall@10"] for metric, figures in found.items()}
        best = max(scores, key=scores.__getitem__)
        yield {
            "method": method if one.beam is None else f"{method}_{one.beam}",
            "budget_bytes": size,
            "seed": seed,
            "bytes": one.bytes,
            "code_bytes": one.code_bytes,
            "factor_bytes": one.factor_bytes,
            "query": one.query,
            "setting": one.setting,
            **found[best],
            "metric": best,
            "recall@10 by score": scores,
            "train_s": one.train_s,
            "encode_per_s": len(drawn.every) / max(one.encode_s, 1e-9),
        }
