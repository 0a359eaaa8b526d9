"""The epochs of a training run, of one model or of several on the same batches.

    for each epoch: batches ─ steps ─ validation ─ keep the parameters? ─ save

The learning rate rises over the first steps and then falls linearly to zero. The model that is kept is that
of the latest epoch whose validation AUC is within a standard error of the highest (the last epoch without
validation): AUC against ten random negatives cannot tell such epochs apart, and the later one, trained at a
lower rate, ranks better among millions.

*Validation* is log loss and ROC AUC on held-out pairs with ten random negatives each, the same groups in
every epoch and run. State is saved every `save_seconds` and at the ends of epochs, see `state.py`.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from torch import Tensor

from rbegir.base import disk
from rbegir.encode.clsm import checkpoint
from rbegir.encode.clsm.clsm import TowerBatch, tower_batch
from rbegir.encode.clsm.presets import Side
from rbegir.encode.clsm.twotower import TwoTower
from rbegir.errors import InputError
from rbegir.evaluate.groups import NEGATIVES, sample_groups
from rbegir.evaluate.metrics import fit_gamma, group_auc, log_loss
from rbegir.read.tokenizer import GramBatch, tokenize
from rbegir.training import state
from rbegir.training.batches import HostBatch, StepBatch, cut, epoch_batches, steps_in
from rbegir.training.config import TrainConfig
from rbegir.training.data import MAX_VALIDATION, TrainingData
from rbegir.training.distributed import of_the_first, wait_for_all
from rbegir.training.progress import Bar, TensorBoardLog
from rbegir.training.step import Learner, batch_threads, matmul_precision

WARM_UP = 50  # steps
SHOW_SECONDS = 0.2
TEXTS = 8192  # embedded at a time by a validation

Floats = npt.NDArray[np.float32]
Progress = Callable[[float, str], None]  # the share of all steps that is done, and a line about it


class Scores(NamedTuple):
    """The result of a validation."""

    log_loss: float
    roc_auc: float


class Validation:
    """A fixed set of sample groups that a network under training is scored on."""

    def __init__(
        self,
        pairs: pa.Table,
        *,
        hash_buckets: int,
        threads: int,
        notify: Callable[[float], None] = lambda done: None,
    ) -> None:
        """`notify` is called with the share of a validation that is done."""
        self._notify = notify
        self._groups = sample_groups(pairs.slice(0, MAX_VALIDATION), negatives=NEGATIVES)
        self._queries, self._keywords = (
            tokenize(texts, hash_buckets=hash_buckets, threads=threads)
            for texts in (self._groups.queries, self._groups.keywords)
        )

    def __len__(self) -> int:
        return len(self._groups)

    @torch.no_grad()
    def __call__(self, model: TwoTower, device: torch.device) -> Scores:
        sizes = [len(texts.text_offsets) - 1 for texts in (self._queries, self._keywords)]

        def embedded(texts: int) -> None:
            self._notify(texts / sum(sizes))

        query = _embed(model, "query", self._queries, device, embedded)
        keyword = _embed(model, "keyword", self._keywords, device, lambda done: embedded(sizes[0] + done))
        scores = self._groups.scores(query, keyword)
        return Scores(log_loss(scores, fit_gamma(scores)), group_auc(scores))


def _embed(
    model: TwoTower, side: Side, texts: GramBatch, device: torch.device, notify: Callable[[int], None]
) -> Floats:
    """The embeddings of all texts of a gram batch, in evaluation mode.  [texts, n]"""
    was_training = model.training
    model.eval()
    count = len(texts.text_offsets) - 1
    parts = []
    for low in range(0, count, TEXTS):
        items = np.arange(low, min(low + TEXTS, count), dtype=np.int32)
        batch = TowerBatch(*(array.to(device) for array in tower_batch(cut(texts, items))))
        parts.append(model.embed(side, batch).vector.float().cpu().numpy())
        notify(low + len(items))
    model.train(was_training)
    return np.concatenate(parts)


@dataclass(frozen=True)
class Folder:
    """Where a run keeps its state and, at the end, writes the model."""

    path: Path
    identity: dict[str, Any]  # what a resumed run must have in common with this one
    save_seconds: float = 60.0
    resume: bool = False
    log: bool = False  # for TensorBoard
    shared: bool = True  # by all processes, so that one of them writes

    @classmethod
    @contextmanager
    def at(cls, path: Path | None, identity: dict[str, Any], **options: Any) -> Iterator[Folder]:
        """The folder at a path; without one, a temporary folder, in which no state is saved."""
        if path is not None:
            yield cls(path, identity, **options)
            return
        with tempfile.TemporaryDirectory() as temporary:
            yield cls(Path(temporary), identity, math.inf, shared=False)


def train_all(runs: list[Run]) -> None:
    """All epochs of one run, or of several side by side."""
    first = runs[0]
    for name in ("epochs", "batch_size", "seed", "word_dropout", "gram_dropout", "negatives"):
        if any(getattr(run.settings, name) != getattr(first.settings, name) for run in runs):
            raise InputError("models that are trained together need the same batches and epochs")
    with matmul_precision(first.learner.device, first.settings):
        while first.position.epoch < first.epochs and not first.out_of_patience():
            for run in runs:
                run.begin_epoch()
            for batch in first.batches():
                there = batch.to(first.learner.device)
                for run in runs:
                    run.learn(there)
            for run in runs:
                run.end_epoch()
    for run in runs:
        run.log.close()


class Run:
    """The training of one model."""

    def __init__(
        self,
        learner: Callable[[], Learner],
        settings: TrainConfig,
        data: TrainingData,
        *,
        validation: Validation | None = None,
        folder: Folder | None = None,
        bar: Bar | None = None,
        progress: Progress | None = None,
    ) -> None:
        """At its beginning, or where the run to resume was; `learner` is called under the settings' seed."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(settings.seed)
            self.learner = learner()
        if data.taught is not None:
            device = self.learner.device
            of_queries, of_keywords = (torch.from_numpy(vectors).to(device) for vectors in data.taught)
            self.learner.taught = of_queries, of_keywords
        self.settings, self.data, self.validation = settings, data, validation
        self.folder, self.bar, self.progress = folder, bar or Bar(enabled=False), progress
        assert settings.batch_size is not None
        assert settings.epochs is not None
        self.epochs = settings.epochs
        self.steps = sum(steps_in(size, settings.batch_size) for size in data.sizes)  # in an epoch
        self.position = state.Position()
        self.best: dict[str, Tensor] | None = None  # the best epoch's parameters unless they are the current
        self._saved = self._began = self._shown = time.monotonic()
        self._loss_sum = self._loss = torch.zeros((), dtype=torch.float64, device=self.learner.device)
        self._seconds, self._pairs = 0.0, 0  # spent in and trained by the steps of this run
        self._open_folder()

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *raised: object) -> None:
        self.learner.close()

    def _open_folder(self) -> None:
        """Create the folder, and continue from the state in it if there is one to resume."""
        folder = self.folder
        self.writes = folder is not None and (self.learner.rank.number == 0 or not folder.shared)
        wait_for_all(self.learner.rank)  # all have seen the directory as it was
        if folder is not None and self.writes:
            with disk.explained("create", folder.path):
                folder.path.mkdir(parents=True, exist_ok=True)
        if folder and folder.resume and (found := state.load(folder.path, self.learner, folder.identity)):
            self.position, self.best = found
            if self.position.best_epoch == self.position.epoch and self.position.step == 0:
                self._keep_parameters()  # the best ones are the current ones
            self.bar.say(f"resuming in epoch {self.position.epoch + 1} after {self.position.step} batches")
        logs = folder.path / "log" if folder and folder.log and self.writes else None
        self.log = TensorBoardLog(logs, self.learner.steps, self.bar.say)

    @property
    def network(self) -> TwoTower:
        return self.learner.model

    @property
    def history(self) -> list[dict[str, float]]:
        """One entry per epoch: its number, loss, γ and, with validation, log_loss and roc_auc."""
        return self.position.history

    @property
    def best_epoch(self) -> int:
        """The epoch whose parameters are kept, from 1 on."""
        return self.position.best_epoch or 0

    @property
    def gamma(self) -> float:
        """γ of the best epoch."""
        return next(entry["gamma"] for entry in self.history if entry["epoch"] == self.best_epoch)

    @property
    def pairs_per_s(self) -> float:
        return self._pairs / self._seconds if self._seconds else 0.0

    def begin_epoch(self) -> None:
        position = self.position
        self._loss_sum = torch.tensor(position.loss_sum, dtype=torch.float64, device=self.learner.device)
        self._loss = self._loss_sum
        self.bar.begin(f"epoch {position.epoch + 1}/{self.epochs}", self.steps)
        self._began = self._shown = time.monotonic()

    def batches(self) -> Iterator[HostBatch]:
        """The batches of this epoch that are still to be learned from."""
        return epoch_batches(
            self.data.chunks(),
            self.settings,
            self.position.epoch,
            skip=self.position.step,
            threads=batch_threads(self.learner.device),
            pin=self.learner.device.type == "cuda",
        )

    def learn(self, batch: StepBatch) -> None:
        """One step on a batch that is on the device already."""
        learner, position, total = self.learner, self.position, self.steps * self.epochs
        if sum(batch.owned) > 1:  # one keyword has nothing to be compared with
            self._loss = learner.step(
                batch, lr_scale=lr_scale(learner.steps, total), progress=learner.steps / max(1, total)
            )
            self._loss_sum += self._loss
        position.step += 1
        position.done += batch.pairs
        self._pairs += batch.pairs
        now = time.monotonic()
        if self.progress is not None:
            self.progress(learner.steps / total, f"loss {float(self._loss):.4f}")
        if now - self._shown > SHOW_SECONDS:
            self._shown = now
            mean = float(self._loss_sum) / position.step
            speed = self._pairs / (self._seconds + now - self._began)
            self.bar.show(position.step, f"loss {mean:.4f}  {speed:,.0f} pairs/s")
            self.log.add(learner.steps, loss=float(self._loss), pairs_per_s=speed, gamma=learner.gamma_value)
        if self.writes and self.folder and now - self._saved > self.folder.save_seconds:
            self._pause()
            self._save(self.folder)
            self._began = time.monotonic()

    def _pause(self) -> None:
        """Bring the counters up to date."""
        self.position.loss_sum = float(self._loss_sum)  # waits for the device
        self._seconds += time.monotonic() - self._began

    def end_epoch(self) -> None:
        """Validate, decide whether these parameters are the best so far, and save."""
        learner, position = self.learner, self.position
        self._pause()
        entry = {"epoch": position.epoch + 1, "loss": position.loss_sum / max(1, position.step)}
        entry["gamma"] = learner.gamma_value
        if self.validation:
            self.bar.begin("validation", 1.0)
            scores = self.validation(learner.model, learner.device)
            scores = Scores(*of_the_first(scores, learner.device, learner.rank))
            entry |= {"log_loss": scores.log_loss, "roc_auc": scores.roc_auc}
            self.log.add(learner.steps, valid_log_loss=scores.log_loss, valid_roc_auc=scores.roc_auc)
        shown = [f"{name} {value:.4f}" for name, value in entry.items() if name != "epoch"]
        self.bar.say("  ".join([f"epoch {entry['epoch']}", *shown]))
        position.history.append(entry)
        aucs = [past.get("roc_auc", 0.0) for past in position.history]
        if not self.validation or aucs[-1] >= max(aucs) - self._noise(max(aucs)):
            position.best_epoch, self.best = position.epoch + 1, None
        if position.best_epoch == position.epoch + 1 and position.epoch + 1 < self.epochs and self.validation:
            self._keep_parameters()
        position.epoch, position.step, position.loss_sum = position.epoch + 1, 0, 0.0
        if self.writes and self.folder and time.monotonic() - self._saved > self.folder.save_seconds / 6:
            self._save(self.folder)

    def _noise(self, auc: float) -> float:
        """How much an AUC on this many validation pairs may vary by chance, times the tolerance."""
        assert self.validation is not None
        return self.settings.tolerance * math.sqrt(auc * (1 - auc) / len(self.validation))

    def out_of_patience(self) -> bool:
        """Whether the last `patience` epochs were no better."""
        patience, best = self.settings.patience, self.position.best_epoch
        return patience is not None and best is not None and self.position.epoch - best >= patience

    def _parameters(self) -> dict[str, Tensor]:
        """Those of the model and, under `guide.`, of the guide."""
        guide = self.learner.guide
        beside = {} if guide is None else {f"guide.{name}": x for name, x in guide.state_dict().items()}
        return {**self.learner.model.state_dict(), **beside}

    def _keep_parameters(self) -> None:
        self.best = {name: value.detach().clone() for name, value in self._parameters().items()}

    def _save(self, folder: Folder) -> None:
        current_is_best = self.position.best_epoch == self.position.epoch and self.position.step == 0
        best = None if current_is_best else self.best
        state.save(folder.path, self.learner, self.position, best, folder.identity)
        self._saved = time.monotonic()

    def finish(self, extra: dict[str, Any]) -> dict[str, Floats]:
        """Write the best epoch's parameters and `extra`; returns the guide's, which a checkpoint lacks."""
        assert self.folder is not None
        found = self.best or self._parameters()
        tensors = {name: value.detach().float().cpu().numpy() for name, value in found.items()}
        guide = {name[6:]: tensors.pop(name) for name in list(tensors) if name.startswith("guide.")}
        guide.pop("gamma.log", None)
        if self.writes:
            about = {"gamma": self.gamma, **extra}
            checkpoint.write(self.folder.path, self.network.config, tensors, about, whole=False)
        wait_for_all(self.learner.rank)
        return guide

    def keep_best(self) -> None:
        """Give the network the parameters of the best epoch."""
        if self.best is not None:
            names = self.network.state_dict().keys()
            self.network.load_state_dict({name: self.best[name] for name in names})
            self.best = None

    def close(self) -> None:
        """Remove the state that a resumed run would start from."""
        if self.folder is not None and self.writes:
            state.remove(self.folder.path)
        wait_for_all(self.learner.rank)


def lr_scale(step: int, total: int) -> float:
    """The factor of the learning rates in step 0, 1, … of `total`: a short rise, then down to zero."""
    rise = min(WARM_UP, max(1, total // 10))
    return min(1.0, (step + 1) / rise) * max(0.0, 1.0 - step / max(1, total))
