"""Hard negatives: for each query of clicked pairs, the best keywords that were not clicked for it.

    rbegir.mine("ads.rbe", "clicks.parquet", k=10)    among the keywords of an index
    rbegir.mine("model", "clicks.parquet", k=10)      among the keywords of the pairs

A search by codes is exhaustive and exact, so these are the keywords that the model confuses most with the
clicked ones. Train on them, label them by hand, or add them to the clicks if they are right too. A keyword
counts as clicked if its text equals a clicked text exactly. The columns:

    query, keyword    string
    id                int64 or string    of the keyword in the index
    rank              int32              in the search, from 1; the clicked keywords fill the gaps
    score             double             of the search by codes
"""

import contextlib
import itertools
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from rbegir.base.progress import Progress, Report, reported
from rbegir.encode.encoder import Encoder, load_encoder
from rbegir.errors import whole_number
from rbegir.index.manifest import NAME
from rbegir.index.store import Index
from rbegir.read.pairs import PairStream, read_pairs
from rbegir.search.hits import Hit

BLOCK = 4096  # queries searched together, at most
HITS = 2_000_000  # found and kept together, at most, unless a single query needs more: these bound the memory


@dataclass(frozen=True)
class Mining:
    """An index, and queries with the keywords that were clicked for them."""

    index: Index
    clicks: pa.Table  # query, keyword_distinct: a list of texts
    k: int

    @property
    def schema(self) -> pa.Schema:
        id_type = pa.string() if self.index.info()["id_type"] == "string" else pa.int64()
        kinds = pa.string(), pa.string(), id_type, pa.int32(), pa.float64()
        return pa.schema(list(zip(("query", "keyword", "id", "rank", "score"), kinds, strict=True)))

    def batches(self, report: Report) -> Iterator[pa.RecordBatch]:
        """The negatives, in the order of the queries and by rank; `report` gets (queries done, all)."""
        step = max(1, min(BLOCK, HITS // self.k))
        for start in range(0, self.clicks.num_rows, step):
            block = self.clicks.slice(start, step)
            found = self._found(block["query"].to_pylist(), block["keyword_distinct"].to_pylist())
            rows = [(query, hit.text, hit.id, rank, hit.score) for query, rank, hit in found]
            columns = zip(*rows, strict=True) if rows else [()] * len(self.schema)
            arrays = [pa.array(column, kind) for column, kind in zip(columns, self.schema.types, strict=True)]
            yield pa.record_batch(arrays, schema=self.schema)
            report(start + block.num_rows, self.clicks.num_rows)

    def _found(self, queries: list[str], clicked: list[list[str]]) -> Iterator[tuple[str, int, Hit]]:
        """(query, rank, hit) of the negatives. Keywords may share a clicked text, so a depth may grow.

        The deepest searches come first, and only as many together as HITS allows.
        """
        depths, found = [self.k + len(right) for right in clicked], {}
        left = list(range(len(queries)))
        while left:
            left.sort(key=depths.__getitem__)
            depth = depths[left[-1]]
            asked = left[-max(1, HITS // depth) :]
            del left[-len(asked) :]
            hits = self.index.search([queries[i] for i in asked], depth, rerank=False, attributes=False)
            for i, listed in zip(asked, hits, strict=True):
                right = set(clicked[i])
                wrong = ((rank, hit) for rank, hit in enumerate(listed, 1) if hit.text not in right)
                found[i] = list(itertools.islice(wrong, self.k))
                if len(found[i]) < self.k and len(listed) == depth:
                    depths[i] = 4 * depth
                    left.append(i)
        return ((query, *other) for i, query in enumerate(queries) for other in found[i])


@contextlib.contextmanager
def mining(
    source: Index | Encoder | str | Path,
    pairs: PairStream,
    k: int,
    *,
    device: str | Sequence[str] = "cpu",
    threads: int | None = None,
) -> Iterator[Mining]:
    """Open the index to search; for a model, build a temporary one of the keywords of the pairs."""
    whole_number("k", k)
    clicked = pairs.read_all()
    clicks = clicked.group_by("query", use_threads=False).aggregate([("keyword", "distinct")])
    with contextlib.ExitStack() as opened:
        if isinstance(source, (str, Path)):
            if "://" in str(source) or (Path(source) / NAME).exists():
                source = opened.enter_context(Index.open(source, device, read_only=True, threads=threads))
            else:
                source = load_encoder(Path(source), threads=threads)
        if not isinstance(source, Index):
            folder = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="rbegir-mine-")))
            made = Index.create(folder / "keywords.rbe", source, device=device, threads=threads)
            source = opened.enter_context(made)
            source.add(clicked["keyword"].combine_chunks().unique())
        yield Mining(source, clicks, k)


def mine(
    source: Index | Encoder | str | Path,
    pairs: Any,
    k: int = 10,
    *,
    device: str | Sequence[str] = "cpu",
    query_column: str = "query",
    keyword_column: str = "keyword",
    progress: Progress = None,
) -> pa.Table:
    """The hard negatives of pairs: query, keyword, id, rank and score, k rows per query.

    `source` is an index, whose keywords are searched, or a model, which searches the keywords of the pairs;
    a path stands for either. `pairs` are a file, a DataFrame, an Arrow table or a list of (query, keyword).
    `progress` is called with (queries done, all), False for none; by default a bar is shown in a terminal.
    """
    stream = read_pairs(pairs, query_column=query_column, keyword_column=keyword_column, weight_column=None)
    with mining(source, stream, k, device=device) as job, reported(progress, "mining") as report:
        return pa.Table.from_batches(job.batches(report), job.schema)
