"""An index that is replaced while a cluster has it open, and a given model that reads earlier codes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rbegir
from rbegir.encode.clsm import checkpoint
from rbegir.encode.clsm.presets import random_tensors
from rbegir.errors import InputError, MismatchError
from rbegir.training.upgrade import adopt
from tests.index.fakes import HashEncoder, random_codes
from tests.reranking import CONFIG, make_model, some_texts

from .conftest import PATIENT, equal, grow

QUERY = np.arange(-31, 33, dtype=np.int16)[None]  # [1, 64]


def binarizers(folder: Path) -> tuple[Path, Path]:
    """Two indexes whose Binarizers give equal codes different scores."""
    noise = np.random.default_rng(0).standard_normal((2, 400, 64)).astype(np.float32)
    noise[1, :, 8:] *= 0.1
    for seed, (name, vectors) in enumerate(zip("ab", noise, strict=True)):
        binarizer = rbegir.Binarizer(64, n=64).fit(vectors)
        with rbegir.Index.create(folder / f"{name}.rbe", binarizer) as index:
            index.add_codes(random_codes(50, seed=seed))
    return folder / "a.rbe", folder / "b.rbe"


def replace(one: Path, other: Path) -> None:
    one.rename(one.with_name("old.rbe"))
    other.rename(one)


def test_codes_are_not_scored_by_the_model_of_another_index(nodes: Any, tmp_path: Path) -> None:
    path, other = binarizers(tmp_path)
    old, new = (rbegir.Index.open(one).search_codes(QUERY) for one in (path, other))
    assert not np.allclose(old.scores, new.scores)
    with (
        rbegir.Cluster.open(path, devices=1, deadline=PATIENT) as cluster,
        rbegir.Cluster.open(path, devices=1, deadline=PATIENT) as scored,
    ):
        equal(scored.search_codes(QUERY), old)
        replace(path, other)
        equal(scored.search_codes(QUERY), old)  # its Binarizer was loaded before
        for options in ({"k": 10}, {"k": None, "min_score": 0.1}):
            with pytest.raises(
                MismatchError, match=r"a\.rbe was replaced by an index of another model"
            ) as caught:
                cluster.search_codes(QUERY, **options)  # type: ignore[arg-type]
            assert "refresh" in caught.value.hint
        cluster.refresh()
        equal(cluster.search_codes(QUERY), new)


def test_codes_of_an_index_without_a_model_are_not_scored_by_an_earlier_one(
    nodes: Any, tmp_path: Path
) -> None:
    path, _ = binarizers(tmp_path)
    with rbegir.Index.create(tmp_path / "bare.rbe", n=64, keyword_planes=2) as bare:
        bare.add_codes(random_codes(50, seed=0))
        wanted = bare.search_codes(QUERY)
    with rbegir.Cluster.open(path, devices=1, deadline=PATIENT) as cluster:
        assert not np.allclose(cluster.search_codes(QUERY).scores, wanted.scores)
        cluster.swap(tmp_path / "bare.rbe")
        equal(cluster.search_codes(QUERY), wanted)


class Upgraded(HashEncoder):
    """A later model whose queries also find the codes of an earlier one."""

    def __init__(self, seed: str, *same_keywords: str) -> None:
        super().__init__(seed=seed)
        self.reads = (self.fingerprint, HashEncoder().fingerprint)
        self.same_keywords = (self.fingerprint, *same_keywords)

    def _encode(self, texts: list[str], planes: int) -> rbegir.Codes:
        return super()._encode([text.upper() for text in texts], planes)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    grow(tmp_path / "ads.rbe", HashEncoder(), sizes=[60, 20])
    return tmp_path / "ads.rbe"


def test_a_given_model_that_reads_the_index_is_kept(nodes: Any, path: Path) -> None:
    later = Upgraded("later")
    with (
        rbegir.Cluster.open(path, devices=2, model=later, deadline=PATIENT) as cluster,
        rbegir.Index.open(path, model=later) as index,
    ):
        for _ in range(2):
            wanted = index.search(["w1 w2", "w7 w8"], k=9)
            equal(cluster.search(["w1 w2", "w7 w8"], k=9), wanted)
            equal(cluster.search_codes(later.encode_queries(["w1 w2", "w7 w8"]), k=9), wanted)
            assert cluster.model is index.model is later
            cluster.refresh()
        for opened in (cluster, index):
            with pytest.raises(MismatchError, match="its keywords get codes of another generation"):
                opened.add(["w1"])
        assert len(cluster) == len(index)


def test_a_given_model_with_the_same_keywords_adds_them(nodes: Any, path: Path) -> None:
    later = Upgraded("later", HashEncoder().fingerprint)
    with rbegir.Cluster.open(path, devices=1, model=later, deadline=PATIENT) as cluster:
        cluster.add(["w1 w2"], [1])
        assert cluster.codes([1]) == later.encode_keywords(["w1 w2"])
    with rbegir.Index.open(path) as index:
        assert index.codes([1]).planes.tolist() == later.encode_keywords(["w1 w2"]).planes.tolist()


def test_a_stored_model_that_was_upgraded_is_loaded_once(nodes: Any, tmp_path: Path) -> None:
    """Its fingerprint is not that of the index, whose codes it reads."""
    texts = some_texts(100)
    old = make_model(tmp_path / "old", texts)
    extra = {"reads": [old.fingerprint], "same_keywords": [old.fingerprint]}
    checkpoint.write(tmp_path / "new", CONFIG, random_tensors(CONFIG, 5), extra)
    with rbegir.Index.create(tmp_path / "x.rbe", old) as index:
        index.add(texts)
    adopt(tmp_path / "x.rbe", rbegir.Model.load(tmp_path / "new"))
    with (
        rbegir.Cluster.open(tmp_path / "x.rbe", devices=1, deadline=PATIENT) as cluster,
        rbegir.Index.open(tmp_path / "x.rbe") as index,
    ):
        assert cluster.model is cluster.model
        assert cluster.model.fingerprint == index.model.fingerprint != index.info()["fingerprint"]
        equal(cluster.search(texts[:3]), index.search(texts[:3]))
        cluster.add(["one more"], [1000])
        index.refresh()
        equal(cluster.search(["one more"]), index.search(["one more"]))


def test_a_given_model_is_never_exchanged(nodes: Any, path: Path) -> None:
    given, other = HashEncoder(), HashEncoder(seed="other")
    with rbegir.Cluster.open(path, devices=1, model=given, deadline=PATIENT) as cluster:
        wanted = cluster.search("w1 w2")
        grow(path.with_name("new.rbe"), other, sizes=[30])
        replace(path, path.with_name("new.rbe"))
        with pytest.raises(MismatchError, match="the model does not belong to this index"):
            cluster.refresh()
        assert cluster.model is given
        equal(cluster.search("w1 w2"), wanted)  # from the old state, which the shards have open
        cluster.swap(path, model=other)
        assert (cluster.model, len(cluster)) == (other, len(rbegir.Index.open(path)))


def test_equal_fingerprints_do_not_mean_equal_rerankers(nodes: Any, tmp_path: Path) -> None:
    texts = some_texts(80)
    for name, known in (("a", texts[:20]), ("b", texts)):
        with rbegir.Index.create(tmp_path / f"{name}.rbe", make_model(tmp_path / name, known)) as index:
            index.add(texts)
    one, other = (rbegir.Index.open(tmp_path / f"{name}.rbe").search(texts[:3]) for name in "ab")
    assert not np.array_equal(one.scores, other.scores)
    with rbegir.Cluster.open(tmp_path / "a.rbe", devices=1, deadline=PATIENT) as cluster:
        equal(cluster.search(texts[:3]), one)
        cluster.swap(tmp_path / "b.rbe")
        equal(cluster.search(texts[:3]), other)
        replace(tmp_path / "b.rbe", tmp_path / "a.rbe")
        cluster.refresh()
        equal(cluster.search(texts[:3]), one)
        model = cluster.model
        cluster.refresh()
        assert cluster.model is model


def test_vectors_cannot_be_added_as_texts(nodes: Any, tmp_path: Path) -> None:
    path, _ = binarizers(tmp_path)
    with (
        rbegir.Cluster.open(path, devices=1, deadline=PATIENT) as cluster,
        pytest.raises(InputError, match="a Binarizer encodes vectors, not texts"),
    ):
        cluster.add(["a text"])
