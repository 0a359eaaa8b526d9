"""An index that is replaced by another under the same path, while someone has it open."""

from __future__ import annotations

import os
import shutil
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rbegir.index.snapshot as snapshots
from rbegir.encode.binarizer.binarizer import Binarizer
from rbegir.encode.clsm.model import Model
from rbegir.errors import CorruptError, FileError, LockedError, MismatchError
from rbegir.index import creation, writer
from rbegir.index.generations import Generations
from rbegir.index.manifest import read_manifest
from rbegir.index.store import Index
from tests.index.fakes import HashEncoder, random_codes
from tests.reranking import make_model as make_reranked
from tests.reranking import some_texts
from torture.frontdoor import make_model

TEXTS = [f"keyword number {i} of thirty" for i in range(30)]


@pytest.fixture
def models(tmp_path: Path) -> tuple[Model, Model]:
    return make_model(tmp_path / "old", 1), make_model(tmp_path / "new", 2)


@pytest.fixture
def path(tmp_path: Path, models: tuple[Model, Model]) -> Path:
    with Index.create(tmp_path / "x.rbe", models[0]) as index:
        index.add(TEXTS)
    return tmp_path / "x.rbe"


def replace(path: Path, model: Model | None, texts: list[str] = TEXTS, **shape: Any) -> None:
    with Index.create(path, model, overwrite=True, **shape) as index:
        if model is not None:
            index.add(texts)


def self_hits(index: Index, texts: list[str] = TEXTS) -> int:
    hits = index.search(texts, k=1)
    return sum(found == text for found, text in zip(hits.texts[:, 0], texts, strict=True))


def test_a_reader_searches_the_new_index_with_the_new_model(path: Path, models: tuple[Model, Model]) -> None:
    with Index.open(path, read_only=True) as index:
        assert self_hits(index) == 30
        replace(path, models[1])
        assert self_hits(index) == 30  # still the old state, with its own model
        index.refresh()
        assert self_hits(index) == 30
        assert index.model.fingerprint == models[1].fingerprint == index.info()["fingerprint"]


def test_a_reader_reranks_as_the_new_index_does(tmp_path: Path) -> None:
    """The fingerprint of a model names its codes. Its reranker may differ, or be missing."""
    path, texts = tmp_path / "r.rbe", some_texts(60)
    made = {count: make_reranked(tmp_path / f"{count}", texts[:count]) for count in (30, 60)}
    shutil.rmtree(shutil.copytree(tmp_path / "30", tmp_path / "bare") / "rerank")
    models = [Model.load(tmp_path / "bare"), made[30], made[60], Model.load(tmp_path / "bare")]
    assert len({model.fingerprint for model in models}) == 1
    with Index.create(path, models[-1]) as first:
        first.add(texts)
    scores = []
    with Index.open(path, read_only=True) as index:
        for model in models:
            replace(path, model, texts)
            index.refresh()
            hits = index.search(texts[0], k=9)
            assert hits.reranked == (model.reranker is not None)
            scores.append(hits.scores.tolist())
            with Index.open(path) as fresh:
                assert scores[-1] == fresh.search(texts[0], k=9).scores.tolist()
            before = index.model
            index.refresh()
            assert index.model is before
    assert scores[0] != scores[1] != scores[2] != scores[3] == scores[0]


def test_a_model_given_by_the_caller_is_never_exchanged(path: Path, models: tuple[Model, Model]) -> None:
    with Index.open(path, model=models[0]) as index:
        replace(path, models[1])
        with pytest.raises(MismatchError, match="the model does not belong to this index"):
            index.refresh()
        assert self_hits(index) == 30  # it stays with the old state
        with pytest.raises(MismatchError, match="the model does not belong to this index"):
            index.add(["another"])
    assert len(Index.open(path)) == 30


def test_a_change_is_encoded_by_the_model_of_the_index_that_it_goes_to(
    path: Path, models: tuple[Model, Model]
) -> None:
    with Index.open(path) as index:
        assert self_hits(index) == 30
        replace(path, models[1])
        index.add(["one more keyword"])  # the first change: it takes the lock and sees the new index
        assert self_hits(index, [*TEXTS, "one more keyword"]) == 31
    with Index.open(path) as index:
        codes = index.codes([30])
        assert codes.planes.tolist() == models[1].encode_keywords(["one more keyword"]).planes.tolist()


def test_codes_of_another_model_are_refused(path: Path, models: tuple[Model, Model]) -> None:
    codes = models[0].encode_keywords(["one more"])
    with Index.open(path) as index:
        replace(path, models[1])
        with pytest.raises(MismatchError, match="the codes were made for an index with the fingerprint"):
            index.add_codes(codes)
    with (
        Index.open(path) as index,
        pytest.raises(MismatchError, match="the codes were made for an index with the fingerprint"),
    ):
        index.add_codes(codes, fingerprint=models[0].fingerprint)
    assert len(Index.open(path)) == 30


def test_an_index_of_another_shape_must_be_opened_again(path: Path, models: tuple[Model, Model]) -> None:
    with Index.open(path) as index:
        replace(path, None, n=128, keyword_planes=1)
        with pytest.raises(
            MismatchError, match="replaced by an index of n = 128 and 1 planes, it had n = 64"
        ):
            index.refresh()
        with pytest.raises(MismatchError, match="replaced by an index of n = 128"):
            index.add_codes(random_codes(1))
    assert len(Index.open(path)) == 0


def test_generations_keep_their_model(path: Path, models: tuple[Model, Model]) -> None:
    with Generations([path]) as both:
        replace(path, models[1])
        with pytest.raises(MismatchError, match="the model does not belong to this index"):
            both.refresh()
        assert both.search(TEXTS[7], k=1).texts.tolist() == [[TEXTS[7]]]


def test_searches_during_refreshes_never_mix_models(path: Path, models: tuple[Model, Model]) -> None:
    """Whatever the moment of a refresh, a search uses the model of the state that it searches."""
    index = Index.open(path, read_only=True)
    stop, wrong = threading.Event(), []

    def search() -> None:
        while not stop.is_set():
            if self_hits(index) != 30:
                wrong.append(index.info()["fingerprint"])

    threads = [threading.Thread(target=search) for _ in range(2)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for thread in threads:
            thread.start()
        for turn in range(12):
            replace(path, models[turn % 2])
            index.refresh()
    finally:
        stop.set()
        for thread in threads:
            thread.join()
        sys.setswitchinterval(interval)
    assert wrong == []


@pytest.fixture
def binarizers(tmp_path: Path) -> tuple[Path, Path]:
    """Two indexes whose Binarizers give equal codes different scores."""
    noise = np.random.default_rng(0).standard_normal((2, 400, 64)).astype(np.float32)
    noise[1, :, 8:] *= 0.1
    for seed, (name, vectors) in enumerate(zip("ab", noise, strict=True)):
        binarizer = Binarizer(64, n=64).fit(vectors)
        with Index.create(tmp_path / f"{name}.rbe", binarizer) as index:
            index.add_codes(random_codes(50, seed=seed))
    return tmp_path / "a.rbe", tmp_path / "b.rbe"


def swap(one: Path, other: Path) -> None:
    one.rename(one.with_name("old"))
    other.rename(one)


QUERY = np.arange(-31, 33, dtype=np.int16)[None]  # [1, 64]


def test_scores_during_a_refresh_are_those_of_the_state(
    binarizers: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = binarizers[0]
    wanted = [Index.open(one).search_codes(QUERY).scores for one in binarizers]
    assert not np.allclose(*wanted)
    index = Index.open(path, read_only=True)
    assert index.model.n == 64
    found: list[Any] = []
    threads: list[threading.Thread] = []

    def switch(self: Index, state: Any) -> None:
        """Search in another thread after the model has been replaced and before the state is."""
        threads.append(threading.Thread(target=lambda: found.append(self.search_codes(QUERY))))
        threads[0].start()
        threads[0].join(0.5)  # longer than the search takes, if it does not wait for the state
        self.__dict__["_snapshot"] = state

    swap(*binarizers)
    monkeypatch.setattr(
        Index, "_snapshot", property(lambda self: self.__dict__["_snapshot"], switch), raising=False
    )
    index.refresh()
    threads[0].join()
    assert found[0].scores.tolist() == wanted[1].tolist()


def test_codes_are_not_scored_by_the_model_of_another_index(binarizers: tuple[Path, Path]) -> None:
    wanted = Index.open(binarizers[1]).search_codes(QUERY).scores
    with Index.open(binarizers[0], read_only=True) as index, Index.open(binarizers[0]) as scored:
        before = scored.search_codes(QUERY).scores
        swap(*binarizers)
        assert (
            scored.search_codes(QUERY).scores.tolist() == before.tolist()
        )  # its Binarizer was loaded before
        with pytest.raises(MismatchError, match="was replaced by an index of another model") as caught:
            index.search_codes(QUERY)
        assert "refresh" in caught.value.hint
        assert "expected" not in index.info()
        index.refresh()
        assert index.search_codes(QUERY).scores.tolist() == wanted.tolist()
        assert "expected" in index.info()


def test_codes_of_an_index_without_a_model_are_not_scored_by_an_earlier_one(
    binarizers: tuple[Path, Path],
) -> None:
    with Index.create(binarizers[0].with_name("bare.rbe"), n=64, keyword_planes=2) as bare:
        bare.add_codes(random_codes(50))
        wanted = bare.search_codes(QUERY).scores
    with Index.open(binarizers[0], read_only=True) as index:
        assert not np.allclose(index.search_codes(QUERY).scores, wanted)
        swap(binarizers[0], bare.path)
        index.refresh()
        assert index.search_codes(QUERY).scores.tolist() == wanted.tolist()


def test_a_path_is_absolute_from_the_start(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(path, elsewhere / "x.rbe")
    monkeypatch.chdir(tmp_path)
    with Index.open("x.rbe") as index:
        monkeypatch.chdir(elsewhere)
        index.add(["one more"])
    assert (len(Index.open(path)), len(Index.open(elsewhere / "x.rbe"))) == (31, 30)


def hooked(monkeypatch: pytest.MonkeyPatch, place: Any, name: str, then: Callable[[], None]) -> None:
    """Call `then` once, right after the next call of a function."""
    original = getattr(place, name)

    def call(*arguments: Any, **named: Any) -> Any:
        result = original(*arguments, **named)
        monkeypatch.setattr(place, name, original)
        then()
        return result

    monkeypatch.setattr(place, name, call)


def test_opening_while_it_is_replaced_is_no_damage(
    path: Path, models: tuple[Model, Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The manifest of the old index is read, then its files: by then those of the new one, of equal names."""
    assert read_manifest(path).generation == 1
    hooked(monkeypatch, snapshots, "read_manifest", lambda: replace(path, models[1]))
    with Index.open(path) as index:
        assert self_hits(index) == 30
        assert index.info()["fingerprint"] == models[1].fingerprint


def test_real_damage_is_still_damage(path: Path) -> None:
    segment = next(path.glob("*.rbs"))
    segment.write_bytes(segment.read_bytes()[:-1])
    with pytest.raises(CorruptError, match=segment.name):
        Index.open(path)


def test_a_lock_on_what_was_replaced_is_no_lock(
    path: Path, models: tuple[Model, Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between opening LOCK and locking it the index is replaced; the new one has a writer."""
    made: list[Index] = []

    def swap() -> None:
        made.append(Index.create(path, models[1], overwrite=True))

    with Index.open(path) as index:
        assert index.model.fingerprint == models[0].fingerprint
        hooked(monkeypatch, writer.os, "open", swap)
        with pytest.raises(LockedError, match=f"is being written by process {os.getpid()}"):
            index.add(["lost"])
    made[0].add(["kept"])
    made[0].close()
    assert len(Index.open(path)) == 1


def stored(path: Path) -> list[str]:
    """The texts of an index without damage."""
    with Index.open(path, read_only=True) as index:
        index.verify()
        return [row["text"] for row in index.rows()]


@pytest.fixture
def two(tmp_path: Path) -> tuple[Path, Path]:
    """Two indexes whose segments have the same names."""
    for name in "ab":
        with Index.create(tmp_path / f"{name}.rbe", HashEncoder()) as index:
            index.add([f"{name} one"])
            index.add([f"{name} two"])
    return tmp_path / "a.rbe", tmp_path / "b.rbe"


def relink(link: Path, target: Path) -> None:
    link.with_name("new link").symlink_to(target)
    link.with_name("new link").rename(link)


def test_a_writer_whose_link_was_changed_writes_to_neither_index(
    two: tuple[Path, Path], tmp_path: Path
) -> None:
    link = tmp_path / "current.rbe"
    link.symlink_to(two[0])
    with (
        Index.open(link, model=HashEncoder()) as index,
        Index.open(two[1], model=HashEncoder()) as rival,
    ):
        index.add(["first"])
        rival.add(["of the rival"])
        relink(link, two[1])
        index.refresh()
        assert len(index) == 3  # a writer stays with the index that it has locked
        with pytest.raises(FileError, match=r"current\.rbe is no longer the index that this process"):
            index.add(["second"])
        with pytest.raises(LockedError, match=r"b\.rbe is being written by"):
            index.add(["second"])
    assert stored(two[0]) == ["a one", "a two", "first"]
    assert stored(two[1]) == ["b one", "b two", "of the rival"]
    with Index.open(link, model=HashEncoder()) as index:
        index.add(["second"])
    assert stored(two[1])[-1] == "second"


@pytest.mark.parametrize("change", ["add", "delete", "update", "compact"])
def test_a_writer_whose_directory_was_exchanged_changes_nothing(two: tuple[Path, Path], change: str) -> None:
    changes: dict[str, Callable[[Index], Any]] = {
        "add": lambda index: index.add(["lost"]),
        "delete": lambda index: index.delete([0]),
        "update": lambda index: index.update([0], {"price": [1]}),
        "compact": lambda index: index.compact(),
    }
    with Index.open(two[0], model=HashEncoder()) as index:
        index.delete([1])
        two[0].rename(two[0].with_name("moved"))
        two[1].rename(two[0])
        with pytest.raises(FileError, match="it was replaced or moved") as caught:
            changes[change](index)
        assert caught.value.hint == "open the index again; this change was not made"
    assert stored(two[0]) == ["b one", "b two"]
    assert stored(two[0].with_name("moved")) == ["a one"]


def test_an_index_that_is_exchanged_during_a_change_keeps_its_files(
    two: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def exchange() -> None:
        two[0].rename(two[0].with_name("moved"))
        two[1].rename(two[0])

    with Index.open(two[1], model=HashEncoder()) as index:
        index.add(["b three"])  # in a segment of the same name as the one that is written below
    with Index.open(two[0], model=HashEncoder()) as index:
        hooked(monkeypatch, writer, "write_segment", exchange)
        with pytest.raises(FileError, match="it was replaced or moved"):
            index.add(["lost"])
    assert stored(two[0]) == ["b one", "b two", "b three"]
    assert stored(two[0].with_name("moved")) == ["a one", "a two"]


def test_a_writer_without_its_lock_file_is_refused(two: tuple[Path, Path]) -> None:
    with Index.open(two[0], model=HashEncoder()) as index:
        index.add(["a three"])
        (two[0] / writer.LOCK).unlink()  # so that anyone may lock the index
        with pytest.raises(FileError, match="no longer the index that this process has locked"):
            index.add(["lost"])
        index.add(["a four"])  # with a new lock
    assert stored(two[0]) == ["a one", "a two", "a three", "a four"]


def test_nobody_writes_to_an_index_that_is_being_replaced(
    path: Path, models: tuple[Model, Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    refused: list[str] = []
    original = creation._give_name

    def give_name(stage: Path, target: Path) -> None:
        with Index.open(path) as index, pytest.raises(LockedError) as caught:
            index.add(["would be lost"])
        refused.append(caught.value.message)
        original(stage, target)

    monkeypatch.setattr(creation, "_give_name", give_name)
    Index.create(path, models[1], overwrite=True).close()
    assert len(refused) == 1


def test_a_forked_child_does_not_keep_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "x.rbe"
    index = Index.create(path, HashEncoder())
    (reader, output), (wait, go) = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        os.write(output, b"!")
        os.close(go)
        os.read(wait, 1)  # until the parent has written again
        os._exit(0)
    try:
        assert os.read(reader, 1) == b"!"  # the child runs
        index.close()
        with Index.open(path, model=HashEncoder()) as again:
            again.add(["after the fork"])
    finally:
        os.close(go)
        os.waitpid(child, 0)
        for descriptor in (reader, output, wait):
            os.close(descriptor)
    assert len(Index.open(path)) == 1
