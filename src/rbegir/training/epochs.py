"""The epochs of a training run, of one model or of several on the same batches.

    for each epoch: batches ─ steps ─ validation ─ keep the parameters? ─ save

The learning rate rises over the first steps and then falls linearly to zero. The model that is kept is that
of the latest epoch whose validation AUC is within a standard error of the highest (the last one without
validation): AUC against ten random negatives cannot tell such epochs apart, and the later one, trained at a
lower rate, ranks better among millions.

A run writes its state every `save_seconds` and at the ends of epochs, so that a resumed one comes to the
result of an uninterrupted one; see `state.py`.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rbegir.encode.clsm import checkpoint
from rbegir.encode.clsm.presets import ModelConfig
from rbegir.encode.clsm.twotower import TwoTower
from rbegir.errors import FileError, InputError
from rbegir.training import state
from rbegir.training.batches import HostBatch, StepBatch
from rbegir.training.config import TrainConfig
from rbegir.training.data import Data
from rbegir.training.device import batch_threads, matmul_precision
from rbegir.training.distributed import of_the_first, wait_for_all
from rbegir.training.engine import Engine
from rbegir.training.pipeline import BatchPlan, epoch_batches, steps_in
from rbegir.training.progress import Bar, Log
from rbegir.training.sharing import Share
from rbegir.training.validate import Scores, Validation

if TYPE_CHECKING:
    from rbegir.encode.clsm.model import Model

WARM_UP = 50  # steps
SHOW_SECONDS = 0.2


@contextmanager
def begun(
    shape: ModelConfig,
    settings: TrainConfig,
    device: torch.device,
    data: Data,
    validation: Validation | None,
    *,
    bar: Bar,
    share: Share | None = None,
    out: Path | None = None,
    save_seconds: float = 60.0,
    resume: bool = False,
) -> Iterator[Run]:
    """A run at its beginning, or where the one to resume was."""
    with torch.random.fork_rng(devices=[]), matmul_precision(device, settings):
        torch.manual_seed(settings.seed)
        engine = Engine(TwoTower(shape), settings, device, share or Share())
        try:
            run = Run(engine, data, validation, out, bar, save_seconds)
            run.start(resume=resume)
            yield run
        finally:
            engine.close()


def train_all(runs: list[Run]) -> None:
    """All epochs of one run, or of several side by side."""
    first = runs[0]
    if any(run.plan != first.plan or run.epochs != first.epochs for run in runs):
        raise InputError("models that are trained together need the same batches and epochs")
    while first.position.epoch < first.epochs and not first.out_of_patience():
        for run in runs:
            run.begin_epoch()
        for batch in first.batches():
            there = batch.to(first.engine.device)
            for run in runs:
                run.learn(there, batch)
        for run in runs:
            run.end_epoch()
    for run in runs:
        run.log.close()


class Run:
    """One model on its way through its epochs."""

    def __init__(
        self,
        engine: Engine,
        data: Data,
        validation: Validation | None,
        out: Path | None,
        bar: Bar,
        save_seconds: float,
    ) -> None:
        self.engine, self.data, self.validation, self.out, self.bar = engine, data, validation, out, bar
        self.settings = engine.config
        assert self.settings.batch_size is not None
        assert self.settings.epochs is not None
        self.epochs = self.settings.epochs
        self.plan = BatchPlan(
            batch_size=self.settings.batch_size,
            seed=self.settings.seed,
            dropout=self.settings.word_dropout,
            gram_dropout=self.settings.gram_dropout,
            negatives=0 if self.settings.negatives == "in_batch" else self.settings.negatives,
            pin=engine.device.type == "cuda",
        )
        self.steps = sum(steps_in(size, self.plan.batch_size) for size in data.sizes)  # in an epoch
        self.position = state.Position()
        self.best: dict[str, Tensor] | None = (
            None  # parameters of the best epoch unless they are the current ones
        )
        self.identity = {
            "model": engine.model.config.to_dict(),
            "training": self.settings.to_dict(),
            "pairs": data.pairs,
            "valid_pairs": len(validation) if validation else 0,
        }
        self.save_seconds = save_seconds
        self._saved = self._began = self._shown = time.monotonic()
        self._loss_sum = self._loss = torch.zeros((), dtype=torch.float64, device=engine.device)
        self._seconds, self._pairs = 0.0, 0  # spent in and trained by the steps of this run

    @property
    def writes(self) -> bool:
        return self.out is not None and self.engine.share.rank == 0

    @property
    def gamma(self) -> float:
        """γ of the best epoch."""
        return self.position.history[(self.position.best_epoch or 1) - 1]["gamma"]

    @property
    def pairs_per_s(self) -> float:
        return self._pairs / self._seconds if self._seconds else 0.0

    def start(self, *, resume: bool) -> None:
        wait_for_all(self.engine.share)  # all have seen the directory as it was
        if self.writes:
            assert self.out is not None
            try:
                self.out.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise FileError(f"cannot create {self.out}: {error.strerror}") from None
        if resume and self.out is not None and (found := state.load(self.out, self.engine, self.identity)):
            self.position, self.best = found
            if self.position.best_epoch == self.position.epoch and self.position.step == 0:
                self._keep_parameters()  # the best ones are the current ones
            self.bar.say(f"resuming in epoch {self.position.epoch + 1} after {self.position.step} batches")
        self.log = Log(
            self.out / "log" if self.writes and self.out else None, self.engine.steps, self.bar.say
        )

    def begin_epoch(self) -> None:
        engine, position = self.engine, self.position
        self._loss_sum = torch.tensor(position.loss_sum, dtype=torch.float64, device=engine.device)
        self._loss = self._loss_sum
        self.bar.begin(f"epoch {position.epoch + 1}/{self.epochs}", self.steps)
        self._began = self._shown = time.monotonic()

    def batches(self) -> Iterator[HostBatch]:
        """Those of this epoch that are still to be learned from."""
        return epoch_batches(
            self.data.chunks(),
            self.plan,
            self.position.epoch,
            skip=self.position.step,
            threads=batch_threads(self.engine.device),
        )

    def learn(self, there: StepBatch, batch: HostBatch) -> None:
        """One step on a batch that is on the device already."""
        engine, position, total = self.engine, self.position, self.steps * self.epochs
        if sum(batch.owned) > 1:  # one keyword has nothing to be compared with
            self._loss = engine.step(
                there, lr_scale=lr_scale(engine.steps, total), progress=engine.steps / max(1, total)
            )
            self._loss_sum += self._loss
        position.step += 1
        position.done += batch.pairs
        self._pairs += batch.pairs
        now = time.monotonic()
        if now - self._shown > SHOW_SECONDS:
            self._shown = now
            mean = float(self._loss_sum) / position.step
            speed = self._pairs / (self._seconds + now - self._began)
            self.bar.show(position.step, f"loss {mean:.4f}  {speed:,.0f} pairs/s")
            self.log.add(engine.steps, loss=float(self._loss), pairs_per_s=speed, gamma=engine.gamma_value)
        if self.writes and now - self._saved > self.save_seconds:
            self._pause()
            self._save()
            self._began = time.monotonic()

    def _pause(self) -> None:
        """Bring the counters up to date."""
        self.position.loss_sum = float(self._loss_sum)  # waits for the device
        self._seconds += time.monotonic() - self._began

    def end_epoch(self) -> None:
        engine, position = self.engine, self.position
        self._pause()
        entry = {"epoch": position.epoch + 1, "loss": position.loss_sum / max(1, position.step)}
        entry["gamma"] = engine.gamma_value
        if self.validation:
            self.bar.begin("validation", 1)
            scores = self.validation(engine.model, engine.device)
            scores = Scores(*of_the_first(scores, engine.device, engine.share))
            entry |= {"log_loss": scores.log_loss, "roc_auc": scores.roc_auc}
            self.log.add(engine.steps, valid_log_loss=scores.log_loss, valid_roc_auc=scores.roc_auc)
        self.bar.say(
            "  ".join(
                f"{name} {value:.4f}" if name != "epoch" else f"epoch {value}"
                for name, value in entry.items()
            )
        )
        position.history.append(entry)
        aucs = [past.get("roc_auc", 0.0) for past in position.history]
        if not self.validation or aucs[-1] >= max(aucs) - self._noise(max(aucs)):
            position.best_epoch, self.best = position.epoch + 1, None
        if position.best_epoch == position.epoch + 1 and position.epoch + 1 < self.epochs and self.validation:
            self._keep_parameters()
        position.epoch, position.step, position.loss_sum = position.epoch + 1, 0, 0.0
        if self.writes and time.monotonic() - self._saved > self.save_seconds / 6:
            self._save()

    def _noise(self, auc: float) -> float:
        """What an AUC of so many validation pairs may differ by chance, as far as it is tolerated."""
        assert self.validation is not None
        return self.settings.tolerance * math.sqrt(auc * (1 - auc) / len(self.validation))

    def out_of_patience(self) -> bool:
        patience, position = self.settings.patience, self.position
        return (
            patience is not None
            and position.best_epoch is not None
            and position.epoch - position.best_epoch >= patience
        )

    def _keep_parameters(self) -> None:
        self.best = {name: value.detach().clone() for name, value in self.engine.model.state_dict().items()}

    def _save(self) -> None:
        assert self.out is not None
        current_is_best = self.position.best_epoch == self.position.epoch and self.position.step == 0
        state.save(
            self.out, self.engine, self.position, None if current_is_best else self.best, self.identity
        )
        self._saved = time.monotonic()

    def finish(self, shape: ModelConfig) -> Model:
        """Write the best epoch's parameters and load them as the model that searching uses."""
        from rbegir.encode.clsm.model import Model

        parameters = self.best or self.engine.model.state_dict()
        tensors = {name: value.detach().float().cpu().numpy() for name, value in parameters.items()}
        extra = {
            "gamma": self.gamma,
            "training": {
                **self.settings.to_dict(),
                "pairs": self.data.pairs,
                "history": self.position.history,
                "best_epoch": self.position.best_epoch,
            },
        }
        if self.out is None:
            with tempfile.TemporaryDirectory() as temporary:  # the loaded model keeps its files mapped
                checkpoint.write(temporary, shape, tensors, extra)
                return Model.load(temporary)
        if self.writes:
            checkpoint.write(self.out, shape, tensors, extra)
            state.remove(self.out)
        wait_for_all(self.engine.share)
        return Model.load(self.out)


def lr_scale(step: int, total: int) -> float:
    """The factor of the learning rates in step 0, 1, … of `total`: a short rise, then down to zero."""
    rise = min(WARM_UP, max(1, total // 10))
    return min(1.0, (step + 1) / rise) * max(0.0, 1.0 - step / max(1, total))
