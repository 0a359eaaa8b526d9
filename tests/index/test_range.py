"""Range search and pages of an index: equal to a full sort, stable while others write."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rbegir
from rbegir.codes import score
from rbegir.errors import FilterError, InputError
from rbegir.index import query as searching
from rbegir.search.cpu import CpuBackend
from rbegir.search.hits import Hits, cut, merge
from rbegir.wire.search import cursor_of, json_results, read_hits, write_hits
from tests.index.fakes import HashEncoder

ENCODER = HashEncoder()
WORDS = [f"w{number % 37}" for number in range(900)]  # 37 different codes, so that ties abound
QUERIES = ["w1", "w2", "nothing like it", "w36"]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three segments with deletes, and ids that are not the rows."""
    path = tmp_path_factory.mktemp("range") / "a.rbe"
    with rbegir.Index.create(path, ENCODER) as index:
        for part in range(3):
            numbers = range(300 * part, 300 * (part + 1))
            index.add(
                WORDS[numbers.start : numbers.stop],
                ids=[5000 - number for number in numbers],
                attributes={"price": [number % 10 for number in numbers]},
            )
        index.delete([5000 - number for number in range(0, 900, 7)])
    return path


@pytest.fixture(scope="module")
def index(path: Path) -> rbegir.Index:
    return rbegir.Index.open(path, model=ENCODER, read_only=True)


def sorted_rows(query: str, live: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """All live rows in the total order of a query, and their scores: straight from the definition."""
    values, codes = ENCODER.encode_queries([query]).values(), ENCODER.encode_keywords(WORDS)
    rows = np.array(live)
    keys = score.keys(values, codes[rows])
    order = np.lexsort((rows, -keys[0]))
    return rows[order], score.cosine(keys, score.norm_squared(values))[0][order]


LIVE = [number for number in range(900) if number % 7]


@pytest.mark.parametrize("k", [1, 10, 24, 25, 26, 5000, None])
def test_a_range_is_a_full_sort_cut_at_a_score(index: rbegir.Index, k: int | None) -> None:
    """The least score is exactly that of hits, the next float above it, and the one below."""
    for place in (0, 20, 400, len(LIVE) - 1):
        exact = float(sorted_rows(QUERIES[0], LIVE)[1][place])
        for least in (exact, np.nextafter(exact, 2), np.nextafter(exact, -2)):
            hits = index.search(QUERIES, k, min_score=least)
            for number, query in enumerate(QUERIES):
                rows, scores = sorted_rows(query, LIVE)
                wanted = rows[scores >= least][:k]
                assert hits.counts[number] == len(wanted)
                assert hits.rows[number, : len(wanted)].tolist() == wanted.tolist()
                assert [hit.id for hit in hits[number]] == [5000 - row for row in wanted]
                assert [hit.text for hit in hits[number]] == [WORDS[row] for row in wanted]


def test_nothing_reaches_the_score(index: rbegir.Index) -> None:
    hits = index.search(QUERIES, None, min_score=1.5)
    assert hits.ids.shape == (4, 0)
    assert hits.counts.tolist() == [0] * 4
    assert list(hits) == [[]] * 4
    assert hits.to_arrow().num_rows == 0
    assert index.search(QUERIES, 3, after=hits.cursor).rows.tolist() == index.search(QUERIES, 3).rows.tolist()


@pytest.mark.parametrize("k", [1, 7, 100, 385, 386, 387])
def test_pages_together_are_the_whole(index: rbegir.Index, k: int) -> None:
    whole, page, seen = index.search(QUERIES, 5000), index.search(QUERIES, k), []
    while page.k:
        seen.append(page.rows)
        page = index.search(QUERIES, k, after=page.cursor)
        if k == 1 and len(seen) == 30:
            break
    np.testing.assert_array_equal(np.concatenate(seen, axis=1), whole.rows[:, : k * len(seen)])
    last = index.search(QUERIES, 5000)
    assert index.search(QUERIES, k, after=last.cursor).counts.tolist() == [0] * 4
    assert index.search(QUERIES, k, after=last.cursor).rows.shape == (4, 0)


def test_pages_of_a_range(index: rbegir.Index) -> None:
    """Queries end on different pages; an empty page keeps the cursor where it was."""
    least = float(index.search(QUERIES, 60).scores[:, -1].mean())
    whole = index.search(QUERIES, None, min_score=least)
    assert len(set(whole.counts.tolist())) > 1
    pages = [index.search(QUERIES, 20, min_score=least)]
    while pages[-1].k:
        pages.append(index.search(QUERIES, 20, min_score=least, after=pages[-1].cursor))
    assert pages[-1].cursor == pages[-2].cursor == whole.cursor
    for number in range(4):
        rows = np.concatenate([page.rows[number, : page.counts[number]] for page in pages])
        assert rows.tolist() == whole.rows[number, : whole.counts[number]].tolist()


def test_pages_while_others_write(tmp_path: Path) -> None:
    """Adding, deleting (the last hit of a page too) and compacting between pages: whatever was there all the
    time is found once, in order, and nothing is found twice."""
    rng = np.random.default_rng(0)
    with rbegir.Index.create(tmp_path / "a.rbe", ENCODER) as index:
        index.add(WORDS)
        deleted: set[int] = set()
        page, seen = index.search("w1", 10), []
        while page.k:
            seen += page.rows[0].tolist()
            doomed = [seen[-1], *rng.integers(0, 900, 5).tolist()]
            index.delete(doomed)
            deleted.update(doomed)
            index.add([WORDS[int(number)] for number in rng.integers(0, 900, 3)])
            if len(seen) % 50 == 0:
                index.compact()
            page = index.search("w1", 10, after=page.cursor)
    assert len(set(seen)) == len(seen)
    stayed, _ = sorted_rows("w1", [row for row in range(900) if row not in deleted])
    assert [row for row in seen if row < 900 and row not in deleted] == stayed.tolist()


def test_a_cursor_belongs_to_its_queries(index: rbegir.Index) -> None:
    cursor = index.search(QUERIES, 3).cursor
    with pytest.raises(InputError, match="after is a cursor of 4 queries, got 1"):
        index.search("w1", 3, after=cursor)


def test_hits_of_another_order_have_no_cursor(index: rbegir.Index) -> None:
    codes = ENCODER.encode_queries(QUERIES)
    for options in ({"mode": "paper"}, {"planes": 1}):
        hits = index.search_codes(codes, 3, **options)
        with pytest.raises(InputError, match="these hits have no cursor"):
            _ = hits.cursor
        assert cursor_of([hits]) is None


@pytest.mark.parametrize("name", ["string", "int64"])
def test_ragged_hits_in_every_form(tmp_path: Path, name: str) -> None:
    with rbegir.Index.create(tmp_path / "a.rbe", ENCODER) as index:
        ids: list[Any] = [f"i{n}" for n in range(100)] if name == "string" else list(range(100, 200))
        index.add(WORDS[:100], ids=ids, attributes={"price": list(range(100))})
        least = float(index.search(["w1"], 9).scores[0, -1])
        hits = index.search(["no", "w1", "w2"], None, min_score=least)
        counts = hits.counts.tolist()
        assert len(set(counts)) > 1
        short = int(np.argmin(counts))
        assert hits.k == max(counts)
        assert hits.rows[short, -1] == -1
        assert np.isnan(hits.scores[short, -1])
        assert hits.texts[short, -1] is None
        assert hits.ids[short, -1] == (None if name == "string" else -1)
        assert [len(found) for found in hits] == counts
        assert np.bincount(hits.to_pandas()["query"], minlength=3).tolist() == counts
        assert hits.to_arrow().num_rows == sum(counts)
        results = json.loads(json.dumps(json_results([hits], None), allow_nan=False))
        assert [len(result["hits"]) for result in results] == counts
        for got in (
            read_hits(write_hits([hits], index.info()), 3),
            read_hits(write_hits([cut(hits, 0, 1, None), cut(hits, 1, 2, None)], index.info()), 3),
            merge([hits, index.search(["no", "w1", "w2"], None, min_score=1.5)], 1000),
        ):
            same_hits(got, hits)
        same_hits(cut(hits, 1, 2, 3), index.search(["w1", "w2"], 3, min_score=least))


def same_hits(ours: Hits, theirs: Hits) -> None:
    for name in ("ids", "keys", "rows", "texts", "scores"):
        np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name))
    assert ours.attributes == theirs.attributes
    assert ours.cursor == theirs.cursor


@pytest.mark.parametrize("rows", [1, 10, 10_000])
def test_a_scan_streams_all_hits(index: rbegir.Index, rows: int) -> None:
    least = float(index.search(QUERIES, 60).scores[:, -1].mean())
    whole = index.search(QUERIES, None, min_score=least, where="price < 8").to_arrow()
    batches = list(index.scan(QUERIES, least, rows=rows, where="price < 8"))
    assert max(batch.num_rows for batch in batches) <= rows
    columns = ["query", "score", "id", "text", "price"]
    got = {name: [value for batch in batches for value in batch[name].to_pylist()] for name in columns}
    assert got == {name: whole[name].to_pylist() for name in columns}
    assert batches[0].schema.names == columns
    codes = ENCODER.encode_queries(QUERIES)
    assert next(index.scan(codes, least, rows=rows)).equals(next(index.scan(QUERIES, least, rows=rows)))


@pytest.mark.parametrize("room", [64, 1000, 4000, 1 << 20])
def test_a_scan_holds_few_hits(index: rbegir.Index, monkeypatch: pytest.MonkeyPatch, room: int) -> None:
    """Queries with many hits are searched fewer at a time; a single one may have more hits than that."""
    monkeypatch.setattr(searching, "SCANNED_HITS", room)
    held: list[int] = []
    search = CpuBackend.search

    def watched(self: CpuBackend, parts: Any, values: Any, k: int | None, limits: Any) -> Any:
        found = search(self, parts, values, k, limits)
        held.append(found.positions.size if len(values) > 1 else 0)
        return found

    queries = [f"w{number}" for number in range(70)]
    deny: list[list[int] | None] = [
        None if number % 3 else [5000 - row for row in LIVE[9:]] for number in range(70)
    ]
    monkeypatch.setattr(CpuBackend, "search", watched)
    got = [
        list(zip(*batch.to_pydict().values(), strict=True)) for batch in index.scan(queries, 0.2, deny=deny)
    ]
    assert max(held) <= room
    monkeypatch.undo()
    whole = index.search(queries, None, min_score=0.2, deny=deny)
    columns = whole.to_arrow().select(["query", "score", "id", "text", "price"]).to_pydict()
    assert [hit for batch in got for hit in batch] == list(zip(*columns.values(), strict=True))


def test_a_scan_refuses_at_once(index: rbegir.Index) -> None:
    with pytest.raises(FilterError):
        index.scan("w1", 0.5, where="prize < 3")
    with pytest.raises(InputError, match="rows must be a whole number"):
        index.scan("w1", 0.5, rows=0)


def test_a_scan_has_a_column_for_every_attribute(tmp_path: Path) -> None:
    with rbegir.Index.create(tmp_path / "x.rbe", ENCODER) as index:
        attributes = {"attribute_query": [3], "query": [4], "attribute_rank": [5], "rank": [6]}
        index.add(["w1"], attributes=attributes)
        (batch,) = index.scan("w1", -1.0)
    assert {name: batch[name].to_pylist() for name in batch.schema.names[4:]} == {
        "attribute_attribute_query": [3],
        "attribute_query": [4],
        "attribute_rank": [5],
        "rank": [6],
    }
    assert batch.schema.names[:4] == ["query", "score", "id", "text"]


def test_a_scan_of_no_queries_has_no_hits(index: rbegir.Index) -> None:
    for queries in ([], ENCODER.encode_queries([])):
        assert list(index.scan(queries, 0.5)) == list(index.scan(queries, 0.5, where="price < 9")) == []


def test_a_scan_is_of_one_state(tmp_path: Path) -> None:
    with rbegir.Index.create(tmp_path / "a.rbe", ENCODER) as index:
        index.add(WORDS[:100])
        batches = index.scan("w1", -1.0, rows=30)
        first = next(batches)
        index.delete(list(range(100)))
        assert first.num_rows + sum(batch.num_rows for batch in batches) == 100


def test_generations_have_ranges_and_pages(path: Path, index: rbegir.Index, tmp_path: Path) -> None:
    newer = HashEncoder(seed="2")
    newer.reads = (newer.fingerprint, ENCODER.fingerprint)  # type: ignore[attr-defined]
    newer._encode = ENCODER._encode  # type: ignore[method-assign]
    with rbegir.Index.create(tmp_path / "b.rbe", newer) as second:
        second.add(WORDS[:50], ids=[9000 + number for number in range(50)], attributes={"price": [1] * 50})
    with rbegir.Generations([path, tmp_path / "b.rbe"], newer, read_only=True) as both:
        whole = both.search(QUERIES, 5000)
        assert whole.counts.tolist() == [len(LIVE) + 50] * 4
        least = float(whole.scores[0, 77])
        hits = both.search(QUERIES, None, min_score=least)
        assert hits.counts.tolist() == (whole.scores >= least).sum(axis=1).tolist()
        page, seen = both.search(QUERIES, 50), []
        while page.k:
            seen.append(page.rows)
            page = both.search(QUERIES, 50, after=page.cursor)
        np.testing.assert_array_equal(np.concatenate(seen, axis=1), whole.rows)


@pytest.mark.parametrize("metric", ["cosine", "ip", "l2"])
def test_a_range_of_vectors_refers_to_the_scores_that_hits_have(tmp_path: Path, metric: str) -> None:
    vectors = np.random.default_rng(0).normal(size=(400, 16)).astype(np.float32)
    binarizer = rbegir.Binarizer(16, n=64, metric=metric, rounds=1, moves=5).fit(vectors)
    with rbegir.Index.create(tmp_path / "a.rbe", binarizer) as index:
        index.add_codes(binarizer.encode_keywords(vectors))
        whole = index.search(vectors[:5], 400)
        for least in (whole.scores[0, 30], whole.scores[1, 0], np.nextafter(whole.scores[2, 7], np.inf)):
            hits = index.search(vectors[:5], None, min_score=float(least))
            assert hits.counts.tolist() == (whole.scores >= least).sum(axis=1).tolist()
            streamed = [
                score for batch in index.scan(vectors[:5], least) for score in batch["score"].to_pylist()
            ]
            assert streamed == hits.scores[hits.places].tolist()
