"""The code of a text or vector must not depend on its batch, the number of threads or the instruction set.

A world is a Binarizer or one side of a model, both of random shape, and vectors or texts to encode. They are
encoded in one batch with every thread and the best instruction set, then again in another way: shuffled, cut
into batches of random sizes from one upwards, with another number of threads and another instruction set.
One text or vector is one code. If it differs in any bit from one way to the other, that is a loss.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any
from unittest import mock

import numpy as np
import numpy.typing as npt

from rbegir._native import available_isas
from rbegir.encode.binarizer import learn, vectors
from rbegir.encode.binarizer.binarizer import Binarizer
from rbegir.encode.clsm.presets import ModelConfig, random_tensors
from rbegir.encode.clsm.sides import NativeSide
from torture.limits import Limits

Planes = npt.NDArray[np.uint64]  # [planes, count, words]
Encode = Callable[[npt.NDArray[Any], str, int], Planes]  # what, instruction set, threads
WORK = 1 << 27  # dimensions of inputs · bits of codes, of all inputs of a world
MOST = 20_000  # inputs of a world


def of_vectors(rng: np.random.Generator) -> tuple[str, npt.NDArray[Any], Encode]:
    """A Binarizer of any shape, and vectors of all lengths, some of them zero.

    Whether it writes digits, where it can, is left to chance and not to what finds more.
    """
    dims, words = int(rng.choice((3, 16, 50, 100, 384))), int(rng.integers(1, 5))
    metric, planes = str(rng.choice(("cosine", "cosine", "ip", "l2"))), int(rng.integers(1, 5))
    count = min(MOST, WORK // (dims * 64 * words))
    spread = np.geomspace(1, 0.05, dims) * rng.choice((0.1, 1, 30), (count + 400, 1))
    x = (rng.standard_normal((count + 400, dims)) * spread).astype(rng.choice((np.float32, np.float64)))
    x[rng.integers(0, count, 3)] = 0
    made = Binarizer(n=64 * words, keyword_planes=planes, metric=metric, rounds=1, moves=30)
    choice = made._choices(dims)[-int(rng.integers(2))]  # the first is plain, the last has digits
    with mock.patch.object(Binarizer, "_choices", mock.Mock(return_value=[choice])):
        made.fit(x[count:])
    side = str(rng.choice(("keywords", "queries")))
    written = " that writes digits" if choice.digits else ""

    def encode(some: npt.NDArray[Any], isa: str, threads: int) -> Planes:
        counts = mock.Mock(return_value=threads)
        with (
            mock.patch.dict(os.environ, {"RBEGIR_ISA": isa}),
            mock.patch.object(learn, "cpu_count", counts),
            mock.patch.object(vectors, "cpu_count", counts),
        ):
            return (made.encode_keywords if side == "keywords" else made.encode_queries)(some).planes

    return f"{side} of a Binarizer{written}", x[:count], encode


def of_texts(rng: np.random.Generator) -> tuple[str, npt.NDArray[Any], Encode]:
    """A side of a model of any shape, and texts of one to nine words."""
    config = ModelConfig(
        n=64 * int(rng.integers(1, 5)),
        query_planes=int(rng.integers(1, 9)),
        keyword_planes=int(rng.integers(1, 5)),
        conv=int(rng.choice((5, 24, 64, 100))),
        hidden=((), (33,), (48, 17))[rng.integers(3)],
        hash_buckets=50,
    )
    tensors = random_tensors(config, seed=int(rng.integers(1000)))
    words = ["red", "été", "größe", "東京", "of", "x", "42", *(f"w{i}" for i in range(500))]
    texts = [" ".join(rng.choice(words, rng.integers(1, 10))) for _ in range(MOST // 4)]
    side = str(rng.choice(("keyword", "query")))

    def encode(some: npt.NDArray[Any], isa: str, threads: int) -> Planes:
        native = NativeSide(config, side, tensors.__getitem__, threads=threads, isa=isa)
        return native.planes(some.tolist())

    return f"texts of a {side} side", np.array(texts, object), encode


def differing(rng: np.random.Generator, what: npt.NDArray[Any], encode: Encode) -> tuple[str, int]:
    """Another way to make the same codes, and how many of them differ."""
    isa, threads = str(rng.choice(available_isas())), int(rng.integers(1, 6))
    order = rng.permutation(len(what))
    cuts = np.sort(rng.integers(0, len(what), int(rng.choice((1, 5, 60)))))
    cuts = np.unique(np.concatenate((cuts, cuts + 1)))  # every other batch is one input alone
    parts = [encode(what[part], isa, threads) for part in np.split(order, cuts) if len(part)]
    whole = encode(what, available_isas()[0], len(os.sched_getaffinity(0)))
    wrong = (np.concatenate(parts, axis=1) != whole[:, order]).any(axis=(0, 2))
    return f"{isa} × {threads}, {len(parts)} batches", int(wrong.sum())


def compare(limits: Limits, share: tuple[int, int] = (0, 1)) -> dict[str, Any]:
    """Worlds until enough codes have been compared; `share` is (first, step) of the numbers of worlds."""
    end = time.monotonic() + limits.seconds
    seen: Counter[str] = Counter()
    losses: list[str] = []
    worlds = 0
    for number in itertools.count(*share):
        rng = np.random.default_rng([limits.seed, number])
        kind, what, encode = of_texts(rng) if rng.random() < 0.25 else of_vectors(rng)
        way, wrong = differing(rng, what, encode)
        worlds += 1
        seen[kind] += len(what)
        if wrong:
            losses.append(f"world {number}, {kind}, {way}: {wrong} of {len(what)} codes differ")
        if losses or sum(seen.values()) >= limits.points or time.monotonic() > end:
            break
    return {
        "worlds": worlds,
        "codes": sum(seen.values()),
        "by_kind": dict(sorted(seen.items())),
        "losses": len(losses),
        "first_losses": losses,
    }


def _share(limits: Limits, first: int) -> dict[str, Any]:
    return compare(limits, (first, limits.processes))


def run(limits: Limits) -> dict[str, Any]:
    """With processes that share the worlds."""
    own = replace(limits, points=-(-limits.points // limits.processes))
    with ProcessPoolExecutor(limits.processes, multiprocessing.get_context("spawn")) as pool:
        found = list(pool.map(partial(_share, own), range(limits.processes)))
    kinds = sum((Counter(part["by_kind"]) for part in found), Counter())
    return {name: sum(part[name] for part in found) for name in ("worlds", "codes", "losses")} | {
        "by_kind": dict(sorted(kinds.items())),
        "first_losses": [loss for part in found for loss in part["first_losses"]],
    }
