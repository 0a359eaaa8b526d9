"""Encoders made to harm whoever loads them: our own error, without running, waiting for or reading much."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import rbegir
from rbegir.encode.sentence.encoder import SentenceEncoder
from rbegir.errors import FileError, InputError, RbegirError
from torture.encoders import HARMS, WILD, link, make_encoder, put


@pytest.fixture(scope="module")
def sound(minilm: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from sentence_transformers import SentenceTransformer

    from rbegir.encode.sentence.head import RBEHead

    path = tmp_path_factory.mktemp("sound") / "encoder"
    model = SentenceTransformer(str(minilm), device="cpu", local_files_only=True)
    SentenceTransformer(modules=[*model.children(), RBEHead(384, n=128)], device="cpu").save(str(path))
    return path


@pytest.fixture
def victim(sound: Path, tmp_path: Path) -> Path:
    """A copy of the directory whose files are hard links: replace them, never write into them."""
    return Path(shutil.copytree(sound, tmp_path / "victim", copy_function=os.link))


def with_type(victim: Path, name: str) -> None:
    modules = json.loads((victim / "modules.json").read_bytes())
    modules[2]["type"] = name
    put(victim / "modules.json", modules)


@pytest.mark.parametrize(
    "name",
    [
        "sentence_transformers.base.model.pickle",
        "sentence_transformers.base.modules.router.Router",  # it would load classes that its config names
        "sentence_transformers.util.import_from_string",
        "sentence_transformers.base.modules.normalize.Normalize.load",
        "sentence_transformers.models",
        "os.system",
    ],
)
def test_only_known_classes_are_loaded(victim: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pickle, "load", lambda *_, **__: pytest.fail("its load was called"))
    with_type(victim, name)
    with pytest.raises(InputError, match=f"is made of {name}, code of its own, which is not run here"):
        SentenceEncoder.load(victim)


@pytest.mark.parametrize("name", ["base.modules.normalize.Normalize", "models.Normalize"])
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
def test_classes_have_their_names_of_all_releases(victim: Path, name: str) -> None:
    with_type(victim, f"sentence_transformers.{name}")
    assert SentenceEncoder.load(victim).n == 128


@pytest.mark.parametrize(("harm", "message"), HARMS)
def test_files_that_cannot_be_what_they_seem(
    victim: Path, harm: Callable[[Path], None], message: str
) -> None:
    harm(victim)
    with pytest.raises(FileError, match=message):
        SentenceEncoder.load(victim)


@pytest.mark.parametrize(("file", "content"), WILD)
@pytest.mark.filterwarnings("ignore")
def test_wild_contents_are_our_errors(victim: Path, file: str, content: object) -> None:
    assert (victim / file).is_file()
    put(victim / file, content)
    with pytest.raises(RbegirError):
        SentenceEncoder.load(victim)


def test_a_head_is_loaded_without_the_work_of_a_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new head draws 4 · in_features² numbers to start from: gigabytes for a wide one."""
    from rbegir.encode.sentence.head import RBEHead

    made = RBEHead(96, n=64)
    made.save(str(tmp_path))
    monkeypatch.setattr(torch, "randn", lambda *_, **__: pytest.fail("numbers were drawn"))
    again = RBEHead.load(str(tmp_path))
    for name, value in made.state_dict().items():
        assert torch.equal(again.state_dict()[name], value)


def test_a_linked_binarizer_is_not_followed(tmp_path: Path, minilm: Path) -> None:
    encoder = SentenceEncoder.load(minilm).fit(["red shoes", "blue hats", "green cars", "old maps"] * 20)
    path = tmp_path / "x.rbe"
    with rbegir.Index.create(path, encoder) as index:
        index.add(["red shoes"])
    moved = (path / "model" / "binarizer").rename(tmp_path / "elsewhere")
    link(path / "model" / "binarizer", moved)
    with pytest.raises(FileError, match="binarizer is a link, which is not followed"):
        _ = rbegir.Index.open(path).model


def test_the_small_encoder_of_the_front_door_is_sound(tmp_path: Path) -> None:
    encoder = SentenceEncoder.load(make_encoder(tmp_path))
    assert encoder.n == 128
    assert len(encoder.encode_queries(["red shoes", "blue hats"])) == 2
