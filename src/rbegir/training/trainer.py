"""Training from a file of clicked pairs to a checkpoint.

    pairs ─ survey, hold-out ─ for each epoch: batches ─ steps ─ validation ─ … ─ the best epoch's parameters

The learning rate rises over the first steps and then falls linearly to zero. The model that is kept is that
of the latest epoch whose validation AUC is within a standard error of the highest (the last one without
validation): AUC against ten random negatives cannot tell such epochs apart, and the later one, trained at a
lower rate, ranks better among millions.

A run writes its state every `save_seconds` and at the ends of epochs, so that `resume=True` continues after
any interruption to the result of an uninterrupted run; see `state.py`.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, ParamSpec

import pyarrow as pa
import torch
from torch import Tensor

from rbegir.errors import FileError, InputError
from rbegir.model import checkpoint
from rbegir.model.presets import ModelConfig
from rbegir.model.presets import preset as named_preset
from rbegir.model.twotower import TwoTower
from rbegir.training import state
from rbegir.training.batches import HostBatch, StepBatch
from rbegir.training.config import Precision, TrainConfig, change
from rbegir.training.data import Data
from rbegir.training.device import batch_threads, cpu_count, matmul_precision, resolve_device
from rbegir.training.distributed import Exchange, join_processes, of_the_first, wait_for_all
from rbegir.training.engine import Engine
from rbegir.training.pairs import PairStream, read_pairs
from rbegir.training.pipeline import BatchPlan, epoch_batches, steps_in
from rbegir.training.progress import Bar, Log
from rbegir.training.sharing import Share
from rbegir.training.validate import MAX_PAIRS, Scores, Validation

if TYPE_CHECKING:
    from rbegir.model.model import Model

WARM_UP = 50  # steps
SHOW_SECONDS = 0.2


@dataclass(frozen=True)
class TrainResult:
    """A trained model and how it got there."""

    model: Model
    history: list[dict[str, float]]  # epoch, loss, gamma and, with validation, log_loss and roc_auc
    best_epoch: int
    pairs: int  # in an epoch
    valid_pairs: int
    pairs_per_s: float  # of the training steps of this process's run, validation and saving left out
    gamma: float
    skipped: dict[str, int]  # rows of the file that were left out, by reason

    def to_dict(self) -> dict[str, Any]:
        """For JSON: the figures of the best epoch and of the run; None where there was no validation."""
        best: dict[str, float] = next((e for e in self.history if e["epoch"] == self.best_epoch), {})
        return {
            "log_loss": best.get("log_loss"),
            "roc_auc": best.get("roc_auc"),
            "pairs_per_s": self.pairs_per_s,
            "pairs": self.pairs,
            "valid_pairs": self.valid_pairs,
            "epochs": len(self.history),
            "best_epoch": self.best_epoch,
            "gamma": self.gamma,
            "skipped": self.skipped,
            "history": self.history,
        }


def run(
    pairs: str | Path | PairStream,
    *,
    preset: str = "rbe_star",
    config: ModelConfig | None = None,
    valid: str | Path | Literal[False] | None = None,
    out: str | Path | None = None,
    settings: TrainConfig | None = None,
    epochs: int | None = None,
    batch_size: int | None = None,
    lr: float | None = None,
    negatives: Literal["in_batch"] | int | None = None,
    gamma: float | Literal["learned"] | None = None,
    word_dropout: float | None = None,
    gram_dropout: float | None = None,
    feature_dropout: float | None = None,
    share_towers: bool | None = None,
    patience: int | None = None,
    precision: Precision | None = None,
    seed: int | None = None,
    device: str = "auto",
    resume: bool = False,
    progress: bool = False,
    strict: bool = False,
    query_column: str = "query",
    keyword_column: str = "keyword",
    weight_column: str | None = "weight",
    save_seconds: float = 60.0,
) -> TrainResult:
    """Learn a model from clicked pairs: a file (Parquet, CSV, TSV, JSONL, gz allowed) or a stream of pairs.

    `config` replaces the preset's shape, shared towers included. `valid` is a file of pairs, None to hold out
    2 % of the keywords by a fixed hash, False for no validation. `out` is the checkpoint's directory; without
    it the model is only returned.
    Settings from `epochs` to `seed` replace those of `settings`; see `TrainConfig` for what they mean.
    """
    settings = change(
        settings or TrainConfig(),
        epochs=epochs,
        batch_size=batch_size,
        lr=lr,
        negatives=negatives,
        gamma=gamma,
        word_dropout=word_dropout,
        gram_dropout=gram_dropout,
        feature_dropout=feature_dropout,
        share_towers=share_towers,
        patience=patience,
        precision=precision,
        seed=seed,
    )
    shape = config or replace(named_preset(preset), share_towers=settings.share_towers)
    settings = change(settings, share_towers=shape.share_towers)
    chosen = resolve_device(device)
    directory = None if out is None else Path(out)

    def reader(path: str | Path) -> PairStream:
        return read_pairs(
            path,
            query_column=query_column,
            keyword_column=keyword_column,
            weight_column=weight_column,
            strict=strict,
        )

    if directory is not None and _is_complete(directory, resume=resume):
        return _already_done(directory)
    share = join_processes(chosen)
    with Bar(enabled=progress and share.rank == 0) as bar:
        stream = pairs if isinstance(pairs, PairStream) else reader(pairs)
        bar.begin("reading", 1.0)
        data = Data(
            stream,
            hash_buckets=shape.hash_buckets,
            buffer_pairs=settings.buffer_pairs,
            threads=cpu_count(),
            hold_out=valid is None,
            notify=bar.show,
            exchange=Exchange(share),
        )
        if data.skipped:
            bar.say(str(data.skipped))
        _check_trainable(data)
        validation = None
        if valid is None:
            assert data.held_out is not None
            validation = _validation(data.held_out, shape, "the pairs held out for validation")
        elif valid is not False:
            validation = _validation(reader(valid).head(MAX_PAIRS), shape, f"the pairs of {valid}")
        with _begun(
            shape,
            settings.for_pairs(data.pairs),
            chosen,
            data,
            validation,
            share=share,
            out=directory,
            bar=bar,
            save_seconds=save_seconds,
            resume=resume,
        ) as run:
            _train([run])
            model = run.finish(shape)
    return TrainResult(
        model=model,
        history=run.position.history,
        best_epoch=int(run.position.best_epoch or 0),
        pairs=data.pairs,
        valid_pairs=len(validation) if validation else 0,
        pairs_per_s=run.pairs_per_s,
        gamma=run.gamma,
        skipped=data.skipped.to_dict(),
    )


@dataclass(frozen=True)
class Fitted:
    """A trained network where it was trained, for whoever wants to measure it there."""

    network: TwoTower
    history: list[dict[str, float]]  # as in TrainResult
    best_epoch: int
    gamma: float
    pairs_per_s: float


def fit(
    data: Data,
    models: Sequence[tuple[ModelConfig, TrainConfig]],
    *,
    validation: Validation | None = None,
    device: str = "auto",
) -> list[Fitted]:
    """`run` for tokenised data, without any file: models that are trained side by side on the same batches.

    Each is the model that it would be alone. A GPU waits for its batches more than they wait for it, so
    several models take hardly longer than one; they must agree in what their batches are made of.
    """
    _check_trainable(data)
    chosen = resolve_device(device)
    with ExitStack() as stack:
        bar = stack.enter_context(Bar(enabled=False))
        runs = [
            stack.enter_context(
                _begun(shape, settings.for_pairs(data.pairs), chosen, data, validation, bar=bar)
            )
            for shape, settings in models
        ]
        _train(runs)
        for run in runs:
            if run.best is not None:
                run.engine.model.load_state_dict(run.best)
        return [
            Fitted(
                network=run.engine.model,
                history=run.position.history,
                best_epoch=int(run.position.best_epoch or 0),
                gamma=run.gamma,
                pairs_per_s=run.pairs_per_s,
            )
            for run in runs
        ]


@contextmanager
def _begun(
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
) -> Iterator[_Run]:
    """A run at its beginning, or where the one to resume was."""
    with torch.random.fork_rng(devices=[]), matmul_precision(device, settings):
        torch.manual_seed(settings.seed)
        engine = Engine(TwoTower(shape), settings, device, share or Share())
        try:
            run = _Run(engine, data, validation, out, bar, save_seconds)
            run.start(resume=resume)
            yield run
        finally:
            engine.close()


def _train(runs: list[_Run]) -> None:
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


P = ParamSpec("P")


def _returning_the_model(function: Callable[P, TrainResult]) -> Callable[P, Model]:
    """The same arguments, which `help` and editors then show, and only the model as the result."""

    @wraps(function)
    def train(*args: P.args, **kwargs: P.kwargs) -> Model:
        return function(*args, **kwargs).model

    train.__name__ = train.__qualname__ = "train"
    return train


train = _returning_the_model(run)


class _Run:
    """The state of one call of `run`, and its epochs."""

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
        from rbegir.model.model import Model

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


def _check_trainable(data: Data) -> None:
    """Refuse data in which there is nothing to compare."""
    if data.pairs < 2:
        held = f" and {data.held_pairs} held out" if data.held_pairs else ""
        came = f"{data.pairs} pair{'' if data.pairs == 1 else 's'}{held}"
        raise InputError(f"training needs at least 2 pairs, got {came}", hint="give more pairs")
    if not data.varied:
        raise InputError("training needs at least 2 different keywords, got 1", hint="give more pairs")


def _validation(pairs: pa.Table, shape: ModelConfig, what: str) -> Validation:
    distinct = len(pairs["keyword"].unique())
    if distinct < 2:
        raise InputError(
            f"validation needs at least 2 different keywords, {what} have {distinct}",
            hint="give more pairs, a file of validation pairs, or train without validation (--no-valid)",
        )
    return Validation(pairs, hash_buckets=shape.hash_buckets, threads=cpu_count())


def _is_complete(out: Path, *, resume: bool) -> bool:
    """Refuse a directory that is in use; whether it holds the finished result of the run to resume."""
    if not out.exists():
        return False
    if not out.is_dir():
        raise FileError(f"out must be a directory, but {out} is a file")
    if not resume and any(out.iterdir()):
        raise FileError(
            f"{out} is not empty", hint="choose another directory, or continue a run with --resume"
        )
    return resume and (out / checkpoint.CONFIG).exists() and not (out / state.NAME).exists()


def _already_done(out: Path) -> TrainResult:
    from rbegir.model.model import Model

    _, _, extra = checkpoint.read(out)
    training = extra.get("training", {})
    return TrainResult(
        model=Model.load(out),
        history=training.get("history", []),
        best_epoch=training.get("best_epoch") or 0,
        pairs=training.get("pairs", 0),
        valid_pairs=0,
        pairs_per_s=0.0,
        gamma=extra.get("gamma", 0.0),
        skipped={},
    )
