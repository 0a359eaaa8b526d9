"""Exact joins: every keyword of one index is searched in another, or in its own.

    index.neighbors(10)                      the exact kNN graph: for each keyword its best 10 others
    index.join(other, k=3, min_score=0.8)    for each keyword of `other` its best 3 in `index`
    index.duplicates(0.95)                   groups of keywords that are nearly equal

A query is a stored code with all its planes or, if a Binarizer made it, the vector that it stands for. It is
scored as `search` scores it, so a join equals that many searches bit for bit, ties included. No extra
structure is built and nothing is missed: the cost is one scan per batch of queries.

Pairs come as Arrow batches, ordered by the row of the query and then by rank, with the columns

    id, neighbor_id    int64 or string      the query and the keyword that was found
    rank               int32                from 1, without gaps
    score              double               as from a search: the cosine of codes, or a Binarizer's estimate
    text, neighbor_text                     if texts are requested

A batch needs memory for its own pairs only. `write_pairs` makes a Parquet file of any size from them, one
part per batch, and resumes after an interrupt from the last complete part.

*Symmetry.* The cosine of codes is symmetric, but a top-k join scans every pair twice, once from each side:
the kernel compares a whole group of keywords with one threshold, that of the query, and the other side would
need a threshold per keyword. Groups of duplicates have one threshold for all, so `duplicates` scans each pair
once.

A least score is a limit of the scan itself. That is three to four times as fast as scanning for the best k
of each query and leaving out those below the score.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rbegir.base import disk, masks
from rbegir.base.progress import Report
from rbegir.codes.score import KeyScores, least_keys
from rbegir.encode.encoder import Encoder, as_queries, key_scores
from rbegir.errors import FileError, InputError, MismatchError
from rbegir.index.columns import Int64s, int64_array
from rbegir.index.filter import Filter
from rbegir.index.segment import Segment, read_column
from rbegir.index.snapshot import Snapshot
from rbegir.index.writer import Progress, WriterLock
from rbegir.search.backend import Backend
from rbegir.search.partition import Limits, Pairs, Search, Values, all_pairs
from rbegir.search.request import SearchRequest, Tenant, Where

ROOM = 1 << 22  # pairs in memory at a time, about 60 bytes each
MOST_QUERIES = 1 << 14  # per batch
FIRST_K = 64  # hits per query that a search by score asks for first, at least


@dataclass(frozen=True, eq=False)
class Join:
    """A join of two states: for each keyword of `queries` the best k of `keywords` that reach `min_score`."""

    keywords: Snapshot
    queries: Snapshot
    scorer: Encoder | None  # scores the hits (`key_scores`)
    k: int | None = None
    min_score: float | None = None
    itself: bool = True  # whether a keyword may be its own neighbor
    texts: bool = False
    where: Where = None  # only these of `keywords`; of `queries` too if both are the same index
    tenant: Tenant = None  # whose keywords both states hold

    def __post_init__(self) -> None:
        if self.k is None and self.min_score is None:
            raise InputError("a join needs k, min_score or both", hint="k=10 gives the ten best of each")
        SearchRequest(self.k, min_score=self.min_score)  # checks both
        ours, theirs = self.keywords.manifest, self.queries.manifest
        if ours.n != theirs.n:
            raise MismatchError(f"one index has codes of n = {ours.n}, the other of n = {theirs.n}")
        if ours.fingerprint and theirs.fingerprint and ours.fingerprint != theirs.fingerprint:
            raise MismatchError(
                "the two indexes hold codes of different models, which cannot be compared",
                hint="build both with the same model",
            )

    @property
    def rows(self) -> int:
        """Queries per batch."""
        return max(1, min(MOST_QUERIES, ROOM // (self.k or FIRST_K)))

    @property
    def schema(self) -> pa.Schema:
        ids = ("id", self.queries.types()["id"]), ("neighbor_id", self.keywords.types()["id"])
        texts = [("text", pa.string()), ("neighbor_text", pa.string())] if self.texts else []
        return pa.schema([*ids, ("rank", pa.int32()), ("score", pa.float64()), *texts])

    @property
    def identity(self) -> str:
        """Equal for joins with the same batches."""
        asked = (self.k, self.min_score, self.itself, self.texts, self.rows)
        chosen = (str(self.where), self.tenant)
        states = (self.keywords.manifest, self.queries.manifest)
        return hashlib.sha256(repr((asked, chosen, states)).encode()).hexdigest()

    def spans(self) -> Iterator[tuple[Segment, Int64s]]:
        """The queries: positions in segments, a batch at a time."""
        return self.queries.spans(self.rows, None if self.itself else self.where)

    @property
    def done(self) -> list[int]:
        """How many queries are done after each batch."""
        return list(itertools.accumulate(positions.size for _, positions in self.spans()))

    def table(self, backend: Backend, report: Report) -> pa.Table:
        """All pairs; `report` is called with (queries done, all queries)."""
        found, done = list[pa.RecordBatch](), self.done
        for number, batches in enumerate(self.batches(backend)):
            found += batches
            report(done[number], done[-1])
        return pa.Table.from_batches(found, self.schema)

    def batches(self, backend: Backend, first: int = 0) -> Iterator[Iterator[pa.RecordBatch]]:
        """The pairs of each batch of queries, beginning with batch number `first`."""
        where = None if self.where is None else Filter.of(self.where, self.keywords.types())
        passing = None if where is None else [where.passing(one.segment) for one in self.keywords.segments]
        keywords, partitions = self.keywords.candidates(passing)
        search = functools.partial(backend.search, partitions)
        starts = {one.segment: start for one, start in zip(keywords.segments, keywords.starts, strict=False)}
        for segment, positions in itertools.islice(self.spans(), first, None):
            values = as_queries(self.scorer, segment.codes(positions))
            own = None if self.itself else starts[segment] + positions
            found = self._pairs(search, values, own)
            yield (self._batch(segment, positions, pairs, keywords) for pairs in found)

    def _pairs(self, search: Search, values: Values, own: Int64s | None) -> Iterator[Pairs]:
        """The pairs of a batch of queries; `own` has the queries' positions if they are to be left out."""
        if self.k is None:
            assert self.min_score is not None
            found = reaching(search, values, self.scorer, self.min_score)
        else:
            scores = key_scores(self.scorer, values)
            limits = None if self.min_score is None else _reach(self.min_score, scores, len(values))
            best = search(values, self.k + (own is not None), limits)
            hits = best.positions >= 0
            found = iter([Pairs(np.nonzero(hits)[0], scores(best.keys)[hits], best.positions[hits])])
        for pairs in found:
            if own is not None:
                pairs = pairs.only(pairs.positions != own[pairs.query])
            if self.k is not None:
                pairs = pairs.only(_ranks(pairs.query) <= self.k)
            yield pairs

    def _batch(self, segment: Segment, positions: Int64s, pairs: Pairs, keywords: Snapshot) -> pa.RecordBatch:
        """Pairs with the ids, and texts if requested, of both sides."""
        at = int64_array(pairs.query)
        columns = [
            segment.ids(positions).take(at),
            keywords.array("id", pairs.positions),
            pa.array(_ranks(pairs.query).astype(np.int32)),
            pa.array(pairs.scores),
        ]
        if self.texts:
            columns.append(read_column(segment, "text", pa.string(), positions).take(at))
            columns.append(keywords.array("text", pairs.positions))
        self.queries.check_mapped()
        return pa.record_batch(columns, schema=self.schema)


def reaching(search: Search, values: Values, scorer: Encoder | None, min_score: float) -> Iterator[Pairs]:
    """All pairs that reach a score, in runs of whole queries."""
    scores = functools.partial(key_scores, scorer)
    limits = _reach(min_score, scores(values), len(values))
    return all_pairs(search, values, scores, limits, ROOM, FIRST_K)


def _reach(min_score: float, scores: KeyScores, queries: int) -> Limits:
    """The limits of queries whose hits must reach a score."""
    return Limits.none(queries)._replace(floors=least_keys(min_score, scores, queries))


def groups(
    state: Snapshot, scorer: Encoder | None, backend: Backend, min_score: float, report: Report
) -> pa.Table:
    """Groups of keywords that are linked by pairs of at least this score: group, id and text.

    `report` is called with (queries done, all queries). The query of a link is the code that was stored
    first. Keywords with equal codes are one node, so a thousand copies cost as much as one keyword; a code
    that reaches neither itself nor another one links nobody. Needs about 60 bytes per keyword.
    """
    SearchRequest(None, min_score=min_score)  # checks it
    state, partitions = state.candidates()
    starts, keywords = state.starts, state.select(None)
    parent = np.arange(starts[-1])  # of each keyword in the tree of its group; it never comes later
    first_of = keywords[_first_of_equals(state.codes(keywords).planes)]
    linked = np.zeros(starts[-1], np.bool_)
    nodes = np.unique(first_of)
    of_nodes = [
        masks.from_positions(nodes[(nodes >= low) & (nodes < high)] - low, high - low)
        for low, high in itertools.pairwise(starts)
    ]
    for first in range(0, nodes.size, MOST_QUERIES):
        queries = nodes[first : first + MOST_QUERIES]
        later = []  # each pair is scanned once, from its earlier side
        for part, mask, low in zip(partitions, of_nodes, starts, strict=False):
            mask = mask.copy()
            mask[: max(0, int(queries[0] - low)) >> 6] = 0
            later.append(part._replace(mask=mask))
        values = as_queries(scorer, state.codes(queries))
        search = functools.partial(backend.search, later)
        for pairs in reaching(search, values, scorer, min_score):
            pairs = pairs.only(pairs.positions >= queries[pairs.query])
            linked[queries[pairs.query]] = linked[pairs.positions] = True
            _link(parent, queries[pairs.query], pairs.positions)
        report(first + queries.size, nodes.size)
    nodes_of = np.where(linked[first_of], first_of, keywords)
    _, group, sizes = np.unique(_root(parent, nodes_of), return_inverse=True, return_counts=True)
    members = np.flatnonzero(sizes[group] > 1)
    group = (np.cumsum(sizes > 1) - 1)[group[members]]  # numbered by their first keywords
    order = np.argsort(group, kind="stable")
    stored = {name: state.array(name, keywords[members[order]]) for name in ("id", "text")}
    return pa.table({"group": int64_array(group[order]), **stored})


def write_pairs(path: Path, join: Join, backend: Backend, progress: Progress | None = None) -> dict[str, int]:
    """Write all pairs to a new Parquet file, which appears when it is complete.

    Each batch of queries is a file in a hidden directory beside it. After an interruption, the same join of
    the same states continues there; any other join starts again. `progress` is called with (queries done,
    all queries).
    """
    import pyarrow.parquet as pq

    path = new_parquet(path)
    stage = path.with_name(f".{path.name}.joining")
    done = join.done
    parts = [stage / f"part-{number:08d}.parquet" for number in range(len(done))]
    with disk.explained("write", path):
        stage.mkdir(exist_ok=True)
        with WriterLock(stage):
            job = stage / "JOB"
            if not job.exists() or job.read_text() != join.identity:  # parts of another join
                for part in stage.glob("part-*"):
                    part.unlink()
                disk.write_file(job, join.identity.encode())
            resumed = sum(1 for _ in itertools.takewhile(Path.exists, parts))
            for number, batches in enumerate(join.batches(backend, resumed), resumed):
                with disk.staged(parts[number]) as part, pq.ParquetWriter(part, join.schema) as writer:
                    for batch in batches:
                        writer.write_batch(batch)
                if progress is not None:
                    progress(done[number], done[-1])
            pairs = 0
            with disk.staged(path) as whole, pq.ParquetWriter(whole, join.schema) as writer:
                for part in parts:
                    for batch in pq.ParquetFile(part).iter_batches():
                        writer.write_batch(batch)
                        pairs += batch.num_rows
            disk.remove_tree(stage)
    return {
        "pairs": pairs,
        "queries": done[-1] if done else 0,
        "keywords": join.keywords.count(join.where),
        "resumed_queries": done[resumed - 1] if resumed else 0,
    }


def new_file(path: Path) -> Path:
    """The absolute path of a file to create; raise FileError if it cannot be created."""
    path = path.absolute()
    if path.exists():
        raise FileError(f"{path} exists already", hint="choose another path, or remove it")
    if not path.parent.is_dir():
        raise FileError(f"there is no directory {path.parent} to write to")
    return path


def new_parquet(path: Path) -> Path:
    """The absolute path of a Parquet file to create; a name that promises another format is refused."""
    if path.suffix.lower() in (".csv", ".tsv", ".json", ".jsonl", ".ndjson", ".txt", ".gz"):
        raise InputError(
            f"the file is written as Parquet, but {path} has the suffix of another format",
            hint=f"name it {path.with_suffix('.parquet')}",
        )
    return new_file(path)


def _ranks(query: Int64s) -> Int64s:
    """The rank of each pair among those of its query, from 1; `query` ascends."""
    return np.arange(1, query.size + 1) - np.searchsorted(query, query)


def _first_of_equals(planes: npt.NDArray[np.uint64]) -> Int64s:
    """The index of the first equal code, for each code of [planes, count, words]."""
    count = planes.shape[1]
    words = planes.transpose(0, 2, 1).reshape(planes.shape[0] * planes.shape[2], count)
    order = np.lexsort(words)  # stable: the first of equal codes comes first
    new = np.ones(count, np.bool_)
    new[1:] = np.any(words[:, order[1:]] != words[:, order[:-1]], axis=0)
    first = np.empty_like(order)
    first[order] = order[new][np.cumsum(new) - 1]
    return first


def _root(parent: Int64s, nodes: Int64s) -> Int64s:
    """The roots of nodes; shortens the paths to them."""
    roots = parent[nodes]
    while np.any((above := parent[roots]) != roots):
        roots = above
    parent[nodes] = roots
    return roots


def _link(parent: Int64s, one: Int64s, other: Int64s) -> None:
    """Join the trees of each pair of nodes."""
    while one.size:
        one, other = _root(parent, one), _root(parent, other)
        low, high = np.minimum(one, other), np.maximum(one, other)
        apart = low < high
        one, other = low[apart], high[apart]
        np.minimum.at(parent, other, one)
