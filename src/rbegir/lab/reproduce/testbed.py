"""What every model is measured on, tokenised once for all of them, and the measuring.

    log loss, ROC AUC    sample groups of the test pairs, 10 random negatives each (see `evaluate.groups`)
    recall@k             the rank of each test pair's title among all titles, exact (see `evaluate.retrieval`)
    labels               ROC AUC over judged pairs, by slice, from fair on and from good on

Networks are measured where they were trained, in torch. A float query side is first rounded to the eight
planes that a search uses, so its figures are those of a search.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor

from rbegir.base.devices import cpu_count
from rbegir.encode.clsm.clsm import TowerBatch, tower_batch
from rbegir.encode.clsm.model import quantise
from rbegir.encode.clsm.presets import FLOAT
from rbegir.encode.clsm.twotower import Side, TwoTower
from rbegir.evaluate.groups import NEGATIVES, SampleGroups, distinct, sample_groups
from rbegir.evaluate.metrics import (
    fit_gamma,
    group_auc,
    group_losses,
    measure,
    roc_auc,
    weighted_auc,
    weighted_mean,
)
from rbegir.evaluate.retrieval import CUTOFFS, ranks, recalls
from rbegir.lab.markdown import Json
from rbegir.lab.reproduce.dataset import Dataset
from rbegir.read.tokenizer import GramBatch, tokenize
from rbegir.training.batches import cut

TEXTS = 1 << 15  # embedded at a time
REPLICATES = 100
HASH_BUCKETS = 8192


class Judged(NamedTuple):
    """A slice of the labels."""

    queries: GramBatch
    keywords: GramBatch
    pairs: SampleGroups  # [judged] groups of one
    grade: npt.NDArray[np.float64]  # [judged]


class Vectors(NamedTuple):
    """The embeddings of the searched texts, float32 on the device; codes where a side has planes."""

    queries: Tensor  # [test queries, n]
    corpus: Tensor  # [titles, n]
    codes: bool  # both sides are codes


class Testbed:
    """The measuring of networks on one dataset and device."""

    def __init__(self, data: Dataset, device: torch.device, *, hash_buckets: int = HASH_BUCKETS) -> None:
        self.data, self.device, self.hash_buckets = data, device, hash_buckets
        self.groups = sample_groups(data.test, negatives=NEGATIVES)
        self._group_queries, self._group_keywords = map(
            self.tokens, (self.groups.queries, self.groups.keywords)
        )
        found = pc.index_in(
            data.test["keyword"].cast(data.corpus.type).combine_chunks(), value_set=data.corpus
        )
        there = np.asarray(found.is_valid())
        self.queries, query = distinct(data.test["query"].filter(pa.array(there)))
        self.query = torch.from_numpy(query).to(device)  # [targets] into queries
        self.target = torch.from_numpy(np.asarray(found.drop_null()).astype(np.int64)).to(
            device
        )  # into corpus
        self._query_texts, self._corpus = self.tokens(self.queries), self.tokens(data.corpus)
        self._judged = {name: self._judge(table) for name, table in data.labels.items()}

    def tokens(self, texts: pa.Array) -> GramBatch:
        return tokenize(texts, hash_buckets=self.hash_buckets, threads=cpu_count())

    def _judge(self, table: pa.Table) -> Judged:
        (queries, query), (keywords, keyword) = distinct(table["query"]), distinct(table["keyword"])
        pairs = SampleGroups(queries, keywords, query, keyword[:, None])
        grade = np.asarray(table["label"], dtype=np.float64)
        return Judged(self.tokens(queries), self.tokens(keywords), pairs, grade)

    @torch.no_grad()
    def embed(self, network: TwoTower, side: Side, texts: GramBatch) -> Tensor:
        """Embeddings [texts, n] as a search compares them."""
        network.eval()
        count = len(texts.text_offsets) - 1

        def block(start: int) -> GramBatch:
            return cut(texts, np.arange(start, min(start + TEXTS, count), dtype=np.int32))

        parts = []
        with ThreadPoolExecutor(max(1, min(6, cpu_count() - 1))) as pool:
            for grams in pool.map(block, range(0, count, TEXTS)):
                batch = TowerBatch(*(array.to(self.device) for array in tower_batch(grams)))
                parts.append(network.embed(side, batch).vector.float())
        vectors = torch.cat(parts)
        if (
            side == "query"
            and network.config.query_planes == FLOAT
            and network.config.keyword_planes != FLOAT
        ):
            rounded = quantise(vectors.cpu().numpy()).values().astype(np.float32)
            vectors = torch.from_numpy(rounded).to(self.device)
        return vectors

    def vectors(self, network: TwoTower) -> Vectors:
        return Vectors(
            self.embed(network, "query", self._query_texts),
            self.embed(network, "keyword", self._corpus),
            network.config.keyword_planes != FLOAT,
        )

    def measure(self, network: TwoTower, vectors: Vectors) -> Json:
        """Every figure of a network, with 95 % intervals by resampling queries."""
        left, right = (self.embed(network, side, texts) for side, texts in self.group_texts())
        return {
            **self.on_groups(left, right),
            **self.in_corpus(vectors.queries, vectors.corpus, exact=vectors.codes),
            "labels": {
                name: self._on_labels(
                    judged,
                    self.embed(network, "query", judged.queries),
                    self.embed(network, "keyword", judged.keywords),
                )
                for name, judged in self._judged.items()
            },
        }

    def on_groups(self, queries: Tensor, keywords: Tensor) -> Json:
        """Log loss and ROC AUC from the embeddings of the groups' distinct texts."""
        groups = self.groups
        scores = groups.scores(queries.cpu().numpy(), keywords.cpu().numpy())  # [G, 11]
        losses = group_losses(scores, fit_gamma(scores))
        positive = np.zeros(scores.shape, dtype=np.bool_)
        positive[:, 0] = True
        auc = weighted_auc(positive.ravel(), scores.ravel(), np.repeat(groups.query, scores.shape[1]))
        mean, count = weighted_mean(losses, groups.query), len(groups.queries)
        return {
            "log_loss": _figure(float(losses.mean()), mean, count),
            "roc_auc": _figure(group_auc(scores), auc, count),
        }

    def group_texts(self) -> tuple[tuple[Side, GramBatch], tuple[Side, GramBatch]]:
        """The distinct texts of the sample groups, by side."""
        return ("query", self._group_queries), ("keyword", self._group_keywords)

    def in_corpus(self, queries: Tensor, corpus: Tensor, *, exact: bool, cosine: bool = True) -> Json:
        """Recall of the test pairs' titles among all."""
        return self.recall(ranks(queries, corpus, self.query, self.target, exact=exact, cosine=cosine))

    def recall(self, rank: Tensor, *, only: npt.NDArray[np.int64] | None = None) -> Json:
        """Recall from the ranks of the targets, over all queries or some."""
        found = recalls(rank, self.query, len(self.queries), CUTOFFS)
        kept = np.arange(len(self.queries)) if only is None else only
        each = np.arange(len(kept))
        return {
            f"recall@{k}": _figure(float(v[kept].mean()), weighted_mean(v[kept], each), len(kept))
            for k, v in found.items()
        }

    def part(self, size: int) -> tuple[Tensor, Tensor]:
        """A random part of the corpus that holds every target: (titles kept, the targets among them).

        It keeps the order of the corpus: among equal scores the earlier title wins, and targets put first
        would win every tie.
        """
        wanted = torch.zeros(len(self.data.corpus), dtype=torch.bool, device=self.device)
        wanted[self.target] = True
        rest = (~wanted).nonzero()[:, 0]
        more = max(0, size - int(wanted.sum()))
        order = np.random.default_rng(0).permutation(len(rest))[:more]
        wanted[rest[torch.from_numpy(order).to(self.device)]] = True
        kept = wanted.nonzero()[:, 0]  # ascending
        return kept, torch.searchsorted(kept, self.target)

    def _on_labels(self, judged: Judged, queries: Tensor, keywords: Tensor) -> Json:
        scores = judged.pairs.scores(queries.cpu().numpy(), keywords.cpu().numpy())[:, 0]
        figures: Json = {"pairs": len(scores), "queries": len(judged.pairs.queries)}
        for name, bar in (("roc_auc", 1), ("roc_auc>=2", 2)):
            good = judged.grade >= bar
            if good.any() and not good.all():
                statistic = weighted_auc(good, scores, judged.pairs.query)
                figures[name] = _figure(roc_auc(good, scores), statistic, len(judged.pairs.queries))
        return figures


def _figure(value: float, statistic: Any, queries: int) -> Json:
    found = measure(value, statistic, queries, count=REPLICATES, seed=0)
    return {"value": found.value, "interval": found.interval}
