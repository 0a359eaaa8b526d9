"""One run: a row trained with one seed and measured, kept as one small file.

    out/runs/rbe_star-0.json     figures, history of the epochs, settings, time, device

The file holds an identity of shape, settings, dataset and scale; as long as that is the same the run is not
made again. So a job that was killed resumes, and a table that shares rows with another costs only the rest.

Runs are made most telling first, in one process or several: a small model leaves much of a large GPU idle,
and three processes on one card made 1.6 times as many models per minute as one. Models that draw the same
batches can be trained side by side in a process, which saves CPU cores, not GPU time.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import re
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import torch

from rbegir.base import disk
from rbegir.base.devices import cpu_count
from rbegir.errors import CorruptError, FileError, RbegirError
from rbegir.lab.markdown import Json
from rbegir.lab.reproduce import equal_bytes, studies
from rbegir.lab.reproduce.dataset import Dataset, load, sample_rows
from rbegir.lab.reproduce.rows import ModelRow, Scale
from rbegir.lab.reproduce.testbed import Testbed
from rbegir.training.config import change
from rbegir.training.data import TrainingData
from rbegir.training.loop import Validation
from rbegir.training.step import resolve_device
from rbegir.training.trainer import Fitted, fit

DIGITS = 6
BM25 = "bm25"


class Laboratory:
    """The data of all runs, read and tokenised once, on one device."""

    def __init__(self, data: Dataset, scale: Scale, device: str) -> None:
        self.data, self.scale = cut_down(data, scale), scale
        self.device = resolve_device(device)
        self.train = TrainingData.of_table(
            self.data.train, hash_buckets=scale.hash_buckets, threads=cpu_count()
        )
        self.validation = Validation(self.data.select, hash_buckets=scale.hash_buckets, threads=cpu_count())
        self.bed = Testbed(self.data, self.device, hash_buckets=scale.hash_buckets)

    def make(self, rows: Sequence[ModelRow], seed: int, out: Path) -> list[Json]:
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

    def _measure(self, row: ModelRow, seed: int, fitted: Fitted, train_s: float, out: Path) -> Json:
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

    def _quantise(self, row: ModelRow, seed: int, fitted: Fitted, result: Json, out: Path) -> None:
        found: list[Json] = []

        def keep(figures: Json) -> None:
            found.append(figures)
            result["studies"]["quantisers"] = found
            write(path_of(out, row.name, seed), result)

        vectors = self.bed.vectors(fitted.network)
        equal_bytes.compare(self.bed, vectors, fitted.network, keep, self.scale, seed)
        result["done"] = list(row.studies)
        write(path_of(out, row.name, seed), result)


def measure_bm25(data: Dataset, scale: Scale, out: Path) -> Json:
    """The one run without a model."""
    small = cut_down(data, scale)
    result = {"row": BM25, "seed": 0, **studies.bm25(small), "identity": _identity_of(small)}
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
    return _digest(about)


def identity(row: ModelRow, seed: int, data: Dataset, scale: Scale) -> str:
    """What a run was made from."""
    of = {"shape": row.shape.to_dict(), "training": row.settings.to_dict(), "data": _identity_of(data, scale)}
    return _digest({**of, "seed": seed})


def _digest(about: Json) -> str:
    return hashlib.blake2b(json.dumps(about, sort_keys=True).encode(), digest_size=8).hexdigest()


def identity_of(run: Json, rows: Mapping[str, ModelRow], data: Dataset, scale: Scale) -> str | None:
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
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with disk.staged(path) as stage:
            stage.write_text(json.dumps(_rounded(result)) + "\n")
    except OSError as error:
        raise FileError(f"cannot write {path}: {error.strerror}") from None


def _rounded(value: Any) -> Any:
    if isinstance(value, (float, np.floating)):
        return round(float(value), DIGITS)
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    return [_rounded(item) for item in value] if isinstance(value, (list, tuple)) else value


FIRST = 2  # tiers that are made with every seed before any other
EXPECTED_S = 30.0  # of a run, before one has been timed


class ReproduceJob(NamedTuple):
    row: ModelRow | None  # None: BM25
    seed: int

    @property
    def name(self) -> str:
        return BM25 if self.row is None else self.row.name


class RunLayout(NamedTuple):
    """Where and how large everything is."""

    scale: Scale
    device: str
    out: Path
    until: float  # no run starts that would not end by then, in seconds since the epoch


def jobs(
    rows: list[ModelRow], seeds: int, data: Dataset, layout: RunLayout, *, bm25: bool
) -> list[ReproduceJob]:
    """What is still to be made, in order."""
    small = cut_down(data, layout.scale)

    def turn(job: tuple[int, int]) -> tuple[int, int, int]:
        """Every seed of the first tiers; then a seed more of one tier is worth as much as a tier more."""
        seed, number = job
        tier = rows[number].tier
        return (tier, seed, number) if tier < FIRST else (tier + seed, tier, number)

    ordered = sorted(((seed, number) for number in range(len(rows)) for seed in range(seeds)), key=turn)
    wanted = [ReproduceJob(rows[number], seed) for seed, number in ordered]
    missing = [job for job in wanted if not _made(job, small, layout)]
    if bm25 and read(path_of(layout.out, BM25, 0)) is None:
        missing.append(ReproduceJob(None, 0))
    return missing


def _made(job: ReproduceJob, data: Dataset, layout: RunLayout) -> bool:
    assert job.row is not None
    found = read(path_of(layout.out, job.name, job.seed)) or {}
    wanted = identity(job.row, job.seed, data, layout.scale)
    return found.get("identity") == wanted and set(job.row.studies) <= set(found.get("done", []))


def groups(todo: list[ReproduceJob], most: int) -> list[list[ReproduceJob]]:
    """Jobs whose models can be trained side by side, in the order of the first of each group."""
    found: list[list[ReproduceJob]] = []
    for job in todo:
        for group in found:
            if len(group) < most and _batches(group[0]) == _batches(job) is not None:
                group.append(job)
                break
        else:
            found.append([job])
    return found


def _batches(job: ReproduceJob) -> tuple[object, ...] | None:
    """What the batches of a job depend on besides the data; None for one without a model."""
    if job.row is None:
        return None
    s = job.row.settings
    return (job.seed, s.epochs, s.batch_size, s.word_dropout, s.gram_dropout, s.negatives)


class Runner:
    """Makes runs in one process, until the time is up."""

    def __init__(self, data: Dataset, layout: RunLayout) -> None:
        self._data, self._layout = data, layout
        self._laboratory: Laboratory | None = None
        self._an_epoch, self._measuring = 0.0, EXPECTED_S

    def run(self, group: list[ReproduceJob]) -> Iterator[str]:
        """Make the runs of a group, unless they would end too late; yields a line about each."""
        began, layout = time.time(), self._layout
        rows = [job.row for job in group if job.row is not None]
        epochs = rows[0].settings.epochs or 1 if rows else 0
        if began + len(group) * (self._an_epoch * epochs + self._measuring) > layout.until:
            return
        if not rows:
            measure_bm25(self._data, layout.scale, layout.out)
            yield f"{BM25} ({time.time() - began:.0f} s)"
            return
        self._laboratory = self._laboratory or Laboratory(self._data, layout.scale, layout.device)
        for made in self._laboratory.make(rows, group[0].seed, layout.out):
            figures, self._measuring = made["figures"], made["measure_s"]
            self._an_epoch = made["train_s"] / len(made["history"])
            shown = (("AUC", "roc_auc"), ("R@1", "recall@1"), ("R@10", "recall@10"), ("R@100", "recall@100"))
            told = "  ".join(f"{word} {figures[name]['value']:.4f}" for word, name in shown)
            took = made["train_s"] + self._measuring
            yield f"{made['row']}, seed {made['seed']}: {told}  ({took:.0f} s)"


def run_here(todo: Iterable[list[ReproduceJob]], data: Dataset, layout: RunLayout) -> Iterator[str]:
    """Make runs in this process; yields a line about each."""
    runner = Runner(data, layout)
    for group in todo:
        yield from runner.run(group)


def run_in_processes(
    todo: list[list[ReproduceJob]], folder: Path | None, layout: RunLayout, workers: int
) -> Iterator[str]:
    """Make runs in several processes on one device; yields a line about each."""
    spawn = multiprocessing.get_context("spawn")
    failures = []
    with ProcessPoolExecutor(min(workers, len(todo)), spawn, _start, (folder, layout)) as pool:
        for done in as_completed([pool.submit(_run, group) for group in todo]):
            try:
                yield from done.result()
            except Exception as error:  # the others go on
                failures.append("".join(traceback.format_exception(error, limit=-3)))
    if failures:
        raise RbegirError(f"a run failed: {failures[0]}")


_runner: Runner  # of a process of its own


def _start(folder: Path | None, layout: RunLayout) -> None:
    global _runner
    _runner = Runner(load(folder), layout)


def _run(group: list[ReproduceJob]) -> list[str]:
    return list(_runner.run(group))
