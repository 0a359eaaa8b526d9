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
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from torch import Tensor

from rbegir.base import disk
from rbegir.base.progress import Report
from rbegir.encode.clsm import checkpoint
from rbegir.encode.clsm.sides import TorchSide
from rbegir.encode.clsm.twotower import TwoTower
from rbegir.errors import InputError
from rbegir.evaluate.groups import NEGATIVES, sample_groups
from rbegir.evaluate.metrics import fit_gamma, group_auc, log_loss
from rbegir.evaluate.scorers import ModelScorer
from rbegir.training import state
from rbegir.training.batches import StepBatch, epoch_batches, steps_in
from rbegir.training.config import TrainConfig
from rbegir.training.data import MAX_VALIDATION, TrainingData
from rbegir.training.distributed import of_the_first, wait_for_all
from rbegir.training.step import Learner, batch_threads, matmul_precision

WARM_UP = 50  # steps
SHOW_SECONDS = 0.2

Floats = npt.NDArray[np.float32]


class Validation:
    """A fixed set of sample groups that a network under training is scored on."""

    def __init__(self, pairs: pa.Table, report: Report = lambda *progress: None) -> None:
        self._groups = sample_groups(pairs.slice(0, MAX_VALIDATION), negatives=NEGATIVES)
        self._report = report

    def __len__(self) -> int:
        return len(self._groups)

    def __call__(self, model: TwoTower, device: torch.device) -> tuple[float, float]:
        """Log loss and ROC AUC."""
        was_training = model.training
        model.eval()
        network: Any = SimpleNamespace(
            embed_queries=TorchSide(model, "query", device).vectors,
            embed_keywords=TorchSide(model, "keyword", device).vectors,
        )
        scores = ModelScorer(network).score(self._groups, lambda done: self._report(done, 1.0, "validation"))
        model.train(was_training)
        return log_loss(scores, fit_gamma(scores)), group_auc(scores)


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


class Run:
    """The training of one model."""

    def __init__(
        self,
        learner: Callable[[], Learner],
        settings: TrainConfig,
        data: TrainingData,
        *,
        validation: Validation | None = None,
        out: Path | None = None,
        identity: dict[str, Any] | None = None,
        save_seconds: float = 60.0,
        resume: bool = False,
        log: bool = False,
        report: Report = lambda *progress: None,
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        """At its beginning, or where the run to resume was; `learner` is called under the settings' seed.

        State and model are written to `out`, or, if it is None, the model alone to a folder that is removed
        when the run is closed. `identity` is what a resumed run must have in common with this one; `log`
        writes figures for TensorBoard, too. `report` is called with the steps done, all steps, and a line
        about them; `say` prints a line that stays.
        """
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(settings.seed)
            self.learner = learner()
        if data.taught is not None:
            device = self.learner.device
            of_queries, of_keywords = (torch.from_numpy(vectors).to(device) for vectors in data.taught)
            self.learner.taught = of_queries, of_keywords
        self._open = ExitStack()
        self._open.callback(self.learner.close)
        self.home = out or Path(self._open.enter_context(TemporaryDirectory()))
        self.settings, self.data, self.validation = settings, data, validation
        self.out, self.identity, self._save_seconds = out, identity or {}, save_seconds
        self._report, self._say = report, say
        assert settings.batch_size is not None
        assert settings.epochs is not None
        self.epochs = settings.epochs
        self.steps = sum(steps_in(size, settings.batch_size) for size in data.sizes)  # in an epoch
        self.position = state.Position()
        self.best: dict[str, Tensor] | None = None  # the best epoch's parameters unless they are the current
        self._kept: dict[str, Tensor] = {}
        self._saved = self._began = self._shown = time.monotonic()
        self._loss_sum = self._loss = torch.zeros((), dtype=torch.float64, device=self.learner.device)
        self._seconds, self._pairs = 0.0, 0  # spent in and trained by the steps of this run
        self._writes = out is None or self.learner.rank.number == 0  # processes share `out`
        wait_for_all(self.learner.rank)  # all have seen the directory as it was
        if out is not None and self._writes:
            with disk.explained("create", out):
                out.mkdir(parents=True, exist_ok=True)
        if out is not None and resume and (found := state.load(out, self.learner, self.identity)):
            self.position, self.best = found
            if self._current_is_best:
                self._keep_parameters()
            say(f"resuming in epoch {self.position.epoch + 1} after {self.position.step} batches")
        self._log: Any = None
        if out is not None and log and self._writes:
            self._log = self._open.enter_context(_summary_writer(out / "log", self.learner.steps, say))

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *raised: object) -> None:
        self._open.close()

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

    @property
    def _current_is_best(self) -> bool:
        return self.position.best_epoch == self.position.epoch and self.position.step == 0

    def begin_epoch(self) -> None:
        self._loss_sum = self._loss_sum.new_tensor(self.position.loss_sum)
        self._loss = self._loss_sum
        self._began = self._shown = time.monotonic()

    def batches(self) -> Iterator[StepBatch]:
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
        if now - self._shown > SHOW_SECONDS or position.step == self.steps:
            self._shown = now
            mean = float(self._loss_sum) / position.step
            speed = self._pairs / (self._seconds + now - self._began)
            epoch = f"epoch {position.epoch + 1}/{self.epochs}"
            done = position.epoch * self.steps + position.step
            self._report(done, total, f"{epoch}  loss {mean:.4f}  {speed:,.0f} pairs/s")
            self._record(loss=float(self._loss), pairs_per_s=speed, gamma=learner.gamma_value)
        if self.out and self._writes and now - self._saved > self._save_seconds:
            self._pause()
            self._save(self.out)
            self._began = time.monotonic()

    def _record(self, **values: float) -> None:
        """Write figures of the present step to the log."""
        for name, value in values.items() if self._log is not None else ():
            self._log.add_scalar(name, value, self.learner.steps)

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
            scores = self.validation(learner.model, learner.device)
            loss, auc = of_the_first(scores, learner.device, learner.rank)
            entry |= {"log_loss": loss, "roc_auc": auc}
            self._record(valid_log_loss=loss, valid_roc_auc=auc)
        shown = [f"{name} {value:.4f}" for name, value in entry.items() if name != "epoch"]
        self._say("  ".join([f"epoch {entry['epoch']}", *shown]))
        position.history.append(entry)
        position.epoch, position.step, position.loss_sum = position.epoch + 1, 0, 0.0
        aucs = [past.get("roc_auc", 0.0) for past in position.history]
        if not self.validation or aucs[-1] >= max(aucs) - self._noise(max(aucs)):
            position.best_epoch, self.best = position.epoch, None
            if self.validation and position.epoch < self.epochs:
                self._keep_parameters()
        if self.out and self._writes and time.monotonic() - self._saved > self._save_seconds / 6:
            self._save(self.out)

    def _noise(self, auc: float) -> float:
        """How much an AUC on this many validation pairs may vary by chance, times the tolerance."""
        assert self.validation is not None
        return self.settings.tolerance * math.sqrt(auc * (1 - auc) / len(self.validation))

    def out_of_patience(self) -> bool:
        """Whether the last `patience` epochs were no better."""
        patience, best = self.settings.patience, self.position.best_epoch
        return patience is not None and best is not None and self.position.epoch - best >= patience

    def _parameters(self) -> dict[str, Tensor]:
        """The parameters of the model and, under `guide.`, of the guide."""
        guide = self.learner.guide
        beside = {} if guide is None else {f"guide.{name}": x for name, x in guide.state_dict().items()}
        return {**self.learner.model.state_dict(), **beside}

    def _keep_parameters(self) -> None:
        for name, value in self._parameters().items():  # into the same memory each time
            self._kept.setdefault(name, torch.empty_like(value)).copy_(value.detach())
        self.best = self._kept

    def _save(self, out: Path) -> None:
        best = None if self._current_is_best else self.best
        state.save(out, self.learner, self.position, best, self.identity)
        self._saved = time.monotonic()

    def finish(self, extra: dict[str, Any]) -> dict[str, Floats]:
        """Write the best epoch's parameters and `extra`; returns the guide's, which a checkpoint lacks."""
        found = self.best or self._parameters()
        tensors = {name: value.detach().float().cpu().numpy() for name, value in found.items()}
        guide = {name[6:]: tensors.pop(name) for name in list(tensors) if name.startswith("guide.")}
        guide.pop("gamma.log", None)
        if self._writes:
            about = {"gamma": self.gamma, **extra}
            checkpoint.write(self.home, self.network.config, tensors, about, whole=False)
        wait_for_all(self.learner.rank)
        return guide

    def keep_best(self) -> None:
        """Give the network the parameters of the best epoch."""
        if self.best is not None:
            names = self.network.state_dict().keys()
            self.network.load_state_dict({name: self.best[name] for name in names})
            self.best = None

    def remove_state(self) -> None:
        """Remove what a resumed run would start from."""
        if self.out is not None and self._writes:
            state.remove(self.out)
        wait_for_all(self.learner.rank)


def _summary_writer(directory: Path, step: int, say: Callable[[str], None]) -> AbstractContextManager[Any]:
    """A log for TensorBoard; none, and a line that says so, without that package."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        say("tensorboard is not installed: no log is written")
        return nullcontext()
    # events that a killed run wrote after its last saved state are marked as superseded
    with disk.explained("write", directory):
        return SummaryWriter(str(directory), purge_step=step or None)


def lr_scale(step: int, total: int) -> float:
    """The factor of the learning rates in step 0, 1, … of `total`: a short rise, then down to zero."""
    rise = min(WARM_UP, max(1, total // 10))
    return min(1.0, (step + 1) / rise) * max(0.0, 1.0 - step / max(1, total))
