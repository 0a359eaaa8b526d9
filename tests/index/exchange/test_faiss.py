"""FAISS in and out, with the real package: the same neighbours on both sides of the door."""

from __future__ import annotations

from pathlib import Path

import faiss
import numpy as np
import pytest

import rbegir
from rbegir.codes.planes import Codes
from rbegir.codes.score import keys
from rbegir.errors import FileError, InputError, MismatchError
from rbegir.index.exchange.faiss import export_faiss, import_faiss, open_faiss, read_faiss, to_faiss


def bits(count: int, d: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, d // 8), dtype=np.uint8)


def floats(count: int, d: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((count, d)).astype(np.float32)


@pytest.mark.parametrize("d", [64, 192])
def test_a_binary_index_comes_in_bit_for_bit(d: int, tmp_path: Path) -> None:
    theirs = faiss.IndexBinaryFlat(d)
    theirs.add(bits(500, d))
    asked = bits(9, d, seed=1)
    distances, ids = theirs.search(asked, 20)
    with import_faiss(theirs, tmp_path / "a.rbe") as index:
        queries = Codes(asked.view("<u8").astype(np.uint64)[None], d)
        hits = index.search_codes(queries, k=20)
    # cos = 1 − 2h / n, and equal distances are equal scores: ids may differ in their order only
    assert np.allclose(hits.scores, 1 - 2 * distances / d)
    for row in range(len(asked)):
        inside = distances[row] < distances[row, -1]
        assert set(hits.ids[row][inside]) == set(ids[row][inside])


def test_ids_of_an_id_map_are_kept(tmp_path: Path) -> None:
    given = np.array([7, 3, 2**40, 11, 0])
    binary = faiss.IndexBinaryIDMap(faiss.IndexBinaryFlat(64))
    binary.add_with_ids(bits(5, 64), given)
    with import_faiss(binary, tmp_path / "b.rbe") as index:
        assert [found["id"] for found in index.get(given) if found] == given.tolist()
    mapped = faiss.IndexIDMap2(faiss.IndexFlatL2(24))
    mapped.add_with_ids(floats(5, 24), given)
    with import_faiss(mapped, tmp_path / "c.rbe") as index:
        assert [found["id"] for found in index.get(given) if found] == given.tolist()


@pytest.mark.parametrize(
    "kind", ["HNSW8,Flat", "NSG8,Flat", "IVF7,Flat", "IDMap,HNSW8,Flat", "IDMap,IVF7,Flat"]
)
@pytest.mark.parametrize("metric", [faiss.METRIC_L2, faiss.METRIC_INNER_PRODUCT])
def test_graphs_and_lists_of_vectors_come_in_as_what_they_store(
    kind: str, metric: int, tmp_path: Path
) -> None:
    vectors, given = floats(400, 24), np.random.default_rng(2).permutation(4000)[:400]
    theirs = faiss.index_factory(24, kind, metric)
    theirs.train(vectors)
    named = "IDMap" in kind or "IVF" in kind
    theirs.add_with_ids(vectors, given) if named else theirs.add(vectors)
    faiss.write_index(theirs, str(tmp_path / "x.faiss"))
    for source in (theirs, open_faiss(tmp_path / "x.faiss")):
        found, ids = read_faiss(source)
        order = np.argsort(ids)
        wanted = np.argsort(given) if named else np.arange(400)
        assert np.array_equal(ids[order], np.sort(given) if named else np.arange(400))
        assert np.array_equal(np.asarray(found)[order], vectors[wanted])
    with import_faiss(tmp_path / "x.faiss", tmp_path / "x.rbe") as index:
        assert index.model.metric == ("l2" if metric == faiss.METRIC_L2 else "ip")  # type: ignore[attr-defined]
        assert len(index) == 400


@pytest.mark.parametrize("kind", ["BHNSW8", "BIVF7"])
def test_graphs_and_lists_of_codes_come_in_bit_for_bit(kind: str) -> None:
    theirs = faiss.index_binary_factory(128, kind)
    theirs.train(bits(400, 128))
    theirs.add(bits(400, 128))
    found, ids = read_faiss(theirs)
    assert np.array_equal(ids, np.arange(400))
    assert np.array_equal(found.planes[0].view(np.uint8), bits(400, 128))  # type: ignore[union-attr]


def test_a_float_index_goes_through_a_binarizer(tmp_path: Path) -> None:
    vectors = floats(400, 48)
    theirs = faiss.IndexFlatIP(48)
    theirs.add(vectors)
    binarizer = rbegir.Binarizer(48, keyword_planes=4).fit(vectors)
    with import_faiss(theirs, tmp_path / "d.rbe", binarizer=binarizer) as index:
        assert index.codes(np.arange(400)) == binarizer.encode_keywords(vectors)
    faiss.write_index(theirs, str(tmp_path / "file.faiss"))
    with import_faiss(tmp_path / "file.faiss", tmp_path / "e.rbe") as index:  # fitted to what is there
        assert isinstance(index.model, rbegir.Binarizer)
    with rbegir.Index.open(tmp_path / "e.rbe") as index:  # its Binarizer is inside
        assert index.search(vectors[:5], k=1).ids.ravel().tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(MismatchError, match="vectors have 48 dimensions, the binarizer takes 24"):
        import_faiss(theirs, tmp_path / "f.rbe", binarizer=rbegir.Binarizer(24).fit(floats(50, 24)))
    assert not (tmp_path / "f.rbe").exists()


def test_one_plane_goes_out_and_comes_back(tmp_path: Path) -> None:
    codes = Codes.from_signs(np.random.default_rng(0).random((1, 100, 128)) < 0.5)
    export_faiss(codes, tmp_path / "codes.faiss")
    back, ids = read_faiss(open_faiss(tmp_path / "codes.faiss"))
    assert back == codes
    assert ids.tolist() == list(range(100))


def test_several_planes_go_out_as_unit_vectors(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    codes, asked = (Codes.from_signs(rng.random((p, c, 64)) < 0.5) for p, c in ((2, 300), (3, 8)))
    ids = rng.permutation(1000)[:300]
    with rbegir.Index.create(tmp_path / "g.rbe", n=64, keyword_planes=2) as index:
        index.add_codes(codes, ids)
        index.delete(ids[:10])
        made = to_faiss(index)
        export_faiss(index, tmp_path / "h.faiss")
    values = asked.values().astype(np.float32)
    scores, found = made.search(values / np.linalg.norm(values, axis=1, keepdims=True), 5)
    exact = keys(asked.values(), codes[np.arange(10, 300)])
    assert np.array_equal(found[:, 0], ids[10:][exact.argmax(axis=1)])
    again = faiss.read_index(str(tmp_path / "h.faiss"))
    assert np.array_equal(again.search(values, 5)[1], found)
    assert np.allclose(made.reconstruct(int(ids[20])), made.reconstruct(int(ids[20])))
    assert np.linalg.norm(made.reconstruct(int(ids[20]))) == pytest.approx(1.0, abs=1e-6)
    assert scores[0, 0] <= 1 + 1e-6


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: faiss.index_factory(32, "IVF4,PQ4"), "IndexIVFPQ"),
        (lambda: faiss.IndexPQ(32, 4, 8), "IndexPQ"),
        (lambda: faiss.index_factory(32, "HNSW8,SQ8"), "IndexHNSWSQ"),
        (lambda: faiss.IndexIDMap(faiss.IndexPQ(32, 4, 8)), "IndexPQ"),
        (lambda: faiss.index_binary_factory(64, "BHash16"), "IndexBinaryHash"),
    ],
)
def test_other_kinds_are_refused_by_name(make: object, name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"a FAISS index of kind {name} cannot be imported") as caught:
        import_faiss(make(), tmp_path / "x.rbe")  # type: ignore[operator]
    assert "supported are IndexBinaryFlat, IndexFlatIP, IndexFlatL2" in caught.value.hint
    assert list(tmp_path.iterdir()) == []


def test_bad_input_leaves_nothing(tmp_path: Path) -> None:
    narrow = faiss.IndexBinaryFlat(40)
    narrow.add(bits(3, 40))
    with pytest.raises(InputError, match="the index has 40 bits per vector, expected a multiple of 64"):
        import_faiss(narrow, tmp_path / "x.rbe")
    with pytest.raises(InputError, match=r"expected a FAISS index, got str|there is no FAISS file"):
        read_faiss("text")
    with pytest.raises(FileError, match="there is no FAISS file"):
        import_faiss(tmp_path / "nothing", tmp_path / "x.rbe")
    with pytest.raises(InputError, match="there is nothing to import: no rows"):
        import_faiss(faiss.IndexBinaryFlat(64), tmp_path / "x.rbe")
    bad = floats(20, 16)
    bad[3, 3] = np.nan
    holed = faiss.IndexFlatIP(16)
    holed.add(bad)
    with pytest.raises(InputError, match="NaN"):
        import_faiss(holed, tmp_path / "x.rbe")
    repeated = faiss.IndexBinaryIDMap(faiss.IndexBinaryFlat(64))
    repeated.add_with_ids(bits(3, 64), np.array([1, 1, 2]))
    with pytest.raises(InputError, match="ids holds 1 more than once"):
        import_faiss(repeated, tmp_path / "x.rbe")
    binary = faiss.IndexBinaryFlat(64)
    binary.add(bits(3, 64))
    with pytest.raises(InputError, match="holds codes, it takes no binarizer"):
        import_faiss(binary, tmp_path / "x.rbe", binarizer=rbegir.Binarizer(16).fit(floats(20, 16)))
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "garbage").write_bytes(b"IxFI but not really")
    with pytest.raises(FileError, match="is not a FAISS index"):
        import_faiss(tmp_path / "garbage", tmp_path / "x.rbe")
    with rbegir.Index.create(tmp_path / "strings.rbe", n=64, keyword_planes=1) as index:
        index.add_codes(Codes.from_signs(np.ones((1, 1, 64), bool)), ["a"])
        with pytest.raises(InputError, match="FAISS ids are integers, this index has strings"):
            export_faiss(index, tmp_path / "out.faiss")
    assert not (tmp_path / "out.faiss").exists()
    with pytest.raises(FileError, match="exists already"):
        export_faiss(Codes.from_signs(np.ones((1, 1, 64), bool)), tmp_path / "garbage")
