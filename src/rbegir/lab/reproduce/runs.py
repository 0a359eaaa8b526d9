"""One run: a row trained with one seed and measured, kept as one small file.

    out/runs/rbe_star-0.json     figures, history of the epochs, settings, time, device

The file holds an identity of shape, settings, dataset and scale; while that stays the same the run is not
made again. So an interrupted job resumes, and a table that shares rows with another costs only the rest.
"""

import hashlib
import json
import re
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from rbegir.base import disk
from rbegir.errors import CorruptError, FileError
from rbegir.evaluate.scorers import BM25, TriletterCosine
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


class Laboratory:
    """The data of all runs, tokenised once, on one device."""

    def __init__(self, data: Dataset, scale: Scale, device: str) -> None:
        self.data, self.scale = data, scale
        self.device = resolve_device(device)
        self.train = TrainingData(read_pairs(data.train), hash_buckets=scale.hash_buckets)
        self.validation = Validation(data.select)
        self.bed = Testbed(data, self.device, hash_buckets=scale.hash_buckets)

    def make(self, rows: Sequence[ModelRow], seed: int, out: Path) -> list[Json]:
        """Train rows side by side and measure each; the results are also written."""
        began = time.monotonic()
        fitted = fit(
            self.train,
            [(row.shape, change(row.settings, seed=seed)) for row in rows],
            validation=self.validation,
            device=str(self.device),
        )
        took = (time.monotonic() - began) / len(rows)
        with torch.inference_mode():
            made = [self._measure(row, seed, one, took, out) for row, one in zip(rows, fitted, strict=True)]
            for row, one, result in zip(rows, fitted, made, strict=True):
                if "quantisers" in row.studies:  # takes minutes: after everything else is written
                    self._quantise(row, seed, one, result, out)
        return made

    def _measure(self, row: ModelRow, seed: int, fitted: Run, train_s: float, out: Path) -> Json:
        began = time.monotonic()
        vectors = self.bed.vectors(fitted.network)
        result: Json = {
            "row": row.name,
            "seed": seed,
            "figures": self.bed.measure(fitted.network, vectors),
            "history": fitted.history,
            "best_epoch": fitted.best_epoch,
            "gamma": fitted.gamma,
            "pairs_per_s": round(fitted.pairs_per_s),
            "train_s": round(train_s, 1),
            "studies": {},
            "identity": identity(row, seed, self.data, self.scale),
        }
        skipped = {"quantisers"} | (set() if self.data.labels else {"top_five"})
        skipped |= {"selection", "latency"} if seed else set()
        for study in row.studies:
            if study not in skipped:
                result["studies"][study] = getattr(testbed, study)(self.bed, vectors, fitted.network)
        result["measure_s"] = round(time.monotonic() - began, 1)
        result["done"] = [study for study in row.studies if study != "quantisers"]
        write(out, result)
        return result

    def _quantise(self, row: ModelRow, seed: int, fitted: Run, result: Json, out: Path) -> None:
        found: list[Json] = []

        def keep(figures: Json) -> None:
            found.append(figures)
            result["studies"]["quantisers"] = found
            write(out, result)

        vectors = self.bed.vectors(fitted.network)
        equal_bytes.compare(self.bed, vectors, fitted.network, keep, self.scale, seed)
        result["done"] = list(row.studies)
        write(out, result)


def measure_baseline(name: str, data: Dataset, scale: Scale, out: Path) -> None:
    """A run without a model."""
    figures = testbed.baseline(BASELINES[name], data)
    write(out, {"row": name, "seed": 0, **figures, "identity": identity(None, 0, data, scale)})


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
    """A digest of what a run is made from; a baseline (no row) is made from the data alone."""
    if row is None:
        return _digest({"data": data.describe()})
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
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with disk.staged(path) as stage:
            stage.write_text(json.dumps(_rounded(run)) + "\n")
    except OSError as error:
        raise FileError(f"cannot write {path}: {error.strerror}") from None


def _rounded(value: Any) -> Any:
    if isinstance(value, (float, np.floating)):
        return round(float(value), DIGITS)
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    return [_rounded(item) for item in value] if isinstance(value, (list, tuple)) else value
