"""Pairs as chunks of the shuffle buffer's size, and the pairs held out of them for validation.

A first pass counts the pairs and finds the keywords to hold out. If everything fits into the buffer, its one
chunk stays in memory, tokenised; a larger file is streamed chunk by chunk in every epoch, the next chunk
being read and tokenised while the current one trains. Pairs are shuffled within a chunk and chunks keep the
file's order, so a sorted file much larger than the buffer should be shuffled beforehand.

With several processes, each does this for the rows that it owns (`distributed.py`), and they exchange counts,
the share of keywords to hold out, the pairs held out and the keys of a chunk's pairs.

*A teacher* is a sentence-transformers model whose vectors the float guide learns beside the pairs:

    L = L(codes) + L(guide) + weight · (Σ w_q D(q) + mean D(k))        D(t) = 1 − cos(guide(t), teacher(t))

A teacher has read far more than the pairs and knows, for instance, that a film is a movie. The guide shares
its features with the codes, so both learn from it. Its vectors are cut to the dimensions of the guide along
their principal directions. Much more weight than the default makes the codes worse (dev/LOG.md, H20, H21).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from os import PathLike

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rbegir.base.devices import ahead, cpu_count
from rbegir.base.progress import Report
from rbegir.encode.sentence.encoder import SentenceEncoder
from rbegir.errors import InputError, MismatchError
from rbegir.evaluate.groups import distinct
from rbegir.index.keys import keys_of
from rbegir.read.pairs import PairStream
from rbegir.read.rows import Skipped
from rbegir.read.split import VALID_SHARE, positions
from rbegir.read.tokenizer import GramBatch, tokenize
from rbegir.training.batches import Chunk
from rbegir.training.distributed import KEY, Exchange, Places, RowPlan, join
from rbegir.training.loss import Ints

BUFFER_BYTES = 1 << 30  # of text, estimated from the first rows, whatever the number of pairs
LEAST_ROWS = 1024  # of a chunk
MAX_VALIDATION = 50_000  # pairs that validation uses
FEW = 20  # keywords that validation asks for where the hash share is smaller
SAMPLE = 8192  # keywords that a model starts from
TAUGHT = 4096  # texts that a teacher encodes at a time
DIRECTIONS = 20_000  # texts that a teacher's principal directions are found from, at most
TEACHER_BATCH = 256

Halves = npt.NDArray[np.float16]


class TrainingData:
    """The training pairs, or this process's part of them.

    `held_out` holds pairs of the held-out keywords, drawn at random, as many as validation uses; it is None
    with hold_out=False. All public figures are about the pairs of all processes.
    """

    def __init__(
        self,
        stream: PairStream,
        *,
        hash_buckets: int,
        buffer_pairs: int | None = None,
        hold_out: bool = False,
        report: Report = lambda *progress: None,
        exchange: Exchange | None = None,
        clicked: int | None = None,
        teacher: Teacher | None = None,
    ) -> None:
        """`buffer_pairs`: how many pairs a chunk has at most; None puts all of them into one.
        `clicked`: rows from this number on are made of a corpus; validation uses them only if it is 0.
        `teacher` gives `taught`, its vectors of the texts of the only chunk.
        """
        self._clicked, self._teacher = clicked, teacher
        self.taught: tuple[Halves, Halves] | None = None  # [distinct queries], [distinct keywords]
        self._stream, self._hash_buckets, self._report = stream, hash_buckets, report
        self._exchange = exchange or Exchange()
        self.held_out: pa.Table | None = None
        self._held: pa.Array | None = None  # held-out keywords among the own rows
        self._only: Chunk | None = None
        self._check_same()
        with self._exchange.failing_together():
            self._rows = RowPlan(self._exchange.rank, self._chunk_rows(buffer_pairs), stream.rows)
            self._survey(hold_out)

    @property
    def pairs(self) -> int:
        return sum(self.sizes)

    def chunks(self) -> Iterator[Chunk]:
        """The chunks of one epoch."""
        if self._only is not None:
            yield self._only
            return
        own = ahead(self._own_chunks())
        nothing = np.zeros(0, np.int64), PairStream.schema.empty_table()
        for _ in self.sizes:
            with self._exchange.failing_together():
                numbers, table = next(own, nothing)
                if self._held is not None:
                    kept = pc.invert(pc.is_in(table["keyword"], value_set=self._held))
                    numbers, table = numbers[kept.to_numpy()], table.filter(kept)
                chunk = self._chunk(numbers, table)
            yield chunk

    def _check_same(self) -> None:
        """Refuse processes on machines that see different files under one name."""
        sizes = self._exchange(self._stream.path.stat().st_size)
        if len(set(sizes)) > 1:
            listed = ", ".join(f"{size:,}" for size in sizes)
            raise MismatchError(
                f"{self._stream.path} is not the same file for all processes: it has {listed} bytes",
                hint="put it where every machine sees it",
            )

    def _chunk_rows(self, buffer_pairs: int | None) -> int:
        """How many rows of the file fit into the buffer, estimated from the first ones."""
        first = next(iter(self._stream))
        if buffer_pairs is None:
            return sys.maxsize
        fitting: int = BUFFER_BYTES * first.num_rows // first.nbytes
        return min(buffer_pairs, max(LEAST_ROWS, fitting))

    def _own_chunks(self) -> Iterator[tuple[Places, pa.Table]]:
        """This process's rows, chunk by chunk, up to the last chunk that it has any rows of."""
        numbers: list[Places] = [np.zeros(0, np.int64)]
        batches: list[pa.RecordBatch] = []
        chunk, size = 0, self._rows.chunk
        alone = self._exchange.rank.world == 1
        for some, batch in self._stream.part(None if alone else self._rows.wanted):
            while chunk < int(some[-1]) // size:  # there are rows of a later chunk: this one is complete
                end = int(np.searchsorted(some, (chunk + 1) * size))
                yield (
                    np.concatenate([*numbers, some[:end]]),
                    pa.Table.from_batches([*batches, batch.slice(0, end)], PairStream.schema),
                )
                numbers, batches = [np.zeros(0, np.int64)], []
                some, batch, chunk = some[end:], batch.slice(end), chunk + 1
            numbers.append(some)
            batches.append(batch)
        yield np.concatenate(numbers), pa.Table.from_batches(batches, PairStream.schema)

    def _survey(self, hold_out: bool) -> None:
        """Count, hold out, and keep the chunk if there is only one."""
        held: list[pa.Table] = []
        beginning: pa.Table | None = None
        own = _Counts()
        first: tuple[Places, pa.Table] | None = None
        threshold: float | None = None
        for numbers, table in self._own_chunks():
            self._report(self._stream.progress, 1.0, "reading")
            if hold_out:
                real = pa.array(numbers < (self._clicked or np.inf))
                keywords = table["keyword"].filter(real).unique()
                places = positions(keywords.to_pylist())
                if threshold is None:  # from the first chunk of all processes
                    threshold = hold_out_below(np.unique(np.concatenate(self._exchange(places))))
                found = keywords.filter(pa.array(places < threshold))
                self._held = found if self._held is None else pa.concat_arrays([self._held, found]).unique()
                chosen = pc.is_in(table["keyword"], value_set=self._held)
                some = table.append_column("row", pa.array(numbers)).filter(pc.and_(chosen, real))
                held = [drawn(pa.concat_tables([*held, some]))]
                own.held += some.num_rows
                kept = pc.invert(chosen)
                numbers, table = numbers[kept.to_numpy()], table.filter(kept)
            if beginning is None:
                beginning = table.append_column("row", pa.array(numbers)).slice(0, SAMPLE)
            own.sizes.append(table.num_rows)
            own.keywords |= set(pc.min_max(table["keyword"]).as_py().values()) - {None}
            first = (numbers, table) if len(own.sizes) == 1 else None
        own.skipped = self._stream.skipped
        self._add_up(self._exchange(own))
        beginnings = pa.concat_tables(self._exchange(beginning)).sort_by("row")
        self.sample = beginnings["keyword"].slice(0, SAMPLE).unique()  # the first keywords to learn from
        if hold_out:
            everyones = pa.concat_tables(self._exchange(pa.concat_tables(held)))
            self.held_out = drawn(everyones).select(PairStream.schema.names)
        if len(self.sizes) == 1 and first is not None:
            self._only = self._chunk(*first)
            if self._teacher is not None:
                self.taught = self._ask(self._teacher, *first)
        elif self._teacher is not None:
            raise InputError(
                f"a teacher needs all pairs in memory at once, got {self.pairs:,} pairs",
                hint="give fewer pairs, or a larger buffer_pairs",
            )

    def _add_up(self, everyones: list[_Counts]) -> None:
        self.sizes = [sum(sizes) for sizes in zip_longest(*(c.sizes for c in everyones), fillvalue=0)]
        self.varied = len(set().union(*(c.keywords for c in everyones))) > 1  # whether keywords differ
        self.held_pairs = sum(c.held for c in everyones)  # pairs of held-out keywords
        self.skipped = Skipped()
        for counts in everyones:
            self.skipped.read += counts.skipped.read
            self.skipped.reasons += counts.skipped.reasons

    def _chunk(self, numbers: Places, table: pa.Table) -> Chunk:
        """Tokenised own pairs, and the keys of everyone's."""
        chunk = tokenize_pairs(table, self._hash_buckets)
        rank = self._exchange.rank
        if rank.world == 1:
            return chunk
        own = np.empty(len(chunk), KEY)
        own["row"], own["weight"] = numbers, chunk.weight
        for side in ("query", "keyword"):
            own[side] = keys_of(table[side].combine_chunks())
        rows, weight = join(rank, self._exchange(own))
        return replace(chunk, weight=weight, own=rows)

    def _ask(self, teacher: Teacher, numbers: Places, table: pa.Table) -> tuple[Halves, Halves]:
        """The teacher's vectors of the distinct queries and keywords, numbered as those of the chunk.

        A query made of a text has the vector of that text: a teacher does not know what typos mean.
        """
        (queries, query), (keywords, keyword) = (distinct(table[name]) for name in ("query", "keyword"))
        clicked = np.unique(query[numbers < (np.inf if self._clicked is None else self._clicked)])
        of_keywords = teacher(keywords, "document")
        of_queries = np.empty((len(queries), of_keywords.shape[1]), np.float16)
        of_queries[query] = of_keywords[keyword]
        of_queries[clicked] = teacher(queries.take(pa.array(clicked)), "query")
        return of_queries, of_keywords


@dataclass
class _Counts:
    """The counts of one process over its rows."""

    sizes: list[int] = field(default_factory=list)  # pairs in each chunk
    held: int = 0  # pairs held out
    keywords: set[str] = field(default_factory=set)  # the smallest and the largest one of each chunk
    skipped: Skipped = field(default_factory=Skipped)


def hold_out_below(places: npt.NDArray[np.float64]) -> float:
    """The hash position below which a keyword is held out for validation, given those of the first buffer.

    It is a fixed share, so that the same keywords are held out of every file. For a very small file, or one
    that was split by this hash before, the limit is set so that about that share, or a few, are held out.
    """
    below = int((places < VALID_SHARE).sum())
    if below >= FEW and 0.5 < below / (VALID_SHARE * len(places)) < 2:
        return VALID_SHARE
    wanted = max(math.ceil(VALID_SHARE * len(places)), min(FEW, len(places) // 5))
    return float(np.nextafter(np.sort(places)[wanted - 1], 1.0)) if len(places) > 1 else 0.0


def drawn(pairs: pa.Table) -> pa.Table:
    """MAX_VALIDATION of the pairs, drawn by a hash of their rows, in the order of the file: the same ones
    however the file was divided. Without a column of rows they are a whole file."""
    named = "row" in pairs.column_names
    rows = pairs["row"].to_numpy() if named else np.arange(pairs.num_rows)
    places = rows.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)  # golden section: spread evenly
    chosen = np.argsort(places, kind="stable")[:MAX_VALIDATION]
    return pairs.take(pa.array(chosen[np.argsort(rows[chosen])]))


def tokenize_pairs(table: pa.Table, hash_buckets: int) -> Chunk:
    """Tokenise the distinct texts of a table of pairs."""

    def side(name: str) -> tuple[GramBatch, Ints]:
        texts, numbers = distinct(table[name])
        return tokenize(texts, hash_buckets=hash_buckets, threads=cpu_count()), numbers.astype(np.int32)

    with ThreadPoolExecutor(2, thread_name_prefix="rbegir-tokenize") as pool:
        (query_texts, query), (keyword_texts, keyword) = pool.map(side, ("query", "keyword"))
    weight: npt.NDArray[np.float32] = table["weight"].to_numpy()
    for texts in (query_texts, keyword_texts):
        assert np.diff(texts.text_offsets).all()  # the readers refuse texts without a letter or digit
    return Chunk(query_texts, keyword_texts, query, keyword, weight)


class Teacher:
    """Unit vectors of texts, with at most `dims` dimensions."""

    def __init__(
        self,
        model: str | PathLike[str],
        dims: int,
        *,
        device: str = "cpu",
        report: Report = lambda *progress: None,
    ) -> None:
        self._encoder = SentenceEncoder.load(model, device=device, batch_size=TEACHER_BATCH)
        self._dims, self._report = dims, report
        self._basis: npt.NDArray[np.float32] | None = None  # [dimensions of the model, dims]

    def __call__(self, texts: pa.Array, task: str) -> Halves:
        """The vectors of texts; `task` is query or document. The directions are those of the first call."""
        if self._basis is None:
            some = np.linspace(0, len(texts) - 1, min(DIRECTIONS, len(texts)), dtype=np.int64)
            vectors = self._encoder.vectors(texts.take(pa.array(some)).to_pylist(), task)
            _, directions = np.linalg.eigh(vectors.T @ vectors)  # ascending eigenvalues
            self._basis = directions[:, ::-1][:, : self._dims].astype(np.float32)
        out = np.empty((len(texts), self._basis.shape[1]), np.float16)
        for low in range(0, len(texts), TAUGHT):
            vectors = self._encoder.vectors(texts.slice(low, TAUGHT).to_pylist(), task) @ self._basis
            lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
            out[low : low + TAUGHT] = vectors / np.maximum(lengths, np.finfo(np.float32).tiny)
            self._report(min(low + TAUGHT, len(texts)), len(texts), "asking the teacher")
        return out
