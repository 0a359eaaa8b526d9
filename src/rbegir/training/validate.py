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

from rbegir.evaluate.groups import NEGATIVES, sample_groups
from rbegir.model.clsm import TowerBatch, tower_batch
from rbegir.model.twotower import Side, TwoTower, unit
from rbegir.text.tokenizer import GramBatch, tokenize
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
    def __call__(self, model: TwoTower, gamma: float, device: torch.device) -> Scores:
        query = unit(embed(model, "query", self._query_texts, device))
        keyword = unit(embed(model, "keyword", self._keyword_texts, device))
        parts = zip(torch.split(self._query, TEXTS), torch.split(self._keyword, TEXTS), strict=True)
        scores = torch.cat(
            [torch.einsum("gn,gjn->gj", query[q.to(device)], keyword[k.to(device)]) for q, k in parts]
        )  # [groups, 11]
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
