"""Encoders made to harm whoever loads them: our own error, without running, waiting for or reading much."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

import rbegir
from rbegir.encode.sentence.encoder import SentenceEncoder
from rbegir.errors import FileError, InputError, RbegirError
from torture.encoders import HARMS, SETTINGS, WILD, edited, link, make_encoder, put


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
        "sentence_transformers.models.LSTM",  # it would make layers of any size
        "sentence_transformers.sentence_transformer.modules.cnn.CNN",
        "sentence_transformers.sentence_transformer.modules.layer_norm.LayerNorm",
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


class Running:
    """A pickle of this makes a directory when it is read."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.mark),)


@pytest.mark.parametrize("folder", ["", "3_RBEHead"])
@pytest.mark.parametrize("instead", ["nothing", "an index", "an index of pickles", "weights_only"])
def test_weights_are_never_unpickled(victim: Path, tmp_path: Path, folder: str, instead: str) -> None:
    at, mark = victim / folder, tmp_path / "mark"
    (at / "model.safetensors").rename(at / "weights.safetensors")
    torch.save(Running(mark), at / "pytorch_model.bin")
    if instead.startswith("an index"):
        named = "pytorch_model.bin" if instead.endswith("pickles") else "../model.safetensors"
        put(at / "model.safetensors.index.json", {"weight_map": {"x": named}})
    if instead == "weights_only":
        edited(victim / SETTINGS, model_args={"weights_only": False})
    with pytest.raises(FileError, match=r"which is not a safetensors file|is not supported here"):
        SentenceEncoder.load(victim)
    assert not mark.exists()


def test_pickled_weights_beside_safetensors_are_not_read(victim: Path, tmp_path: Path) -> None:
    for at in (victim, victim / "3_RBEHead"):
        torch.save(Running(tmp_path / "mark"), at / "pytorch_model.bin")
    assert SentenceEncoder.load(victim).n == 128
    assert not (tmp_path / "mark").exists()


def test_weights_in_several_files(victim: Path) -> None:
    (victim / "model.safetensors").rename(victim / "model-00001-of-00001.safetensors")
    with safe_open(victim / "model-00001-of-00001.safetensors", "numpy") as weights:
        names = dict.fromkeys(weights.keys(), "model-00001-of-00001.safetensors")
    put(victim / "model.safetensors.index.json", {"metadata": {}, "weight_map": names})
    assert SentenceEncoder.load(victim).n == 128


def test_links_lead_to_blobs_of_the_cache_only(victim: Path, tmp_path: Path) -> None:
    """The Hugging Face cache keeps files as links out of a snapshot; elsewhere they are refused."""
    home = tmp_path / "models--x"
    snapshot = Path(shutil.copytree(victim, home / "snapshots" / "1a2b3c", copy_function=os.link))
    (home / "blobs").mkdir()
    for file in (file for file in snapshot.rglob("*") if file.is_file()):
        blob = file.rename(home / "blobs" / str(file.stat().st_ino))
        file.symlink_to(os.path.relpath(blob, file.parent))
    assert SentenceEncoder.load(snapshot).n == 128
    link(snapshot / "tokenizer.json", victim / "tokenizer.json")
    with pytest.raises(FileError, match=r"tokenizer\.json is a link out of its directory"):
        SentenceEncoder.load(snapshot)
    link(
        victim / "modules.json", home / "blobs" / str((home / "snapshots/1a2b3c/modules.json").stat().st_ino)
    )
    with pytest.raises(FileError, match=r"modules\.json is a link out of its directory"):
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
