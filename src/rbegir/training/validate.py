"""How good the model is on pairs it has not seen: log loss and ROC AUC with ten random negatives a pair.

    log loss   mean of −log P(S) over the sample groups S of one positive and 10 negatives, with the γ that
               suits them best: the γ of training belongs to groups as large as a batch
    ROC AUC    the chance that a positive scores above a negative of any group, ties counting half

The groups are the same in every epoch and run. Scores of codes tie often (they are ratios of small
integers), so the AUC is the exact Mann–Whitney statistic with half ties; it runs on the device and needs
torch alone.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from rbegir.encode.clsm.clsm import TowerBatch, tower_batch
from rbegir.encode.clsm.twotower import Side, TwoTower, unit
from rbegir.evaluate.groups import NEGATIVES, sample_groups
from rbegir.read.tokenizer import GramBatch, tokenize
from rbegir.training.batches import cut

MAX_PAIRS = 50_000
TEXTS = 8192  # embedded at a time


class Scores(NamedTuple):
    """The result of a validation."""

    log_loss: float
    roc_auc: float


class Validation:
    """A fixed set of sample groups, the same ones that `rbegir eval` draws."""

    def __init__(self, pairs: pa.Table, *, hash_buckets: int, threads: int) -> None:
        groups = sample_groups(pairs.slice(0, MAX_PAIRS), negatives=NEGATIVES)
        self._query_texts, self._keyword_texts = (
            tokenize(texts, hash_buckets=hash_buckets, threads=threads)
            for texts in (groups.queries, groups.keywords)
        )
        self._query = torch.from_numpy(groups.query)  # [groups]
        self._keyword = torch.from_numpy(groups.keyword)  # [groups, 11], the positive first

    def __len__(self) -> int:
        return len(self._query)

    @torch.no_grad()
    def __call__(self, model: TwoTower, device: torch.device) -> Scores:
        query = unit(embed(model, "query", self._query_texts, device))
        keyword = unit(embed(model, "keyword", self._keyword_texts, device))
        parts = zip(torch.split(self._query, TEXTS), torch.split(self._keyword, TEXTS), strict=True)
        scores = torch.cat(
            [torch.einsum("gn,gjn->gj", query[q.to(device)], keyword[k.to(device)]) for q, k in parts]
        )  # [groups, 11]
        return Scores(least_log_loss(scores), roc_auc(scores[:, 0], scores[:, 1:].flatten()))


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


def least_log_loss(scores: Tensor) -> float:
    """The least mean of −log P(S) over γ, from cosines [groups, 1 + negatives], the positive first.

    The loss is convex in γ: golden-section search on log γ from 0.01 to 1000.
    """
    margins = (scores - scores[:, :1]).double()

    def loss(power: float) -> float:
        return float(torch.logsumexp(math.exp(power) * margins, dim=1).mean())

    low, high, ratio = math.log(1e-2), math.log(1e3), (math.sqrt(5) - 1) / 2
    left, right = high - ratio * (high - low), low + ratio * (high - low)
    at_left, at_right = loss(left), loss(right)
    while high - low > 1e-4:
        if at_left < at_right:
            high, right, at_right = right, left, at_left
            left = high - ratio * (high - low)
            at_left = loss(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + ratio * (high - low)
            at_right = loss(right)
    return min(at_left, at_right)


def roc_auc(positive: Tensor, negative: Tensor) -> float:
    """P(positive > negative) + ½ P(equal), over all combinations."""
    ordered = negative.sort().values
    below = torch.searchsorted(ordered, positive.contiguous())
    up_to = torch.searchsorted(ordered, positive.contiguous(), right=True)
    return float((below + up_to).double().mean() / 2 / len(negative))
