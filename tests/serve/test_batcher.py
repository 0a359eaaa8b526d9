"""Micro-batching: what shares a scan, equality with single searches, fairness, bounds, cancellation."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rbegir
from rbegir.errors import FilterError, TextError
from rbegir.index import filter as filters
from rbegir.search.hits import Hits
from rbegir.search.request import SearchRequest
from rbegir.serve.batcher import Batcher, LateError, Search, deal
from rbegir.serve.monitor import Metrics
from rbegir.serve.settings import Settings
from rbegir.wire.problems import Problem
from rbegir.wire.search import json_results
from tests.serve.conftest import PATIENT, TEXTS


class Gated:
    """An index whose scans wait for `gate`, and which notes what each of them was asked."""

    def __init__(self, index: rbegir.Index) -> None:
        self._index = index
        self.gate = threading.Event()
        self.started = threading.Semaphore(0)
        self.scans: list[tuple[int, int]] = []  # queries, k
        self.modest: list[int] = []  # queries whose values are all negative, per scan

    def __getattr__(self, name: str) -> Any:
        return getattr(self._index, name)

    def __len__(self) -> int:
        return len(self._index)

    def search_codes(self, codes: Any, k: int, **options: Any) -> Any:
        self.scans.append((len(codes), k))
        self.modest.append(sum(bool((values < 0).all()) for values in codes))
        self.started.release()
        assert self.gate.wait(PATIENT)
        return self._index.search_codes(codes, k, **options)


@pytest.fixture(scope="module")
def index(stored: Path) -> rbegir.Index:
    return rbegir.Index.open(stored, read_only=True)


def run(
    index: rbegir.Index, work: Callable[[Gated, Batcher], Awaitable[None]], *, max_batch: int = 8, **more: int
) -> Gated:
    """Run `work` with a batcher over a gated index, the gate closed."""
    gated = Gated(index)

    async def main() -> None:
        settings = Settings(max_batch=max_batch, max_waiting=more.get("max_waiting", 1000))
        batcher = Batcher(gated, Metrics().of(), settings)
        batcher.start()
        try:
            await asyncio.wait_for(work(gated, batcher), PATIENT)
        finally:
            gated.gate.set()
            await batcher.stop()

    asyncio.run(main())
    return gated


async def busy(gated: Gated, batcher: Batcher) -> asyncio.Future[list[Hits]]:
    """Start a scan that waits for the gate, so that what comes next has to gather."""
    job = batcher.submit(texts_of(["first"], 1))
    assert await asyncio.to_thread(gated.started.acquire, timeout=PATIENT)
    return job.future


def texts_of(texts: list[str], k: int, **options: Any) -> Search:
    return Search(SearchRequest(k, **options), texts=texts)


def body(search: Search, parts: list[Hits]) -> bytes:
    """The response without its time."""
    return json.dumps(json_results(parts, search.texts)).encode()


def test_an_idle_batcher_does_not_wait_and_a_busy_one_gathers(index: rbegir.Index) -> None:
    async def work(gated: Gated, batcher: Batcher) -> None:
        first = await busy(gated, batcher)
        jobs = [batcher.submit(texts_of([text], 3)) for text in TEXTS[:6]]
        assert batcher.waiting == 6
        gated.gate.set()
        await asyncio.gather(first, *(job.future for job in jobs))
        assert batcher.waiting == 0

    assert run(index, work).scans == [(1, 1), (6, 3)]


@settings(max_examples=15)
@given(
    seed=st.integers(0, 2**31),
    sizes=st.lists(st.tuples(st.integers(1, 9), st.integers(1, 40)), min_size=1, max_size=12),
)
def test_a_batch_equals_singles_bit_for_bit(
    index: rbegir.Index, seed: int, sizes: list[tuple[int, int]]
) -> None:
    rng = np.random.default_rng(seed)
    filters = [None, "price < 20", "lang = 'en'"]
    denied = [None, (), (3, 4, 5)]
    searches = [
        texts_of(
            [TEXTS[i] for i in rng.integers(0, len(TEXTS), count)],
            k,
            where=filters[rng.integers(3)],
            deny=denied[rng.integers(3)],
            mode=["exact", "paper"][rng.integers(2)],
        )
        for count, k in sizes
    ]
    answers: dict[int, list[bytes]] = {}
    for max_batch in (1, 8):

        async def work(gated: Gated, batcher: Batcher, max_batch: int = max_batch) -> None:
            await busy(gated, batcher)
            jobs = [batcher.submit(search) for search in searches]
            gated.gate.set()
            found = await asyncio.gather(*(job.future for job in jobs))
            answers[max_batch] = [body(search, parts) for search, parts in zip(searches, found, strict=True)]

        gated = run(index, work, max_batch=max_batch)
        assert max(count for count, _ in gated.scans) <= max_batch
    assert answers[1] == answers[8]
    for search, answer in zip(searches, answers[8], strict=True):
        assert search.texts is not None
        hits = index.search(search.texts, search.request.k, **search.request.options())
        assert answer == body(search, [hits])


def test_texts_and_codes_share_a_scan(index: rbegir.Index) -> None:
    codes = index.model.encode_queries(["red hat"]).values()

    async def work(gated: Gated, batcher: Batcher) -> None:
        await busy(gated, batcher)
        text, code = (
            batcher.submit(texts_of(["red hat"], 5)),
            batcher.submit(Search(SearchRequest(5), values=codes)),
        )
        gated.gate.set()
        (a,), (b,) = await asyncio.gather(text.future, code.future)
        assert a.ids.tolist() == b.ids.tolist()

    assert run(index, work).scans[1:] == [(2, 5)]


def test_different_filters_share_a_scan(index: rbegir.Index) -> None:
    """One filter for a request, one per query, none; a large request is spread over two scans."""
    searches = [
        texts_of(["red hat"], 5, where="price < 20"),
        texts_of(["red hat", "hat", "blue"], 7, where=[None, "price > 40", "lang is null"]),
        texts_of(["green"], 5),
        texts_of(["shoes"] * 9, 5, allow=[[number, number + 1] for number in range(9)]),
    ]

    async def work(gated: Gated, batcher: Batcher) -> None:
        await busy(gated, batcher)
        jobs = [batcher.submit(search) for search in searches]
        gated.gate.set()
        for search, found in zip(searches, await asyncio.gather(*(job.future for job in jobs)), strict=True):
            assert search.texts is not None
            alone = index.search(search.texts, search.request.k, **search.request.options())
            assert body(search, found) == body(search, [alone])

    assert [count for count, _ in run(index, work).scans] == [1, 8, 6]


def test_further_pages_share_a_scan(index: rbegir.Index) -> None:
    def page(texts: list[str], k: int, **options: Any) -> tuple[Search, Hits]:
        """The search for the second page, and its hits: a part of a longer first page."""
        first = index.search(texts, 7, rerank=False, **options)
        whole = index.search(texts, 7 + k, rerank=False, **options)
        return texts_of(texts, k, after=first.cursor, **options), whole

    pages = [
        page(["red hat"], 5),
        page(["shoes", "green hotel"], 6, where="price < 20"),
        page(["blue"] * 6, 16),
    ]

    async def work(gated: Gated, batcher: Batcher) -> None:
        await busy(gated, batcher)
        first = batcher.submit(texts_of(["hat"], 5, rerank=False))
        jobs = [batcher.submit(search) for search, _ in pages]
        gated.gate.set()
        await first.future
        for (search, whole), job in zip(pages, jobs, strict=True):
            found = await job.future
            rows = np.concatenate([hits.rows for hits in found])
            assert rows.tolist() == whole.rows[:, 7:].tolist()
            assert [hits.after for hits in found] == [
                search.request.part(start, count).after for start, count in parts_of(found)
            ]

    assert [count for count, _ in run(index, work).scans] == [1, 1, 8, 1]


def parts_of(found: list[Hits]) -> list[tuple[int, int]]:
    """Where each part starts, and its queries."""
    starts = np.cumsum([0, *map(len, found)]).tolist()
    return list(zip(starts, map(len, found), strict=False))


def test_a_filter_that_is_refused_fails_alone(index: rbegir.Index) -> None:
    wheres = ["price < 20", "nonsense <", None, "prize < 3", "price < 9", "lang = 'en'"]

    async def work(gated: Gated, batcher: Batcher) -> None:
        await busy(gated, batcher)
        jobs = [batcher.submit(texts_of(["hat"], 2, where=where)) for where in wheres]
        gated.gate.set()
        found = await asyncio.gather(*(job.future for job in jobs), return_exceptions=True)
        assert [isinstance(one, FilterError) for one in found] == [where in wheres[1:4:2] for where in wheres]
        for where, one in zip(wheres, found, strict=True):
            if not isinstance(one, BaseException):
                assert one[0].rows.tolist() == index.search(["hat"], 2, where=where).rows.tolist()

    run(index, work)


def test_a_scan_has_no_more_slow_tests_than_a_request_may_have(index: rbegir.Index) -> None:
    most = Settings().max_slow_tests

    def slow(number: int, tests: int = most // 2) -> Search:
        where = f"contains(text, 'w{number}') or price < 20"
        return replace(texts_of(["hat"], 2, where=where), slow_tests=tests)

    async def work(gated: Gated, batcher: Batcher) -> None:
        await busy(gated, batcher)
        jobs = [batcher.submit(slow(number), "greedy") for number in range(4)]
        jobs += [batcher.submit(slow(9, 1), "modest"), batcher.submit(values_of(MODEST, 1), "modest")]
        gated.gate.set()
        found = await asyncio.gather(*(job.future for job in jobs), return_exceptions=True)
        # their filters are not known, and a scan does not wait for them
        assert [isinstance(one, LateError) for one in found] == [True] * 5 + [False]
        assert batcher.waiting == 0

    gated = run(index, work)
    # two slow ones and what has no filter; then the client that had to wait comes first
    assert [count for count, _ in gated.scans[1:]] == [3, 2, 1]
    assert gated.modest[1:] == [1, 0, 0]


def test_small_and_large_k_are_not_put_together(index: rbegir.Index) -> None:
    async def work(gated: Gated, batcher: Batcher) -> None:
        await busy(gated, batcher)
        jobs = [batcher.submit(texts_of([TEXTS[k]], k)) for k in (10, 100, 12, 16, 120)]
        gated.gate.set()
        await asyncio.gather(*(job.future for job in jobs))

    assert run(index, work).scans[1:] == [(3, 16), (2, 120)]


def test_searches_by_planes_have_a_recall_of_their_own(index: rbegir.Index) -> None:
    async def work(gated: Gated, batcher: Batcher) -> None:
        await busy(gated, batcher)
        jobs = [batcher.submit(texts_of([text], 5, planes=1)) for text in TEXTS[:3]]
        gated.gate.set()
        await asyncio.gather(*(job.future for job in jobs))

    assert run(index, work).scans[1:] == [(1, 5)] * 3


def test_a_large_request_does_not_hold_up_small_ones(index: rbegir.Index) -> None:
    async def work(gated: Gated, batcher: Batcher) -> None:
        await busy(gated, batcher)
        order: list[str] = []
        large = batcher.submit(texts_of(TEXTS[:50], 5))
        other = batcher.submit(texts_of([TEXTS[0]], 5, min_score=0.0))
        small = [batcher.submit(texts_of([text], 5)) for text in TEXTS[:3]]
        named = [("large", large), ("other", other), *(("small", job) for job in small)]
        for name, job in named:
            job.future.add_done_callback(lambda _, name=name: order.append(name))
        gated.gate.set()
        await asyncio.gather(*(job.future for _, job in named))
        await asyncio.sleep(0)
        # the next scan of the group holds all small ones, then the other group has its turn
        assert order == ["small", "small", "small", "other", "large"]

    gated = run(index, work)
    assert gated.scans[1:3] == [(8, 5), (1, 5)]
    assert sum(count for count, _ in gated.scans) == 1 + 50 + 1 + 3


@given(wanted=st.lists(st.integers(1, 50), max_size=40), places=st.integers(0, 200))
def test_places_are_dealt_out_fairly(wanted: list[int], places: int) -> None:
    given_ = deal(wanted, places)
    assert sum(given_) == min(places, sum(wanted))
    for got, want in zip(given_, wanted, strict=True):
        assert 0 <= got <= want
    short = [
        (number, got) for number, (got, want) in enumerate(zip(given_, wanted, strict=True)) if got < want
    ]
    for number, got in short:  # nobody got over one more than someone who wanted more, the oldest first
        assert all(other <= got + 1 for other in given_)
        assert all(other <= got for later, other in enumerate(given_) if later > number)


GREEDY, MODEST = np.ones((1, 64), np.int16), -np.ones((1, 64), np.int16)


def values_of(values: Any, count: int, k: int = 2) -> Search:
    return Search(SearchRequest(k), values=np.repeat(values, count, axis=0))


def test_a_greedy_client_gets_no_more_places_than_a_modest_one(index: rbegir.Index) -> None:
    async def work(gated: Gated, batcher: Batcher) -> None:
        await busy(gated, batcher)
        jobs = [batcher.submit(values_of(GREEDY, 8), "greedy") for _ in range(10)]
        jobs += [batcher.submit(values_of(MODEST, 1), "modest") for _ in range(10)]
        gated.gate.set()
        await asyncio.gather(*(job.future for job in jobs))

    gated = run(index, work)
    assert gated.modest[1:] == [4, 4, 2] + [0] * 9  # of 8 places, half while it wants them
    assert [count for count, _ in gated.scans[1:]] == [8] * 11 + [2]


def test_a_client_that_queues_many_kinds_of_searches_gets_no_more_turns(index: rbegir.Index) -> None:
    async def work(gated: Gated, batcher: Batcher) -> None:
        await busy(gated, batcher)
        jobs = [batcher.submit(values_of(GREEDY, 1, k), "greedy") for k in (1, 5, 17, 70, 260, 1030)]
        jobs += [batcher.submit(values_of(MODEST, 1, k), "modest") for k in (5000, 20000)]
        gated.gate.set()
        await asyncio.gather(*(job.future for job in jobs))

    gated = run(index, work)
    assert gated.modest[1:] == [0, 1, 0, 1, 0, 0, 0, 0]


def test_more_clients_than_places_take_turns(index: rbegir.Index) -> None:
    async def work(gated: Gated, batcher: Batcher) -> None:
        await busy(gated, batcher)
        jobs = [batcher.submit(values_of(GREEDY, 3), f"client {i}") for i in range(11)]
        jobs.append(batcher.submit(values_of(MODEST, 3), "modest"))
        gated.gate.set()
        await asyncio.gather(*(job.future for job in jobs))

    gated = run(index, work)
    assert gated.modest[1:] == [0, 1, 1, 0, 1]  # eight of twelve clients, then the other four first


def test_a_bad_text_fails_alone(index: rbegir.Index) -> None:
    async def work(gated: Gated, batcher: Batcher) -> None:
        await busy(gated, batcher)
        texts = [["red"], ["!!"], ["hat", "??"], ["shoes"]]
        jobs = [batcher.submit(texts_of(text, 2)) for text in texts]
        gated.gate.set()
        found = await asyncio.gather(*(job.future for job in jobs), return_exceptions=True)
        assert [type(answer) for answer in found] == [list, TextError, TextError, list]
        assert "position 0" in str(found[1])
        assert "position 1" in str(found[2])

    assert run(index, work).scans[1:] == [(2, 2)]


def test_the_position_of_a_bad_text_counts_from_the_start_of_its_request(index: rbegir.Index) -> None:
    async def work(gated: Gated, batcher: Batcher) -> None:
        gated.gate.set()
        with pytest.raises(TextError, match="position 13 "):
            await batcher.submit(texts_of([*TEXTS[:13], "?"], 2)).future

    run(index, work)


def test_the_queue_is_bounded(index: rbegir.Index) -> None:
    async def work(gated: Gated, batcher: Batcher) -> None:
        await busy(gated, batcher)
        jobs = [batcher.submit(texts_of(TEXTS[:4], 2)) for _ in range(2)]
        with pytest.raises(Problem) as refused:
            batcher.submit(texts_of(TEXTS[:3], 2))
        assert (refused.value.status, refused.value.kind) == (503, "overloaded")
        assert int(refused.value.headers["Retry-After"]) >= 1
        assert refused.value.detail == "8 queries are waiting; nothing was done"
        jobs.append(batcher.submit(texts_of(TEXTS[:2], 2)))
        gated.gate.set()
        await asyncio.gather(*(job.future for job in jobs))

    run(index, work, max_waiting=10)


def test_a_client_that_fills_the_queue_does_not_keep_others_out(index: rbegir.Index) -> None:
    async def work(gated: Gated, batcher: Batcher) -> None:
        await busy(gated, batcher)
        jobs = [batcher.submit(values_of(GREEDY, 4), "greedy") for _ in range(3)]
        refused = [("greedy", 1), ("modest", 7)]  # more than its share, which is half of the queue
        for client, count in refused:
            with pytest.raises(Problem, match="12 queries are waiting; nothing was done"):
                batcher.submit(values_of(MODEST, count), client)
        jobs += [batcher.submit(values_of(MODEST, 3), "modest") for _ in range(2)]
        jobs += [batcher.submit(values_of(MODEST, 4), "third")]  # a third of it
        for client in ("greedy", "modest", "third"):
            with pytest.raises(Problem, match="22 queries are waiting; nothing was done"):
                batcher.submit(values_of(MODEST, 1), client)
        gated.gate.set()
        await asyncio.gather(*(job.future for job in jobs))
        assert batcher.waiting == 0

    run(index, work, max_waiting=12)


def test_what_is_cancelled_leaves_the_queue(index: rbegir.Index) -> None:
    async def work(gated: Gated, batcher: Batcher) -> None:
        first = await busy(gated, batcher)
        gone, stays = batcher.submit(texts_of(TEXTS[:5], 2)), batcher.submit(texts_of(["hat"], 2))
        gone.future.cancel()
        batcher.forget(gone)
        assert batcher.waiting == 1
        gated.gate.set()
        await asyncio.gather(first, stays.future)
        batcher.forget(stays)
        assert batcher.waiting == 0

    assert run(index, work).scans[1:] == [(1, 2)]


@pytest.mark.parametrize("shared", [False, True])
def test_the_filter_of_a_request_that_has_left_is_not_evaluated_further(
    index: rbegir.Index, monkeypatch: pytest.MonkeyPatch, shared: bool
) -> None:
    monkeypatch.setattr(filters, "BLOCK_ROWS", 64)
    monkeypatch.setattr(filters, "LEAST_ROWS", 64)
    begun, go = threading.Event(), threading.Event()
    blocks: list[int] = []
    evaluate = filters.Filter._evaluate

    def noted(self: filters.Filter, table: Any) -> Any:
        if table.num_rows:
            blocks.append(table.num_rows)
            begun.set()
            assert go.wait(PATIENT)
        return evaluate(self, table)

    async def work(gated: Gated, batcher: Batcher) -> None:
        await busy(gated, batcher)
        where = f"price < 20 and id != {1000 + shared}"
        gone = batcher.submit(texts_of(["hat"], 3, where=where))
        stays = batcher.submit(texts_of(["red hat"], 3, where=where if shared else None))
        monkeypatch.setattr(filters.Filter, "_evaluate", noted)
        gated.gate.set()
        assert await asyncio.to_thread(begun.wait, PATIENT)
        gone.future.cancel()
        go.set()
        (found,) = await stays.future
        assert sum(blocks) == (len(TEXTS) if shared else 64)
        alone = index.search(["red hat"], 3, where=where if shared else None)
        assert found.ids.tolist() == alone.ids.tolist()

    run(index, work)


def test_stopping_cancels_what_waits(index: rbegir.Index) -> None:
    waiting: list[asyncio.Future[Any]] = []

    async def work(gated: Gated, batcher: Batcher) -> None:
        await busy(gated, batcher)
        waiting.append(batcher.submit(texts_of(["hat"], 2)).future)

    run(index, work)
    assert waiting[0].cancelled()
