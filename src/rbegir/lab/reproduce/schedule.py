"""All runs, most telling first, in one process or several at once, within a limit of time.

A small model leaves much of a large GPU idle while Python launches the next kernels: three processes on one
card were measured to make 1.6 times as many models a minute as one. Each process reads the data itself and
takes the next runs from a queue; what is done is on disk, so nothing is lost when the time is up. Models that
draw the same batches can be trained side by side in a process, which cuts the batches once: it spares cores
for what is measured on them, the GPU is as busy as before.
"""

from __future__ import annotations

import multiprocessing
import queue
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.queues import Queue
from pathlib import Path
from typing import NamedTuple

from rbegir.errors import RbegirError
from rbegir.lab.reproduce import runs
from rbegir.lab.reproduce.dataset import Dataset, load
from rbegir.lab.reproduce.rows import Row, Scale

Say = Callable[[str], None]
FIRST = 2  # tiers that are made with every seed before any other
EXPECTED_S = 30.0  # of a run, before one has been timed


class Job(NamedTuple):
    row: Row | None  # None: BM25
    seed: int

    @property
    def name(self) -> str:
        return runs.BM25 if self.row is None else self.row.name


class Place(NamedTuple):
    """Where and how large everything is."""

    scale: Scale
    device: str
    out: Path
    until: float  # no run starts that would not end by then, in seconds since the epoch


def jobs(rows: list[Row], seeds: int, data: Dataset, place: Place, *, bm25: bool) -> list[Job]:
    """What is still to be made, in order."""
    small = runs.cut_down(data, place.scale)

    def turn(job: tuple[int, int]) -> tuple[int, int, int]:
        """Every seed of the first tiers; then a seed more of one tier is worth as much as a tier more."""
        seed, number = job
        tier = rows[number].tier
        return (tier, seed, number) if tier < FIRST else (tier + seed, tier, number)

    ordered = sorted(((seed, number) for number in range(len(rows)) for seed in range(seeds)), key=turn)
    wanted = [Job(rows[number], seed) for seed, number in ordered]
    missing = [job for job in wanted if not _made(job, small, place)]
    if bm25 and runs.read(runs.path_of(place.out, runs.BM25, 0)) is None:
        missing.append(Job(None, 0))
    return missing


def _made(job: Job, data: Dataset, place: Place) -> bool:
    assert job.row is not None
    found = runs.read(runs.path_of(place.out, job.name, job.seed)) or {}
    wanted = runs.identity(job.row, job.seed, data, place.scale)
    return found.get("identity") == wanted and set(job.row.studies) <= set(found.get("done", []))


def groups(todo: list[Job], most: int) -> list[list[Job]]:
    """Jobs whose models can be trained side by side, in the order of the first of each group."""
    found: list[list[Job]] = []
    for job in todo:
        for group in found:
            if len(group) < most and _batches(group[0]) == _batches(job) is not None:
                group.append(job)
                break
        else:
            found.append([job])
    return found


def _batches(job: Job) -> tuple[object, ...] | None:
    """What the batches of a job depend on besides the data; None for one without a model."""
    if job.row is None:
        return None
    s = job.row.settings
    return (job.seed, s.epochs, s.batch_size, s.word_dropout, s.gram_dropout, s.negatives)


def run_here(todo: Iterable[list[Job]], data: Dataset, place: Place) -> Iterator[str]:
    """Make runs in this process until all are made or the time is up; a line about each."""
    laboratory, an_epoch, measuring = None, 0.0, EXPECTED_S
    for group in todo:
        began = time.time()
        rows = [job.row for job in group if job.row is not None]
        epochs = rows[0].settings.epochs or 1 if rows else 0
        if began + len(group) * (an_epoch * epochs + measuring) > place.until:
            return
        if not rows:
            runs.measure_bm25(data, place.scale, place.out)
            yield f"{runs.BM25} ({time.time() - began:.0f} s)"
            continue
        laboratory = laboratory or runs.Laboratory(data, place.scale, place.device)
        for made in laboratory.make(rows, group[0].seed, place.out):
            figures, measuring = made["figures"], made["measure_s"]
            an_epoch = made["train_s"] / len(made["history"])
            shown = (("AUC", "roc_auc"), ("R@1", "recall@1"), ("R@10", "recall@10"), ("R@100", "recall@100"))
            told = "  ".join(f"{word} {figures[name]['value']:.4f}" for word, name in shown)
            yield f"{made['row']}, seed {made['seed']}: {told}  ({made['train_s'] + measuring:.0f} s)"


def run_in_processes(todo: list[list[Job]], folder: Path | None, place: Place, workers: int) -> Iterator[str]:
    """The same in several processes on one device."""
    context = multiprocessing.get_context("spawn")
    waiting: Queue[list[Job]] = context.Queue()
    told: Queue[tuple[str, str]] = context.Queue()
    for group in todo:
        waiting.put(group)
    processes = [
        context.Process(target=_work, args=(waiting, told, folder, place), daemon=True)
        for _ in range(min(workers, len(todo)))
    ]
    for process in processes:
        process.start()
    failures = []
    while any(process.is_alive() for process in processes) or not told.empty():
        try:
            kind, line = told.get(timeout=1)
        except queue.Empty:
            continue
        if kind == "failed":
            failures.append(line)
        else:
            yield line
    if failures:
        raise RbegirError(f"a run failed: {failures[0]}")


def _work(waiting: Queue[list[Job]], told: Queue[tuple[str, str]], folder: Path | None, place: Place) -> None:
    """One process: load the data, then run after run."""

    def ready() -> Iterator[list[Job]]:
        while True:
            try:
                yield waiting.get(timeout=2)
            except queue.Empty:
                return

    try:
        for line in run_here(ready(), load(folder), place):
            told.put(("made", line))
    except Exception:
        told.put(("failed", traceback.format_exc(limit=-3)))
