"""Measures models on one dataset.

    log loss, ROC AUC    sample groups of the test pairs, 10 random negatives each (see `evaluate.groups`)
    recall@k             the rank of each test pair's title among all titles, exact (`ranks`)
    labels               ROC AUC over judged pairs, by slice: at least fair, and at least good

Studies measure more than accuracy. Each row names the studies that it needs:

    sizes                recall@10 among growing numbers of titles: the cost of a larger corpus
    selection            recall@1000 of the published selection against the exact one, on this corpus
    top_five             grades of the five best titles of every judged query, for all titles or for a share
    latency              one query at a time, two and three query planes, on the CPU

Baselines (`evaluate.scorers`) need no training. Their recall is measured on a sample of the test queries,
their top five on all judged queries.

Networks are measured in torch, on the device they were trained on. A float query side is first rounded to the
eight planes that a search uses, so its figures are those of a search.

Ranks are counted. Recall at many cutoffs needs only how many keywords come before the right one; selecting
the best k of `rbegir.evaluate.retrieval` costs several times the product. For a query with the target at
position p, of score s_p,

    rank = #{j : s_j > s_p} + #{j < p : s_j = s_p}

Codes are small odd multiples of a power of two: their products are exact in float32, and in TF32 as well
(at most 8 significant bits per factor). Float keywords are normalised first and multiplied in full float32.
"""

import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor

from rbegir.codes.layout import pack
from rbegir.codes.planes import Codes
from rbegir.encode.clsm.model import quantise
from rbegir.encode.clsm.presets import FLOAT, Side
from rbegir.encode.clsm.sides import TorchSide
from rbegir.encode.clsm.twotower import TwoTower, unit
from rbegir.evaluate.evaluator import evaluate_labels, evaluate_model
from rbegir.evaluate.groups import SampleGroups, distinct
from rbegir.evaluate.metrics import Measure, measure_mean
from rbegir.evaluate.retrieval import CUTOFFS, Targets
from rbegir.evaluate.scorers import Progress, Scorer
from rbegir.lab.bench.host import milliseconds
from rbegir.lab.bench.quantizers import Floats, Ids, top
from rbegir.lab.figures import Json
from rbegir.lab.reproduce.dataset import Dataset, headline, sample_rows
from rbegir.search.backend import Partition
from rbegir.search.cpu import CpuBackend
from rbegir.search.partition import recall_of

REPLICATES = 100
SIZES = (10_000, 100_000, 1_000_000)
SELECTION_QUERIES, TOP, PER_THREAD = 500, 1000, 256
LATENCY_QUERIES = 50
FLOAT_BYTES, CODE_BYTES = 256, 16  # per title, of m_1 and of rbe*
GRADES = ("bad", "fair", "good")
BASELINE_QUERIES = 6_000
DEEP = (*CUTOFFS, 1000)  # cutoffs of recall
RANKED = 2048  # queries ranked at once
GPU_SCORES = 1 << 29  # at a time: 2 GB
CPU_SCORES = 1 << 24


class EmbeddingScorer(Scorer):
    """Cosines of embeddings, however they are made; a corpus is searched by `Testbed`."""

    def __init__(self, embed: Callable[[Side, pa.Array], Floats]) -> None:
        self._embed = embed

    def score(self, groups: SampleGroups, progress: Progress) -> Floats:
        return groups.scores(self._embed("query", groups.queries), self._embed("keyword", groups.keywords))

    def search(self, queries: pa.Array, corpus: pa.Array, k: int, progress: Progress) -> Ids:
        raise NotImplementedError


class Vectors(NamedTuple):
    """The embeddings of the searched texts, float32 on the device; codes where a side has planes."""

    queries: Tensor  # [test queries, n]
    corpus: Tensor  # [titles, n]
    codes: bool  # both sides are codes


class Testbed:
    """One dataset on one device, and the measurements of networks on it."""

    def __init__(self, data: Dataset, device: torch.device) -> None:
        self.data, self.device = data, device
        self.targets = Targets(data.test, data.corpus)
        self.queries = self.targets.queries
        self.query = torch.from_numpy(self.targets.query).to(device)  # [targets] into queries
        target = self.targets.keyword.astype(np.int64)
        self.target = torch.from_numpy(target).to(device)  # [targets] into corpus

    def embed(self, network: TwoTower, side: Side, texts: pa.Array) -> Floats:
        """Embeddings [texts, n] as a search compares them."""
        vectors, config = TorchSide(network.eval(), side, self.device).vectors(texts), network.config
        if side == "query" and config.query_planes == FLOAT and config.keyword_planes != FLOAT:
            return quantise(vectors).values().astype(np.float32)
        return vectors

    def vectors(self, network: TwoTower) -> Vectors:
        queries = torch.from_numpy(self.embed(network, "query", self.queries))
        corpus = torch.from_numpy(self.embed(network, "keyword", self.data.corpus))
        codes = network.config.keyword_planes != FLOAT
        return Vectors(queries.to(self.device), corpus.to(self.device), codes)

    def measure(self, network: TwoTower, vectors: Vectors) -> Json:
        """Every figure of a network, with 95 % intervals by resampling queries."""
        scorer = EmbeddingScorer(partial(self.embed, network))
        return {
            **self.on_pairs(scorer),
            **self.in_corpus(vectors.queries, vectors.corpus, exact=vectors.codes),
            "labels": {name: _on_labels(scorer, table) for name, table in self.data.labels.items()},
        }

    def on_pairs(self, scorer: Scorer) -> Json:
        """Log loss and ROC AUC."""
        found = evaluate_model(scorer, self.data.test, bootstrap=REPLICATES, progress=lambda what, done: None)
        return {name: _figure(measured) for name, measured in found.measures().items()}

    def in_corpus(self, queries: Tensor, corpus: Tensor, *, exact: bool, cosine: bool = True) -> Json:
        """Recall of the test pairs' titles among all."""
        rank = ranks(queries, corpus, self.query, self.target, exact=exact, cosine=cosine)
        return recall_figures(self.targets.recall_of_ranks(rank.cpu().numpy(), DEEP))

    def part(self, size: int) -> tuple[Tensor, Tensor]:
        """A random part of the corpus with every target: (titles kept, positions of the targets among them).

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


def _on_labels(scorer: Scorer, table: pa.Table) -> Json:
    grade = np.asarray(table["label"])
    about = {"pairs": len(grade), "queries": len(table["query"].unique())}
    if (grade > 0).all() or not (grade > 0).any():
        return about
    found = evaluate_labels(scorer, table, bootstrap=REPLICATES, seed=0, progress=lambda done: None)
    higher = {f"roc_auc>={bar:g}": _figure(auc) for bar, auc in found.roc_auc_from.items()}
    return {**about, "roc_auc": _figure(found.roc_auc), **higher}


def recall_figures(by_cutoff: dict[int, npt.NDArray[np.float64]]) -> Json:
    """Mean recall with its interval at each cutoff, from the recall of each query."""
    return {
        f"recall@{k}": _figure(measure_mean(each, count=REPLICATES, seed=0)) for k, each in by_cutoff.items()
    }


def scorer_recall(
    scorer: Scorer, targets: Targets, titles: pa.Array, cutoffs: Sequence[int] = CUTOFFS
) -> dict[str, float]:
    """Mean recall at each cutoff of a search by a scorer."""
    found = scorer.search(targets.queries, titles, max(cutoffs), lambda done: None)
    return {f"recall@{k}": float(each.mean()) for k, each in targets.recall(found, cutoffs).items()}


def _figure(measured: Measure) -> Json:
    return {"value": measured.value, "interval": measured.interval}


def sizes(bed: Testbed, vectors: Vectors, network: TwoTower) -> Json:
    """Recall@10 in random parts of the corpus that hold every target.  {titles: recall}"""
    found: Json = {}
    for size in (*SIZES, len(vectors.corpus)):
        if len(bed.target) < size <= len(vectors.corpus):
            kept, place = bed.part(size)
            rank = ranks(vectors.queries, vectors.corpus[kept], bed.query, place, exact=vectors.codes)
            found[str(size)] = float(bed.targets.recall_of_ranks(rank.cpu().numpy(), [10])[10].mean())
    return found


def selection(bed: Testbed, vectors: Vectors, network: TwoTower) -> Json:
    """Recall@1000 of local selection with a queue of one, beside its certificate."""
    backend, part, values = _searchable(vectors, network)
    chosen = values[sample_rows(len(values), SELECTION_QUERIES, 0)]
    top = min(TOP, part.count)
    exact = backend.search([part], chosen, top).positions
    published, promise = backend.search_paper([part], chosen, top, per_thread=PER_THREAD, queue=1)
    shared = [recall_of(a[None], b[None]) for a, b in zip(published.positions, exact, strict=True)]
    return {
        "queries": len(chosen),
        "keywords": part.count,
        "top": top,
        "recall": float(np.mean(shared)),
        "std": float(np.std(shared) / np.sqrt(len(shared))),
        "expected": promise.expected_recall,
    }


def latency(bed: Testbed, vectors: Vectors, network: TwoTower) -> Json:
    """Milliseconds of one exact search, one query at a time, by the number of query planes."""
    backend, part, values = _searchable(vectors, network)
    chosen = values[sample_rows(len(values), LATENCY_QUERIES, 1)]
    by_planes = {"3": chosen, "2": Codes.from_values(chosen, 3).first_planes(2).values()}
    times: dict[str, list[float]] = {planes: [] for planes in by_planes}
    for row in range(len(chosen)):
        for planes, asked in by_planes.items():
            search = partial(backend.search, [part], asked[row : row + 1], min(TOP, part.count))
            times[planes].append(milliseconds(search))
    return {"keywords": part.count, "ms": {planes: statistics.median(t) for planes, t in times.items()}}


def _searchable(vectors: Vectors, network: TwoTower) -> tuple[CpuBackend, Partition, Any]:
    """The corpus and the queries as a search uses them: (backend, keywords, values of queries)."""
    config = network.config

    def values(x: Tensor, planes: int) -> Any:
        return (x * 2 ** (planes - 1)).round().to(torch.int16).cpu().numpy()

    codes = Codes.from_values(values(vectors.corpus, config.keyword_planes), config.keyword_planes)
    backend = CpuBackend(config.n, config.keyword_planes)
    return backend, Partition(pack(codes), len(codes)), values(vectors.queries, config.query_planes)


def top_five(bed: Testbed, vectors: Vectors, network: TwoTower) -> Json:
    """Grades of the first five among all titles; for float keywords also among those of equal memory.

    Judged titles that are missing from the corpus are added to it.
    """
    judgements = Judgements(bed.data.labels["all"], bed.data.corpus)
    queries = bed.embed(network, "query", judgements.queries)
    more = torch.from_numpy(bed.embed(network, "keyword", judgements.added)).to(bed.device)
    keywords = unit(torch.cat([vectors.corpus, more])).cpu().numpy()
    hits = {"all titles": top(queries, keywords, 5)}
    if not vectors.codes:
        share = sample_rows(len(keywords), len(keywords) * CODE_BYTES // FLOAT_BYTES, 0)
        hits["the same memory"] = share[top(queries, keywords[share], 5)]
    head = judgements.asked_in(bed.data.labels)
    return {
        "found": {titles: judgements.count(found) for titles, found in hits.items()},
        "queries": len(judgements.queries),
        "headline": {
            "found": {titles: judgements.count(found, head) for titles, found in hits.items()},
            "queries": int(head.sum()),
        },
    }


class Judgements:
    """Grades of (query, position) over the corpus with the judged titles added at its end."""

    def __init__(self, labels: pa.Table, corpus: pa.Array) -> None:
        self.queries, query = distinct(labels["query"])
        titles = labels["keyword"].combine_chunks().cast(corpus.type)
        missing = pc.invert(pc.is_in(titles, value_set=corpus))
        self.added = titles.filter(missing).unique()
        place = pc.index_in(titles, value_set=pa.concat_arrays([corpus, self.added]))
        self._grade: dict[tuple[int, int], int] = {}
        keys = zip(query.tolist(), place.to_pylist(), strict=True)
        for key, grade in zip(keys, labels["label"].to_pylist(), strict=True):
            self._grade[key] = max(self._grade.get(key, 0), int(min(grade, len(GRADES) - 1)))

    def asked_in(self, labels: dict[str, pa.Table]) -> npt.NDArray[np.bool_]:
        """Mask [queries] of the slice whose figures are quoted."""
        found: npt.NDArray[np.bool_] = np.isin(
            self.queries.to_pylist(), labels[headline(labels) or "all"]["query"].to_pylist()
        )
        return found

    def count(self, positions: Ids, only: npt.NDArray[np.bool_] | None = None) -> dict[str, int]:
        """How many of the positions [queries, k] have each grade, of all queries or of some."""
        names = (*GRADES, "unjudged")
        chosen = range(len(positions)) if only is None else np.flatnonzero(only).tolist()
        places = ((query, place) for query in chosen for place in positions[query].tolist())
        counts = Counter(names[self._grade.get(key, -1)] for key in places)
        return {name: counts[name] for name in names}


def baseline(scorer: Scorer, data: Dataset) -> Json:
    """The figures of a scorer: recall, and the grades of its five best titles where there are labels."""
    judged = Judgements(data.labels["all"], data.corpus) if data.labels else None
    titles = data.corpus if judged is None else pa.concat_arrays([data.corpus, judged.added])
    chosen = sample_rows(data.test.num_rows, BASELINE_QUERIES, 0)
    targets = Targets(data.test.take(pa.array(chosen)), titles)
    result: Json = {"titles": len(data.corpus), "queries": len(targets.queries)}
    result |= scorer_recall(scorer, targets, titles, DEEP)
    if judged is not None:
        found = scorer.search(judged.queries, titles, 5, lambda done: None)
        result["top_five"] = judged.count(found)
        result["headline_top_five"] = judged.count(found, judged.asked_in(data.labels))
    return result


def ranks(
    queries: Tensor, keywords: Tensor, query: Tensor, target: Tensor, *, exact: bool, cosine: bool = True
) -> Tensor:
    """How many keywords come before each target: int64 [targets].

    queries [Q, n], keywords [K, n] float32 of any length; target i is keyword `target[i]`, wanted by query
    `query[i]` (int64 [targets] both). `exact`: both sides are codes. `cosine=False`: by inner product.
    """
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if exact else "highest")
    try:
        with torch.no_grad():
            return _ranks(queries, keywords, query, target, exact, cosine)
    finally:
        torch.set_float32_matmul_precision(before)


def _ranks(
    queries: Tensor, keywords: Tensor, query: Tensor, target: Tensor, exact: bool, cosine: bool
) -> Tensor:
    device, count = queries.device, len(keywords)
    inverse = torch.ones(count, device=device)  # [K] what a score is multiplied with
    if cosine:
        inverse = 1 / torch.linalg.vector_norm(keywords, dim=1).clamp(min=1e-12)
    if cosine and not exact:
        keywords, inverse = keywords * inverse[:, None], torch.ones_like(inverse)
    width = max(1, (CPU_SCORES if device.type == "cpu" else GPU_SCORES) // RANKED)
    position = torch.arange(count, device=device)
    rank = torch.zeros(len(target), dtype=torch.int64, device=device)
    for low in range(0, len(target), RANKED):
        asked = queries[query[low : low + RANKED]]  # [block, n]
        place = target[low : low + RANKED]  # [block]

        def scores(block: slice, asked: Tensor = asked) -> Tensor:
            return (asked @ keywords[block].T).mul_(inverse[block])  # [block, width]

        blocks = [slice(start, min(start + width, count)) for start in range(0, count, width)]
        # the target's score comes from the product of its own block, so that it equals itself to the bit
        right = torch.empty(len(place), device=device)
        owner = place // width  # [block] number of the block
        for number in sorted(set(owner.tolist())):
            rows = (owner == number).nonzero()[:, 0]
            right[rows] = scores(blocks[number])[rows, place[rows] - number * width]
        for block in blocks:
            s, bar = scores(block), right[:, None]
            ahead = (s > bar) | ((s == bar) & (position[block] < place[:, None]))
            rank[low : low + RANKED] += ahead.sum(dim=1)
    return rank
