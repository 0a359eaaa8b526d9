"""A new model for codes that are already stored: upgrade the queries, keep the keywords.

    result = rbegir.upgrade("ads.rbe", "clicks.parquet", out="model2/")       # or a model's directory
    result.kept                                                                 # what is kept, in figures

Billions of stored keywords are not encoded again because a query model got better. The new query side is
trained against the stored codes themselves:

    keywords="keep"   a new query side for the old keyword side, which stays as it is, to the bit. Old and new
                      keywords share one index; `adopt` puts the new model into it.
    keywords="new"    both sides are new, and the query side learns to read the old codes too. New keywords
                      get new codes, in an index of their own; `rbegir.Generations` searches both.

How, and why scores of different generations can be compared: `against.py`.

*Rejected.* Two models trained apart, a query code for each, results merged by score: their cosines are not
on one scale, and the generation with the higher ones hides the other (measured in `benchmarks/upgrade.py`).
Mapping old codes to new ones: that is encoding again, with an error on top.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import torch

from rbegir.codes.planes import Codes
from rbegir.encode.clsm import checkpoint
from rbegir.encode.clsm.model import Model
from rbegir.encode.clsm.presets import ModelConfig
from rbegir.encode.clsm.shapes import tensor_shapes
from rbegir.encode.clsm.twotower import TwoTower
from rbegir.encode.encoder import Encoder
from rbegir.errors import FileError, InputError, MismatchError
from rbegir.index.manifest import MODEL, read_manifest
from rbegir.index.writer import WriterLock
from rbegir.read.pairs import read_pairs
from rbegir.read.split import VALID_SHARE, positions
from rbegir.training import state
from rbegir.training.against import Kept, Progress, start_from, train_against
from rbegir.training.config import TrainConfig, change

KeywordSide = Literal["new", "keep"]


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
    pairs: str | Path | pa.Table,
    *,
    out: str | Path | None = None,
    keywords: KeywordSide = "new",
    config: ModelConfig | None = None,
    valid: str | Path | pa.Table | None = None,
    corpus: pa.Array | Sequence[str] | None = None,
    settings: TrainConfig | None = None,
    epochs: int | None = None,
    batch_size: int | None = None,
    seed: int | None = None,
    progress: Progress | None = None,
    resume: bool = False,
    save_seconds: float = 60.0,
) -> Upgrade:
    """Train a model whose queries search the codes that `old` has stored.

    `old` is a model, an index or the directory of one, or any encoder whose codes are stored. `config` is
    the shape of the new model (by default the old one's, and n must be the same); with keywords="keep" only
    its query side may differ. `valid` are the pairs that `kept` is measured on (2 % of the keywords are held
    out if not given), `corpus` the texts that recall is measured in (by default all keywords of the pairs).
    With `out`, the run keeps its state there every `save_seconds`, and `resume` goes on with one that was
    stopped: the same arguments give the same model as a run that was not.
    """
    if keywords not in ("new", "keep"):
        raise InputError(f"keywords must be 'new' or 'keep', got {keywords!r}")
    before = _encoder(old)
    shape = _shape(before, config, keywords)
    if resume and out is None:
        raise InputError("there is nothing to resume without out", hint="name the directory of the run")
    settings = change(settings or TrainConfig(), epochs=epochs, batch_size=batch_size, seed=seed)
    finished = out is not None and state.finished(Path(out), settings, resume=resume)
    if settings.negatives != "in_batch":
        raise InputError("an upgrade is trained with in-batch negatives", hint="leave negatives out")
    table, held_out = _split(_table(pairs), None if valid is None else _table(valid))
    settings = settings.for_pairs(table.num_rows)
    show = progress or (lambda done, told: None)
    names = list(getattr(before, "same_keywords", (before.fingerprint,)))  # of the codes that are stored
    extra: dict[str, Any] = {
        "reads": names,
        "training": {**settings.to_dict(), "pairs": table.num_rows},
    }
    if keywords == "keep":
        extra["same_keywords"] = names
    if finished:
        assert out is not None
        model = Model.load(out)
    else:
        kept = None
        if out is not None:
            identity = {"model": shape.to_dict(), "keywords": keywords, **extra}
            kept = Kept(_made(out), identity, save_seconds, resume)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(settings.seed)
            new = TwoTower(shape)
            start_from(new, before)
            if keywords == "keep":
                new.keyword.requires_grad_(False)
            gamma = train_against(new, before, keywords == "new", table, settings, show, kept)
        model = _store(out, shape, new, {"gamma": gamma, **extra})
    if corpus is None:
        corpus = pa.concat_arrays([part["keyword"].unique() for part in (table, held_out)])
    return Upgrade(model, keywords, measure(before, model, held_out, corpus))


def adopt(index: str | os.PathLike[str], model: Model) -> None:
    """Put a model that kept the keyword side of an index in the place of its old one. No code changes.

    Readers that have the index open go on with the old model until they open it again.
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


# ---- what is kept ----


class Sides:
    """The queries of one encoder, the keywords of another: what an evaluation takes for a model."""

    def __init__(self, queries: Encoder, keywords: Callable[[list[str]], Codes]) -> None:
        self._queries, self._keywords = queries, keywords

    def encode_queries(self, texts: pa.StringArray) -> Codes:
        return self._queries.encode_queries(texts.to_pylist())

    def encode_keywords(self, texts: pa.StringArray) -> Codes:
        return self._keywords(texts.to_pylist())

    def embed_queries(self, texts: pa.StringArray) -> npt.NDArray[np.float32]:
        return self.encode_queries(texts).values().astype(np.float32)

    def embed_keywords(self, texts: pa.StringArray) -> npt.NDArray[np.float32]:
        return self.encode_keywords(texts).values().astype(np.float32)


def measure(
    old: Encoder, new: Encoder, pairs: pa.Table, corpus: pa.Array | Sequence[str]
) -> dict[str, dict[str, float]]:
    """AUC and recall of old queries on old codes, new ones on old codes, on new ones, and on half of each.

    Which half a keyword of "new/both" is in depends on a hash of its text. It is measured where both
    generations have codes of the same shape.
    """
    from rbegir.evaluate.evaluator import evaluate_model

    def both(texts: list[str]) -> Codes:
        newer = (positions(texts) * 1024 % 1 < 0.5)[None, :, None]  # [1, texts, 1]
        return Codes(
            np.where(newer, new.encode_keywords(texts).planes, old.encode_keywords(texts).planes),
            new.n,
        )

    cases = {
        "old/old": Sides(old, old.encode_keywords),
        "new/old": Sides(new, old.encode_keywords),
        "new/new": Sides(new, new.encode_keywords),
    }
    if old.keyword_planes == new.keyword_planes:
        cases["new/both"] = Sides(new, both)
    kept = {}
    for name, sides in cases.items():
        report = evaluate_model(sides, pairs, corpus=corpus, bootstrap=0).to_dict()
        kept[name] = {key: float(report[key]) for key in ("roc_auc", "recall@1", "recall@10", "recall@100")}  # type: ignore[arg-type]
    return kept


# ---- training ----


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
    if config is None:
        config = (
            own if isinstance(own, ModelConfig) else ModelConfig(old.n, old.query_planes, old.keyword_planes)
        )
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
    for name in (
        "keyword_planes",
        "conv",
        "hidden",
        "hash_buckets",
        "time_varying",
        "residual_weights",
        "bias",
    ):
        if getattr(kept, name) != getattr(own, name):
            raise MismatchError(
                f"to keep the keyword side, {name} must stay {getattr(own, name)!r}, "
                f"got {getattr(kept, name)!r}",
                hint="change the query side alone, or use keywords='new'",
            )
    return kept


def _table(pairs: str | Path | pa.Table) -> pa.Table:
    return pairs if isinstance(pairs, pa.Table) else read_pairs(pairs).read_all()


def _split(pairs: pa.Table, valid: pa.Table | None) -> tuple[pa.Table, pa.Table]:
    """Training and validation pairs; without the latter, those of a fixed share of the keywords."""
    if "weight" not in pairs.column_names:
        pairs = pairs.append_column("weight", pa.array(np.ones(pairs.num_rows, np.float32)))
    if valid is None:
        distinct = pairs["keyword"].unique()
        held = distinct.filter(pa.array(positions(distinct.to_pylist()) < VALID_SHARE))
        chosen = pc.is_in(pairs["keyword"], value_set=held)
        pairs, valid = pairs.filter(pc.invert(chosen)), pairs.filter(chosen)
    for what, table in (("training", pairs), ("validation", valid)):
        if len(table["keyword"].unique()) < 2:
            raise InputError(
                f"{what} needs at least 2 different keywords, got {len(table['keyword'].unique())}",
                hint="give more pairs, or a file of validation pairs",
            )
    return pairs, valid


def _made(out: str | Path) -> Path:
    try:
        Path(out).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"cannot create {out}: {error.strerror}") from None
    return Path(out)


def _store(out: str | Path | None, shape: ModelConfig, new: TwoTower, extra: dict[str, Any]) -> Model:
    parameters = new.state_dict()
    tensors = {name: parameters[name].detach().float().cpu().numpy() for name in tensor_shapes(shape)}
    if out is not None:
        checkpoint.write(out, shape, tensors, extra)
        state.remove(Path(out))
        return Model.load(out)
    with tempfile.TemporaryDirectory() as temporary:  # the loaded model keeps its files mapped
        checkpoint.write(temporary, shape, tensors, extra)
        return Model.load(temporary)
