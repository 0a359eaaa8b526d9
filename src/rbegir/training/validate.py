"""How good the model is on pairs it has not seen: log loss and ROC AUC with ten random negatives a pair.

    log loss   mean of −log P(S) over the sample groups S of one positive and 10 negatives, with the model's γ
    ROC AUC    the chance that a positive scores above a negative of any group, ties counting half

The groups are the same in every epoch and run. Scores of codes tie often (they are ratios of small
integers), so the AUC is the exact Mann–Whitney statistic with half ties; it runs on the device and needs
torch alone.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from rbegir.errors import InputError
from rbegir.model.clsm import TowerBatch, tower_batch
from rbegir.model.twotower import Side, TwoTower, unit
from rbegir.text.tokenizer import GramBatch
from rbegir.training.batches import Chunk, cut
from rbegir.training.data import tokenize_pairs
from rbegir.training.groups import group

NEGATIVES = 10
MAX_PAIRS = 50_000
TEXTS = 8192  # embedded at a time


class Scores(NamedTuple):
    """The result of a validation."""

    log_loss: float
    roc_auc: float


class Validation:
    """A fixed set of sample groups."""

    def __init__(self, pairs: pa.Table, *, hash_buckets: int, threads: int, what: str) -> None:
        chunk = tokenize_pairs(pairs.slice(0, MAX_PAIRS), hash_buckets, threads)
        groups = group(chunk.query, chunk.keyword, negatives=NEGATIVES, rng=np.random.default_rng(0))
        if len(groups.first) < 2:
            raise InputError(
                f"validation needs at least 2 different keywords, got {len(groups.first)} in {what}",
                hint="give more pairs, or train with --no-valid",
            )
        self._chunk: Chunk = chunk
        columns = np.concatenate([groups.target[:, None], groups.negatives], axis=1)  # [pairs, 11]
        self._columns = torch.from_numpy(chunk.keyword[groups.first][columns].astype(np.int64))
        self._query = torch.from_numpy(chunk.query.astype(np.int64))

    def __len__(self) -> int:
        return len(self._chunk)

    @torch.no_grad()
    def __call__(self, model: TwoTower, gamma: float, device: torch.device) -> Scores:
        query = unit(embed(model, "query", self._chunk.query_texts, device))
        keyword = unit(embed(model, "keyword", self._chunk.keyword_texts, device))
        scores = torch.cat(
            [
                torch.einsum("pn,pcn->pc", query[rows.to(device)], keyword[columns.to(device)])
                for rows, columns in zip(
                    torch.split(self._query, TEXTS), torch.split(self._columns, TEXTS), strict=True
                )
            ]
        )  # [pairs, 11], the positive first
        losses = torch.logsumexp(gamma * scores, dim=1) - gamma * scores[:, 0]
        return Scores(float(losses.double().mean()), roc_auc(scores[:, 0], scores[:, 1:].flatten()))


def embed(model: TwoTower, side: Side, texts: GramBatch, device: torch.device) -> Tensor:
    """The embeddings of all texts of a gram batch, in evaluation mode.  [texts, n]"""
    was_training = model.training
    model.eval()
    count = len(texts.text_offsets) - 1
    parts = []
    for low in range(0, count, TEXTS):
        items = np.arange(low, min(low + TEXTS, count), dtype=np.int32)
        batch = TowerBatch(*(array.to(device) for array in tower_batch(cut(texts, items))))
        parts.append(model.embed(side, batch).vector)
    model.train(was_training)
    return torch.cat(parts)


def roc_auc(positive: Tensor, negative: Tensor) -> float:
    """P(positive > negative) + ½ P(equal), over all combinations."""
    ordered = negative.sort().values
    below = torch.searchsorted(ordered, positive.contiguous())
    up_to = torch.searchsorted(ordered, positive.contiguous(), right=True)
    return float((below + up_to).double().mean() / 2 / len(negative))
