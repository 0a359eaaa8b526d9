"""One run: a row trained with one seed and measured, kept as one small file.

    out/runs/rbe_star-0.json     figures, history of the epochs, settings, time, device

The file holds an identity of shape, settings, dataset and scale; while that stays the same the run is not
made again. So an interrupted job resumes, and a table that shares rows with another costs only the rest.
"""

import hashlib
import json
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import torch

from rbegir.base import disk
from rbegir.errors import CorruptError, FileError
from rbegir.evaluate.scorers import BM25, TriletterCosine
from rbegir.lab.bench.host import commit, describe
from rbegir.lab.figures import Json
from rbegir.lab.reproduce import equal_bytes, testbed
from rbegir.lab.reproduce.dataset import Dataset, load, sample_rows
from rbegir.lab.reproduce.rows import ModelRow, Scale
from rbegir.lab.reproduce.testbed import Testbed
from rbegir.read.pairs import read_pairs
from rbegir.training.config import change
from rbegir.training.data import TrainingData
from rbegir.training.loop import Run, Validation
from rbegir.training.step import resolve_device
from rbegir.training.trainer import fit

DIGITS = 6
BASELINES = {"bm25": BM25(), "triletter": TriletterCosine()}  # that need no training
STUDIES: dict[str, Callable[..., Any]] = {
    "sizes": testbed.sizes,
    "selection": testbed.selection,
    "latency": testbed.latency,
    "top_five": testbed.top_five,
    "quantisers": equal_bytes.compare,
}
EXPECTED_S = 30.0  # time of a run before one has been timed
SAID = (("AUC", "roc_auc"), ("R@1", "recall@1"), ("R@10", "recall@10"), ("R@100", "recall@100"))


class ReproduceJob(NamedTuple):
    """A run that is to be made."""

    name: str
    seed: int
    row: ModelRow | None  # None: a baseline without a model


class Laboratory:
    """Makes runs on one device, from data that is tokenised once."""

    def __init__(self, data: Dataset, scale: Scale, device: str, out: Path, until: float) -> None:
        """No run starts that would not end by `until`, in seconds since the epoch."""
        self._data, self._scale, self._out, self._until = data, scale, out, until
        self._device = resolve_device(device)
        self._epoch_s, self._measure_s = 0.0, EXPECTED_S

    @cached_property
    def _tokenised(self) -> tuple[TrainingData, Validation, Testbed]:
        train = TrainingData(read_pairs(self._data.train), hash_buckets=self._scale.hash_buckets)
        return train, Validation(self._data.select), Testbed(self._data, self._device)

    def run(self, jobs: list[ReproduceJob]) -> Iterator[str]:
        """Train the models of some jobs side by side and measure each; yields a line about each run."""
        began, seed = time.time(), jobs[0].seed
        rows = [job.row for job in jobs if job.row is not None]
        epochs = rows[0].settings.epochs or 1 if rows else 0
        if began + len(jobs) * (self._epoch_s * epochs + self._measure_s) > self._until:
            return
        if not rows:
            name = jobs[0].name
            figures = testbed.baseline(BASELINES[name], self._data)
            digest = identity(None, 0, self._data, self._scale)
            made = {"row": name, "seed": 0, **figures, "identity": digest, "commit": commit()}
            made["host"] = describe(("pyarrow",))  # no GPU is needed, so it may differ from that of models
            write(self._out, made)
            yield f"{name} ({time.time() - began:.0f} s)"
            return
        data, validation, _ = self._tokenised
        models = [(row.shape, change(row.settings, seed=seed)) for row in rows]
        began = time.time()
        fitted = fit(data, models, validation=validation, device=str(self._device))
        train_s = (time.time() - began) / len(rows)
        self._epoch_s = train_s / len(fitted[0].history)
        for row, one in zip(rows, fitted, strict=True):
            with torch.inference_mode():
                figures = self._measure(row, seed, one, train_s)["figures"]
            told = "  ".join(f"{word} {figures[name]['value']:.4f}" for word, name in SAID)
            yield f"{row.name}, seed {seed}: {told}  ({train_s + self._measure_s:.0f} s)"

    def _measure(self, row: ModelRow, seed: int, fitted: Run, train_s: float) -> Json:
        """Every figure of a trained model; the run is written after each study."""
        began, bed = time.monotonic(), self._tokenised[-1]
        vectors = bed.vectors(fitted.network)
        result: Json = {
            "row": row.name,
            "seed": seed,
            "figures": bed.measure(fitted.network, vectors),
            "history": fitted.history,
            "best_epoch": fitted.best_epoch,
            "gamma": fitted.gamma,
            "pairs_per_s": round(fitted.pairs_per_s),
            "train_s": round(train_s, 1),
            "studies": {},
            "done": [],
            "measure_s": round(time.monotonic() - began, 1),
            "commit": commit(),
            "identity": identity(row, seed, self._data, self._scale),
        }
        skipped = set() if self._data.labels else {"top_five"}
        skipped |= {"selection", "latency"} if seed else set()
        write(self._out, result)
        for study in row.studies:
            if study not in skipped:
                more = (self._scale, seed) if study == "quantisers" else ()
                result["studies"][study] = STUDIES[study](bed, vectors, fitted.network, *more)
            result["done"].append(study)
            result["measure_s"] = round(time.monotonic() - began, 1)
            write(self._out, result)
        self._measure_s = result["measure_s"]
        return result


def load_scaled(folder: Path | None, scale: Scale) -> Dataset:
    """A dataset, cut down to the size that a scale asks for."""
    data = load(folder)
    if scale.pairs is not None:
        kept = sample_rows(data.train.num_rows, scale.pairs, 0)
        data = replace(data, train=data.train.take(pa.array(kept)))
    if scale.corpus is not None:
        wanted = data.test["keyword"].cast(data.corpus.type).combine_chunks()
        data = replace(data, corpus=pa.concat_arrays([wanted, data.corpus[: scale.corpus]]).unique())
    return data


def identity(row: ModelRow | None, seed: int, data: Dataset, scale: Scale) -> str:
    """A digest of what a run is made from; a baseline (no row) needs the data alone."""
    if row is None:
        return _digest({"data": data.describe(), "queries": testbed.BASELINE_QUERIES})
    made_on = _digest({"data": data.describe(), "scale": vars(scale)})
    made_from = {"shape": row.shape.to_dict(), "training": row.settings.to_dict(), "data": made_on}
    return _digest({**made_from, "seed": seed})


def _digest(about: Json) -> str:
    return hashlib.blake2b(json.dumps(about, sort_keys=True).encode(), digest_size=8).hexdigest()


def path_of(out: Path, name: str, seed: int) -> Path:
    return out / "runs" / f"{re.sub(r'[^a-z0-9_]+', '-', name.lower()).strip('-')}-{seed}.json"


def read(path: Path) -> Json:
    """A run's file, empty if there is none."""
    try:
        found: Json = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise CorruptError(f"the run {path} cannot be read: {error}", hint="remove the file") from None
    return found


def write(out: Path, run: Json) -> None:
    """Replace a run's file; figures are rounded to DIGITS."""
    path = path_of(out, run["row"], run["seed"])
    text = json.dumps(run, default=float)  # of NumPy
    rounded = json.loads(text, parse_float=lambda number: round(float(number), DIGITS))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with disk.staged(path) as stage:
            stage.write_text(json.dumps(rounded) + "\n")
    except OSError as error:
        raise FileError(f"cannot write {path}: {error.strerror}") from None
