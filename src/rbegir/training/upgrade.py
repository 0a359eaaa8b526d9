"""A new model for codes that are already stored: upgrade the queries, keep the keywords.

    result = rbegir.upgrade("ads.rbe", "clicks.parquet", out="model2/")       # or a model's directory
    result.kept                                                                 # what is kept, in figures

A better query model is no reason to encode billions of stored keywords again. The new query side is trained
against the stored codes themselves:

    keywords="keep"   a new query side for the old keyword side, which stays as it is, to the bit. Old and new
                      keywords share one index; `adopt` puts the new model into it.
    keywords="new"    both sides are new, and the query side learns to read the old codes too. New keywords
                      get new codes, in an index of their own; `rbegir.Generations` searches both.

*The loss.* In every batch the columns of the softmax are the batch's distinct keywords in each generation g,
old ones as the constant codes that encoding stored, new ones as the new keyword side makes them:

    loss = mean over g of −log P_g        P_g = e(k⁺, g) / (e(k⁺, g) + Σ_{h, k ≠ k⁺} e(k, h))
                                          e(k, g) = exp γ cos(b_q, b_k of generation g)

A keyword of one generation has to beat the others of *all* generations, which makes their scores comparable.
The positive's own codes in other generations are left out, because they are right answers.

*The reranker.* Where the old model has one, a guide is trained beside the codes, starting from the old guide,
and a reranker is fitted on the held-out pairs.

*Rejected.* Two models trained apart, a query code for each, results merged by score: their cosines are not
on one scale, and the generation with the higher ones hides the other (measured in `benchmarks/upgrade.py`).
Mapping old codes to new ones: that is encoding again, with an error on top.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor

from rbegir.base.progress import Report, reported
from rbegir.codes.planes import Codes
from rbegir.encode.clsm.clsm import TowerBatch
from rbegir.encode.clsm.model import Model
from rbegir.encode.clsm.presets import ModelConfig, Side, tensor_shapes
from rbegir.encode.clsm.twotower import TwoTower
from rbegir.encode.encoder import Encoder, encode_keywords
from rbegir.encode.reranker import Reranker
from rbegir.errors import InputError, MismatchError
from rbegir.evaluate.evaluator import corpus_texts, evaluate_model
from rbegir.evaluate.groups import distinct
from rbegir.evaluate.scorers import ModelScorer
from rbegir.index.manifest import MODEL, read_manifest
from rbegir.index.writer import WriterLock
from rbegir.read.pairs import read_pairs
from rbegir.read.split import positions
from rbegir.training import state
from rbegir.training.batches import StepBatch
from rbegir.training.config import TrainConfig, change
from rbegir.training.data import TrainingData, hold_out_below
from rbegir.training.loop import Run, train_all
from rbegir.training.loss import Guide, group_loss
from rbegir.training.rerank import fit_reranker, has_reranker, searched_texts
from rbegir.training.step import Learner, Output

KEPT = ("keyword_planes", "conv", "hidden", "hash_buckets", "time_varying", "residual_weights", "bias")
KeywordSide = Literal["new", "keep"]
Progress = Callable[[float, str], None]  # the share of all steps that is done, and a line about it


@dataclass(frozen=True)
class Upgrade:
    """The new model and what it keeps: figures by (query side, codes asked), such as `kept["new/old"]`."""

    model: Model
    keywords: KeywordSide
    kept: dict[str, dict[str, float]] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        about = {"fingerprint": self.model.fingerprint, "reads": list(self.model.reads)}
        return {**about, "keywords": self.keywords, "kept": self.kept}


def upgrade(
    old: str | os.PathLike[str] | Encoder,
    pairs: Any,
    *,
    out: str | Path | None = None,
    keywords: KeywordSide = "new",
    config: ModelConfig | None = None,
    valid: Any = None,
    corpus: pa.Array | Sequence[str] | None = None,
    settings: TrainConfig | None = None,
    epochs: int | None = None,
    batch_size: int | None = None,
    seed: int | None = None,
    progress: Progress | bool | None = None,
    resume: bool = False,
    save_seconds: float = 60.0,
) -> Upgrade:
    """Train a model whose queries search the codes that `old` has stored.

    `old` is a model, an index or the directory of one, or any encoder whose codes are stored. `pairs` are
    given as for `rbegir.train`. `config` is the shape of the new model (by default the old one's, and n must
    be the same); with keywords="keep" only its query side may differ. `valid` are the pairs that `kept` is
    measured on (2 % of the keywords are held out if not given), `corpus` the texts that recall is measured in
    (by default all keywords of the pairs). With `out`, the run saves its state there every `save_seconds`,
    and `resume` continues a run that was stopped, with the result of an uninterrupted one. `progress` is
    called with the share done and a line about it; True shows a bar, and None does in a terminal or a
    notebook.
    """
    if keywords not in ("new", "keep"):
        raise InputError(f"keywords must be 'new' or 'keep', got {keywords!r}")
    before = _encoder(old)
    shape = _shape(before, config, keywords)
    if resume and out is None:
        raise InputError("there is nothing to resume without out", hint="name the directory of the run")
    settings = change(settings or TrainConfig(), epochs=epochs, batch_size=batch_size, seed=seed)
    path = None if out is None else Path(out)
    reranker = getattr(before, "reranker", None) if settings.rerank and settings.guide else None
    finished = path is not None and state.finished(path, settings, resume=resume)
    if path is not None and finished and reranker is not None:
        finished = has_reranker(path)
    if settings.negatives != "in_batch":
        raise InputError("an upgrade is trained with in-batch negatives", hint="leave negatives out")
    table = read_pairs(pairs).read_all()
    table, held_out = _split(table, None if valid is None else read_pairs(valid).read_all())
    if corpus is None:
        corpus = pa.concat_arrays([part["keyword"].unique() for part in (table, held_out)])
    settings = settings.for_pairs(table.num_rows, most_epochs=40)  # it does not start from nothing
    names = list(getattr(before, "same_keywords", (before.fingerprint,)))  # of the codes that are stored
    training = {**settings.to_dict(), "pairs": table.num_rows}
    extra: dict[str, Any] = {"reads": names, "training": training}
    if keywords == "keep":
        extra["same_keywords"] = names
    kept = {"old/old": measure(held_out, corpus, before)}  # before training, as it may refuse the corpus
    if path is not None and finished:
        model = Model.load(path)
    else:
        data = TrainingData(read_pairs(table), hash_buckets=shape.hash_buckets)
        # the numbers of keyword texts in the data's one chunk are those of this dictionary
        codes = encode_keywords(before, distinct(table["keyword"])[0])
        stored = torch.from_numpy(codes.values().astype(np.float32))  # [texts, n]
        plain = replace(settings, gamma="learned", gram_dropout=0.0, precision="float32")
        identity = {"model": shape.to_dict(), "keywords": keywords, **extra}
        if reranker is None:
            plain = replace(plain, guide=0.0)
        else:
            identity["reranked"] = True
            if reranker.guide:  # one by words alone has none
                plain = replace(plain, guide_dims=len(reranker.guide["query.weight"]))

        def learner() -> Learner:
            new = TwoTower(shape)
            _start_from(new, before)
            new.keyword.requires_grad_(keywords == "new")
            made = StoredCodesLearner(new, plain, stored, renew=keywords == "new")
            if made.guide is not None and reranker is not None:
                _start_guide_from(made.guide, reranker)
            return made

        with (
            reported(_share(progress) if callable(progress) else progress, "upgrading") as report,
            Run(
                learner,
                plain,
                data,
                out=path,
                identity=identity,
                save_seconds=save_seconds,
                resume=resume,
                report=report,
            ) as run,
        ):
            train_all([run])
            guide = run.finish(extra)
            if guide:
                report(1.0, 1.0, "fitting the reranker")
                made = Model.load(run.home)
                texts = searched_texts(None, corpus_texts(corpus), held_out, settings.seed)
                fitted = fit_reranker(made, guide, texts, held_out, settings.seed)
                fitted.write(run.home, made.fingerprint)
            run.remove_state()
            model = Model.load(run.home)
            _ = model.reranker  # is read before a temporary folder goes
    kept |= {"new/old": measure(held_out, corpus, model, before), "new/new": measure(held_out, corpus, model)}
    if before.keyword_planes == model.keyword_planes:
        kept["new/both"] = measure(held_out, corpus, model, Both(before, model))
    return Upgrade(model, keywords, kept)


def adopt(index: str | os.PathLike[str], model: Model) -> None:
    """Put a model that kept the keyword side of an index in the place of its old one. No code changes.

    Readers that have the index open use the old model until they refresh or open it again.
    """
    directory = Path(index)
    manifest = read_manifest(directory)
    if manifest.fingerprint not in model.reads:
        raise MismatchError(
            f"the model does not read the codes of {directory}, which are of {manifest.fingerprint!r}",
            hint="train it with rbegir.upgrade(index, pairs)",
        )
    if manifest.fingerprint not in model.same_keywords:
        raise MismatchError(
            f"the model reads the codes of {directory} but gives keywords others, so none could be added",
            hint="upgrade with keywords='keep', or search both generations as one with rbegir.Generations",
        )
    if not manifest.has_model:
        raise MismatchError(
            f"{directory} holds no model to replace", hint="open it with Index.open(path, model=…)"
        )
    lock = WriterLock(directory)
    try:
        model.save(directory / MODEL)
    finally:
        lock.release()


def _share(progress: Progress) -> Report:
    """Call a function with the share done, instead of (done, total)."""
    return lambda done, total, line: progress(done / total, line)


def measure(pairs: pa.Table, corpus: pa.Array | Sequence[str], *sides: Any) -> dict[str, float]:
    """AUC and recall of the queries of one encoder, on its own codes or on those of a second one."""
    scorer = ModelScorer(*sides)
    report = evaluate_model(scorer, pairs, corpus=corpus, bootstrap=0, progress=False).to_dict()
    return {key: float(report[key]) for key in ("roc_auc", "recall@1", "recall@10", "recall@100")}  # type: ignore[arg-type]


class Both:
    """Keywords in the codes of either generation; a hash of its text decides which."""

    def __init__(self, old: Encoder, new: Encoder) -> None:
        self._old, self._new = old, new

    def encode_keywords(self, texts: list[str]) -> Codes:
        newer = (positions(texts) * 1024 % 1 < 0.5)[None, :, None]  # [1, texts, 1]
        new, old = self._new.encode_keywords(texts), self._old.encode_keywords(texts)
        return Codes(np.where(newer, new.planes, old.planes), new.n)


class StoredCodesLearner(Learner):
    """The step of an upgrade: queries, and keywords if they are renewed, against stored codes."""

    def __init__(self, model: TwoTower, config: TrainConfig, stored: Tensor, *, renew: bool) -> None:
        """`stored`: the codes of the chunk's keyword texts, as vectors [texts, n]."""
        super().__init__(model, config, torch.device("cpu"), lanes=False)
        self.stored, self.renew = stored, renew

    def _embed(self, side: Side, batch: TowerBatch) -> Output:
        if side == "keyword" and not self.renew:
            if self.guide is None:
                return Output(self.stored[:0], None, None)
            with torch.no_grad():
                features = self.model.embed(side, batch).features
            return Output(self.stored[:0], None, self.guide(side, features))
        return super()._embed(side, batch)

    def _prepare_randomness(self, batch: StepBatch, progress: float) -> None:
        """Nothing in the network is random: an upgrade drops words only."""

    def _loss(self, batch: StepBatch, query: Output, keyword: Output) -> Tensor:
        stored = self.stored[batch.keyword_texts.long()]  # [keywords, n]
        columns = torch.cat([stored, keyword.vector])  # [generations · keywords, n]
        target, known = batch.target.long(), torch.stack([batch.known_rows, batch.known_columns]).long()
        generations = 2 if self.renew else 1
        losses = []
        rest = batch.negatives.long(), batch.weight
        for generation in range(generations):
            groups = in_generation(target, known, len(stored), generation, generations)
            losses.append(group_loss(query.vector, columns, self.gamma(), *groups, *rest)[0])
        loss = torch.stack(losses).mean()
        whole = loss
        if self.guide is not None and query.guide is not None and keyword.guide is not None:
            beside = group_loss(query.guide, keyword.guide, self.guide.gamma(), target, known, *rest)[0]
            whole = loss + self.config.guide * beside
        whole.backward()  # type: ignore[no-untyped-call]
        return loss.detach()


def in_generation(
    target: Tensor, known: Tensor, count: int, generation: int, generations: int
) -> tuple[Tensor, Tensor]:
    """The positives' columns in one generation of `count` keywords, and (row, column) of what is left out.

    That is, in every generation, further positives of the query (`known`) and, in other generations, the
    positive itself.
    """
    rows = torch.arange(len(target))
    left_out = [known + torch.tensor([[0], [g * count]]) for g in range(generations)]
    left_out += [torch.stack([rows, target + g * count]) for g in range(generations) if g != generation]
    return target + generation * count, torch.cat(left_out, dim=1)


@torch.no_grad()
def _start_from(new: TwoTower, old: Encoder) -> None:
    """Begin with the old model's parameters where the shapes agree; a kept side must have all of them."""
    if not isinstance(old, Model):
        return
    shapes = tensor_shapes(old.config)
    for name, parameter in new.named_parameters():
        side, _, rest = name.partition(".")
        for source in (name, f"shared.{rest}", f"query.{rest}" if side == "shared" else name):
            if shapes.get(source) == tuple(parameter.shape):
                parameter.copy_(torch.from_numpy(old.tensor(source)))
                break


def _start_guide_from(guide: Guide, old: Reranker) -> None:
    """Begin with the guide of the old model's reranker if its tower is as wide."""
    tensors = {name: torch.from_numpy(value.copy()) for name, value in old.guide.items()}
    own = guide.state_dict()
    if all(name in own and own[name].shape == value.shape for name, value in tensors.items()):
        guide.load_state_dict(tensors, strict=False)  # γ is not kept with a reranker


def _encoder(old: Any) -> Encoder:
    if isinstance(old, (str, os.PathLike)):
        from rbegir.index.store import Index

        if (Path(old) / "MANIFEST").is_file():
            with Index.open(Path(old), read_only=True) as index:
                return index.model
        return Model.load(old)
    model: Encoder = getattr(old, "model", old) if not hasattr(old, "encode_keywords") else old
    return model


def _shape(old: Encoder, config: ModelConfig | None, keywords: KeywordSide) -> ModelConfig:
    own = getattr(old, "config", None)
    if config is None and isinstance(own, ModelConfig):
        config = own
    config = config or ModelConfig(old.n, old.query_planes, old.keyword_planes)
    if config.n != old.n:
        raise MismatchError(
            f"the stored codes have n = {old.n}, the new model has n = {config.n}",
            hint="one query code searches all generations, so n cannot change",
        )
    if config.keyword_planes == 0 or old.keyword_planes == 0:
        raise MismatchError(
            "a model with float keywords has no codes to store", hint="use a preset with planes"
        )
    if config.estimator == "stochastic":
        raise InputError(
            "an upgrade cannot be trained with the stochastic estimator", hint="choose another one"
        )
    if keywords == "new":
        return config
    if not isinstance(own, ModelConfig):
        raise InputError(
            "only the keyword side of an rbegir model can be kept",
            hint="use keywords='new' for other encoders",
        )
    kept = replace(config, share_towers=False)  # a shared tower cannot change for the queries alone
    for name in KEPT:
        if getattr(kept, name) != getattr(own, name):
            raise MismatchError(
                f"to keep the keyword side, {name} must stay {getattr(own, name)!r}, "
                f"got {getattr(kept, name)!r}",
                hint="change the query side alone, or use keywords='new'",
            )
    return kept


def _split(pairs: pa.Table, valid: pa.Table | None) -> tuple[pa.Table, pa.Table]:
    """Training and validation pairs; without the latter, keywords are held out as in any training."""
    if valid is None:
        distinct = pairs["keyword"].unique()
        places = positions(distinct.to_pylist())
        held = distinct.filter(pa.array(places < hold_out_below(places)))
        chosen = pc.is_in(pairs["keyword"], value_set=held)
        pairs, valid = pairs.filter(pc.invert(chosen)), pairs.filter(chosen)
    for what, table in (("training", pairs), ("validation", valid)):
        if len(table["keyword"].unique()) < 2:
            raise InputError(
                f"{what} needs at least 2 different keywords, got {len(table['keyword'].unique())}",
                hint="give more pairs, or a file of validation pairs",
            )
    return pairs, valid
