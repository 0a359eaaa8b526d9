"""Searches of one tenant equal a full sort of its keywords, whatever the index went through."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rbegir
from rbegir.codes import score
from rbegir.errors import CorruptError, InputError, MismatchError
from rbegir.index import keys, tenant
from rbegir.index.segment import Segment
from rbegir.index.store import Index
from rbegir.index.tenant import within
from tests.index.fakes import HashEncoder, PlainIndex, random_codes
from tests.reranking import make_model, some_texts

ENCODER = HashEncoder()
SHOPS = ["a", "b", "", "ü", "only once", "a "]
NUMBERS = [0, -7, 2**62, 3, 12345, 4]


@pytest.mark.parametrize(("names", "seed"), [(SHOPS, 0), (NUMBERS, 1), (SHOPS, 2)])
def test_equal_to_a_full_sort(tmp_path: Path, names: list[Any], seed: int) -> None:
    rng = np.random.default_rng(seed)
    plain = PlainIndex(ENCODER)
    with Index.create(tmp_path / "x.rbe", ENCODER, tenant="shop") as index:
        for step in range(25):
            count = int(rng.choice([1, 3, 70, 300]))
            texts = [f"w{number}" for number in rng.integers(0, 40, count)]  # many equal scores
            ids = rng.choice(2000, count, replace=False).tolist()
            drawn = rng.choice(len(names), count, p=[0.5, 0.3, 0.1, 0.05, 0.04, 0.01])
            shops = [names[number] for number in drawn]
            prices = [None if number % 5 == 0 else number for number in rng.integers(0, 50, count).tolist()]
            index.upsert(texts, ids, {"shop": shops, "price": prices})
            plain.delete(ids)
            plain.add(texts, ids, [{"shop": s, "price": p} for s, p in zip(shops, prices, strict=True)])
            if step % 4 == 3:
                gone = rng.choice(2000, 200).tolist()
                assert index.delete(gone) == plain.delete(gone)
            if step % 6 == 5:
                moved = rng.permutation(list(plain.live))[:20].tolist()
                index.update(moved, {"shop": [names[1]] * len(moved)})
                for one in moved:  # as a new row
                    record = {**plain.live.pop(one), "shop": names[1]}
                    plain.add([record["text"]], [one], [{"shop": names[1], "price": record["price"]}])
            if step in (9, 20):
                index.compact()
                index.verify()
            _compare(index, plain, rng, names)
    with Index.open(tmp_path / "x.rbe", model=ENCODER, read_only=True) as index:
        _compare(index, plain, rng, names)


def _compare(index: Index, plain: PlainIndex, rng: np.random.Generator, names: list[Any]) -> None:
    own = names[rng.integers(len(names))]
    query, k = f"w{rng.integers(60)}", int(rng.choice([1, 5, 1000]))
    some = rng.choice(2000, 800).tolist()

    def mine(record: dict[str, Any]) -> bool:
        return bool(record["shop"] == own)

    def cheap(record: dict[str, Any]) -> bool:
        return record["price"] is not None and record["price"] < 20

    def found(passes: Any, **options: Any) -> list[tuple[int, int, int]]:
        hits = index.search(query, k, tenant=own, **options)
        there = hits.places
        columns = (hits.ids[there].tolist(), hits.keys[there].tolist(), hits.rows[there].tolist())
        listed = list(zip(*columns, strict=True))
        assert listed == plain.search(query, k, lambda record: mine(record) and passes(record))
        return listed

    listed = found(lambda record: True)
    found(cheap, where="price < 20")
    found(lambda record: record["id"] in some, allow=some)
    found(lambda record: cheap(record) and record["id"] not in some, where="price < 20", deny=some)
    everything = plain.search(query, 10_000, mine)
    pages = index.search(query, 3, tenant=own)
    assert pages.ids[0].tolist() == [one for one, _, _ in everything[:3]]
    if len(everything) >= 3:
        assert index.search(query, 3, tenant=own, after=pages.cursor).rows[0].tolist() == [
            row for _, _, row in everything[3:6]
        ]
    cosines = score.cosine(
        np.array([[key for _, key, _ in everything]], np.int64),
        score.norm_squared(ENCODER.encode_queries([query]).values()),
    )[0]
    reach = [one for (one, _, _), cosine in zip(everything, cosines, strict=True) if cosine >= 0.1]
    assert index.search(query, None, min_score=0.1, tenant=own).ids.ravel().tolist() == reach
    scanned = [one for batch in index.scan(query, 0.1, rows=7, tenant=own) for one in batch["id"].to_pylist()]
    assert scanned == reach
    assert index.count(tenant=own) == len(everything)
    assert index.count("price < 20", tenant=own) == sum(mine(r) and cheap(r) for r in plain.live.values())
    assert [row["id"] for row in index.rows(tenant=own)] == sorted(
        (r["id"] for r in plain.live.values() if mine(r)), key=lambda one: plain.live[one]["row"]
    )
    assert listed == [] or index.search(query, k).counts[0] >= len(listed)  # without a tenant: all of them


def test_changes_of_one_tenant(tmp_path: Path) -> None:
    with Index.create(tmp_path / "x.rbe", ENCODER, tenant="shop") as index:
        index.add([f"w{i}" for i in range(100)], attributes={"shop": ["a", "b"] * 50, "n": list(range(100))})
        index.add([f"w{i}" for i in range(100)], attributes={"shop": ["a", "b"] * 50, "n": list(range(100))})
        assert index.delete([0, 1, 2, 3], tenant="a") == 2  # 1 and 3 are of the other
        assert index.delete(where="n < 10", tenant="b") == 10
        assert index.delete(tenant="nobody") == 0
        assert (index.count(tenant="a"), index.count(tenant="b")) == (98, 90)
        assert index.delete(tenant="a") == 98
        assert (index.count(tenant="a"), len(index)) == (0, 90)
        with pytest.raises(InputError, match="delete needs ids or where, and not both"):
            index.delete([1], where="n < 3", tenant="b")


def test_joins_within_a_tenant(tmp_path: Path) -> None:
    codes = random_codes(300)
    shops = [f"s{i % 7}" for i in range(300)]
    with Index.create(tmp_path / "x.rbe", n=64, keyword_planes=2, tenant="shop") as index:
        index.add_codes(codes[:200], attributes={"shop": shops[:200]})
        index.add_codes(codes[200:], attributes={"shop": shops[200:]})
        mine = [i for i in range(300) if i % 7 == 3]
        with Index.create(tmp_path / "alone.rbe", n=64, keyword_planes=2) as alone:
            alone.add_codes(codes[np.array(mine)], ids=mine)
            assert index.neighbors(4, tenant="s3").to_pydict() == alone.neighbors(4).to_pydict()
            assert (
                index.duplicates(0.3, tenant="s3")["id"].to_pylist()
                == alone.duplicates(0.3)["id"].to_pylist()
            )


def test_reranked_hits_are_those_of_a_filter(tmp_path: Path) -> None:
    texts = some_texts(400)
    model = make_model(tmp_path / "model", texts)
    with Index.create(tmp_path / "x.rbe", model, tenant="shop") as index:
        for part in (range(150), range(150, 400)):
            index.add([texts[i] for i in part], attributes={"shop": [i % 3 for i in part]})
        queries = [texts[7], texts[8][:-1], "nothing like it"]
        for own in range(4):
            hits = index.search(queries, 5, tenant=own, candidates=20)
            wanted = index.search(queries, 5, where=f"shop = {own}", candidates=20)
            assert hits.reranked or own == 3
            assert hits.ids.tolist() == wanted.ids.tolist()
            np.testing.assert_array_equal(hits.scores, wanted.scores)


def test_generations(tmp_path: Path) -> None:
    newer = HashEncoder(seed="2")
    newer.reads = (newer.fingerprint, ENCODER.fingerprint)  # type: ignore[attr-defined]
    for name, encoder, start in (("old", ENCODER, 0), ("new", newer, 50)):
        with Index.create(tmp_path / name, encoder, tenant="shop") as index:
            ids = list(range(start, start + 100))
            index.add([f"w{i}" for i in ids], ids, {"shop": [f"s{i % 4}" for i in ids]})
    with rbegir.Generations([tmp_path / "old", tmp_path / "new"], newer, read_only=True) as both:
        hits = both.search("w3", 1000, tenant="s1")
        wanted = both.search("w3", 1000, where="shop = 's1'")
        assert hits.ids.tolist() == wanted.ids.tolist()
        assert sorted(hits.ids[0].tolist()) == list(range(1, 150, 4))


def test_equal_keys_of_different_tenants(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A collision of hashes shows nobody the keywords of another tenant."""
    monkeypatch.setattr(keys, "hash_strings", lambda offsets, data: np.zeros(len(offsets) - 1, np.uint64))
    with Index.create(tmp_path / "x.rbe", ENCODER, tenant="shop") as index:
        index.add([f"w{i}" for i in range(90)], attributes={"shop": [f"s{i % 9}" for i in range(90)]})
        index.verify()
        assert index.search("w1", 100, tenant="s4").ids[0].tolist() == [
            one for one, _, _ in _plain_of(90, 9, 4).search("w1", 100)
        ]


def _plain_of(count: int, tenants: int, own: int) -> PlainIndex:
    plain = PlainIndex(ENCODER)
    mine = range(own, count, tenants)
    plain.add([f"w{i}" for i in mine], list(mine), [{}] * len(mine))
    return plain


def test_the_least_recently_searched_tenants_are_evicted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Index.create(tmp_path / "x.rbe", ENCODER, tenant="shop") as index:
        index.add([f"w{i}" for i in range(60)], attributes={"shop": [i % 6 for i in range(60)]})
        assert index.count(tenant=np.int64(1)) == 10  # type: ignore[arg-type]
        monkeypatch.setattr(tenant, "KEPT_TENANTS", 3)
        for own in (0, 1, 2, 0, 3):
            index.search("w", tenant=own)
        assert list(index.snapshot.tenants) == [2, 0, 3]
        index.add(["w"], attributes={"shop": [3]})
        index.search("w", tenant=2)
        assert list(index.snapshot.tenants) == [0, 3, 2]
        monkeypatch.setattr(
            tenant, "KEPT_BYTES", 2 * within(index.snapshot, 2).segments[0].segment.packed().nbytes
        )
        index.search("w", tenant=4)
        assert list(index.snapshot.tenants) == [4]


def test_a_change_keeps_what_was_read_of_a_tenant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether tenants are gathered or masked, only new segments are read after a change."""
    read: list[tuple[Path, int]] = []
    right = Segment.of_tenant

    def of_tenant(self: Segment, wanted: Any) -> Any:
        read.append((self.path, wanted[0].as_py()))
        return right(self, wanted)

    monkeypatch.setattr(Segment, "of_tenant", of_tenant)
    with Index.create(tmp_path / "x.rbe", ENCODER, tenant="shop") as index:
        index.add(
            [f"w{i % 40}" for i in range(1500)], attributes={"shop": [min(i % 10, 3) for i in range(1500)]}
        )
        first = index.snapshot.segments[0].segment.path
        for own in (0, 3):
            index.search("w1", tenant=own)
            assert within(index.snapshot, own).gathered == (own == 0)
        assert read == [(first, 0), (first, 3)]
        index.add(["w1"], attributes={"shop": [1]})
        index.delete([10, 13, 20])
        for own in (0, 3):
            hits = index.search("w1", 2000, tenant=own)
            assert hits.ids.tolist() == index.search("w1", 2000, where=f"shop = {own}").ids.tolist()
            assert index.count(tenant=own) == hits.k == {0: 148, 3: 1049}[own]
        assert read == [(first, 0), (first, 3)]
        index.compact()
        index.search("w1", tenant=0)
        assert len(index.snapshot.tenants) == 2
        assert [own for _, own in read] == [0, 3, 0]


def test_refusals(tmp_path: Path) -> None:
    with Index.create(tmp_path / "x.rbe", ENCODER) as index:
        index.add(["w"])
        with pytest.raises(InputError, match="this index has no tenants"):
            index.search("w", tenant="a")
    with pytest.raises(InputError, match="an attribute cannot be called 'id'"):
        Index.create(tmp_path / "y.rbe", ENCODER, tenant="id")
    with Index.create(tmp_path / "y.rbe", ENCODER, tenant="shop") as index:
        assert index.search("w", tenant="a").ids.shape == (1, 0)  # nothing was added yet
        with pytest.raises(InputError, match="attributes lack 'shop', which names the tenant"):
            index.add(["w"])
        with pytest.raises(InputError, match=r"attributes\['shop'\]\[1\] is None, expected a tenant"):
            index.add(["w", "v"], attributes={"shop": ["a", None]})
        with pytest.raises(InputError, match=r"strings or 64-bit integers, .*got double"):
            index.add(["w"], attributes={"shop": [0.5]})
        index.add(["w"], attributes={"shop": ["a"]})
        with pytest.raises(InputError, match=r"attributes\['shop'\]\[0\] is None, expected a tenant"):
            index.update([0], {"shop": [None]})
        with pytest.raises(MismatchError, match="tenant is 7, in this index 'shop' is string"):
            index.search("w", tenant=7)
        with pytest.raises(InputError, match="tenant must be a string or an integer, got True"):
            index.search("w", tenant=True)
        with pytest.raises(InputError, match="tenant and mode='paper' cannot be combined"):
            index.search("w", tenant="a", mode="paper")
    with Index.create(tmp_path / "z.rbe", ENCODER, tenant="shop") as index:
        index.add(["w"], attributes={"shop": [3]})
        with pytest.raises(InputError, match="tenant must be a 64-bit integer, got 92"):
            index.search("w", tenant=2**63)


def test_damage_is_found(tmp_path: Path) -> None:
    """Another order than that of the keys is found even where the checksums agree with it."""
    from rbegir.index import segment

    def wrong(writer: Any, name: str, given: Any) -> None:
        right(writer, name, given[::-1])

    right, segment.write_keys = segment.write_keys, wrong
    try:
        with Index.create(tmp_path / "x.rbe", ENCODER, tenant="shop") as index:
            index.add(["u", "v", "w"], attributes={"shop": [1, 2, 3]})
    finally:
        segment.write_keys = right
    with pytest.raises(CorruptError, match="does not lead to the keywords of the tenants"):
        Index.open(tmp_path / "x.rbe", model=ENCODER).verify()


def test_a_lost_manifest_is_rebuilt_with_its_tenants(tmp_path: Path) -> None:
    with Index.create(tmp_path / "x.rbe", ENCODER, tenant="shop") as index:
        index.add([f"w{i}" for i in range(30)], attributes={"shop": [i % 3 for i in range(30)]})
    (tmp_path / "x.rbe" / "MANIFEST").unlink()
    Index.salvage(tmp_path / "x.rbe", tmp_path / "saved.rbe")
    with Index.open(tmp_path / "saved.rbe") as saved:
        assert saved.info()["tenant"] == "shop"
        assert saved.count(tenant=2) == 10
