"""Training against stored codes: the softmax in which generations of keywords meet.

In every batch the columns of the softmax are the batch's distinct keywords in each generation g, old ones as
the constant codes that encoding stored, new ones as the new keyword side makes them:

    loss = mean over g of −log P_g        P_g = e(k⁺, g) / (e(k⁺, g) + Σ_{h, k ≠ k⁺} e(k, h))
                                          e(k, g) = exp γ cos(b_q, b_k of generation g)

A keyword of one generation thus has to beat the others of *all* generations, which makes their scores
comparable: a result that mixes generations is ordered by one cosine, of one query code, fitted by one
softmax. The positive's own codes in other generations are left out: they are right answers. With the
keyword side kept there is one generation, and this is the usual loss with constant keywords.

Words are dropped from queries and from new keywords, as in all training; a stored code is what it is.

The order of pairs and what is dropped depend on (seed, epoch, step) alone, so a run that was killed goes on
from its last saved state (`rbegir.training.state`) to the same parameters, bit for bit.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from torch import Tensor

from rbegir.base.devices import cpu_count
from rbegir.encode.clsm.clsm import tower_batch
from rbegir.encode.clsm.model import Model
from rbegir.encode.clsm.shapes import tensor_shapes
from rbegir.encode.clsm.twotower import TwoTower
from rbegir.encode.encoder import Encoder, encode_keywords
from rbegir.encode.sentence.layers import without_sparse_checks
from rbegir.training import state
from rbegir.training.batches import Chunk, cut
from rbegir.training.config import TrainConfig
from rbegir.training.data import tokenize_pairs
from rbegir.training.epochs import lr_scale
from rbegir.training.groups import Groups, group
from rbegir.training.loss import Baseline, Gamma, group_loss
from rbegir.training.optim import RowRMS
from rbegir.training.pipeline import steps_in

INITIAL_GAMMA = 10.0

Progress = Callable[[float, str], None]


@torch.no_grad()
def start_from(new: TwoTower, old: Encoder) -> None:
    """Begin with the old model's parameters where the shapes agree; a kept side must have all of them."""
    if not isinstance(old, Model):
        return
    shapes = tensor_shapes(old.config)
    for name, parameter in new.named_parameters():
        side, _, rest = name.partition(".")
        for source in (name, f"shared.{rest}", f"query.{rest}" if side == "shared" else name):
            if shapes.get(source) == tuple(parameter.shape):
                parameter.copy_(torch.from_numpy(old.tensor(source).copy()))
                break


def _stored_vectors(old: Encoder, texts: pa.Array) -> Tensor:
    """The codes that are stored for some texts, as vectors [texts, n]."""
    return torch.from_numpy(encode_keywords(old, texts).values().astype(np.float32))


class Kept(NamedTuple):
    """Where a run keeps its state."""

    out: Path
    identity: dict[str, Any]  # what a resumed run must have in common with this one
    seconds: float  # between saves
    resume: bool


class Learner:
    """The new model, γ and their optimisers: what `rbegir.training.state` saves and restores."""

    def __init__(self, new: TwoTower, settings: TrainConfig) -> None:
        self.model, self.settings = new, settings
        self.gamma = Gamma(INITIAL_GAMMA, learned=True)
        self.tables = [
            RowRMS(t, distinct=not new.config.share_towers) for t in new.table_parameters() if t.requires_grad
        ]
        ours = {id(t.table) for t in self.tables}
        every = (*new.parameters(), *self.gamma.parameters())
        self.dense = [p for p in every if p.requires_grad and id(p) not in ours]
        self.adam = torch.optim.Adam(self.dense, lr=settings.lr)
        self.steps = 0
        self.guide, self.baseline, self.device = None, Baseline(), torch.device("cpu")

    def update(self, scale: float) -> None:
        """Follow the gradients that are there, with the learning rates times `scale`."""
        self.adam.param_groups[0]["lr"] = self.settings.lr * scale
        for rows in self.tables:
            rows.step(self.settings.table_lr * scale)
        self.adam.step()
        self.adam.zero_grad(set_to_none=True)
        self.steps += 1


def train_against(
    new: TwoTower,
    old: Encoder,
    renew: bool,
    table: pa.Table,
    settings: TrainConfig,
    show: Progress,
    kept: Kept | None = None,
) -> float:
    """Train in place on one table of pairs in memory; `renew`: the keyword side too. Returns γ."""
    chunk = tokenize_pairs(table, new.config.hash_buckets, cpu_count())
    # the numbers of keyword texts in the chunk are those of this dictionary
    stored = _stored_vectors(old, table["keyword"].combine_chunks().dictionary_encode().dictionary)
    without_sparse_checks()
    assert settings.epochs is not None
    assert settings.batch_size is not None
    learner, position = Learner(new, settings), state.Position()
    if kept and kept.resume and (found := state.load(kept.out, learner, kept.identity)):
        position = found[0]
    steps = steps_in(len(chunk), settings.batch_size)
    total, saved = steps * settings.epochs, time.monotonic()
    new.train()
    for epoch in range(position.epoch, settings.epochs):
        order = np.random.default_rng((settings.seed, epoch)).permutation(len(chunk))
        for pairs in np.array_split(order, steps)[position.step :]:
            key = (settings.seed, learner.steps)
            loss = _loss(new, stored, chunk, pairs, learner.gamma, renew, settings.word_dropout, key)
            loss.backward()  # type: ignore[no-untyped-call]
            learner.update(lr_scale(learner.steps, total))
            position.step += 1
            show(learner.steps / total, f"loss {float(loss.detach()):.4f}")
            if kept and time.monotonic() - saved > kept.seconds:
                state.save(kept.out, learner, position, None, kept.identity)
                saved = time.monotonic()
        position.epoch, position.step = epoch + 1, 0
    return float(learner.gamma().detach())


def _loss(
    new: TwoTower,
    stored: Tensor,
    chunk: Chunk,
    pairs: npt.NDArray[np.int64],
    gamma: Gamma,
    renew: bool,
    dropout: float,
    key: tuple[int, int],
) -> Tensor:
    """The loss above on some pairs of the chunk."""
    query, keyword = chunk.query[pairs], chunk.keyword[pairs]
    groups = group(query, keyword)
    draws = np.random.default_rng(key).integers(0, 2**63, size=2)
    asked = cut(chunk.query_texts, query, dropout=dropout, key=int(draws[0]), places=np.arange(len(query)))
    distinct = keyword[groups.first]
    generations = [stored[torch.from_numpy(distinct.astype(np.int64))]]  # [columns, n] each
    if renew:
        places = groups.first.astype(np.int64)
        texts = cut(chunk.keyword_texts, distinct, dropout=dropout, key=int(draws[1]), places=places)
        generations.append(new.embed("keyword", tower_batch(texts, gradient=True)).vector)
    vectors = new.embed("query", tower_batch(asked, gradient=True)).vector
    weight = torch.from_numpy(chunk.weight[pairs] / chunk.weight[pairs].sum())
    columns = torch.cat(generations)
    losses = [
        group_loss(vectors, columns, gamma(), *_columns(groups, g, len(generations)), weight)[0]
        for g in range(len(generations))
    ]
    return torch.stack(losses).mean()


def _columns(groups: Groups, generation: int, generations: int) -> tuple[Tensor, Tensor, Tensor]:
    """Of positives in one generation: their columns, further positives to leave out, no drawn negatives."""
    count = len(groups.first)
    rows = np.arange(len(groups.target), dtype=np.int32)
    known = [(groups.known_rows, groups.known_columns + g * count) for g in range(generations)]
    known += [(rows, groups.target + g * count) for g in range(generations) if g != generation]
    pairs = np.stack([np.concatenate(part) for part in zip(*known, strict=True)]).astype(np.int64)  # [2, any]
    target = torch.from_numpy(groups.target.astype(np.int64) + generation * count)
    return target, torch.from_numpy(pairs), torch.from_numpy(groups.negatives.astype(np.int64))
