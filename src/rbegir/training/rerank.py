"""Fitting a reranker: held-out queries search the texts with the trained model, and learn what to put first.

    loss = −log Σ_{right} p / Σ_{all candidates} p        p = exp(score), over the candidates of one query

The model was not trained on these queries, so code and guide are as good on them as they will be in use. A
query whose keyword is not among its candidates is left out.
"""

from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import torch

from rbegir.encode.clsm.model import Model
from rbegir.encode.directory import CONFIG
from rbegir.encode.reranker import FEATURES, FOLDER, Combination, Floats, Reranker, Spelling
from rbegir.evaluate.groups import distinct
from rbegir.evaluate.retrieval import CUTOFFS, Targets
from rbegir.evaluate.scorers import BM25, ModelScorer, RerankScorer, Scorer, TriletterCosine
from rbegir.index.keys import keys_of
from rbegir.read.pairs import PairStream
from rbegir.search.rerank import TextSearch, code_scores
from rbegir.training.corpus import corpus_pairs

TEXTS = 1_000_000  # searched by a fit
COMPARED, COMPARED_TEXTS = 500, 100_000  # pairs and texts of the comparison with other methods
FEW = 1000  # held-out pairs; below, pairs made of their keywords are added
QUERIES = 3000  # that a fit learns from
BLOCK = 256  # queries searched at a time
UNTRAINED = {"tri-letter cosine": TriletterCosine, "BM25": BM25}
HIDDEN = 16
STEPS, STEP_QUERIES = 500, 32
LEARNING_RATE, DECAY = 1e-2, 1e-2


class Lists(NamedTuple):
    """The candidates of several queries: their features, and which of them are right."""

    features: Floats  # [candidates, features]
    right: npt.NDArray[np.bool_]  # [candidates]
    offsets: npt.NDArray[np.int64]  # [queries + 1]


def searched_texts(stream: PairStream | None, corpus: pa.Array | None, held: pa.Table, seed: int) -> pa.Array:
    """The texts that held-out queries search: their keywords, and TEXTS others of corpus and pairs.

    A hash of each text decides which ones, and their order, so that neither the order of a file nor being
    wanted matters.
    """
    salt = np.random.default_rng(seed).integers(2**64, dtype=np.uint64)

    def shuffled(texts: Sequence[pa.Array]) -> pa.Array:
        unique = pa.concat_arrays(texts).unique()
        return unique.take(pa.array(np.argsort(keys_of(unique) ^ salt, kind="stable")))

    kept, last = [pa.array([], pa.large_string())], np.uint64(2**64 - 1)
    keywords = (batch["keyword"].unique() for batch in stream or ())
    for some in chain([] if corpus is None else [corpus], keywords):
        texts = some.cast(pa.large_string())
        kept.append(texts.filter(pa.array(keys_of(texts) ^ salt <= last)))
        if sum(map(len, kept)) > 2 * TEXTS:
            kept = [shuffled(kept).slice(0, TEXTS)]
            last = (keys_of(kept[0]) ^ salt).max()
    wanted = held["keyword"].combine_chunks().cast(pa.large_string())
    return shuffled([wanted, shuffled(kept).slice(0, TEXTS)])


def has_reranker(model: Path) -> bool:
    """Whether a model's directory has its reranker; not if a run was stopped before it was written."""
    return (model / FOLDER / CONFIG).exists() and Model.load(model).reranker is not None


def fit_reranker(
    model: Model, guide: dict[str, Floats], texts: pa.Array, held: pa.Table, seed: int
) -> Reranker:
    """The reranker of a trained model and its guide, from held-out pairs that search the texts.

    Without any, it is fitted on pairs made of the texts.
    """
    blocks = (texts.slice(first, 1 << 16) for first in range(0, len(texts), 1 << 16))
    spelling = Spelling.of(blocks, hash_buckets=model.config.hash_buckets)
    nothing = Combination(*(np.zeros(0, np.float32) for _ in Combination._fields))  # `collect` needs none
    reranker = Reranker(spelling, nothing, guide, model.guide_vectors)
    if held.num_rows < FEW:  # to rank by spelling is better than to learn from so few
        keywords = held["keyword"].combine_chunks().unique() if held.num_rows else texts
        held = pa.concat_tables([held, corpus_pairs(keywords, FEW, seed + 1)])
    some = np.random.default_rng(seed).permutation(held.num_rows)[: 2 * QUERIES]
    lists = collect(TextSearch(model, reranker, texts), held.take(pa.array(some)), texts)
    reranker.combination = fit(lists, seed)
    return reranker


def compare(model: Model, texts: pa.Array, pairs: pa.Table, seed: int) -> dict[str, dict[str, float]]:
    """Recall of held-out pairs, compared with methods that need no training.

    No weight was fitted on the pairs, but the AUC that chose the epoch includes them. At most COMPARED pairs
    and COMPARED_TEXTS texts besides theirs are drawn at random, and so is the order of the texts, which
    decides ties.
    """
    draw = np.random.default_rng(seed)
    pairs = pairs.take(pa.array(draw.permutation(pairs.num_rows)[:COMPARED]))
    wanted = pc.is_in(texts, value_set=pairs["keyword"].combine_chunks().cast(texts.type))
    others = draw.permutation(len(texts))[:COMPARED_TEXTS]
    some = texts.take(pa.array(draw.permutation(np.union1d(others, np.flatnonzero(wanted)))))
    targets = Targets(pairs, some)
    scorers: dict[str, Scorer] = {} if model.reranker is None else {"reranked": RerankScorer(model)}
    scorers["codes" if model.keyword_planes else "vectors"] = ModelScorer(model)
    scorers |= {method: scorer() for method, scorer in UNTRAINED.items()}
    found = {}
    for name, scorer in scorers.items():
        positions = scorer.search(targets.queries, some, max(CUTOFFS), lambda done: None)
        recall = targets.recall(positions, CUTOFFS)
        found[name] = {f"recall@{k}": float(values.mean()) for k, values in recall.items()}
    return found


def divide(held: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Held-out pairs to fit a reranker on, and a fifth of the queries to measure it on."""
    measured = pa.array(distinct(held["query"])[1] % 5 == 4)
    return held.filter(pc.invert(measured)), held.filter(measured)


def collect(search: TextSearch, pairs: pa.Table, texts: pa.Array) -> Lists:
    """The candidates of the pairs' queries."""
    targets = Targets(pairs, texts)
    asked = targets.queries.to_pylist()[:QUERIES]
    features, right, lengths = [], [], []
    for first in range(0, len(asked), BLOCK):
        block = asked[first : first + BLOCK]
        found, values, candidates = search.find(block)
        made = search.reranker.features(block, candidates, found.offsets, code_scores(found, values))
        for i in range(len(block)):
            rows = slice(int(found.offsets[i]), int(found.offsets[i + 1]))
            hit = np.isin(found.positions[rows], targets.keyword[targets.query == first + i])
            if hit.any():
                features.append(made[rows])
                right.append(hit)
                lengths.append(len(hit))
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    none = np.zeros((0, len(FEATURES)), np.float32)
    return Lists(np.concatenate([none, *features]), np.concatenate([np.zeros(0, bool), *right]), offsets)


def fit(lists: Lists, seed: int) -> Combination:
    """The combination of least loss on the lists."""
    count = len(lists.offsets) - 1
    features = torch.from_numpy(lists.features)
    mean, scale = features.mean(0), 1 / (features.std(0) + 1e-6)
    generator = torch.Generator().manual_seed(seed)
    width = features.shape[1]
    linear = torch.zeros(width).requires_grad_()
    inner = (torch.randn(HIDDEN, width, generator=generator) / width**0.5).requires_grad_()
    inner_bias = torch.zeros(HIDDEN).requires_grad_()
    outer = torch.zeros(HIDDEN).requires_grad_()
    parameters = [linear, inner, inner_bias, outer]
    optimiser = torch.optim.AdamW(parameters, lr=LEARNING_RATE, weight_decay=DECAY)
    lengths = np.diff(lists.offsets)
    order = torch.zeros(0, dtype=torch.int64)
    for step in range(STEPS):
        if len(order) < min(STEP_QUERIES, count):
            order = torch.randperm(count, generator=generator)
        chosen, order = order[:STEP_QUERIES].numpy(), order[STEP_QUERIES:]
        rows = np.concatenate([np.arange(lists.offsets[i], lists.offsets[i + 1]) for i in chosen])
        group = torch.from_numpy(np.repeat(np.arange(len(chosen)), lengths[chosen]))
        x = (features[rows] - mean) * scale
        score = x @ linear + torch.relu(x @ inner.T + inner_bias) @ outer
        weight = torch.exp(score - score.max().detach())
        right = torch.from_numpy(lists.right[rows])
        total = torch.zeros(len(chosen)).index_add(0, group, weight)
        good = torch.zeros(len(chosen)).index_add(0, group, weight * right)
        loss = (torch.log(total + 1e-30) - torch.log(good + 1e-30)).mean()
        for parameter_group in optimiser.param_groups:
            parameter_group["lr"] = LEARNING_RATE * (1 - step / STEPS)
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    made = [x.detach().numpy() for x in (mean, scale, linear, inner, inner_bias, outer)]
    return Combination(*made)
