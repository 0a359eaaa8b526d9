"""One run: a row trained with one seed and measured, kept as one small file.

    out/runs/rbe_star-0.json     figures, history of the epochs, settings, time, device

A run is made once: its file says from what (an identity of shape, settings, dataset and scale), and as long
as that is the same it is not made again. So a job that was killed goes on where it was, and a table that
shares rows with another costs only the rest.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from rbegir.base import disk
from rbegir.base.devices import cpu_count
from rbegir.errors import CorruptError, FileError
from rbegir.lab.reproduce import lexical, quantisers, studies
from rbegir.lab.reproduce.dataset import Dataset, sample_rows
from rbegir.lab.reproduce.rows import Row, Scale
from rbegir.lab.reproduce.testbed import Json, Testbed
from rbegir.training.config import change
from rbegir.training.data import Data
from rbegir.training.device import resolve_device
from rbegir.training.trainer import Fitted, fit
from rbegir.training.validate import Validation

DIGITS = 6
BM25 = "bm25"


class Laboratory:
    """The data of all runs, read and tokenised once, on one device."""

    def __init__(self, data: Dataset, scale: Scale, device: str) -> None:
        self.data, self.scale = cut_down(data, scale), scale
        self.device = resolve_device(device)
        self.train = Data.of_table(self.data.train, hash_buckets=scale.hash_buckets, threads=cpu_count())
        self.validation = Validation(self.data.select, hash_buckets=scale.hash_buckets, threads=cpu_count())
        self.bed = Testbed(self.data, self.device, hash_buckets=scale.hash_buckets)

    def make(self, rows: Sequence[Row], seed: int, out: Path) -> list[Json]:
        """Train rows side by side, measure each; the results are also written."""
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
                if "quantisers" in row.studies:  # minutes: after everything else is safe
                    self._quantise(row, seed, one, result, out)
        return made

    def _measure(self, row: Row, seed: int, fitted: Fitted, train_s: float, out: Path) -> Json:
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
        for study in row.studies:
            if study == "sizes":
                result["studies"][study] = studies.sizes(self.bed, vectors)
            elif study == "top_five" and self.data.labels:
                result["studies"][study] = studies.top_five(self.bed, vectors, fitted.network)
            elif study in ("selection", "latency") and seed == 0:
                result["studies"][study] = getattr(studies, study)(self.bed, vectors, fitted.network)
        result["measure_s"] = round(time.monotonic() - began, 1)
        result["done"] = [study for study in row.studies if study != "quantisers"]
        write(path_of(out, row.name, seed), result)
        return result

    def _quantise(self, row: Row, seed: int, fitted: Fitted, result: Json, out: Path) -> None:
        found: list[Json] = []

        def keep(figures: Json) -> None:
            found.append(figures)
            result["studies"]["quantisers"] = found
            write(path_of(out, row.name, seed), result)

        quantisers.compare(
            self.bed,
            self.bed.vectors(fitted.network),
            fitted.network,
            keep,
            train=self.scale.quantiser_train,
            slow=self.scale.slow_quantisers,
            first=seed == 0,
        )
        result["done"] = list(row.studies)
        write(path_of(out, row.name, seed), result)


def measure_bm25(data: Dataset, scale: Scale, out: Path) -> Json:
    """The one run without a model."""
    small = cut_down(data, scale)
    result = {"row": BM25, "seed": 0, **lexical.measure(small), "identity": _identity_of(small)}
    write(path_of(out, BM25, 0), result)
    return result


def cut_down(data: Dataset, scale: Scale) -> Dataset:
    """A dataset of the scale's size."""
    if scale.pairs is not None:
        kept = sample_rows(data.train.num_rows, scale.pairs, 0)
        data = replace(data, train=data.train.take(pa.array(kept)))
    if scale.corpus is not None:
        wanted = data.test["keyword"].cast(data.corpus.type).combine_chunks()
        data = replace(data, corpus=pa.concat_arrays([wanted, data.corpus[: scale.corpus]]).unique())
    return data


def _identity_of(data: Dataset, scale: Scale | None = None) -> str:
    """Of data as they are, or of trainings of a scale on them."""
    about = {"data": data.describe(), **({"scale": vars(scale)} if scale else {})}
    text = json.dumps(about, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def identity(row: Row, seed: int, data: Dataset, scale: Scale) -> str:
    """What a run was made from."""
    of = {"shape": row.shape.to_dict(), "training": row.settings.to_dict(), "data": _identity_of(data, scale)}
    return hashlib.blake2b(
        json.dumps({**of, "seed": seed}, sort_keys=True).encode(), digest_size=8
    ).hexdigest()


def identity_of(run: Json, rows: Mapping[str, Row], data: Dataset, scale: Scale) -> str | None:
    """What a run of this name would be made from here; None for a row that is not there any more."""
    if run["row"] == BM25:
        return _identity_of(data)
    return identity(rows[run["row"]], run["seed"], data, scale) if run["row"] in rows else None


def path_of(out: Path, name: str, seed: int) -> Path:
    return out / "runs" / f"{re.sub(r'[^a-z0-9_]+', '-', name.lower()).strip('-')}-{seed}.json"


def read(path: Path) -> Json | None:
    """A run's file, None if there is none."""
    try:
        found: Json = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise CorruptError(f"the run {path} cannot be read: {error}", hint="remove the file") from None
    return found


def write(path: Path, result: Json) -> None:
    """Replace a run's file, figures rounded to what their spread allows."""
    partial = path.with_suffix(".partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(json.dumps(_rounded(result)) + "\n")
        disk.replace(partial, path)
    except OSError as error:
        raise FileError(f"cannot write {path}: {error.strerror}") from None


def _rounded(value: Any) -> Any:
    if isinstance(value, (float, np.floating)):
        return round(float(value), DIGITS)
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    return [_rounded(item) for item in value] if isinstance(value, (list, tuple)) else value
