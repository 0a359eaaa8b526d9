"""Joins against an independent reference: every pair scored in NumPy and sorted."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rbegir.codes import score
from rbegir.codes.planes import Codes
from rbegir.encode.binarizer.binarizer import Binarizer
from rbegir.errors import FileError, InputError, LockedError, MismatchError
from rbegir.index import join as joins
from rbegir.index.join import Join, write_pairs
from rbegir.index.store import Index
from rbegir.index.writer import WriterLock
from rbegir.search.backend import open_backend
from tests.index.fakes import HashEncoder, random_codes


def made(
    path: Path, count: int, *, n: int = 64, planes: int = 2, strings: bool = False, seed: int = 1
) -> Index:
    """An index of three segments with copies, near copies, deleted keywords and shuffled ids."""
    rng = np.random.default_rng(seed)
    values = random_codes(count, n, planes, seed).values()
    copies = rng.integers(0, count, count // 5)
    values[rng.integers(0, count, copies.size)] = values[copies]
    near = rng.integers(0, count, count // 5)
    values[near, rng.integers(0, n, near.size)] *= -1
    codes = Codes.from_values(values, planes)
    ids: list[Any] = rng.permutation(10 * count)[:count].tolist()
    if strings:
        ids = [f"id {number}" for number in ids]
    index = Index.create(path, n=n, keyword_planes=planes)
    for low, high in itertools.pairwise([0, count // 2, count - count // 10, count]):
        texts = [f"text of {name}" for name in ids[low:high]]
        index.add_codes(codes[low:high], ids[low:high], texts=texts)
    index.delete(ids[:: max(2, count // 50)])
    return index


def contents(index: Index) -> tuple[list[Any], np.ndarray[Any, Any]]:
    ids = [key for batch in index.batches() for key in batch["id"].to_pylist()]
    return ids, index.codes(ids).values()


def reference(
    index: Index, other: Index, k: int | None, min_score: float | None, *, itself: bool = True
) -> dict[str, list[Any]]:
    """The pairs of a join, from the definitions."""
    ids, values = contents(index)
    other_ids, other_values = contents(other)
    found: dict[str, list[Any]] = {"id": [], "neighbor_id": [], "rank": [], "score": []}
    norms = score.norm_squared(values)
    for low in range(0, len(other_ids), 500):
        queries = other_values[low : low + 500]
        keys = score.order_key(score.dot(queries, values), norms)
        scores = score.cosine(keys, score.norm_squared(queries))
        for number, row in enumerate(keys, low):
            order = np.argsort(-row, kind="stable")
            if not itself:
                order = order[order != number]
            order = order[: k or len(order)]
            if min_score is not None:
                order = order[scores[number - low, order] >= min_score]
            found["id"] += [other_ids[number]] * len(order)
            found["neighbor_id"] += [ids[i] for i in order]
            found["rank"] += range(1, len(order) + 1)
            found["score"] += scores[number - low, order].tolist()
    return found


def test_a_hundred_thousand_neighbors(tmp_path: Path) -> None:
    with made(tmp_path / "x.rbe", 2200) as index:
        found = index.neighbors(50)
        assert found.num_rows == 50 * len(index) > 100_000
        assert found.to_pydict() == reference(index, index, 50, None, itself=False)


@pytest.mark.parametrize(
    ("n", "planes", "strings"), [(64, 1, True), (64, 3, False), (128, 2, True), (192, 4, False)]
)
@pytest.mark.parametrize(("k", "min_score"), [(7, None), (1000, 0.2), (None, 0.15), (None, 1.0), (3, -1.0)])
def test_joins_of_every_shape(
    tmp_path: Path, n: int, planes: int, strings: bool, k: int | None, min_score: float | None
) -> None:
    shape: dict[str, Any] = {"n": n, "planes": planes, "strings": strings}
    with (
        made(tmp_path / "a.rbe", 300, **shape) as index,
        made(tmp_path / "b.rbe", 130, **shape, seed=2) as other,
    ):
        assert index.join(other, k, min_score).to_pydict() == reference(index, other, k, min_score)
        wanted = reference(index, index, k, min_score, itself=False)
        assert index.neighbors(k, min_score).to_pydict() == wanted
        assert index.join(index, k, min_score).to_pydict() == reference(index, index, k, min_score)


def test_a_join_is_what_search_codes_finds(tmp_path: Path) -> None:
    with made(tmp_path / "a.rbe", 400) as index, made(tmp_path / "b.rbe", 90, seed=2) as other:
        ids, _ = contents(other)
        hits = index.search_codes(other.codes(ids), 5)
        found = index.join(other, 5, texts=True)
        assert found["neighbor_id"].to_pylist() == hits.ids.ravel().tolist()
        assert found["score"].to_pylist() == hits.scores.ravel().tolist()
        assert found["neighbor_text"].to_pylist() == hits.texts.ravel().tolist()
        assert found["text"].to_pylist() == [f"text of {name}" for name in ids for _ in range(5)]


@pytest.mark.parametrize("metric", ["cosine", "ip", "l2"])
def test_keywords_of_a_binarizer_are_searched_as_the_vectors_that_they_stand_for(
    tmp_path: Path, metric: str
) -> None:
    rng = np.random.default_rng(3)
    vectors = rng.standard_normal((20, 16))[rng.integers(0, 20, 400)] + 0.5 * rng.standard_normal((400, 16))
    binarizer = Binarizer(16, metric=metric).fit(vectors)
    with Index.create(tmp_path / "x.rbe", binarizer) as index:
        index.add(vectors)
        decoded = binarizer.inverse_transform(index.codes(range(400)))
        hits = index.search(decoded, 400)
        for number, (ids, scores) in enumerate(zip(hits.ids, hits.scores, strict=True)):
            others = ids != number
            hits.ids[number, :5], hits.scores[number, :5] = ids[others][:5], scores[others][:5]
        found = index.neighbors(5)
        assert found["neighbor_id"].to_pylist() == hits.ids[:, :5].ravel().tolist()
        assert found["score"].to_pylist() == hits.scores[:, :5].ravel().tolist()
        least = float(np.median(hits.scores[:, 0]))
        reached = index.neighbors(min_score=least)["score"].to_numpy()
        assert reached.size > 100
        assert reached.min() >= least
        assert 1 < len(index.duplicates(least)) < 400


def test_many_copies_of_one_keyword(tmp_path: Path) -> None:
    """More equal codes than k: a keyword that is not among its own best is not replaced by nobody."""
    code = random_codes(1)
    with Index.create(tmp_path / "x.rbe", n=64, keyword_planes=2) as index:
        index.add_codes(Codes.concat([code] * 9))
        wanted = [[i for i in range(9) if i != own][:3] for own in range(9)]
        assert np.reshape(index.neighbors(3)["neighbor_id"].to_numpy(), (9, 3)).tolist() == wanted
        assert index.neighbors(min_score=1.0).num_rows == 9 * 8
        assert index.neighbors(100).num_rows == 9 * 8
        assert index.duplicates(1.0)["group"].to_pylist() == [0] * 9
        assert index.duplicates(1.01).num_rows == index.neighbors(min_score=1.01).num_rows == 0


@pytest.mark.parametrize("metric", ["cosine", "ip", "l2"])
def test_copies_whose_score_is_too_low_are_no_duplicates(tmp_path: Path, metric: str) -> None:
    """With a Binarizer, the score of two equal codes is an estimate, which may be low."""
    rng = np.random.default_rng(5)
    vectors = (rng.random((60, 1)) * rng.standard_normal((60, 16)))[rng.integers(0, 60, 150)]
    with Index.create(tmp_path / "x.rbe", Binarizer(16, metric=metric).fit(vectors)) as index:
        index.add(vectors)
        planes = index.codes(range(150)).planes
        first = [int(np.argmax((planes == planes[:, [i]]).all(axis=(0, 2)))) for i in range(150)]
        scores = np.sort(index.neighbors(1)["score"].to_numpy())
        for least in (*scores[:: len(scores) // 8].tolist(), scores[-1] + 1):
            group = np.arange(150)
            pairs = index.neighbors(min_score=least)
            for one, other in zip(pairs["id"].to_pylist(), pairs["neighbor_id"].to_pylist(), strict=True):
                if first[one] <= first[other]:  # the code that was stored first is the query
                    group[group == group[other]] = group[one]
            alone = np.bincount(group, minlength=150)[group] == 1
            found = index.duplicates(least)
            assert sorted(found["id"].to_pylist()) == np.flatnonzero(~alone).tolist()
            for number in range(len(set(found["group"].to_pylist()))):
                members = found["id"].to_numpy()[found["group"].to_numpy() == number]
                assert set(members) == set(np.flatnonzero(group == group[members[0]]))


def test_pairs_by_score_are_found_in_little_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With room for few pairs, queries are split down to single ones; the pairs stay the same."""
    with made(tmp_path / "x.rbe", 200) as index:
        wanted = reference(index, index, None, -0.1, itself=False)
        monkeypatch.setattr(joins, "ROOM", 500)
        monkeypatch.setattr(joins, "FIRST_K", 4)
        monkeypatch.setattr(joins, "MOST_QUERIES", 50)
        assert index.neighbors(min_score=-0.1).to_pydict() == wanted


@pytest.mark.parametrize("min_score", [1.0, 0.97, 0.9, 0.5, 0.42])
def test_duplicates(tmp_path: Path, min_score: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joins, "MOST_QUERIES", 77)
    with made(tmp_path / "x.rbe", 600) as index:
        ids, _ = contents(index)
        group = {key: {key} for key in ids}
        pairs = reference(index, index, None, min_score, itself=False)
        for one, other in zip(pairs["id"], pairs["neighbor_id"], strict=True):
            if group[one] is not group[other]:
                group[one] |= group[other]
                for member in group[other]:
                    group[member] = group[one]
        seen: list[set[Any]] = []
        for key in ids:
            if len(group[key]) > 1 and group[key] not in seen:
                seen.append(group[key])
        wanted = [(number, key) for number, members in enumerate(seen) for key in ids if key in members]
        found = index.duplicates(min_score)
        assert list(zip(found["group"].to_pylist(), found["id"].to_pylist(), strict=True)) == wanted
        assert len(seen) > 1
        assert found["text"].to_pylist() == [f"text of {key}" for _, key in wanted]


def test_empty_indexes(tmp_path: Path) -> None:
    with (
        Index.create(tmp_path / "x.rbe", n=64, keyword_planes=2) as empty,
        made(tmp_path / "y.rbe", 40) as full,
    ):
        assert empty.neighbors(3).num_rows == empty.duplicates(0.5).num_rows == 0
        assert empty.join(full, 3).num_rows == full.join(empty, min_score=0.0).num_rows == 0
        assert empty.neighbors(3).schema == full.neighbors(3).schema
        out = tmp_path / "none.parquet"
        write_pairs(out, Join(full.snapshot, empty.snapshot, None, 3), open_backend("cpu", 64, 2))
        assert pq.read_table(out).num_rows == 0


def test_some_of_the_keywords_are_joined_as_if_they_were_alone(tmp_path: Path) -> None:
    codes = random_codes(240, seed=9)
    with Index.create(tmp_path / "x.rbe", n=64, keyword_planes=2, tenant="shop") as index:
        for low in (0, 80, 160):  # the filter leaves nothing of the first segment
            part = list(range(low, low + 80))
            index.add_codes(codes[low : low + 80], part, {"shop": [i % 3 for i in part]})
        chosen = (
            {"where": "id >= 100", "tenant": 1},
            {"where": "id >= 100"},
            {"tenant": 2},
            {"where": "id < 0"},
        )
        for number, options in enumerate(chosen):
            ids = [row["id"] for row in index.rows(options.get("where"), tenant=options.get("tenant"))]
            with Index.create(tmp_path / f"{number}.rbe", n=64, keyword_planes=2) as alone:
                alone.add_codes(codes[np.array(ids, np.int64)], ids)
                assert index.neighbors(4, **options) == alone.neighbors(4)
                assert index.neighbors(None, 0.2, **options) == alone.neighbors(None, 0.2)
                out = tmp_path / f"{number}.parquet"
                join = index.joining(None, 4, None, texts=False, **options)
                facts = write_pairs(out, join, open_backend("cpu", 64, 2))
                assert (facts["queries"], facts["keywords"]) == (len(ids), len(ids))
                assert pq.read_table(out) == alone.neighbors(4)
        other = index.join(index, 3, where="id >= 100")
        assert len(other) == 3 * 240
        assert min(other["neighbor_id"].to_pylist()) >= 100
        identities = {index.joining(None, 4, None, texts=False, **options).identity for options in chosen}
        assert len(identities) == len(chosen)
        both = index.join(index, 3, tenant=1)
        assert {key % 3 for name in ("id", "neighbor_id") for key in both[name].to_pylist()} == {1}


def test_refusals(tmp_path: Path) -> None:
    with (
        made(tmp_path / "a.rbe", 40) as index,
        made(tmp_path / "b.rbe", 40, n=128) as wide,
        Index.create(tmp_path / "c.rbe", HashEncoder()) as one,
        Index.create(tmp_path / "d.rbe", HashEncoder(seed="other")) as another,
    ):
        with pytest.raises(InputError, match="needs k, min_score or both"):
            index.neighbors()
        with pytest.raises(InputError, match="k must be"):
            index.neighbors(0)
        with pytest.raises(InputError, match=r"as Parquet, but .*j\.csv has the suffix of another") as caught:
            write_pairs(
                tmp_path / "j.csv", index.joining(None, 3, None, texts=False), open_backend("cpu", 64, 2)
            )
        assert caught.value.hint.endswith("j.parquet")
        assert not (tmp_path / "j.csv").exists()
        with pytest.raises(InputError, match="min_score must be a finite number, got '2'"):
            index.join(index, min_score="2")  # type: ignore[arg-type]
        with pytest.raises(InputError, match="min_score must be a finite number, got nan"):
            index.duplicates(float("nan"))
        with pytest.raises(InputError, match=r"other must be an rbegir\.Index, got str"):
            index.join("b.rbe", 3)  # type: ignore[arg-type]
        with pytest.raises(MismatchError, match="n = 64, the other of n = 128"):
            index.join(wide, 3)
        with pytest.raises(MismatchError, match="different models"):
            one.join(another, 3)


class Interrupted(Exception):
    """Stands for Ctrl-C."""


def test_a_file_is_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joins, "MOST_QUERIES", 40)
    out, stage = tmp_path / "pairs.parquet", tmp_path / ".pairs.parquet.joining"
    backend = open_backend("cpu", 64, 2)
    asked: list[int] = []

    def stop_at_third(done: int, total: int) -> None:
        asked.append(done)
        if len(asked) == 3:
            raise Interrupted

    with made(tmp_path / "x.rbe", 300) as index:
        join = Join(index.snapshot, index.snapshot, None, 4, itself=False)
        with pytest.raises(Interrupted):
            write_pairs(out, join, backend, stop_at_third)
        assert not out.exists()
        assert asked[-1] < len(index)
        lock = WriterLock(stage)
        with pytest.raises(LockedError, match="is being written by process"):
            write_pairs(out, join, backend)
        lock.release()
        facts = write_pairs(out, join, backend)
        assert facts["resumed_queries"] == asked[-1]
        assert facts["pairs"] == 4 * len(index)
        assert facts["queries"] == facts["keywords"] == len(index)
        assert not stage.exists()
        assert pq.read_table(out) == index.neighbors(4)
        with pytest.raises(FileError, match="exists already"):
            write_pairs(out, join, backend)


def test_parts_of_another_state_are_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joins, "MOST_QUERIES", 40)
    out, backend = tmp_path / "pairs.parquet", open_backend("cpu", 64, 2)

    def stop(done: int, total: int) -> None:
        raise Interrupted

    with made(tmp_path / "x.rbe", 300) as index:
        with pytest.raises(Interrupted):
            write_pairs(out, Join(index.snapshot, index.snapshot, None, 4, itself=False), backend, stop)
        index.delete([contents(index)[0][0]])
        facts = write_pairs(out, Join(index.snapshot, index.snapshot, None, 4, itself=False), backend)
        assert facts["resumed_queries"] == 0
        assert pq.read_table(out) == index.neighbors(4)


def test_the_columns(tmp_path: Path) -> None:
    with made(tmp_path / "a.rbe", 40, strings=True) as index, made(tmp_path / "b.rbe", 40) as other:
        types = {"id": pa.int64(), "neighbor_id": pa.string(), "rank": pa.int32(), "score": pa.float64()}
        assert index.join(other, 2).schema == pa.schema(types)
