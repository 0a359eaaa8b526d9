"""`Model`: what a user holds. Codes, embeddings, every refusal, and a start without torch."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rbegir.codes.planes import Codes
from rbegir.encode.clsm.checkpoint import WEIGHTS, Checkpoint, write
from rbegir.encode.clsm.model import Model, quantise
from rbegir.encode.clsm.presets import PRESETS, random_tensors
from rbegir.errors import CorruptError, DeviceError, FileError, InputError, MismatchError, MissingExtraError
from tests.encode.clsm.reference import trace

TEXTS = ["red shoes", "city maps of paris", "été", "a"]


def make(path: Path, name: str, **changes: object) -> Model:
    config = replace(PRESETS[name], conv=24, hash_buckets=9, **changes)  # type: ignore[arg-type]
    write(path / name, config, random_tensors(config))
    return Model.load(path / name)


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_encodes_and_embeds(tmp_path: Path, name: str) -> None:
    model = make(tmp_path, name)
    config, tensors = model.config, random_tensors(model.config)
    assert model.n == config.n == PRESETS[name].n
    assert model.query_planes == (config.query_planes or 8)
    assert model.keyword_planes == config.keyword_planes
    for side in ("query", "keyword"):
        planes = config.query_planes if side == "query" else config.keyword_planes
        embed = model.embed_queries if side == "query" else model.embed_keywords
        encode = model.encode_queries if side == "query" else model.encode_keywords
        inputs = trace(config, side, tensors, TEXTS).inputs
        vectors = embed(TEXTS)
        assert vectors.dtype == np.float32
        assert vectors.shape == (4, config.n)
        if planes == 0:
            np.testing.assert_allclose(vectors, np.tanh(inputs[0]), atol=2e-6, rtol=0)
        else:
            signs = np.where(inputs > 0, 1.0, -1.0)
            assert np.array_equal(vectors, sum(signs[t] * 0.5**t for t in range(planes)))
            assert np.array_equal(encode(TEXTS).signs(), inputs > 0)


def test_a_float_query_is_rounded_to_eight_planes(tmp_path: Path) -> None:
    model = make(tmp_path, "m_5")
    codes, vectors = model.encode_queries(TEXTS), model.embed_queries(TEXTS)
    assert codes.plane_count == model.query_planes == 8
    values, scaled = codes.values(), vectors / np.abs(vectors).max(axis=1, keepdims=True) * 255
    assert np.abs(values).max(axis=1).tolist() == [255] * 4
    assert np.abs(values - scaled).max() <= 1.0001


def test_quantise_takes_the_nearest_odd_integer() -> None:
    vectors = np.zeros((2, 64), dtype=np.float32)
    vectors[0, :6] = np.array([255, -255, 1.9, -1.9, 100.5, -3.1]) / 300
    assert quantise(vectors).values()[0, :7].tolist() == [255, -255, 1, -1, 101, -3, 1]
    assert np.abs(quantise(vectors).values()[1]).tolist() == [1] * 64  # no direction at all: no crash either
    assert len(quantise(vectors[:0])) == 0


def test_float_keywords_have_no_code(tmp_path: Path) -> None:
    model = make(tmp_path, "m_1")
    with pytest.raises(MismatchError, match=r"^the keyword side of this model is a float vector") as caught:
        model.encode_keywords(TEXTS)
    assert "embed_keywords" in caught.value.hint
    assert model.encode_queries(TEXTS).plane_count == 8


def test_planes_of_equal_weight_have_no_code(tmp_path: Path) -> None:
    model = make(tmp_path, "rbe_star", residual_weights=False)
    for encode in (model.encode_queries, model.encode_keywords):
        with pytest.raises(
            MismatchError, match=r"^this model gives all its planes the same weight"
        ) as caught:
            encode(TEXTS)
        assert "residual_weights" in caught.value.hint
    signs = trace(model.config, "query", random_tensors(model.config), TEXTS).inputs > 0
    assert np.array_equal(model.embed_queries(TEXTS), np.where(signs, 1, -1).sum(axis=0))
    assert make(tmp_path, "m_2", residual_weights=False).encode_queries(TEXTS).plane_count == 1


def test_save_and_load(tmp_path: Path) -> None:
    model = make(tmp_path, "rbe_star")
    model.save(tmp_path / "copy")
    again = Model.load(str(tmp_path / "copy"), threads=1)
    assert again.fingerprint == model.fingerprint
    assert again.encode_keywords(TEXTS) == model.encode_keywords(TEXTS)
    again.verify()


def test_encoding_queries_leaves_the_keyword_side_alone(tmp_path: Path) -> None:
    """Also shows that a flipped byte is an error the moment the damaged side is used."""
    model = make(tmp_path, "rbe_star")
    place = Checkpoint(tmp_path / "rbe_star").file.spans["keyword.conv.weight"].start
    with (tmp_path / "rbe_star" / WEIGHTS).open("r+b") as file:
        file.seek(place)
        file.write(b"\x55\x55\x55\x55")
    model = Model.load(tmp_path / "rbe_star")
    assert len(model.encode_queries(TEXTS)) == 4
    for use in (lambda: model.encode_keywords(TEXTS), lambda: model.embed_keywords(TEXTS), model.verify):
        with pytest.raises(CorruptError, match=r"checksum in tensor 'keyword.conv.weight'"):
            use()


def test_threads_may_share_a_model(tmp_path: Path) -> None:
    model = make(tmp_path, "rbe_star")
    texts = [f"word{i % 17} number {i}" for i in range(500)]
    want = make(tmp_path, "rbe_star").encode_queries(texts)
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda _: model.encode_queries(texts), range(16)))
    assert all(result == want for result in results)


def test_no_texts_give_no_codes(tmp_path: Path) -> None:
    model = make(tmp_path, "m_5")
    assert len(model.encode_queries([])) == len(model.encode_keywords([])) == 0
    assert isinstance(model.encode_queries([]), Codes)
    assert model.embed_queries([]).shape == model.embed_keywords([]).shape == (0, 64)


def test_bad_arguments_are_refused(tmp_path: Path) -> None:
    make(tmp_path, "m_2")
    for threads in (0, 1.0, True):
        with pytest.raises(InputError, match=r"^threads must be a whole number of at least 1"):
            Model.load(tmp_path / "m_2", threads=threads)  # type: ignore[arg-type]
    with pytest.raises(FileError, match=r"^no model at"):
        Model.load(tmp_path / "nowhere")


@pytest.mark.parametrize("device", ["gpu", "", "cuda1", "cuda:x", "cuda:", "cpu:0", 0])
def test_an_unknown_device_is_refused(tmp_path: Path, device: object) -> None:
    with pytest.raises(InputError, match=r"^device must be 'cpu', 'cuda' or 'cuda:N', got"):
        Model.load(tmp_path, device)  # type: ignore[arg-type]


@pytest.mark.parametrize("device", ["cuda", "cuda:0", "cuda:7"])
def test_a_gpu_that_is_not_there_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    with pytest.raises(
        DeviceError, match=f"^device '{device}' was asked for, but torch finds no GPU"
    ) as caught:
        Model.load(tmp_path, device)
    assert caught.value.hint == "use device='cpu'"


def test_a_gpu_without_torch_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingExtraError, match=r"^device 'cuda' needs torch") as caught:
        Model.load(tmp_path, "cuda")
    assert "rbegir[gpu]" in caught.value.hint


def test_encoding_imports_neither_torch_nor_pyarrow(tmp_path: Path) -> None:
    make(tmp_path, "rbe_star")
    program = (
        "import sys; from rbegir.encode.clsm.model import Model; "
        f"print(len(Model.load({str(tmp_path / 'rbe_star')!r}).encode_queries(['shoes']))); "
        "print([name for name in ('torch', 'pyarrow', 'safetensors') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:2] == ["1", "[]"]


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["rbe_star", "m_5", "rbe_3"])
def test_a_gpu_gives_the_same_codes(tmp_path: Path, name: str) -> None:
    from tests.encode.clsm.reference import disagreements

    model = make(tmp_path, name)
    other = Model.load(tmp_path / name, "cuda")
    texts = [f"word{i % 17} number {i}" for i in range(300)]
    np.testing.assert_allclose(other.embed_queries(TEXTS), model.embed_queries(TEXTS), atol=1e-4)
    inputs = trace(model.config, "keyword", random_tensors(model.config), texts).inputs
    wrong, left_out = disagreements(other.encode_keywords(texts).signs(), inputs, tolerance=1e-3)
    assert wrong == 0
    assert left_out < 0.5
