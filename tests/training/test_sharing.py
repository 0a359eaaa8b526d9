"""Processes that share a file: together they have what one process has, row by row and batch by batch.

Here the processes are threads that meet at a barrier; test_distributed.py has real ones.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rbegir.encode.clsm.clsm import TowerBatch
from rbegir.errors import CorruptError, InputError, MismatchError
from rbegir.read.pairs import read_pairs
from rbegir.read.tokenizer import GramBatch
from rbegir.training import data as data_module
from rbegir.training.batches import StepBatch, epoch_batches
from rbegir.training.config import TrainConfig
from rbegir.training.data import TrainingData
from rbegir.training.distributed import Exchange, Rank, RowPlan

T = TypeVar("T")
CPU = torch.device("cpu")


class Meeting:
    """Exchanges of processes that are threads."""

    def __init__(self, world: int) -> None:
        self.world = world
        self.slots: list[Any] = [None] * world
        self.barrier = threading.Barrier(world, timeout=600)

    def exchange(self, rank: int) -> Exchange:
        meeting = self

        class ByThreads(Exchange):
            def _all(self, own: Any) -> list[Any]:
                meeting.slots[rank] = own
                meeting.barrier.wait()
                found = list(meeting.slots)
                meeting.barrier.wait()
                return found

        return ByThreads(Rank(rank, self.world))


def together(world: int, work: Callable[[Exchange], T]) -> list[T]:
    meeting = Meeting(world)
    with ThreadPoolExecutor(world) as pool:
        return list(pool.map(lambda rank: work(meeting.exchange(rank)), range(world)))


def spelled(batch: GramBatch | TowerBatch) -> list[list[tuple[int, ...]]]:
    """Each text as its words, each word as its grams."""
    to, words, go, grams = (np.asarray(x) for x in batch[:4])
    return [[tuple(grams[go[w] : go[w + 1]]) for w in words[a:b]] for a, b in pairwise(to)]


Texts = list[tuple[Any, ...]]


def pairs_of(parts: list[StepBatch]) -> Texts:
    """Each pair of a batch, in the batch's order: what its query and all keywords it is compared with say."""
    keywords = [text for part in parts for text in spelled(part.keyword)]
    found: dict[int, tuple[Any, ...]] = {}
    for part in parts:
        known: dict[int, list[Any]] = {}
        for row, column in zip(part.known_rows.tolist(), part.known_columns.tolist(), strict=True):
            known.setdefault(row, []).append(keywords[column])
        rows = part.query_rows.tolist() or list(range(len(part.target)))
        for i, (row, query) in enumerate(zip(rows, spelled(part.query), strict=True)):
            drawn = [keywords[column] for column in part.negatives[i].tolist()]
            found[row] = (
                query,
                keywords[int(part.target[i])],
                sorted(known.get(i, [])),
                drawn,
                float(part.weight[i]),
            )
    assert sorted(found) == list(range(parts[0].pairs))
    return [found[row] for row in sorted(found)]


def keywords_of(parts: list[StepBatch]) -> list[Any]:
    """The distinct keywords of a batch in the order of first occurrence."""
    found: dict[int, Any] = {}
    for part in parts:
        texts = spelled(part.keyword)
        found |= dict(zip(part.keyword_rows.tolist() or range(len(texts)), texts, strict=True))
    assert sorted(found) == list(range(sum(parts[0].owned)))
    return [found[row] for row in sorted(found)]


def epochs(data: TrainingData, *, negatives: int = 2) -> list[StepBatch]:
    plan = TrainConfig(batch_size=40, seed=3, word_dropout=0.3, gram_dropout=0.2, negatives=negatives)
    return [
        batch.to(CPU) for epoch in range(2) for batch in epoch_batches(data.chunks(), plan, epoch, threads=2)
    ]


def check_equal(open_data: Callable[[Exchange | None], TrainingData], world: int) -> list[list[StepBatch]]:
    """Everything that one process and several ones say about a file; the batches of the several."""
    alone = open_data(None)
    shared = together(world, lambda exchange: (found := open_data(exchange), epochs(found)))
    for data, _ in shared:
        assert data.sizes == alone.sizes
        assert (data.varied, data.held_pairs) == (alone.varied, alone.held_pairs)
        assert (data._only is None) == (alone._only is None)
        assert data.skipped.read == alone.skipped.read
        assert data.skipped.to_dict() == alone.skipped.to_dict()
        assert (data.held_out is None) == (alone.held_out is None)
        if alone.held_out is not None:
            assert data.held_out is not None
            assert data.held_out.to_pylist() == alone.held_out.to_pylist()
    batches = [batches for _, batches in shared]
    for whole, *parts in zip(epochs(alone), *batches, strict=True):
        assert pairs_of(parts) == pairs_of([whole])
        assert keywords_of(parts) == keywords_of([whole])
        assert all(part.owned == parts[0].owned for part in parts)
    return batches


WORDS = ["red", "car", "blue", "house", "tree", "old", "town", "rome", "milan", "new"]
ROWS = st.lists(
    st.one_of(
        st.tuples(
            st.lists(st.sampled_from(WORDS), min_size=1, max_size=3).map(" ".join),
            st.lists(st.sampled_from(WORDS), min_size=1, max_size=2).map(" ".join),
        ),
        st.sampled_from([("...", "red"), ("lone", None)]),
    ),
    min_size=60,
    max_size=200,
)


def opened(
    path: Path,
    exchange: Exchange | None,
    buffer_pairs: int,
    *,
    hold_out: bool = False,
    strict: bool = False,
) -> TrainingData:
    return TrainingData(
        read_pairs(path, strict=strict),
        hash_buckets=64,
        buffer_pairs=buffer_pairs,
        hold_out=hold_out,
        exchange=exchange,
    )


def write(path: Path, rows: list[tuple[str, str | None]], group: int) -> Path:
    if path.suffix == ".tsv":
        lines = ["query\tkeyword", *("\t".join(part for part in row if part is not None) for row in rows)]
        path.write_text("\n".join(lines))
    elif path.suffix == ".jsonl":
        lines = [
            json.dumps({"query": q, "keyword": k}) if k is not None else "no object"
            for q, k in [("red", "car"), *rows]
        ]
        path.write_text("\n".join(lines))
    else:
        table = pa.table({"query": [q for q, _ in rows], "keyword": [k for _, k in rows]})
        pq.write_table(table, path, row_group_size=group)
    return path


@settings(max_examples=30, deadline=None)
@given(
    ROWS,
    st.sampled_from(["p.tsv", "p.jsonl", "p.parquet"]),
    st.sampled_from([2, 3]),
    st.sampled_from([30, 77, 10_000]),
    st.sampled_from([7, 50, 1000]),
    st.booleans(),
)
def test_several_have_what_one_has(
    tmp_path_factory: pytest.TempPathFactory,
    rows: list[tuple[str, str | None]],
    name: str,
    world: int,
    buffer_pairs: int,
    group: int,
    hold_out: bool,
) -> None:
    """Bad and malformed rows, repeated texts, chunks and row groups of any size, owned in runs of 5 rows."""
    rows = [("red", "car"), ("blue", "house"), *rows]
    path = write(tmp_path_factory.mktemp("shared") / name, rows, group)

    def part(exchange: Exchange | None) -> TrainingData:
        return opened(path, exchange, buffer_pairs, hold_out=hold_out)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rbegir.training.distributed.RUN", 5)
        check_equal(part, world)


def test_shares_are_about_equal(pairs_file: Path, tmp_path: Path) -> None:
    table = read_pairs(pairs_file).read_all()
    pq.write_table(table, tmp_path / "one.parquet", row_group_size=1 << 20)  # a single row group
    for path in (pairs_file, tmp_path / "one.parquet"):
        batches = check_equal(
            lambda exchange, path=path: opened(path, exchange, 2000, hold_out=True),
            2,
        )
        counts = [sum(len(batch.target) for batch in some) for some in batches]
        assert min(counts) > 0.45 * sum(counts)


@pytest.mark.parametrize(("total", "chunk", "world"), [(1000, 300, 4), (7, 100, 3), (1, 5, 2), (600, 600, 5)])
def test_every_row_has_one_owner(total: int, chunk: int, world: int) -> None:
    known = np.stack([RowPlan(Rank(r, world), chunk, total).wanted(0, total) for r in range(world)])
    unknown = np.stack([RowPlan(Rank(r, world), chunk, None).wanted(0, total) for r in range(world)])
    assert (known.sum(axis=0) == 1).all()
    assert (unknown.sum(axis=0) == 1).all()
    for start in range(0, total, chunk):
        sizes = known[:, start : start + chunk].sum(axis=1)
        assert sizes.max() - sizes.min() <= 1
        owners = known[:, start : start + chunk].argmax(axis=0)
        assert (np.diff(owners) >= 0).all(), "one run of rows each"
    middle = RowPlan(Rank(0, world), chunk, total).owners(total // 3, total)
    assert np.array_equal(middle, known.argmax(axis=0)[total // 3 :])


def test_row_groups_of_others_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [(f"query {i}", f"keyword {i % 50}") for i in range(4000)]
    path = write(tmp_path / "p.parquet", rows, 100)
    read: dict[int, list[int]] = {}  # thread → row groups
    whole = pq.ParquetFile.iter_batches

    def recorded(self: pq.ParquetFile, *args: Any, row_groups: list[int], **kwargs: Any) -> Any:
        read.setdefault(threading.get_ident(), []).extend(row_groups)
        return whole(self, *args, row_groups=row_groups, **kwargs)

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", recorded)
    together(
        4,
        lambda exchange: opened(path, exchange, 2000),
    )
    assert sorted(group for groups in read.values() for group in groups[1:]) == list(range(40))
    assert all(groups[0] == 0 for groups in read.values())  # the first one says how long a row is
    assert sorted(map(len, read.values())) == [11] * 4  # a quarter each


def test_only_own_texts_are_checked_and_tokenised(pairs_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[int, int] = {}
    tokenized = data_module.tokenize_pairs

    def recorded(table: pa.Table, *args: Any) -> Any:
        seen[threading.get_ident()] = table.num_rows
        return tokenized(table, *args)

    monkeypatch.setattr(data_module, "tokenize_pairs", recorded)
    together(
        3,
        lambda exchange: opened(pairs_file, exchange, 1 << 20),
    )
    assert sum(seen.values()) == 3000
    assert max(seen.values()) <= 1024  # four runs of 256


def test_an_error_of_one_is_the_error_of_all(tmp_path: Path) -> None:
    rows = [(f"query {i}", f"keyword {i % 50}") for i in range(600)]
    bad = [*rows[:300], ("...", "red"), *rows[300:]]  # row 300 is in the second run, of the second process
    path = write(tmp_path / "p.tsv", bad, 0)
    found: list[InputError] = []

    def work(exchange: Exchange) -> None:
        with pytest.raises(InputError, match="line 302: no letter or digit") as caught:
            opened(path, exchange, 200, hold_out=True, strict=True)
        found.append(caught.value)

    together(2, work)
    assert len({error.hint for error in found}) == 1


def test_processes_that_see_different_files(tmp_path: Path) -> None:
    rows = [(f"query {i}", f"keyword {i % 50}") for i in range(600)]
    for rank in range(2):
        (tmp_path / str(rank)).mkdir()
        write(tmp_path / str(rank) / "p.tsv", rows[: 600 - rank], 0)

    def work(exchange: Exchange) -> str:
        path = tmp_path / str(exchange.rank.number) / "p.tsv"
        with pytest.raises(MismatchError, match="is not the same file for all processes: it has") as caught:
            opened(path, exchange, 200, hold_out=True)
        return caught.value.hint

    assert together(2, work) == ["put it where every machine sees it"] * 2


def test_a_file_that_is_damaged_later(tmp_path: Path) -> None:
    """In an epoch, when only one process reads the damaged row group."""
    rows = [(f"query {i}", f"keyword {i % 50}") for i in range(4000)]
    path = write(tmp_path / "p.parquet", rows, 100)
    met = threading.Barrier(2, timeout=600)

    def work(exchange: Exchange) -> None:
        data = opened(path, exchange, 4000)
        assert data._only is not None
        data._only = None  # as if it had not fitted
        met.wait()
        if exchange.rank.number == 0:
            raw = bytearray(path.read_bytes())
            group = pq.ParquetFile(path).metadata.row_group(30).column(0)
            raw[group.data_page_offset : group.data_page_offset + 40] = b"\xff" * 40
            path.write_bytes(raw)
        met.wait()
        with pytest.raises(CorruptError, match="is damaged or cut short"):
            list(data.chunks())

    together(2, work)
