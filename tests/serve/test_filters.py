"""Slow filters: they hold up neither the scans, changes and short requests of others, nor the service."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

import rbegir
from rbegir.index import filter as filters
from rbegir.search.request import SearchRequest
from rbegir.serve import batcher
from rbegir.serve.batcher import FilterQueue
from rbegir.serve.settings import Settings
from tests.serve.conftest import PATIENT, TEXTS, Local, get, listening, post

SLOW = "contains(text, 'hotel') and contains(text, 'red')"
SLOW_IDS = [i for i, text in enumerate(TEXTS) if "hotel" in text and "red" in text]
Start = Callable[..., Local]


class Evaluations:
    """The evaluated blocks: by which thread, for which filter. Those of slow filters wait for `go`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.blocks: list[tuple[str, str | None]] = []
        self.begun, self.go = threading.Event(), threading.Event()
        evaluate = filters.Filter._evaluate

        def noted(own: filters.Filter, table: Any) -> Any:
            if table.num_rows:
                self.blocks.append((threading.current_thread().name.rpartition("_")[0], own._key))
                if own._key is not None and "contains" in own._key:
                    self.begun.set()
                    assert self.go.wait(PATIENT)
            return evaluate(own, table)

        monkeypatch.setattr(filters.Filter, "_evaluate", noted)


@pytest.fixture
def evaluations(monkeypatch: pytest.MonkeyPatch) -> Evaluations:
    return Evaluations(monkeypatch)


@pytest.fixture
def url(index_path: Path) -> Iterator[str]:
    with rbegir.Index.open(index_path) as index, listening(index) as url:
        yield url


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(16) as threads:
        yield threads


def test_a_search_is_scanned_before_the_slow_filter_of_another_ends(
    url: str, evaluations: Evaluations, threads: ThreadPoolExecutor
) -> None:
    slow = threads.submit(post, f"{url}/v1/search", json={"queries": ["hat"], "k": 100, "where": SLOW})
    try:
        assert evaluations.begun.wait(PATIENT)
        for more, count in (({}, 10), ({"where": "id in (3, 5)"}, 2)):
            (found,) = post(f"{url}/v1/search", json={"queries": ["hat"], **more}).json()["results"]
            assert len(found["hits"]) == count
        assert not slow.done()
    finally:
        evaluations.go.set()
    hits = slow.result().json()["results"][0]["hits"]
    assert sorted(hit["id"] for hit in hits) == SLOW_IDS


def test_short_requests_do_not_wait_for_slow_filters(
    url: str, evaluations: Evaluations, threads: ThreadPoolExecutor
) -> None:
    counts = [
        threads.submit(get, f"{url}/v1/keywords:count", params={"where": f"{SLOW} and id < {100 + number}"})
        for number in range(8)
    ]
    exports = [
        threads.submit(get, f"{url}/v1/keywords", params={"where": f"{SLOW} and id >= {100 + number}"})
        for number in range(8)
    ]
    try:
        assert evaluations.begun.wait(PATIENT)
        assert get(f"{url}/v1/keywords/7").json()["text"] == TEXTS[7]
        large = post(f"{url}/v1/search", json={"queries": ["hat"] * 30, "k": 100}).json()["results"]
        assert [len(one["hits"]) for one in large] == [100] * 30
        assert not any(one.done() for one in (*counts, *exports))
    finally:
        evaluations.go.set()
    for number, (counted, exported) in enumerate(zip(counts, exports, strict=True)):
        first = [i for i in SLOW_IDS if i < 100 + number]
        assert counted.result().json() == {"keywords": len(first)}
        ids = [int(line.partition(",")[0].removeprefix('{"id":')) for line in exported.result().text.split()
               if line.startswith('{"id"')]  # fmt: skip
        assert ids == [i for i in SLOW_IDS if i >= 100 + number]


def test_changes_do_not_wait_for_a_slow_filter_that_selects_what_is_deleted(
    url: str, evaluations: Evaluations, threads: ThreadPoolExecutor
) -> None:
    request = threads.submit(
        httpx.request, "DELETE", f"{url}/v1/keywords", json={"where": SLOW}, timeout=PATIENT
    )
    try:
        assert evaluations.begun.wait(PATIENT)
        rows = [{"id": 1000, "text": "a red hotel"}, {"id": 1001, "text": "a green one"}]
        assert post(f"{url}/v1/keywords", json={"keywords": rows}).json() == {"upserted": 2}
        assert not request.done()
    finally:
        evaluations.go.set()
    assert request.result().json() == {"deleted": len(SLOW_IDS) + 1}
    assert get(f"{url}/v1/keywords:count").json() == {"keywords": len(TEXTS) + 1 - len(SLOW_IDS)}


@pytest.mark.parametrize("path", ["/v1/keywords:count", "/v1/keywords", "DELETE"])
def test_more_slow_tests_than_allowed_are_refused(local: Start, path: str) -> None:
    service = local(max_slow_tests=3)

    def status(tests: int) -> int:
        where = " and ".join(["contains(text, 'nothing')"] * tests)
        if path == "DELETE":
            return service.client.request("DELETE", "/v1/keywords", json={"where": where}).status_code
        return service.client.get(path, params={"where": where}).status_code

    assert [status(3), status(4)] == [200, 422]


def test_filters_that_are_not_ready_for_a_scan_are_evaluated_beside_it(
    local: Start, evaluations: Evaluations, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also more filters than the index keeps."""
    evaluations.go.set()
    monkeypatch.setattr(batcher, "FILTER_S", -1)
    monkeypatch.setattr(filters, "KEPT", 1)
    monkeypatch.setattr(filters, "KEPT_BYTES", 0)
    service = local()
    for where in ("price = {}", SLOW + " and price != {}"):
        evaluations.blocks.clear()
        wheres: list[str | None] = [None, *(where.format(number) for number in range(9))]
        found = service.search(queries=["hat"] * 10, k=50, where=wheres)
        assert Counter(evaluations.blocks) == {("rbegir-filter", where): 1 for where in wheres if where}
        for one, own in zip(found, wheres, strict=True):
            alone = service.index.search("hat", 50, where=own, rerank=False)
            assert [hit["id"] for hit in one["hits"]] == alone.ids[0, : alone.counts[0]].tolist()


def test_a_slow_filter_that_is_known_needs_no_turn(
    local: Start, evaluations: Evaluations, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluations.go.set()
    service = local()
    first = service.search(queries=["hat"], k=50, where=SLOW)
    monkeypatch.setattr(FilterQueue, "submit", lambda *_: pytest.fail("it was queued"))
    assert service.search(queries=["hat"], k=50, where=SLOW) == first
    assert sorted(hit["id"] for hit in first[0]["hits"]) == SLOW_IDS
    assert evaluations.blocks == [("rbegir-filter", SLOW)]


def test_a_filter_that_is_never_ready_is_refused(local: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batcher, "FILTER_S", -1)
    monkeypatch.setattr(FilterQueue, "_steps", lambda self, request, queries: iter(()))
    service = local()
    answer = service.post("/v1/search", {"queries": ["hat"], "where": "price < 3"})
    assert answer.status_code == 503
    assert "the index changed faster than the filter could be evaluated" in answer.text
    assert service.search(queries=["hat"], k=1)


def blocks_of(index_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> str:
    """Whose the blocks are, one after the other, if `a` has queued two filters, and `b` and `c` one each."""
    assert len(TEXTS) in range(3 * 64 + 1, 4 * 64)  # four blocks
    jobs = [(client, f"{name} != {number}") for number, client in enumerate("aabc")]
    monkeypatch.setattr(filters, "BLOCK_ROWS", 64)
    monkeypatch.setattr(filters, "LEAST_ROWS", 64)
    order: list[str] = []
    client_of = {where: client for client, where in jobs}
    evaluate = filters.Filter._evaluate

    def noted(own: filters.Filter, table: Any) -> Any:
        if table.num_rows:
            order.append(client_of[own._key or ""])
        return evaluate(own, table)

    monkeypatch.setattr(filters.Filter, "_evaluate", noted)

    async def main() -> None:
        with rbegir.Index.open(index_path, read_only=True) as index:
            queue = FilterQueue(index, Settings())
            submitted = [queue.submit(SearchRequest(where=where), 1, client) for client, where in jobs]
            assert queue.waiting == len(jobs)
            queue.start()
            await asyncio.wait_for(asyncio.gather(*(job.future for job in submitted)), PATIENT)
            assert queue.waiting == 0
            for job in submitted:
                queue.forget(job)
            await queue.stop()

    asyncio.run(main())
    return "".join(order)


def test_clients_take_turns_with_blocks_of_filters(index_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert blocks_of(index_path, monkeypatch, "id") == "abc" * 4 + "aaaa"


def test_few_filters_are_begun_if_masks_take_much_memory(
    index_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batcher, "MASK_BYTES", 0)
    # from the first mask on, the oldest goes first
    assert blocks_of(index_path, monkeypatch, "price") == "abc" * 3 + "a" + "aaaa" + "b" + "c"


def test_the_queue_of_filters_is_bounded(index_path: Path) -> None:
    async def main() -> None:
        with rbegir.Index.open(index_path, read_only=True) as index:
            queue = FilterQueue(index, Settings(max_waiting=4))
            jobs = [queue.submit(SearchRequest(where="price < 1.125"), 3, "a")]
            with pytest.raises(rbegir.wire.problems.Problem, match="filters of 3 queries are waiting"):
                queue.submit(SearchRequest(where="price < 1.125"), 2, "a")
            jobs.append(queue.submit(SearchRequest(where="price < 1.125"), 2, "b"))
            for job in jobs:
                queue.forget(job)
            assert queue.waiting == 0
            jobs.append(queue.submit(SearchRequest(where="price < 1.125"), 4, "a"))
            queue.start()
            await queue.stop()

    asyncio.run(main())
