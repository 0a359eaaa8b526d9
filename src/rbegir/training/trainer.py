"""Training from a file of clicked pairs to a checkpoint: the options, the checks of the data, the result."""

import inspect
import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, fields, replace
from functools import partial, wraps
from pathlib import Path
from typing import Any, Literal, ParamSpec

import pyarrow as pa
import torch

from rbegir.base.devices import cpu_count
from rbegir.base.progress import Report, reported, wanted
from rbegir.encode.clsm import checkpoint
from rbegir.encode.clsm.clsm import tower_batch
from rbegir.encode.clsm.model import Model
from rbegir.encode.clsm.presets import FLOAT, ModelConfig
from rbegir.encode.clsm.presets import preset as named_preset
from rbegir.encode.clsm.twotower import TwoTower
from rbegir.errors import InputError, TrainingWarning
from rbegir.evaluate.evaluator import corpus_texts
from rbegir.read.pairs import PairStream, TextStream, read_pairs, read_texts
from rbegir.read.tokenizer import tokenize
from rbegir.training import state
from rbegir.training.config import Precision, TrainConfig, change
from rbegir.training.corpus import ENOUGH, corpus_pairs, wanted_pairs
from rbegir.training.data import Teacher, TrainingData, drawn
from rbegir.training.distributed import Exchange, Rank, join_processes
from rbegir.training.loop import Run, Validation, train_all
from rbegir.training.rerank import (
    COMPARED,
    COMPARED_TEXTS,
    UNTRAINED,
    compare,
    divide,
    fit_reranker,
    has_reranker,
    searched_texts,
)
from rbegir.training.step import Learner, resolve_device

UNVALIDATED = "train without validation (--no-valid, valid=False in Python)"  # part of a hint
# the settings that are arguments of `run`; its `teacher` is a model, that of the settings a weight
SETTINGS = {setting.name for setting in fields(TrainConfig)} - {"teacher"}


@dataclass(frozen=True)
class TrainResult:
    """A trained model and the figures of its training."""

    model: Model
    history: list[dict[str, float]]  # epoch, loss, gamma and, with validation, log_loss and roc_auc
    best_epoch: int
    pairs: int  # in an epoch
    gamma: float
    valid_pairs: int = 0
    pairs_per_s: float = 0.0  # of the training steps alone, without validation and saving
    skipped: dict[str, int] = field(default_factory=dict)  # rows of the file that were left out, by reason
    # recall of held-out pairs by method: the model (reranked and by codes), and what needs no training
    recall: dict[str, dict[str, float]] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """For JSON: the figures of the best epoch and of the run; None where there was no validation."""
        best: dict[str, float] = next((e for e in self.history if e["epoch"] == self.best_epoch), {})
        run = {name: value for name, value in vars(self).items() if name != "model"}
        validated = {name: best.get(name) for name in ("log_loss", "roc_auc")}
        return {**validated, "epochs": len(self.history), **run}


def run(
    pairs: Any = None,
    *,
    corpus: Any = None,
    teacher: str | Path | None = None,
    preset: str = "rbe_star",
    config: ModelConfig | None = None,
    valid: Any = None,
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
    rerank: bool | None = None,
    share_towers: bool | None = None,
    patience: int | None = None,
    precision: Precision | None = None,
    seed: int | None = None,
    device: str = "auto",
    resume: bool = False,
    progress: bool | None = None,
    strict: bool = False,
    query_column: str = "query",
    keyword_column: str = "keyword",
    weight_column: str | None = "weight",
    text_column: str = "text",
    save_seconds: float = 60.0,
) -> TrainResult:
    """Learn a model from clicked pairs: a file (Parquet, CSV, TSV, JSONL, gz allowed), a DataFrame, an Arrow
    table, a list of (query, keyword) pairs, or a stream of pairs.

    `corpus` is the texts that will be searched, in the same forms or as a list of texts: pairs made from them
    (`corpus.py`) are added where clicked pairs are few, or used alone if `pairs` is None. `teacher` is a
    sentence-transformers model to learn from, too: a directory or a name in the local cache (`data.py`).
    `config` replaces the preset's shape, shared towers included. `valid` is a file of pairs, None to hold out
    2 % of the keywords by a fixed hash, False for no validation. `out` is the checkpoint's directory; without
    it the model is only returned. `progress` shows a bar and figures on stderr; None does where somebody
    sees them, in a terminal or a notebook.
    Settings from `epochs` to `seed` replace those of `settings`; see `TrainConfig` for what they mean.
    """
    given = {name: value for name, value in locals().items() if name in SETTINGS}
    settings = change(settings or TrainConfig(), **given)
    shape = config or replace(named_preset(preset), share_towers=settings.share_towers)
    settings = change(settings, share_towers=shape.share_towers)
    chosen = resolve_device(device)
    if resume and out is None:
        raise InputError("there is nothing to resume without out", hint="name the directory of the run")
    directory = None if out is None else Path(out)
    reader = partial(
        read_pairs,
        query_column=query_column,
        keyword_column=keyword_column,
        weight_column=weight_column,
        strict=strict,
    )
    finished = directory is not None and state.finished(directory, settings, resume=resume)
    if directory is not None and finished:
        stored = checkpoint.Checkpoint(directory).config
        if has_reranker(directory) or not _reranks(settings, stored):  # it was not stopped before that
            return _result(directory)
    if teacher is not None and not (settings.guide and settings.teacher):
        raise InputError("a teacher needs a guide, which this recipe lacks", hint="use the default recipe")
    rank = join_processes(chosen)
    shown = False if rank.number else progress
    spoken = wanted(shown)

    def say(line: str) -> None:
        """Print a line that stays, above the bar if there is one."""
        if spoken:
            print(line, file=sys.stderr)

    with reported(shown, "reading") as report:
        stream = pairs if pairs is None or isinstance(pairs, PairStream) else reader(pairs)
        if corpus is not None and not isinstance(corpus, TextStream):
            corpus = read_texts(corpus, text_column=text_column, strict=strict)
        texts = None if corpus is None else corpus_texts(corpus)
        if texts is not None and corpus.skipped:
            say(f"corpus: {corpus.skipped}\nhint: {corpus.skipped.hint}")
        held = None if valid is None or valid is False else drawn(reader(valid).read_all())
        rows, clicked = _rows(stream, texts, settings.seed)
        asked = None
        if teacher is not None:
            asked = Teacher(teacher, settings.guide_dims, device=str(chosen), report=report)
        data = TrainingData(
            rows,
            hash_buckets=shape.hash_buckets,
            buffer_pairs=settings.buffer_pairs,
            hold_out=valid is None,
            report=report,
            exchange=Exchange(rank),
            clicked=clicked,
            teacher=asked,
        )
        skipped = stream.skipped if stream is not None and clicked else data.skipped
        if skipped:
            say(f"{skipped}\nhint: {skipped.hint}")
        _check_trainable(data)
        held = data.held_out if valid is None else held
        validation = None if held is None else _validation(held, valid, report)
        settings = settings.for_pairs(data.pairs)
        valid_pairs = len(validation) if validation else 0
        identity = {
            "model": shape.to_dict(),
            "training": settings.to_dict(),
            "pairs": data.pairs,
            "valid_pairs": valid_pairs,
            **({} if teacher is None else {"teacher": Path(teacher).name}),
        }
        with Run(
            partial(_learner, shape, settings, data.sample, chosen, rank),
            settings,
            data,
            validation=validation,
            out=directory,
            identity=identity,
            save_seconds=save_seconds,
            resume=resume,
            log=True,
            report=report,
            say=say,
        ) as run:
            train_all([run])
            about = {"pairs": data.pairs, "history": run.history, "best_epoch": run.best_epoch}
            guide = run.finish({"training": {**settings.to_dict(), **about}})
            recall: dict[str, dict[str, float]] = {}
            reranked = _reranks(settings, shape)
            if rank.number == 0 and (reranked or held is not None):
                to_measure = PairStream.schema.empty_table() if held is None else held
                searched = searched_texts(stream, texts, to_measure, settings.seed)
                if reranked:
                    report(0.0, 1.0, "fitting the reranker")
                    to_fit, to_measure = divide(to_measure)
                    made = Model.load(run.home)
                    reranker = fit_reranker(made, guide, searched, to_fit, settings.seed)
                    reranker.write(run.home, made.fingerprint)
                if to_measure.num_rows:
                    report(0.0, 1.0, "comparing with methods that need no training")
                    recall = compare(Model.load(run.home), searched, to_measure, settings.seed)
                    counts = min(COMPARED, to_measure.num_rows), min(COMPARED_TEXTS, len(searched))
                    _tell(recall, counts, say, pairs=stream, corpus=texts)
            run.remove_state()
            result = _result(
                run.home,
                valid_pairs=valid_pairs,
                pairs_per_s=run.pairs_per_s,
                skipped=skipped.to_dict(),
                recall=recall,
            )
    return result


def _reranks(settings: TrainConfig, shape: ModelConfig) -> bool:
    """Whether a run fits a reranker: keywords must have codes that an index can hold."""
    planes = max(shape.query_planes, shape.keyword_planes)
    searchable = shape.keyword_planes != FLOAT and (shape.residual_weights or planes == 1)
    return settings.rerank and settings.guide > 0 and searchable


def _tell(
    recall: dict[str, dict[str, float]],
    counts: tuple[int, int],
    say: Callable[[str], None],
    *,
    pairs: PairStream | None,
    corpus: pa.Array | None,
) -> None:
    """Print how the model compares with methods that need no training, and warn if it is behind."""
    say("{:,} held-out pairs among about {:,} texts; no weight was fitted on them,".format(*counts))
    say("but they are among those by which the epoch was chosen:")
    for method, figures in recall.items():
        say(f"  {method:18}" + "".join(f"  {name} {value:.3f}" for name, value in figures.items()))
    found = {method: figures["recall@10"] for method, figures in recall.items()}
    ours = next(iter(found.values()))  # as an index with this model searches
    best = max(UNTRAINED, key=found.__getitem__)
    if ours < found[best]:
        more = "more pairs" if pairs is not None else "clicked pairs"
        texts = ", or the texts that will be searched as a corpus" if corpus is None else ""
        warnings.warn(
            f"the model finds less than {best}, which needs no training: "
            f"recall@10 is {ours:.3f} and {found[best]:.3f}; give {more}{texts}",
            TrainingWarning,
            stacklevel=4,  # the caller of `train`
        )


def fit(
    data: TrainingData,
    models: Sequence[tuple[ModelConfig, TrainConfig]],
    *,
    validation: Validation | None = None,
    device: str = "auto",
) -> list[Run]:
    """Train models side by side on the same batches, from tokenised data and without any file.

    Each becomes the model that it would be alone. Batches are built once for all of them, which saves CPU
    time but no GPU time; they must agree in what their batches are made of.
    """
    _check_trainable(data)
    chosen = resolve_device(device)
    with ExitStack() as stack:
        runs = []
        for shape, given in models:
            settings = given.for_pairs(data.pairs)
            learner = partial(_learner, shape, settings, data.sample, chosen)
            runs.append(stack.enter_context(Run(learner, settings, data, validation=validation)))
        train_all(runs)
        for run in runs:
            run.keep_best()
        return runs


def _learner(
    shape: ModelConfig,
    settings: TrainConfig,
    sample: pa.Array,
    device: torch.device,
    rank: Rank | None = None,
) -> Learner:
    model = TwoTower(shape, equal_start=settings.equal_start)
    if settings.spelling_start:
        grams = tokenize(sample, hash_buckets=shape.hash_buckets, threads=cpu_count())
        model.start_from_spelling(tower_batch(grams))
    return Learner(model, settings, device, rank)


P = ParamSpec("P")


def _returning_the_model(function: Callable[P, TrainResult]) -> Callable[P, Model]:
    """`function` with its arguments, which `help` and editors then show, and only the model as the result."""

    @wraps(function)
    def train(*args: P.args, **kwargs: P.kwargs) -> Model:
        return function(*args, **kwargs).model

    train.__name__ = train.__qualname__ = "train"
    train.__annotations__ = {**function.__annotations__, "return": Model}
    train.__signature__ = inspect.signature(function).replace(return_annotation=Model)  # type: ignore[attr-defined]
    return train


train = _returning_the_model(run)


def _rows(stream: PairStream | None, texts: pa.Array | None, seed: int) -> tuple[PairStream, int | None]:
    """The training pairs: the stream, or its pairs and those made of the corpus, and how many are clicked."""
    if texts is None:
        if stream is None:
            raise InputError("training needs pairs, a corpus, or both", hint="give a file of one of them")
        return stream, None
    clicked = PairStream.schema.empty_table() if stream is None else stream.head(ENOUGH)
    wanted = wanted_pairs(clicked.num_rows, len(texts))
    if stream is not None and not wanted:
        return stream, None
    made = corpus_pairs(texts, wanted, seed)
    return read_pairs(pa.concat_tables([clicked, made])), clicked.num_rows


def _check_trainable(data: TrainingData) -> None:
    """Refuse data that is too small to compare anything with anything."""
    held = f" (pairs held out for validation: {data.held_pairs})" if data.held_pairs else ""
    hint = f"give more pairs{f', or {UNVALIDATED}' if held else ''}"
    if data.pairs < 2:
        pairs = "1 pair" if data.pairs else "none"
        raise InputError(f"training needs at least 2 pairs, got {pairs}{held}", hint=hint)
    if not data.varied:
        raise InputError(f"training needs at least 2 different keywords, got 1{held}", hint=hint)


def _validation(pairs: pa.Table, valid: Any, report: Report) -> Validation:
    """The validation on pairs that were held out, or that `valid` gave."""
    try:
        return Validation(pairs, report)
    except InputError as error:
        what = "held out" if valid is None else f"of {valid}" if isinstance(valid, (str, Path)) else "given"
        raise InputError(
            f"the pairs {what} for validation are too few: {error.message}",
            hint=f"give more pairs, a file of validation pairs, or {UNVALIDATED}",
        ) from None


def _result(home: Path, **measured: Any) -> TrainResult:
    """The model in a directory, with the figures stored in it and what was measured besides."""
    model, extra = Model.load(home), checkpoint.Checkpoint(home).extra
    _ = model.reranker  # is read before a temporary folder goes
    training = extra.get("training", {})
    return TrainResult(
        model=model,
        history=training.get("history", []),
        best_epoch=training.get("best_epoch") or 0,
        pairs=training.get("pairs", 0),
        gamma=extra.get("gamma", 0.0),
        **measured,
    )
