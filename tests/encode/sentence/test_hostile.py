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

HEAD_CONFIG = "3_RBEHead/config.json"
SETTINGS = "sentence_bert_config.json"  # of the transformer


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


def put(path: Path, content: bytes | str | object) -> None:
    path.unlink(missing_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())


def edited(path: Path, **changes: Any) -> None:
    put(path, {**json.loads(path.read_bytes()), **changes})


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


def sparse(path: Path, size: int) -> None:
    path.unlink(missing_ok=True)
    with path.open("wb") as file:
        file.truncate(size)


def fifo(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def link(path: Path, target: str | Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    path.symlink_to(target)


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (lambda at: sparse(at / "modules.json", 8 << 30), "has more than 134217728 bytes"),
        (lambda at: sparse(at / HEAD_CONFIG, 8 << 30), "has more than 134217728 bytes"),
        (lambda at: sparse(at / "tokenizer.json", 8 << 30), "has more than 134217728 bytes"),
        (lambda at: fifo(at / "config.json"), "is not a regular file"),
        (lambda at: fifo(at / "1_Pooling" / "config.json"), "is not a regular file"),
        (lambda at: link(at / "tokenizer.json", "/dev/zero"), "is not a regular file"),
        (lambda at: link(at / "vocab.txt", "/nowhere"), "is not a regular file"),
        (lambda at: link(at / "3_RBEHead", "/etc"), "is not a regular file"),
        (lambda at: edited(at / HEAD_CONFIG, in_features=20_000), "describes a layer of 2560000 numbers"),
        (lambda at: edited(at / HEAD_CONFIG, in_features=10**30), "describes a layer of 128" + "0" * 30),
        (lambda at: edited(at / HEAD_CONFIG, n=10**9), "describes a layer of 384000000000 numbers"),
        (lambda at: edited(at / "config.json", num_hidden_layers=10**5), "has num_hidden_layers = 100000"),
        (lambda at: edited(at / "config.json", vocab_size=10**9), "has vocab_size = 1000000000"),
        (lambda at: edited(at / "config.json", vocab_size=10**6), "describes layers of 394993792 numbers"),
        (lambda at: edited(at / "config.json", hidden_size=12 * 10**3), "describes layers of"),
        (lambda at: edited(at / "config.json", intermediate_size=10**6), "describes layers of"),
        (lambda at: edited(at / "config.json", max_position_embeddings=10**8), "max_position_embeddings = "),
        (lambda at: edited(at / "config.json", num_labels=10**7), "has num_labels = 10000000, expected at"),
        (lambda at: edited(at / "config.json", sub={"x": [10**18]}), "has x = 1000000000000000000"),
        (
            lambda at: edited(at / "config.json", transformers_weights="x.bin"),
            "names other files with its we",
        ),
        (lambda at: put(at / "adapter_config.json", {}), "names other files with its weights"),
        (lambda at: edited(at / SETTINGS, model_args={"gguf_file": "x"}), "sets 'model_args', which is not"),
        (lambda at: edited(at / SETTINGS, tokenizer_name_or_path="/x"), "sets 'tokenizer_name_or_path'"),
    ],
)
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


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("modules.json", b"[" * 100_000),
        ("modules.json", [{"type": "sentence_transformers.models.Normalize"}]),
        ("modules.json", [{"type": 7, "path": ["x"]}]),
        ("modules.json", [{"type": "rbegir.heads.sentence.RBEHead", "path": "/etc"}]),
        ("config.json", b"[]"),
        ("config.json", b"null"),
        ("config.json", {"model_type": "nothing known"}),
        ("config.json", {"architectures": ["BertModel"], "model_type": "bert", "hidden_size": -1}),
        ("1_Pooling/config.json", b"[]"),
        ("3_RBEHead/config.json", b"{"),
        ("3_RBEHead/config.json", {}),
        ("3_RBEHead/config.json", {"in_features": "many"}),
        ("3_RBEHead/config.json", {"in_features": 384, "n": 128, "surprise": 1}),
        ("3_RBEHead/config.json", {"in_features": 384, "n": 100}),
        ("3_RBEHead/config.json", {"in_features": 384, "n": 128, "query_planes": 10**6}),
        ("3_RBEHead/config.json", {"in_features": 384, "n": 128, "estimator": ["x"]}),
        ("3_RBEHead/model.safetensors", b"\xff" * 400_000),
        ("tokenizer.json", b"[]"),
        ("tokenizer.json", b"{}"),
        ("config_sentence_transformers.json", b"["),
        ("config_sentence_transformers.json", {"prompts": 7}),
        ("config_sentence_transformers.json", {"similarity_fn_name": "none known"}),
    ],
)
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
