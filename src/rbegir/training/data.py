"""Pairs as chunks of the shuffle buffer's size, and the pairs held out of them for validation.

A first pass (`survey`) counts the pairs and finds the keywords that validation keeps for itself. If
everything fits into the buffer, its one chunk stays in memory, tokenised, and no epoch reads the file again;
a larger file is streamed chunk by chunk in every epoch, the next ones being read and tokenised while the
current one trains.

Pairs are shuffled within a chunk and chunks keep the file's order: a sorted file much larger than the buffer
should be shuffled once beforehand.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rbegir.text.tokenizer import GramBatch, tokenize
from rbegir.training.batches import Chunk
from rbegir.training.groups import Ints
from rbegir.training.pairs import PairStream
from rbegir.training.split import VALID_SHARE, positions

BUFFER_BYTES = 1 << 30  # of text, whatever the number of pairs
T = TypeVar("T")
FEW = 20  # keywords that validation asks for where the hash share is smaller


class Data:
    """The training pairs. `held_out` has those of the held-out keywords, or is None with hold_out=False."""

    def __init__(
        self,
        stream: PairStream | Sequence[pa.RecordBatch],
        *,
        hash_buckets: int,
        buffer_pairs: int,
        threads: int,
        hold_out: bool,
        notify: Callable[[float], None] = lambda share: None,
    ) -> None:
        self._stream, self._buffer, self._threads = stream, buffer_pairs, threads
        self._hash_buckets = hash_buckets
        self.sizes: list[int] = []  # pairs in each chunk
        self.varied = False  # whether there are different keywords
        self.held_out: pa.Table | None = None
        self._held: pa.Array | None = None
        self._only: Chunk | None = None
        self._survey(hold_out, notify)

    @classmethod
    def of_table(cls, pairs: pa.Table, *, hash_buckets: int, threads: int) -> Data:
        """Pairs that are in memory already, none held out."""
        return cls(
            pairs.select(PairStream.schema.names).cast(PairStream.schema).to_batches(),
            hash_buckets=hash_buckets,
            buffer_pairs=max(1, pairs.num_rows),
            threads=threads,
            hold_out=False,
        )

    def _survey(self, hold_out: bool, notify: Callable[[float], None]) -> None:
        """Count, hold out, and keep the chunk if there is only one."""
        kept: list[pa.RecordBatch] = []
        first: pa.Table | None = None
        some_keyword: pa.Scalar | None = None
        threshold: float | None = None
        for table in buffers(self._stream, self._buffer):
            notify(self._stream.progress if isinstance(self._stream, PairStream) else 1.0)
            if hold_out:
                distinct = table["keyword"].unique()
                places = positions(distinct.to_pylist())
                threshold = _threshold(places) if threshold is None else threshold
                held = distinct.filter(pa.array(places < threshold))
                self._held = held if self._held is None else pa.concat_arrays([self._held, held]).unique()
                chosen = pc.is_in(table["keyword"], value_set=self._held)
                kept += table.filter(chosen).to_batches()
                table = table.filter(pc.invert(chosen))
            if table.num_rows:
                some_keyword = some_keyword or table["keyword"][0]
                self.varied = self.varied or pc.any(pc.not_equal(table["keyword"], some_keyword)).as_py()
            first = None if self.sizes else table
            self.sizes.append(table.num_rows)
        if hold_out:
            self.held_out = pa.Table.from_batches(kept, PairStream.schema)
        if first is not None:
            self._only = tokenize_pairs(first, self._hash_buckets, self._threads)

    @property
    def pairs(self) -> int:
        return sum(self.sizes)

    @property
    def in_memory(self) -> bool:
        return self._only is not None

    def chunks(self) -> Iterator[Chunk]:
        """The chunks of one epoch."""
        if self._only is not None:
            yield self._only
            return
        for table in ahead(buffers(self._stream, self._buffer)):
            if self._held is not None:
                table = table.filter(pc.invert(pc.is_in(table["keyword"], value_set=self._held)))
            yield tokenize_pairs(table, self._hash_buckets, self._threads)


def ahead(items: Iterable[T]) -> Iterator[T]:
    """The same items, the next one always being made in a thread of its own."""
    iterator = iter(items)
    end = object()
    with ThreadPoolExecutor(1, thread_name_prefix="rbegir-ahead") as pool:
        waiting = pool.submit(next, iterator, end)
        while (item := waiting.result()) is not end:
            waiting = pool.submit(next, iterator, end)
            yield item  # type: ignore[misc]


def buffers(batches: Iterable[pa.RecordBatch], rows: int) -> Iterator[pa.Table]:
    """Tables of up to `rows` rows and BUFFER_BYTES bytes."""
    waiting: list[pa.RecordBatch] = []
    count = size = 0
    for batch in batches:
        while batch.num_rows:
            part = batch.slice(0, rows - count)
            batch = batch.slice(part.num_rows)
            waiting.append(part)
            count += part.num_rows
            size += part.get_total_buffer_size()
            if count == rows or size >= BUFFER_BYTES:
                yield pa.Table.from_batches(waiting)
                waiting, count, size = [], 0, 0
    if waiting:
        yield pa.Table.from_batches(waiting)


def _threshold(places: npt.NDArray[np.float64]) -> float:
    """Keywords whose hash lies below this are held out, given those of the first buffer.

    It is the fixed share, so that the same keywords are held out of every file. A file that was split by this
    hash before, or a very small one, has almost none or only such keywords: there it is a share of its own.
    """
    below = int((places < VALID_SHARE).sum())
    if below >= FEW and 0.5 < below / (VALID_SHARE * len(places)) < 2:
        return VALID_SHARE
    wanted = max(math.ceil(VALID_SHARE * len(places)), min(FEW, len(places) // 5))
    return float(np.nextafter(np.sort(places)[wanted - 1], 1.0)) if len(places) > 1 else 0.0


def tokenize_pairs(table: pa.Table, hash_buckets: int, threads: int) -> Chunk:
    """Tokenise the distinct texts of a table of pairs."""

    def side(name: str) -> tuple[GramBatch, Ints]:
        encoded = table[name].combine_chunks().dictionary_encode()
        texts = tokenize(encoded.dictionary, hash_buckets=hash_buckets, threads=threads)
        return texts, encoded.indices.to_numpy().astype(np.int32, copy=False)

    with ThreadPoolExecutor(2, thread_name_prefix="rbegir-tokenize") as pool:
        (query_texts, query), (keyword_texts, keyword) = pool.map(side, ("query", "keyword"))
    weight: npt.NDArray[np.float32] = table["weight"].to_numpy()
    empty = (np.diff(query_texts.text_offsets) == 0)[query] | (np.diff(keyword_texts.text_offsets) == 0)[
        keyword
    ]
    assert not empty.any()  # the readers refuse texts without a letter or digit
    return Chunk(query_texts, keyword_texts, query, keyword, weight)
